// SPDX-License-Identifier: Apache-2.0
#include "program.h"

#include <algorithm>
#include <cstdio>

#include "base/rng.h"
#include "model.h"

namespace weir::model {
namespace {

constexpr int kFull = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                      IBV_ACCESS_REMOTE_ATOMIC;

/// Draws programs, group by group; a step that would make the outcome hang on a race is drawn anew.
class Generator {
  public:
    explicit Generator(std::uint64_t seed) : rng_(seed) { program_.seed = seed; }

    Program draw() {
        program_.pairs = 1 + number(kPairsMax);
        program_.one_cq = rng_.one_in(2);
        for (int i = 0; i < program_.pairs; ++i)
            draw_setup(program_.setup[i]);
        model_ = Model(program_);
        const int groups = 2 + number(6);
        for (int i = 0; i < groups; ++i) {
            if (rng_.one_in(4)) change_state();
            fill_group();
            add({});
        }
        return program_;
    }

  private:
    int number(int bound) {
        return static_cast<int>(rng_.below(static_cast<std::uint64_t>(bound)));
    }
    template <class T>
    T pick(std::initializer_list<T> from) {
        return *(from.begin() + number(static_cast<int>(from.size())));
    }

    void draw_setup(PairSetup& setup) {
        setup.type = pick({IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD});
        setup.signal_all = rng_.one_in(3);
        setup.rnr_retry = rng_.one_in(3) ? 1 : 7;
        for (int side = 0; side < 2; ++side) {
            setup.shared_receives[side] = rng_.one_in(4);
            setup.access[side] = rng_.one_in(6) ? kFull & ~(1 << number(4)) : kFull;
        }
    }

    bool add(const Step& step) {
        Model trial = model_;
        trial.apply(step);
        if (!trial.undefined().empty()) return false;
        model_ = std::move(trial);
        program_.steps.push_back(step);
        return true;
    }

    void change_state() {
        Step step;
        step.kind = rng_.one_in(2) ? StepKind::kToError : StepKind::kReconnect;
        step.pair = number(program_.pairs);
        step.side = number(2);
        // Out of SQE, where unreliable pairs come to by their own errors.
        if (model_.state(step.pair, step.side) == IBV_QPS_SQE) step.kind = StepKind::kRecover;
        if (add(step)) add({});
    }

    void fill_group() {
        // All that is received is posted first, as what comes later would race with its message.
        for (int i = number(5); i > 0; --i)
            add(draw_receive());
        for (int i = 1 + number(8); i > 0; --i)
            for (int tries = 0; tries < 4 && !add(draw_send()); ++tries) {
            }
    }

    Step draw_receive() {
        Step step;
        step.kind = StepKind::kReceive;
        step.pair = number(program_.pairs);
        step.side = number(2);
        step.wr_id = next_id_++;
        const auto area = lane(step.pair, 1 - step.side) + kReceive;
        const int pieces = rng_.one_in(12) ? 0 : 1 + number(rng_.one_in(30) ? 5 : 3);
        // Mostly with room, and never two pieces over each other.
        const std::uint32_t room = kArea / static_cast<std::uint32_t>(std::max(pieces, 1));
        for (int i = 0; i < pieces; ++i) {
            const auto length = rng_.one_in(4) ? draw_length() : room;
            step.pieces.push_back({area + static_cast<std::uint32_t>(i) * room,
                                   std::min(length, room), draw_key(30)});
        }
        return step;
    }

    std::uint32_t draw_length() {
        const auto length = pick<std::uint32_t>({0, 1, 7, 8, 63, 64, 65, 152, 153, 1000, 4096});
        return rng_.one_in(3) ? static_cast<std::uint32_t>(number(4097)) : length;
    }

    Region draw_key(std::uint64_t one_wrong_in) {
        return rng_.one_in(one_wrong_in) ? static_cast<Region>(number(kRegions + 1)) : kAll;
    }

    Step draw_send() {
        Step step;
        step.kind = StepKind::kSend;
        step.pair = number(program_.pairs);
        step.side = number(2);
        step.wr_id = next_id_++;
        step.opcode =
            pick({IBV_WR_SEND, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE,
                  IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ,
                  IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_WRITE});
        for (const unsigned flag : {IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, IBV_SEND_FENCE})
            if (rng_.one_in(flag == IBV_SEND_SIGNALED ? 2 : 4)) step.flags |= flag;
        if (rng_.one_in(5)) step.flags |= IBV_SEND_INLINE;
        draw_pieces(step);
        step.remote_key = draw_key(12);
        const auto bytes = std::min(bytes_of(step), kArea);
        step.remote_offset = lane(step.pair, step.side) + kRemote +
                             static_cast<std::uint32_t>(rng_.below(kArea - bytes + 1));
        if (!rng_.one_in(20)) step.remote_offset &= ~7U;
        step.immediate = static_cast<std::uint32_t>(rng_.next());
        step.compare_add = rng_.next();
        step.swap = rng_.next();
        step.wrong_qkey = rng_.one_in(8);
        guess_compare(step);
        return step;
    }

    /// Half of the swaps find what they compare with.
    void guess_compare(Step& step) {
        if (step.opcode != IBV_WR_ATOMIC_CMP_AND_SWP || rng_.one_in(2)) return;
        const auto& memory = model_.side(1 - step.side).memory;
        for (std::uint32_t i = 8; i-- > 0;)
            step.compare_add = step.compare_add << 8U | memory[step.remote_offset + i];
    }

    void draw_pieces(Step& step) {
        const bool word = step.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
                          step.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ||
                          step.opcode == IBV_WR_ATOMIC_WRITE;
        const bool fills =
            step.opcode == IBV_WR_RDMA_READ || (word && step.opcode != IBV_WR_ATOMIC_WRITE);
        const auto area = lane(step.pair, step.side) + (fills ? kResults : kSource);
        int count = word && !rng_.one_in(20) ? 1 : rng_.one_in(12) ? 0 : 1 + number(3);
        if (rng_.one_in(40)) count = 5;
        const std::uint32_t room = kArea / static_cast<std::uint32_t>(std::max(count, 1));
        for (int i = 0; i < count; ++i) {
            auto length = word && !rng_.one_in(20) ? 8 : std::min(draw_length(), room);
            if ((step.flags & IBV_SEND_INLINE) != 0 && !word) length %= 24;
            const auto slack = static_cast<std::uint32_t>(rng_.below(room - length + 1));
            step.pieces.push_back(
                {area + static_cast<std::uint32_t>(i) * room + slack, length, draw_key(25)});
        }
    }

    Rng rng_;
    Program program_;
    Model model_{program_};
    std::uint64_t next_id_ = 1;
};

const char* name_of(ibv_wr_opcode opcode) {
    switch (opcode) {
        case IBV_WR_SEND:
            return "SEND";
        case IBV_WR_SEND_WITH_IMM:
            return "SEND_WITH_IMM";
        case IBV_WR_RDMA_WRITE:
            return "WRITE";
        case IBV_WR_RDMA_WRITE_WITH_IMM:
            return "WRITE_WITH_IMM";
        case IBV_WR_RDMA_READ:
            return "READ";
        case IBV_WR_ATOMIC_CMP_AND_SWP:
            return "CMP_AND_SWP";
        case IBV_WR_ATOMIC_FETCH_AND_ADD:
            return "FETCH_AND_ADD";
        case IBV_WR_ATOMIC_WRITE:
            return "ATOMIC_WRITE";
        default:
            return "?";
    }
}

constexpr const char* kRegionNames[] = {"all",        "local-only", "read-only", "other-domain",
                                        "write-only", "part",       "no-key"};

std::string format(const char* form, auto... values) {
    char text[200];
    std::snprintf(text, sizeof text, form, values...);
    return text;
}

}  // namespace

RegionFacts facts_of(Region region) {
    switch (region) {
        case kLocalOnly:
            return {0, kMemory, IBV_ACCESS_LOCAL_WRITE, false};
        case kReadOnly:
            return {0, kMemory, IBV_ACCESS_REMOTE_READ, false};
        case kOtherDomain:
            return {0, kMemory, kFull, true};
        case kWriteOnly:
            return {0, kMemory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, false};
        case kPart:
            return {kRemote, kPartLength, kFull, false};
        default:
            return {0, kMemory, kFull, false};
    }
}

std::uint32_t bytes_of(const Step& step) {
    std::uint32_t bytes = 0;
    for (const auto& piece : step.pieces)
        bytes += piece.length;
    return bytes;
}

std::uint8_t initial_byte(std::uint64_t seed, int side, std::uint32_t offset) {
    return static_cast<std::uint8_t>(
        (seed + offset * 7 + offset / 251 + static_cast<unsigned>(side) * 101) * 31);
}

Program generate(std::uint64_t seed) {
    return Generator(seed).draw();
}

std::string text_of(const Step& step) {
    switch (step.kind) {
        case StepKind::kSettle:
            return "-- settle";
        case StepKind::kReconnect:
            return format("pair %d: reset and connect again", step.pair);
        case StepKind::kRecover:
            return format("pair %d side %d: from SQE to RTS", step.pair, step.side);
        case StepKind::kToError:
            return format("pair %d side %d: to ERR", step.pair, step.side);
        default:
            break;
    }
    const bool send = step.kind == StepKind::kSend;
    std::string text = format("pair %d side %d: %s id %llu", step.pair, step.side,
                              send ? name_of(step.opcode) : "receive",
                              static_cast<unsigned long long>(step.wr_id));
    for (const auto& piece : step.pieces)
        text += format(" [%u+%u %s]", piece.offset, piece.length, kRegionNames[piece.key]);
    if (!send) return text;
    text += format(" to %u %s flags", step.remote_offset, kRegionNames[step.remote_key]);
    if ((step.flags & IBV_SEND_SIGNALED) != 0) text += " signaled";
    if ((step.flags & IBV_SEND_FENCE) != 0) text += " fence";
    if ((step.flags & IBV_SEND_INLINE) != 0) text += " inline";
    if (step.wrong_qkey) text += " wrong-qkey";
    return text;
}

std::string text_of(const Program& program) {
    std::string text = format("seed %llu, %s\n", static_cast<unsigned long long>(program.seed),
                              program.one_cq ? "one CQ a side" : "two CQs a side");
    for (int i = 0; i < program.pairs; ++i) {
        const auto& setup = program.setup[i];
        text += format(
            "pair %d: %s%s%s%s rnr_retry %d access %#x %#x\n", i,
            setup.type == IBV_QPT_RC   ? "RC"
            : setup.type == IBV_QPT_UC ? "UC"
                                       : "UD",
            setup.signal_all ? " signal-all" : "", setup.shared_receives[0] ? " srq-at-0" : "",
            setup.shared_receives[1] ? " srq-at-1" : "", setup.rnr_retry,
            static_cast<unsigned>(setup.access[0]), static_cast<unsigned>(setup.access[1]));
    }
    int number = 0;
    for (const auto& step : program.steps)
        text += format("%3d ", number++) + text_of(step) + "\n";
    return text;
}

}  // namespace weir::model

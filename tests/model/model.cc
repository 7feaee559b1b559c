// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace weir::model {
namespace {

constexpr std::uint32_t kGrh = 40;
constexpr std::uint32_t kDatagramMost = 4096;

bool is_atomic(ibv_wr_opcode opcode) {
    return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}
bool is_send(ibv_wr_opcode opcode) {
    return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM;
}
bool has_immediate(ibv_wr_opcode opcode) {
    return opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}
bool takes_receive(ibv_wr_opcode opcode) {
    return is_send(opcode) || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}
/// Only requests with an answer of their own: RC.
bool is_answered(ibv_wr_opcode opcode) {
    return is_atomic(opcode) || opcode == IBV_WR_RDMA_READ || opcode == IBV_WR_ATOMIC_WRITE;
}

ibv_wc_opcode completed_as(ibv_wr_opcode opcode) {
    switch (opcode) {
        case IBV_WR_RDMA_WRITE:
        case IBV_WR_RDMA_WRITE_WITH_IMM:
            return IBV_WC_RDMA_WRITE;
        case IBV_WR_RDMA_READ:
            return IBV_WC_RDMA_READ;
        case IBV_WR_ATOMIC_CMP_AND_SWP:
            return IBV_WC_COMP_SWAP;
        case IBV_WR_ATOMIC_FETCH_AND_ADD:
            return IBV_WC_FETCH_ADD;
        case IBV_WR_ATOMIC_WRITE:
            return IBV_WC_ATOMIC_WRITE;
        default:
            return IBV_WC_SEND;
    }
}

}  // namespace

Model::Model(const Program& program) : pairs_(program.pairs) {
    std::copy(std::begin(program.setup), std::end(program.setup), std::begin(setup_));
    for (int side = 0; side < 2; ++side) {
        auto& view = views_[side];
        view.memory.resize(kMemory);
        view.open.resize(kMemory);
        for (std::uint32_t i = 0; i < kMemory; ++i)
            view.memory[i] = initial_byte(program.seed, side, i);
    }
}

std::deque<Step>& Model::receives_of(int pair, int side) {
    return setup_[pair].shared_receives[side] ? shared_[side] : qp(pair, side).receives;
}

int Model::check_send(const Step& step) const {
    const auto type = setup_[step.pair].type;
    const auto bytes = bytes_of(step);
    if (type == IBV_QPT_UD && (!is_send(step.opcode) || bytes > kDatagramMost)) return EINVAL;
    if (type == IBV_QPT_UC && is_answered(step.opcode)) return EINVAL;
    if (step.pieces.size() > kPiecesMost) return EINVAL;
    const bool word = is_atomic(step.opcode) || step.opcode == IBV_WR_ATOMIC_WRITE;
    if (word && (bytes != 8 || step.pieces.size() != 1)) return EINVAL;
    if ((step.flags & IBV_SEND_INLINE) == 0) return 0;
    const bool gathers = !is_atomic(step.opcode) && step.opcode != IBV_WR_RDMA_READ;
    return !gathers || bytes > kInlineMost ? EINVAL : 0;
}

int Model::apply(const Step& step) {
    const int other = 1 - step.side;
    switch (step.kind) {
        case StepKind::kSettle:
            settle();
            return 0;
        case StepKind::kReconnect:
            reconnect(step.pair);
            return 0;
        case StepKind::kRecover:
            return recover(step);
        case StepKind::kToError:
            if (active(step.pair, 0) || active(step.pair, 1) || changed_[step.pair])
                say_undefined("a change of state races with requests");
            changed_[step.pair] = true;
            break_qp(step.pair, step.side);
            run(step.pair, other);
            return 0;
        case StepKind::kReceive: {
            if (step.pieces.size() > kPiecesMost) return EINVAL;
            if (sent_[step.pair][other] || changed_[step.pair] || failed_[step.pair] >= 0)
                say_undefined("a receive races with the message for it");
            if (setup_[step.pair].shared_receives[step.side]) {
                int waiting = 0;
                for (int pair = 0; pair < pairs_; ++pair) {
                    if (!setup_[pair].shared_receives[step.side]) continue;
                    if (waits(pair, other)) ++waiting;
                    if (sent_[pair][other]) say_undefined("a receive races with a message");
                }
                if (waiting > 1) say_undefined("two messages race for a receive");
                shared_[step.side].push_back(step);
                for (int pair = 0; pair < pairs_; ++pair)
                    if (setup_[pair].shared_receives[step.side]) run(pair, other);
                return 0;
            }
            auto& queue = qp(step.pair, step.side);
            if (queue.state == IBV_QPS_ERR) {
                add(step.pair, step.side, kReceives, step.wr_id, IBV_WC_WR_FLUSH_ERR);
                return 0;
            }
            queue.receives.push_back(step);
            run(step.pair, other);
            return 0;
        }
        case StepKind::kSend:
            break;
    }
    if (const int error = check_send(step); error != 0) return error;
    if (changed_[step.pair]) say_undefined("a request races with a change of state");
    if (failed_[step.pair] == other) say_undefined("a request races with an error");
    sent_[step.pair][step.side] = true;
    auto& queue = qp(step.pair, step.side);
    Posted posted{step, {}};
    if ((step.flags & IBV_SEND_INLINE) != 0) posted.inlined = gather(step.side, posted);
    if (queue.state != IBV_QPS_RTS) {
        add(step.pair, step.side, kSends, step.wr_id, IBV_WC_WR_FLUSH_ERR);
        return 0;
    }
    queue.sends.push_back(std::move(posted));
    run(step.pair, step.side);
    return 0;
}

void Model::settle() {
    reads_.clear();
    for (int pair = 0; pair < kPairsMax; ++pair)
        for (int side = 0; side < 2; ++side)
            sent_[pair][side] = resumed_[pair][side] = changed_[pair] = false;
    std::fill(std::begin(failed_), std::end(failed_), -1);
    shared_user_[0] = shared_user_[1] = -1;
}

int Model::recover(const Step& step) {
    auto& queue = qp(step.pair, step.side);
    if (active(step.pair, step.side) || changed_[step.pair])
        say_undefined("a change of state races with requests");
    changed_[step.pair] = true;
    if (queue.state == IBV_QPS_ERR) return EINVAL;
    queue.state = view(step.pair, step.side).state = IBV_QPS_RTS;
    return 0;
}

void Model::reconnect(int pair) {
    if (active(pair, 0) || active(pair, 1) || changed_[pair])
        say_undefined("a change of state races with requests");
    changed_[pair] = true;
    for (int side = 0; side < 2; ++side) {
        qp(pair, side) = {};
        view(pair, side).state = IBV_QPS_RTS;
    }
}

void Model::run(int pair, int side) {
    auto& queue = qp(pair, side);
    while (!queue.sends.empty() && queue.state == IBV_QPS_RTS) {
        resumed_[pair][side] = true;
        const Posted posted = queue.sends.front();
        queue.sends.pop_front();
        const auto outcome = execute(pair, side, posted);
        if (outcome == Outcome::kWaits) {
            queue.sends.push_front(posted);
            return;
        }
        if (outcome == Outcome::kDone) continue;
        // What the other side still waits with finds nobody.
        run(pair, 1 - side);
        for (const auto& rest : std::exchange(queue.sends, {}))
            add(pair, side, kSends, rest.step.wr_id, IBV_WC_WR_FLUSH_ERR);
        if (failed_[pair] >= 0 && active(pair, 1 - side))
            say_undefined("an error races with the other direction");
    }
}

bool Model::key_covers(Region key, std::uint32_t offset, std::uint32_t length, int access) {
    if (key == kNoKey) return false;
    const auto facts = facts_of(key);
    return !facts.other_domain && (facts.access & access) == access && offset >= facts.begin &&
           offset + length <= facts.begin + facts.length;
}

bool Model::local_keys_hold(const Posted& posted) const {
    if ((posted.step.flags & IBV_SEND_INLINE) != 0) return true;
    const bool fills = is_atomic(posted.step.opcode) || posted.step.opcode == IBV_WR_RDMA_READ;
    const int access = fills ? IBV_ACCESS_LOCAL_WRITE : 0;
    return std::all_of(posted.step.pieces.begin(), posted.step.pieces.end(), [&](const Piece& p) {
        return p.length == 0 || key_covers(p.key, p.offset, p.length, access);
    });
}

Model::Outcome Model::execute(int pair, int side, const Posted& posted) {
    const auto& step = posted.step;
    const auto type = setup_[pair].type;
    // A fence waits for the answers of what came before.
    if ((step.flags & IBV_SEND_FENCE) != 0)
        std::erase_if(reads_, [&](const OpenRead& r) { return r.pair == pair && r.side == side; });
    if (!local_keys_hold(posted)) return fail(pair, side, posted, IBV_WC_LOC_PROT_ERR);
    if (!qp(pair, 1 - side).receives_packets()) {
        if (type == IBV_QPT_RC) return fail(pair, side, posted, IBV_WC_RETRY_EXC_ERR);
        complete(pair, side, posted, 0);
        return Outcome::kDone;
    }
    if (is_send(step.opcode)) return execute_send(pair, side, posted);
    if (step.opcode == IBV_WR_RDMA_READ) return execute_read(pair, side, posted);
    if (is_answered(step.opcode)) return execute_word(pair, side, posted);
    return execute_write(pair, side, posted);
}

/// In a group one pair alone may look for receives of a shared queue.
void Model::note_shared(int pair, int side) {
    if (!setup_[pair].shared_receives[side]) return;
    if (shared_user_[side] >= 0 && shared_user_[side] != pair)
        say_undefined("two pairs race for shared receives");
    shared_user_[side] = pair;
}

Step Model::take_receive(int pair, int side) {
    auto& queue = receives_of(pair, side);
    note_shared(pair, side);
    Step receive = queue.front();
    queue.pop_front();
    return receive;
}

Model::Outcome Model::no_receive(int pair, int side, const Posted& posted) {
    note_shared(pair, 1 - side);
    if (setup_[pair].type != IBV_QPT_RC) {
        say_undefined("an unreliable message without a receive");
        return Outcome::kDone;
    }
    // What comes with immediate data may have been written before the receive was looked for.
    if (!is_send(posted.step.opcode))
        leave_open(1 - side, posted.step.remote_offset, bytes_of(posted.step));
    if (setup_[pair].rnr_retry == 7) return Outcome::kWaits;
    return fail(pair, side, posted, IBV_WC_RNR_RETRY_EXC_ERR);
}

Model::Outcome Model::execute_send(int pair, int side, const Posted& posted) {
    const int peer = 1 - side;
    const auto type = setup_[pair].type;
    if (type == IBV_QPT_UD && posted.step.wrong_qkey) {
        complete(pair, side, posted, 0);
        return Outcome::kDone;
    }
    if (receives_of(pair, peer).empty()) return no_receive(pair, side, posted);
    const Step receive = take_receive(pair, peer);
    const auto data = gather(side, posted);
    const auto skip = type == IBV_QPT_UD ? kGrh : 0;
    if (data.size() + skip > bytes_of(receive)) {
        if (type != IBV_QPT_RC) say_undefined("an unreliable message that is too long");
        for (const auto& piece : receive.pieces)
            if (key_covers(piece.key, piece.offset, piece.length, IBV_ACCESS_LOCAL_WRITE))
                leave_open(peer, piece.offset, piece.length);
        return receive_failed(pair, side, posted, receive, IBV_WC_LOC_LEN_ERR);
    }
    if (!scatter(peer, receive.pieces, skip, data))
        return receive_failed(pair, side, posted, receive, IBV_WC_LOC_PROT_ERR);
    complete_receive(pair, peer, receive, static_cast<std::uint32_t>(data.size() + skip),
                     posted.step);
    complete(pair, side, posted, 0);
    return Outcome::kDone;
}

/// The receive ends in error, and with it the receiving queue pair. Its sender is told by RC alone.
Model::Outcome Model::receive_failed(int pair, int side, const Posted& posted, const Step& receive,
                                     ibv_wc_status status) {
    const int peer = 1 - side;
    add(pair, peer, kReceives, receive.wr_id, status);
    failed_[pair] = side;
    ++view(pair, peer).errors_most;
    break_qp(pair, peer);
    if (setup_[pair].type == IBV_QPT_RC) {
        return fail(pair, side, posted,
                    status == IBV_WC_LOC_LEN_ERR ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_OP_ERR);
    }
    complete(pair, side, posted, 0);
    return Outcome::kDone;
}

Model::Outcome Model::execute_write(int pair, int side, const Posted& posted) {
    const auto& step = posted.step;
    const int peer = 1 - side;
    const auto length = bytes_of(step);
    const bool allowed = (setup_[pair].access[peer] & IBV_ACCESS_REMOTE_WRITE) != 0;
    const bool covered = length == 0 || key_covers(step.remote_key, step.remote_offset, length,
                                                   IBV_ACCESS_REMOTE_WRITE);
    if (!allowed || !covered) return refuse(pair, side, posted, IBV_WC_REM_ACCESS_ERR);
    if (takes_receive(step.opcode) && receives_of(pair, peer).empty())
        return no_receive(pair, side, posted);
    note_change(pair, side, step.remote_offset, length);
    store(peer, step.remote_offset, gather(side, posted));
    if (takes_receive(step.opcode)) {
        const Step receive = take_receive(pair, peer);
        complete_receive(pair, peer, receive, length, step);
    }
    complete(pair, side, posted, 0);
    return Outcome::kDone;
}

Model::Outcome Model::execute_read(int pair, int side, const Posted& posted) {
    const auto& step = posted.step;
    const int peer = 1 - side;
    const auto length = bytes_of(step);
    const bool allowed = (setup_[pair].access[peer] & IBV_ACCESS_REMOTE_READ) != 0;
    const bool covered = length == 0 || key_covers(step.remote_key, step.remote_offset, length,
                                                   IBV_ACCESS_REMOTE_READ);
    if (!allowed || !covered) return refuse(pair, side, posted, IBV_WC_REM_ACCESS_ERR);
    const auto& memory = views_[peer].memory;
    const auto from = memory.begin() + static_cast<std::ptrdiff_t>(step.remote_offset);
    put_results(pair, side, step, {from, from + length});
    const auto open_from =
        views_[peer].open.begin() + static_cast<std::ptrdiff_t>(step.remote_offset);
    if (std::find(open_from, open_from + length, 1) != open_from + length)
        for (const auto& piece : step.pieces)
            leave_open(side, piece.offset, piece.length);
    reads_.push_back({pair, side, step.remote_offset, length, step.pieces});
    complete(pair, side, posted, length);
    return Outcome::kDone;
}

/// The atomics, and the atomic write.
Model::Outcome Model::execute_word(int pair, int side, const Posted& posted) {
    const auto& step = posted.step;
    const int peer = 1 - side;
    const bool write = step.opcode == IBV_WR_ATOMIC_WRITE;
    const int right = write ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_ATOMIC;
    const bool allowed = (setup_[pair].access[peer] & right) != 0;
    const bool covered = key_covers(step.remote_key, step.remote_offset, 8, right);
    if (step.remote_offset % 8 != 0) {
        if (!allowed || !covered) say_undefined("wrong in two ways");
        return refuse(pair, side, posted, IBV_WC_REM_INV_REQ_ERR);
    }
    if (!allowed || !covered) return refuse(pair, side, posted, IBV_WC_REM_ACCESS_ERR);
    auto& memory = views_[peer].memory;
    std::uint64_t before = 0;
    std::memcpy(&before, &memory[step.remote_offset], 8);
    std::uint64_t after = before + step.compare_add;
    if (step.opcode == IBV_WR_ATOMIC_CMP_AND_SWP)
        after = before == step.compare_add ? step.swap : before;
    std::vector<std::uint8_t> bytes(8);
    std::memcpy(bytes.data(), &after, 8);
    if (write) bytes = gather(side, posted);
    const auto open_from =
        views_[peer].open.begin() + static_cast<std::ptrdiff_t>(step.remote_offset);
    const bool unknown = std::find(open_from, open_from + 8, 1) != open_from + 8;
    note_change(pair, side, step.remote_offset, 8);
    store(peer, step.remote_offset, bytes);
    if (!write) {
        if (unknown) leave_open(peer, step.remote_offset, 8);
        std::vector<std::uint8_t> original(8);
        std::memcpy(original.data(), &before, 8);
        put_results(pair, side, step, original);
        reads_.push_back({pair, side, step.remote_offset, 0, step.pieces});
        if (unknown) leave_open(side, step.pieces[0].offset, 8);
    }
    complete(pair, side, posted, write ? 0 : 8);
    return Outcome::kDone;
}

Model::Outcome Model::refuse(int pair, int side, const Posted& posted, ibv_wc_status status) {
    if (setup_[pair].type != IBV_QPT_RC) {  // nobody is told, and nothing happens
        complete(pair, side, posted, 0);
        return Outcome::kDone;
    }
    auto& peer = view(pair, 1 - side);
    ++peer.errors_least;
    ++peer.errors_most;
    failed_[pair] = side;
    break_qp(pair, 1 - side);
    return fail(pair, side, posted, status);
}

/// RC goes to the error state; the others' send queue alone does.
Model::Outcome Model::fail(int pair, int side, const Posted& posted, ibv_wc_status status) {
    add(pair, side, kSends, posted.step.wr_id, status);
    if (setup_[pair].type == IBV_QPT_RC) {
        failed_[pair] = side;
        break_qp(pair, side);
    } else {
        qp(pair, side).state = view(pair, side).state = IBV_QPS_SQE;
    }
    return Outcome::kFailed;
}

void Model::break_qp(int pair, int side) {
    auto& queue = qp(pair, side);
    if (queue.state == IBV_QPS_ERR) return;
    queue.state = view(pair, side).state = IBV_QPS_ERR;
    for (const auto& posted : std::exchange(queue.sends, {}))
        add(pair, side, kSends, posted.step.wr_id, IBV_WC_WR_FLUSH_ERR);
    for (const auto& receive : std::exchange(queue.receives, {}))
        add(pair, side, kReceives, receive.wr_id, IBV_WC_WR_FLUSH_ERR);
    if (!setup_[pair].shared_receives[side]) return;
    ++view(pair, side).last_least;
    ++view(pair, side).last_most;
}

void Model::add(int pair, int side, Queue queue, std::uint64_t wr_id, ibv_wc_status status) {
    Completion completion;
    completion.wr_id = wr_id;
    completion.status = status;
    view(pair, side).completions[queue].push_back(completion);
}

void Model::complete(int pair, int side, const Posted& posted, std::uint32_t bytes) {
    const auto& step = posted.step;
    if ((step.flags & IBV_SEND_SIGNALED) == 0 && !setup_[pair].signal_all) return;
    add(pair, side, kSends, step.wr_id, IBV_WC_SUCCESS);
    auto& completion = view(pair, side).completions[kSends].back();
    completion.opcode = completed_as(step.opcode);
    completion.byte_len = bytes;
    completion.has_byte_len = is_atomic(step.opcode) || step.opcode == IBV_WR_RDMA_READ;
}

void Model::complete_receive(int pair, int side, const Step& receive, std::uint32_t bytes,
                             const Step& send) {
    add(pair, side, kReceives, receive.wr_id, IBV_WC_SUCCESS);
    auto& completion = view(pair, side).completions[kReceives].back();
    completion.opcode = is_send(send.opcode) ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
    completion.byte_len = bytes;
    completion.has_byte_len = true;
    completion.has_immediate = has_immediate(send.opcode);
    completion.immediate = send.immediate;
}

std::vector<std::uint8_t> Model::gather(int side, const Posted& posted) const {
    if (!posted.inlined.empty()) return posted.inlined;
    std::vector<std::uint8_t> data;
    const auto& memory = views_[side].memory;
    for (const auto& piece : posted.step.pieces) {
        const auto from = memory.begin() + static_cast<std::ptrdiff_t>(piece.offset);
        data.insert(data.end(), from, from + piece.length);
    }
    return data;
}

/// What an answer brings. In which order two answers come to one place is left open.
void Model::put_results(int pair, int side, const Step& step,
                        const std::vector<std::uint8_t>& data) {
    scatter(side, step.pieces, 0, data);
    for (const auto& read : reads_) {
        if (read.pair != pair || read.side != side) continue;
        for (const auto& old : read.results)
            for (const auto& piece : step.pieces) {
                const auto begin = std::max(old.offset, piece.offset);
                const auto end = std::min(old.offset + old.length, piece.offset + piece.length);
                if (begin < end) leave_open(side, begin, end - begin);
            }
    }
}

/// False at a piece whose key does not let it be written to; what came before it may be there.
bool Model::scatter(int side, const std::vector<Piece>& pieces, std::uint32_t skip,
                    const std::vector<std::uint8_t>& data) {
    std::vector<std::uint8_t> whole(skip);
    whole.insert(whole.end(), data.begin(), data.end());
    std::size_t at = 0;
    for (const auto& piece : pieces) {
        const auto part = std::min<std::size_t>(piece.length, whole.size() - at);
        if (part == 0) continue;
        const auto length = static_cast<std::uint32_t>(part);
        if (!key_covers(piece.key, piece.offset, length, IBV_ACCESS_LOCAL_WRITE)) {
            if (at < skip) say_undefined("a key for a header that may not be there");
            for (const auto& other : pieces)
                if (key_covers(other.key, other.offset, other.length, IBV_ACCESS_LOCAL_WRITE))
                    leave_open(side, other.offset, other.length);
            return false;
        }
        const auto from = whole.begin() + static_cast<std::ptrdiff_t>(at);
        store(side, piece.offset, {from, from + static_cast<std::ptrdiff_t>(part)});
        // The place of a header that the packet may not have.
        if (at < skip)
            leave_open(side, piece.offset,
                       static_cast<std::uint32_t>(std::min<std::size_t>(part, skip - at)));
        at += part;
    }
    return true;
}

void Model::store(int side, std::uint32_t offset, const std::vector<std::uint8_t>& data) {
    auto& view = views_[side];
    for (std::size_t i = 0; i < data.size(); ++i) {
        view.memory[offset + i] = data[i];
        view.open[offset + i] = 0;
    }
}

void Model::leave_open(int side, std::uint32_t offset, std::uint32_t length) {
    for (std::uint32_t i = 0; i < length; ++i)
        views_[side].open[offset + i] = 1;
}

/// Bytes at the peer change: a read before may still be under way and see either.
void Model::note_change(int pair, int side, std::uint32_t offset, std::uint32_t length) {
    for (const auto& read : reads_) {
        if (read.pair != pair || read.side != side) continue;
        if (offset >= read.offset + read.length || read.offset >= offset + length) continue;
        for (const auto& piece : read.results)
            leave_open(side, piece.offset, piece.length);
    }
}

}  // namespace weir::model

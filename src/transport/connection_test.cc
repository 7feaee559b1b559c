// SPDX-License-Identifier: Apache-2.0
// A requester and a responder over a channel that loses, doubles, delays and reorders packets, in
// virtual time and by seed. Whatever the channel does: every request ends well and in order, every
// byte arrives once and right, every atomic is executed exactly once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <vector>

#include "base/rng.h"
#include "transport/requester.h"
#include "transport/responder.h"

namespace weir::transport {
namespace {

using wire::PacketHeader;

struct Flight {
    PacketHeader header;
    std::vector<std::uint8_t> payload;
};

struct Faults {
    std::uint64_t lose_one_in = 0;
    std::uint64_t double_one_in = 0;
    std::uint64_t jitter_ns = 0;
};

/// One direction of a bad network.
class Channel {
  public:
    Channel(std::uint64_t seed, Faults faults) : rng_(seed), faults_(faults) {}
    void send(std::uint64_t now, Flight flight) {
        if (faults_.lose_one_in != 0 && rng_.one_in(faults_.lose_one_in)) return;
        const bool twice = faults_.double_one_in != 0 && rng_.one_in(faults_.double_one_in);
        if (twice) put(now, flight);
        put(now, std::move(flight));
    }
    bool receive(std::uint64_t now, Flight& flight) {
        if (queue_.empty() || queue_.begin()->first.first > now) return false;
        flight = std::move(queue_.begin()->second);
        queue_.erase(queue_.begin());
        return true;
    }
    [[nodiscard]] std::uint64_t next_ns() const {
        return queue_.empty() ? ~0ULL : queue_.begin()->first.first;
    }

  private:
    void put(std::uint64_t now, Flight flight) {
        const auto jitter = faults_.jitter_ns == 0 ? 0 : rng_.below(faults_.jitter_ns);
        queue_.emplace(std::pair{now + 500 + jitter, sequence_++}, std::move(flight));
    }
    Rng rng_;
    Faults faults_;
    std::uint64_t sequence_ = 0;
    std::map<std::pair<std::uint64_t, std::uint64_t>, Flight> queue_;
};

constexpr std::uint32_t kMemory = 1U << 20U;
constexpr std::uint32_t kKey = 0x1234;

/// The responder's side: memory, receives, and the channel back.
struct Target {
    Target(std::uint64_t seed, Faults faults, ResponderRules r)
        : rules(r),
          back(seed, faults),
          memory(kMemory) {
        state.expected_psn = 100;
    }
    ResponderState state{};
    ResponderRules rules;
    Channel back;
    std::vector<std::uint8_t> memory;
    std::deque<std::uint32_t> receives;  // sizes posted
    std::vector<std::vector<std::uint8_t>> messages;
    std::vector<std::uint8_t> open;
    std::vector<std::uint32_t> immediates;
    std::uint32_t aborted = 0;
    std::uint64_t atomics_done = 0;
    std::uint64_t atomic_writes_done = 0;
    std::vector<PacketHeader> flushes;
    std::uint64_t now = 0;
    const Flight* packet = nullptr;

    Access check_write(std::uint32_t rkey, std::uint64_t address, std::uint32_t length) {
        return rkey == kKey && address <= kMemory && length <= kMemory - address ? Access::kOk
                                                                                 : Access::kDenied;
    }
    Access write(std::uint32_t, std::uint64_t address, std::uint32_t length) {
        std::memcpy(memory.data() + address, packet->payload.data(), length);
        return Access::kOk;
    }
    Access read(const PacketHeader& header) {
        const auto rights = check_write(header.rkey, header.virtual_address, header.dma_length);
        if (rights != Access::kOk) return rights;
        Flight flight;
        flight.header.opcode = wire::Opcode::kRcReadResponseOnly;
        flight.header.psn = header.psn;
        flight.header.payload_length = header.dma_length;
        const auto from = memory.begin() + static_cast<std::ptrdiff_t>(header.virtual_address);
        flight.payload.assign(from, from + header.dma_length);
        back.send(now, std::move(flight));
        return Access::kOk;
    }
    Access atomic(const PacketHeader& header, std::uint64_t& original) {
        const auto rights = check_write(header.rkey, header.virtual_address, 8);
        if (rights != Access::kOk) return rights;
        std::memcpy(&original, memory.data() + header.virtual_address, 8);
        std::uint64_t value = original + header.swap_or_add;
        if (header.opcode == wire::Opcode::kRcCompareSwap) {
            value = original == header.compare ? header.swap_or_add : original;
        }
        std::memcpy(memory.data() + header.virtual_address, &value, 8);
        ++atomics_done;
        return Access::kOk;
    }
    Access atomic_write(const PacketHeader& header) {
        const auto rights = check_write(header.rkey, header.virtual_address, 8);
        if (rights != Access::kOk) return rights;
        std::memcpy(memory.data() + header.virtual_address, packet->payload.data(), 8);
        ++atomic_writes_done;
        return Access::kOk;
    }
    Access flush(const PacketHeader& header) {
        flushes.push_back(header);
        return check_write(header.rkey, header.virtual_address, header.dma_length);
    }
    void reply_done(std::uint32_t psn, std::uint32_t msn) {
        Flight flight;
        flight.header.opcode = wire::Opcode::kRcReadResponseOnly;
        flight.header.psn = psn;
        flight.header.msn = msn;
        back.send(now, std::move(flight));
    }
    Receipt receive(const PacketHeader& header) {
        if (wire::starts_message(header.opcode)) {
            if (receives.empty()) return Receipt::kNoReceive;
            open.clear();
        }
        if (open.size() + header.payload_length > receives.front()) return Receipt::kTooLong;
        open.insert(open.end(), packet->payload.begin(), packet->payload.end());
        if (wire::ends_message(header.opcode)) {
            receives.pop_front();
            messages.push_back(open);
            if (wire::has_immediate(header.opcode)) immediates.push_back(header.immediate);
        }
        return Receipt::kOk;
    }
    Receipt notify(const PacketHeader& header) {
        if (receives.empty()) return Receipt::kNoReceive;
        receives.pop_front();
        immediates.push_back(header.immediate);
        return Receipt::kOk;
    }
    void abort_receive() { ++aborted; }
    void reply(std::uint8_t syndrome, std::uint32_t psn, std::uint32_t msn) {
        Flight flight;
        flight.header.opcode = wire::Opcode::kRcAcknowledge;
        flight.header.syndrome = syndrome;
        flight.header.psn = psn;
        flight.header.msn = msn;
        back.send(now, std::move(flight));
    }
    void reply_atomic(std::uint32_t psn, std::uint32_t msn, std::uint64_t original) {
        Flight flight;
        flight.header.opcode = wire::Opcode::kRcAtomicAcknowledge;
        flight.header.psn = psn;
        flight.header.msn = msn;
        flight.header.original_data = original;
        back.send(now, std::move(flight));
    }
    Verdict take(const Flight& flight) {
        packet = &flight;
        Responder<Target> responder(state, rules, *this);
        const auto verdict = responder.on_request(flight.header);
        responder.flush_ack();
        return verdict;
    }
};

/// Both ends, and the clock.
class Pair {
  public:
    Pair(std::uint64_t seed, Faults faults, RequesterRules rules = {},
         ResponderRules target_rules = {true, true, true, true, 1024, 1, true})
        : requester(64),
          forth(seed * 2 + 1, faults),
          target(seed * 2, faults, target_rules),
          reliable(rules.reliable) {
        rules.mtu = target_rules.mtu;
        rules.segment = 4 * rules.mtu;
        requester.reset(rules, 100);
    }

    void post(Request request, std::vector<std::uint8_t> data = {}) {
        request.length = data.empty() ? request.length : static_cast<std::uint32_t>(data.size());
        const auto slot = requester.post(request);
        buffers[slot] = std::move(data);
        if (buffers[slot].empty()) buffers[slot].resize(request.length);
    }

    /// Runs until everything posted has ended, or until virtual second `limit`.
    void run(std::uint64_t limit_ns = 20'000'000'000ULL) {
        while (now < limit_ns && !requester.idle()) {
            Emission out;
            while (requester.next(now, out)) {
                Flight flight{out.header, {}};
                const auto from = buffers[out.slot].begin() + out.offset;
                flight.payload.assign(from, from + out.header.payload_length);
                forth.send(now, std::move(flight));
            }
            step();
            collect();
        }
    }

    Requester requester;
    Channel forth;
    Target target;
    std::map<std::uint32_t, std::vector<std::uint8_t>> buffers;
    std::vector<RequestStatus> ended;
    std::vector<std::uint64_t> originals;
    std::vector<std::vector<std::uint8_t>> results;
    std::uint64_t now = 1;
    bool reliable;

  private:
    void step() {
        std::uint64_t next = std::min(forth.next_ns(), target.back.next_ns());
        const auto deadline = requester.deadline();
        if (deadline != 0) next = std::min(next, deadline);
        if (next == ~0ULL && !reliable) return;  // the last packet was lost, and nobody asks
        ASSERT_NE(next, ~0ULL) << "nothing will ever happen";
        now = target.now = std::max(now, next);
        Flight flight;
        while (forth.receive(now, flight))
            target.take(flight);
        while (target.back.receive(now, flight))
            answer(flight);
        requester.on_time(now);
    }
    void answer(const Flight& flight) {
        if (!wire::is_read_response(flight.header.opcode)) {
            requester.on_acknowledge(flight.header, now);
            return;
        }
        std::uint32_t slot = 0;
        std::uint32_t offset = 0;
        if (!requester.on_read_response(flight.header, slot, offset, now)) return;
        std::copy(flight.payload.begin(), flight.payload.end(), buffers[slot].begin() + offset);
        requester.read_placed(flight.header, now);
    }
    void collect() {
        std::uint32_t slot = 0;
        RequestStatus status{};
        while (requester.ended(slot, status)) {
            ended.push_back(status);
            originals.push_back(requester.original(slot));
            results.push_back(buffers[slot]);
            requester.pop();
            if (status != RequestStatus::kOk) requester.flush();
        }
    }
};

std::vector<std::uint8_t> random_bytes(Rng& rng, std::size_t size) {
    std::vector<std::uint8_t> bytes(size);
    for (auto& byte : bytes)
        byte = static_cast<std::uint8_t>(rng.next());
    return bytes;
}

Request make(RequestKind kind, std::uint64_t address = 0) {
    Request request;
    request.kind = kind;
    request.remote_address = address;
    request.rkey = kKey;
    return request;
}

/// A random mix of every operation, checked against a model that executes them in order.
void run_mix(std::uint64_t seed, Faults faults) {
    RequesterRules rules;
    rules.timeout_ns = 50'000;
    rules.retries = 7;
    rules.reads_max = 1 + static_cast<std::uint32_t>(seed % 4);
    Pair pair(seed, faults, rules);
    Rng rng(seed);
    std::vector<std::uint8_t> model(kMemory);
    std::vector<std::vector<std::uint8_t>> messages;
    std::vector<std::vector<std::uint8_t>> reads(48);
    std::vector<std::uint64_t> originals(48);
    std::uint64_t atomic_writes = 0;
    for (std::size_t i = 0; i < 48; ++i) {
        const auto address = rng.below(kMemory / 2) / 8 * 8;
        const auto size = rng.below(rng.one_in(3) ? 20000 : 600);
        switch (rng.below(6)) {
            case 0: {
                const auto data = random_bytes(rng, size);
                std::copy(data.begin(), data.end(),
                          model.begin() + static_cast<std::ptrdiff_t>(address));
                // Fenced, since a read whose answer was lost is executed again, and unfenced ones
                // behind it may then have been executed already (IBTA 10.8.3.3).
                auto request = make(RequestKind::kWrite, address);
                request.fence = true;
                pair.post(request, data);
                break;
            }
            case 1: {
                messages.push_back(random_bytes(rng, size));
                pair.target.receives.push_back(20000);
                pair.post(make(RequestKind::kSend), messages.back());
                break;
            }
            case 2: {
                auto request = make(RequestKind::kRead, address);
                request.length = static_cast<std::uint32_t>(size);
                const auto from = model.begin() + static_cast<std::ptrdiff_t>(address);
                reads[i].assign(from, from + static_cast<std::ptrdiff_t>(size));
                pair.post(request);
                break;
            }
            case 3: {
                const auto data = random_bytes(rng, 8);
                std::copy(data.begin(), data.end(),
                          model.begin() + static_cast<std::ptrdiff_t>(address));
                auto request = make(RequestKind::kAtomicWrite, address);
                request.fence = true;
                pair.post(request, data);
                ++atomic_writes;
                break;
            }
            case 4: {
                auto request = make(RequestKind::kFlush, address);
                request.flush_length = static_cast<std::uint32_t>(size);
                request.flush = wire::kFlushGlobal;
                pair.post(request);
                break;
            }
            default: {
                auto request = make(RequestKind::kFetchAdd, address);
                request.swap_or_add = rng.next();
                request.fence = true;
                std::memcpy(&originals[i], model.data() + address, 8);
                const std::uint64_t sum = originals[i] + request.swap_or_add;
                std::memcpy(model.data() + address, &sum, 8);
                pair.post(request);
            }
        }
    }
    pair.run();
    ASSERT_EQ(pair.ended.size(), 48U) << "seed " << seed;
    for (std::size_t i = 0; i < 48; ++i) {
        ASSERT_EQ(pair.ended[i], RequestStatus::kOk) << "seed " << seed << " request " << i;
        if (!reads[i].empty()) {
            ASSERT_EQ(pair.results[i], reads[i]) << "seed " << seed << " read " << i;
        }
        if (originals[i] != 0) {
            ASSERT_EQ(pair.originals[i], originals[i]) << seed;
        }
    }
    ASSERT_EQ(pair.target.messages, messages) << "seed " << seed;
    ASSERT_EQ(pair.target.memory, model) << "seed " << seed;
    ASSERT_EQ(pair.target.atomic_writes_done, atomic_writes) << "seed " << seed;
}

TEST(Connection, PerfectChannelCarriesEverything) {
    for (std::uint64_t seed = 1; seed <= 100; ++seed) {
        run_mix(seed, {});
        if (HasFatalFailure()) return;
    }
}

TEST(Connection, DuplicatesChangeNothing) {
    for (std::uint64_t seed = 1; seed <= 100; ++seed) {
        run_mix(seed, {0, 3, 0});
        if (HasFatalFailure()) return;
    }
}

TEST(Connection, LossIsRepaired) {
    for (std::uint64_t seed = 1; seed <= 200; ++seed) {
        run_mix(seed, {10, 0, 0});
        if (HasFatalFailure()) return;
    }
}

TEST(Connection, LossDuplicationAndReorderingTogetherAreRepaired) {
    for (std::uint64_t seed = 1; seed <= 200; ++seed) {
        run_mix(seed, {20, 10, 1500});
        if (HasFatalFailure()) return;
    }
}

TEST(Connection, FlushesSayWhatTheyMeanAndAreRefusedWithoutTheRight) {
    auto request = make(RequestKind::kFlush, 64);
    request.flush_length = 100;
    request.flush = wire::kFlushGlobal | wire::kFlushRegion;
    Pair pair(1, {});
    pair.post(request);
    pair.run();
    EXPECT_EQ(pair.ended, std::vector{RequestStatus::kOk});
    ASSERT_EQ(pair.target.flushes.size(), 1U);
    const auto& seen = pair.target.flushes[0];
    EXPECT_EQ(seen.opcode, wire::Opcode::kRcFlush);
    EXPECT_EQ(seen.flush, wire::kFlushGlobal | wire::kFlushRegion);
    EXPECT_EQ(seen.dma_length, 100U);
    EXPECT_EQ(seen.virtual_address, 64U);
    Pair refusing(1, {}, {}, {true, true, true, true, 1024, 1, false});
    refusing.post(request);
    refusing.run();
    EXPECT_EQ(refusing.ended, std::vector{RequestStatus::kRemoteAccess});
}

TEST(Connection, AnAtomicWriteIsOfEightAlignedBytes) {
    const auto ends = [](std::uint64_t address, std::size_t size, bool allowed) {
        Pair pair(1, {}, {}, {true, allowed, true, true, 1024, 1, false});
        pair.post(make(RequestKind::kAtomicWrite, address), std::vector<std::uint8_t>(size, 1));
        pair.run();
        return pair.ended;
    };
    EXPECT_EQ(ends(8, 8, true), std::vector{RequestStatus::kOk});
    EXPECT_EQ(ends(4, 8, true), std::vector{RequestStatus::kRemoteInvalidRequest});
    EXPECT_EQ(ends(8, 4, true), std::vector{RequestStatus::kRemoteInvalidRequest});
    EXPECT_EQ(ends(8, 8, false), std::vector{RequestStatus::kRemoteAccess});
}

TEST(Connection, ReceiverNotReadyIsAskedAgainUntilItIs) {
    RequesterRules rules;
    rules.timeout_ns = 1'000'000;
    Pair pair(1, {}, rules);
    pair.post(make(RequestKind::kSend), {1, 2, 3});
    pair.run(200'000);
    EXPECT_TRUE(pair.ended.empty());
    pair.target.receives.push_back(10);
    pair.run();
    ASSERT_EQ(pair.ended.size(), 1U);
    EXPECT_EQ(pair.ended[0], RequestStatus::kOk);
    EXPECT_EQ(pair.target.messages[0], (std::vector<std::uint8_t>{1, 2, 3}));
}

TEST(Connection, RnrRetriesAreCountedAndThenFail) {
    RequesterRules rules;
    rules.rnr_retries = 3;
    Pair pair(1, {}, rules);
    pair.post(make(RequestKind::kSend), {1});
    pair.post(make(RequestKind::kSend), {2});
    pair.run();
    EXPECT_EQ(pair.ended,
              (std::vector{RequestStatus::kRnrRetriesExceeded, RequestStatus::kFlushed}));
    // First try and three more, ten microseconds apart (timer code 1 is 0.01 ms).
    EXPECT_GE(pair.now, 30'000U);
    EXPECT_LT(pair.now, 50'000U);
}

TEST(Connection, SilenceEndsInRetriesExceededAfterTheConfiguredTime) {
    RequesterRules rules;
    rules.timeout_ns = 10'000;
    rules.retries = 2;
    Pair pair(1, {1, 0, 0}, rules);  // every packet is lost
    pair.post(make(RequestKind::kWrite), {1});
    pair.run();
    EXPECT_EQ(pair.ended, (std::vector{RequestStatus::kRetriesExceeded}));
    EXPECT_GE(pair.now, 30'000U);
    EXPECT_LT(pair.now, 31'000U);
}

TEST(Connection, RefusalsNameTheirCauseAndFlushTheRest) {
    const auto outcome = [](Request request, std::size_t size, ResponderRules rules) {
        Pair pair(1, {}, {}, rules);
        pair.post(make(RequestKind::kWrite), {9});
        pair.post(request, std::vector<std::uint8_t>(size, 1));
        pair.post(make(RequestKind::kWrite), {9});
        pair.run();
        return pair.ended;
    };
    const auto want = [](RequestStatus cause) {
        return std::vector{RequestStatus::kOk, cause, RequestStatus::kFlushed};
    };
    const ResponderRules all{true, true, true, true, 1024, 1};
    auto bad_key = make(RequestKind::kWrite);
    bad_key.rkey = 1;
    EXPECT_EQ(outcome(bad_key, 5000, all), want(RequestStatus::kRemoteAccess));
    EXPECT_EQ(outcome(make(RequestKind::kWrite, kMemory - 3), 4, all),
              want(RequestStatus::kRemoteAccess));
    EXPECT_EQ(outcome(make(RequestKind::kFetchAdd, 4), 8, all),
              want(RequestStatus::kRemoteInvalidRequest));
    EXPECT_EQ(outcome(make(RequestKind::kFetchAdd, 8), 8, {true, true, true, false, 1024, 1}),
              want(RequestStatus::kRemoteAccess));
    EXPECT_EQ(outcome(make(RequestKind::kRead, 8), 8, {true, true, false, true, 1024, 1}),
              want(RequestStatus::kRemoteAccess));
}

TEST(Connection, SendLongerThanTheReceiveIsRefused) {
    Pair pair(1, {});
    pair.target.receives.push_back(1500);
    pair.post(make(RequestKind::kSend), std::vector<std::uint8_t>(5000, 1));
    pair.run();
    EXPECT_EQ(pair.ended, (std::vector{RequestStatus::kRemoteInvalidRequest}));
}

TEST(Connection, FenceWaitsForReads) {
    RequesterRules rules;
    rules.reads_max = 4;
    Pair pair(1, {}, rules);
    auto read = make(RequestKind::kRead);
    read.length = 100;
    pair.post(read);
    auto fenced = make(RequestKind::kWrite, 0);
    fenced.fence = true;
    pair.post(fenced, {1});
    Emission out;
    EXPECT_TRUE(pair.requester.next(1, out));
    EXPECT_FALSE(pair.requester.next(1, out));
    pair.requester.unsend();
    pair.run();
    EXPECT_EQ(pair.ended, (std::vector{RequestStatus::kOk, RequestStatus::kOk}));
    EXPECT_EQ(pair.results[0][0], 0);
}

TEST(Connection, UnreliableLosesWholeMessagesAndNothingElse) {
    RequesterRules rules;
    rules.reliable = false;
    for (std::uint64_t seed = 1; seed <= 50; ++seed) {
        Pair pair(seed, {5, 0, 0}, rules, {false, true, false, false, 1024, 0});
        std::vector<std::vector<std::uint8_t>> sent;
        for (std::uint8_t i = 0; i < 40; ++i) {
            sent.emplace_back(1000U * (i % 12U) + 1, i);
            pair.target.receives.push_back(20000);
            pair.post(make(RequestKind::kSend), sent.back());
            pair.run();
        }
        pair.post(make(RequestKind::kWrite), {1});
        EXPECT_EQ(pair.ended, std::vector(40, RequestStatus::kOk));
        ASSERT_LT(pair.target.messages.size(), sent.size());
        for (const auto& message : pair.target.messages) {
            ASSERT_NE(std::find(sent.begin(), sent.end(), message), sent.end()) << "seed " << seed;
        }
    }
}

TEST(Responder, RandomHeadersNeverBreakTheState) {
    // Any packet in any state: an answer or silence, never a crash or a write outside.
    for (std::uint64_t seed = 1; seed <= 200; ++seed) {
        Rng rng(seed);
        Target target(seed, {}, {!rng.one_in(4), true, true, true, 1024, 1});
        target.receives.assign(100, 5000);
        for (int i = 0; i < 200; ++i) {
            Flight flight;
            flight.header.opcode = static_cast<wire::Opcode>(rng.below(256));
            const auto psn = rng.below(4);
            flight.header.psn =
                wire::psn_add(target.state.expected_psn, static_cast<std::uint32_t>(psn) - 1);
            flight.header.payload_length = static_cast<std::uint32_t>(rng.below(3) * 1024);
            flight.payload.resize(flight.header.payload_length);
            flight.header.dma_length = static_cast<std::uint32_t>(rng.below(4) * 1024);
            flight.header.virtual_address = rng.one_in(8) ? rng.next() : rng.below(kMemory);
            flight.header.rkey = rng.one_in(8) ? 1 : kKey;
            target.take(flight);
            ASSERT_LE(target.state.expected_psn, wire::kMask24);
            ASSERT_LE(target.state.message_count, wire::kMask24);
        }
    }
}

}  // namespace
}  // namespace weir::transport

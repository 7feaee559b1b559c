// SPDX-License-Identifier: Apache-2.0
// Links with rates under a simulated clock: what lanes get, how long a packet waits, and that
// movers which die while they hold a turn wedge nothing.
#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"
#include "switching/fibers.h"
#include "switching/forwarding.h"
#include "switching/test_fabric.h"
#include "switching/test_packets.h"

namespace weir::switching {
namespace {

using arena::ArbitrationTables;

constexpr std::uint32_t kWords = 1024;             // of a large packet: 4096 bytes, 64 blocks
constexpr std::uint64_t kByteANs = 8'000'000'000;  // bits per second
constexpr std::uint32_t kCapacity = 1024;

/// Hosts at one switch, whose links take a nanosecond for each byte. Lane v of a flow has QP
/// 8 * host + v at its target.
class Sim {
  public:
    Sim(std::uint32_t hosts, std::uint32_t lanes, const ArbitrationTables& tables)
        : fabric(1, hosts, lanes, kCapacity),
          packets(fabric),
          mover(fabric.arena()) {
        fabric.enforce(kByteANs, tables);
        for (std::uint32_t h = 0; h < hosts; ++h) {
            for (std::uint32_t v = 0; v < lanes; ++v)
                fabric.open_qp(h * 8 + v, h);
        }
        mover.set_now(now);
    }

    bool send(std::uint32_t from, std::uint32_t to, std::uint32_t vl,
              std::uint32_t words = kWords) {
        const auto packet = packets.make(to, to * 8 + vl, 0, from, words, vl);
        const auto lane = mover.egress_lane(fabric.host_port(from), vl);
        const bool sent = mover.inject(lane, packet, packets.generation(packet));
        if (!sent) mover.release({0, packets.generation(packet), packet, 0});
        mover.drive(lane);
        return sent;
    }
    /// Takes what has arrived; how many packets.
    std::uint32_t take(std::uint32_t host, std::uint32_t vl) {
        const auto ring = mover.request_ring(host * 8 + vl);
        std::uint32_t count = 0;
        for (credit::Slot slot{}; mover.peek(ring, slot); ++count) {
            sources[fabric.arena().packet(slot.packet).header.src_qp] += 1;
            mover.pop(ring);
            mover.release(slot);
        }
        return count;
    }
    void wait_until(std::uint64_t when) {
        now = when;
        mover.set_now(now);
        if (mover.next_time() != 0 && now >= mover.next_time()) mover.retry_waiting();
    }
    void wait() { wait_until(mover.next_time()); }
    [[nodiscard]] std::uint64_t bytes(std::uint32_t host, std::uint32_t vl) const {
        return fabric.arena().lane(fabric.host_port(host), vl).received_bytes.load();
    }

    TestFabric fabric;
    Packets packets;
    Mover<> mover;
    std::uint64_t now = 5'000'000'000;
    std::map<std::uint32_t, std::uint64_t> sources;
};

ArbitrationTables two_low(std::uint8_t first, std::uint8_t second) {
    return {16, 0, 2, 0, {}, {{0, first}, {1, second}}};
}
/// Lane 1 goes before lane 0.
ArbitrationTables one_high(std::uint8_t limit) {
    return {limit, 1, 1, 0, {{1, 64}}, {{0, 64}}};
}

/// Lanes 0 and 1 of h0 keep the way to h1 busy until so many bytes have arrived.
void saturate(Sim& sim, std::uint64_t until) {
    while (sim.bytes(1, 0) + sim.bytes(1, 1) < until) {
        for (const std::uint32_t vl : {0U, 1U}) {
            while (sim.send(0, 1, vl)) {
            }
            sim.take(1, vl);
        }
        ASSERT_NE(sim.mover.next_time(), 0U);
        ASSERT_GT(sim.mover.next_time(), sim.now);
        sim.wait();
    }
}

/// The turn's clock has 32 bits: a link that has long been idle, or was never used, looks like one
/// that is busy for a little, once in 4.3 seconds.
TEST(RatedLink, AnIdleLinkIsNeverBusy) {
    for (const std::uint64_t idle :
         {std::uint64_t{0}, std::uint64_t{1} << 32U, std::uint64_t{3} << 32U}) {
        Sim sim(2, 1, {});
        if (idle != 0) {
            ASSERT_TRUE(sim.send(0, 1, 0));
        }
        const auto from = idle == 0 ? std::uint64_t{1} << 40U : sim.now + kWords * 4;
        sim.wait_until(from + idle - 1000);
        sim.take(1, 0);
        ASSERT_TRUE(sim.send(0, 1, 0));
        EXPECT_EQ(sim.take(1, 0), 1U) << idle;
        // And the next one does wait, for the whole of the first.
        ASSERT_TRUE(sim.send(0, 1, 0));
        EXPECT_EQ(sim.mover.next_time(), sim.now + kWords * 4);
    }
}

TEST(RatedLink, LanesShareItByTheirWeightsAndFillIt) {
    for (const auto& [first, second, ratio] :
         {std::tuple{64, 64, 1.0}, {64, 192, 3.0}, {192, 64, 1.0 / 3}, {64, 255, 4.0}}) {
        Sim sim(2, 2, two_low(static_cast<std::uint8_t>(first), static_cast<std::uint8_t>(second)));
        const auto start = sim.now;
        saturate(sim, 8'000'000);
        const auto a = static_cast<double>(sim.bytes(1, 0));
        const auto b = static_cast<double>(sim.bytes(1, 1));
        EXPECT_NEAR(b / a / ratio, 1.0, 0.02) << first << ":" << second;
        // A byte a nanosecond, to within the packets on the way.
        const auto elapsed = static_cast<double>(sim.now - start);
        EXPECT_NEAR(elapsed, a + b, 3 * 4096.0);
    }
}

TEST(RatedLink, InputsOfOneLaneTakeTurns) {
    Sim sim(4, 1, {16, 0, 1, 0, {}, {{0, 64}}});
    const auto start = sim.now;
    while (sim.bytes(3, 0) < 6'000'000) {
        for (const std::uint32_t from : {0U, 1U, 2U}) {
            while (sim.send(from, 3, 0)) {
            }
        }
        sim.take(3, 0);
        sim.wait();
    }
    for (const std::uint32_t from : {0U, 1U, 2U})
        EXPECT_NEAR(static_cast<double>(sim.sources[from]), 6'000'000.0 / 4096 / 3, 3.0);
    EXPECT_NEAR(static_cast<double>(sim.now - start), static_cast<double>(sim.bytes(3, 0)),
                3 * 4096.0);
}

TEST(RatedLink, APacketAloneGoesAtOnceAndKeepsTheLinkForItsLength) {
    Sim sim(2, 1, {16, 0, 1, 0, {}, {{0, 64}}});
    EXPECT_TRUE(sim.send(0, 1, 0));
    EXPECT_EQ(sim.take(1, 0), 1U);
    EXPECT_EQ(sim.mover.next_time(), 0U);
    EXPECT_TRUE(sim.send(0, 1, 0));
    EXPECT_EQ(sim.take(1, 0), 0U);
    EXPECT_EQ(sim.mover.next_time(), sim.now + 4096);
    sim.wait_until(sim.now + 4095);
    EXPECT_EQ(sim.take(1, 0), 0U);
    sim.wait();
    EXPECT_EQ(sim.take(1, 0), 1U);
    // An idle link saves nothing up, for whatever time.
    for (const std::uint64_t idle : {1'000'000ULL, 500'000ULL, 4'294'967'296ULL + 5000}) {
        sim.wait_until(sim.now + idle);
        EXPECT_TRUE(sim.send(0, 1, 0));
        EXPECT_TRUE(sim.send(0, 1, 0));
        EXPECT_EQ(sim.take(1, 0), 1U);
        EXPECT_EQ(sim.mover.next_time(), sim.now + 4096);
        sim.wait();
        EXPECT_EQ(sim.take(1, 0), 1U);
    }
}

TEST(RatedLink, AMoverThatComesLateMakesUpForIt) {
    Sim sim(2, 1, {16, 0, 1, 0, {}, {{0, 64}}});
    const auto start = sim.now;
    // Looks only every 10 us, which is two packets and a half.
    while (sim.bytes(1, 0) < 4'000'000) {
        while (sim.send(0, 1, 0)) {
        }
        sim.take(1, 0);
        sim.wait_until(sim.now + 10'000);
    }
    const auto elapsed = static_cast<double>(sim.now - start);
    EXPECT_NEAR(static_cast<double>(sim.bytes(1, 0)) / elapsed, 1.0, 0.01);
}

TEST(RatedLink, HighPriorityGoesFirstWithinItsLimit) {
    Sim strict(2, 2, one_high(255));
    saturate(strict, 2'000'000);
    EXPECT_LE(strict.bytes(1, 0), 3U * 4096);
    // 16 KiB are four packets; after them one of low priority.
    Sim limited(2, 2, one_high(4));
    saturate(limited, 4'000'000);
    EXPECT_NEAR(static_cast<double>(limited.bytes(1, 1)) / static_cast<double>(limited.bytes(1, 0)),
                4.0, 0.1);
    Sim single(2, 2, one_high(0));
    saturate(single, 2'000'000);
    EXPECT_NEAR(static_cast<double>(single.bytes(1, 1)) / static_cast<double>(single.bytes(1, 0)),
                1.0, 0.02);
}

TEST(RatedLink, AFullLowLaneDelaysAHighPacketByOnePacketAHop) {
    Sim sim(2, 2, one_high(16));
    constexpr std::uint64_t kOwn = 64;
    for (std::uint64_t offset = 1; offset < 20'000; offset += 331) {
        // Lane 0 is full at every hop, and stays so.
        for (int i = 0; i < 20; ++i) {
            while (sim.send(0, 1, 0)) {
            }
            sim.take(1, 0);
            sim.wait();
        }
        sim.wait_until(sim.now + offset % 4096);
        while (sim.send(0, 1, 0)) {
        }
        const auto before = sim.now;
        ASSERT_TRUE(sim.send(0, 1, 1, kOwn / 4));
        while (sim.take(1, 1) == 0) {
            sim.take(1, 0);
            ASSERT_LE(sim.now - before, 2 * (4096 + kOwn));
            sim.wait();
        }
        EXPECT_LE(sim.now - before, 2 * (4096 + kOwn));
    }
}

TEST(RatedLink, ALaneWithoutCreditLeavesTheLinkToTheOthers) {
    Sim sim(2, 2, two_low(255, 64));
    // Datagrams that nobody reads fill lane 0 all the way.
    sim.fabric.arena().qp(8).reliable = 0;
    for (int i = 0; i < 400; ++i) {
        while (sim.send(0, 1, 0)) {
        }
        if (sim.mover.next_time() == 0) break;
        sim.wait();
    }
    ASSERT_EQ(sim.mover.next_time(), 0U);
    const auto stuck = sim.bytes(1, 0);
    const auto start = sim.now;
    while (sim.bytes(1, 1) < 2'000'000) {
        sim.send(0, 1, 0);
        while (sim.send(0, 1, 1)) {
        }
        sim.take(1, 1);
        ASSERT_NE(sim.mover.next_time(), 0U);
        sim.wait();
    }
    EXPECT_EQ(sim.bytes(1, 0), stuck);
    EXPECT_NEAR(static_cast<double>(sim.now - start), 2'000'000.0, 3 * 4096.0);
    EXPECT_FALSE(sim.mover.retry_stuck());
    // Only now is the reader given up, and nobody else's packet.
    sim.take(1, 1);
    sim.mover.choke_stuck();
    while (sim.mover.next_time() != 0) {
        sim.wait();
        sim.take(1, 0);
        sim.take(1, 1);
    }
    EXPECT_TRUE(sim.mover.retry_stuck());
}

TEST(RatedLink, WhoMovesNextMovesThePacketWhoseTurnItIs) {
    Sim sim(2, 2, one_high(255));
    Mover<> other(sim.fabric.arena());
    other.set_now(sim.now);
    // The link of h0 is busy; this mover leaves a packet of high priority waiting and is gone.
    ASSERT_TRUE(sim.send(0, 1, 0));
    const auto packet = sim.packets.make(1, 9, 0, 0, 16, 1);
    const auto lane = other.egress_lane(sim.fabric.host_port(0), 1);
    ASSERT_TRUE(other.inject(lane, packet, sim.packets.generation(packet)));
    other.drive(lane);
    EXPECT_EQ(other.next_time(), sim.now + 4096);
    // Another lane's mover finds the link free, and moves that one first.
    ASSERT_TRUE(sim.send(0, 1, 0));
    sim.wait();
    EXPECT_EQ(sim.take(1, 1), 1U);
    EXPECT_EQ(sim.take(1, 0), 1U);
    EXPECT_EQ(sim.mover.next_time(), sim.now + 64);
    sim.wait();
    EXPECT_EQ(sim.take(1, 0), 1U);
}

TEST(RatedLink, ItsRateChangesWhilePacketsWait) {
    Sim sim(2, 1, {16, 0, 1, 0, {}, {{0, 64}}});
    const auto set = [&](std::uint64_t rate) {
        for (std::uint32_t p = 0; p < sim.fabric.arena().header().port_count; ++p)
            sim.fabric.arena().arbiter(p).rate_bits_per_second.store(rate);
    };
    set(kSlowestRate);
    ASSERT_TRUE(sim.send(0, 1, 0));
    ASSERT_TRUE(sim.send(0, 1, 0));
    EXPECT_EQ(sim.take(1, 0), 1U);
    EXPECT_EQ(sim.mover.next_time(), sim.now + wire_ns(4096, kSlowestRate));
    // What was booked at the old rate is no longer than a segment at the new one, or void.
    set(kByteANs);
    ASSERT_TRUE(sim.send(0, 1, 0));
    EXPECT_EQ(sim.take(1, 0), 1U);
    set(0);
    sim.mover.retry_waiting();
    EXPECT_EQ(sim.take(1, 0), 1U);
    EXPECT_EQ(sim.mover.next_time(), 0U);
    EXPECT_EQ(sim.packets.in_flight(), 0U);
    expect_all_credits_back(sim.fabric);
}

TEST(RatedLink, PacketsOfAPulledCableAreDroppedFromTheEgress) {
    Sim sim(2, 1, {16, 0, 1, 0, {}, {{0, 64}}});
    ASSERT_TRUE(sim.send(0, 1, 0));
    ASSERT_TRUE(sim.send(0, 1, 0));
    auto& port = sim.fabric.arena().port(sim.fabric.host_port(0));
    port.up.store(0);
    sim.wait();
    EXPECT_EQ(sim.take(1, 0), 1U);
    EXPECT_EQ(sim.packets.in_flight(), 0U);
    EXPECT_EQ(port.transmit_discards.load(), 1U);
    expect_all_credits_back(sim.fabric);
}

// ---- Movers that interleave and die -------------------------------------------------------------

using TestMover = Mover<FiberProbe>;
using Flow = std::pair<std::uint32_t, std::uint32_t>;

struct Storm {
    Storm(std::uint64_t seed, const ArbitrationTables& tables)
        : fabric(2, 2, 2, 64),
          packets(fabric),
          seed_(seed) {
        fabric.enforce(1'000'000'000, tables);
        for (std::uint32_t i = 0; i < hosts() * hosts(); ++i)
            fabric.open_qp(i, i % hosts());
    }
    [[nodiscard]] std::uint32_t hosts() const { return fabric.hosts(); }

    void pass_time(TestMover& mover) {
        if (mover.next_time() == 0) return;
        clock = std::max(clock, mover.next_time());
        mover.set_now(clock);
        mover.retry_waiting();
    }
    /// What host `from` does: `count` packets, each flow in a lane of its own.
    void send(std::uint32_t from, std::uint32_t count) {
        TestMover mover(fabric.arena());
        Rng rng(seed_ + from);
        for (std::uint32_t i = 0; i < count; ++i) {
            const auto to = static_cast<std::uint32_t>(rng.below(hosts()));
            const auto vl = (from + to) % 2;
            const auto words = static_cast<std::uint32_t>(rng.below(64) + 1);
            const auto packet = packets.make(to, from * hosts() + to, i, from, words, vl);
            const bool own = from == to;
            const auto port = fabric.host_port(from);
            const auto lane = own ? mover.port_lane(port, vl) : mover.egress_lane(port, vl);
            injected[{from, to}].push_back(i);
            mover.set_now(clock);
            while (!mover.inject(lane, packet, packets.generation(packet))) {
                mover.drive(lane);
                pass_time(mover);
            }
            if (rng.one_in(3)) mover.drive(lane);
            if (rng.one_in(3)) pass_time(mover);
        }
    }
    /// Everything still on its way arrives, in bounded time.
    void finish() {
        TestMover last(fabric.arena());
        last.set_now(clock);
        EXPECT_TRUE(last.sweep());
        for (int i = 0; i < 2000 && last.next_time() != 0; ++i)
            pass_time(last);
        EXPECT_EQ(last.next_time(), 0U) << "a link is wedged";
        EXPECT_TRUE(last.sweep());
        for (std::uint32_t qp = 0; qp < hosts() * hosts(); ++qp) {
            const auto ring = last.request_ring(qp);
            for (credit::Slot slot{}; last.peek(ring, slot);) {
                arrived[{qp / hosts(), qp % hosts()}].push_back(
                    fabric.arena().packet(slot.packet).header.psn);
                last.pop(ring);
                last.release(slot);
            }
        }
    }
    /// Runs it all; how many movers died.
    std::size_t run(std::uint64_t kill_one_in) {
        Fibers fibers(seed_);
        for (std::uint32_t h = 0; h < hosts(); ++h)
            fibers.spawn([this, h] { send(h, 20); });
        fibers.run(3, kill_one_in);
        finish();
        return fibers.killed();
    }

    TestFabric fabric;
    Packets packets;
    std::uint64_t clock = 1;
    std::map<Flow, std::vector<std::uint32_t>> injected;
    std::map<Flow, std::vector<std::uint32_t>> arrived;

  private:
    std::uint64_t seed_;
};

ArbitrationTables tables_of(std::uint64_t seed) {
    return seed % 2 == 0 ? two_low(1, 20) : one_high(static_cast<std::uint8_t>(seed % 3));
}

TEST(RatedStorm, EveryInterleavingDeliversExactlyOnceInOrder) {
    for (std::uint64_t seed = 1; seed <= 150; ++seed) {
        Storm storm(seed, tables_of(seed));
        storm.run(0);
        ASSERT_EQ(storm.arrived, storm.injected) << "seed " << seed;
        ASSERT_EQ(storm.packets.in_flight(), 0U) << "seed " << seed;
        expect_all_credits_back(storm.fabric);
        if (HasFailure()) FAIL() << "seed " << seed;
    }
}

TEST(RatedStorm, MoversKilledAnywhereWedgeLoseAndDoubleNothing) {
    std::size_t killed = 0;
    for (std::uint64_t seed = 1; seed <= 400; ++seed) {
        Storm storm(seed, tables_of(seed));
        const auto dead = storm.run(200);
        killed += dead;
        std::size_t unsent = 0;
        for (const auto& [flow, sent] : storm.injected) {
            const auto& arrived = storm.arrived[flow];
            // A killed sender's last packet may not have entered the fabric; all before it have.
            ASSERT_LE(arrived.size(), sent.size()) << "seed " << seed;
            unsent += sent.size() - arrived.size();
            ASSERT_TRUE(std::equal(arrived.begin(), arrived.end(), sent.begin()))
                << "seed " << seed;
        }
        ASSERT_LE(unsent, dead) << "seed " << seed;
        ASSERT_EQ(storm.packets.in_flight(), unsent) << "seed " << seed;
        expect_all_credits_back(storm.fabric);
        if (HasFailure()) FAIL() << "seed " << seed;
    }
    EXPECT_GT(killed, 400U);
}

}  // namespace
}  // namespace weir::switching

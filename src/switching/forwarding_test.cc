// SPDX-License-Identifier: Apache-2.0
// Method: many movers as fibers over one fabric, interleaved before every compare-and-swap by a
// seed, some killed half-way for good. Afterwards a fresh mover sweeps, and then: every packet that
// was put in has arrived exactly once, in order per flow, and every buffer has all its credits
// back.
#include "switching/forwarding.h"

#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"
#include "switching/fibers.h"
#include "switching/test_fabric.h"
#include "switching/test_packets.h"

namespace weir::switching {
namespace {

using TestMover = Mover<FiberProbe>;
constexpr std::uint32_t kCapacity = 64;

struct Outcome {
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<std::uint32_t>> arrived;
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<std::uint32_t>> injected;
    std::size_t killed = 0;
};

/// One fiber per host sends `count` packets to hosts at random; then everything is taken.
Outcome storm(TestFabric& fabric, Packets& packets, std::uint64_t seed, std::uint64_t kill_one_in,
              std::uint32_t count) {
    Outcome outcome;
    Fibers fibers(seed);
    const auto hosts = fabric.hosts();
    // One QP per flow, as a reliable connection has, so that no ring ever refuses a packet.
    for (std::uint32_t i = 0; i < hosts * hosts; ++i) {
        fabric.open_qp(i, i % hosts);
        // Some go straight from the switch into their rings, others through the port's buffer.
        if (i % 3 != 0) fabric.arena().qp(i).peer_lid = TestFabric::lid(i / hosts);
    }
    const auto take = [&](TestMover& mover, std::uint32_t qp) {
        credit::Slot slot{};
        while (mover.peek(mover.request_ring(qp), slot)) {
            const auto& header = fabric.arena().packet(slot.packet).header;
            EXPECT_EQ(header.src_qp, qp / hosts);
            outcome.arrived[{qp / hosts, qp % hosts}].push_back(header.psn);
            mover.pop(mover.request_ring(qp));
            mover.release(slot);
        }
    };
    for (std::uint32_t h = 0; h < hosts; ++h) {
        fibers.spawn([&, h] {
            TestMover mover(fabric.arena());
            Rng rng(seed + h);
            for (std::uint32_t i = 0; i < count; ++i) {
                const auto to = static_cast<std::uint32_t>(rng.below(hosts));
                const auto words = static_cast<std::uint32_t>(rng.below(64) + 1);
                const auto packet = packets.make(to, h * hosts + to, i, h, words);
                const auto lane = mover.port_lane(fabric.arena().port(fabric.host_port(h)).peer, 0);
                // Noted before: a fiber killed inside inject may or may not have put it in.
                outcome.injected[{h, to}].push_back(i);
                while (!mover.inject(lane, packet, packets.generation(packet)))
                    mover.drive(lane);
                if (rng.one_in(3)) mover.drive(lane);
            }
        });
    }
    fibers.run(3, kill_one_in);
    outcome.killed = fibers.killed();
    TestMover last(fabric.arena());
    EXPECT_TRUE(last.sweep());
    for (std::uint32_t i = 0; i < hosts * hosts; ++i)
        take(last, i);
    return outcome;
}

TEST(Mover, CarriesAPacketAcrossThreeSwitchesAndCounts) {
    TestFabric fabric(3, 1, 1, kCapacity);
    Packets packets(fabric);
    fabric.open_qp(5, 2);
    Mover<> mover(fabric.arena());
    const auto packet = packets.make(2, 5, 77, 0, 16);
    const auto entry = mover.port_lane(fabric.arena().port(fabric.host_port(0)).peer, 0);
    ASSERT_TRUE(mover.inject(entry, packet, packets.generation(packet)));
    EXPECT_TRUE(mover.drive(entry));
    credit::Slot slot{};
    ASSERT_TRUE(mover.peek(mover.request_ring(5), slot));
    EXPECT_EQ(slot.packet, packet);
    EXPECT_EQ(fabric.arena().lane(fabric.host_port(2), 0).received_bytes.load(), 64U);
    // The owner of the QP, process slot 2, has been told.
    EXPECT_EQ(fabric.arena().process(2).summary.load(), 1U);
    mover.pop(mover.request_ring(5));
    mover.release(slot);
    EXPECT_EQ(packets.in_flight(), 0U);
    expect_all_credits_back(fabric);
}

TEST(Mover, GoesPastAnEmptyPortBufferAndIsCountedThere) {
    TestFabric fabric(1, 2, 1, kCapacity);
    Packets packets(fabric);
    fabric.open_qp(1, 1);
    fabric.arena().qp(1).peer_lid = TestFabric::lid(0);
    fabric.open_qp(2, 1);
    fabric.arena().qp(2).reliable = 0;
    Mover<> mover(fabric.arena());
    const auto entry = mover.port_lane(fabric.arena().port(fabric.host_port(0)).peer, 0);
    const auto send = [&](std::uint32_t qp, std::uint32_t sequence) {
        const auto packet = packets.make(1, qp, sequence, 0, 16);
        ASSERT_TRUE(mover.inject(entry, packet, packets.generation(packet)));
        mover.drive(entry);
    };
    const auto& port = fabric.arena().lane(fabric.host_port(1), 0);
    send(1, 0);
    credit::Slot slot{};
    ASSERT_TRUE(mover.peek(mover.request_ring(1), slot));
    EXPECT_TRUE(slot.express);
    EXPECT_EQ(port.received_bytes.load(), 64U);
    EXPECT_EQ(port.received_packets(), 1U);
    EXPECT_EQ(credit::Tail::decode(port.tail.load()).index, 0U);
    // Behind others in the port's buffer a packet waits its turn.
    for (std::uint32_t i = 0; i < credit::kSlotCount; ++i)
        send(2, i);
    EXPECT_GT(port.occupancy(), 0U);
    const auto passed = port.received_packets() - credit::Tail::decode(port.tail.load()).index;
    send(1, 1);
    EXPECT_EQ(port.received_packets() - credit::Tail::decode(port.tail.load()).index, passed);
}

TEST(Mover, RefusesWhenCreditsAreUsedUpAndTakesAgainAfterwards) {
    TestFabric fabric(1, 2, 1, 4);
    Packets packets(fabric);
    fabric.open_qp(1, 1);
    Mover<> mover(fabric.arena());
    const auto lane = mover.port_lane(fabric.arena().port(fabric.host_port(0)).peer, 0);
    std::uint32_t accepted = 0;
    for (; accepted < 10; ++accepted) {
        const auto packet = packets.make(1, 1, accepted, 0, 32);  // two blocks each
        if (!mover.inject(lane, packet, packets.generation(packet))) {
            mover.release({0, packets.generation(packet), packet, 0});
            break;
        }
    }
    EXPECT_EQ(accepted, 2U);
    EXPECT_EQ(fabric.arena().lane(fabric.arena().port(fabric.host_port(0)).peer, 0).stalls.load(),
              1U);
    EXPECT_TRUE(mover.drive(lane));
    const auto packet = packets.make(1, 1, 9, 0, 64);
    EXPECT_TRUE(mover.inject(lane, packet, packets.generation(packet)));
}

TEST(Mover, ARingThatNobodyReadsDoesNotHoldUpThePort) {
    TestFabric fabric(1, 2, 1, kCapacity);
    Packets packets(fabric);
    fabric.open_qp(1, 1);
    fabric.open_qp(2, 1);
    Mover<> mover(fabric.arena());
    const auto lane = mover.port_lane(fabric.arena().port(fabric.host_port(0)).peer, 0);
    for (std::uint32_t i = 0; i < 200; ++i) {
        const auto packet = packets.make(1, 1, i, 0, 1);
        ASSERT_TRUE(mover.inject(lane, packet, packets.generation(packet)));
        ASSERT_TRUE(mover.drive(lane));
    }
    const auto other = packets.make(1, 2, 0, 0, 1);
    ASSERT_TRUE(mover.inject(lane, other, packets.generation(other)));
    ASSERT_TRUE(mover.drive(lane));
    credit::Slot slot{};
    EXPECT_TRUE(mover.peek(mover.request_ring(2), slot));
    EXPECT_EQ(fabric.arena().qp(1).requests.occupancy(), credit::kSlotCount - kRingMargin);
    expect_all_credits_back(fabric);
}

TEST(Mover, DatagramsWaitForTheirReaderAndAreDroppedOnlyWhenItIsGivenUp) {
    TestFabric fabric(1, 2, 1, kCapacity);
    Packets packets(fabric);
    fabric.open_qp(1, 1);
    fabric.open_qp(2, 1);
    fabric.arena().qp(1).reliable = 0;
    Mover<> mover(fabric.arena());
    const auto lane = mover.port_lane(fabric.arena().port(fabric.host_port(0)).peer, 0);
    std::uint32_t sent = 0;
    for (;; ++sent) {
        const auto packet = packets.make(1, 1, sent, 0, 1);
        const bool taken = mover.inject(lane, packet, packets.generation(packet));
        mover.drive(lane);
        if (!taken) {
            mover.release({0, packets.generation(packet), packet, 0});
            break;
        }
    }
    // The ring, the port's buffer and the switch's buffer are full; nothing was lost.
    EXPECT_EQ(sent, 2 * credit::kSlotCount + credit::kSlotCount - kRingMargin);
    EXPECT_EQ(packets.in_flight(), sent);
    // One packet read, one goes on.
    credit::Slot slot{};
    ASSERT_TRUE(mover.peek(mover.request_ring(1), slot));
    mover.pop(mover.request_ring(1));
    mover.release(slot);
    EXPECT_FALSE(mover.retry_stuck());
    EXPECT_EQ(packets.in_flight(), sent - 1);
    const auto other = packets.make(1, 2, 0, 0, 1);
    ASSERT_TRUE(mover.inject(lane, other, packets.generation(other)));
    EXPECT_FALSE(mover.drive(lane));
    // The reader is given up: what waits for it is dropped, and the others go on.
    mover.choke_stuck();
    EXPECT_TRUE(mover.retry_stuck());
    EXPECT_TRUE(mover.peek(mover.request_ring(2), slot));
    EXPECT_EQ(packets.in_flight(), credit::kSlotCount - kRingMargin + 1);
    expect_all_credits_back(fabric);
}

TEST(Mover, DropsWhatCannotArriveAndGivesItBack) {
    TestFabric fabric(2, 1, 1, kCapacity);
    Packets packets(fabric);
    fabric.open_qp(1, 1);
    Mover<> mover(fabric.arena());
    const auto lane = mover.port_lane(fabric.arena().port(fabric.host_port(0)).peer, 0);
    const auto send = [&](std::uint32_t host, std::uint32_t qp) {
        const auto packet = packets.make(host, qp, 0, 0, 1);
        EXPECT_TRUE(mover.inject(lane, packet, packets.generation(packet)));
        EXPECT_TRUE(mover.drive(lane));
    };
    send(40, 1);                   // no such LID
    send(1, 9);                    // QP that nobody owns
    send(1, arena::kQpCount + 7);  // QP beyond the table
    send(0, 1);                    // right QP, wrong host
    fabric.arena().port(fabric.host_port(1)).up.store(0);
    fabric.arena().port(fabric.arena().port(fabric.host_port(1)).peer).up.store(0);
    send(1, 1);  // cable down
    EXPECT_EQ(packets.in_flight(), 0U);
    EXPECT_EQ(fabric.arena().qp(1).requests.occupancy(), 0U);
    expect_all_credits_back(fabric);
}

TEST(Mover, WakesASleepingOwnerAndOnlyThat) {
    TestFabric fabric(1, 2, 1, kCapacity);
    Packets packets(fabric);
    fabric.open_qp(1, 1);
    fabric.arena().process(1).summary.store(arena::kParked);
    Mover<> mover(fabric.arena());
    const auto lane = mover.port_lane(fabric.arena().port(fabric.host_port(0)).peer, 0);
    const auto packet = packets.make(1, 1, 0, 0, 1);
    ASSERT_TRUE(mover.inject(lane, packet, packets.generation(packet)));
    ASSERT_TRUE(mover.drive(lane));
    EXPECT_EQ(mover.take_wakes()[0], 1ULL << 1U);
    EXPECT_FALSE(mover.has_wakes());
}

/// Takes what has arrived at `qp` as an HCA does: at once, letting the ring's head follow later.
void take_ahead(TestFabric& fabric, TestMover& mover, std::uint32_t qp, std::uint32_t lag,
                std::vector<std::uint32_t>& arrived) {
    const auto ring = mover.request_ring(qp);
    auto& taken = fabric.arena().qp(qp).taken;
    credit::Slot slot{};
    while (mover.arrived(ring, taken.load(), slot)) {
        arrived.push_back(fabric.arena().packet(slot.packet).header.psn);
        taken.store((taken.load() + 1) & static_cast<std::uint32_t>(credit::kHeadIndexMask));
        const auto head = credit::Head::decode(mover.buffer(ring).head.load());
        if (((taken.load() - head.index) & credit::kHeadIndexMask) >= lag) {
            mover.settle(ring, taken.load());
        }
    }
    if (lag == 1) mover.settle(ring, taken.load());
}

TEST(MoverStorm, ConsumersMayTakeBeforeAMoveIsFinished) {
    std::size_t killed = 0;
    for (std::uint64_t seed = 1; seed <= 200; ++seed) {
        TestFabric fabric(2, 2, 1, kCapacity);
        Packets packets(fabric);
        const auto hosts = fabric.hosts();
        std::vector<std::vector<std::uint32_t>> arrived(hosts);
        std::vector<std::uint32_t> sent(hosts, 0);
        Fibers fibers(seed);
        for (std::uint32_t h = 0; h < hosts; ++h) {
            const auto to = (h + 1) % hosts;
            fabric.open_qp(h, to);
            if (seed % 2 == 0) fabric.arena().qp(h).peer_lid = TestFabric::lid(h);
            fibers.spawn([&, h, to] {
                TestMover mover(fabric.arena());
                const auto lane = mover.port_lane(fabric.arena().port(fabric.host_port(h)).peer, 0);
                for (int patience = 4000; sent[h] < 60 && patience > 0; --patience) {
                    FiberProbe::point();
                    if (sent[h] - fabric.arena().qp(h).taken.load() >= arena::kQpWindow) continue;
                    const auto packet = packets.make(to, h, sent[h], h, 8);
                    ++sent[h];
                    while (!mover.inject(lane, packet, packets.generation(packet)))
                        mover.drive(lane);
                    mover.drive(lane);
                }
            });
            fibers.spawn([&, h] {
                TestMover mover(fabric.arena());
                for (int look = 0; look < 3000; ++look) {
                    FiberProbe::point();
                    take_ahead(fabric, mover, h, arena::kQpLag, arrived[h]);
                }
            });
        }
        fibers.run(3, seed % 4 < 2 ? 0 : 400);
        killed += fibers.killed();
        TestMover last(fabric.arena());
        EXPECT_TRUE(last.sweep());
        for (std::uint32_t h = 0; h < hosts; ++h) {
            take_ahead(fabric, last, h, 1, arrived[h]);
            const auto missing = sent[h] - arrived[h].size();
            ASSERT_LE(missing, fibers.killed() == 0 ? 0U : 1U) << "seed " << seed;
            for (std::uint32_t i = 0; i < arrived[h].size(); ++i)
                ASSERT_EQ(arrived[h][i], i) << "seed " << seed;
            EXPECT_EQ(fabric.arena().qp(h).requests.occupancy(), 0U) << "seed " << seed;
            EXPECT_EQ(fabric.arena().qp(h).requests.discards.load(), 0U) << "seed " << seed;
        }
        // A consumer that was killed between taking and giving back leaves one packet.
        ASSERT_LE(packets.in_flight(), fibers.killed()) << "seed " << seed;
        expect_all_credits_back(fabric);
        if (HasFailure()) FAIL() << "seed " << seed;
    }
    EXPECT_GT(killed, 50U);  // the nemesis did strike
}

TEST(MoverStorm, EveryInterleavingDeliversExactlyOnceInOrder) {
    std::size_t delivered = 0;
    for (std::uint64_t seed = 1; seed <= 150; ++seed) {
        TestFabric fabric(2, 2, 1, kCapacity);
        Packets packets(fabric);
        const auto outcome = storm(fabric, packets, seed, 0, 20);
        for (const auto& [flow, sent] : outcome.injected) {
            const auto it = outcome.arrived.find(flow);
            ASSERT_NE(it, outcome.arrived.end()) << "seed " << seed;
            ASSERT_EQ(it->second, sent) << "seed " << seed;
            delivered += sent.size();
        }
        ASSERT_EQ(packets.in_flight(), 0U) << "seed " << seed;
        expect_all_credits_back(fabric);
        if (HasFailure()) FAIL() << "seed " << seed;
    }
    EXPECT_EQ(delivered, 150U * 4 * 20);
}

TEST(MoverStorm, MoversKilledAnywhereLoseAndDoubleNothing) {
    std::size_t killed = 0;
    for (std::uint64_t seed = 1; seed <= 400; ++seed) {
        TestFabric fabric(2, 2, 1, kCapacity);
        Packets packets(fabric);
        const auto outcome = storm(fabric, packets, seed, 150, 20);
        killed += outcome.killed;
        std::size_t unsent = 0;
        for (const auto& [flow, sent] : outcome.injected) {
            const auto it = outcome.arrived.find(flow);
            const auto arrived =
                it == outcome.arrived.end() ? std::vector<std::uint32_t>{} : it->second;
            // A killed sender's last packet may not have entered the fabric; all before it have.
            ASSERT_LE(arrived.size(), sent.size()) << "seed " << seed;
            ASSERT_LE(sent.size() - arrived.size(), 1U) << "seed " << seed;
            unsent += sent.size() - arrived.size();
            for (std::size_t i = 0; i < arrived.size(); ++i) {
                ASSERT_EQ(arrived[i], sent[i]) << "seed " << seed;
            }
        }
        ASSERT_LE(unsent, outcome.killed) << "seed " << seed;
        ASSERT_EQ(packets.in_flight(), unsent) << "seed " << seed;
        expect_all_credits_back(fabric);
        if (HasFailure()) FAIL() << "seed " << seed;
    }
    EXPECT_GT(killed, 400U);  // the nemesis did strike
}

}  // namespace
}  // namespace weir::switching

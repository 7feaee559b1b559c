// SPDX-License-Identifier: Apache-2.0
// The arithmetic of one link, without movers.
#include "switching/arbiter.h"

#include <gtest/gtest.h>

#include <array>

#include "base/rng.h"

namespace weir::switching {
namespace {

using arena::ArbitrationTables;

/// Blocks that each lane of `backlogged` gets of `packets` packets of `blocks` each.
std::array<std::uint64_t, 8> run(const ArbitrationTables& tables, std::uint32_t backlogged,
                                 std::uint32_t packets, std::uint32_t blocks) {
    std::array<std::uint64_t, 8> sent{};
    Turns turns = first_turns(tables);
    for (std::uint32_t i = 0; i < packets; ++i) {
        bool high = false;
        const auto vl = choose_vl(tables, backlogged, turns, high);
        EXPECT_LT(vl, 8U);
        if (vl >= 8) break;
        charge(tables, high, blocks, turns);
        turns.busy_until += blocks * 7;
        turns = Turns::decode(turns.encode());
        sent.at(vl) += blocks;
    }
    return sent;
}

TEST(Turns, AWordKeepsEveryField) {
    Rng rng(1);
    for (int i = 0; i < 1000; ++i) {
        const std::uint64_t word = rng.below(~0ULL);
        EXPECT_EQ(Turns::decode(word).encode(), word);
    }
}

TEST(Turns, LowLanesShareByTheirWeights) {
    const ArbitrationTables tables{16, 0, 3, 0, {}, {{0, 64}, {1, 128}, {2, 192}}};
    const auto sent = run(tables, 7, 6000, 64);
    EXPECT_EQ(sent[0], 1000U * 64);
    EXPECT_EQ(sent[1], 2000U * 64);
    EXPECT_EQ(sent[2], 3000U * 64);
    // Small packets share the same way.
    const auto small = run(tables, 7, 384 * 10, 1);
    EXPECT_EQ(small[0] * 3, small[2]);
    EXPECT_EQ(small[0] * 2, small[1]);
}

TEST(Turns, AnOverdrawnWeightEndsTheTurn) {
    const ArbitrationTables tables{16, 0, 2, 0, {}, {{0, 64}, {1, 192}}};
    // 65 blocks are more than 64: one packet a turn, and three for the other.
    const auto sent = run(tables, 3, 4000, 65);
    EXPECT_EQ(sent[0] * 3, sent[1]);
}

TEST(Turns, ALaneWithNothingToSendIsPassedOver) {
    const ArbitrationTables tables{16, 1, 2, 0, {{3, 10}}, {{0, 64}, {1, 192}}};
    const auto sent = run(tables, 2, 100, 64);
    EXPECT_EQ(sent[1], 6400U);
    Turns turns = first_turns(tables);
    bool high = false;
    EXPECT_EQ(choose_vl(tables, 0, turns, high), kNoVl);
    EXPECT_EQ(choose_vl(tables, 1U << 7U, turns, high), kNoVl);
}

TEST(Turns, WithoutALimitHighPriorityIsStrict) {
    const ArbitrationTables tables{255, 1, 1, 0, {{1, 1}}, {{0, 255}}};
    const auto sent = run(tables, 3, 1000, 64);
    EXPECT_EQ(sent[0], 0U);
}

TEST(Turns, TheLimitIsWhatGoesBeforeALowPacket) {
    for (const std::uint32_t limit : {1U, 4U, 16U, 100U, 254U}) {
        for (const std::uint32_t blocks : {1U, 5U, 64U}) {
            const ArbitrationTables tables{
                static_cast<std::uint8_t>(limit), 1, 1, 0, {{1, 64}}, {{0, 64}}};
            const auto sent = run(tables, 3, 200'000, blocks);
            const double ratio = static_cast<double>(sent[1]) / static_cast<double>(sent[0]);
            const double wanted = limit * 64.0 / blocks;
            // To within a packet for each low one.
            EXPECT_NEAR(ratio, wanted, 1 + 0.03 * wanted)
                << "limit " << limit << " blocks " << blocks;
        }
    }
}

TEST(Turns, ALimitOfNothingLetsOnePacketPass) {
    const ArbitrationTables tables{0, 1, 1, 0, {{1, 64}}, {{0, 64}}};
    for (const std::uint32_t blocks : {1U, 64U}) {
        const auto sent = run(tables, 3, 1000, blocks);
        EXPECT_EQ(sent[0], sent[1]);
    }
}

TEST(Turns, WireTimesAreRoundedToTheNearest) {
    EXPECT_EQ(wire_ns(1000, 8'000'000'000), 1000U);
    EXPECT_EQ(wire_ns(64, 400'000'000'000), 1U);
    EXPECT_EQ(wire_ns(4136, 400'000'000'000), 83U);
    EXPECT_EQ(wire_ns(1, 10'000'000'000'000), 1U);
}

}  // namespace
}  // namespace weir::switching

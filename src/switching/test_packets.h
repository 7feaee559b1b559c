// SPDX-License-Identifier: Apache-2.0
// Packets for tests over a TestFabric, and the check that none left a trace. Not part of the
// product.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "switching/test_fabric.h"

namespace weir::switching {

/// Hands out packet descriptors, each used once unless it comes back free.
class Packets {
  public:
    explicit Packets(TestFabric& fabric) : arena_(fabric.arena()) {}

    std::uint32_t make(std::uint32_t dest_host, std::uint32_t qp, std::uint32_t sequence,
                       std::uint32_t source, std::uint32_t words, std::uint32_t level = 0) {
        for (;;) {
            next_ = (next_ + 1) % TestFabric::kPackets;
            auto& packet = arena_.packet(next_);
            const auto word = packet.state.load();
            if ((word & 1U) != 0) continue;
            packet.state.store(((word >> 1U) + 1) << 1U | 1U);
            packet.route.store(
                arena::Route{TestFabric::lid(dest_host), level, false, false, words, qp}.encode());
            packet.header.psn = sequence;
            packet.header.src_qp = source;
            packet.header.slid = TestFabric::lid(source);
            return next_;
        }
    }
    [[nodiscard]] std::uint32_t generation(std::uint32_t packet) const {
        return (arena_.packet(packet).state.load() >> 1U) & 0xfffU;
    }
    [[nodiscard]] std::uint32_t in_flight() const {
        std::uint32_t count = 0;
        for (std::uint32_t i = 0; i < TestFabric::kPackets; ++i) {
            count += arena_.packet(i).state.load() & 1U;
        }
        return count;
    }

  private:
    arena::Arena arena_;
    std::uint32_t next_ = 0;
};

inline void expect_credits_back(const credit::LaneBuffer& lane) {
    const auto head = credit::Head::decode(lane.head.load());
    const auto tail = credit::Tail::decode(lane.tail.load());
    EXPECT_EQ(head.index, tail.index & credit::kHeadIndexMask);
    EXPECT_EQ(head.blocks, tail.blocks);
    EXPECT_EQ(head.claim, credit::kUnclaimed);
}

inline void expect_all_credits_back(TestFabric& fabric) {
    const auto& header = fabric.arena().header();
    for (std::uint32_t v = 0; v < header.lane_count; ++v) {
        for (std::uint32_t p = 0; p < header.port_count; ++p)
            expect_credits_back(fabric.arena().lane(p, v));
        for (std::uint32_t e = 0; e < header.egress_count; ++e)
            expect_credits_back(fabric.arena().egress(e, v));
    }
}

}  // namespace weir::switching

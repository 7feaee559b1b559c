// SPDX-License-Identifier: Apache-2.0
#include "wire/flow_control.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <array>
#include <cstdint>

namespace weir::wire {
namespace {

TEST(FlowControl, FieldsLieWhereTheSpecificationPutsThem) {
    FlowControl packet;
    packet.op = FlowControlOp::kInit;
    packet.vl = 3;
    packet.fctbs = 0xabc;
    packet.fccl = 0x123;
    std::array<std::uint8_t, kFlowControlBytes> bytes{};
    encode_flow_control(packet, bytes);
    EXPECT_EQ(bytes[0], 0x1a);
    EXPECT_EQ(bytes[1], 0xbc);
    EXPECT_EQ(bytes[2], 0x31);
    EXPECT_EQ(bytes[3], 0x23);
    EXPECT_EQ(decode_flow_control(bytes), packet);
}

TEST(FlowControl, EveryDamagedBitAndWrongSizeIsRefused) {
    std::array<std::uint8_t, kFlowControlBytes + 1> bytes{};
    const std::span<std::uint8_t> all(bytes);
    encode_flow_control({FlowControlOp::kNormal, 7, 0x800, 0xfff}, all.first<kFlowControlBytes>());
    for (std::size_t size = 0; size <= bytes.size(); ++size)
        EXPECT_EQ(decode_flow_control(all.first(size)).has_value(), size == kFlowControlBytes);
    for (std::size_t bit = 0; bit < 8 * kFlowControlBytes; ++bit) {
        bytes[bit / 8] ^= static_cast<std::uint8_t>(1U << (bit % 8));
        EXPECT_FALSE(decode_flow_control(all.first(kFlowControlBytes)).has_value()) << bit;
        bytes[bit / 8] ^= static_cast<std::uint8_t>(1U << (bit % 8));
    }
}

TEST(FlowControl, UnknownOpIsRefusedThoughItsCrcHolds) {
    std::array<std::uint8_t, kFlowControlBytes> bytes{};
    encode_flow_control({static_cast<FlowControlOp>(2), 0, 0, 0}, bytes);
    EXPECT_FALSE(decode_flow_control(bytes).has_value());
}

TEST(FlowControl, RoundTrip) {
    EXPECT_TRUE(rc::check([] {
        FlowControl packet;
        packet.op = *rc::gen::element(FlowControlOp::kNormal, FlowControlOp::kInit);
        packet.vl = *rc::gen::inRange<std::uint8_t>(0, 16);
        packet.fctbs = *rc::gen::inRange<std::uint16_t>(0, 4096);
        packet.fccl = *rc::gen::inRange<std::uint16_t>(0, 4096);
        std::array<std::uint8_t, kFlowControlBytes> bytes{};
        encode_flow_control(packet, bytes);
        RC_ASSERT(decode_flow_control(bytes) == packet);
    }));
}

TEST(Credit, CountersWrap) {
    EXPECT_EQ(credit_add(4095, 2), 1);
    EXPECT_EQ(credit_sub(1, 4095), 2);
    EXPECT_TRUE(credit_allows(1, 4095, 2));
    EXPECT_FALSE(credit_allows(1, 4095, 3));
    EXPECT_EQ(credit_available(1, 4095), 2U);
    EXPECT_EQ(credit_available(4095, 1), 0U);
    EXPECT_EQ(credit_available(2048, 0), 2048U);
    EXPECT_EQ(credit_available(2049, 0), 0U);
}

TEST(Credit, AllowsExactlyWhatIsAvailable) {
    EXPECT_TRUE(rc::check([] {
        const auto sent = *rc::gen::inRange<std::uint32_t>(0, kCreditModulus);
        const auto ahead = *rc::gen::inRange<std::uint32_t>(0, kCreditBlocksMax + 1);
        const auto blocks = *rc::gen::inRange<std::uint32_t>(0, kCreditBlocksMax);
        const auto limit = credit_add(sent, ahead);
        RC_ASSERT(credit_available(limit, sent) == ahead);
        RC_ASSERT(credit_allows(limit, sent, blocks) == (blocks <= ahead));
    }));
}

TEST(Credit, BlocksRoundUp) {
    EXPECT_EQ(credit_blocks(1), 1U);
    EXPECT_EQ(credit_blocks(64), 1U);
    EXPECT_EQ(credit_blocks(65), 2U);
}

}  // namespace
}  // namespace weir::wire

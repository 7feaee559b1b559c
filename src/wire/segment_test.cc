// SPDX-License-Identifier: Apache-2.0
#include "wire/segment.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstdint>

namespace weir::wire {
namespace {

PacketHeader segment_of(Opcode opcode, std::uint32_t bytes) {
    PacketHeader header;
    header.opcode = opcode;
    header.psn = 0xfffffe;
    header.payload_length = bytes;
    header.set(kFlagAckRequest);
    header.set(kFlagSolicited);
    if (has_reth(opcode)) {
        header.virtual_address = 0x1000;
        header.rkey = 7;
        header.dma_length = bytes;
    }
    if (has_immediate(opcode)) header.immediate = 42;
    return header;
}

TEST(PacketsIn, EmptyIsOneAndTheRestRoundsUp) {
    EXPECT_EQ(packets_in(0, 4096), 1U);
    EXPECT_EQ(packets_in(1, 4096), 1U);
    EXPECT_EQ(packets_in(4096, 4096), 1U);
    EXPECT_EQ(packets_in(4097, 4096), 2U);
    EXPECT_EQ(packets_in(kMaxSegmentBytes, 256), 4096U);
}

TEST(Segment, WriteOnlyWithImmediateBecomesFirstMiddleLastWithImmediate) {
    const PacketHeader segment = segment_of(Opcode::kUcWriteOnlyImm, 2500);
    const PacketHeader first = packet_of_segment(segment, 1024, 0);
    const PacketHeader middle = packet_of_segment(segment, 1024, 1);
    const PacketHeader last = packet_of_segment(segment, 1024, 2);
    EXPECT_EQ(first.opcode, Opcode::kUcWriteFirst);
    EXPECT_EQ(first.virtual_address, 0x1000U);
    EXPECT_EQ(first.dma_length, 2500U);
    EXPECT_EQ(first.immediate, 0U);
    EXPECT_EQ(first.flags, 0);
    EXPECT_EQ(middle.opcode, Opcode::kUcWriteMiddle);
    EXPECT_EQ(middle.psn, 0xffffffU);
    EXPECT_EQ(middle.rkey, 0U);
    EXPECT_EQ(last.opcode, Opcode::kUcWriteLastImm);
    EXPECT_EQ(last.psn, 0U);
    EXPECT_EQ(last.payload_length, 452U);
    EXPECT_EQ(last.immediate, 42U);
    EXPECT_EQ(last.flags, kFlagAckRequest | kFlagSolicited);
}

TEST(Segment, EachFamilyEndsInItsOwnLast) {
    const auto ends = [](Opcode only, Opcode first, Opcode middle, Opcode last) {
        const PacketHeader segment = segment_of(only, 3 * 256);
        EXPECT_EQ(packet_of_segment(segment, 256, 0).opcode, first);
        EXPECT_EQ(packet_of_segment(segment, 256, 1).opcode, middle);
        EXPECT_EQ(packet_of_segment(segment, 256, 2).opcode, last);
    };
    using enum Opcode;
    ends(kRcSendOnly, kRcSendFirst, kRcSendMiddle, kRcSendLast);
    ends(kRcSendOnlyImm, kRcSendFirst, kRcSendMiddle, kRcSendLastImm);
    ends(kRcSendOnlyInvalidate, kRcSendFirst, kRcSendMiddle, kRcSendLastInvalidate);
    ends(kRcSendFirst, kRcSendFirst, kRcSendMiddle, kRcSendMiddle);
    ends(kRcSendLastImm, kRcSendMiddle, kRcSendMiddle, kRcSendLastImm);
    ends(kRcSendLastInvalidate, kRcSendMiddle, kRcSendMiddle, kRcSendLastInvalidate);
    ends(kRcWriteOnly, kRcWriteFirst, kRcWriteMiddle, kRcWriteLast);
    ends(kRcWriteOnlyImm, kRcWriteFirst, kRcWriteMiddle, kRcWriteLastImm);
    ends(kRcWriteMiddle, kRcWriteMiddle, kRcWriteMiddle, kRcWriteMiddle);
    ends(kRcReadResponseOnly, kRcReadResponseFirst, kRcReadResponseMiddle, kRcReadResponseLast);
    ends(kRcReadResponseFirst, kRcReadResponseFirst, kRcReadResponseMiddle, kRcReadResponseMiddle);
    ends(kRcReadResponseLast, kRcReadResponseMiddle, kRcReadResponseMiddle, kRcReadResponseLast);
    ends(kUcSendOnlyImm, kUcSendFirst, kUcSendMiddle, kUcSendLastImm);
}

TEST(Segment, WithinTheMtuIsItself) {
    const PacketHeader segment = segment_of(Opcode::kUdSendOnly, 256);
    EXPECT_EQ(packet_of_segment(segment, 256, 0), segment);
}

TEST(Segment, PartsAddUpToTheWhole) {
    EXPECT_TRUE(rc::check([] {
        using enum Opcode;
        const auto opcode = *rc::gen::element(kRcSendOnly, kRcWriteOnlyImm, kRcReadResponseOnly);
        const auto mtu = *rc::gen::element<std::uint32_t>(256, 512, 1024, 2048, 4096);
        const auto bytes = *rc::gen::inRange<std::uint32_t>(0, 100'000);
        const PacketHeader segment = segment_of(opcode, bytes);
        const std::uint32_t count = packets_in(bytes, mtu);
        std::uint32_t sum = 0;
        for (std::uint32_t i = 0; i < count; ++i) {
            const PacketHeader part = packet_of_segment(segment, mtu, i);
            RC_ASSERT(part.psn == psn_add(segment.psn, i));
            RC_ASSERT(starts_message(part.opcode) == (i == 0));
            RC_ASSERT(ends_message(part.opcode) == (i + 1 == count));
            RC_ASSERT(part.payload_length <= mtu);
            RC_ASSERT(i + 1 == count || part.payload_length == mtu);
            sum += part.payload_length;
        }
        RC_ASSERT(sum == bytes);
    }));
}

}  // namespace
}  // namespace weir::wire

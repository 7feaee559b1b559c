// SPDX-License-Identifier: Apache-2.0
#include "wire/mad.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

namespace weir::wire {
namespace {

// SubnGet(NodeInfo) by directed route, hop pointer 0 of 2, as an SM sends it.
constexpr std::array<std::uint8_t, kMadHeaderBytes> kNodeInfo = {
    0x01, 0x81, 0x01, 0x01, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x12,
    0x34, 0x56, 0x78, 0x9a, 0x00, 0x11, 0x00, 0x00, 0xde, 0xad, 0xbe, 0xef};

TEST(MadHeader, DecodesEveryField) {
    const auto header = decode_mad_header(kNodeInfo);
    ASSERT_TRUE(header.has_value());
    EXPECT_EQ(header->base_version, 1);
    EXPECT_EQ(header->management_class, static_cast<std::uint8_t>(MadClass::kSubnDirected));
    EXPECT_EQ(header->class_version, 1);
    EXPECT_EQ(header->method, static_cast<std::uint8_t>(MadMethod::kGet));
    EXPECT_EQ(header->status, 0);
    EXPECT_EQ(header->hop_pointer(), 0);
    EXPECT_EQ(header->hop_count(), 2);
    EXPECT_EQ(header->transaction_id, 0x123456789aULL);
    EXPECT_EQ(header->attribute_id, 0x11);
    EXPECT_EQ(header->attribute_modifier, 0xdeadbeefU);
    EXPECT_FALSE(header->is_response());
}

TEST(MadHeader, EncodesWhatItDecoded) {
    std::array<std::uint8_t, kMadHeaderBytes> bytes;
    bytes.fill(0xaa);
    encode_mad_header(*decode_mad_header(kNodeInfo), bytes);
    EXPECT_EQ(bytes, kNodeInfo);
}

TEST(MadHeader, ShortIsNothing) {
    for (std::size_t size = 0; size < kMadHeaderBytes; ++size)
        EXPECT_FALSE(decode_mad_header(std::span(kNodeInfo).first(size)).has_value());
}

}  // namespace
}  // namespace weir::wire

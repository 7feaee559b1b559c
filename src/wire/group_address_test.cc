// SPDX-License-Identifier: Apache-2.0
#include "wire/group_address.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <set>

namespace weir::wire {
namespace {

TEST(GroupAddress, Ipv4KeepsItsLow28Bits) {
    // RFC 4391's own example of a mapping: the all-hosts group, here with the default P_Key.
    const CmGid expected{0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
    EXPECT_EQ(group_of_ipv4({224, 0, 0, 1}, GroupSignature::kIpOverInfiniband), expected);
    const CmGid other{0xff, 0x12, 0x40, 0x01, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0x0f, 1, 2, 3};
    EXPECT_EQ(group_of_ipv4({239, 1, 2, 3}, GroupSignature::kConnectionManager), other);
}

TEST(GroupAddress, Ipv6KeepsItsLow80Bits) {
    const std::array<std::uint8_t, 16> address{0xff, 0x0e, 1, 2,  3,  4,  5,  6,
                                               7,    8,    9, 10, 11, 12, 13, 14};
    const CmGid expected{0xff, 0x12, 0x60, 0x1b, 0xff, 0xff, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
    EXPECT_EQ(group_of_ipv6(address, GroupSignature::kIpOverInfiniband), expected);
    EXPECT_EQ(group_of_ipv6(address, GroupSignature::kConnectionManager)[3], 0x01);
}

TEST(GroupAddress, Ipv4OnEthernetIsAMappedAddress) {
    const CmGid expected{0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3};
    EXPECT_EQ(ethernet_group_of_ipv4({239, 1, 2, 3}), expected);
}

TEST(GroupAddress, ChosenGroupsAreKnownAndDiffer) {
    rc::check([](std::uint64_t a, std::uint64_t b) {
        RC_ASSERT(is_chosen_group(chosen_group(a)));
        RC_ASSERT((chosen_group(a) == chosen_group(b)) == (a == b));
    });
    EXPECT_FALSE(is_chosen_group(group_of_ipv4({224, 0, 0, 1}, GroupSignature::kIpOverInfiniband)));
}

TEST(GroupAddress, LidsAreThoseOfGroupsAndSpread) {
    rc::check([](const CmGid& gid) {
        const auto lid = group_lid(gid);
        RC_ASSERT(lid >= 0xc000);
        RC_ASSERT(lid <= 0xfffe);
    });
    std::set<std::uint16_t> lids;
    for (std::uint8_t last = 0; last < 100; ++last)
        lids.insert(
            group_lid(group_of_ipv4({239, 0, 0, last}, GroupSignature::kConnectionManager)));
    EXPECT_GT(lids.size(), 95U);
}

}  // namespace
}  // namespace weir::wire

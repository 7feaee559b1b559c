// SPDX-License-Identifier: Apache-2.0
// Which InfiniBand group (MGID, MLID) stands for an IP group. By RFC 4391 (section 4) IP over
// InfiniBand has
//
//   IPv4   ff1s:401b:pppp:0000:0000:0000:0ggg:gggg   s: scope, p: P_Key, g: the low 28 bits
//   IPv6   ff1s:601b:pppp:gggg:gggg:gggg:gggg:gggg                       the low 80 bits
//
// and the groups of the connection manager's UDP port space have 01 in the place of 1b, so that
// their members are not among those that speak IP there. A subnet manager gives each group a LID;
// here it follows from the MGID, so that all hosts agree without one.
#pragma once

#include <array>
#include <cstdint>

#include "wire/cm_mad.h"

namespace weir::wire {

enum class GroupSignature : std::uint8_t {
    kIpOverInfiniband = 0x1b,
    kConnectionManager = 0x01,
};

/// The scope of all groups here: that of the subnet (IBTA 4.1.1).
inline constexpr std::uint8_t kLinkLocalScope = 2;

[[nodiscard]] CmGid group_of_ipv4(const std::array<std::uint8_t, 4>& address,
                                  GroupSignature signature);
[[nodiscard]] CmGid group_of_ipv6(const std::array<std::uint8_t, 16>& address,
                                  GroupSignature signature);

/// On Ethernet a group's GID is its IPv6 address; that of an IPv4 group is ff0e::ffff:a.b.c.d.
[[nodiscard]] CmGid ethernet_group_of_ipv4(const std::array<std::uint8_t, 4>& address);

/// True for ff1x:a01b:: MGIDs, which subnet managers choose for groups without an IP address. As
/// IPv6 addresses they stand for themselves.
[[nodiscard]] bool is_chosen_group(const CmGid& gid);
/// A group of that kind.
[[nodiscard]] CmGid chosen_group(std::uint64_t number);

/// Among the LIDs of groups, 0xc000 to 0xfffe (IBTA 4.1.3). Two groups may share one, as in any
/// subnet.
[[nodiscard]] std::uint16_t group_lid(const CmGid& gid);

}  // namespace weir::wire

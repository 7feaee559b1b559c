// SPDX-License-Identifier: Apache-2.0
// IP addresses of HCA ports: by these the connection manager (librdmacm) knows hosts. They are
// names within the fabric; no kernel interface has them.
//
// A port that the fabric file gives none has one by its place among all HCA ports: the first has
// 100.64.0.1 and fd57:6569:72::1. Those ranges are for uses within one's own walls (RFC 6598, RFC
// 4193), so they hide no host of a usual network.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "base/result.h"
#include "topology/graph.h"

namespace weir::topology {

/// The address of the `ordinal`th HCA port, from 0. REQUIRES: ordinal < 4,000,000.
Ipv4 default_ipv4(std::uint32_t ordinal);
Ipv6 default_ipv6(std::uint32_t ordinal);

std::string to_text(const Ipv4& address);
std::string to_text(const Ipv6& address);

/// An address that a host may have. kInvalid for what is none, and for loopback, multicast and
/// unspecified addresses.
Result<std::variant<Ipv4, Ipv6>> parse_address(std::string_view text);

/// Gives every HCA port that has none its default addresses. kInvalid if one is given already, to
/// another port. Idempotent.
Result<void> fill_addresses(Fabric& fabric);

}  // namespace weir::topology

// SPDX-License-Identifier: Apache-2.0
// Reading a live fabric: names of its ports and links, and who is attached. For tools and for the
// daemon's commands; every number is a snapshot taken while others move. Reads only, so a mapping
// without write permission will do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "arena/layout.h"
#include "base/result.h"

namespace weir::lab {

/// "s0:1".
std::string port_name(arena::Arena arena, std::uint32_t port);

/// A cable, as both of its ends' port indices: the HCA's end first, else the lower.
struct LinkView {
    std::uint32_t a;
    std::uint32_t b;
};
/// "h0:1-s0:1".
std::string link_name(arena::Arena arena, LinkView link);

/// All cables, in order of their first ends.
std::vector<LinkView> list_links(arena::Arena arena);

/// The port of this name. kNotFound says which part is wrong, and the nearest name that there is.
Result<std::uint32_t> find_port(arena::Arena arena, std::string_view name);

/// The cable of this name, with its ends in either order, or the cable at one end.
Result<LinkView> find_link(arena::Arena arena, std::string_view name_or_end);

/// Node index of a switch or an HCA by its name.
Result<std::uint32_t> find_node(arena::Arena arena, std::string_view name);

/// Names of the hosts, in the order of their first HCAs.
std::vector<std::string> list_hosts(arena::Arena arena);

/// A lane's line in the arbitration tables.
struct LaneShareView {
    std::uint32_t weight = 0;
    bool high = false;
};
LaneShareView share_of(const arena::ArbitrationTables& tables, std::uint32_t vl);

/// A rate as people read it: "10Gbps", or "unlimited" for 0.
std::string rate_text(std::uint64_t bits_per_second);

/// What all data lanes of one receiving port add up to: the traffic that its cable brought to it.
struct PortTraffic {
    std::uint64_t packets = 0;
    std::uint64_t bytes = 0;
    std::uint64_t stalls = 0;  ///< No credit.
    std::uint64_t waits = 0;   ///< The link was busy, or another lane's turn.
    std::uint64_t discards = 0;
    std::uint32_t occupancy = 0;
};
PortTraffic traffic_into(arena::Arena arena, std::uint32_t port);

struct ProcessView {
    std::uint32_t identity;
    std::uint32_t pid;
    std::uint32_t node;
    bool dead;
};
std::vector<ProcessView> list_processes(arena::Arena arena);

}  // namespace weir::lab

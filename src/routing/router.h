// SPDX-License-Identifier: Apache-2.0
// The static router: LIDs for every port that packets can be addressed to, and for each switch a
// linear forwarding table (LFT) that says by destination LID out of which port a packet goes.
//
// The method is up*/down* (Autonet, Schroeder et al. 1991) with shortest legal paths. Switches
// stand in one order; a link points up towards the earlier one. A path goes up zero or more times,
// then down, and never up again, so channel dependencies cannot form a cycle: one virtual lane is
// enough on any graph. In a tree of switches the top tier comes first, all shortest paths are legal
// and all are used; in a torus, a dragonfly or an irregular graph detours are the price.
//
// Tables are by destination, so "never up again" has to hold whatever way a packet came: a switch
// goes down if down links alone lead to the destination, else up where the rest is shortest. Where
// that leaves a host unreachable (a tree with a cable missing), the order is repaired.
//
// Balance: of equally short ways the one whose channels carry the least source-destination pairs so
// far is taken. Everything is a function of the fabric alone.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "topology/graph.h"

namespace weir::routing {

/// Unicast LIDs are 1 ... 49151 (IBTA: 0xC000 and up are multicast).
inline constexpr std::uint32_t kLidMax = 0xbfff;
/// In a table: packets to this LID are dropped.
inline constexpr std::uint8_t kNoRoute = 255;

struct RouteOptions {
    /// The switches that come first, where paths turn from up to down. Empty: by tier labels, else
    /// by the distances to all hosts.
    std::vector<topology::NodeIndex> roots;
};

/// The result of routing. Vectors are indexed by the fabric's NodeIndex or by LID.
struct Tables {
    struct Owner {
        topology::NodeIndex node = topology::kNoIndex;
        topology::PortNumber port = 0;  ///< 0 for a switch, 1.. for an HCA port.
        bool operator==(const Owner&) const = default;
    };

    /// By node, then end port (switch: one; HCA: port p at p-1): its LID; 0 = no cable, no LID.
    std::vector<std::vector<std::uint32_t>> lids;
    std::vector<Owner> owners;  ///< By LID, dense from 1; [0] belongs to nobody.
    /// By node; for a switch one out-port for each LID: 0 = the switch itself, kNoRoute = none.
    /// Empty for HCAs.
    std::vector<std::vector<std::uint8_t>> lfts;

    bool operator==(const Tables&) const = default;

    /// One more than the highest LID: the length of every table.
    [[nodiscard]] std::size_t lid_limit() const { return owners.size(); }

    /// The LID of an end port; 0 if it has none. REQUIRES: the end port exists.
    [[nodiscard]] std::uint32_t lid(topology::NodeIndex node, topology::PortNumber port) const {
        return lids[node][port == 0 ? 0 : port - 1];
    }
};

/// Routes the whole fabric. HCA ports without a cable get no LID. Parts that no cable joins are
/// routed each for itself; verify() then reports the pairs that cannot reach each other. Fails if
/// there are more end ports than LIDs. REQUIRES: fabric.validate() holds.
Result<Tables> route(const topology::Fabric& fabric, const RouteOptions& options = {});

}  // namespace weir::routing

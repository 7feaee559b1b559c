// SPDX-License-Identifier: Apache-2.0
// SwitchGraph: the switches of a fabric alone, densely numbered, with their cables to each other in
// one flat array; what routing walks through thousands of times. And the orders of switches by
// which up*/down* tells up from down. Internal to this module.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "topology/graph.h"

namespace weir::routing {

using SwitchIndex = std::uint32_t;  ///< Position among the switches only.

/// A cable between switches as seen from one end. Channels (directions of cables) are numbered by
/// their place in SwitchGraph::hops.
struct Hop {
    SwitchIndex to;
    topology::PortNumber port;  ///< The out-port.
};

struct SwitchGraph {
    std::vector<topology::NodeIndex> nodes;  ///< By switch: its node.
    std::vector<SwitchIndex> by_node;        ///< By node: its switch; kNoIndex for HCAs.
    std::vector<std::uint32_t> first;        ///< By switch: its first hop; one more at the end.
    std::vector<Hop> hops;                   ///< In order of switch and port.
    std::vector<std::uint32_t> hosts;        ///< By switch: HCA ports cabled to it.

    [[nodiscard]] std::size_t size() const { return nodes.size(); }
    [[nodiscard]] std::span<const Hop> hops_of(SwitchIndex s) const {
        return {hops.data() + first[s], first[s + 1] - first[s]};
    }
};

SwitchGraph make_switch_graph(const topology::Fabric& fabric, const topology::Adjacency& adjacency);

/// An order is a position for each switch; up is towards the lower position.
using Order = std::vector<std::uint32_t>;

/// By tier label, highest first. Empty if a switch has none or all have the same.
Order order_by_tier(const SwitchGraph& graph, const topology::Fabric& fabric);

/// By the sum of distances to all hosts, least first: in any folded Clos network that puts the top
/// tier first, without labels and whatever else is cabled to single switches.
Order order_by_distance(const SwitchGraph& graph);

/// By the number of hops from the nearest root; parts without one come last. Ties as in
/// `preferred`.
Order order_from_roots(const SwitchGraph& graph, std::vector<SwitchIndex> roots,
                       const Order& preferred);

/// The order, changed so that every switch has a way up to one root for each connected part, hence
/// to every host. The root is the switch that leads down to most hosts; switches without a way up
/// to it are moved, in groups that belong together, right behind the first neighbour that has one.
/// What leads up from all others stays: where a cable of a tree is missing, only the switches
/// concerned turn round.
Order repaired(const SwitchGraph& graph, const Order& order);

/// Which connected part of the graph each switch is in.
std::vector<std::uint32_t> connected_parts(const SwitchGraph& graph);

}  // namespace weir::routing

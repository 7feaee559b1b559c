// SPDX-License-Identifier: Apache-2.0
#include "routing/switch_graph.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace weir::routing {

using topology::kNoIndex;

namespace {

/// Sorts switches by a key, ties by index, and returns each one's position.
Order order_by_key(const std::vector<std::uint64_t>& key) {
    std::vector<SwitchIndex> sorted(key.size());
    std::iota(sorted.begin(), sorted.end(), 0U);
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](SwitchIndex a, SwitchIndex b) { return key[a] < key[b]; });
    Order order(key.size());
    for (std::uint32_t position = 0; position < sorted.size(); ++position)
        order[sorted[position]] = position;
    return order;
}

/// Hops from the nearest of `queue`, which is used up; kNoIndex where there is no way.
std::vector<std::uint32_t> distances(const SwitchGraph& graph, std::vector<SwitchIndex> queue) {
    std::vector<std::uint32_t> distance(graph.size(), kNoIndex);
    for (const SwitchIndex source : queue)
        distance[source] = 0;
    for (std::size_t head = 0; head < queue.size(); ++head) {
        const SwitchIndex at = queue[head];
        for (const Hop& hop : graph.hops_of(at)) {
            if (distance[hop.to] != kNoIndex) continue;
            distance[hop.to] = distance[at] + 1;
            queue.push_back(hop.to);
        }
    }
    return distance;
}

/// Marks what `tops` reach by down links alone: the switches that have a way up to one of them.
std::vector<bool> below(const SwitchGraph& graph, const Order& order,
                        std::vector<SwitchIndex> tops) {
    std::vector<bool> seen(graph.size(), false);
    for (const SwitchIndex top : tops)
        seen[top] = true;
    for (std::size_t head = 0; head < tops.size(); ++head) {
        for (const Hop& hop : graph.hops_of(tops[head])) {
            if (seen[hop.to] || order[hop.to] < order[tops[head]]) continue;
            seen[hop.to] = true;
            tops.push_back(hop.to);
        }
    }
    return seen;
}

/// For each part: of its switches without a way up, the one with the most hosts below; of equals
/// the first in the order.
std::vector<SwitchIndex> best_roots(const SwitchGraph& graph, const Order& order) {
    const std::vector<std::uint32_t> part = connected_parts(graph);
    std::vector<SwitchIndex> best(graph.size(), kNoIndex);  // By part.
    std::vector<std::uint64_t> best_hosts(graph.size(), 0);
    for (SwitchIndex s = 0; s < graph.size(); ++s) {
        const auto ways = graph.hops_of(s);
        if (std::any_of(ways.begin(), ways.end(),
                        [&](const Hop& hop) { return order[hop.to] < order[s]; }))
            continue;
        const std::vector<bool> reached = below(graph, order, {s});
        std::uint64_t hosts = 0;
        for (SwitchIndex t = 0; t < graph.size(); ++t)
            hosts += reached[t] ? graph.hosts[t] : 0;
        SwitchIndex& known = best[part[s]];
        std::uint64_t& known_hosts = best_hosts[part[s]];
        if (known == kNoIndex || hosts > known_hosts ||
            (hosts == known_hosts && order[s] < order[known])) {
            known = s;
            known_hosts = hosts;
        }
    }
    std::erase(best, kNoIndex);
    return best;
}

/// A group of neighbouring switches without a way up to the root: its first cable to one that has.
struct Group {
    SwitchIndex end = kNoIndex;  ///< Of the group.
    SwitchIndex anchor = kNoIndex;
};

/// Moves every such group, its order kept but `end` first, to right behind its anchor. All other
/// neighbours of the group outside it stay behind it, so nothing else changes.
Order anchored(const SwitchGraph& graph, const Order& order, const std::vector<bool>& climbs) {
    std::vector<std::uint64_t> key(graph.size());
    std::vector<bool> done = climbs;
    for (SwitchIndex s = 0; s < graph.size(); ++s)
        key[s] = std::uint64_t{order[s]} << 33U;
    for (SwitchIndex start = 0; start < graph.size(); ++start) {
        if (done[start]) continue;
        done[start] = true;
        std::vector<SwitchIndex> members{start};
        Group group;
        for (std::size_t head = 0; head < members.size(); ++head) {
            const SwitchIndex at = members[head];
            for (const Hop& hop : graph.hops_of(at)) {
                if (!climbs[hop.to]) {
                    if (!done[hop.to]) members.push_back(hop.to);
                    done[hop.to] = true;
                } else if (group.anchor == kNoIndex || order[hop.to] < order[group.anchor] ||
                           (hop.to == group.anchor && order[at] < order[group.end])) {
                    group = {at, hop.to};
                }
            }
        }
        const std::uint64_t behind = (std::uint64_t{order[group.anchor]} * 2 + 1) << 32U;
        for (const SwitchIndex s : members)
            key[s] = behind + (s == group.end ? 0 : order[s] + 1);
    }
    return order_by_key(key);
}

}  // namespace

SwitchGraph make_switch_graph(const topology::Fabric& fabric,
                              const topology::Adjacency& adjacency) {
    SwitchGraph graph;
    graph.by_node.assign(fabric.nodes.size(), kNoIndex);
    for (topology::NodeIndex i = 0; i < fabric.nodes.size(); ++i) {
        if (!fabric.nodes[i].is_switch()) continue;
        graph.by_node[i] = static_cast<SwitchIndex>(graph.nodes.size());
        graph.nodes.push_back(i);
    }
    graph.hosts.assign(graph.size(), 0);
    graph.first.push_back(0);
    for (SwitchIndex s = 0; s < graph.size(); ++s) {
        const auto ports = adjacency.ports(graph.nodes[s]);
        for (topology::PortNumber port = 1; port < ports.size(); ++port) {
            if (!ports[port].connected()) continue;
            const SwitchIndex to = graph.by_node[ports[port].node];
            if (to == kNoIndex) {
                ++graph.hosts[s];
            } else if (to != s) {  // A cable from a switch to itself leads nowhere.
                graph.hops.push_back({to, port});
            }
        }
        graph.first.push_back(static_cast<std::uint32_t>(graph.hops.size()));
    }
    return graph;
}

Order order_by_tier(const SwitchGraph& graph, const topology::Fabric& fabric) {
    std::vector<std::uint64_t> key(graph.size());
    for (SwitchIndex s = 0; s < graph.size(); ++s) {
        const auto& tier = fabric.nodes[graph.nodes[s]].tier;
        if (!tier) return {};
        key[s] = ~std::uint64_t{*tier};
    }
    const bool all_same =
        std::adjacent_find(key.begin(), key.end(), std::not_equal_to<>()) == key.end();
    return all_same ? Order{} : order_by_key(key);
}

Order order_by_distance(const SwitchGraph& graph) {
    // Every host switch counts while they are few; of many, evenly spread samples tell as much.
    constexpr std::size_t kSampleLimit = 1024;
    std::vector<SwitchIndex> sources;
    for (SwitchIndex s = 0; s < graph.size(); ++s) {
        if (graph.hosts[s] > 0) sources.push_back(s);
    }
    const std::size_t step = sources.size() / kSampleLimit + 1;
    std::vector<std::uint64_t> sum(graph.size(), 0);
    for (std::size_t i = 0; i < sources.size(); i += step) {
        const auto distance = distances(graph, {sources[i]});
        for (SwitchIndex s = 0; s < graph.size(); ++s) {
            if (distance[s] != kNoIndex)
                sum[s] += std::uint64_t{distance[s]} * graph.hosts[sources[i]];
        }
    }
    return order_by_key(sum);
}

Order order_from_roots(const SwitchGraph& graph, std::vector<SwitchIndex> roots,
                       const Order& preferred) {
    const auto distance = distances(graph, std::move(roots));
    std::vector<std::uint64_t> key(graph.size());
    for (SwitchIndex s = 0; s < graph.size(); ++s)
        key[s] = (std::uint64_t{distance[s]} << 32U) | preferred[s];
    return order_by_key(key);
}

Order repaired(const SwitchGraph& graph, const Order& order) {
    const std::vector<SwitchIndex> roots = best_roots(graph, order);
    Order current = order;
    while (true) {  // Ends: each round gives every group's `end` a way up, and takes none away.
        const std::vector<bool> climbs = below(graph, current, roots);
        if (std::find(climbs.begin(), climbs.end(), false) == climbs.end()) return current;
        current = anchored(graph, current, climbs);
    }
}

std::vector<std::uint32_t> connected_parts(const SwitchGraph& graph) {
    std::vector<std::uint32_t> part(graph.size(), kNoIndex);
    for (SwitchIndex start = 0; start < graph.size(); ++start) {
        if (part[start] != kNoIndex) continue;
        std::vector<SwitchIndex> queue{start};
        part[start] = start;
        for (std::size_t head = 0; head < queue.size(); ++head) {
            for (const Hop& hop : graph.hops_of(queue[head])) {
                if (part[hop.to] != kNoIndex) continue;
                part[hop.to] = start;
                queue.push_back(hop.to);
            }
        }
    }
    return part;
}

}  // namespace weir::routing

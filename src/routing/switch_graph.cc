// SPDX-License-Identifier: Apache-2.0
#include "routing/switch_graph.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

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

/// The lowest position among the neighbours of `s`; kNoIndex if it has none.
std::uint32_t first_neighbour(const SwitchGraph& graph, const Order& order, SwitchIndex s) {
    std::uint32_t first = kNoIndex;
    for (const Hop& hop : graph.hops_of(s))
        first = std::min(first, order[hop.to]);
    return first;
}

/// Switches with hosts that `top` reaches by down links alone, itself counted.
std::uint32_t host_switches_below(const SwitchGraph& graph, const Order& order, SwitchIndex top) {
    std::vector<bool> seen(graph.size(), false);
    std::vector<SwitchIndex> queue{top};
    seen[top] = true;
    std::uint32_t count = 0;
    for (std::size_t head = 0; head < queue.size(); ++head) {
        const SwitchIndex at = queue[head];
        count += graph.hosts[at] > 0 ? 1U : 0U;
        for (const Hop& hop : graph.hops_of(at)) {
            if (seen[hop.to] || order[hop.to] < order[at]) continue;
            seen[hop.to] = true;
            queue.push_back(hop.to);
        }
    }
    return count;
}

/// Where an incomplete switch is moved to: after its first neighbour that keeps a way up without
/// it, else after its first neighbour.
std::uint32_t landing(const SwitchGraph& graph, const Order& order, SwitchIndex s) {
    std::uint32_t first = kNoIndex;
    for (const Hop& hop : graph.hops_of(s)) {
        const auto ways = graph.hops_of(hop.to);
        const bool keeps_way_up = std::any_of(ways.begin(), ways.end(), [&](const Hop& way) {
            return way.to != s && order[way.to] < order[hop.to];
        });
        if (keeps_way_up) first = std::min(first, order[hop.to]);
    }
    return first != kNoIndex ? first : first_neighbour(graph, order, s);
}

/// One round of repaired(): nothing if the order is good as it is.
std::optional<Order> move_incomplete(const SwitchGraph& graph,
                                     const std::vector<std::uint32_t>& part, const Order& order) {
    std::vector<std::uint32_t> host_switches(graph.size(), 0);  // By part.
    for (SwitchIndex s = 0; s < graph.size(); ++s)
        host_switches[part[s]] += graph.hosts[s] > 0 ? 1U : 0U;
    std::vector<SwitchIndex> incomplete;
    std::vector<bool> has_root(graph.size(), false);  // By part.
    for (SwitchIndex s = 0; s < graph.size(); ++s) {
        if (first_neighbour(graph, order, s) < order[s]) continue;
        if (host_switches_below(graph, order, s) == host_switches[part[s]]) {
            has_root[part[s]] = true;
        } else {
            incomplete.push_back(s);
        }
    }
    if (incomplete.empty()) return std::nullopt;
    // A part without any complete switch keeps its first.
    std::sort(incomplete.begin(), incomplete.end(),
              [&](SwitchIndex a, SwitchIndex b) { return order[a] < order[b]; });
    std::vector<std::uint64_t> key(graph.size());
    for (SwitchIndex s = 0; s < graph.size(); ++s)
        key[s] = std::uint64_t{order[s]} * 2;
    for (const SwitchIndex s : incomplete) {
        if (has_root[part[s]]) {
            key[s] = std::uint64_t{landing(graph, order, s)} * 2 + 1;
        } else {
            has_root[part[s]] = true;
        }
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
    // Moving one switch down can leave another without a way up, hence several rounds. They need
    // not settle on a graph that is no tree at all; a single root always does.
    constexpr int kRoundLimit = 16;
    const std::vector<std::uint32_t> part = connected_parts(graph);
    Order current = order;
    for (int round = 0; round < kRoundLimit; ++round) {
        std::optional<Order> next = move_incomplete(graph, part, current);
        if (!next) return current;
        current = *std::move(next);
    }
    std::vector<SwitchIndex> root(graph.size(), kNoIndex);  // By part: its first switch.
    for (SwitchIndex s = 0; s < graph.size(); ++s) {
        SwitchIndex& first = root[part[s]];
        if (first == kNoIndex || order[s] < order[first]) first = s;
    }
    std::erase(root, kNoIndex);
    return order_from_roots(graph, std::move(root), order);
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

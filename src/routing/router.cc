// SPDX-License-Identifier: Apache-2.0
#include "routing/router.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "base/check.h"
#include "routing/switch_graph.h"

namespace weir::routing {

using topology::Adjacency;
using topology::Fabric;
using topology::kNoIndex;
using topology::NodeIndex;
using topology::Peer;
using topology::PortNumber;

namespace {

/// One of the equally short next hops of a switch towards the destination at hand.
struct Choice {
    std::uint32_t channel;
    SwitchIndex to;
    std::uint8_t port;
};

/// A LID cabled to a switch, or the switch's own (port 0).
struct Destination {
    std::uint32_t lid;
    PortNumber port;
};

Result<void> assign_lids(const Fabric& fabric, const Adjacency& adjacency, Tables& tables) {
    tables.owners.push_back({});
    tables.lids.resize(fabric.nodes.size());
    for (NodeIndex i = 0; i < fabric.nodes.size(); ++i) {
        const topology::Node& node = fabric.nodes[i];
        const auto give = [&](PortNumber port) {
            const auto lid = static_cast<std::uint32_t>(tables.owners.size());
            tables.owners.push_back({i, port});
            return lid;
        };
        if (node.is_switch()) {
            tables.lids[i].push_back(give(0));
        } else {
            for (PortNumber port = 1; port <= node.port_count; ++port)
                tables.lids[i].push_back(adjacency.peer(i, port).connected() ? give(port) : 0);
        }
        if (tables.owners.size() > kLidMax + 1) {
            return fail(ErrorCode::kNoSpace,
                        fmt::format("fabric \"{}\" has more end ports than the {} unicast LIDs",
                                    fabric.name, kLidMax));
        }
    }
    return {};
}

/// Fills the tables for one order of the switches.
class UpDown {
  public:
    UpDown(const SwitchGraph& graph, const Order& order, Tables& tables)
        : graph_(graph),
          order_(order),
          tables_(tables),
          by_position_(graph.size()),
          part_(connected_parts(graph)),
          load_(graph.hops.size(), 0),
          down_(graph.size()),
          distance_(graph.size()),
          cost_(graph.size()),
          flow_(graph.size()),
          taken_(graph.size()) {
        for (SwitchIndex s = 0; s < graph.size(); ++s)
            by_position_[order[s]] = s;
    }

    /// Routes all LIDs at switch `target`. False if it has hosts and not every switch of its part
    /// can reach it this way.
    bool route_to(SwitchIndex target, const std::vector<Destination>& destinations) {
        measure(target);
        if (!all_reach(target)) return false;
        collect_choices(target);
        for (std::size_t i = 0; i < destinations.size(); ++i)
            route_destination(target, destinations[i], i);
        return true;
    }

  private:
    /// Distances to `target`: by down links alone, and by the way a packet will go.
    void measure(SwitchIndex target) {
        std::fill(down_.begin(), down_.end(), kNoIndex);
        down_[target] = 0;
        queue_.assign(1, target);
        for (std::size_t head = 0; head < queue_.size(); ++head) {
            const SwitchIndex at = queue_[head];
            for (const Hop& hop : graph_.hops_of(at)) {
                if (order_[hop.to] > order_[at] || down_[hop.to] != kNoIndex) continue;
                down_[hop.to] = down_[at] + 1;
                queue_.push_back(hop.to);
            }
        }
        // What is up comes earlier in the order, so its distance is known.
        for (const SwitchIndex s : by_position_) {
            distance_[s] = down_[s];
            if (down_[s] != kNoIndex) continue;
            for (const Hop& hop : graph_.hops_of(s)) {
                if (order_[hop.to] < order_[s] && distance_[hop.to] != kNoIndex)
                    distance_[s] = std::min(distance_[s], distance_[hop.to] + 1);
            }
        }
    }

    [[nodiscard]] bool all_reach(SwitchIndex target) const {
        if (graph_.hosts[target] == 0) return true;
        for (SwitchIndex s = 0; s < graph_.size(); ++s) {
            if (distance_[s] == kNoIndex && part_[s] == part_[target]) return false;
        }
        return true;
    }

    /// The equally short next hops of every switch, and the switches nearest first.
    void collect_choices(SwitchIndex target) {
        nearest_first_.clear();
        for (SwitchIndex s = 0; s < graph_.size(); ++s) {
            if (s != target && distance_[s] != kNoIndex) nearest_first_.push_back(s);
        }
        std::stable_sort(
            nearest_first_.begin(), nearest_first_.end(),
            [this](SwitchIndex a, SwitchIndex b) { return distance_[a] < distance_[b]; });
        choices_.clear();
        first_choice_.assign(1, 0);
        for (const SwitchIndex s : nearest_first_) {
            const bool goes_down = down_[s] != kNoIndex;
            for (std::uint32_t channel = graph_.first[s]; channel < graph_.first[s + 1];
                 ++channel) {
                const Hop& hop = graph_.hops[channel];
                const bool is_down = order_[hop.to] > order_[s];
                const std::uint32_t rest = goes_down ? down_[hop.to] : distance_[hop.to];
                if (is_down != goes_down || rest == kNoIndex || rest + 1 != distance_[s]) continue;
                choices_.push_back({channel, hop.to, static_cast<std::uint8_t>(hop.port)});
            }
            first_choice_.push_back(static_cast<std::uint32_t>(choices_.size()));
        }
    }

    /// Chooses nearest first, since what a way costs includes the rest of the way; then counts the
    /// sources on every channel, farthest first. `turn` varies which of equals is taken.
    void route_destination(SwitchIndex target, const Destination& destination, std::size_t turn) {
        const std::uint32_t lid = destination.lid;
        tables_.lfts[graph_.nodes[target]][lid] = static_cast<std::uint8_t>(destination.port);
        cost_[target] = 0;
        for (std::size_t i = 0; i < nearest_first_.size(); ++i) {
            const std::uint32_t begin = first_choice_[i];
            const std::uint32_t count = first_choice_[i + 1] - begin;
            const auto start = static_cast<std::uint32_t>(turn % count);
            std::uint64_t best_cost = std::numeric_limits<std::uint64_t>::max();
            const Choice* best = nullptr;
            const auto consider = [&](std::uint32_t from, std::uint32_t to) {
                for (const Choice* c = &choices_[begin] + from; c != &choices_[begin] + to; ++c) {
                    const std::uint64_t cost = load_[c->channel] + cost_[c->to];
                    if (cost >= best_cost) continue;
                    best_cost = cost;
                    best = c;
                }
            };
            consider(start, count);
            consider(0, start);
            const SwitchIndex s = nearest_first_[i];
            cost_[s] = best_cost;
            taken_[s] = *best;
            tables_.lfts[graph_.nodes[s]][lid] = best->port;
        }
        if (destination.port != 0) count_flows();
    }

    void count_flows() {
        std::copy(graph_.hosts.begin(), graph_.hosts.end(), flow_.begin());
        for (auto s = nearest_first_.rbegin(); s != nearest_first_.rend(); ++s) {
            load_[taken_[*s].channel] += flow_[*s];
            flow_[taken_[*s].to] += flow_[*s];
        }
    }

    const SwitchGraph& graph_;
    const Order& order_;
    Tables& tables_;
    std::vector<SwitchIndex> by_position_;
    std::vector<std::uint32_t> part_;
    std::vector<std::uint64_t> load_;  // By channel: source-destination pairs routed so far.
    // For the target at hand, by switch:
    std::vector<std::uint32_t> down_;      // Hops by down links alone; kNoIndex if none.
    std::vector<std::uint32_t> distance_;  // Hops by the way packets go; kNoIndex if none.
    std::vector<SwitchIndex> queue_;
    std::vector<SwitchIndex> nearest_first_;
    std::vector<Choice> choices_;  // Of the switches in nearest_first_, one after the other.
    std::vector<std::uint32_t> first_choice_;
    // For the destination at hand, by switch:
    std::vector<std::uint64_t> cost_;
    std::vector<std::uint64_t> flow_;
    std::vector<Choice> taken_;
};

void clear_tables(const SwitchGraph& graph, Tables& tables, std::size_t node_count) {
    tables.lfts.assign(node_count, {});
    for (const NodeIndex node : graph.nodes)
        tables.lfts[node].assign(tables.lid_limit(), kNoRoute);
}

/// The LIDs at each switch: its own and those of the HCA ports cabled to it.
std::vector<std::vector<Destination>> destinations_by_switch(const SwitchGraph& graph,
                                                             const Adjacency& adjacency,
                                                             const Tables& tables) {
    std::vector<std::vector<Destination>> result(graph.size());
    for (std::uint32_t lid = 1; lid < tables.lid_limit(); ++lid) {
        const Tables::Owner& owner = tables.owners[lid];
        const SwitchIndex own = graph.by_node[owner.node];
        if (own != kNoIndex) {
            result[own].push_back({lid, 0});
            continue;
        }
        const Peer& peer = adjacency.peer(owner.node, owner.port);
        const SwitchIndex at = graph.by_node[peer.node];
        if (at != kNoIndex) result[at].push_back({lid, peer.port});
    }
    return result;
}

/// False if some switch cannot reach some host within this order's rules.
bool route_in_order(const SwitchGraph& graph, const Order& order,
                    const std::vector<std::vector<Destination>>& destinations, Tables& tables) {
    UpDown engine(graph, order, tables);
    for (SwitchIndex target = 0; target < graph.size(); ++target) {
        if (!engine.route_to(target, destinations[target])) return false;
    }
    return true;
}

}  // namespace

Result<Tables> route(const Fabric& fabric, const RouteOptions& options) {
    const Adjacency adjacency(fabric);
    const SwitchGraph graph = make_switch_graph(fabric, adjacency);
    std::vector<SwitchIndex> roots;
    for (const NodeIndex root : options.roots) {
        if (root >= fabric.nodes.size() || !fabric.nodes[root].is_switch())
            return fail(ErrorCode::kInvalid, fmt::format("root {} is not a switch", root));
        roots.push_back(graph.by_node[root]);
    }
    Tables tables;
    WEIR_TRY_VOID(assign_lids(fabric, adjacency, tables));
    const auto destinations = destinations_by_switch(graph, adjacency, tables);
    const auto succeeds = [&](const Order& order) {
        clear_tables(graph, tables, fabric.nodes.size());
        return route_in_order(graph, order, destinations, tables);
    };
    Order order = roots.empty() ? order_by_tier(graph, fabric) : Order{};
    if (order.empty()) order = order_by_distance(graph);
    if (!roots.empty()) order = order_from_roots(graph, std::move(roots), order);
    if (succeeds(order)) return tables;
    WEIR_CHECK(succeeds(repaired(graph, order)));
    return tables;
}

}  // namespace weir::routing

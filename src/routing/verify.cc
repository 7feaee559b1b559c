// SPDX-License-Identifier: Apache-2.0
#include "routing/verify.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "routing/switch_graph.h"

namespace weir::routing {

using topology::Adjacency;
using topology::Fabric;
using topology::kNoIndex;
using topology::NodeIndex;
using topology::Peer;
using topology::PortNumber;

namespace {

/// By out-port of the next switch: whether a channel can wait for that one.
using PortSet = std::array<std::uint64_t, 4>;

class Verifier {
  public:
    Verifier(const Fabric& fabric, const Tables& tables, const VerifyOptions& options)
        : fabric_(fabric),
          tables_(tables),
          options_(options),
          adjacency_(fabric),
          graph_(make_switch_graph(fabric, adjacency_)) {}

    Result<VerifyReport> run() {
        WEIR_TRY_VOID(check_sizes());
        prepare();
        for (std::uint32_t lid = 1; lid < tables_.lid_limit(); ++lid) {
            WEIR_TRY_VOID(check_destination(lid));
        }
        WEIR_TRY_VOID(check_dependencies());
        report_balance();
        for (const bool deaf : deaf_)
            report_.deaf_switches += deaf ? 1U : 0U;
        return std::move(report_);
    }

  private:
    static constexpr std::uint32_t kUnknown = 0xffffffff;
    static constexpr std::uint32_t kNever = 0xfffffffe;   // The packet is dropped.
    static constexpr std::uint32_t kOnPath = 0xfffffffd;  // Being followed right now.

    [[nodiscard]] tl::unexpected<Error> wrong(std::string what, std::string hint = {}) const {
        return fail(ErrorCode::kInvalid, fmt::format("tables of \"{}\": {}", fabric_.name, what),
                    std::move(hint));
    }
    [[nodiscard]] const std::string& name_of(SwitchIndex s) const {
        return fabric_.nodes[graph_.nodes[s]].name;
    }
    [[nodiscard]] std::string name_of_lid(std::uint32_t lid) const {
        const Tables::Owner& owner = tables_.owners[lid];
        return owner.port == 0 ? fabric_.nodes[owner.node].name
                               : fabric_.port_name({owner.node, owner.port});
    }

    Result<void> check_sizes() const {
        const std::size_t nodes = fabric_.nodes.size();
        if (tables_.lfts.size() != nodes || tables_.lids.size() != nodes)
            return wrong("made for another number of nodes");
        for (NodeIndex i = 0; i < nodes; ++i) {
            const topology::Node& node = fabric_.nodes[i];
            const std::size_t expected = node.is_switch() ? tables_.lid_limit() : 0;
            if (tables_.lfts[i].size() != expected) {
                return wrong(fmt::format("\"{}\" has a table of {} entries instead of {}",
                                         node.name, tables_.lfts[i].size(), expected));
            }
            if (tables_.lids[i].size() != node.end_ports.size())
                return wrong(fmt::format("\"{}\" lacks LIDs for its end ports", node.name));
        }
        for (std::uint32_t lid = 1; lid < tables_.lid_limit(); ++lid) {
            const Tables::Owner& owner = tables_.owners[lid];
            const bool known = owner.node < nodes &&
                               fabric_.nodes[owner.node].is_switch() == (owner.port == 0) &&
                               owner.port <= fabric_.nodes[owner.node].port_count;
            if (!known || tables_.lid(owner.node, owner.port) != lid)
                return wrong(fmt::format("LID {} has no owner", lid));
        }
        return {};
    }

    void prepare() {
        const std::size_t n = graph_.size();
        first_port_.push_back(0);
        for (SwitchIndex s = 0; s < n; ++s) {
            lfts_.push_back(tables_.lfts[graph_.nodes[s]].data());
            peers_.push_back(adjacency_.ports(graph_.nodes[s]).data());
            port_counts_.push_back(fabric_.nodes[graph_.nodes[s]].port_count);
            first_port_.push_back(first_port_[s] + port_counts_[s] + 1);
        }
        waits_for_.assign(first_port_[n], PortSet{});
        load_.assign(first_port_[n], 0);
        hops_.resize(n);
        flow_.resize(n);
        next_.resize(n);
        deaf_.assign(n, false);
    }

    [[nodiscard]] bool is_host(std::uint32_t lid) const { return tables_.owners[lid].port != 0; }

    Result<void> check_destination(std::uint32_t lid) {
        std::fill(hops_.begin(), hops_.end(), kUnknown);
        finished_.clear();
        for (SwitchIndex s = 0; s < graph_.size(); ++s) {
            if (hops_[s] != kUnknown) continue;
            WEIR_TRY_VOID(follow(s, lid));
        }
        collect_dependencies(lid);
        return is_host(lid) ? check_sources(lid) : Result<void>{};
    }

    /// Follows the tables from `start` until something known, then settles all on the way.
    Result<void> follow(SwitchIndex start, std::uint32_t lid) {
        path_.clear();
        std::uint32_t end = kNever;
        SwitchIndex s = start;
        while (true) {
            if (hops_[s] == kOnPath) return loop(s, lid);
            if (hops_[s] != kUnknown) {
                end = hops_[s];
                break;
            }
            hops_[s] = kOnPath;
            path_.push_back(s);
            WEIR_TRY(const Step step, step_from(s, lid));
            if (step.arrived || step.dropped) {
                // Counted in switches passed: the last one on the path is the first.
                end = step.arrived ? 0 : kNever;
                break;
            }
            next_[s] = step.to;
            s = step.to;
        }
        for (auto at = path_.rbegin(); at != path_.rend(); ++at) {
            if (end != kNever) {
                ++end;
                finished_.push_back(*at);
            }
            hops_[*at] = end;
        }
        return {};
    }

    struct Step {
        bool arrived = false;
        bool dropped = false;
        SwitchIndex to = kNoIndex;
    };

    Result<Step> step_from(SwitchIndex s, std::uint32_t lid) const {
        const PortNumber port = lfts_[s][lid];
        const Tables::Owner& owner = tables_.owners[lid];
        if (port == kNoRoute) return Step{.dropped = true};
        if (port == 0) {
            if (owner.node == graph_.nodes[s]) return Step{.arrived = true};
            return wrong(
                fmt::format("{} takes LID {} ({}) for its own", name_of(s), lid, name_of_lid(lid)));
        }
        if (port > port_counts_[s] || !peers_[s][port].connected()) {
            return wrong(fmt::format("{} sends LID {} ({}) out of port {}, which has no cable",
                                     name_of(s), lid, name_of_lid(lid), port));
        }
        const Peer& peer = peers_[s][port];
        const SwitchIndex to = graph_.by_node[peer.node];
        if (to != kNoIndex) return Step{.to = to};
        if (peer.node == owner.node && peer.port == owner.port) return Step{.arrived = true};
        return wrong(fmt::format("{} sends LID {} ({}) to {}", name_of(s), lid, name_of_lid(lid),
                                 fabric_.port_name({peer.node, peer.port})));
    }

    [[nodiscard]] tl::unexpected<Error> loop(SwitchIndex s, std::uint32_t lid) const {
        std::string text;
        const auto start = std::find(path_.begin(), path_.end(), s);
        for (auto at = start; at != path_.end(); ++at)
            text += name_of(*at) + " -> ";
        return wrong(
            fmt::format("LID {} ({}) loops: {}{}", lid, name_of_lid(lid), text, name_of(s)));
    }

    void collect_dependencies(std::uint32_t lid) {
        for (const SwitchIndex s : finished_) {
            const PortNumber port = lfts_[s][lid];
            if (hops_[s] < 2) continue;
            const PortNumber then = lfts_[next_[s]][lid];
            // A last hop, to an HCA or the switch itself, always drains.
            if (hops_[next_[s]] < 2) continue;
            waits_for_[first_port_[s] + port][then / 64] |= std::uint64_t{1} << (then % 64);
        }
    }

    /// That all HCAs reach this one, within bounds; adds their pairs to the channels' loads.
    Result<void> check_sources(std::uint32_t lid) {
        const Tables::Owner& owner = tables_.owners[lid];
        const Peer& cable = adjacency_.peer(owner.node, owner.port);
        const bool on_switch = cable.connected() && graph_.by_node[cable.node] != kNoIndex;
        for (SwitchIndex s = 0; s < graph_.size(); ++s) {
            flow_[s] = graph_.hosts[s];
            if (on_switch && graph_.nodes[s] == cable.node) --flow_[s];  // Not to itself.
            if (hops_[s] == kNever) deaf_[s] = true;
            if (flow_[s] == 0) continue;
            if (hops_[s] == kNever) {
                return wrong(fmt::format("no route from the hosts of {} to {} (LID {})", name_of(s),
                                         name_of_lid(lid), lid),
                             "check that cables join them");
            }
            if (hops_[s] > options_.switches_max) {
                return wrong(fmt::format(
                    "from the hosts of {} to {} (LID {}) are {} switches, more "
                    "than {}",
                    name_of(s), name_of_lid(lid), lid, hops_[s], options_.switches_max));
            }
            report_.pairs += flow_[s];
            report_.switches_sum += flow_[s] * hops_[s];
            report_.switches_max = std::max(report_.switches_max, hops_[s]);
        }
        add_flows(lid);
        return {};
    }

    void add_flows(std::uint32_t lid) {
        // finished_ has every switch after the one it sends to.
        for (auto s = finished_.rbegin(); s != finished_.rend(); ++s) {
            if (hops_[*s] < 2) continue;
            load_[first_port_[*s] + lfts_[*s][lid]] += flow_[*s];
            flow_[next_[*s]] += flow_[*s];
        }
    }

    // A channel is numbered first_port_[switch] + out-port.

    [[nodiscard]] std::string channel_name(std::size_t channel) const {
        const auto after = std::upper_bound(first_port_.begin(), first_port_.end(), channel);
        const auto s = static_cast<SwitchIndex>(after - first_port_.begin() - 1);
        return fmt::format("{}:{}", name_of(s), channel - first_port_[s]);
    }

    /// Depth first over channels, without recursion: a path may be as long as there are channels.
    Result<void> check_dependencies() {
        std::vector<std::uint8_t> state(waits_for_.size(), 0);  // 1 on the path, 2 done.
        std::vector<std::size_t> base(waits_for_.size(), 0);    // First channel of the next switch.
        for (SwitchIndex s = 0; s < graph_.size(); ++s) {
            for (const Hop& hop : graph_.hops_of(s))
                base[first_port_[s] + hop.port] = first_port_[hop.to];
        }
        std::vector<std::pair<std::size_t, PortNumber>> path;  // Channel, next port to look at.
        for (std::size_t start = 0; start < state.size(); ++start) {
            if (state[start] != 0) continue;
            state[start] = 1;
            path.assign(1, {start, 0});
            while (!path.empty()) {
                auto& [channel, port] = path.back();
                while (port < 256 && ((waits_for_[channel][port / 64] >> (port % 64)) & 1U) == 0)
                    ++port;
                if (port == 256) {
                    state[channel] = 2;
                    path.pop_back();
                    continue;
                }
                const std::size_t next = base[channel] + port++;
                ++report_.dependencies;
                if (state[next] == 1) return cycle(path, next);
                if (state[next] == 2) continue;
                state[next] = 1;
                path.emplace_back(next, 0);
            }
        }
        return {};
    }

    [[nodiscard]] tl::unexpected<Error> cycle(
        const std::vector<std::pair<std::size_t, PortNumber>>& path, std::size_t back) const {
        constexpr std::size_t kShownLimit = 16;
        auto at = std::find_if(path.begin(), path.end(),
                               [&](const auto& entry) { return entry.first == back; });
        std::string text;
        for (std::size_t shown_count = 0; at != path.end(); ++at, ++shown_count) {
            if (shown_count == kShownLimit) {
                text += fmt::format("({} more) -> ", path.end() - at);
                break;
            }
            text += channel_name(at->first) + " -> ";
        }
        return wrong(fmt::format("channels can wait for each other in a circle: {}{}", text,
                                 channel_name(back)),
                     "full buffers around this circle would never drain");
    }

    void report_balance() {
        report_.load_min = graph_.hops.empty() ? 0 : ~std::uint64_t{0};
        for (SwitchIndex s = 0; s < graph_.size(); ++s) {
            for (const Hop& hop : graph_.hops_of(s)) {
                const std::uint64_t load = load_[first_port_[s] + hop.port];
                ++report_.channels;
                report_.load_sum += load;
                report_.load_min = std::min(report_.load_min, load);
                if (load > report_.load_max || report_.busiest.empty()) {
                    report_.load_max = load;
                    report_.busiest = fmt::format("{}:{}", name_of(s), hop.port);
                }
            }
        }
    }

    const Fabric& fabric_;
    const Tables& tables_;
    const VerifyOptions& options_;
    Adjacency adjacency_;
    SwitchGraph graph_;
    VerifyReport report_;
    // By switch.
    std::vector<const std::uint8_t*> lfts_;
    std::vector<const Peer*> peers_;
    std::vector<PortNumber> port_counts_;
    std::vector<std::size_t> first_port_;
    std::vector<bool> deaf_;
    // By channel.
    std::vector<PortSet> waits_for_;
    std::vector<std::uint64_t> load_;
    // For the LID at hand.
    std::vector<std::uint32_t> hops_;  // Switches on the way, this one counted; or a mark.
    std::vector<SwitchIndex> next_;
    std::vector<std::uint64_t> flow_;
    std::vector<SwitchIndex> path_;
    std::vector<SwitchIndex> finished_;  // Those that reach it, each after the one it sends to.
};

}  // namespace

Result<VerifyReport> verify(const Fabric& fabric, const Tables& tables,
                            const VerifyOptions& options) {
    return Verifier(fabric, tables, options).run();
}

}  // namespace weir::routing

// SPDX-License-Identifier: Apache-2.0
#include "lab/arena_view.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <unordered_set>

#include "topology/nearest_word.h"
#include "topology/quantity.h"

namespace weir::lab {
namespace {

using arena::Arena;

bool is_hca(Arena arena, std::uint32_t port) {
    return arena.node(arena.port(port).node).kind == arena::NodeKind::kHca;
}

LinkView ordered(Arena arena, std::uint32_t port) {
    const std::uint32_t peer = arena.port(port).peer;
    const bool swap =
        is_hca(arena, port) == is_hca(arena, peer) ? peer < port : is_hca(arena, peer);
    return swap ? LinkView{peer, port} : LinkView{port, peer};
}

std::string nearest_hint(Arena arena, std::string_view name) {
    std::vector<std::string_view> known;
    for (std::uint32_t n = 0; n < arena.header().node_count; ++n) {
        known.emplace_back(arena.node(n).name);
    }
    const auto nearest = topology::nearest_word(name, known);
    return nearest.empty() ? std::string() : fmt::format("did you mean \"{}\"?", nearest);
}

std::optional<std::uint32_t> node_index(Arena arena, std::string_view name) {
    for (std::uint32_t n = 0; n < arena.header().node_count; ++n) {
        if (name == arena.node(n).name) {
            return n;
        }
    }
    return std::nullopt;
}

struct PortWords {
    std::string_view node;
    std::uint32_t number;
};

/// "s0:1" taken apart; nothing if it has another form.
std::optional<PortWords> split_port(std::string_view name) {
    const auto colon = name.rfind(':');
    std::uint32_t number = 0;
    const char* end = name.data() + name.size();
    if (colon == std::string_view::npos || colon + 1 == name.size()) {
        return std::nullopt;
    }
    const auto parsed = std::from_chars(name.data() + colon + 1, end, number);
    if (parsed.ec != std::errc() || parsed.ptr != end) {
        return std::nullopt;
    }
    return PortWords{name.substr(0, colon), number};
}

/// As find_port, without the reason: cheap, for trying.
std::optional<std::uint32_t> try_port(Arena arena, std::string_view name) {
    const auto words = split_port(name);
    const auto node = words ? node_index(arena, words->node) : std::nullopt;
    if (!node || words->number == 0 || words->number > arena.node(*node).port_count) {
        return std::nullopt;
    }
    return arena.node(*node).first_port + words->number - 1;
}

}  // namespace

std::string port_name(Arena arena, std::uint32_t port) {
    const auto& entry = arena.port(port);
    return fmt::format("{}:{}", arena.node(entry.node).name, entry.number);
}

std::string link_name(Arena arena, LinkView link) {
    return port_name(arena, link.a) + "-" + port_name(arena, link.b);
}

std::vector<LinkView> list_links(Arena arena) {
    std::vector<LinkView> links;
    for (std::uint32_t p = 0; p < arena.header().port_count; ++p) {
        if (arena.port(p).peer != arena::kNone && ordered(arena, p).a == p) {
            links.push_back(ordered(arena, p));
        }
    }
    return links;
}

Result<std::uint32_t> find_node(Arena arena, std::string_view name) {
    if (const auto node = node_index(arena, name)) {
        return *node;
    }
    return fail(ErrorCode::kNotFound, fmt::format("there is no node \"{}\"", name),
                nearest_hint(arena, name));
}

Result<std::uint32_t> find_port(Arena arena, std::string_view name) {
    const auto words = split_port(name);
    if (!words) {
        return fail(ErrorCode::kInvalid, fmt::format("\"{}\" does not name a port", name),
                    "ports are written NODE:NUMBER, e.g. s0:1; see weir link list");
    }
    WEIR_TRY(const std::uint32_t node, find_node(arena, words->node));
    if (const auto port = try_port(arena, name)) {
        return *port;
    }
    return fail(ErrorCode::kNotFound,
                fmt::format("there is no port {} at {}, which has {}", words->number, words->node,
                            arena.node(node).port_count));
}

Result<LinkView> find_link(Arena arena, std::string_view name) {
    // Node names may hold a '-', so each one is tried as the middle.
    for (auto dash = name.find('-'); dash != std::string_view::npos;
         dash = name.find('-', dash + 1)) {
        const auto a = try_port(arena, name.substr(0, dash));
        const auto b = a ? try_port(arena, name.substr(dash + 1)) : std::nullopt;
        if (b) {
            if (arena.port(*a).peer != *b) {
                return fail(ErrorCode::kNotFound, fmt::format("there is no link {}", name),
                            "see weir link list -o wide");
            }
            return ordered(arena, *a);
        }
    }
    WEIR_TRY(const std::uint32_t port, find_port(arena, name));
    if (arena.port(port).peer == arena::kNone) {
        return fail(ErrorCode::kNotFound, fmt::format("nothing is plugged into {}", name));
    }
    return ordered(arena, port);
}

std::vector<std::string> list_hosts(Arena arena) {
    std::vector<std::string> hosts;
    std::unordered_set<std::string_view> known;
    for (std::uint32_t n = 0; n < arena.header().node_count; ++n) {
        const auto& node = arena.node(n);
        if (node.kind == arena::NodeKind::kHca && known.insert(node.host).second) {
            hosts.emplace_back(node.host);
        }
    }
    return hosts;
}

LaneShareView share_of(const arena::ArbitrationTables& tables, std::uint32_t vl) {
    for (std::uint32_t i = 0; i < tables.high_count; ++i) {
        if (tables.high[i].vl == vl) return {tables.high[i].weight, true};
    }
    for (std::uint32_t i = 0; i < tables.low_count; ++i) {
        if (tables.low[i].vl == vl) return {tables.low[i].weight, false};
    }
    return {};
}

std::string rate_text(std::uint64_t bits_per_second) {
    return bits_per_second == 0
               ? "unlimited"
               : topology::format_rate({static_cast<std::int64_t>(bits_per_second)});
}

PortTraffic traffic_into(Arena arena, std::uint32_t port) {
    PortTraffic sum;
    const auto peer = arena.port(port).peer;
    for (std::uint32_t vl = 0; vl < arena.header().lane_count; ++vl) {
        const auto& lane = arena.lane(port, vl);
        sum.packets += lane.received_packets();
        sum.bytes += lane.received_bytes.load(std::memory_order_relaxed);
        sum.stalls += lane.stalls.load(std::memory_order_relaxed);
        if (peer != arena::kNone) {
            sum.waits += arena.arbiter(peer).waits[vl].load(std::memory_order_relaxed);
        }
        sum.discards += lane.discards.load(std::memory_order_relaxed);
        sum.occupancy += lane.occupancy();
    }
    return sum;
}

std::vector<ProcessView> list_processes(Arena arena) {
    std::vector<ProcessView> processes;
    for (std::uint32_t i = 0; i < arena::kProcessCount; ++i) {
        const auto& entry = arena.process(i);
        const auto identity = entry.identity.load(std::memory_order_acquire);
        if (identity != 0) {
            processes.push_back(
                {identity, entry.pid, entry.node, entry.dead.load(std::memory_order_relaxed) != 0});
        }
    }
    return processes;
}

}  // namespace weir::lab

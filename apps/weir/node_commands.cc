// SPDX-License-Identifier: Apache-2.0
// weir host, weir switch, weir lane: what a fabric is made of, and what is in its buffers.
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <memory>

#include "lab/arena_view.h"
#include "session.h"
#include "table.h"
#include "topology/address.h"

namespace weir::cli {
namespace {

using Show = Column::Show;

std::string guid_text(std::uint64_t guid) {
    return fmt::format("{:#018x}", guid);
}

std::uint64_t count_up(arena::Arena arena, const arena::NodeEntry& node) {
    std::uint64_t up = 0;
    for (std::uint32_t p = 0; p < node.port_count; ++p) {
        up += arena.port(node.first_port + p).up.load(std::memory_order_relaxed);
    }
    return up;
}

/// Of all ports, with commas between.
std::string ipv4_of(arena::Arena arena, const arena::NodeEntry& node) {
    std::string all;
    for (std::uint32_t p = 0; p < node.port_count; ++p) {
        const auto& port = arena.port(node.first_port + p);
        topology::Ipv4 address{};
        std::copy_n(port.ipv4, address.size(), address.begin());
        all += (all.empty() ? "" : ",") + topology::to_text(address);
    }
    return all;
}

std::string ipv6_of(arena::Arena arena, const arena::NodeEntry& node) {
    std::string all;
    for (std::uint32_t p = 0; p < node.port_count; ++p) {
        const auto& port = arena.port(node.first_port + p);
        topology::Ipv6 address{};
        std::copy_n(port.ipv6, address.size(), address.begin());
        all += (all.empty() ? "" : ",") + topology::to_text(address);
    }
    return all;
}

int list_hosts(arena::Arena arena, const std::string& format) {
    std::map<std::uint32_t, std::uint64_t> programs;
    for (const auto& process : lab::list_processes(arena)) {
        ++programs[process.node];
    }
    Table table;
    table.schema = "weir.host.list/v1";
    table.items = "hcas";
    table.columns = {{"host", "HOST"},         {"hca", "HCA"},
                     {"lid", "LID"},           {"guid", "GUID", Show::kWide},
                     {"ports", "PORTS"},       {"ports_up", "UP"},
                     {"programs", "PROGRAMS"}, {"ipv4", "IPV4"},
                     {"ipv6", "IPV6"}};
    for (std::uint32_t n = 0; n < arena.header().node_count; ++n) {
        const auto& node = arena.node(n);
        if (node.kind != arena::NodeKind::kHca) continue;
        table.rows.push_back(
            {std::string(node.host), std::string(node.name), std::uint64_t{node.lid},
             guid_text(node.guid), std::uint64_t{node.port_count}, count_up(arena, node),
             programs.contains(n) ? programs[n] : 0, ipv4_of(arena, node), ipv6_of(arena, node)});
    }
    print_table(table, format);
    return kOk;
}

int list_switches(arena::Arena arena, const std::string& format) {
    Table table;
    table.schema = "weir.switch.list/v1";
    table.items = "switches";
    table.columns = {{"name", "SWITCH"},
                     {"lid", "LID"},
                     {"guid", "GUID", Show::kWide},
                     {"ports", "PORTS"},
                     {"ports_up", "UP"},
                     {"packets", "PACKETS"},
                     {"bytes", "BYTES"},
                     {"queued_packets", "QUEUED"},
                     {"stalls", "STALLS"},
                     {"waits", "WAITS"},
                     {"discards", "DISCARDS"}};
    for (std::uint32_t n = 0; n < arena.header().node_count; ++n) {
        const auto& node = arena.node(n);
        if (node.kind != arena::NodeKind::kSwitch) continue;
        lab::PortTraffic sum;
        for (std::uint32_t p = 0; p < node.port_count; ++p) {
            const auto traffic = lab::traffic_into(arena, node.first_port + p);
            sum.packets += traffic.packets;
            sum.bytes += traffic.bytes;
            sum.stalls += traffic.stalls;
            sum.waits += traffic.waits;
            sum.discards += traffic.discards;
            sum.occupancy += traffic.occupancy;
        }
        table.rows.push_back({std::string(node.name), std::uint64_t{node.lid}, guid_text(node.guid),
                              std::uint64_t{node.port_count}, count_up(arena, node), sum.packets,
                              sum.bytes, std::uint64_t{sum.occupancy}, sum.stalls, sum.waits,
                              sum.discards});
    }
    print_table(table, format);
    return kOk;
}

std::uint64_t capacity_bytes(const credit::LaneBuffer& lane) {
    return std::uint64_t{lane.capacity_blocks} * credit::kBlockBytes;
}

std::uint64_t queued_bytes(const credit::LaneBuffer& lane) {
    const auto tail = credit::Tail::decode(lane.tail.load(std::memory_order_acquire));
    const auto head = credit::Head::decode(lane.head.load(std::memory_order_acquire));
    return std::uint64_t{(tail.blocks - head.blocks) & credit::kBlocksMask} * credit::kBlockBytes;
}

std::vector<Cell> lane_row(arena::Arena arena, std::uint32_t port, const char* side,
                           std::uint32_t vl, const credit::LaneBuffer& lane, std::uint64_t waits) {
    const auto share = lab::share_of(arena.arbiter(port).tables, vl);
    return {lab::port_name(arena, port),
            std::string(side),
            std::uint64_t{vl},
            std::uint64_t{share.weight},
            std::string(share.high ? "high" : "low"),
            std::uint64_t{lane.occupancy()},
            queued_bytes(lane),
            capacity_bytes(lane),
            lane.received_packets(),
            lane.received_bytes.load(std::memory_order_relaxed),
            lane.stalls.load(std::memory_order_relaxed),
            waits,
            lane.discards.load(std::memory_order_relaxed)};
}

int list_lanes(arena::Arena arena, const std::string& format) {
    Table table;
    table.schema = "weir.lane.list/v1";
    table.items = "lanes";
    table.columns = {{"port", "PORT"},
                     {"side", "SIDE"},
                     {"vl", "VL"},
                     {"weight", "WEIGHT"},
                     {"priority", "PRIORITY"},
                     {"queued_packets", "QUEUED"},
                     {"queued_bytes", "QUEUED_BYTES"},
                     {"capacity_bytes", "CAPACITY_BYTES"},
                     {"packets", "PACKETS"},
                     {"bytes", "BYTES"},
                     {"stalls", "STALLS"},
                     {"waits", "WAITS"},
                     {"discards", "DISCARDS"}};
    const auto& header = arena.header();
    const bool rated = header.rated.load(std::memory_order_relaxed) != 0;
    for (std::uint32_t p = 0; p < header.port_count; ++p) {
        const auto& port = arena.port(p);
        if (port.peer == arena::kNone) continue;
        const auto& arbiter = arena.arbiter(port.peer);
        for (std::uint32_t vl = 0; vl < header.lane_count; ++vl) {
            const auto waits = arbiter.waits[vl].load(std::memory_order_relaxed);
            table.rows.push_back(lane_row(arena, p, "in", vl, arena.lane(p, vl), waits));
        }
        for (std::uint32_t vl = 0; rated && port.egress != arena::kNone && vl < header.lane_count;
             ++vl) {
            table.rows.push_back(lane_row(arena, p, "out", vl, arena.egress(port.egress, vl), 0));
        }
    }
    print_table(table, format);
    return kOk;
}

using List = int (*)(arena::Arena, const std::string&);

void add_noun(CLI::App& app, Session& session, const char* noun, const char* noun_help,
              const char* list_help, List list) {
    auto* group = app.add_subcommand(noun, noun_help);
    group->require_subcommand(1);
    auto name = std::make_shared<std::string>();
    auto format = std::make_shared<std::string>("table");
    auto* command = add_command(*group, "list", list_help, session, [name, format, list] {
        return with_fabric(
            *name, [&](runtime::AttachClient& client) { return list(client.arena(), *format); });
    });
    add_name_option(*command, *name);
    add_format_option(*command, *format, true);
}

}  // namespace

void add_node_commands(CLI::App& app, Session& session) {
    add_noun(app, session, "host", "The hosts of a fabric", "All hosts and their HCAs", list_hosts);
    add_noun(app, session, "switch", "The switches of a fabric",
             "All switches and what they have carried", list_switches);
    add_noun(app, session, "lane", "The buffers of a fabric",
             "The buffers of each cabled port and virtual lane, and its share of a rated link",
             list_lanes);
}

}  // namespace weir::cli

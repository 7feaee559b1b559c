// SPDX-License-Identifier: Apache-2.0
#include "lab/arena_builder.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "switching/arbiter.h"
#include "topology/address.h"

namespace weir::lab {
namespace {

static_assert(topology::kLanesMax == arena::kLanesMax);
static_assert(topology::kHighLimitNone == arena::kHighLimitNone);
static_assert(routing::kNoRoute == arena::kLftNoRoute);

constexpr std::uint64_t kPageBytes = 4096;
/// Room for a packet's header beside a segment's payload, generously.
constexpr std::uint32_t kHeaderBytesMax = 256;
/// Sizes are told apart modulo 2^24 blocks, so a buffer holds less than half of that.
constexpr std::uint32_t kCapacityBlocksMax = 1U << 22U;
constexpr std::uint32_t kLinkLayerInfiniband = 1;
constexpr std::uint32_t kLinkLayerEthernet = 2;

class Layout {
  public:
    std::uint64_t place(std::uint64_t count, std::uint64_t size) {
        const std::uint64_t where = end_;
        end_ += (count * size + kPageBytes - 1) / kPageBytes * kPageBytes;
        return where;
    }
    [[nodiscard]] std::uint64_t end() const { return end_; }

  private:
    std::uint64_t end_ = kPageBytes;  // The header has the first page.
};
static_assert(sizeof(arena::ArenaHeader) <= kPageBytes);

void copy_name(char (&to)[arena::kNameBytes], const std::string& from) {
    std::memcpy(to, from.c_str(), from.size() + 1);
}

Result<void> check_names(const topology::Fabric& fabric) {
    for (const auto& node : fabric.nodes) {
        for (const auto* name : {&node.name, &node.host}) {
            if (name->size() >= arena::kNameBytes) {
                return fail(ErrorCode::kInvalid,
                            fmt::format("name \"{}\" is too long: at most {} characters", *name,
                                        arena::kNameBytes - 1));
            }
        }
    }
    return {};
}

void fill_node(arena::Arena arena, const topology::Fabric& fabric, const routing::Tables& tables,
               std::uint32_t index, std::uint32_t first_port) {
    const auto& from = fabric.nodes[index];
    const auto& lids = tables.lids[index];
    auto& to = arena.node(index);
    copy_name(to.name, from.name);
    copy_name(to.host, from.host);
    to.kind = from.is_switch() ? arena::NodeKind::kSwitch : arena::NodeKind::kHca;
    to.first_port = first_port;
    to.port_count = from.port_count;
    to.lid = lids.empty() ? 0 : lids.front();
    to.guid = from.guid;
    for (std::uint32_t p = 0; p < from.port_count; ++p) {
        auto& port = arena.port(first_port + p);
        port.node = index;
        port.number = p + 1;
        port.peer = arena::kNone;
        port.lid = from.is_switch() ? to.lid : lids[p];
        port.guid = from.is_switch() ? from.guid : from.end_ports[p].guid;
        if (!from.is_switch()) {
            std::copy_n(from.end_ports[p].ipv4.begin(), sizeof port.ipv4, port.ipv4);
            std::copy_n(from.end_ports[p].ipv6.begin(), sizeof port.ipv6, port.ipv6);
        }
    }
    // A LID leads to an end port; a switch's is its port 0, which stands for all of its ports here.
    for (std::uint32_t p = 0; p < lids.size(); ++p) {
        if (lids[p] != 0) {
            arena.lids()[lids[p]] = first_port + p;
        }
    }
}

void fill_nodes(arena::Arena arena, const topology::Fabric& fabric, const routing::Tables& tables) {
    const auto& header = arena.header();
    std::fill_n(arena.lids(), header.lid_count, arena::kNone);
    std::uint32_t port = 0;
    std::uint64_t lft_at = header.lfts_at;
    for (std::uint32_t n = 0; n < header.node_count; ++n) {
        fill_node(arena, fabric, tables, n, port);
        port += fabric.nodes[n].port_count;
        if (fabric.nodes[n].is_switch()) {
            auto& node = arena.node(n);
            node.lft_at = lft_at;
            lft_at += header.lid_count;
            std::copy_n(tables.lfts[n].begin(), header.lid_count, arena.lft(node));
        }
    }
}

arena::ArbitrationTables tables_of(const topology::Options& options) {
    arena::ArbitrationTables tables{};
    tables.high_limit = static_cast<std::uint8_t>(options.arbitration.high_limit);
    for (std::uint32_t vl = 0; vl < options.data_lanes; ++vl) {
        const auto& lane = options.arbitration.lanes[vl];
        const arena::ArbitrationLine line{static_cast<std::uint8_t>(vl),
                                          static_cast<std::uint8_t>(lane.weight)};
        if (lane.high) {
            tables.high[tables.high_count++] = line;
        } else {
            tables.low[tables.low_count++] = line;
        }
    }
    return tables;
}

void fill_arbiters(arena::Arena arena, const topology::Options& options) {
    const auto tables = tables_of(options);
    for (std::uint32_t p = 0; p < arena.header().port_count; ++p) {
        auto& arbiter = arena.arbiter(p);
        arbiter.tables = tables;
        arbiter.turns.store(switching::first_turns(tables).encode(), std::memory_order_relaxed);
        if (!options.rates_enforced || arena.port(p).peer == arena::kNone) continue;
        arbiter.rate_bits_per_second.store(arena.port(p).speed_bits_per_second,
                                           std::memory_order_relaxed);
    }
    arena.header().rated.store(options.rates_enforced ? 1 : 0, std::memory_order_relaxed);
}

/// Every HCA port has a number among the egress ports, and lanes in which its packets wait.
void fill_egress(arena::Arena arena, std::uint32_t capacity_blocks) {
    const auto& header = arena.header();
    std::uint32_t next = 0;
    for (std::uint32_t p = 0; p < header.port_count; ++p) {
        auto& port = arena.port(p);
        port.egress = arena::kNone;
        if (arena.node(port.node).kind != arena::NodeKind::kHca) continue;
        port.egress = next++;
        for (std::uint32_t vl = 0; vl < header.lane_count; ++vl) {
            auto& lane = arena.egress(port.egress, vl);
            lane.reset(capacity_blocks);
            lane.port = p;
        }
    }
    WEIR_CHECK(next == header.egress_count);
}

void fill_links(arena::Arena arena, const topology::Fabric& fabric) {
    for (const auto& link : fabric.links) {
        const auto index_of = [&](topology::PortId end) {
            return arena.node(end.node).first_port + end.port - 1;
        };
        const std::uint32_t a = index_of(link.a);
        const std::uint32_t b = index_of(link.b);
        arena.port(a).peer = b;
        arena.port(b).peer = a;
        for (const std::uint32_t end : {a, b}) {
            auto& port = arena.port(end);
            port.speed_bits_per_second = static_cast<std::uint64_t>(link.speed.value);
            port.width = link.width;
            port.up.store(1, std::memory_order_relaxed);
        }
    }
}

}  // namespace

std::uint32_t lane_capacity_blocks(const topology::Options& options) {
    constexpr std::uint32_t kLeast = (arena::kSegmentBytes + kHeaderBytesMax) / credit::kBlockBytes;
    const auto wanted = std::max<std::int64_t>(options.buffer.value, 0) / credit::kBlockBytes;
    return static_cast<std::uint32_t>(std::clamp<std::int64_t>(wanted, kLeast, kCapacityBlocksMax));
}

Result<void> plan_arena(const topology::Fabric& fabric, const routing::Tables& tables,
                        const std::string& name, arena::ArenaHeader& header) {
    WEIR_TRY_VOID(check_names(fabric));
    WEIR_CHECK(tables.lids.size() == fabric.nodes.size());
    WEIR_CHECK(tables.lfts.size() == fabric.nodes.size());
    WEIR_CHECK(tables.lid_limit() > 0);
    std::uint64_t ports = 0;
    for (const auto& node : fabric.nodes) {
        ports += node.port_count;
        if (!node.is_switch()) header.egress_count += node.port_count;
    }
    header.magic = arena::kMagic;
    header.version = arena::kLayoutVersion;
    header.node_count = static_cast<std::uint32_t>(fabric.nodes.size());
    header.port_count = static_cast<std::uint32_t>(ports);
    header.lane_count = fabric.options.data_lanes;
    header.lid_count = static_cast<std::uint32_t>(tables.lid_limit());
    header.mtu_bytes = static_cast<std::uint32_t>(fabric.options.mtu.value);
    header.link_layer = fabric.options.link_layer == topology::LinkLayer::kEthernet
                            ? kLinkLayerEthernet
                            : kLinkLayerInfiniband;
    if (name.size() >= arena::kNameBytes) {
        return fail(ErrorCode::kInvalid, fmt::format("name \"{}\" is too long", name));
    }
    copy_name(header.name, name);

    Layout layout;
    header.nodes_at = layout.place(header.node_count, sizeof(arena::NodeEntry));
    header.ports_at = layout.place(header.port_count, sizeof(arena::PortEntry));
    header.lanes_at = layout.place(ports * header.lane_count, sizeof(credit::LaneBuffer));
    header.lfts_at = layout.place(fabric.switch_count(), header.lid_count);
    header.lids_at = layout.place(header.lid_count, sizeof(std::uint32_t));
    header.arbiters_at = layout.place(ports, sizeof(arena::ArbiterEntry));
    header.egress_at =
        layout.place(header.egress_count * header.lane_count, sizeof(credit::LaneBuffer));
    header.processes_at = layout.place(arena::kProcessCount, sizeof(arena::ProcessEntry));
    header.qps_at = layout.place(arena::kQpCount, sizeof(arena::QpEntry));
    header.mrs_at = layout.place(arena::kMrCount, sizeof(arena::MrEntry));
    header.groups_at = layout.place(arena::kGroupCount, sizeof(arena::GroupEntry));
    header.packets_at = layout.place(arena::kPacketCount, sizeof(arena::PacketEntry));
    header.services_at = layout.place(arena::kServiceCount, sizeof(arena::ServiceEntry));
    header.bulk_at = layout.place(std::uint64_t{arena::kProcessCount} * arena::kBulkPerProcess,
                                  arena::kSegmentBytes);
    header.total_bytes = layout.end();
    return {};
}

Result<FabricMemory> build_arena(const topology::Fabric& given, const routing::Tables& tables,
                                 const std::string& name) {
    topology::Fabric fabric = given;
    WEIR_TRY_VOID(topology::fill_addresses(fabric));
    arena::ArenaHeader plan{};
    WEIR_TRY_VOID(plan_arena(fabric, tables, name, plan));
    FabricMemory memory;
    WEIR_TRY(memory.fd, runtime::create_memory("weir-arena", plan.total_bytes));
    WEIR_TRY_VOID(runtime::commit_memory(memory.fd.get(), 0, plan.qps_at));
    WEIR_TRY(memory.mapping, runtime::Mapping::map(memory.fd.get(), plan.total_bytes,
                                                   runtime::MapAccess::kReadWrite));
    // The tail of the header are atomics, zero already, as is the one among the plain data.
    std::memcpy(memory.mapping.data(), static_cast<const void*>(&plan),
                offsetof(arena::ArenaHeader, closing));
    const arena::Arena arena = memory.arena();
    fill_nodes(arena, fabric, tables);
    fill_links(arena, fabric);
    const std::uint32_t capacity = lane_capacity_blocks(fabric.options);
    for (std::uint32_t port = 0; port < plan.port_count; ++port) {
        for (std::uint32_t vl = 0; vl < plan.lane_count; ++vl) {
            arena.lane(port, vl).reset(capacity);
        }
    }
    fill_egress(arena, capacity);
    fill_arbiters(arena, fabric.options);
    return memory;
}

}  // namespace weir::lab

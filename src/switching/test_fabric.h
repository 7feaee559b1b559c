// SPDX-License-Identifier: Apache-2.0
// A small fabric on the heap for tests: switches in a row, hosts spread over them, tables filled
// in. The same arena layout as the live fabric, with fewer QPs and packets. Not part of the
// product.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "arena/layout.h"
#include "switching/arbiter.h"

namespace weir::switching {

class TestFabric {
  public:
    static constexpr std::uint32_t kPackets = 4096;
    static constexpr std::uint32_t kQps = 64;

    /// `switches` in a row, `hosts_each` hosts on each. LID of host h is h + 1.
    TestFabric(std::uint32_t switches, std::uint32_t hosts_each, std::uint32_t lanes,
               std::uint32_t capacity_blocks)
        : switches_(switches),
          hosts_each_(hosts_each) {
        const std::uint32_t hosts = switches * hosts_each;
        const std::uint32_t radix = hosts_each + 2;
        arena::ArenaHeader header{};
        header.magic = arena::kMagic;
        header.version = arena::kLayoutVersion;
        header.node_count = switches + hosts;
        header.port_count = switches * radix + hosts;
        header.lane_count = lanes;
        header.lid_count = hosts + 1;
        header.mtu_bytes = 4096;
        std::uint64_t at = 4096;
        const auto place = [&at](std::uint64_t bytes) {
            const auto where = at;
            at += (bytes + 4095) / 4096 * 4096;
            return where;
        };
        header.nodes_at = place(header.node_count * sizeof(arena::NodeEntry));
        header.ports_at = place(header.port_count * sizeof(arena::PortEntry));
        header.lanes_at = place(header.port_count * lanes * sizeof(credit::LaneBuffer));
        header.lfts_at = place(switches * header.lid_count);
        header.lids_at = place(header.lid_count * sizeof(std::uint32_t));
        header.egress_count = hosts;
        header.arbiters_at = place(header.port_count * sizeof(arena::ArbiterEntry));
        header.egress_at = place(hosts * lanes * sizeof(credit::LaneBuffer));
        header.processes_at = place(arena::kProcessCount * sizeof(arena::ProcessEntry));
        header.qps_at = place(kQps * sizeof(arena::QpEntry));
        header.packets_at = place(kPackets * sizeof(arena::PacketEntry));
        header.bulk_at = at;
        header.total_bytes = at;
        memory_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, at)));
        std::memset(memory_.get(), 0, at);
        std::memcpy(memory_.get(), static_cast<const void*>(&header), sizeof header);
        arena_ = arena::Arena(memory_.get());
        fill(radix, hosts, capacity_blocks);
    }

    [[nodiscard]] arena::Arena arena() const { return arena_; }
    [[nodiscard]] std::uint32_t hosts() const { return switches_ * hosts_each_; }
    [[nodiscard]] std::uint32_t host_node(std::uint32_t host) const { return switches_ + host; }
    [[nodiscard]] std::uint32_t host_port(std::uint32_t host) const {
        return arena_.node(host_node(host)).first_port;
    }
    static std::uint32_t lid(std::uint32_t host) { return host + 1; }

    /// Gives QP `qp` to a process on `host`.
    void open_qp(std::uint32_t qp, std::uint32_t host, std::uint32_t capacity_blocks = 1U << 20U) {
        auto& entry = arena_.qp(qp);
        entry.node = host_node(host);
        entry.own_lid = lid(host);
        entry.requests.reset(capacity_blocks);
        entry.responses.reset(capacity_blocks);
        entry.initialised.store(1);
        entry.reliable = 1;
        entry.receiving.store(1);
        entry.owner.store((1U << arena::kIdentitySlotBits) | (host + 1));
    }

    /// Gives every link this rate and these tables.
    void enforce(std::uint64_t bits_per_second, const arena::ArbitrationTables& tables) {
        arena_.header().rated.store(1);
        for (std::uint32_t p = 0; p < arena_.header().port_count; ++p) {
            auto& arbiter = arena_.arbiter(p);
            arbiter.tables = tables;
            arbiter.turns.store(first_turns(tables).encode());
            arbiter.rate_bits_per_second.store(bits_per_second);
        }
    }

  private:
    void connect(std::uint32_t a, std::uint32_t b) {
        arena_.port(a).peer = b;
        arena_.port(b).peer = a;
        arena_.port(a).up.store(1);
        arena_.port(b).up.store(1);
    }
    void fill(std::uint32_t radix, std::uint32_t hosts, std::uint32_t capacity_blocks) {
        const auto& header = arena_.header();
        for (std::uint32_t n = 0; n < header.node_count; ++n) {
            auto& node = arena_.node(n);
            const bool is_switch = n < switches_;
            node.kind = is_switch ? arena::NodeKind::kSwitch : arena::NodeKind::kHca;
            node.first_port = is_switch ? n * radix : switches_ * radix + (n - switches_);
            node.port_count = is_switch ? radix : 1;
            node.lft_at = header.lfts_at + n * header.lid_count;
            for (std::uint32_t p = 0; p < node.port_count; ++p) {
                auto& port = arena_.port(node.first_port + p);
                port.node = n;
                port.number = p + 1;
                port.peer = arena::kNone;
                port.egress = is_switch ? arena::kNone : n - switches_;
            }
        }
        // Port hosts_each + 1 leads down the row, hosts_each + 2 up it.
        for (std::uint32_t s = 0; s + 1 < switches_; ++s) {
            connect(s * radix + hosts_each_ + 1, (s + 1) * radix + hosts_each_);
        }
        for (std::uint32_t h = 0; h < hosts; ++h) {
            connect(host_port(h), h / hosts_each_ * radix + h % hosts_each_);
            arena_.lids()[lid(h)] = host_port(h);
            for (std::uint32_t s = 0; s < switches_; ++s) {
                const std::uint32_t home = h / hosts_each_;
                const std::uint32_t out = s == home  ? h % hosts_each_ + 1
                                          : s > home ? hosts_each_ + 1
                                                     : hosts_each_ + 2;
                arena_.lft(arena_.node(s))[lid(h)] = static_cast<std::uint8_t>(out);
            }
        }
        for (std::uint32_t p = 0; p < header.port_count; ++p) {
            for (std::uint32_t v = 0; v < header.lane_count; ++v) {
                arena_.lane(p, v).reset(capacity_blocks);
            }
        }
        for (std::uint32_t h = 0; h < hosts; ++h) {
            for (std::uint32_t v = 0; v < header.lane_count; ++v) {
                arena_.egress(h, v).reset(capacity_blocks);
                arena_.egress(h, v).port = host_port(h);
            }
        }
    }

    struct Free {
        void operator()(std::byte* memory) const { std::free(memory); }
    };
    std::unique_ptr<std::byte, Free> memory_;
    arena::Arena arena_;
    std::uint32_t switches_;
    std::uint32_t hosts_each_;
};

}  // namespace weir::switching

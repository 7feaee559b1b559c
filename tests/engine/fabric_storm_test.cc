// SPDX-License-Identifier: Apache-2.0
// Every shipped fabric, and shapes whose shortest paths would deadlock, under all-to-all load with
// the smallest buffers that there are: packets are moved one hop at a time in random order, so that
// every lane fills up. Nothing may stand still for good, and all must arrive once, in order, with
// every credit back.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "base/rng.h"
#include "lab/arena_builder.h"
#include "lab/fabric_source.h"
#include "routing/router.h"
#include "switching/forwarding.h"
#include "topology/fabric_file.h"

namespace weir {
namespace {

constexpr std::uint32_t kPacketsPerFlow = 6;
/// A quarter of a lane's smallest buffer, so that four packets fill it.
constexpr std::uint32_t kWords = 4096;

class Storm {
  public:
    explicit Storm(const topology::Fabric& fabric, std::uint64_t seed) : rng_(seed) {
        auto tables = routing::route(fabric);
        EXPECT_TRUE(tables.has_value());
        auto memory = lab::build_arena(fabric, *tables, "storm");
        EXPECT_TRUE(memory.has_value()) << (memory ? "" : memory.error().context);
        memory_ = *std::move(memory);
        arena_ = memory_.arena();
        for (std::uint32_t n = 0; n < arena_.header().node_count; ++n) {
            if (arena_.node(n).kind == arena::NodeKind::kHca) hosts_.push_back(n);
        }
        for (std::uint32_t from = 0; from < hosts_.size(); ++from) {
            for (std::uint32_t to = 0; to < hosts_.size(); ++to)
                open_flow(from, to);
        }
    }

    void run() {
        switching::Mover<> mover(arena_);
        const auto ports = arena_.header().port_count;
        std::vector<std::uint32_t> sent(flows(), 0);
        std::uint64_t left = static_cast<std::uint64_t>(flows()) * kPacketsPerFlow;
        std::uint64_t idle = 0;
        // A million steps without any packet moving, each of which tries a port at random: a
        // deadlock.
        while ((left > 0 || delivered_ < static_cast<std::uint64_t>(flows()) * kPacketsPerFlow) &&
               idle < 1'000'000) {
            ++idle;
            const auto flow = static_cast<std::uint32_t>(rng_.below(flows()));
            if (left > 0 && sent[flow] < kPacketsPerFlow && inject(mover, flow, sent[flow])) {
                ++sent[flow];
                --left;
                idle = 0;
            }
            const auto port = static_cast<std::uint32_t>(rng_.below(ports));
            const auto step = mover.advance(mover.port_lane(port, 0)).step;
            ASSERT_NE(step, switching::Step::kDiscarded);
            if (step == switching::Step::kMoved) idle = 0;
            take(mover, static_cast<std::uint32_t>(rng_.below(flows())));
        }
        EXPECT_EQ(left, 0U) << "packets could not enter";
        EXPECT_EQ(delivered_, static_cast<std::uint64_t>(flows()) * kPacketsPerFlow);
        for (std::uint32_t p = 0; p < arena_.header().port_count; ++p) {
            for (std::uint32_t v = 0; v < arena_.header().lane_count; ++v)
                EXPECT_EQ(arena_.lane(p, v).occupancy(), 0U);
        }
    }

  private:
    [[nodiscard]] std::uint32_t flows() const {
        return static_cast<std::uint32_t>(hosts_.size() * hosts_.size());
    }
    [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(hosts_.size()); }

    void open_flow(std::uint32_t from, std::uint32_t to) {
        auto& qp = arena_.qp(arena::kFirstQp + from * count() + to);
        qp.node = hosts_[to];
        qp.reliable = 1;
        qp.requests.reset(1U << 20U);
        qp.responses.reset(1U << 20U);
        qp.receiving.store(1);
        qp.initialised.store(1);
        qp.owner.store(1U << arena::kIdentitySlotBits | 1U);
    }
    bool inject(switching::Mover<>& mover, std::uint32_t flow, std::uint32_t sequence) {
        const auto index = next_packet_ % arena::kPacketCount;
        auto& packet = arena_.packet(index);
        const auto word = packet.state.load();
        if ((word & 1U) != 0) return false;
        const auto& target = arena_.node(hosts_[flow % count()]);
        const auto& source = arena_.node(hosts_[flow / count()]);
        packet.state.store(((word >> 1U) + 1) << 1U | 1U);
        packet.header.psn = sequence;
        packet.route.store(
            arena::Route{target.lid, 0, false, true, kWords, arena::kFirstQp + flow}.encode());
        const auto port = source.first_port;
        const bool own = &source == &target;
        const auto lane = mover.port_lane(own ? port : arena_.port(port).peer, 0);
        if (!mover.inject(lane, index, ((word >> 1U) + 1) & 0xfffU)) {
            packet.state.store(packet.state.load() & ~1U);
            return false;
        }
        ++next_packet_;
        return true;
    }
    void take(switching::Mover<>& mover, std::uint32_t flow) {
        const auto ring = mover.request_ring(arena::kFirstQp + flow);
        for (credit::Slot slot{}; mover.peek(ring, slot);) {
            EXPECT_EQ(arena_.packet(slot.packet).header.psn, expected_[flow]++);
            mover.pop(ring);
            mover.release(slot);
            ++delivered_;
        }
    }

    Rng rng_;
    lab::FabricMemory memory_;
    arena::Arena arena_;
    std::vector<std::uint32_t> hosts_;
    std::map<std::uint32_t, std::uint32_t> expected_;
    std::uint32_t next_packet_ = 0;
    std::uint64_t delivered_ = 0;
};

void storm_of(const topology::Fabric& fabric) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
        Storm storm(fabric, seed);
        storm.run();
        ASSERT_FALSE(::testing::Test::HasFailure()) << fabric.name << " seed " << seed;
    }
}

TEST(FabricStorm, ShippedFabricsNeverStandStill) {
    const char* folder = std::getenv("WEIR_SOURCE_DIR");
    for (const char* name : {"pair", "three-switches", "fat-tree-16", "rail-32"}) {
        const auto path =
            std::string(folder == nullptr ? "." : folder) + "/examples/" + name + ".yaml";
        auto source = lab::read_fabric_source(path);
        ASSERT_TRUE(source.has_value()) << path;
        source->fabric.options.buffer.value = 0;  // the least there is
        storm_of(source->fabric);
    }
}

TEST(FabricStorm, RingsOfSwitchesNeverStandStill) {
    // Shortest paths on a ring or torus close a cycle of buffers; the router must not.
    for (const char* text : {"fabric: {shape: torus, dims: [5, 3], hosts_per_switch: 1}",
                             "fabric: {shape: torus, dims: [4, 4], hosts_per_switch: 1}",
                             "fabric: {shape: dragonfly, a: 3, h: 1, p: 2, g: 4}"}) {
        auto fabric = topology::decode_fabric(text, "storm.yaml");
        ASSERT_TRUE(fabric.has_value()) << text << ": " << fabric.error().context;
        storm_of(*fabric);
    }
}

}  // namespace
}  // namespace weir

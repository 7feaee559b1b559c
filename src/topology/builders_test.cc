// SPDX-License-Identifier: Apache-2.0
#include "topology/builders.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <functional>
#include <set>

namespace weir::topology {
namespace {

/// The number of nodes that node 0 reaches, itself included.
std::size_t reached(const Fabric& fabric) {
    const Adjacency adjacency(fabric);
    std::vector<bool> seen(fabric.nodes.size(), false);
    std::vector<NodeIndex> queue{0};
    seen[0] = true;
    for (std::size_t head = 0; head < queue.size(); ++head) {
        for (const Peer& peer : adjacency.ports(queue[head])) {
            if (!peer.connected() || seen[peer.node]) continue;
            seen[peer.node] = true;
            queue.push_back(peer.node);
        }
    }
    return queue.size();
}

/// Links between nodes of `left` and others.
std::size_t links_across(const Fabric& fabric, const std::function<bool(const Node&)>& left) {
    std::size_t count = 0;
    for (const Link& link : fabric.links)
        count += left(fabric.nodes[link.a.node]) != left(fabric.nodes[link.b.node]) ? 1U : 0U;
    return count;
}

std::size_t tier_count(const Fabric& fabric, std::uint32_t tier) {
    std::size_t count = 0;
    for (const Node& node : fabric.nodes)
        count += node.tier == tier ? 1U : 0U;
    return count;
}

/// A built fabric that is valid and in one piece.
Fabric sound(const Result<Fabric>& built) {
    if (!built) {
        ADD_FAILURE() << built.error().context;
        return {};
    }
    EXPECT_TRUE(built->validate());
    EXPECT_EQ(reached(*built), built->nodes.size());
    return *built;
}

TEST(SingleSwitch, HasAPortForEachCard) {
    const Fabric fabric = sound(build_single_switch({.hosts = 4, .hcas = 2}));
    EXPECT_EQ(fabric.hca_count(), 8U);
    EXPECT_EQ(fabric.nodes[1].name, "h0/1");
    EXPECT_EQ(fabric.nodes[8].port_count, 8U);
    EXPECT_EQ(build_single_switch({.hosts = 300}).error().context,
              "300 host ports do not fit a switch of 254 ports");
}

TEST(FatTree, TwoLevelsHaveFullBisection) {
    const Fabric fabric = sound(build_fat_tree({.radix = 8, .hosts = 32}));
    EXPECT_EQ(tier_count(fabric, 1), 8U);
    EXPECT_EQ(tier_count(fabric, 2), 4U);
    EXPECT_EQ(fabric.links.size(), 64U);
    // As many links above the leaves as hosts below.
    EXPECT_EQ(links_across(fabric, [](const Node& n) { return n.tier == 2; }), 32U);
}

TEST(FatTree, FewLeavesHaveParallelLinksToFewerSpines) {
    const Fabric fabric = sound(build_fat_tree({.radix = 36, .hosts = 54}));
    EXPECT_EQ(tier_count(fabric, 1), 3U);
    EXPECT_EQ(tier_count(fabric, 2), 2U);
    EXPECT_EQ(links_across(fabric, [](const Node& n) { return n.tier == 2; }), 54U);
}

TEST(FatTree, TaperThinsTheUplinks) {
    const Fabric fabric = sound(build_fat_tree({.radix = 9, .hosts = 36, .taper = {2, 1}}));
    EXPECT_EQ(tier_count(fabric, 1), 6U);
    EXPECT_EQ(links_across(fabric, [](const Node& n) { return n.tier == 2; }), 18U);
}

TEST(FatTree, OddRadixLeavesAPortFreeRatherThanTaper) {
    const Fabric fabric = sound(build_fat_tree({.radix = 7, .hosts = 21}));
    EXPECT_EQ(tier_count(fabric, 1), 7U);
    EXPECT_EQ(links_across(fabric, [](const Node& n) { return n.tier == 2; }), 21U);
}

TEST(FatTree, ThreeLevelsOfRadixKHoldKCubedOverFourHosts) {
    for (const std::uint32_t k : {4U, 6U, 8U}) {
        const std::uint32_t hosts = k * k * k / 4;
        const Fabric fabric = sound(build_fat_tree({.levels = 3, .radix = k, .hosts = hosts}));
        EXPECT_EQ(fabric.switch_count(), 5 * k * k / 4) << k;
        EXPECT_EQ(links_across(fabric, [](const Node& n) { return n.tier == 3; }), hosts) << k;
        // Pods 0 .. k/2-1 and their half of the cores' links: the bisection is hosts/2 both ways.
        EXPECT_EQ(links_across(fabric, [k](const Node& n) { return n.pod && *n.pod < k / 2; }),
                  hosts / 2)
            << k;
        EXPECT_FALSE(build_fat_tree({.levels = 3, .radix = k, .hosts = hosts + 1})) << k;
    }
}

TEST(FatTree, RefusesWhatDoesNotFit) {
    const auto result = build_fat_tree({.radix = 8, .hosts = 33});
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().context, "9 leaves needed, but a spine of radix 8 reaches 8");
    EXPECT_EQ(result.error().hint, "at most 32 hosts fit; use levels: 3 or a larger radix");
    EXPECT_FALSE(build_fat_tree({.radix = 4, .hosts = 2, .taper = {9, 1}}));
    EXPECT_FALSE(build_fat_tree({.levels = 4}));
    EXPECT_FALSE(build_fat_tree({.radix = 254, .hosts = 4'000'000'000, .rails = 4'000'000'000}));
}

TEST(RailOptimised, EqualRanksOfAUnitShareALeaf) {
    const Fabric fabric = sound(build_rail_optimised({.radix = 8, .hosts = 8, .rails = 4}));
    const Adjacency adjacency(fabric);
    for (NodeIndex hca = 0; hca < 32; ++hca) {
        const Node& node = fabric.nodes[hca];
        const Node& leaf = fabric.nodes[adjacency.peer(hca, 1).node];
        EXPECT_EQ(node.rail, hca % 4);
        EXPECT_EQ(leaf.rail, node.rail);
        EXPECT_EQ(leaf.su, node.su);
        EXPECT_EQ(node.su, hca / 16);
    }
    EXPECT_EQ(links_across(fabric, [](const Node& n) { return n.tier == 2; }), 32U);
}

TEST(Dragonfly, EveryPairOfGroupsIsLinkedOnce) {
    const Fabric fabric = sound(build_dragonfly({.a = 4, .h = 2, .p = 2, .g = 9}));
    EXPECT_EQ(fabric.switch_count(), 36U);
    EXPECT_EQ(fabric.hca_count(), 72U);
    std::set<std::pair<std::uint32_t, std::uint32_t>> pairs;
    std::size_t global = 0;
    for (const Link& link : fabric.links) {
        const auto from = *fabric.nodes[link.a.node].pod;
        const auto to = *fabric.nodes[link.b.node].pod;
        if (from == to) continue;
        ++global;
        pairs.insert(std::minmax(from, to));
    }
    EXPECT_EQ(global, 36U);
    EXPECT_EQ(pairs.size(), 36U);
    // Groups 0..3 against 4..8: one link for each pair of groups.
    EXPECT_EQ(links_across(fabric, [](const Node& n) { return *n.pod < 4; }), 20U);
}

TEST(Dragonfly, FewerGroupsShareTheGlobalLinksEvenly) {
    const Fabric fabric = sound(build_dragonfly({.a = 4, .h = 2, .p = 1, .g = 4}));
    EXPECT_EQ(links_across(fabric, [](const Node& n) { return *n.pod == 0; }), 6U);
    EXPECT_FALSE(build_dragonfly({.a = 4, .h = 2, .p = 1, .g = 10}));
    sound(build_dragonfly({.a = 1, .h = 1, .p = 1, .g = 2}));
    sound(build_dragonfly({.a = 3, .h = 0, .p = 1, .g = 1}));
}

TEST(Torus, BisectionIsTwoPlanesOfLinks) {
    const Fabric fabric = sound(build_torus({.dims = {4, 3, 5}, .hosts_per_switch = 2}));
    EXPECT_EQ(fabric.switch_count(), 60U);
    EXPECT_EQ(fabric.hca_count(), 120U);
    EXPECT_EQ(fabric.links.size(), 120U + 3 * 60U);
    const Adjacency adjacency(fabric);
    const auto left = [&](const Node& node) {
        const NodeIndex self = *fabric.find_node(node.name);
        const NodeIndex at = node.is_switch() ? self : adjacency.peer(self, 1).node;
        return fabric.nodes[at].name[1] < '2';
    };
    EXPECT_EQ(links_across(fabric, left), 2U * 15U);
}

TEST(Torus, ADimensionOfTwoHasOneLink) {
    const Fabric fabric = sound(build_torus({.dims = {2, 2}, .hosts_per_switch = 1}));
    EXPECT_EQ(fabric.links.size(), 4U + 4U);
    EXPECT_FALSE(build_torus({.dims = {4}}));
    EXPECT_FALSE(build_torus({.dims = {0, 4}}));
    sound(build_torus({.dims = {1, 3}}));
}

TEST(Builders, SameParametersGiveTheSameFabric) {
    const FatTree tree{.levels = 3, .radix = 6, .hosts = 12, .rails = 2};
    EXPECT_EQ(*build_fat_tree(tree), *build_fat_tree(tree));
    EXPECT_EQ(build_fat_tree(tree)->nodes[0].guid, default_guid(0));
}

TEST(Builders, AnyParametersGiveASoundFabricOrAnError) {
    rc::check("fat trees", [](std::uint8_t radix, std::uint8_t hosts, std::uint8_t rails,
                              std::uint8_t down, std::uint8_t up, bool three) {
        const auto built = build_fat_tree({.levels = three ? 3U : 2U,
                                           .radix = radix % 48U,
                                           .hosts = hosts,
                                           .rails = rails % 6U,
                                           .taper = {down % 5U, up % 5U}});
        if (!built) return;
        RC_ASSERT(built->validate().has_value());
        RC_ASSERT(reached(*built) == built->nodes.size());
    });
    rc::check("dragonflies", [](std::uint8_t a, std::uint8_t h, std::uint8_t p, std::uint8_t g) {
        const auto built = build_dragonfly({a % 6U, h % 6U, p % 4U, g % 12U});
        if (!built) return;
        RC_ASSERT(built->validate().has_value());
        RC_ASSERT(reached(*built) == built->nodes.size());
    });
}

}  // namespace
}  // namespace weir::topology

// SPDX-License-Identifier: Apache-2.0
#include "routing/router.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "base/rng.h"
#include "routing/verify.h"
#include "topology/builders.h"
#include "topology/fabric_file.h"
#include "topology/netlist.h"

namespace weir::routing {
namespace {

using namespace topology;

/// Routes and verifies; the test fails and the report is empty if either refuses.
VerifyReport checked(const Fabric& fabric) {
    const auto tables = route(fabric);
    if (!tables) {
        ADD_FAILURE() << tables.error().context;
        return {};
    }
    const auto report = verify(fabric, *tables);
    if (!report) {
        ADD_FAILURE() << report.error().context;
        return {};
    }
    EXPECT_EQ(report->deaf_switches, 0U);
    return *report;
}

TEST(Route, GivesDenseLidsInNodeOrder) {
    const Fabric fabric = *build_single_switch({.hosts = 2});
    const Tables tables = *route(fabric);
    EXPECT_EQ(tables.lid_limit(), 4U);
    EXPECT_EQ(tables.lid(0, 1), 1U);
    EXPECT_EQ(tables.lid(1, 1), 2U);
    EXPECT_EQ(tables.lid(2, 0), 3U);
    EXPECT_EQ(tables.owners[2], (Tables::Owner{1, 1}));
    EXPECT_EQ(tables.lfts[2], (std::vector<std::uint8_t>{kNoRoute, 1, 2, 0}));
    EXPECT_TRUE(tables.lfts[0].empty());
}

TEST(Route, SpreadsHostsOfATreeEvenly) {
    const VerifyReport report = checked(*build_fat_tree({.radix = 8, .hosts = 32}));
    EXPECT_EQ(report.pairs, 32U * 31U);
    EXPECT_EQ(report.switches_max, 3U);
    // 28 foreign hosts, 4 hosts of a leaf, 4 uplinks: each channel carries as many pairs.
    EXPECT_EQ(report.load_min, 28U);
    EXPECT_EQ(report.load_max, 28U);
}

TEST(Route, ThreeLevelTreesStayNearTheMean) {
    const VerifyReport report = checked(*build_fat_tree({.levels = 3, .radix = 8, .hosts = 128}));
    EXPECT_EQ(report.switches_max, 5U);
    EXPECT_LT(static_cast<double>(report.load_max) * static_cast<double>(report.channels),
              1.3 * static_cast<double>(report.load_sum));
}

TEST(Route, HandlesEveryBuilder) {
    checked(*build_fat_tree({.radix = 7, .hosts = 21}));
    checked(*build_fat_tree({.radix = 36, .hosts = 54}));
    checked(*build_fat_tree({.levels = 3, .radix = 9, .hosts = 50, .taper = {2, 1}}));
    checked(*build_rail_optimised({.radix = 64, .hosts = 128, .rails = 8}));
    checked(*build_rail_optimised({.levels = 3, .radix = 32, .hosts = 256, .rails = 8}));
    checked(*build_dragonfly({.a = 8, .h = 4, .p = 4, .g = 33}));
    checked(*build_torus({.dims = {5, 4}, .hosts_per_switch = 2}));
    checked(*build_torus({.dims = {6, 5, 4}, .hosts_per_switch = 1}));
}

TEST(Route, HandlesTheExamples) {
    const char* const root = std::getenv("WEIR_SOURCE_DIR");
    const std::string folder = std::string(root == nullptr ? "." : root) + "/examples/";
    for (const char* name : {"pair", "three-switches", "fat-tree-16", "rail-32"}) {
        const auto fabric = read_fabric_file(folder + name + ".yaml");
        ASSERT_TRUE(fabric) << fabric.error().context;
        const VerifyReport report = checked(*fabric);
        EXPECT_EQ(report.pairs, fabric->hca_count() * (fabric->hca_count() - 1)) << name;
    }
}

TEST(Route, SurvivesTheLossOfAnyOneCableOfATree) {
    const Fabric whole = *build_fat_tree({.radix = 8, .hosts = 16});
    for (std::size_t lost = 0; lost < whole.links.size(); ++lost) {
        Fabric fabric = whole;
        fabric.links.erase(fabric.links.begin() + static_cast<std::ptrdiff_t>(lost));
        const auto report = verify(fabric, *route(fabric));
        EXPECT_TRUE(report) << whole.links[lost].name << ": " << report.error().context;
    }
}

TEST(Route, IsAFunctionOfTheFabric) {
    const Fabric fabric = *build_dragonfly({});
    EXPECT_EQ(*route(fabric), *route(fabric));
}

TEST(Route, TakesRootsAndRefusesHosts) {
    const Fabric torus = *build_torus({.dims = {4, 4}});
    const auto tables = route(torus, {.roots = {20}});
    ASSERT_TRUE(tables);
    EXPECT_TRUE(verify(torus, *tables));
    EXPECT_FALSE(route(torus, {.roots = {0}}));
    EXPECT_FALSE(route(torus, {.roots = {9999}}));
}

TEST(Route, RefusesMoreEndPortsThanLids) {
    Fabric fabric;
    for (NodeIndex i = 0; i <= kLidMax; ++i)
        fabric.nodes.push_back(make_switch(i, "s" + std::to_string(i), 1));
    const auto tables = route(fabric);
    ASSERT_FALSE(tables);
    EXPECT_EQ(tables.error().code, ErrorCode::kNoSpace);
}

TEST(Route, HostsCabledToEachOtherNeedNoTables) {
    Fabric fabric;
    fabric.nodes = {make_hca(0, "h0", "h0", 2), make_hca(1, "h1", "h1", 1)};
    fabric.links.push_back({.a = {0, 2}, .b = {1, 1}, .speed = {1}});
    fabric.finish_links();
    const auto tables = route(fabric);
    ASSERT_TRUE(tables);
    EXPECT_EQ(tables->lid(0, 1), 0U);
    EXPECT_EQ(tables->lid(0, 2), 1U);
    EXPECT_TRUE(verify(fabric, *tables));
}

/// A connected graph of switches, some with hosts, extra cables thrown in; loops and parallels too.
Fabric irregular(std::uint64_t seed) {
    Rng rng(seed);
    const auto draw = [&rng](std::uint64_t bound) {
        return static_cast<std::uint32_t>(rng.below(bound));
    };
    Fabric fabric;
    const std::uint32_t switches = 1 + draw(24);
    std::vector<PortNumber> used(switches, 0);
    for (NodeIndex i = 0; i < switches; ++i)
        fabric.nodes.push_back(make_switch(i, "s" + std::to_string(i), kPortLimit));
    const auto cable = [&](NodeIndex a, NodeIndex b) {
        Link link;
        link.speed = {1};
        link.a = {a, ++used[a]};
        link.b = {b, b < switches ? ++used[b] : 1};
        fabric.links.push_back(link);
    };
    for (NodeIndex i = 1; i < switches; ++i)
        cable(i, draw(i));
    const std::uint32_t extra = draw(40);
    for (std::uint32_t i = 0; i < extra; ++i) {
        const NodeIndex a = draw(switches);
        const NodeIndex b = draw(switches);
        cable(a, b);
    }
    const std::uint32_t hosts = 2 + draw(20);
    for (std::uint32_t i = 0; i < hosts; ++i) {
        const auto index = static_cast<NodeIndex>(fabric.nodes.size());
        const std::string name = "h" + std::to_string(i);
        fabric.nodes.push_back(make_hca(index, name, name, 1));
        cable(draw(switches), index);
    }
    fabric.finish_links();
    return fabric;
}

TEST(Route, AnyConnectedGraphIsReachableAndDeadlockFree) {
    rc::check("irregular graphs", [](std::uint64_t seed) {
        const Fabric fabric = irregular(seed);
        RC_ASSERT(fabric.validate().has_value());
        const auto tables = route(fabric);
        RC_ASSERT(tables.has_value());
        const auto report = verify(fabric, *tables);
        RC_ASSERT(report.has_value());
        RC_ASSERT(report->pairs == fabric.hca_count() * (fabric.hca_count() - 1));
    });
}

TEST(Route, RealClusters) {
    const char* const data = std::getenv("WEIR_DATA_DIR");
    const std::string root = data == nullptr ? "" : std::string(data) + "/topology/";
    if (!std::filesystem::exists(root + "selene.compute.txt")) GTEST_SKIP() << "skipped: no data";
    using Clock = std::chrono::steady_clock;
    const auto since = [](Clock::time_point start) {
        return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    };
    for (const char* file : {"selene.compute.txt", "small_topo_file", "ibnetdiscover_director.txt",
                             "superbench/ib_traffic_topo_aware_ibnetdiscover.txt"}) {
        const auto netlist = read_netlist_file(root + file);
        ASSERT_TRUE(netlist) << netlist.error().context;
        auto start = Clock::now();
        const auto tables = route(netlist->fabric);
        const double route_ms = since(start);
        ASSERT_TRUE(tables) << tables.error().context;
        start = Clock::now();
        const auto report = verify(netlist->fabric, *tables);
        const double verify_ms = since(start);
        ASSERT_TRUE(report) << file << ": " << report.error().context;
        std::printf(
            "%s: route %.0f ms, verify %.0f ms; %lu pairs, switches %u at most, %.2f on average; "
            "%lu channels, load %lu ... %lu, mean %.0f; %u deaf switches\n",
            file, route_ms, verify_ms, report->pairs, report->switches_max,
            static_cast<double>(report->switches_sum) / static_cast<double>(report->pairs),
            report->channels, report->load_min, report->load_max,
            static_cast<double>(report->load_sum) / static_cast<double>(report->channels),
            report->deaf_switches);
    }
}

}  // namespace
}  // namespace weir::routing

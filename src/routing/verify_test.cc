// SPDX-License-Identifier: Apache-2.0
#include "routing/verify.h"

#include <gtest/gtest.h>

#include "topology/builders.h"

namespace weir::routing {
namespace {

using namespace topology;

/// A ring of four switches with a host each: s<i> port 1 to h<i>, port 2 clockwise, port 3 back.
Fabric ring() {
    Fabric fabric;
    fabric.name = "ring";
    for (NodeIndex i = 0; i < 4; ++i)
        fabric.nodes.push_back(make_switch(i, "s" + std::to_string(i), 3));
    for (NodeIndex i = 0; i < 4; ++i) {
        const std::string name = "h" + std::to_string(i);
        fabric.nodes.push_back(make_hca(4 + i, name, name, 1));
        fabric.links.push_back({.a = {4 + i, 1}, .b = {i, 1}, .speed = {1}});
        fabric.links.push_back({.a = {i, 2}, .b = {(i + 1) % 4, 3}, .speed = {1}});
    }
    fabric.finish_links();
    return fabric;
}

std::string refusal(const Fabric& fabric, const Tables& tables, const VerifyOptions& options = {}) {
    const auto report = verify(fabric, tables, options);
    return report ? "accepted" : report.error().context;
}

TEST(Verify, AcceptsTheRoutersTables) {
    const Fabric fabric = ring();
    const auto report = verify(fabric, *route(fabric));
    ASSERT_TRUE(report) << report.error().context;
    EXPECT_EQ(report->pairs, 12U);
    EXPECT_EQ(report->channels, 8U);
    EXPECT_GT(report->dependencies, 0U);
}

TEST(Verify, ShowsALoop) {
    const Fabric fabric = ring();
    Tables tables = *route(fabric);
    const std::uint32_t lid = tables.lid(4, 1);
    for (NodeIndex s = 0; s < 4; ++s)
        tables.lfts[s][lid] = 2;
    EXPECT_EQ(refusal(fabric, tables),
              "tables of \"ring\": LID 5 (h0:1) loops: s0 -> s1 -> s2 -> s3 -> s0");
}

TEST(Verify, ShowsACycleOfChannelsAlthoughEveryPacketArrives) {
    // Everything goes clockwise: each path is short and ends, yet four full buffers wait in a
    // circle.
    const Fabric fabric = ring();
    Tables tables = *route(fabric);
    for (NodeIndex s = 0; s < 4; ++s) {
        for (std::uint32_t lid = 1; lid < tables.lid_limit(); ++lid) {
            const NodeIndex owner = tables.owners[lid].node;
            const bool here = owner % 4 == s;
            tables.lfts[s][lid] = here ? (owner < 4 ? 0 : 1) : 2;
        }
    }
    EXPECT_EQ(refusal(fabric, tables),
              "tables of \"ring\": channels can wait for each other in a "
              "circle: s0:2 -> s1:2 -> s2:2 -> s3:2 -> s0:2");
}

TEST(Verify, ShowsWhatElseIsWrong) {
    const Fabric fabric = ring();
    const Tables good = *route(fabric);
    const std::uint32_t lid = good.lid(4, 1);

    Tables tables = good;
    tables.lfts[2][lid] = kNoRoute;
    EXPECT_EQ(refusal(fabric, tables),
              "tables of \"ring\": no route from the hosts of s2 to h0:1 (LID 5)");
    tables.lfts[2][lid] = 9;
    EXPECT_EQ(refusal(fabric, tables),
              "tables of \"ring\": s2 sends LID 5 (h0:1) out of port 9, which has no cable");
    tables.lfts[2][lid] = 1;
    EXPECT_EQ(refusal(fabric, tables), "tables of \"ring\": s2 sends LID 5 (h0:1) to h2:1");
    tables.lfts[2][lid] = 0;
    EXPECT_EQ(refusal(fabric, tables), "tables of \"ring\": s2 takes LID 5 (h0:1) for its own");
    tables.lfts[2].pop_back();
    EXPECT_EQ(refusal(fabric, tables),
              "tables of \"ring\": \"s2\" has a table of 8 entries instead of 9");
    EXPECT_EQ(refusal(fabric, {}), "tables of \"ring\": made for another number of nodes");
    EXPECT_NE(refusal(fabric, good, {.switches_max = 2}).find("are 3 switches, more than 2"),
              std::string::npos);
}

TEST(Verify, PartsThatNoCableJoinsAreReported) {
    Fabric fabric = ring();
    std::erase_if(fabric.links, [](const Link& link) {
        return (link.a.node == 0 && link.b.node == 1) || (link.a.node == 2 && link.b.node == 3);
    });
    EXPECT_EQ(refusal(fabric, *route(fabric)),
              "tables of \"ring\": no route from the hosts of s1 to h0:1 (LID 5)");
}

}  // namespace
}  // namespace weir::routing

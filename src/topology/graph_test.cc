// SPDX-License-Identifier: Apache-2.0
#include "topology/graph.h"

#include <gtest/gtest.h>

#include <array>

#include "topology/nearest_word.h"
#include "topology/quantity.h"

namespace weir::topology {
namespace {

Link cable(PortId a, PortId b) {
    Link link;
    link.a = a;
    link.b = b;
    link.speed = {100'000'000'000};
    return link;
}

/// h0 and h1 on s0, links given with their ends the wrong way round and out of order.
Fabric pair() {
    Fabric fabric;
    fabric.nodes = {make_switch(0, "s0", 4), make_hca(1, "h0", "h0", 1),
                    make_hca(2, "h1", "h1", 1)};
    fabric.links = {cable({0, 2}, {2, 1}), cable({0, 1}, {1, 1})};
    fabric.finish_links();
    return fabric;
}

std::string why_invalid(const Fabric& fabric) {
    const auto result = fabric.validate();
    return result ? "" : result.error().context;
}

TEST(Fabric, LinksAreNamedFromTheHostAndOrdered) {
    const Fabric fabric = pair();
    ASSERT_EQ(why_invalid(fabric), "");
    EXPECT_EQ(fabric.links[0].name, "h0:1-s0:1");
    EXPECT_EQ(fabric.links[1].name, "h1:1-s0:2");
    EXPECT_EQ(fabric.switch_count(), 1U);
    EXPECT_EQ(fabric.hca_count(), 2U);
}

TEST(Fabric, FindsLinksByEitherEndOrEitherOrder) {
    const Fabric fabric = pair();
    for (const char* name : {"h1:1-s0:2", "s0:2-h1:1", "s0:2", "h1:1"})
        EXPECT_EQ(fabric.find_link(name), 1U) << name;
    for (const char* name : {"h1:2", "s0", "", "s0:2-h0:1", "-"})
        EXPECT_EQ(fabric.find_link(name), std::nullopt) << name;
}

TEST(Fabric, FindsNodesByNameOrUniqueDescription) {
    Fabric fabric = pair();
    fabric.nodes[0].description = "MF0;edge-1";
    fabric.nodes[1].description = fabric.nodes[2].description = "card";
    EXPECT_EQ(fabric.find_node("h1"), 2U);
    EXPECT_EQ(fabric.find_node("MF0;edge-1"), 0U);
    EXPECT_EQ(fabric.find_node("card"), std::nullopt);
    EXPECT_EQ(fabric.find_node("h2"), std::nullopt);
}

TEST(Fabric, AdjacencyLeadsThereAndBack) {
    const Fabric fabric = pair();
    const Adjacency adjacency(fabric);
    EXPECT_EQ(adjacency.peer(0, 2).node, 2U);
    EXPECT_EQ(adjacency.peer(2, 1).node, 0U);
    EXPECT_EQ(adjacency.peer(2, 1).port, 2U);
    EXPECT_EQ(adjacency.peer(2, 1).link, 1U);
    EXPECT_FALSE(adjacency.peer(0, 3).connected());
    EXPECT_FALSE(adjacency.peer(0, 0).connected());
    EXPECT_EQ(adjacency.ports(0).size(), 5U);
}

TEST(Fabric, ValidateNamesWhatIsWrong) {
    Fabric fabric = pair();
    fabric.nodes[2].name = "h0";
    EXPECT_EQ(why_invalid(fabric), "two nodes are named \"h0\"");

    fabric = pair();
    fabric.nodes[2].guid = fabric.nodes[1].guid;
    EXPECT_NE(why_invalid(fabric).find("\"h0\" and \"h1\" have the same GUID"), std::string::npos);

    fabric = pair();
    fabric.links[1].b.port = 1;
    EXPECT_EQ(why_invalid(fabric),
              "port \"s0:1\" is used by two links, \"h0:1-s0:1\" and \"h1:1-s0:2\"");

    fabric = pair();
    fabric.links[1].b.port = 5;
    EXPECT_EQ(why_invalid(fabric), "port \"s0:5\" does not exist (s0 has ports 1 ... 4)");

    fabric = pair();
    fabric.links[1].b = fabric.links[1].a;
    EXPECT_EQ(why_invalid(fabric), "port \"h1:1\" is linked to itself");

    fabric = pair();
    fabric.nodes[1].host.clear();
    EXPECT_EQ(why_invalid(fabric), "node \"h0\": an HCA has a host");
}

TEST(Quantity, ReadsUnitsExactly) {
    EXPECT_EQ(parse_rate("400Gbps")->value, 400'000'000'000);
    EXPECT_EQ(parse_rate("56.25Gbps")->value, 56'250'000'000);
    EXPECT_EQ(parse_rate("1.6Tbps")->value, 1'600'000'000'000);
    EXPECT_EQ(parse_duration("2us")->value, 2'000'000);
    EXPECT_EQ(parse_bytes("16MiB")->value, 16 << 20);
    EXPECT_EQ(parse_bytes("1.5KiB")->value, 1536);
    for (const char* rate : {"400Gbps", "56250Mbps", "1bps", "1600Gbps"})
        EXPECT_EQ(format_rate(*parse_rate(rate)), rate);
}

TEST(Quantity, RefusesWhatIsNotExact) {
    EXPECT_EQ(parse_rate("400").error().context, "rate \"400\" has no unit");
    EXPECT_EQ(parse_rate("400 Gbps").error().context, "rate \"400 Gbps\": unknown unit \" Gbps\"");
    for (const char* text : {"", "Gbps", "-1Gbps", "1.Gbps", ".5Gbps", "1.2.3Gbps", "0.1bps",
                             "99999999999999999999bps", "9999999999Gbps", "1e3Gbps"})
        EXPECT_FALSE(parse_rate(text)) << text;
}

TEST(NearestWord, SuggestsOnlyWhatIsNear) {
    constexpr std::array<std::string_view, 3> kKnown{"switches", "hosts", "links"};
    EXPECT_EQ(nearest_word("swiches", kKnown), "switches");
    EXPECT_EQ(nearest_word("host", kKnown), "hosts");
    EXPECT_EQ(nearest_word("frobnicate", kKnown), "");
    EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
}

}  // namespace
}  // namespace weir::topology

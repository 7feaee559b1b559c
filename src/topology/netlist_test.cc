// SPDX-License-Identifier: Apache-2.0
#include "topology/netlist.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "base/rng.h"
#include "topology/builders.h"

namespace weir::topology {
namespace {

std::string refusal(std::string_view text) {
    const auto netlist = parse_netlist(text, "n.txt");
    return netlist ? "accepted" : netlist.error().context;
}

/// What parse_netlist() makes of `text`; the test fails and it is empty if that is an error.
Netlist parsed(std::string_view text) {
    auto netlist = parse_netlist(text, "n.txt");
    if (!netlist) {
        ADD_FAILURE() << netlist.error().context;
        return {};
    }
    return *std::move(netlist);
}

constexpr std::string_view kDump =
    "#\n# Topology file: generated on a Monday\n#\n\n"
    "vendid=0x2c9\ndevid=0xd2f0\nsysimgguid=0xa1\nswitchguid=0xa1(a1)\n"
    "Switch\t41 \"S-00000000000000a1\"\t\t# \"MF0;edge-1:X/U1\" enhanced port 0 lid 16 lmc 0\n"
    "[1]\t\"H-00000000000000b0\"[1](b1) \t\t# \"node-7 HCA-1\" lid 12 4xHDR\n"
    "[2]\t\"H-00000000000000c0\"[2](c2) \t\t# \"Aggregation Node of it\" lid 13 4xEDR s=3 w=2\n"
    "[5]\t\"S-00000000000000a1\"[6]\t\t# \"MF0;edge-1:X/U1\" lid 16 4xFDR10\n"
    "[6]\t\"S-00000000000000a1\"[5]\t\t# \"MF0;edge-1:X/U1\" lid 16 4xFDR10\n\n"
    "caguid=0xb0\nCa\t1 \"H-00000000000000b0\"\t\t# \"node-7 HCA-1\"\n"
    "[1](b1) \t\"S-00000000000000a1\"[1]\t\t# lid 12 lmc 1 \"MF0;edge-1:X/U1\" lid 16 4xHDR\n\n"
    "caguid=0xc0\nCa\t2 \"H-00000000000000c0\"\t\t# \"Aggregation Node of it\"\n"
    "[2](c2) \t\"S-00000000000000a1\"[2]\t\t# lid 13 lmc 0 \"MF0;edge-1:X/U1\" lid 16 4xEDR\n";

TEST(Netlist, ReadsADump) {
    const Netlist netlist = parsed(kDump);
    EXPECT_TRUE(netlist.notes.empty());
    const Fabric& fabric = netlist.fabric;
    ASSERT_EQ(fabric.nodes.size(), 3U);
    const Node& edge = fabric.nodes[0];
    EXPECT_TRUE(edge.is_switch());
    EXPECT_EQ(edge.name, "S-00000000000000a1");
    EXPECT_EQ(edge.guid, 0xa1U);
    EXPECT_EQ(edge.port_count, 41U);
    EXPECT_EQ(edge.end_ports.at(0), (EndPort{0xa1, 16, 0}));
    EXPECT_EQ(fabric.find_node("MF0;edge-1:X/U1"), 0U);
    EXPECT_EQ(fabric.nodes[1].host, "node-7");
    EXPECT_EQ(fabric.nodes[1].end_ports.at(0), (EndPort{0xb1, 12, 1}));
    EXPECT_EQ(fabric.nodes[2].host, "H-00000000000000c0");
    EXPECT_EQ(fabric.nodes[2].end_ports.at(1), (EndPort{0xc2, 13, 0}));
    ASSERT_EQ(fabric.links.size(), 3U);
    EXPECT_EQ(fabric.links[0].name, "S-00000000000000a1:5-S-00000000000000a1:6");
    EXPECT_EQ(fabric.links[0].speed.value, 41'250'000'000);
    EXPECT_EQ(fabric.links[1].name, "H-00000000000000b0:1-S-00000000000000a1:1");
    EXPECT_EQ(fabric.links[1].speed.value, 200'000'000'000);
}

TEST(Netlist, LostTabsCarriageReturnsAndPromptsDoNotMatter) {
    std::string text = "=~=~=~= log =~=~=\r\nnode# ibnetdiscover\r\n";
    for (const char c : kDump) {
        if (c == '\n') text += '\r';
        if (c != '\t') text += c;
    }
    text += "\rnode [ ha-active ] (config) # ";
    const Netlist netlist = parsed(text);
    EXPECT_EQ(netlist.fabric, parsed(kDump).fabric);
    ASSERT_EQ(netlist.notes.size(), 3U);
    EXPECT_EQ(netlist.notes[2],
              "n.txt:24: left out, taken for a terminal's: \"node [ ha-active ] (config) #\"");
}

TEST(Netlist, ReadsHandWrittenNetlists) {
    const Netlist netlist = parsed(
        "Switch 4 \"edge\"\n[1] \"alpha\"[1]\n[2] \"beta\"[1]\n"
        "Hca 1 \"alpha\"\n[1] \"edge\"[1]\nHca 1 \"beta\"\n");
    ASSERT_EQ(netlist.fabric.links.size(), 2U);
    EXPECT_EQ(netlist.fabric.links[1].name, "beta:1-edge:2");
    EXPECT_EQ(netlist.fabric.nodes[1].host, "alpha");
    ASSERT_EQ(netlist.notes.size(), 1U);
    EXPECT_EQ(netlist.notes[0],
              "n.txt:3: told from this end only: \"beta\" on line 6 says nothing of its port [1]");
}

TEST(Netlist, NodesOnlyNeighboursTellOfAreTakenWithANote) {
    const Netlist netlist = parsed(
        "Switch 4 \"S-00000000000000a1\"\n"
        "[3] \"H-00000000000000b0\"[2](b2) # \"n1 HCA-1\" lid 7 4xNDR\n");
    ASSERT_EQ(netlist.fabric.nodes.size(), 2U);
    const Node& implied = netlist.fabric.nodes[1];
    EXPECT_EQ(implied.guid, 0xb0U);
    EXPECT_EQ(implied.port_count, 2U);
    EXPECT_EQ(implied.end_ports.at(1), (EndPort{0xb2, 7, 0}));
    EXPECT_EQ(implied.host, "n1");
    ASSERT_EQ(netlist.notes.size(), 1U);
    EXPECT_EQ(netlist.notes[0],
              "n.txt:2: \"H-00000000000000b0\" has no Switch or Ca line; taken "
              "from what its neighbours say");
}

TEST(Netlist, ContradictionsNameBothLines) {
    EXPECT_EQ(refusal("Switch 4 \"a\"\n[1] \"b\"[1]\nSwitch 4 \"b\"\n[1] \"a\"[2]\n"),
              "n.txt:2: \"a\"[1] is cabled to \"b\"[1] here, but on line 4 that is cabled to "
              "\"a\"[2]");
    EXPECT_EQ(refusal("Switch 4 \"a\"\n[1] \"c\"[1]\nSwitch 4 \"b\"\n[1] \"c\"[1]\nHca 1 \"c\"\n"),
              "n.txt:4: \"b\"[1] is cabled to \"c\"[1] here, but on line 2 that is cabled to "
              "\"a\"[1]");
    EXPECT_EQ(refusal("Switch 4 \"a\"\n[1] \"b\"[1]\n[1] \"b\"[2]\nSwitch 4 \"b\"\n"),
              "n.txt:3: port [1] was told of before, on line 2");
    EXPECT_EQ(refusal("Switch 4 \"a\"\nHca 1 \"a\"\n"),
              "n.txt:2: node \"a\" was described before, on line 1");
    EXPECT_EQ(refusal("Switch 4 \"a\"\n[1] \"b\"[3]\n\nHca 2 \"b\"\n"),
              "n.txt:2: port \"b\"[3] does not exist: line 4 gives it 2 ports");
    const Netlist rates = parsed(
        "Switch 4 \"a\"\n[1] \"b\"[1] # \"b\" lid 0 4xHDR\n"
        "Switch 4 \"b\"\n[1] \"a\"[1] # \"a\" lid 0 4xEDR\n");
    EXPECT_EQ(rates.fabric.links.at(0).speed.value, 100'000'000'000);
    EXPECT_EQ(rates.notes.at(0),
              "n.txt:2: line 4 gives this cable another rate; the lower is taken");
}

TEST(Netlist, GarbageIsRefusedWithItsLine) {
    EXPECT_EQ(refusal(""), "n.txt: no Switch or Ca in it");
    EXPECT_EQ(refusal("# only a comment\n"), "n.txt: no Switch or Ca in it");
    EXPECT_EQ(refusal("#StartDevice,StartPort\nA,Port 1,B,Port 2\n"),
              "n.txt:2: not a line of a netlist: \"A,Port 1,B,Port 2\"");
    EXPECT_EQ(refusal("\n[1] \"a\"[2]\n"),
              "n.txt:2: a port before the first Switch or Ca: whose is it?");
    EXPECT_EQ(refusal("Switch 4 \"a\"\n[1] \"b[2]\n"),
              "n.txt:2: not a port line: \"[1] \"b[2]\"; one is [1] \"S-...\"[2]");
    EXPECT_EQ(refusal("Switch 4 \"a\"\n[5] \"b\"[2]\n"),
              "n.txt:2: port [5] does not exist (\"a\" has ports 1 ... 4)");
    EXPECT_EQ(refusal("Switch 999 \"a\"\n"), "n.txt:1: \"a\" has 999 ports; a node has 1 to 254");
    EXPECT_EQ(refusal("Switch 4 \"a\"\n[1] \"zzz\"[2]\n"), "n.txt:2: no node \"zzz\" in the file");
    EXPECT_EQ(refusal("Switch 4 \"a\"\n[1] \"a\"[1]\n"), "n.txt:2: a port cabled to itself");
    EXPECT_EQ(refusal("switchguid=zebra\nSwitch 4 \"a\"\n"),
              "n.txt:1: not a line of a netlist: \"switchguid=zebra\"");
    EXPECT_EQ(refusal("# weir node tier=3\n"),
              "n.txt:1: a \"# weir\" line before the node it is about");
    EXPECT_EQ(refusal("Switch 4 \"a\"\n# weir node teir=3\n"),
              "n.txt:2: cannot read \"teir\" of a \"# weir\" line");
    EXPECT_EQ(read_netlist_file("/no/such/file").error().code, ErrorCode::kNotFound);
}

void expect_round_trip(const Fabric& fabric) {
    const Netlist back = parsed(format_netlist(fabric));
    EXPECT_TRUE(back.notes.empty());
    EXPECT_EQ(back.fabric, fabric);
}

TEST(Netlist, BuiltFabricsSurviveTheRoundTrip) {
    expect_round_trip(*build_single_switch({.hosts = 3, .hcas = 2}));
    expect_round_trip(*build_fat_tree({.levels = 3, .radix = 4, .hosts = 16}));
    expect_round_trip(*build_rail_optimised({.radix = 8, .hosts = 8, .rails = 4}));
    expect_round_trip(*build_dragonfly({}));
    expect_round_trip(*build_torus({.dims = {3, 3, 2}, .hosts_per_switch = 2}));
}

/// Any valid fabric, odd ones preferred: loops, unused ports, several cards, all speeds, labels.
Fabric arbitrary_fabric(std::uint64_t seed) {
    Rng rng(seed);
    const auto draw = [&rng](std::uint64_t bound) {
        return static_cast<std::uint32_t>(rng.below(bound));
    };
    const auto maybe = [&draw](std::optional<std::uint32_t>& label) {
        if (draw(2) == 0) label = draw(100);
    };
    constexpr std::int64_t kSpeeds[] = {2'500'000'000,   56'250'000'000,  41'250'000'000,
                                        400'000'000'000, 300'000'000'000, 1'000};
    constexpr std::uint32_t kWidths[] = {1, 2, 4, 8, 12};
    constexpr const char* kDescriptions[] = {"", "MF0;x y", "n HCA-1", " # [1] lid 4 ", "\xc3\xa4"};
    Fabric fabric;
    fabric.name = "any";
    fabric.options.mtu = {256 << draw(5)};
    fabric.options.data_lanes = 1 + draw(8);
    fabric.options.delay = {draw(1000)};
    fabric.options.link_layer = draw(2) == 0 ? LinkLayer::kEthernet : LinkLayer::kInfiniband;
    const std::uint32_t nodes = 1 + draw(12);
    std::vector<PortId> free_ports;
    for (NodeIndex i = 0; i < nodes; ++i) {
        const std::string name = "n" + std::to_string(i);
        const PortNumber ports = 1 + draw(6);
        Node node = draw(2) == 0 ? make_switch(i, name, ports) : make_hca(i, name, "h", ports);
        if (draw(2) == 0) node.description = kDescriptions[draw(5)];
        if (draw(3) == 0) node.guid += 7;
        for (EndPort& end_port : node.end_ports) {
            end_port.lid = draw(50000);
            end_port.lmc = static_cast<std::uint8_t>(draw(8));
        }
        maybe(node.tier);
        maybe(node.pod);
        maybe(node.rail);
        maybe(node.su);
        fabric.nodes.push_back(std::move(node));
        for (PortNumber port = 1; port <= ports; ++port)
            free_ports.push_back({i, port});
    }
    while (free_ports.size() >= 2 && draw(20) != 0) {
        Link link;
        for (PortId* end : {&link.a, &link.b}) {
            const std::uint32_t at = draw(free_ports.size());
            *end = free_ports[at];
            free_ports.erase(free_ports.begin() + at);
        }
        link.speed = {kSpeeds[draw(6)]};
        link.width = kWidths[draw(5)];
        link.delay = {draw(3)};
        fabric.links.push_back(link);
    }
    fabric.finish_links();
    return fabric;
}

TEST(Netlist, AnyFabricSurvivesTheRoundTrip) {
    rc::check("parse(format(f)) == f", [](std::uint64_t seed) {
        const Fabric fabric = arbitrary_fabric(seed);
        RC_ASSERT(fabric.validate().has_value());
        const auto back = parse_netlist(format_netlist(fabric), "n.txt");
        RC_ASSERT(back.has_value());
        RC_ASSERT(back->fabric == fabric);
    });
}

TEST(Netlist, ReadsDumpsOfRealClusters) {
    const char* const data = std::getenv("WEIR_DATA_DIR");
    const std::string root = data == nullptr ? "" : std::string(data) + "/topology/";
    if (!std::filesystem::exists(root + "selene.compute.txt")) GTEST_SKIP() << "skipped: no data";
    struct Case {
        const char* file;
        std::size_t switches, hcas, links, notes;
    };
    const Case cases[] = {
        {"selene.compute.txt", 666, 4341, 12852, 0},
        {"small_topo_file", 2, 13, 16, 0},
        {"ibnetdiscover_director.txt", 400, 2328, 8723, 2},
        {"superbench/ib_traffic_topo_aware_ibnetdiscover.txt", 8, 11, 18, 1},
    };
    for (const Case& c : cases) {
        const auto start = std::chrono::steady_clock::now();
        const auto netlist = read_netlist_file(root + c.file);
        const std::chrono::duration<double, std::milli> took =
            std::chrono::steady_clock::now() - start;
        ASSERT_TRUE(netlist) << netlist.error().context;
        const Fabric& fabric = netlist->fabric;
        std::printf("%s: %zu switches, %zu HCAs, %zu links, %zu notes, %.1f ms\n", c.file,
                    fabric.switch_count(), fabric.hca_count(), fabric.links.size(),
                    netlist->notes.size(), took.count());
        EXPECT_EQ(fabric.switch_count(), c.switches) << c.file;
        EXPECT_EQ(fabric.hca_count(), c.hcas) << c.file;
        EXPECT_EQ(fabric.links.size(), c.links) << c.file;
        EXPECT_EQ(netlist->notes.size(), c.notes) << c.file;
        const auto back = parse_netlist(format_netlist(fabric), "export");
        ASSERT_TRUE(back) << back.error().context;
        EXPECT_TRUE(back->fabric == fabric) << c.file;
    }
    EXPECT_EQ(read_netlist_file(root + "garbage.ndt").error().context.substr(root.size()),
              "garbage.ndt:1: not a line of a netlist: \"cyber sport > usual sport\"");
}

}  // namespace
}  // namespace weir::topology

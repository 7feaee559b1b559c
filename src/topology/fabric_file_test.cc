// SPDX-License-Identifier: Apache-2.0
#include "topology/fabric_file.h"

#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdlib>
#include <set>

namespace weir::topology {
namespace {

/// "context | hint" of the refusal of a file "f.yaml" with this text.
std::string refusal(std::string_view text) {
    const auto fabric = decode_fabric(text, "f.yaml");
    if (fabric) return "accepted";
    return fabric.error().hint.empty() ? fabric.error().context
                                       : fabric.error().context + " | " + fabric.error().hint;
}

std::string source_path(const std::string& path) {
    const char* root = std::getenv("WEIR_SOURCE_DIR");
    return (root == nullptr ? std::string(".") : std::string(root)) + "/" + path;
}

constexpr std::string_view kPair = R"(
name: lab-1
link_layer: ethernet
mtu: 1024
lanes: 2
speed: 100Gbps
buffer: 1MiB
delay: 50ns
topology:
  nodes:
    s0: {kind: weir_switch, labels: {weir-tier: 1, weir-pod: 3}}
    h0: {kind: weir_host, guid: 0x1234}
    h1: {kind: weir_host, hcas: 2, description: "node one"}
  links:
    - {endpoints: ["s0:1", "h0:1"], speed: 25Gbps}
    - endpoints: ["h1/1:1", "s0:3"]
)";

TEST(FabricFile, ReadsAnExplicitList) {
    const auto fabric = decode_fabric(kPair, "f.yaml");
    ASSERT_TRUE(fabric) << fabric.error().context;
    EXPECT_EQ(fabric->name, "lab-1");
    EXPECT_EQ(fabric->options.link_layer, LinkLayer::kEthernet);
    EXPECT_EQ(fabric->options.mtu.value, 1024);
    EXPECT_EQ(fabric->options.data_lanes, 2U);
    EXPECT_EQ(fabric->options.buffer.value, 1 << 20);
    ASSERT_EQ(fabric->nodes.size(), 4U);
    EXPECT_EQ(fabric->nodes[0].port_count, 3U);
    EXPECT_EQ(fabric->nodes[0].tier, 1U);
    EXPECT_EQ(fabric->nodes[0].pod, 3U);
    EXPECT_EQ(fabric->nodes[1].guid, 0x1234U);
    EXPECT_EQ(fabric->nodes[1].end_ports.at(0).guid, 0x1235U);
    EXPECT_EQ(fabric->nodes[3].name, "h1/1");
    EXPECT_EQ(fabric->nodes[3].host, "h1");
    EXPECT_EQ(fabric->nodes[3].rail, 1U);
    EXPECT_EQ(fabric->nodes[3].description, "node one");
    ASSERT_EQ(fabric->links.size(), 2U);
    EXPECT_EQ(fabric->links[0].name, "h0:1-s0:1");
    EXPECT_EQ(fabric->links[0].speed.value, 25'000'000'000);
    EXPECT_EQ(fabric->links[0].width, 1U);
    EXPECT_EQ(fabric->links[1].speed.value, 100'000'000'000);
    EXPECT_EQ(fabric->links[1].delay.value, 50'000);
}

TEST(FabricFile, HasSensibleDefaults) {
    const auto fabric = decode_fabric("fabric: {shape: single-switch, hosts: 2}", "f.yaml");
    ASSERT_TRUE(fabric);
    EXPECT_EQ(fabric->options, Options{});
    EXPECT_EQ(fabric->name, "fabric");
    EXPECT_EQ(fabric->links.at(0).name, "h0:1-s0:1");
}

TEST(FabricFile, BuildsEveryShapeAndBothSpellings) {
    const std::pair<const char*, std::size_t> cases[] = {
        {"{shape: single-switch, hosts: 3, hcas: 2, ports: 8}", 7},
        {"{shape: fat-tree, levels: 3, radix: 4, hosts: 16, taper: \"1:1\"}", 36},
        {"{shape: rail-optimised, radix: 8, hosts: 8, rails: 4, su_hosts: 4}", 44},
        {"{shape: rail-optimized, radix: 8, hosts: 8, rails: 4}", 44},
        {"{shape: dragonfly, a: 4, h: 2, p: 2, g: 9}", 108},
        {"{shape: torus, dims: [3, 4, 2], hosts_per_switch: 2}", 72},
    };
    for (const auto& [block, nodes] : cases) {
        const auto fabric = decode_fabric(std::string("fabric: ") + block, "f.yaml");
        ASSERT_TRUE(fabric) << block << ": " << fabric.error().context;
        EXPECT_EQ(fabric->nodes.size(), nodes) << block;
    }
}

TEST(FabricFile, UnknownKeysAreErrorsWithASuggestion) {
    EXPECT_EQ(
        refusal("topologie: {}"),
        "f.yaml:1:1: unknown key \"topologie\" in a fabric file | did you mean \"topology\"?");
    EXPECT_EQ(refusal("topology:\n  nodes: {}\n  lnks: []"),
              "f.yaml:3:3: unknown key \"lnks\" in topology | did you mean \"links\"?");
    EXPECT_EQ(refusal("fabric: {shape: torus, dims: [2, 2], radix: 3}"),
              "f.yaml:1:38: unknown key \"radix\" in fabric of shape torus");
    EXPECT_EQ(refusal("fabric:\n  shape: fat-teee\n"),
              "f.yaml:2:10: unknown shape \"fat-teee\" | did you mean \"fat-tree\"?");
    EXPECT_EQ(refusal("topology: {nodes: {s0: {kind: weir_swich}}}"),
              "f.yaml:1:31: kind is neither weir_switch nor weir_host | did you mean "
              "\"weir_switch\"?");
}

TEST(FabricFile, RefusesBadValuesWhereTheyStand) {
    EXPECT_EQ(refusal("name: a\nname: b\n"), "f.yaml:2:1: key \"name\" given twice");
    EXPECT_EQ(refusal("speed: 400\n"),
              "f.yaml:1:8: rate \"400\" has no unit | write it as 400Gbps");
    EXPECT_EQ(refusal("lanes: 9"), "f.yaml:1:8: lanes is 9; it lies within 1 ... 8");
    EXPECT_EQ(refusal("lanes: four"), "f.yaml:1:8: lanes is not a whole number: \"four\"");
    EXPECT_EQ(refusal("lanes: [4]"), "f.yaml:1:8: lanes is not a number");
    EXPECT_EQ(refusal("mtu: 1500"), "f.yaml:1:6: mtu is 1500; it is 256, 512, 1024, 2048 or 4096");
    EXPECT_EQ(refusal("buffer: 99GiB"), "f.yaml:1:9: buffer 99GiB lies not within 1KiB ... 1GiB");
    EXPECT_EQ(refusal("name: a b"),
              "f.yaml:1:7: name is up to 63 letters, digits, \"-\", \"_\" and \".\"");
    EXPECT_EQ(refusal("fabric: {shape: single-switch, hosts: 1000000000}"),
              "f.yaml:1:39: hosts is 1000000000; it lies within 1 ... 200000");
    EXPECT_EQ(refusal("fabric: {shape: torus, dims: [1000, 1000]}"),
              "f.yaml:1:9: 2000000 nodes asked for; the limit is 200000");
    EXPECT_EQ(refusal("fabric: {shape: fat-tree, radix: 4, hosts: 99}"),
              "f.yaml:1:9: 50 leaves needed, but a spine of radix 4 reaches 4 | at most 8 hosts "
              "fit; use levels: 3 or a larger radix");
}

TEST(FabricFile, ReadsRatesAndArbitration) {
    const auto plain = decode_fabric("fabric: {shape: single-switch, hosts: 2}", "f.yaml");
    ASSERT_TRUE(plain);
    EXPECT_FALSE(plain->options.rates_enforced);
    const auto fabric = decode_fabric(
        "lanes: 3\nrates: enforced\narbitration:\n  high_limit: 0\n  lanes:\n"
        "    0: {weight: 192}\n    2: {weight: 255, priority: high}\n"
        "fabric: {shape: single-switch, hosts: 2}",
        "f.yaml");
    ASSERT_TRUE(fabric) << fabric.error().context;
    EXPECT_TRUE(fabric->options.rates_enforced);
    const auto& arbitration = fabric->options.arbitration;
    EXPECT_EQ(arbitration.high_limit, 0U);
    EXPECT_EQ(arbitration.lanes[0], (LaneShare{192, false}));
    EXPECT_EQ(arbitration.lanes[1], LaneShare{});
    EXPECT_EQ(arbitration.lanes[2], (LaneShare{255, true}));
}

TEST(FabricFile, RefusesBadRatesAndArbitrationWhereTheyStand) {
    const auto with = [](std::string_view text) {
        return refusal(std::string(text) + "\nfabric: {shape: single-switch, hosts: 2}");
    };
    EXPECT_EQ(with("rates: enforce"),
              "f.yaml:1:8: rates is neither unlimited nor enforced | did you mean \"enforced\"?");
    EXPECT_EQ(with("rates: 10Gbps"), "f.yaml:1:8: rates is neither unlimited nor enforced");
    EXPECT_EQ(with("rates: []"), "f.yaml:1:8: rates is not a text");
    EXPECT_EQ(with("rate: enforced"),
              "f.yaml:1:1: unknown key \"rate\" in a fabric file | did you mean \"rates\"?");
    EXPECT_EQ(with("speed: 1Mbps\nrates: enforced"),
              "f.yaml:2:8: link h0:1-s0:1 of 1Mbps is too slow for its rate to be enforced | give "
              "it 10Mbps or more, or leave the rates unlimited");
    EXPECT_EQ(with("arbitration: 3"), "f.yaml:1:14: arbitration is not a mapping");
    EXPECT_EQ(with("arbitration: {high_limt: 3}"),
              "f.yaml:1:15: unknown key \"high_limt\" in arbitration | did you mean "
              "\"high_limit\"?");
    EXPECT_EQ(with("arbitration: {high_limit: 256}"),
              "f.yaml:1:27: high_limit is 256; it lies within 0 ... 255");
    EXPECT_EQ(with("arbitration:\n  lanes: {0: {weight: 0}}"),
              "f.yaml:2:23: weight is 0; it lies within 1 ... 255");
    EXPECT_EQ(with("arbitration:\n  lanes: {0: {weigth: 9}}"),
              "f.yaml:2:15: unknown key \"weigth\" in a lane | did you mean \"weight\"?");
    EXPECT_EQ(with("arbitration:\n  lanes: {0: {priority: hig}}"),
              "f.yaml:2:25: priority is neither low nor high | did you mean \"high\"?");
    EXPECT_EQ(with("lanes: 2\narbitration:\n  lanes: {2: {weight: 9}}"),
              "f.yaml:3:14: there is no lane 2 | lanes is 2");
    EXPECT_EQ(with("arbitration:\n  lanes: {first: {weight: 9}}"),
              "f.yaml:2:11: unknown key \"first\" in lanes");
    EXPECT_EQ(with("arbitration:\n  lanes: {0: {weight: 9}, 0: {weight: 9}}"),
              "f.yaml:2:27: key \"0\" given twice");
    EXPECT_EQ(with("arbitration: {lanes: [1]}"), "f.yaml:1:22: lanes is not a mapping");
}

TEST(FabricFile, RefusesBadLinksWhereTheyStand) {
    const auto with_links = [](std::string_view links) {
        return refusal(
            "topology:\n  nodes:\n    s0: {kind: weir_switch, ports: 2}\n"
            "    h0: {kind: weir_host}\n    h1: {kind: weir_host, hcas: 2}\n"
            "  links:\n" +
            std::string(links));
    };
    EXPECT_EQ(with_links("    - endpoints: [\"s1:1\", \"h0:1\"]"),
              "f.yaml:7:19: no node \"s1\" | did you mean \"s0\"?");
    EXPECT_EQ(with_links("    - endpoints: [\"s0:3\", \"h0:1\"]"),
              "f.yaml:7:19: port \"s0:3\" does not exist (s0 has ports 1 ... 2)");
    EXPECT_EQ(with_links("    - endpoints: [\"s0:1\", \"h0:1\"]\n    - endpoints: [\"h1/0:1\", "
                         "\"s0:1\"]"),
              "f.yaml:8:29: port \"s0:1\" is linked already, at f.yaml:7:19");
    EXPECT_EQ(with_links("    - endpoints: [\"s0:1\"]"),
              "f.yaml:7:18: endpoints is not a list of two ports | write endpoints: [\"s0:1\", "
              "\"h0:1\"]");
    EXPECT_EQ(with_links("    - endpoints: [\"s0:e1\", \"h0:1\"]"),
              "f.yaml:7:19: endpoint \"s0:e1\" is not node:port | ports are numbered from 1: "
              "\"s0:1\"");
    EXPECT_EQ(with_links("    - endpoints: [\"s0:1\", \"h1:1\"]"),
              "f.yaml:7:27: host \"h1\" has several HCAs | name one of them: \"h1/0\"");
    EXPECT_EQ(with_links("    - {speed: 1Gbps}"), "f.yaml:7:7: a link lacks \"endpoints\"");
}

TEST(FabricFile, RefusesWhatIsNoFabric) {
    EXPECT_EQ(refusal(""), "f.yaml: the file is empty");
    EXPECT_EQ(refusal("- a"), "f.yaml:1:1: a fabric file is not a mapping");
    EXPECT_EQ(refusal("a: [\n"), "f.yaml:2:1: not valid YAML: end of sequence flow not found");
    EXPECT_EQ(refusal("name: a\n---\nname: b\n").substr(0, 9), "f.yaml:2:");
    EXPECT_EQ(refusal("name: a"),
              "f.yaml:1:1: neither \"fabric\" nor \"topology\" given | add "
              "fabric: {shape: single-switch, hosts: 2}");
    EXPECT_EQ(refusal("topology: {nodes: {s0: }}"), "f.yaml:1:24: a node is not a mapping");
    EXPECT_EQ(refusal("fabric: {shape: single-switch, hosts: 2}\n...\n"), "accepted");
    EXPECT_NE(refusal("]"), "accepted");
    EXPECT_NE(refusal("fabric: {shape: single-switch, hosts: 2}]"), "accepted");
    EXPECT_NE(refusal(std::string(5000, '[')), "accepted");
    EXPECT_NE(refusal("a: &x [*x]"), "accepted");
    EXPECT_EQ(read_fabric_file("/no/such/file").error().code, ErrorCode::kNotFound);
}

TEST(FabricFile, ReadsTheExamples) {
    struct Case {
        const char* file;
        std::size_t switches, hcas, links;
    };
    const Case cases[] = {{"pair", 1, 2, 2},
                          {"three-switches", 3, 2, 4},
                          {"fat-tree-16", 6, 16, 32},
                          {"rail-32", 12, 32, 64}};
    for (const Case& c : cases) {
        const auto fabric = read_fabric_file(source_path("examples/") + c.file + ".yaml");
        ASSERT_TRUE(fabric) << fabric.error().context;
        EXPECT_EQ(fabric->name, c.file);
        EXPECT_EQ(fabric->switch_count(), c.switches) << c.file;
        EXPECT_EQ(fabric->hca_count(), c.hcas) << c.file;
        EXPECT_EQ(fabric->links.size(), c.links) << c.file;
    }
}

/// The schema's keys of one object.
std::vector<std::string> properties(const YAML::Node& object) {
    std::vector<std::string> keys;
    for (const auto& item : object["properties"])
        keys.push_back(item.first.as<std::string>());
    std::sort(keys.begin(), keys.end());
    return keys;
}

TEST(FabricFile, SchemaHasTheDecodersKeys) {
    const YAML::Node schema = YAML::LoadFile(source_path("docs/reference/fabric.schema.json"));
    const YAML::Node definitions = schema["definitions"];
    std::map<std::string, std::vector<std::string>> found;
    found[""] = properties(schema);
    for (const char* name : {"arbitration", "lane", "topology", "node", "labels", "link"})
        found[name] = properties(definitions[name]);
    for (const auto& shape : definitions["fabric"]["oneOf"]) {
        for (const auto& name : shape["properties"]["shape"]["enum"]) {
            if (name.as<std::string>() != "rail-optimized")
                found["fabric/" + name.as<std::string>()] = properties(shape);
        }
    }
    auto known = fabric_file_keys();
    for (auto& [section, keys] : known)
        std::sort(keys.begin(), keys.end());
    EXPECT_EQ(found, known);
}

}  // namespace
}  // namespace weir::topology

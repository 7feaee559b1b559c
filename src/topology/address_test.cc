// SPDX-License-Identifier: Apache-2.0
#include "topology/address.h"

#include <gtest/gtest.h>

#include <string>

#include "topology/builders.h"
#include "topology/fabric_file.h"

namespace weir::topology {
namespace {

TEST(Address, DefaultsAreCounted) {
    EXPECT_EQ(to_text(default_ipv4(0)), "100.64.0.1");
    EXPECT_EQ(to_text(default_ipv4(255)), "100.64.1.0");
    EXPECT_EQ(to_text(default_ipv4(3'999'999)), "100.125.9.0");
    EXPECT_EQ(to_text(default_ipv6(0)), "fd57:6569:72::1");
    EXPECT_EQ(to_text(default_ipv6(0x12344)), "fd57:6569:72::1:2345");
}

TEST(Address, ParsesWhatAHostMayHave) {
    EXPECT_EQ(to_text(std::get<Ipv4>(*parse_address("10.1.2.3"))), "10.1.2.3");
    EXPECT_EQ(to_text(std::get<Ipv6>(*parse_address("FD00::5"))), "fd00::5");
    for (const auto* bad : {"", "10.1.2", "10.1.2.256", "h0", "127.0.0.1", "0.0.0.0", "224.0.0.1",
                            "255.255.255.255", "::", "::1", "ff02::1", "::ffff:1.2.3.4", "1::2::3"})
        EXPECT_FALSE(parse_address(bad).has_value()) << bad;
}

Result<Fabric> read(const std::string& nodes) {
    return decode_fabric("name: t\ntopology:\n  nodes:\n    s0: {kind: weir_switch}\n" + nodes +
                             "  links:\n    - endpoints: [\"h0:1\", \"s0:1\"]\n",
                         "f.yaml");
}

TEST(Address, FileGivesThem) {
    auto fabric = read(
        "    h0: {kind: weir_host, addresses: [\"10.0.0.7\", \"fd00::7\"]}\n"
        "    h1: {kind: weir_host, hcas: 2, addresses: [\"10.0.0.8\", \"10.0.0.9\"]}\n");
    ASSERT_TRUE(fabric.has_value()) << fabric.error().context;
    ASSERT_TRUE(fill_addresses(*fabric).has_value());
    EXPECT_EQ(to_text(fabric->nodes[1].end_ports[0].ipv4), "10.0.0.7");
    EXPECT_EQ(to_text(fabric->nodes[1].end_ports[0].ipv6), "fd00::7");
    EXPECT_EQ(to_text(fabric->nodes[2].end_ports[0].ipv4), "10.0.0.8");
    EXPECT_EQ(to_text(fabric->nodes[3].end_ports[0].ipv4), "10.0.0.9");
    EXPECT_EQ(to_text(fabric->nodes[3].end_ports[0].ipv6), "fd57:6569:72::3");
}

TEST(Address, FileErrorsHaveTheirPlace) {
    const auto place = [](const std::string& nodes) {
        const auto fabric = read(nodes);
        return fabric ? std::string("read") : fabric.error().context;
    };
    EXPECT_EQ(place("    h0: {kind: weir_host, addresses: [\"10.0.0.7\"]}\n"
                    "    h1: {kind: weir_host, addresses: [\"10.0.0.7\"]}\n")
                  .substr(0, 12),
              "f.yaml:6:39:");
    EXPECT_EQ(place("    h0: {kind: weir_host, addresses: [\"100.64.0.2\"]}\n"
                    "    h1: {kind: weir_host}\n")
                  .substr(0, 12),
              "f.yaml:5:39:");
    EXPECT_EQ(
        place("    h0: {kind: weir_host, addresses: [\"10.0.0.7\", \"10.0.0.8\"]}\n").substr(0, 12),
        "f.yaml:5:51:");
    EXPECT_EQ(place("    h0: {kind: weir_host, addresses: [\"h0\"]}\n").substr(0, 12),
              "f.yaml:5:39:");
    EXPECT_EQ(place("    h0: {kind: weir_host, addresses: 10.0.0.1}\n").substr(0, 12),
              "f.yaml:5:38:");
}

TEST(Address, ClashWithADefaultIsRefused) {
    auto fabric = build_single_switch({.hosts = 3, .hcas = 1, .ports = 8}, {});
    ASSERT_TRUE(fabric.has_value());
    for (auto& node : fabric->nodes)
        if (node.name == "h0") node.end_ports[0].ipv4 = default_ipv4(2);
    EXPECT_FALSE(fill_addresses(*fabric).has_value());
}

}  // namespace
}  // namespace weir::topology

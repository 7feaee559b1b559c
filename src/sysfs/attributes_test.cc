// SPDX-License-Identifier: Apache-2.0
#include "sysfs/attributes.h"

#include <gtest/gtest.h>

namespace weir::sysfs {
namespace {

DeviceFacts one_port() {
    DeviceFacts device;
    device.name = "weir2";
    device.node = "h0/2";
    device.index = 2;
    device.guid = 0x0057656972000102ULL;
    device.ports = {{1, 0x1f, 0x0057656972000103ULL, 400'000'000'000ULL, 4, true}};
    return device;
}

std::string file(const std::vector<File>& files, std::string_view path) {
    const std::string* text = find_file(files, path);
    return text == nullptr ? "(none)" : *text;
}

TEST(Attributes, device) {
    const auto files = device_files(one_port(), "1.2.3");
    EXPECT_EQ(file(files, "node_guid"), "0057:6569:7200:0102");
    EXPECT_EQ(file(files, "node_desc"), "h0/2 weir2");
    EXPECT_EQ(file(files, "fw_ver"), "1.2.3");
    EXPECT_EQ(file(files, "no_such"), "(none)");
}

TEST(Attributes, infiniband_port) {
    const auto files = device_files(one_port(), "");
    EXPECT_EQ(file(files, "ports/1/gids/0"), "fe80:0000:0000:0000:0057:6569:7200:0103");
    EXPECT_EQ(file(files, "ports/1/gid_attrs/types/0"), "IB/RoCE v1");
    EXPECT_EQ(file(files, "ports/1/gid_attrs/ndevs/0"), "(none)");
    EXPECT_EQ(file(files, "ports/1/link_layer"), "InfiniBand");
    EXPECT_EQ(file(files, "ports/1/lid"), "0x1f");
    EXPECT_EQ(file(files, "ports/1/state"), "4: ACTIVE");
    EXPECT_EQ(file(files, "ports/1/phys_state"), "5: LinkUp");
}

TEST(Attributes, ethernet_port_that_is_down) {
    DeviceFacts device = one_port();
    device.ethernet = true;
    device.ports[0].up = false;
    const auto files = device_files(device, "");
    EXPECT_EQ(file(files, "ports/1/gid_attrs/types/0"), "RoCE v2");
    EXPECT_EQ(file(files, "ports/1/gid_attrs/ndevs/0"), "lo");
    EXPECT_EQ(file(files, "ports/1/link_layer"), "Ethernet");
    EXPECT_EQ(file(files, "ports/1/state"), "1: DOWN");
    EXPECT_EQ(file(files, "ports/1/phys_state"), "3: Disabled");
    EXPECT_EQ(file(pci_files(device, 2), "class"), "0x020000");
}

TEST(Attributes, rates) {
    DeviceFacts device = one_port();
    EXPECT_EQ(file(device_files(device, ""), "ports/1/rate"), "400 Gb/sec (4X NDR)");
    device.ports[0].speed_bits_per_second = 2'500'000'000ULL;
    device.ports[0].width = 1;
    EXPECT_EQ(file(device_files(device, ""), "ports/1/rate"), "2.5 Gb/sec (1X SDR)");
}

TEST(Attributes, names) {
    DeviceFacts device = one_port();
    EXPECT_EQ(verbs_name(device), "uverbs2");
    EXPECT_EQ(pci_name(device), "5745:00:00.2");
    device.index = 19;
    EXPECT_EQ(pci_name(device), "5745:00:02.3");
}

TEST(Attributes, processors) {
    EXPECT_EQ(file(pci_files(one_port(), 0), "local_cpus"), "1");
    EXPECT_EQ(file(pci_files(one_port(), 1), "local_cpulist"), "0");
    EXPECT_EQ(file(pci_files(one_port(), 34), "local_cpus"), "3,ffffffff");
    EXPECT_EQ(file(pci_files(one_port(), 64), "local_cpus"), "ffffffff,ffffffff");
    EXPECT_EQ(file(pci_files(one_port(), 64), "local_cpulist"), "0-63");
}

}  // namespace
}  // namespace weir::sysfs

// SPDX-License-Identifier: Apache-2.0
#include "sysfs/attributes.h"

#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace weir::sysfs {
namespace {

__attribute__((format(printf, 1, 2))) std::string text_of(const char* format, ...) {
    char text[160];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return text;
}

std::string name_in(const char (&field)[arena::kNameBytes]) {
    return {field, strnlen(field, sizeof field)};
}

std::string guid_text(std::uint64_t guid) {
    return text_of("%04" PRIx64 ":%04" PRIx64 ":%04" PRIx64 ":%04" PRIx64, guid >> 48U,
                   (guid >> 32U) & 0xffffU, (guid >> 16U) & 0xffffU, guid & 0xffffU);
}

const char* speed_name(std::uint64_t bits_per_lane) {
    struct Speed {
        std::uint64_t bits;
        const char* name;
    };
    static constexpr Speed kSpeeds[] = {{200'000'000'000ULL, "XDR"}, {100'000'000'000ULL, "NDR"},
                                        {50'000'000'000ULL, "HDR"},  {25'000'000'000ULL, "EDR"},
                                        {14'000'000'000ULL, "FDR"},  {10'000'000'000ULL, "QDR"},
                                        {5'000'000'000ULL, "DDR"}};
    for (const auto& speed : kSpeeds)
        if (bits_per_lane >= speed.bits) return speed.name;
    return "SDR";
}

std::string rate_text(const PortFacts& port) {
    const std::uint64_t tenths = port.speed_bits_per_second / 100'000'000ULL;
    const std::string fraction = tenths % 10 == 0 ? "" : text_of(".%" PRIu64, tenths % 10);
    return text_of("%" PRIu64 "%s Gb/sec (%uX %s)", tenths / 10, fraction.c_str(), port.width,
                   speed_name(port.speed_bits_per_second / std::max(port.width, 1U)));
}

void add_port(const PortFacts& port, bool ethernet, std::vector<File>& files) {
    const std::string at = text_of("ports/%u/", port.number);
    files.push_back({at + "link_layer", ethernet ? "Ethernet" : "InfiniBand"});
    files.push_back({at + "lid", text_of("0x%x", port.lid)});
    files.push_back({at + "lid_mask_count", "0"});
    files.push_back({at + "sm_lid", "0x1"});
    files.push_back({at + "sm_sl", "0"});
    files.push_back({at + "cap_mask", "0x00000000"});
    files.push_back({at + "rate", rate_text(port)});
    files.push_back({at + "pkeys/0", "0xffff"});
    files.push_back({at + "gids/0", "fe80:0000:0000:0000:" + guid_text(port.guid)});
    files.push_back({at + "gid_attrs/types/0", ethernet ? "RoCE v2" : "IB/RoCE v1"});
    // The network that programs of one host reach those of another by.
    if (ethernet) files.push_back({at + "gid_attrs/ndevs/0", "lo"});
    for (auto& file : changing_files(port))
        files.push_back(std::move(file));
}

/// As the kernel prints a set of CPUs: words of 32 from the highest, "3,ffffffff".
std::string cpu_mask(std::uint32_t cpus) {
    std::string mask;
    for (std::uint32_t word = (cpus + 31) / 32; word-- > 0;) {
        const std::uint32_t left = cpus - word * 32;
        const std::uint32_t bits = left >= 32 ? 0xffffffffU : (1U << left) - 1;
        mask += text_of(mask.empty() ? "%x" : ",%08x", bits);
    }
    return mask;
}

}  // namespace

std::vector<std::uint32_t> hcas_of_host(arena::Arena arena, std::string_view host) {
    std::vector<std::uint32_t> nodes;
    for (std::uint32_t n = 0; n < arena.header().node_count; ++n) {
        const auto& node = arena.node(n);
        if (node.kind == arena::NodeKind::kHca && name_in(node.host) == host) nodes.push_back(n);
    }
    return nodes;
}

DeviceFacts facts_of(arena::Arena arena, std::uint32_t node, std::uint32_t index) {
    const auto& entry = arena.node(node);
    DeviceFacts device;
    device.name = text_of("weir%u", index);
    device.node = name_in(entry.name);
    device.index = index;
    device.guid = entry.guid;
    device.ethernet = arena.header().link_layer == 2;  // IBV_LINK_LAYER_ETHERNET
    for (std::uint32_t number = 1; number <= entry.port_count; ++number) {
        const auto& port = arena.port(entry.first_port + number - 1);
        device.ports.push_back({number, port.lid, port.guid, port.speed_bits_per_second, port.width,
                                port.up.load() != 0 && port.peer != arena::kNone});
    }
    return device;
}

std::string verbs_name(const DeviceFacts& device) {
    return text_of("uverbs%u", device.index);
}

std::string pci_name(const DeviceFacts& device) {
    return std::string(kPciDomain) + text_of(":00:%02x.%x", device.index / 8, device.index % 8);
}

std::vector<File> device_files(const DeviceFacts& device, std::string_view version) {
    std::vector<File> files = {{"board_id", "weir"},
                               {"hca_type", "weir"},
                               {"hw_rev", "1"},
                               {"node_type", "1: CA"},
                               {"fw_ver", std::string(version)},
                               {"node_desc", device.node + " " + device.name},
                               {"node_guid", guid_text(device.guid)},
                               {"sys_image_guid", guid_text(device.guid)}};
    for (const auto& port : device.ports)
        add_port(port, device.ethernet, files);
    return files;
}

std::vector<File> changing_files(const PortFacts& port) {
    const std::string at = text_of("ports/%u/", port.number);
    return {{at + "state", port.up ? "4: ACTIVE" : "1: DOWN"},
            {at + "phys_state", port.up ? "5: LinkUp" : "3: Disabled"}};
}

std::vector<File> verbs_files(const DeviceFacts& device) {
    // Its node is a link to /dev/null, whose number this is.
    return {{"ibdev", device.name}, {"abi_version", "1"}, {"dev", "1:3"}};
}

std::vector<File> pci_files(const DeviceFacts& device, std::uint32_t cpus) {
    cpus = std::max(cpus, 1U);
    const std::string vendor = text_of("0x%04x", kPciVendor);
    const std::string model = text_of("0x%04x", kPciDevice);
    return {{"vendor", vendor},
            {"device", model},
            {"subsystem_vendor", vendor},
            {"subsystem_device", model},
            {"class", device.ethernet ? "0x020000" : "0x020700"},
            {"revision", "0x00"},
            {"numa_node", "-1"},
            {"local_cpus", cpu_mask(cpus)},
            {"local_cpulist", cpus == 1 ? "0" : text_of("0-%u", cpus - 1)},
            {"uevent", text_of("PCI_CLASS=%s\nPCI_ID=%04X:%04X\nPCI_SLOT_NAME=%s",
                               device.ethernet ? "20000" : "20700", kPciVendor, kPciDevice,
                               pci_name(device).c_str())}};
}

const std::string* find_file(const std::vector<File>& files, std::string_view path) {
    const auto found = std::find_if(files.begin(), files.end(),
                                    [path](const File& file) { return file.path == path; });
    return found == files.end() ? nullptr : &found->text;
}

}  // namespace weir::sysfs

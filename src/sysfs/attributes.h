// SPDX-License-Identifier: Apache-2.0
// What sysfs would say of an adapter: names and contents of its files, in the form that Linux gives
// them (Documentation/ABI/stable/sysfs-class-infiniband). Text without the final newline, which
// the files have and ibv_read_sysfs_file() takes off.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "arena/layout.h"

namespace weir::sysfs {

/// PCI domain of our functions. No machine has so many, so no real device is hidden by one.
inline constexpr std::string_view kPciDomain = "5745";
inline constexpr std::uint32_t kPciVendor = 0x5745;  // "WE": no registered vendor.
inline constexpr std::uint32_t kPciDevice = 1;

struct PortFacts {
    std::uint32_t number = 1;
    std::uint32_t lid = 0;
    std::uint64_t guid = 0;  ///< Host byte order; the lower half of GID 0.
    std::uint64_t speed_bits_per_second = 0;
    std::uint32_t width = 4;
    bool up = false;
};

struct DeviceFacts {
    std::string name;         ///< "weir0".
    std::string node;         ///< Its name in the fabric.
    std::uint32_t index = 0;  ///< Among the devices of its host.
    std::uint64_t guid = 0;
    bool ethernet = false;  ///< Link layer; InfiniBand else.
    std::vector<PortFacts> ports;
};

struct File {
    std::string path;  ///< Within its folder: "node_guid", "ports/1/gids/0".
    std::string text;
};

/// Node indices of a host's HCAs, in the order in which they are weir0, weir1, …
std::vector<std::uint32_t> hcas_of_host(arena::Arena arena, std::string_view host);

/// The facts of HCA `node`, of which `index` others of its host come before it.
DeviceFacts facts_of(arena::Arena arena, std::uint32_t node, std::uint32_t index);

/// "uverbs0", "5745:00:00.0".
std::string verbs_name(const DeviceFacts& device);
std::string pci_name(const DeviceFacts& device);

/// Files of /sys/class/infiniband/<name>/. Those of ports without `ports` if there are none.
std::vector<File> device_files(const DeviceFacts& device, std::string_view version);
/// Those of one port that change while the fabric is up, also within that folder.
std::vector<File> changing_files(const PortFacts& port);
/// Files of /sys/class/infiniband_verbs/uverbs<index>/.
std::vector<File> verbs_files(const DeviceFacts& device);
/// Files of its PCI function. `cpus` processors may use it, all alike: there is no hardware that
/// would be nearer to some.
std::vector<File> pci_files(const DeviceFacts& device, std::uint32_t cpus);

/// The text of the file at `path`, or null.
const std::string* find_file(const std::vector<File>& files, std::string_view path);

}  // namespace weir::sysfs

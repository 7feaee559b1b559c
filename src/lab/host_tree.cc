// SPDX-License-Identifier: Apache-2.0
#include "lab/host_tree.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "runtime/real/runtime_folder.h"
#include "sysfs/attributes.h"

namespace weir::lab {
namespace {

namespace fs = std::filesystem;

constexpr auto kFilePermissions =
    fs::perms::owner_read | fs::perms::group_read | fs::perms::others_read;

/// Hosts may be called "..", and fabrics that were read from a list have hosts with spaces.
std::string folder_name(std::string_view host) {
    std::string name;
    for (const char c : host) {
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                           (c >= '0' && c <= '9') || c == '-' || c == '_';
        name += plain ? std::string(1, c) : fmt::format("%{:02x}", static_cast<unsigned char>(c));
    }
    return name;
}

fs::path trees_of(const std::string& fabric_folder) {
    return fs::absolute(fabric_folder) / runtime::kTreesName;
}

/// Throws like the rest of what makes the tree: std::filesystem's way to tell what went wrong.
void write_file(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    // Beside its place and then moved there, for those who are reading it.
    const fs::path draft = fmt::format("{}.{}", path.string(), ::gettid());
    std::ofstream file(draft);
    file << text << '\n';
    file.close();
    if (!file) {
        throw fs::filesystem_error("cannot write", draft,
                                   std::make_error_code(std::errc::io_error));
    }
    fs::permissions(draft, kFilePermissions);
    fs::rename(draft, path);
}

void write_files(const fs::path& folder, const std::vector<sysfs::File>& files) {
    for (const auto& file : files) {
        write_file(folder / file.path, file.text);
    }
}

void make_link(const fs::path& at, const fs::path& to) {
    fs::create_directories(at.parent_path());
    fs::create_symlink(to, at);
}

/// Where the PCI function of a device is, from "sys" on.
fs::path function_folder(const sysfs::DeviceFacts& device) {
    return fs::path("devices") / fmt::format("pci{}:00", sysfs::kPciDomain) /
           sysfs::pci_name(device);
}

/// Folders under devices/, and the links by which classes and buses name them, as the kernel has
/// them.
void make_device(const fs::path& root, const sysfs::DeviceFacts& device, std::string_view version) {
    const fs::path sys = root / "sys";
    const fs::path function = function_folder(device);
    const std::string verbs = sysfs::verbs_name(device);
    const std::string name = sysfs::pci_name(device);
    const auto cpus = static_cast<std::uint32_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_CONF)));
    write_files(sys / function, sysfs::pci_files(device, cpus));
    write_files(sys / function / "infiniband" / device.name, sysfs::device_files(device, version));
    write_files(sys / function / "infiniband_verbs" / verbs, sysfs::verbs_files(device));
    const fs::path up = fs::path("..") / "..";
    make_link(sys / function / "infiniband" / device.name / "device", up / ".." / name);
    make_link(sys / function / "infiniband_verbs" / verbs / "device", up / ".." / name);
    make_link(sys / "class/infiniband" / device.name, up / function / "infiniband" / device.name);
    make_link(sys / "class/infiniband_verbs" / verbs, up / function / "infiniband_verbs" / verbs);
    make_link(sys / "bus/pci/devices" / name, up / ".." / function);
    make_link(root / "dev/infiniband" / verbs, "/dev/null");
}

void make_tree(const fs::path& root, const std::vector<sysfs::DeviceFacts>& devices,
               std::string_view version) {
    fs::create_directories(root / "dev/infiniband");
    fs::create_directories(root / "sys/class/infiniband");
    for (const auto& device : devices) {
        make_device(root, device, version);
    }
    write_file(root / "sys/class/infiniband_verbs/abi_version", "6");
    const fs::path bus = fmt::format("{}:00", sysfs::kPciDomain);
    const fs::path bridge = fmt::format("pci{}:00", sysfs::kPciDomain);
    fs::create_directories(root / "sys/devices" / bridge / "pci_bus" / bus);
    make_link(root / "sys/class/pci_bus" / bus,
              fs::path("../../devices") / bridge / "pci_bus" / bus);
}

std::vector<sysfs::DeviceFacts> devices_of(arena::Arena arena, std::string_view host) {
    std::vector<sysfs::DeviceFacts> devices;
    for (const std::uint32_t node : sysfs::hcas_of_host(arena, host)) {
        devices.push_back(sysfs::facts_of(arena, node, static_cast<std::uint32_t>(devices.size())));
    }
    return devices;
}

/// Writes a port's state until what is written is what is so: the daemon may do the same.
void write_state(const fs::path& folder, arena::Arena arena, std::uint32_t node,
                 std::uint32_t index, std::uint32_t number) {
    const auto facts = [&] { return sysfs::facts_of(arena, node, index).ports.at(number - 1); };
    auto written = facts();
    while (true) {
        write_files(folder, sysfs::changing_files(written));
        const auto now = facts();
        if (now.up == written.up) {
            return;
        }
        written = now;
    }
}

void write_states(const fs::path& root, arena::Arena arena, std::string_view host) {
    std::uint32_t index = 0;
    for (const std::uint32_t node : sysfs::hcas_of_host(arena, host)) {
        const auto device = sysfs::facts_of(arena, node, index);
        const fs::path folder = root / "sys" / function_folder(device) / "infiniband" / device.name;
        for (const auto& port : device.ports) {
            write_state(folder, arena, node, index, port.number);
        }
        ++index;
    }
}

}  // namespace

Result<std::string> make_host_tree(const std::string& fabric_folder, arena::Arena arena,
                                   std::string_view host, std::string_view version) {
    const fs::path trees = trees_of(fabric_folder);
    const fs::path root = trees / folder_name(host);
    try {
        if (fs::exists(root)) {
            return root.string();
        }
        fs::create_directory(trees);
        // Names of hosts have no '.' here, so this is nobody's.
        const fs::path draft = trees / fmt::format("{}.{}", folder_name(host), ::gettid());
        fs::remove_all(draft);
        make_tree(draft, devices_of(arena, host), version);
        std::error_code taken;
        fs::rename(draft, root, taken);
        if (taken) {
            fs::remove_all(draft);
            if (!fs::exists(root)) {
                throw fs::filesystem_error("cannot make", root, taken);
            }
        }
        // A link may have changed after it was looked at and before the tree had its name.
        write_states(root, arena, host);
        return root.string();
    } catch (const fs::filesystem_error& error) {
        return fail(ErrorCode::kSystem,
                    fmt::format("cannot make the device files of {}: {}", host, error.what()));
    }
}

void refresh_host_tree(const std::string& fabric_folder, arena::Arena arena, std::uint32_t port) {
    const auto& entry = arena.port(port);
    const auto& node = arena.node(entry.node);
    if (node.kind != arena::NodeKind::kHca) {
        return;
    }
    const std::string host(node.host, strnlen(node.host, sizeof node.host));
    const fs::path root = trees_of(fabric_folder) / folder_name(host);
    try {
        if (fs::exists(root)) {
            write_states(root, arena, host);
        }
    } catch (const fs::filesystem_error&) {
        // The files keep what they said; whoever asks through the verbs is told the truth.
    }
}

}  // namespace weir::lab

// SPDX-License-Identifier: Apache-2.0
// The part of sysfs that programs read through libibverbs. Our devices have no directory there, so
// the files of one are answered from memory; any other path is read as it is.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "abi.h"
#include "device.h"
#include "private_abi.h"
#include "sysfs/attributes.h"

namespace weir::ibverbs {
namespace {

/// Files of /sys/class/infiniband/<device>/.
std::vector<sysfs::File> device_files(const Device& device, std::string_view file) {
    const hca::DeviceDescription description = description_of(device);
    sysfs::DeviceFacts facts;
    facts.name = description.name;
    facts.node = description.node;
    facts.guid = description.node_guid;
    facts.ethernet = description.link_layer == IBV_LINK_LAYER_ETHERNET;
    // Those of ports change: the fabric is asked.
    if (file.substr(0, 6) == "ports/" && hca::device_facts(description, facts) != 0) return {};
    return sysfs::device_files(facts, WEIR_VERSION);
}

/// Files of /sys/class/infiniband_verbs/<dev_name>/.
std::vector<sysfs::File> verbs_files(const Device& device) {
    sysfs::DeviceFacts facts;
    facts.name = device.base.name;
    return sysfs::verbs_files(facts);
}

// Puts `text` into the program's buffer: its length, or -1 if it does not fit with its final zero.
int give(std::string_view text, char* buffer, std::size_t size) {
    if (text.size() >= size) return minus_one_if(EOVERFLOW);
    std::copy(text.begin(), text.end(), buffer);
    buffer[text.size()] = '\0';
    return static_cast<int>(text.size());
}

int read_real_file(const std::string& path, char* buffer, std::size_t size) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    const ssize_t length = ::read(fd, buffer, size);
    const int error = errno;
    ::close(fd);
    if (length < 0) return minus_one_if(error);
    auto count = static_cast<std::size_t>(length);
    if (count > 0 && buffer[count - 1] == '\n') --count;
    if (count == size) return minus_one_if(EOVERFLOW);
    buffer[count] = '\0';
    return static_cast<int>(count);
}

int read_file(const char* directory, const char* file, char* buffer, std::size_t size) {
    if (directory == nullptr || file == nullptr || buffer == nullptr || size == 0)
        return minus_one_if(EINVAL);
    std::vector<Device*> devices;
    known_devices_now(devices);
    for (const Device* device : devices) {
        std::vector<sysfs::File> files;
        if (std::strcmp(directory, device->base.ibdev_path) == 0) {
            files = device_files(*device, file);
        } else if (std::strcmp(directory, device->base.dev_path) == 0) {
            files = verbs_files(*device);
        }
        if (const std::string* text = sysfs::find_file(files, file); text != nullptr)
            return give(*text, buffer, size);
    }
    return read_real_file(std::string(directory) + "/" + file, buffer, size);
}

}  // namespace
}  // namespace weir::ibverbs

using namespace weir::ibverbs;  // The functions below are the C ABI, outside any namespace.

extern "C" {

const char* ibv_get_sysfs_path(void) {
    return "/sys";
}

int ibv_read_sysfs_file(const char* directory, const char* file, char* buffer, std::size_t size) {
    int length = -1;
    const int error = fenced([&] {
        length = read_file(directory, file, buffer, size);
        return length < 0 ? errno : 0;
    });
    return error == 0 ? length : minus_one_if(error);
}

// The device is given by a struct private to libibverbs, of which we hand out none.
int ibv_read_ibdev_sysfs_file(char*, std::size_t, void*, const char*, ...) {
    return minus_one_if(EOPNOTSUPP);
}
WEIR_PRIVATE(ibv_read_ibdev_sysfs_file);

}  // extern "C"

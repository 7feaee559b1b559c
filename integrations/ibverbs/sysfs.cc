// SPDX-License-Identifier: Apache-2.0
// The part of sysfs that programs read through libibverbs. Our devices have no directory there, so
// the files of one are answered from memory; any other path is read as it is.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "abi.h"
#include "device.h"
#include "private_abi.h"

namespace weir::ibverbs {
namespace {

std::string guid_text(std::uint64_t guid) {
    char text[20];
    std::snprintf(text, sizeof text, "%04" PRIx64 ":%04" PRIx64 ":%04" PRIx64 ":%04" PRIx64,
                  guid >> 48U, (guid >> 32U) & 0xffffU, (guid >> 16U) & 0xffffU, guid & 0xffffU);
    return text;
}

// Files of /sys/class/infiniband/<device>/. False if there is no such file.
bool device_file(const hca::DeviceDescription& device, std::string_view file, std::string& text) {
    if (file == "board_id" || file == "hca_type") {
        text = "weir";
    } else if (file == "fw_ver") {
        text = WEIR_VERSION;
    } else if (file == "hw_rev") {
        text = "0";
    } else if (file == "node_type") {
        text = "1: CA";
    } else if (file == "node_desc") {
        text = device.node + " " + device.name;
    } else if (file == "node_guid" || file == "sys_image_guid") {
        text = guid_text(device.node_guid);
    } else {
        return false;
    }
    return true;
}

// Files of /sys/class/infiniband_verbs/<dev_name>/.
bool class_file(const Device& device, std::string_view file, std::string& text) {
    if (file == "ibdev") {
        text = device.base.name;
    } else if (file == "abi_version") {
        text = "1";
    } else {
        return false;
    }
    return true;
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
        std::string text;
        const bool is_device = std::strcmp(directory, device->base.ibdev_path) == 0;
        const bool is_class = std::strcmp(directory, device->base.dev_path) == 0;
        if ((is_device && device_file(description_of(*device), file, text)) ||
            (is_class && class_file(*device, file, text)))
            return give(text, buffer, size);
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

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
#include "device.h"

#include <endian.h>
#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "abi.h"

namespace weir::ibverbs {
namespace {

struct KnownDevices {
    std::mutex lock;
    std::vector<std::unique_ptr<Device>> devices;
};

// Never destroyed: exit handlers may still ask. Held across a fork, so the child finds it free.
KnownDevices& known_devices() {
    static auto* const known = [] {
        pthread_atfork([] { known_devices().lock.lock(); }, [] { known_devices().lock.unlock(); },
                       [] { known_devices().lock.unlock(); });
        return new KnownDevices;
    }();
    return *known;
}

std::unique_ptr<Device> make_device(const hca::DeviceDescription& description, int index) {
    auto device = std::make_unique<Device>();
    ibv_device& base = device->base;
    base.node_type = IBV_NODE_CA;
    base.transport_type = IBV_TRANSPORT_IB;
    const char* name = description.name.c_str();
    std::snprintf(base.name, sizeof base.name, "%s", name);
    std::snprintf(base.dev_name, sizeof base.dev_name, "uverbs%d", index);
    std::snprintf(base.dev_path, sizeof base.dev_path, "/sys/class/infiniband_verbs/uverbs%d",
                  index);
    std::snprintf(base.ibdev_path, sizeof base.ibdev_path, "/sys/class/infiniband/%s", name);
    device->index = index;
    return device;
}

// REQUIRES: the lock is held.
Device* find_or_add(KnownDevices& known, const hca::DeviceDescription& description) {
    for (const auto& device : known.devices) {
        const hca::DeviceDescription& other = device->description;
        if (other.name != description.name || other.node != description.node ||
            other.fabric != description.fabric)
            continue;
        device->description = description;
        return device.get();
    }
    auto added = make_device(description, static_cast<int>(known.devices.size()));
    added->description = description;
    known.devices.push_back(std::move(added));
    return known.devices.back().get();
}

}  // namespace

int find_devices(std::vector<Device*>& devices) {
    std::vector<hca::DeviceDescription> descriptions;
    const int error = hca::list_devices(descriptions);
    if (error != 0 && error != ENOENT && error != ENXIO) return error;
    if (error != 0) descriptions.clear();
    KnownDevices& known = known_devices();
    const std::scoped_lock lock(known.lock);
    devices.clear();
    for (const auto& description : descriptions)
        devices.push_back(find_or_add(known, description));
    return 0;
}

void known_devices_now(std::vector<Device*>& devices) {
    KnownDevices& known = known_devices();
    const std::scoped_lock lock(known.lock);
    for (const auto& device : known.devices)
        devices.push_back(device.get());
}

Device* find_device(const ibv_device* abi) {
    KnownDevices& known = known_devices();
    const std::scoped_lock lock(known.lock);
    for (const auto& device : known.devices)
        if (&device->base == abi) return device.get();
    return nullptr;
}

hca::DeviceDescription description_of(const Device& device) {
    const std::scoped_lock lock(known_devices().lock);
    return device.description;
}

}  // namespace weir::ibverbs

using namespace weir::ibverbs;  // The functions below are the C ABI, outside any namespace.

extern "C" {

ibv_device** ibv_get_device_list(int* num_devices) {
    if (num_devices != nullptr) *num_devices = 0;
    ibv_device** list = fenced_object<ibv_device*>([num_devices](ibv_device**& out) {
        std::vector<Device*> devices;
        if (const int error = find_devices(devices); error != 0) return error;
        out = static_cast<ibv_device**>(std::calloc(devices.size() + 1, sizeof(ibv_device*)));
        if (out == nullptr) return ENOMEM;
        for (std::size_t i = 0; i < devices.size(); ++i)
            out[i] = &devices[i]->base;
        if (num_devices != nullptr) *num_devices = static_cast<int>(devices.size());
        return 0;
    });
    return list;
}

void ibv_free_device_list(ibv_device** list) {
    std::free(list);
}
WEIR_ALSO_IN_1_0(ibv_free_device_list);

const char* ibv_get_device_name(ibv_device* device) {
    return find_device(device) == nullptr ? nullptr : device->name;
}
WEIR_ALSO_IN_1_0(ibv_get_device_name);

__be64 ibv_get_device_guid(ibv_device* device) {
    std::uint64_t guid = 0;
    fenced([&] {
        if (const Device* found = find_device(device)) guid = description_of(*found).node_guid;
        return 0;
    });
    return htobe64(guid);
}
WEIR_ALSO_IN_1_0(ibv_get_device_guid);

int ibv_get_device_index(ibv_device* device) {
    const Device* found = find_device(device);
    return found == nullptr ? -1 : found->index;
}

}  // extern "C"

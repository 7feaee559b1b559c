// SPDX-License-Identifier: Apache-2.0
// The devices that this process has seen, for the rest of its life: a program may hold an
// ibv_device longer than its list.
#pragma once

#include <vector>

#include "handles.h"

namespace weir::ibverbs {

/// Finds what the fabric offers now. An empty list, not an error, if there is no fabric.
int find_devices(std::vector<Device*>& devices);

/// Those that find_devices() has ever found.
void known_devices_now(std::vector<Device*>& devices);

/// The device at `abi`, or null if it is none of ours.
Device* find_device(const ibv_device* abi);

/// What the fabric last said of a device: the fabric may have been built anew since.
hca::DeviceDescription description_of(const Device& device);

}  // namespace weir::ibverbs

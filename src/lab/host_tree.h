// SPDX-License-Identifier: Apache-2.0
// The device files of a host: what /dev/infiniband and /sys/class/infiniband would be on a machine
// that has its adapters, as a private tree in the fabric's folder,
//
//   <runtime folder>/<fabric>/sys/<host>/{dev/infiniband,sys/class/…,sys/devices/…}
//
// Made when first wanted and removed with the fabric. libweir-sys.so leads programs there.
// A port's state is kept up to date: each file is replaced as a whole, so readers see old or new.
#pragma once

#include <string>
#include <string_view>

#include "arena/layout.h"
#include "base/result.h"

namespace weir::lab {

/// Makes the tree in the fabric's folder unless it is there, and returns its absolute path. Any
/// number may do so at once.
Result<std::string> make_host_tree(const std::string& fabric_folder, arena::Arena arena,
                                   std::string_view host, std::string_view version);

/// Writes the state of this port's files anew, if its host has a tree. For the daemon, after the
/// arena says it.
void refresh_host_tree(const std::string& fabric_folder, arena::Arena arena, std::uint32_t port);

}  // namespace weir::lab

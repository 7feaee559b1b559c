// SPDX-License-Identifier: Apache-2.0
// Which paths name an adapter, and what they are in the private tree of a host. No allocation, no
// lock, no system call but where said: this runs inside any program's open() and stat(), maybe in a
// signal handler.
#pragma once

#include <limits.h>
#include <stddef.h>

namespace weir::preload {

/// The variable that names the tree, an absolute path. Unset: nothing is rerouted.
inline constexpr const char* kTreeVariable = "WEIR_SYSFS";

/// Room for a rerouted path.
using PathBuffer = char[PATH_MAX];

/// Where the file at `path` is: `path` itself for all but our prefixes, else the same path within
/// the tree, in `buffer`. A path too long for it is left as it is.
const char* reroute(const char* path, PathBuffer& buffer);

/// The same for a path that is relative to the folder `directory`, which matters if that is the
/// root: some programs keep "/" open and name all else from there. Asks the kernel then.
const char* reroute_at(int directory, const char* path, PathBuffer& buffer);

/// True if `path` names a device node, which is a link in the tree and must not look like one.
bool is_node(const char* path);

/// Takes the tree off the front of a path that the C library resolved. False if it is elsewhere.
bool strip_tree(char* path);

}  // namespace weir::preload

// SPDX-License-Identifier: Apache-2.0
// Tries what Weir needs from this machine, for `weir doctor`. Each probe does the thing itself and
// says what came of it; none leaves anything behind.
#pragma once

#include <string>
#include <vector>

namespace weir::runtime {

struct Probe {
    bool works = false;
    std::string evidence;  ///< What was seen, in a few words.
};

Probe probe_shared_memory();
/// Whether a process may read the memory of one that is not its child (process_vm_readv), as
/// senders do. Depends on kernel.yama.ptrace_scope and on capabilities. Forks.
Probe probe_memory_copy();
Probe probe_futex();
Probe probe_eventfd();
Probe probe_userfaultfd();

/// Whether a shared library can be loaded, and exports all of these. Loaded for good.
Probe probe_library(const std::string& path, const std::vector<std::string>& symbols);

/// Path of a program found by PATH, "" if there is none.
std::string find_program(const std::string& name);

/// CPUs that this process may run on.
unsigned usable_cpus();

}  // namespace weir::runtime

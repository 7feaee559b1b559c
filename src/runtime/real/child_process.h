// SPDX-License-Identifier: Apache-2.0
// Starting programs: as children with their output caught, or in our own place.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "runtime/real/unique_fd.h"

namespace weir::runtime {

using Environment = std::vector<std::pair<std::string, std::string>>;

/// A program with its words; the first is looked up in PATH.
struct Program {
    std::vector<std::string> words;
    Environment environment;  ///< Set in addition to our own.
};

/// A child in a process group of its own, with /dev/null as its input. It gets SIGTERM if we die.
/// Its end is not waited for by the destructor.
struct ChildProcess {
    pid_t pid = 0;
    UniqueFd ended;   ///< pidfd: readable once it has ended.
    UniqueFd output;  ///< Our ends of its stdout and stderr, non-blocking.
    UniqueFd errors;
};

/// kNotFound if there is no such program, kDenied if it may not be run.
Result<ChildProcess> start_child(const Program& program);

/// Exit code of a child that has ended, 128 + n if by signal n; waits for it otherwise.
int reap_child(pid_t pid);

/// Sends a signal to a child and all in its process group.
void signal_group(pid_t pid, int number);

/// Becomes the program. Returns only if that fails.
Error become(const Program& program);

/// True if some process of this group listens on a TCP port.
bool group_listens(pid_t group);

/// Path of this executable, "" if unknown.
std::string own_executable();

/// True if the path names something that is there.
bool path_exists(const std::string& path);

}  // namespace weir::runtime

// SPDX-License-Identifier: Apache-2.0
// Turning a process into a daemon, with its parent waiting until it is ready.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/result.h"
#include "runtime/real/runtime_folder.h"

namespace weir::runtime {

enum class Side {
    kParent,  ///< The daemon is ready, or never will be; see Daemonized::failure.
    kDaemon,
};

/// What the daemon has to call once it can be used.
class ReadySignal {
  public:
    ReadySignal() = default;
    explicit ReadySignal(UniqueFd fd) : fd_(std::move(fd)) {}
    /// Lets the parent go on. Empty text: ready. Otherwise the reason why not.
    void send(const std::string& failure);

  private:
    UniqueFd fd_;
};

struct Daemonized {
    Side side;
    ReadySignal ready;    ///< kDaemon.
    std::string failure;  ///< kParent: empty if the daemon is ready.
};

/// Forks twice. The daemon has its own session, '/' as its directory, /dev/null as input, and the
/// file `log_name` in `folder` as output. The parent waits for the daemon's word, or for its end.
/// REQUIRES: no other thread.
Result<Daemonized> daemonize(const Folder& folder, const std::string& log_name);

/// Sends a signal; false if there is no such process or it may not be signalled.
bool signal_process(pid_t pid, int number);

void sleep_milliseconds(int milliseconds);

}  // namespace weir::runtime

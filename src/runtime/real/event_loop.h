// SPDX-License-Identifier: Apache-2.0
// What a single-threaded server waits for: readable descriptors (epoll), processes that end
// (pidfd), signals that ask it to end (signalfd), and a time limit.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "runtime/real/unique_fd.h"

namespace weir::runtime {

class Poller {
  public:
    static Result<Poller> create();

    /// Reports `token` while `fd` is readable or hung up. Closing the fd takes it out, unless it
    /// was duplicated: then take it out first.
    Result<void> add(int fd, std::uint64_t token);
    void remove(int fd);

    /// Tokens that are ready; empty when `milliseconds` have passed (-1: no limit) or a signal
    /// came.
    std::span<const std::uint64_t> wait(int milliseconds);

  private:
    explicit Poller(UniqueFd fd) : fd_(std::move(fd)) {}
    UniqueFd fd_;
    std::vector<std::uint64_t> ready_;
};

/// Readable once the process has ended. Invalid if the process is gone or cannot be named.
UniqueFd watch_process(pid_t pid);

/// Blocks SIGINT, SIGTERM and SIGHUP in this thread, and gives a descriptor that is readable when
/// one of them has come.
Result<UniqueFd> watch_end_signals();

/// The signal that has come, 0 if none has.
int take_signal(int signal_fd);

/// Milliseconds of the monotonic clock.
std::int64_t monotonic_milliseconds();
/// The clock that link rates go by: CLOCK_MONOTONIC.
std::uint64_t monotonic_nanoseconds();

/// Raises the limit of open descriptors as far as it goes; returns what it is.
std::size_t raise_descriptor_limit();

}  // namespace weir::runtime

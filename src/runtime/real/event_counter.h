// SPDX-License-Identifier: Apache-2.0
// The counter of an eventfd, by which a thread that sleeps in poll(2) is told that something waits.
//
// By system calls of their own: read(2) and write(2) of the C library are cancellation points, and
// a program's thread that is cancelled in the middle of what the engine does for it would leave
// that half done.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace weir::runtime {

/// Adds one, which makes `fd` readable. A counter never fills: it holds 2^64 - 2 events. Does
/// nothing if `fd` is -1. Leaves errno alone only if it succeeds.
inline void raise_event(int fd) {
    const std::uint64_t one = 1;
    if (fd >= 0) syscall(SYS_write, fd, &one, sizeof one);
}

/// Takes one event (EFD_SEMAPHORE) or all that there are. False, with errno, if there is none and
/// `fd` does not block.
inline bool take_event(int fd) {
    std::uint64_t count = 0;
    return syscall(SYS_read, fd, &count, sizeof count) == sizeof count;
}

}  // namespace weir::runtime

// SPDX-License-Identifier: Apache-2.0
// Which of the program's descriptors are rsockets. An rsocket's number is a descriptor of its own,
// so a descriptor usually is the number; what dup() makes of it leads to the same rsocket, which
// ends with the last of them.
#pragma once

#define WEIR_EXPORT extern "C" __attribute__((visibility("default")))

namespace weir::rspreload {

/// The rsocket that a descriptor leads to; -1 if it is none.
int rsocket_of(int fd);
/// `fd` is `number`, or a copy of a descriptor that leads to it.
void add(int fd, int number);
/// The descriptor is gone. True if it was the last that led to its rsocket.
bool remove(int fd);
/// close(), whatever it is. 0, or -1 with errno set.
int close_any(int fd);
/// Makes an ordinary socket in place of an rsocket that can't do what it is asked, with the same
/// descriptor and the options that matter. False if that failed.
bool make_ordinary(int fd);

}  // namespace weir::rspreload

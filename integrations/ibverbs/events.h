// SPDX-License-Identifier: Apache-2.0
// Taking events and counting their acknowledgements. An object is destroyed only after every event
// that named it and was taken has been acknowledged (man ibv_get_cq_event, ibv_get_async_event).
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>

#include <cerrno>
#include <cstdint>
#include <mutex>

#include "abi.h"

namespace weir::ibverbs {

/// Waits until `fd` is readable, unless it is non-blocking, and then takes an event with `lock`
/// held. The wait is outside the lock, and a thread may be cancelled in it. Returns what `take`
/// returns, or an errno value.
template <class Take>
int wait_and_take(int fd, std::mutex& lock, Take&& take) {
    for (;;) {
        const int flags = fcntl(fd, F_GETFL);
        if (flags < 0) return errno;
        const bool waits = (flags & O_NONBLOCK) == 0;
        pollfd readable{fd, POLLIN, 0};
        if (waits && poll(&readable, 1, -1) < 0) return errno;
        const int error = fenced([&] {
            const std::scoped_lock held(lock);
            // Somebody else may have taken the event meanwhile; then `take` would wait with the
            // lock held.
            pollfd still{fd, POLLIN, 0};
            if (poll(&still, 1, 0) <= 0) return EAGAIN;
            return take();
        });
        if (error != EAGAIN || !waits) return error;
    }
}

/// Counts acknowledgements in the program's struct and wakes whoever waits to destroy it.
template <class Abi>
void acknowledge(Abi* object, std::uint32_t& completed, std::uint32_t count) {
    pthread_mutex_lock(&object->mutex);
    completed += count;
    pthread_cond_signal(&object->cond);
    pthread_mutex_unlock(&object->mutex);
}

/// Waits until as many events have been acknowledged as were taken. Counts wrap around.
template <class Abi>
void wait_for_acknowledgements(Abi& object, const std::uint32_t& completed, std::uint32_t taken) {
    pthread_mutex_lock(&object.mutex);
    while (completed != taken)
        pthread_cond_wait(&object.cond, &object.mutex);
    pthread_mutex_unlock(&object.mutex);
}

template <class Abi>
void init_acknowledgements(Abi& object) {
    pthread_mutex_init(&object.mutex, nullptr);
    pthread_cond_init(&object.cond, nullptr);
}

}  // namespace weir::ibverbs

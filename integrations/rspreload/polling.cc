// SPDX-License-Identifier: Apache-2.0
// poll and select, where an rsocket is among the descriptors.
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/select.h>
#include <time.h>

#include <rdma/rsocket.h>

#include "descriptors.h"
#include "next.h"

using weir::preload::Next;
using weir::rspreload::rsocket_of;

static Next<int(pollfd*, nfds_t, int)> next_poll("poll");
static Next<int(pollfd*, nfds_t, const timespec*, const sigset_t*)> next_ppoll("ppoll");
static Next<int(int, fd_set*, fd_set*, fd_set*, timeval*)> next_select("select");
static Next<int(int, fd_set*, fd_set*, fd_set*, const timespec*, const sigset_t*)> next_pselect(
    "pselect");

static bool has_rsocket(const pollfd* fds, nfds_t count) {
    for (nfds_t i = 0; i < count; ++i)
        if (rsocket_of(fds[i].fd) >= 0) return true;
    return false;
}

static int poll_numbers(pollfd* fds, nfds_t count, int timeout_ms) {
    constexpr nfds_t kFew = 64;
    pollfd few[kFew];
    auto* list = count <= kFew ? few : static_cast<pollfd*>(malloc(count * sizeof(pollfd)));
    if (list == nullptr) {
        errno = ENOMEM;
        return -1;
    }
    for (nfds_t i = 0; i < count; ++i) {
        list[i] = fds[i];
        if (const int number = rsocket_of(fds[i].fd); number >= 0) list[i].fd = number;
    }
    const int ready = rpoll(list, count, timeout_ms);
    for (nfds_t i = 0; i < count; ++i)
        fds[i].revents = list[i].revents;
    const int error = errno;
    if (list != few) free(list);
    errno = error;
    return ready;
}

WEIR_EXPORT int poll(pollfd* fds, nfds_t count, int timeout_ms) {
    return has_rsocket(fds, count) ? poll_numbers(fds, count, timeout_ms)
                                   : next_poll(fds, count, timeout_ms);
}

static int milliseconds_of(const timespec* timeout) {
    if (timeout == nullptr) return -1;
    constexpr long kMost = 1000000;
    const long seconds = timeout->tv_sec < kMost ? timeout->tv_sec : kMost;
    return static_cast<int>(seconds * 1000 + (timeout->tv_nsec + 999999) / 1000000);
}

/// Changes the signals that are let in for the time of `body`: a little wider than ppoll() does it,
/// which a program that depends on it will not notice but in the moment before the wait.
template <class Body>
static int with_signals(const sigset_t* signals, Body body) {
    sigset_t before;
    if (signals != nullptr) pthread_sigmask(SIG_SETMASK, signals, &before);
    const int result = body();
    const int error = errno;
    if (signals != nullptr) pthread_sigmask(SIG_SETMASK, &before, nullptr);
    errno = error;
    return result;
}

WEIR_EXPORT int ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* signals) {
    if (!has_rsocket(fds, count)) return next_ppoll(fds, count, timeout, signals);
    return with_signals(signals,
                        [&] { return poll_numbers(fds, count, milliseconds_of(timeout)); });
}

// ---------------------------------------------------------------- select

struct Sets {
    fd_set* readable;
    fd_set* writable;
    fd_set* exceptional;
};

static bool has(const fd_set* set, int fd) {
    return set != nullptr && FD_ISSET(fd, set);
}

static void answer(fd_set* set, int fd, bool ready, int& bits) {
    if (!has(set, fd)) return;
    if (ready)
        ++bits;
    else
        FD_CLR(fd, set);
}

static bool has_rsocket(int count, const Sets& sets) {
    for (int fd = 0; fd < count; ++fd)
        if ((has(sets.readable, fd) || has(sets.writable, fd) || has(sets.exceptional, fd)) &&
            rsocket_of(fd) >= 0)
            return true;
    return false;
}

static int select_numbers(int count, const Sets& sets, int timeout_ms) {
    pollfd list[FD_SETSIZE];
    nfds_t used = 0;
    for (int fd = 0; fd < count && fd < FD_SETSIZE; ++fd) {
        const int wanted = (has(sets.readable, fd) ? POLLIN : 0) |
                           (has(sets.writable, fd) ? POLLOUT : 0) |
                           (has(sets.exceptional, fd) ? POLLPRI : 0);
        if (wanted != 0) list[used++] = {fd, static_cast<short>(wanted), 0};
    }
    if (poll_numbers(list, used, timeout_ms) < 0) return -1;
    int bits = 0;
    for (nfds_t i = 0; i < used; ++i) {
        const int found = list[i].revents;
        if ((found & POLLNVAL) != 0) {
            errno = EBADF;
            return -1;
        }
        answer(sets.readable, list[i].fd, (found & (POLLIN | POLLHUP | POLLERR)) != 0, bits);
        answer(sets.writable, list[i].fd, (found & (POLLOUT | POLLERR)) != 0, bits);
        answer(sets.exceptional, list[i].fd, (found & POLLPRI) != 0, bits);
    }
    return bits;
}

WEIR_EXPORT int select(int count, fd_set* readable, fd_set* writable, fd_set* exceptional,
                       timeval* timeout) {
    const Sets sets{readable, writable, exceptional};
    if (!has_rsocket(count, sets))
        return next_select(count, readable, writable, exceptional, timeout);
    timespec time{};
    if (timeout != nullptr) time = {timeout->tv_sec, timeout->tv_usec * 1000};
    return select_numbers(count, sets, milliseconds_of(timeout != nullptr ? &time : nullptr));
}

WEIR_EXPORT int pselect(int count, fd_set* readable, fd_set* writable, fd_set* exceptional,
                        const timespec* timeout, const sigset_t* signals) {
    const Sets sets{readable, writable, exceptional};
    if (!has_rsocket(count, sets))
        return next_pselect(count, readable, writable, exceptional, timeout, signals);
    return with_signals(signals,
                        [&] { return select_numbers(count, sets, milliseconds_of(timeout)); });
}

// ---------------------------------------------------------------- checked forms

WEIR_EXPORT int __poll_chk(pollfd* fds, nfds_t count, int timeout_ms, size_t room) {
    if (room / sizeof *fds < count) abort();
    return poll(fds, count, timeout_ms);
}

WEIR_EXPORT int __ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout,
                            const sigset_t* signals, size_t room) {
    if (room / sizeof *fds < count) abort();
    return ppoll(fds, count, timeout, signals);
}

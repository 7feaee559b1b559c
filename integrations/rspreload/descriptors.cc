// SPDX-License-Identifier: Apache-2.0
// close, dup and fcntl: what concerns descriptors as such.
#include "descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <rdma/rsocket.h>

#include "next.h"

using weir::preload::Next;

namespace weir::rspreload {
namespace {

constexpr int kDescriptorsMax = 1 << 20;

// Zero is nothing, so that the tables begin as they should and cost no memory until used.
int numbers[kDescriptorsMax];  ///< By descriptor: the rsocket's number, plus one.
int counts[kDescriptorsMax];   ///< By number: the descriptors that lead to it.

Next<int(int)> next_close("close");
Next<int(int, int, int)> next_socket("socket");
Next<int(int, int, int)> next_dup3("dup3");
Next<int(int, int, int, const void*, socklen_t)> next_setsockopt("setsockopt");
Next<int(int, int, long)> next_fcntl("fcntl");

/// Options that a program may have set by now, and whose value is a number.
constexpr struct {
    int level;
    int name;
} kCarried[] = {
    {SOL_SOCKET, SO_REUSEADDR},  {SOL_SOCKET, SO_KEEPALIVE}, {SOL_SOCKET, SO_BROADCAST},
    {SOL_SOCKET, SO_REUSEPORT},  {IPPROTO_TCP, TCP_NODELAY}, {IPPROTO_IPV6, IPV6_V6ONLY},
    {IPPROTO_TCP, TCP_KEEPIDLE}, {IPPROTO_TCP, TCP_KEEPCNT}, {IPPROTO_TCP, TCP_KEEPINTVL}};

int option_of(int number, int level, int name) {
    int value = 0;
    socklen_t length = sizeof value;
    return rgetsockopt(number, level, name, &value, &length) == 0 ? value : 0;
}

void carry_options(int number, int to) {
    for (const auto& option : kCarried)
        if (const int value = option_of(number, option.level, option.name); value != 0)
            next_setsockopt(to, option.level, option.name, &value, socklen_t{sizeof value});
}

}  // namespace

int rsocket_of(int fd) {
    if (fd < 0 || fd >= kDescriptorsMax) return -1;
    return __atomic_load_n(&numbers[fd], __ATOMIC_ACQUIRE) - 1;
}

void add(int fd, int number) {
    if (fd < 0 || fd >= kDescriptorsMax) return;
    __atomic_add_fetch(&counts[number], 1, __ATOMIC_ACQ_REL);
    __atomic_store_n(&numbers[fd], number + 1, __ATOMIC_RELEASE);
}

bool remove(int fd) {
    const int number = __atomic_exchange_n(&numbers[fd], 0, __ATOMIC_ACQ_REL) - 1;
    return number >= 0 && __atomic_sub_fetch(&counts[number], 1, __ATOMIC_ACQ_REL) == 0;
}

int close_any(int fd) {
    const int number = rsocket_of(fd);
    if (number < 0) return next_close(fd);
    const bool last = remove(fd);
    if (fd != number) next_close(fd);
    // The number stays a descriptor as long as a copy leads to it.
    if (!last) return 0;
    const int failed = rclose(number);
    // After fork(), of the parent's: there is nothing but the descriptor.
    return failed != 0 && errno == EBADF ? next_close(number) : failed;
}

bool make_ordinary(int fd) {
    const int number = rsocket_of(fd);
    int flags = (rfcntl(number, F_GETFL) & O_NONBLOCK) != 0 ? SOCK_NONBLOCK : 0;
    const bool closes = (rfcntl(number, F_GETFD) & FD_CLOEXEC) != 0;
    const int type = option_of(number, SOL_SOCKET, SO_TYPE);
    const int fresh = next_socket(option_of(number, SOL_SOCKET, SO_DOMAIN), type | flags, 0);
    if (fresh < 0) return false;
    carry_options(number, fresh);
    remove(fd);
    rclose(number);
    const int moved = next_dup3(fresh, fd, closes ? O_CLOEXEC : 0);
    next_close(fresh);
    return moved == fd;
}

}  // namespace weir::rspreload

using namespace weir::rspreload;  // The functions below are the C library's.

WEIR_EXPORT int close(int fd) {
    return close_any(fd);
}

static int note_copy(int copy, int number) {
    if (copy >= 0 && number >= 0) add(copy, number);
    return copy;
}

static Next<int(int)> next_dup("dup");
WEIR_EXPORT int dup(int fd) noexcept {
    return note_copy(next_dup(fd), rsocket_of(fd));
}

/// What `to` was is closed first, as an rsocket if it was one.
static void make_way(int from, int to) {
    if (from != to && rsocket_of(to) >= 0) close_any(to);
}

static Next<int(int, int)> next_dup2("dup2");
WEIR_EXPORT int dup2(int from, int to) noexcept {
    make_way(from, to);
    const int copy = next_dup2(from, to);
    return from == to ? copy : note_copy(copy, rsocket_of(from));
}

WEIR_EXPORT int dup3(int from, int to, int flags) noexcept {
    make_way(from, to);
    return note_copy(next_dup3(from, to, flags), rsocket_of(from));
}

static int control(int fd, int command, long argument, Next<int(int, int, long)>& next) {
    const int number = rsocket_of(fd);
    if (number < 0) return next(fd, command, argument);
    if (command == F_DUPFD || command == F_DUPFD_CLOEXEC)
        return note_copy(next(fd, command, argument), number);
    if (command == F_GETFD || command == F_SETFD) return next(fd, command, argument);
    return rfcntl(number, command, argument);
}

#define WEIR_FCNTL(name)                                       \
    static Next<int(int, int, long)> next_of_##name(#name);    \
    WEIR_EXPORT int name(int fd, int command, ...) {           \
        va_list arguments;                                     \
        va_start(arguments, command);                          \
        const long argument = va_arg(arguments, long);         \
        va_end(arguments);                                     \
        return control(fd, command, argument, next_of_##name); \
    }
WEIR_FCNTL(fcntl)
WEIR_FCNTL(fcntl64)

static Next<int(int, unsigned long, void*)> next_ioctl("ioctl");
WEIR_EXPORT int ioctl(int fd, unsigned long request, ...) noexcept {
    va_list arguments;
    va_start(arguments, request);
    void* argument = va_arg(arguments, void*);
    va_end(arguments);
    const int number = rsocket_of(fd);
    if (number < 0 || request == FIOCLEX || request == FIONCLEX)
        return next_ioctl(fd, request, argument);
    if (request == FIONBIO)
        return rfcntl(number, F_SETFL, *static_cast<int*>(argument) != 0 ? O_NONBLOCK : 0);
    errno = ENOTTY;
    return -1;
}

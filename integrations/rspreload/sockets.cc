// SPDX-License-Identifier: Apache-2.0
// socket, bind, listen, accept, connect and what asks about sockets. IPv4 and IPv6 sockets become
// rsockets where there is a fabric; one that is bound to, or connected to, an address that the
// fabric has not becomes an ordinary one again.
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <rdma/rsocket.h>

#include "descriptors.h"
#include "next.h"

using weir::preload::Next;
using weir::rspreload::add;
using weir::rspreload::make_ordinary;
using weir::rspreload::rsocket_of;

namespace {

constexpr int kTypeFlags = SOCK_NONBLOCK | SOCK_CLOEXEC;

bool may_be_rsocket(int domain, int type, int protocol) {
    const int kind = type & ~kTypeFlags;
    if (domain != AF_INET && domain != AF_INET6) return false;
    if (kind == SOCK_STREAM) return protocol == 0 || protocol == IPPROTO_TCP;
    return kind == SOCK_DGRAM && (protocol == 0 || protocol == IPPROTO_UDP);
}

/// The address is somebody else's business.
bool is_elsewhere(int error) {
    return error == EADDRNOTAVAIL || error == EHOSTUNREACH || error == ENETUNREACH;
}

}  // namespace

static Next<int(int, int, int)> next_socket("socket");
WEIR_EXPORT int socket(int domain, int type, int protocol) noexcept {
    if (may_be_rsocket(domain, type, protocol)) {
        const int number = rsocket(domain, type, protocol);
        if (number >= 0) {
            add(number, number);
            return number;
        }
    }
    return next_socket(domain, type, protocol);
}

static Next<int(int, const sockaddr*, socklen_t)> next_bind("bind");
WEIR_EXPORT int bind(int fd, const sockaddr* address, socklen_t length) noexcept {
    const int number = rsocket_of(fd);
    if (number >= 0) {
        const int failed = rbind(number, address, length);
        if (failed == 0 || !is_elsewhere(errno) || !make_ordinary(fd)) return failed;
    }
    return next_bind(fd, address, length);
}

static Next<int(int, const sockaddr*, socklen_t)> next_connect("connect");
WEIR_EXPORT int connect(int fd, const sockaddr* address, socklen_t length) {
    const int number = rsocket_of(fd);
    if (number >= 0) {
        const int failed = rconnect(number, address, length);
        if (failed == 0 || !is_elsewhere(errno) || !make_ordinary(fd)) return failed;
    }
    return next_connect(fd, address, length);
}

static Next<int(int, int)> next_listen("listen");
WEIR_EXPORT int listen(int fd, int backlog) noexcept {
    const int number = rsocket_of(fd);
    return number >= 0 ? rlisten(number, backlog) : next_listen(fd, backlog);
}

static int accept_with(int number, sockaddr* address, socklen_t* length, int flags) {
    const int accepted = raccept(number, address, length);
    if (accepted < 0) return accepted;
    if ((flags & SOCK_NONBLOCK) != 0) rfcntl(accepted, F_SETFL, O_NONBLOCK);
    if ((flags & SOCK_CLOEXEC) != 0) rfcntl(accepted, F_SETFD, FD_CLOEXEC);
    add(accepted, accepted);
    return accepted;
}

static Next<int(int, sockaddr*, socklen_t*)> next_accept("accept");
WEIR_EXPORT int accept(int fd, sockaddr* address, socklen_t* length) {
    const int number = rsocket_of(fd);
    return number >= 0 ? accept_with(number, address, length, 0) : next_accept(fd, address, length);
}

static Next<int(int, sockaddr*, socklen_t*, int)> next_accept4("accept4");
WEIR_EXPORT int accept4(int fd, sockaddr* address, socklen_t* length, int flags) {
    const int number = rsocket_of(fd);
    return number >= 0 ? accept_with(number, address, length, flags)
                       : next_accept4(fd, address, length, flags);
}

static Next<int(int, int)> next_shutdown("shutdown");
WEIR_EXPORT int shutdown(int fd, int how) noexcept {
    const int number = rsocket_of(fd);
    return number >= 0 ? rshutdown(number, how) : next_shutdown(fd, how);
}

static Next<int(int, sockaddr*, socklen_t*)> next_getpeername("getpeername");
WEIR_EXPORT int getpeername(int fd, sockaddr* address, socklen_t* length) noexcept {
    const int number = rsocket_of(fd);
    return number >= 0 ? rgetpeername(number, address, length)
                       : next_getpeername(fd, address, length);
}

static Next<int(int, sockaddr*, socklen_t*)> next_getsockname("getsockname");
WEIR_EXPORT int getsockname(int fd, sockaddr* address, socklen_t* length) noexcept {
    const int number = rsocket_of(fd);
    return number >= 0 ? rgetsockname(number, address, length)
                       : next_getsockname(fd, address, length);
}

static Next<int(int, int, int, const void*, socklen_t)> next_setsockopt("setsockopt");
WEIR_EXPORT int setsockopt(int fd, int level, int name, const void* value,
                           socklen_t length) noexcept {
    const int number = rsocket_of(fd);
    return number >= 0 ? rsetsockopt(number, level, name, value, length)
                       : next_setsockopt(fd, level, name, value, length);
}

static Next<int(int, int, int, void*, socklen_t*)> next_getsockopt("getsockopt");
WEIR_EXPORT int getsockopt(int fd, int level, int name, void* value, socklen_t* length) noexcept {
    const int number = rsocket_of(fd);
    return number >= 0 ? rgetsockopt(number, level, name, value, length)
                       : next_getsockopt(fd, level, name, value, length);
}

// SPDX-License-Identifier: Apache-2.0
// Reading and writing, with the checked forms that _FORTIFY_SOURCE makes of them.
#include <errno.h>
#include <stdlib.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <rdma/rsocket.h>

#include "descriptors.h"
#include "next.h"

using weir::preload::Next;
using weir::rspreload::rsocket_of;

static Next<ssize_t(int, void*, size_t)> next_read("read");
WEIR_EXPORT ssize_t read(int fd, void* bytes, size_t length) {
    const int number = rsocket_of(fd);
    return number >= 0 ? rread(number, bytes, length) : next_read(fd, bytes, length);
}

static Next<ssize_t(int, const iovec*, int)> next_readv("readv");
WEIR_EXPORT ssize_t readv(int fd, const iovec* parts, int count) {
    const int number = rsocket_of(fd);
    return number >= 0 ? rreadv(number, parts, count) : next_readv(fd, parts, count);
}

static Next<ssize_t(int, void*, size_t, int)> next_recv("recv");
WEIR_EXPORT ssize_t recv(int fd, void* bytes, size_t length, int flags) {
    const int number = rsocket_of(fd);
    return number >= 0 ? rrecv(number, bytes, length, flags) : next_recv(fd, bytes, length, flags);
}

static Next<ssize_t(int, void*, size_t, int, sockaddr*, socklen_t*)> next_recvfrom("recvfrom");
WEIR_EXPORT ssize_t recvfrom(int fd, void* bytes, size_t length, int flags, sockaddr* from,
                             socklen_t* from_length) {
    const int number = rsocket_of(fd);
    return number >= 0 ? rrecvfrom(number, bytes, length, flags, from, from_length)
                       : next_recvfrom(fd, bytes, length, flags, from, from_length);
}

static Next<ssize_t(int, msghdr*, int)> next_recvmsg("recvmsg");
WEIR_EXPORT ssize_t recvmsg(int fd, msghdr* message, int flags) {
    const int number = rsocket_of(fd);
    return number >= 0 ? rrecvmsg(number, message, flags) : next_recvmsg(fd, message, flags);
}

static Next<ssize_t(int, const void*, size_t)> next_write("write");
WEIR_EXPORT ssize_t write(int fd, const void* bytes, size_t length) {
    const int number = rsocket_of(fd);
    return number >= 0 ? rwrite(number, bytes, length) : next_write(fd, bytes, length);
}

static Next<ssize_t(int, const iovec*, int)> next_writev("writev");
WEIR_EXPORT ssize_t writev(int fd, const iovec* parts, int count) {
    const int number = rsocket_of(fd);
    return number >= 0 ? rwritev(number, parts, count) : next_writev(fd, parts, count);
}

static Next<ssize_t(int, const void*, size_t, int)> next_send("send");
WEIR_EXPORT ssize_t send(int fd, const void* bytes, size_t length, int flags) {
    const int number = rsocket_of(fd);
    return number >= 0 ? rsend(number, bytes, length, flags) : next_send(fd, bytes, length, flags);
}

static Next<ssize_t(int, const void*, size_t, int, const sockaddr*, socklen_t)> next_sendto(
    "sendto");
WEIR_EXPORT ssize_t sendto(int fd, const void* bytes, size_t length, int flags, const sockaddr* to,
                           socklen_t to_length) {
    const int number = rsocket_of(fd);
    if (number >= 0) {
        const ssize_t sent = rsendto(number, bytes, length, flags, to, to_length);
        // A datagram to an address that the fabric has not: see connect().
        if (sent >= 0 || (errno != EHOSTUNREACH && errno != ENETUNREACH) ||
            !weir::rspreload::make_ordinary(fd))
            return sent;
    }
    return next_sendto(fd, bytes, length, flags, to, to_length);
}

static Next<ssize_t(int, const msghdr*, int)> next_sendmsg("sendmsg");
WEIR_EXPORT ssize_t sendmsg(int fd, const msghdr* message, int flags) {
    const int number = rsocket_of(fd);
    return number >= 0 ? rsendmsg(number, message, flags) : next_sendmsg(fd, message, flags);
}

// ---------------------------------------------------------------- sendfile

/// Copies through a buffer: what of it the socket did not take is read again the next time.
static ssize_t copy_file(int number, int from, off64_t* offset, size_t count) {
    constexpr size_t kBuffer = 64 * 1024;
    char buffer[kBuffer];
    off64_t at = offset != nullptr ? *offset : lseek64(from, 0, SEEK_CUR);
    if (at < 0) return -1;
    size_t done = 0;
    while (done < count) {
        const size_t wanted = count - done < kBuffer ? count - done : kBuffer;
        const ssize_t got = pread64(from, buffer, wanted, at);
        if (got == 0 || (got < 0 && done > 0)) break;
        if (got < 0) return -1;
        const ssize_t sent = rsend(number, buffer, static_cast<size_t>(got), 0);
        if (sent < 0 && done == 0) return -1;
        if (sent < 0) break;
        done += static_cast<size_t>(sent);
        at += sent;
        if (sent < got) break;
    }
    if (offset != nullptr)
        *offset = at;
    else
        lseek64(from, at, SEEK_SET);
    return static_cast<ssize_t>(done);
}

static_assert(sizeof(off_t) == sizeof(off64_t), "sendfile and sendfile64 are one on this machine");
static Next<ssize_t(int, int, off_t*, size_t)> next_sendfile("sendfile");
WEIR_EXPORT ssize_t sendfile(int to, int from, off_t* offset, size_t count) noexcept {
    const int number = rsocket_of(to);
    return number >= 0 ? copy_file(number, from, offset, count)
                       : next_sendfile(to, from, offset, count);
}
WEIR_EXPORT ssize_t sendfile64(int to, int from, off64_t* offset, size_t count) noexcept {
    return sendfile(to, from, offset, count);
}

// ---------------------------------------------------------------- checked forms

/// As the C library: a program that would write beyond its buffer is ended.
static void check(size_t length, size_t room) {
    if (length > room) abort();
}

WEIR_EXPORT ssize_t __read_chk(int fd, void* bytes, size_t length, size_t room) {
    check(length, room);
    return read(fd, bytes, length);
}

WEIR_EXPORT ssize_t __recv_chk(int fd, void* bytes, size_t length, size_t room, int flags) {
    check(length, room);
    return recv(fd, bytes, length, flags);
}

WEIR_EXPORT ssize_t __recvfrom_chk(int fd, void* bytes, size_t length, size_t room, int flags,
                                   sockaddr* from, socklen_t* from_length) {
    check(length, room);
    return recvfrom(fd, bytes, length, flags, from, from_length);
}

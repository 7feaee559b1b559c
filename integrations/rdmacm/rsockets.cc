// SPDX-License-Identifier: Apache-2.0
// Sockets over RDMA are not offered: rsocket() says so, and the other functions know no socket of
// ours. rpoll() and rselect() also take other descriptors, as they do where rsockets exist.
#include <poll.h>
#include <sys/select.h>

#include <cerrno>

#include <rdma/rsocket.h>

namespace {

template <class Number>
Number no_socket() {
    errno = EBADF;
    return -1;
}

}  // namespace

extern "C" {

int rsocket(int, int, int) {
    errno = EOPNOTSUPP;
    return -1;
}
int rbind(int, const sockaddr*, socklen_t) {
    return no_socket<int>();
}
int rlisten(int, int) {
    return no_socket<int>();
}
int raccept(int, sockaddr*, socklen_t*) {
    return no_socket<int>();
}
int rconnect(int, const sockaddr*, socklen_t) {
    return no_socket<int>();
}
int rshutdown(int, int) {
    return no_socket<int>();
}
int rclose(int) {
    return no_socket<int>();
}
ssize_t rrecv(int, void*, size_t, int) {
    return no_socket<ssize_t>();
}
ssize_t rrecvfrom(int, void*, size_t, int, sockaddr*, socklen_t*) {
    return no_socket<ssize_t>();
}
ssize_t rrecvmsg(int, msghdr*, int) {
    return no_socket<ssize_t>();
}
ssize_t rsend(int, const void*, size_t, int) {
    return no_socket<ssize_t>();
}
ssize_t rsendto(int, const void*, size_t, int, const sockaddr*, socklen_t) {
    return no_socket<ssize_t>();
}
ssize_t rsendmsg(int, const msghdr*, int) {
    return no_socket<ssize_t>();
}
ssize_t rread(int, void*, size_t) {
    return no_socket<ssize_t>();
}
ssize_t rreadv(int, const iovec*, int) {
    return no_socket<ssize_t>();
}
ssize_t rwrite(int, const void*, size_t) {
    return no_socket<ssize_t>();
}
ssize_t rwritev(int, const iovec*, int) {
    return no_socket<ssize_t>();
}
int rpoll(pollfd* fds, nfds_t count, int timeout_ms) {
    return poll(fds, count, timeout_ms);
}
int rselect(int count, fd_set* readable, fd_set* writable, fd_set* exceptional, timeval* timeout) {
    return select(count, readable, writable, exceptional, timeout);
}
int rgetpeername(int, sockaddr*, socklen_t*) {
    return no_socket<int>();
}
int rgetsockname(int, sockaddr*, socklen_t*) {
    return no_socket<int>();
}
int rsetsockopt(int, int, int, const void*, socklen_t) {
    return no_socket<int>();
}
int rgetsockopt(int, int, int, void*, socklen_t*) {
    return no_socket<int>();
}
int rfcntl(int, int, ...) {
    return no_socket<int>();
}
off_t riomap(int, void*, size_t, int, int, off_t) {
    return no_socket<off_t>();
}
int riounmap(int, void*, size_t) {
    return no_socket<int>();
}
size_t riowrite(int, const void*, size_t, off_t, int) {
    errno = EBADF;
    return static_cast<size_t>(-1);
}

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
// rsockets: what sockets promise, asked of rsockets: peeking, waiting for all, half close, end of
// stream, resets, refusals, timeouts, polling, options, threads, datagrams. Both ends are in this
// process; the addresses are those of its own host.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rdma/rsocket.h>

#include "rig.h"

/// The call gives -1 and this errno value.
#define REFUSED(call, error)      \
    do {                          \
        errno = 0;                \
        CHECK_EQ((call), -1);     \
        CHECK_EQ(errno, (error)); \
    } while (0)

static const char* own_address;  ///< IPv4, of the host that this runs on.
static volatile sig_atomic_t pipes;

static void on_pipe(int number) {
    (void)number;
    ++pipes;
}

static struct sockaddr_in address(const char* text, uint16_t port) {
    struct sockaddr_in out = {.sin_family = AF_INET, .sin_port = htons(port)};
    CHECK_EQ(inet_pton(AF_INET, text, &out.sin_addr), 1);
    return out;
}

static int listen_on(uint16_t port, int backlog) {
    const struct sockaddr_in any = address("0.0.0.0", port);
    const int listener = rsocket(AF_INET, SOCK_STREAM, 0);
    CHECK(listener >= 0);
    CHECK_EQ(rbind(listener, (const struct sockaddr*)&any, sizeof any), 0);
    CHECK_EQ(rlisten(listener, backlog), 0);
    return listener;
}

static uint16_t port_of(int socket) {
    struct sockaddr_in own;
    socklen_t length = sizeof own;
    CHECK_EQ(rgetsockname(socket, (struct sockaddr*)&own, &length), 0);
    CHECK_EQ(length, sizeof own);
    return ntohs(own.sin_port);
}

static int ready(int socket, short events, int timeout_ms) {
    struct pollfd fd = {socket, events, 0};
    const int count = rpoll(&fd, 1, timeout_ms);
    CHECK(count >= 0);
    return count == 0 ? 0 : fd.revents;
}

static int error_of(int socket) {
    int error = -1;
    socklen_t length = sizeof error;
    CHECK_EQ(rgetsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length), 0);
    return error;
}

static void set_int(int socket, int level, int name, int value) {
    CHECK_EQ(rsetsockopt(socket, level, name, &value, sizeof value), 0);
}

/// Two connected sockets; `bytes` is the size of each side's buffers, 0 for what it is.
static void connect_pair(int pair[2], int bytes) {
    const int listener = listen_on(0, 4);
    const struct sockaddr_in to = address(own_address, port_of(listener));
    pair[0] = rsocket(AF_INET, SOCK_STREAM, 0);
    if (bytes != 0) {
        set_int(listener, SOL_SOCKET, SO_RCVBUF, bytes);
        set_int(listener, SOL_SOCKET, SO_SNDBUF, bytes);
        set_int(pair[0], SOL_SOCKET, SO_RCVBUF, bytes);
        set_int(pair[0], SOL_SOCKET, SO_SNDBUF, bytes);
    }
    CHECK_EQ(rconnect(pair[0], (const struct sockaddr*)&to, sizeof to), 0);
    pair[1] = raccept(listener, NULL, NULL);
    CHECK(pair[1] >= 0);
    CHECK_EQ(rclose(listener), 0);
}

static void close_pair(const int pair[2]) {
    CHECK_EQ(rclose(pair[0]), 0);
    CHECK_EQ(rclose(pair[1]), 0);
}

static void send_text(int socket, const char* text) {
    CHECK_EQ(rsend(socket, text, strlen(text), 0), strlen(text));
}

static void expect_text(int socket, const char* text) {
    char found[64] = {0};
    CHECK_EQ(rrecv(socket, found, strlen(text), MSG_WAITALL), strlen(text));
    CHECK_EQ(memcmp(found, text, strlen(text)), 0);
}

static void expect_end(int socket) {
    char byte = 0;
    CHECK_EQ(rrecv(socket, &byte, 1, 0), 0);
}

// ---------------------------------------------------------------- streams

static void names(void) {
    const int listener = listen_on(0, 4);
    const uint16_t port = port_of(listener);
    CHECK(port != 0);
    const struct sockaddr_in to = address(own_address, port);
    const int client = rsocket(AF_INET, SOCK_STREAM, IPPROTO_TCP);
    struct sockaddr_in name;
    socklen_t length = sizeof name;
    REFUSED(rgetpeername(client, (struct sockaddr*)&name, &length), ENOTCONN);
    CHECK_EQ(rconnect(client, (const struct sockaddr*)&to, sizeof to), 0);
    REFUSED(rconnect(client, (const struct sockaddr*)&to, sizeof to), EISCONN);
    struct sockaddr_in from;
    length = sizeof from;
    const int server = raccept(listener, (struct sockaddr*)&from, &length);
    CHECK(server >= 0);
    CHECK_EQ(length, sizeof from);
    CHECK_EQ(ntohs(from.sin_port), port_of(client));
    CHECK_EQ(port_of(server), port);
    length = sizeof name;
    CHECK_EQ(rgetpeername(client, (struct sockaddr*)&name, &length), 0);
    CHECK_EQ(ntohs(name.sin_port), port);
    CHECK_EQ(name.sin_addr.s_addr, to.sin_addr.s_addr);
    // Cut off where there is no room, and told how long it is.
    length = 2;
    CHECK_EQ(rgetpeername(client, (struct sockaddr*)&name, &length), 0);
    CHECK_EQ(length, sizeof name);
    struct ibv_path_data route;
    length = sizeof route;
    CHECK_EQ(rgetsockopt(client, SOL_RDMA, RDMA_ROUTE, &route, &length), 0);
    CHECK_EQ(length, sizeof route);
    CHECK(route.path.dlid != 0 && route.path.slid != 0 && route.path.reversible_numpath == 0x81);
    CHECK_EQ(rclose(client), 0);
    REFUSED(rclose(client), EBADF);
    REFUSED(rrecv(client, &name, 1, 0), EBADF);
    expect_end(server);
    CHECK_EQ(rclose(server), 0);
    CHECK_EQ(rclose(listener), 0);
}

static void peeking_and_waiting_for_all(void) {
    int pair[2];
    char found[64];
    connect_pair(pair, 0);
    REFUSED(rrecv(pair[1], found, 1, MSG_DONTWAIT), EAGAIN);
    send_text(pair[0], "abc");
    CHECK_EQ(rrecv(pair[1], found, sizeof found, MSG_PEEK), 3);
    CHECK_EQ(memcmp(found, "abc", 3), 0);
    CHECK_EQ(rrecv(pair[1], found, 2, MSG_PEEK | MSG_DONTWAIT), 2);
    CHECK_EQ(rrecv(pair[1], found, 1, 0), 1);
    send_text(pair[0], "defg");
    send_text(pair[0], "hi");
    // Messages leave no trace: one peek and one read go across them.
    CHECK_EQ(rrecv(pair[1], found, 8, MSG_PEEK | MSG_WAITALL), 8);
    CHECK_EQ(memcmp(found, "bcdefghi", 8), 0);
    expect_text(pair[1], "bcdefghi");
    // Not all comes: what came before the end.
    send_text(pair[0], "last");
    CHECK_EQ(rshutdown(pair[0], SHUT_WR), 0);
    CHECK_EQ(rrecv(pair[1], found, sizeof found, MSG_WAITALL), 4);
    close_pair(pair);
}

static void half_close(void) {
    int pair[2];
    connect_pair(pair, 0);
    send_text(pair[0], "question");
    CHECK_EQ(rshutdown(pair[0], SHUT_WR), 0);
    pipes = 0;
    REFUSED(rsend(pair[0], "x", 1, MSG_NOSIGNAL), EPIPE);
    CHECK_EQ(pipes, 0);
    REFUSED(rsend(pair[0], "x", 1, 0), EPIPE);
    CHECK_EQ(pipes, 1);
    expect_text(pair[1], "question");
    expect_end(pair[1]);
    expect_end(pair[1]);
    CHECK_EQ(ready(pair[1], POLLIN | POLLOUT | POLLRDHUP, 1000), POLLIN | POLLOUT | POLLRDHUP);
    for (int i = 0; i < 1000; ++i) {
        send_text(pair[1], "answer");
        expect_text(pair[0], "answer");
    }
    CHECK_EQ(rshutdown(pair[1], SHUT_WR), 0);
    expect_end(pair[0]);
    CHECK_EQ(ready(pair[0], POLLIN, 1000), POLLIN | POLLHUP);
    close_pair(pair);
}

static void end_and_reset(void) {
    int pair[2];
    char found[8];
    // Closed in order: what was sent, then the end.
    connect_pair(pair, 0);
    send_text(pair[0], "bye");
    CHECK_EQ(rclose(pair[0]), 0);
    expect_text(pair[1], "bye");
    expect_end(pair[1]);
    CHECK_EQ(ready(pair[1], POLLIN, 1000), POLLIN);
    // Who sends to somebody gone hears of it.
    int error = 0;
    for (int i = 0; i < 2000 && error == 0; ++i)
        if (rsend(pair[1], "x", 1, MSG_NOSIGNAL) < 0) error = errno;
    CHECK(error == EPIPE || error == ECONNRESET);
    CHECK_EQ(rclose(pair[1]), 0);
    // With a linger time of 0: a reset, once; then the end.
    connect_pair(pair, 0);
    const struct linger none = {1, 0};
    CHECK_EQ(rsetsockopt(pair[0], SOL_SOCKET, SO_LINGER, &none, sizeof none), 0);
    CHECK_EQ(rclose(pair[0]), 0);
    CHECK((ready(pair[1], POLLIN, 10000) & (POLLERR | POLLHUP)) == (POLLERR | POLLHUP));
    REFUSED(rrecv(pair[1], found, sizeof found, 0), ECONNRESET);
    expect_end(pair[1]);
    pipes = 0;
    REFUSED(rsend(pair[1], "x", 1, 0), EPIPE);
    CHECK_EQ(pipes, 1);
    CHECK_EQ(rclose(pair[1]), 0);
}

static void connecting_without_waiting(void) {
    char found[8];
    const int listener = listen_on(0, 4);
    struct sockaddr_in to = address(own_address, port_of(listener));
    int client = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK_EQ(rfcntl(client, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    REFUSED(raccept(client, NULL, NULL), EINVAL);
    REFUSED(rconnect(client, (const struct sockaddr*)&to, sizeof to), EINPROGRESS);
    CHECK_EQ(ready(client, POLLOUT, 10000), POLLOUT);
    CHECK_EQ(error_of(client), 0);
    CHECK_EQ(rfcntl(listener, F_SETFL, O_NONBLOCK), 0);
    CHECK_EQ(ready(listener, POLLIN, 10000), POLLIN);
    const int server = raccept(listener, NULL, NULL);
    CHECK(server >= 0);
    CHECK_EQ(rfcntl(server, F_GETFL) & O_NONBLOCK, 0);
    REFUSED(raccept(listener, NULL, NULL), EAGAIN);
    send_text(server, "welcome");
    CHECK_EQ(ready(client, POLLIN, 10000), POLLIN);
    expect_text(client, "welcome");
    CHECK_EQ(rclose(client), 0);
    CHECK_EQ(rclose(server), 0);
    CHECK_EQ(rclose(listener), 0);

    // Nobody listens there any more.
    client = rsocket(AF_INET, SOCK_STREAM, 0);
    REFUSED(rconnect(client, (const struct sockaddr*)&to, sizeof to), ECONNREFUSED);
    CHECK_EQ(rfcntl(client, F_SETFL, O_NONBLOCK), 0);
    REFUSED(rconnect(client, (const struct sockaddr*)&to, sizeof to), EINPROGRESS);
    REFUSED(rconnect(client, (const struct sockaddr*)&to, sizeof to), EALREADY);
    CHECK((ready(client, POLLOUT, 10000) & (POLLOUT | POLLERR)) == (POLLOUT | POLLERR));
    CHECK_EQ(error_of(client), ECONNREFUSED);
    CHECK_EQ(error_of(client), 0);
    REFUSED(rrecv(client, found, 1, 0), ENOTCONN);
    REFUSED(rsend(client, "x", 1, 0), ENOTCONN);
    // Who does not ask is told by what comes next, once.
    REFUSED(rconnect(client, (const struct sockaddr*)&to, sizeof to), EINPROGRESS);
    REFUSED(rrecv(client, found, 1, MSG_DONTWAIT), EAGAIN);
    CHECK((ready(client, POLLIN, 10000) & POLLERR) != 0);
    REFUSED(rrecv(client, found, 1, 0), ECONNREFUSED);
    REFUSED(rrecv(client, found, 1, 0), ENOTCONN);
    // No address of the fabric's.
    to = address("198.51.100.1", 1);
    REFUSED(rconnect(client, (const struct sockaddr*)&to, sizeof to), EHOSTUNREACH);
    CHECK_EQ(rclose(client), 0);
}

static void ports(void) {
    const int listener = listen_on(0, 1);
    const struct sockaddr_in same = address("0.0.0.0", port_of(listener));
    const struct sockaddr_in other = address("198.51.100.1", 0);
    const int second = rsocket(AF_INET, SOCK_STREAM, 0);
    REFUSED(rbind(second, (const struct sockaddr*)&same, sizeof same), EADDRINUSE);
    REFUSED(rbind(second, (const struct sockaddr*)&other, sizeof other), EADDRNOTAVAIL);
    REFUSED(rbind(second, (const struct sockaddr*)&same, 4), EINVAL);
    CHECK_EQ(rclose(listener), 0);
    CHECK_EQ(rbind(second, (const struct sockaddr*)&same, sizeof same), 0);
    REFUSED(rbind(second, (const struct sockaddr*)&same, sizeof same), EINVAL);
    CHECK_EQ(rclose(second), 0);
}

static double seconds_now(void) {
    struct timespec now;
    CHECK_EQ(clock_gettime(CLOCK_MONOTONIC, &now), 0);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void timeouts(void) {
    int pair[2];
    char found[8];
    connect_pair(pair, 4096);
    const struct timeval soon = {0, 50000};
    const double begin = seconds_now();
    CHECK_EQ(ready(pair[0], POLLIN, 50), 0);
    CHECK_EQ(ready(pair[0], POLLIN, 0), 0);
    CHECK_EQ(rsetsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon), 0);
    CHECK_EQ(rsetsockopt(pair[0], SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof soon), 0);
    REFUSED(rrecv(pair[0], found, 1, 0), EAGAIN);
    CHECK(seconds_now() - begin >= 0.099);
    // Nobody reads: it ends with what there was room for, and then with nothing.
    static char much[1 << 20];
    const ssize_t sent = rsend(pair[0], much, sizeof much, 0);
    CHECK(sent > 0 && sent < (ssize_t)sizeof much);
    REFUSED(rsend(pair[0], much, sizeof much, 0), EAGAIN);
    CHECK_EQ(ready(pair[0], POLLOUT, 0), 0);
    // All of it is there, and then there is room again.
    ssize_t left = sent;
    while (left > 0) {
        const ssize_t got = rrecv(pair[1], much, sizeof much, 0);
        CHECK(got > 0);
        left -= got;
    }
    CHECK_EQ(left, 0);
    CHECK_EQ(ready(pair[0], POLLOUT, 10000), POLLOUT);
    close_pair(pair);
}

static double processor_seconds(void) {
    struct timespec used;
    CHECK_EQ(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used), 0);
    return (double)used.tv_sec + (double)used.tv_nsec * 1e-9;
}

/// Who waits for nothing burns nothing: it may look for a moment, and then sleeps.
static void sleeping(void) {
    int pair[2];
    char byte = 0;
    connect_pair(pair, 0);
    const double begin = processor_seconds();
    const struct timeval while_ = {0, 400000};
    CHECK_EQ(ready(pair[0], POLLIN, 400), 0);
    CHECK_EQ(rsetsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &while_, sizeof while_), 0);
    REFUSED(rrecv(pair[0], &byte, 1, 0), EAGAIN);
    CHECK(processor_seconds() - begin < 0.4);
    close_pair(pair);
}

static void polling(void) {
    int pair[2];
    connect_pair(pair, 0);
    const int ordinary = eventfd(0, 0);
    CHECK(ordinary >= 0);
    struct pollfd fds[] = {
        {pair[0], POLLIN, 0}, {ordinary, POLLIN, 0}, {-1, POLLIN, 0}, {pair[1], POLLOUT, 0}};
    CHECK_EQ(rpoll(fds, 4, -1), 1);
    CHECK_EQ(fds[0].revents, 0);
    CHECK_EQ(fds[1].revents, 0);
    CHECK_EQ(fds[3].revents, POLLOUT);
    fds[3].events = POLLIN;
    CHECK_EQ(rpoll(fds, 4, 20), 0);
    CHECK_EQ(eventfd_write(ordinary, 1), 0);
    CHECK_EQ(rpoll(fds, 4, -1), 1);
    CHECK_EQ(fds[1].revents, POLLIN);
    send_text(pair[1], "x");
    CHECK_EQ(rpoll(fds, 1, -1), 1);
    CHECK_EQ(rpoll(fds, 2, -1), 2);

    fd_set readable;
    fd_set writable;
    FD_ZERO(&readable);
    FD_ZERO(&writable);
    FD_SET(pair[0], &readable);
    FD_SET(pair[1], &readable);
    FD_SET(ordinary, &readable);
    FD_SET(pair[1], &writable);
    const int most = (pair[0] > pair[1] ? pair[0] : pair[1]) + 1;
    struct timeval timeout = {10, 0};
    CHECK_EQ(rselect(most > ordinary ? most : ordinary + 1, &readable, &writable, NULL, &timeout),
             3);
    CHECK(FD_ISSET(pair[0], &readable) && FD_ISSET(ordinary, &readable));
    CHECK(!FD_ISSET(pair[1], &readable) && FD_ISSET(pair[1], &writable));

    const int closed = rsocket(AF_INET, SOCK_STREAM, 0);
    CHECK_EQ(rclose(closed), 0);
    CHECK_EQ(ready(closed, POLLIN, 0), POLLNVAL);
    close(ordinary);
    close_pair(pair);
}

static void options(void) {
    const int socket = rsocket(AF_INET, SOCK_STREAM, 0);
    static const struct {
        int level, name, value;
    } kKept[] = {{SOL_SOCKET, SO_KEEPALIVE, 1},   {SOL_SOCKET, SO_REUSEADDR, 1},
                 {SOL_SOCKET, SO_OOBINLINE, 1},   {SOL_SOCKET, SO_RCVBUF, 65536},
                 {SOL_SOCKET, SO_SNDBUF, 65536},  {IPPROTO_TCP, TCP_NODELAY, 1},
                 {IPPROTO_TCP, TCP_MAXSEG, 1024}, {IPPROTO_TCP, TCP_KEEPIDLE, 7},
                 {IPPROTO_IPV6, IPV6_V6ONLY, 1},  {SOL_RDMA, RDMA_SQSIZE, 100},
                 {SOL_RDMA, RDMA_RQSIZE, 100},    {SOL_RDMA, RDMA_INLINE, 32},
                 {SOL_RDMA, RDMA_IOMAPSIZE, 3}};
    for (size_t i = 0; i < sizeof kKept / sizeof kKept[0]; ++i) {
        int found = -1;
        socklen_t length = sizeof found;
        set_int(socket, kKept[i].level, kKept[i].name, kKept[i].value);
        CHECK_EQ(rgetsockopt(socket, kKept[i].level, kKept[i].name, &found, &length), 0);
        CHECK_EQ(found, kKept[i].value);
        CHECK_EQ(length, sizeof found);
    }
    int type = 0;
    socklen_t length = sizeof type;
    CHECK_EQ(rgetsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &length), 0);
    CHECK_EQ(type, SOCK_STREAM);
    REFUSED(rsetsockopt(socket, SOL_SOCKET, 9999, &type, sizeof type), ENOPROTOOPT);
    REFUSED(rsetsockopt(socket, SOL_SOCKET, SO_RCVBUF, &type, 1), EINVAL);
    CHECK_EQ(rclose(socket), 0);
    REFUSED(rsocket(AF_UNIX, SOCK_STREAM, 0), EAFNOSUPPORT);
    REFUSED(rsocket(AF_INET, SOCK_RAW, 0), EPROTONOSUPPORT);
    REFUSED(rsocket(AF_INET, SOCK_STREAM, IPPROTO_UDP), EPROTONOSUPPORT);
}

// ---------------------------------------------------------------- many bytes, both ways, at once

enum { kMuch = 8 << 20 };

struct flow {
    int socket;
    uint64_t seed;
};

static void* send_much(void* argument) {
    const struct flow* flow = argument;
    char* bytes = malloc(kMuch);
    CHECK(bytes != NULL);
    fill(bytes, kMuch, flow->seed);
    size_t at = 0;
    for (size_t i = 1; at < kMuch; i = i * 3 % 100003) {
        const size_t wanted = i < kMuch - at ? i : kMuch - at;
        const ssize_t sent = rsend(flow->socket, bytes + at, wanted, 0);
        CHECK(sent > 0);
        at += (size_t)sent;
    }
    CHECK_EQ(rshutdown(flow->socket, SHUT_WR), 0);
    free(bytes);
    return NULL;
}

static void* receive_much(void* argument) {
    const struct flow* flow = argument;
    char* bytes = malloc(kMuch + 1);
    CHECK(bytes != NULL);
    size_t at = 0;
    for (size_t i = 1;; i = i * 5 % 70001) {
        const size_t wanted = i < kMuch + 1 - at ? i : kMuch + 1 - at;
        const ssize_t got = rrecv(flow->socket, bytes + at, wanted, 0);
        CHECK(got >= 0);
        if (got == 0) break;
        at += (size_t)got;
    }
    CHECK_EQ(at, kMuch);
    CHECK(filled(bytes, kMuch, flow->seed));
    free(bytes);
    return NULL;
}

/// Each socket has one thread that sends and one that receives.
static void both_ways(int buffer_bytes) {
    int pair[2];
    connect_pair(pair, buffer_bytes);
    struct flow flows[4] = {{pair[0], 1}, {pair[1], 1}, {pair[1], 2}, {pair[0], 2}};
    pthread_t threads[4];
    for (int i = 0; i < 4; ++i)
        CHECK_EQ(
            pthread_create(&threads[i], NULL, i % 2 == 0 ? send_much : receive_much, &flows[i]), 0);
    for (int i = 0; i < 4; ++i)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    close_pair(pair);
}

// ---------------------------------------------------------------- datagrams, mappings

static void datagrams(void) {
    const struct sockaddr_in any = address("0.0.0.0", 0);
    const int server = rsocket(AF_INET, SOCK_DGRAM, 0);
    CHECK_EQ(rbind(server, (const struct sockaddr*)&any, sizeof any), 0);
    const struct sockaddr_in to = address(own_address, port_of(server));
    const int client = rsocket(AF_INET, SOCK_DGRAM, 0);
    char found[64];
    static char much[8192];
    REFUSED(rsend(client, "x", 1, 0), EDESTADDRREQ);
    CHECK_EQ(rsendto(client, "one", 3, 0, (const struct sockaddr*)&to, sizeof to), 3);
    CHECK_EQ(rsendto(client, "", 0, 0, (const struct sockaddr*)&to, sizeof to), 0);
    CHECK_EQ(rsendto(client, "three", 5, 0, (const struct sockaddr*)&to, sizeof to), 5);
    struct sockaddr_in from;
    socklen_t length = sizeof from;
    CHECK_EQ(ready(server, POLLIN, 10000), POLLIN);
    CHECK_EQ(rrecvfrom(server, found, sizeof found, MSG_PEEK, (struct sockaddr*)&from, &length), 3);
    CHECK_EQ(rrecvfrom(server, found, sizeof found, 0, (struct sockaddr*)&from, &length), 3);
    CHECK_EQ(ntohs(from.sin_port), port_of(client));
    CHECK_EQ(rrecv(server, found, sizeof found, 0), 0);
    // What there is no room for is gone.
    struct iovec part = {found, 2};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    CHECK_EQ(rrecvmsg(server, &message, MSG_TRUNC), 5);
    CHECK_EQ(message.msg_flags, MSG_TRUNC);
    REFUSED(rrecv(server, found, sizeof found, MSG_DONTWAIT), EAGAIN);
    REFUSED(rsendto(client, much, sizeof much, 0, (const struct sockaddr*)&to, sizeof to),
            EMSGSIZE);
    CHECK_EQ(rsendto(server, "back", 4, 0, (const struct sockaddr*)&from, sizeof from), 4);
    expect_text(client, "back");
    // Connected: only its peer's, and it hears of a peer that is not there.
    CHECK_EQ(rconnect(client, (const struct sockaddr*)&to, sizeof to), 0);
    const int stranger = rsocket(AF_INET, SOCK_DGRAM, 0);
    const struct sockaddr_in back = address(own_address, port_of(client));
    CHECK_EQ(rsendto(stranger, "hm", 2, 0, (const struct sockaddr*)&back, sizeof back), 2);
    CHECK_EQ(rsendto(server, "mine", 4, 0, (const struct sockaddr*)&back, sizeof back), 4);
    expect_text(client, "mine");
    CHECK_EQ(rclose(server), 0);
    CHECK_EQ(rsend(client, "gone", 4, 0), 4);
    REFUSED(rrecv(client, found, sizeof found, 0), ECONNREFUSED);
    CHECK_EQ(rclose(client), 0);
    CHECK_EQ(rclose(stranger), 0);
}

static void mappings(void) {
    const int listener = listen_on(0, 1);
    const struct sockaddr_in to = address(own_address, port_of(listener));
    set_int(listener, SOL_RDMA, RDMA_IOMAPSIZE, 1);
    const int client = rsocket(AF_INET, SOCK_STREAM, 0);
    CHECK_EQ(rconnect(client, (const struct sockaddr*)&to, sizeof to), 0);
    const int server = raccept(listener, NULL, NULL);
    static char memory[1 << 20];
    static char other[4096];
    static char bytes[1 << 20];
    REFUSED(riowrite(client, bytes, 1, 100, 0), EFAULT);
    REFUSED(riomap(client, other, sizeof other, PROT_WRITE, 0, -1), ENOBUFS);
    CHECK_EQ(riomap(server, memory, sizeof memory, PROT_WRITE, 0, 100), 100);
    REFUSED(riomap(server, other, sizeof other, PROT_WRITE, 0, 1 << 24), ENOBUFS);
    send_text(server, "mapped");
    expect_text(client, "mapped");
    fill(bytes, sizeof bytes, 5);
    CHECK_EQ(riowrite(client, bytes, sizeof bytes, 100, 0), sizeof bytes);
    send_text(client, "written");
    expect_text(server, "written");
    CHECK(filled(memory, sizeof memory, 5));
    REFUSED(riounmap(server, memory, 1), EINVAL);
    CHECK_EQ(riounmap(server, memory, sizeof memory), 0);
    send_text(server, "no more");
    expect_text(client, "no more");
    REFUSED(riowrite(client, bytes, 1, 100, 0), EFAULT);
    CHECK_EQ(rclose(client), 0);
    CHECK_EQ(rclose(server), 0);
    CHECK_EQ(rclose(listener), 0);
}

// ---------------------------------------------------------------- listeners

static void more_than_the_backlog(void) {
    enum { kClients = 12 };
    const int listener = listen_on(0, 2);
    const struct sockaddr_in to = address(own_address, port_of(listener));
    int clients[kClients];
    for (int i = 0; i < kClients; ++i) {
        clients[i] = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        REFUSED(rconnect(clients[i], (const struct sockaddr*)&to, sizeof to), EINPROGRESS);
    }
    for (int i = 0; i < kClients; ++i) {
        const int server = raccept(listener, NULL, NULL);
        CHECK(server >= 0);
        send_text(server, "hi");
        CHECK_EQ(rclose(server), 0);
    }
    for (int i = 0; i < kClients; ++i) {
        CHECK((ready(clients[i], POLLIN, 10000) & POLLIN) != 0);
        expect_text(clients[i], "hi");
        CHECK_EQ(rclose(clients[i]), 0);
    }
    CHECK_EQ(rclose(listener), 0);
}

static int descriptors(void) {
    int count = 0;
    for (int fd = 0; fd < 1024; ++fd)
        if (fcntl(fd, F_GETFD) >= 0) ++count;
    return count;
}

/// Many connections, one after the other, leave no descriptor behind.
static void many(void) {
    int pair[2];
    int before = 0;
    for (int i = 0; i < 200; ++i) {
        connect_pair(pair, 16384);
        send_text(pair[0], "hello");
        expect_text(pair[1], "hello");
        close_pair(pair);
        if (i == 0) before = descriptors();
    }
    // What was closed last may still be under way.
    for (int i = 0; i < 1000 && descriptors() > before; ++i)
        usleep(10000);
    CHECK(descriptors() <= before);
}

static void both_families(void) {
    const struct sockaddr_in6 any = {.sin6_family = AF_INET6};
    const int listener = rsocket(AF_INET6, SOCK_STREAM, 0);
    CHECK_EQ(rbind(listener, (const struct sockaddr*)&any, sizeof any), 0);
    CHECK_EQ(rlisten(listener, 4), 0);
    struct sockaddr_in6 own;
    socklen_t length = sizeof own;
    CHECK_EQ(rgetsockname(listener, (struct sockaddr*)&own, &length), 0);
    const struct sockaddr_in to = address(own_address, ntohs(own.sin6_port));
    const int client = rsocket(AF_INET, SOCK_STREAM, 0);
    CHECK_EQ(rconnect(client, (const struct sockaddr*)&to, sizeof to), 0);
    struct sockaddr_in6 from;
    length = sizeof from;
    const int server = raccept(listener, (struct sockaddr*)&from, &length);
    CHECK(server >= 0);
    CHECK_EQ(length, sizeof from);
    CHECK(IN6_IS_ADDR_V4MAPPED(&from.sin6_addr));
    // And out by the same form.
    from.sin6_port = own.sin6_port;
    memcpy(&from.sin6_addr.s6_addr[12], &to.sin_addr, 4);
    const int second = rsocket(AF_INET6, SOCK_STREAM, 0);
    CHECK_EQ(rconnect(second, (const struct sockaddr*)&from, sizeof from), 0);
    CHECK_EQ(rclose(client), 0);
    CHECK_EQ(rclose(second), 0);
    CHECK_EQ(rclose(server), 0);
    CHECK_EQ(rclose(listener), 0);
}

static void* close_soon(void* argument) {
    usleep(100000);
    CHECK_EQ(rclose(*(const int*)argument), 0);
    return NULL;
}

/// A thread that waits for a socket which another closes does not wait for ever.
static void closed_under_a_reader(void) {
    int pair[2];
    char byte = 0;
    pthread_t thread;
    connect_pair(pair, 0);
    CHECK_EQ(pthread_create(&thread, NULL, close_soon, &pair[0]), 0);
    CHECK(rrecv(pair[0], &byte, 1, 0) <= 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    expect_end(pair[1]);
    CHECK_EQ(rclose(pair[1]), 0);
}

/// A child has none of them, and its end does no harm to its parent's.
static void forked(void) {
    int pair[2];
    connect_pair(pair, 0);
    send_text(pair[0], "before");
    const pid_t child = fork();
    if (child == 0) {
        char byte = 0;
        errno = 0;
        exit(rrecv(pair[1], &byte, 1, 0) == -1 && errno == EBADF ? 0 : 1);
    }
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    expect_text(pair[1], "before");
    send_text(pair[1], "after");
    expect_text(pair[0], "after");
    close_pair(pair);
}

/// What a process sent before it left arrives, and then the end, though it closed nothing and its
/// peer was not looking. REQUIRES: nothing of RDMA has been used yet.
static void leaving(void) {
    enum { kBytes = 200000 };
    static char bytes[kBytes];
    int told[2];
    uint16_t port = 0;
    CHECK_EQ(pipe(told), 0);
    const pid_t child = fork();
    if (child == 0) {
        CHECK_EQ(read(told[0], &port, sizeof port), sizeof port);
        const struct sockaddr_in to = address(own_address, port);
        const int client = rsocket(AF_INET, SOCK_STREAM, 0);
        CHECK_EQ(rconnect(client, (const struct sockaddr*)&to, sizeof to), 0);
        fill(bytes, kBytes, 9);
        CHECK_EQ(rsend(client, bytes, kBytes, 0), kBytes);
        exit(0);
    }
    const int listener = listen_on(0, 1);
    port = port_of(listener);
    CHECK_EQ(write(told[1], &port, sizeof port), sizeof port);
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    const int server = raccept(listener, NULL, NULL);
    CHECK_EQ(rrecv(server, bytes, kBytes, MSG_WAITALL), kBytes);
    CHECK(filled(bytes, kBytes, 9));
    expect_end(server);
    CHECK_EQ(rclose(server), 0);
    CHECK_EQ(rclose(listener), 0);
}

int main(int count, char** words) {
    own_address = count > 1 ? words[1] : "100.64.0.1";
    signal(SIGPIPE, on_pipe);
    alarm(100);
    leaving();
    names();
    peeking_and_waiting_for_all();
    half_close();
    end_and_reset();
    connecting_without_waiting();
    ports();
    timeouts();
    sleeping();
    polling();
    options();
    both_ways(0);
    both_ways(4096);
    datagrams();
    mappings();
    more_than_the_backlog();
    many();
    both_families();
    closed_under_a_reader();
    forked();
    return 0;
}

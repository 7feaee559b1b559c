// SPDX-License-Identifier: Apache-2.0
// cancel: threads that wait in a verbs, connection manager or rsockets call are cancelled, as
// programs end their helpers; what they waited at still works, and can be destroyed.
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>

#include "rig.h"

enum { ROUNDS = 20, ASLEEP_US = 2000 };

static struct side side;
static struct rdma_event_channel* channel;
static int listener;
static int peers[2];

static void* wait_for_completion(void* unused) {
    (void)unused;
    struct ibv_cq* cq = NULL;
    void* context = NULL;
    ibv_get_cq_event(side.events, &cq, &context);
    return NULL;
}

static void* wait_for_async(void* unused) {
    (void)unused;
    struct ibv_async_event event;
    ibv_get_async_event(side.context, &event);
    return NULL;
}

static void* wait_for_cm_event(void* unused) {
    (void)unused;
    struct rdma_cm_event* event = NULL;
    rdma_get_cm_event(channel, &event);
    return NULL;
}

static void* wait_for_connection(void* unused) {
    (void)unused;
    raccept(listener, NULL, NULL);
    return NULL;
}

static void* wait_for_bytes(void* unused) {
    (void)unused;
    char byte = 0;
    rrecv(peers[0], &byte, 1, 0);
    return NULL;
}

static void* wait_for_any(void* unused) {
    (void)unused;
    struct pollfd list[2] = {{listener, POLLIN, 0}, {peers[0], POLLIN, 0}};
    rpoll(list, 2, -1);
    return NULL;
}

/// Never waits in a call: cancelled in whatever call of the library has a cancellation point, if
/// one has; then at the end of a turn.
static void* work(void* unused) {
    (void)unused;
    char byte[64];
    for (;;) {
        struct ibv_mr* mr = ibv_reg_mr(side.pd, byte, sizeof byte, IBV_ACCESS_LOCAL_WRITE);
        struct ibv_wc completion;
        CHECK(mr != NULL);
        CHECK_EQ(ibv_poll_cq(side.cq, 1, &completion), 0);
        CHECK_EQ(ibv_req_notify_cq(side.cq, 0), 0);
        CHECK_EQ(ibv_dereg_mr(mr), 0);
        pthread_testcancel();
    }
}

static void cancel(void* (*body)(void*)) {
    for (int i = 0; i < ROUNDS; ++i) {
        pthread_t thread;
        CHECK_EQ(pthread_create(&thread, NULL, body, NULL), 0);
        if (i % 2 == 0) usleep(ASLEEP_US);
        CHECK_EQ(pthread_cancel(thread), 0);
        void* result = NULL;
        CHECK_EQ(pthread_join(thread, &result), 0);
        CHECK(result == PTHREAD_CANCELED);
    }
}

static void make_rsockets(void) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(7481)};
    CHECK_EQ(inet_pton(AF_INET, "100.64.0.1", &to.sin_addr), 1);
    listener = rsocket(AF_INET, SOCK_STREAM, 0);
    CHECK(listener >= 0);
    CHECK_EQ(rbind(listener, (struct sockaddr*)&to, sizeof to), 0);
    CHECK_EQ(rlisten(listener, 1), 0);
    peers[1] = rsocket(AF_INET, SOCK_STREAM, 0);
    CHECK_EQ(rconnect(peers[1], (struct sockaddr*)&to, sizeof to), 0);
    peers[0] = raccept(listener, NULL, NULL);
    CHECK(peers[0] >= 0);
}

int main(void) {
    alarm(100);
    open_side(&side, 16);
    channel = rdma_create_event_channel();
    CHECK(channel != NULL);
    make_rsockets();
    cancel(wait_for_completion);
    cancel(wait_for_async);
    cancel(wait_for_cm_event);
    cancel(wait_for_connection);
    cancel(wait_for_bytes);
    cancel(wait_for_any);
    cancel(work);
    char byte = 'x';
    CHECK_EQ(rsend(peers[1], &byte, 1, 0), 1);
    CHECK_EQ(rrecv(peers[0], &byte, 1, 0), 1);
    CHECK_EQ(rclose(peers[0]), 0);
    CHECK_EQ(rclose(peers[1]), 0);
    CHECK_EQ(rclose(listener), 0);
    rdma_destroy_event_channel(channel);
    CHECK_EQ(ibv_destroy_cq(side.cq), 0);
    CHECK_EQ(ibv_destroy_comp_channel(side.events), 0);
    CHECK_EQ(ibv_dealloc_pd(side.pd), 0);
    CHECK_EQ(ibv_close_device(side.context), 0);
    return 0;
}

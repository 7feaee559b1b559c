// SPDX-License-Identifier: Apache-2.0
// cm_churn COUNT: that many connections one after the other between two processes on two hosts,
// each made, used for nothing, and ended by the client. Neither process may grow. Prints the rate.
#include <arpa/inet.h>
#include <time.h>

#include <rdma/rdma_cma.h>

#include "rig.h"

#define PORT 7473

static long count;
static struct rdma_event_channel* channel;

static struct rdma_cm_id* take(enum rdma_cm_event_type type) {
    struct rdma_cm_event* event = NULL;
    do {
        if (event != NULL) CHECK_EQ(rdma_ack_cm_event(event), 0);
        CHECK_EQ(rdma_get_cm_event(channel, &event), 0);
    } while (event->event == RDMA_CM_EVENT_TIMEWAIT_EXIT);
    CHECK_EQ(event->event, type);
    struct rdma_cm_id* id = event->id;
    CHECK_EQ(rdma_ack_cm_event(event), 0);
    return id;
}

static void make_qp_for(struct rdma_cm_id* id) {
    struct ibv_qp_init_attr init = {.cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    CHECK_EQ(rdma_create_qp(id, NULL, &init), 0);
}

static void destroy(struct rdma_cm_id* id) {
    rdma_destroy_qp(id);
    CHECK_EQ(rdma_destroy_id(id), 0);
}

static struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1};

static void serve_one(void) {
    struct rdma_cm_id* id = take(RDMA_CM_EVENT_CONNECT_REQUEST);
    make_qp_for(id);
    CHECK_EQ(rdma_accept(id, &param), 0);
    CHECK(take(RDMA_CM_EVENT_ESTABLISHED) == id);
    CHECK(take(RDMA_CM_EVENT_DISCONNECTED) == id);
    CHECK_EQ(rdma_disconnect(id), 0);
    destroy(id);
}

static void connect_one(void) {
    struct rdma_cm_id* id = NULL;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    CHECK_EQ(inet_pton(AF_INET, "100.64.0.1", &to.sin_addr), 1);
    CHECK_EQ(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
    CHECK_EQ(rdma_resolve_addr(id, NULL, (struct sockaddr*)&to, 1000), 0);
    take(RDMA_CM_EVENT_ADDR_RESOLVED);
    CHECK_EQ(rdma_resolve_route(id, 1000), 0);
    take(RDMA_CM_EVENT_ROUTE_RESOLVED);
    make_qp_for(id);
    CHECK_EQ(rdma_connect(id, &param), 0);
    take(RDMA_CM_EVENT_ESTABLISHED);
    CHECK_EQ(rdma_disconnect(id), 0);
    take(RDMA_CM_EVENT_DISCONNECTED);
    destroy(id);
}

/// Its own pages: those of the fabric that it has seen grow with the QP numbers that go round.
static long resident_pages(void) {
    long size = 0;
    long resident = 0;
    long shared = 0;
    FILE* file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL);
    CHECK_EQ(fscanf(file, "%ld %ld %ld", &size, &resident, &shared), 3);
    fclose(file);
    return resident - shared;
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void churn(struct side* side) {
    struct rdma_cm_id* listener = NULL;
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    channel = rdma_create_event_channel();
    CHECK(channel != NULL);
    if (side->index == 0) {
        CHECK_EQ(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), 0);
        CHECK_EQ(rdma_bind_addr(listener, (struct sockaddr*)&any), 0);
        CHECK_EQ(rdma_listen(listener, 0), 0);
    }
    meet(side);
    const double begin = now_s();
    long pages_early = 0;
    for (long i = 0; i < count; ++i) {
        if (i == count / 5) pages_early = resident_pages();
        if (side->index == 0)
            serve_one();
        else
            connect_one();
    }
    const double took = now_s() - begin;
    // What 4/5 of the connections left behind, where each would leave 100 bytes if it left any.
    CHECK((resident_pages() - pages_early) * 4096 < 100 * (count * 4 / 5) + 512 * 1024);
    if (side->index == 1) printf("%ld connections, %.0f a second\n", count, (double)count / took);
    if (listener != NULL) CHECK_EQ(rdma_destroy_id(listener), 0);
    rdma_destroy_event_channel(channel);
}

int main(int argc, char** argv) {
    count = argc > 1 ? atol(argv[1]) : 1000;
    return run_sides("h0", "h1", 600, churn);
}

// SPDX-License-Identifier: Apache-2.0
// cm_events: both ends of connections in one process, on a channel each, so that the order of
// events, what they carry and what waits for what can be checked step by step.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>

#include "rig.h"

#define PORT 7472
enum { REQUEST_DATA = 56, REPLY_DATA = 196, REJECT_DATA = 148, DATAGRAM_REQUEST_DATA = 180 };
enum { DATAGRAM_REPLY_DATA = 136, BACKLOG = 3 };

static struct rdma_event_channel* server_events;
static struct rdma_event_channel* client_events;
static struct rdma_cm_id* listener;
static uint8_t data[256];

static struct rdma_cm_event* next(struct rdma_event_channel* channel,
                                  enum rdma_cm_event_type type) {
    struct rdma_cm_event* event = NULL;
    CHECK_EQ(rdma_get_cm_event(channel, &event), 0);
    if (event->event != type)
        fprintf(stderr, "%s, not %s\n", rdma_event_str(event->event), rdma_event_str(type));
    CHECK_EQ(event->event, type);
    return event;
}

static void take(struct rdma_event_channel* channel, enum rdma_cm_event_type type, int status) {
    struct rdma_cm_event* event = next(channel, type);
    CHECK_EQ(event->status, status);
    CHECK_EQ(rdma_ack_cm_event(event), 0);
}

static void expect_none(struct rdma_event_channel* channel) {
    struct pollfd entry = {channel->fd, POLLIN, 0};
    CHECK_EQ(poll(&entry, 1, 0), 0);
}

static struct sockaddr_in server_address(void) {
    struct sockaddr_in out = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    CHECK_EQ(inet_pton(AF_INET, "100.64.0.1", &out.sin_addr), 1);
    return out;
}

static struct rdma_cm_id* listen_on(enum rdma_port_space space) {
    struct rdma_cm_id* id = NULL;
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    CHECK_EQ(rdma_create_id(server_events, &id, (void*)0x5e, space), 0);
    CHECK_EQ(rdma_bind_addr(id, (struct sockaddr*)&any), 0);
    CHECK_EQ(rdma_listen(id, BACKLOG), 0);
    CHECK_EQ(rdma_get_src_port(id), htons(PORT));
    return id;
}

static void make_qp_of(struct rdma_cm_id* id, enum ibv_qp_type type) {
    struct ibv_qp_init_attr init = {.cap = {4, 4, 1, 1, 0}, .qp_type = type};
    CHECK_EQ(rdma_create_qp(id, NULL, &init), 0);
    CHECK(id->send_cq != NULL && id->recv_cq != NULL && id->pd != NULL);
}

/// A client that knows its way.
static struct rdma_cm_id* make_client(enum rdma_port_space space) {
    struct rdma_cm_id* id = NULL;
    struct sockaddr_in to = server_address();
    CHECK_EQ(rdma_create_id(client_events, &id, NULL, space), 0);
    CHECK_EQ(rdma_resolve_addr(id, NULL, (struct sockaddr*)&to, 1000), 0);
    take(client_events, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
    CHECK(id->verbs != NULL);
    CHECK_EQ(id->port_num, 1);
    CHECK_EQ(rdma_get_dst_port(id), htons(PORT));
    CHECK_EQ(rdma_resolve_route(id, 1000), 0);
    take(client_events, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
    return id;
}

static struct rdma_conn_param parameters(uint8_t length) {
    return (struct rdma_conn_param){.private_data = data,
                                    .private_data_len = length,
                                    .responder_resources = 3,
                                    .initiator_depth = 2,
                                    .retry_count = 5,
                                    .rnr_retry_count = 6};
}

static struct rdma_cm_id* take_request(uint8_t length) {
    struct rdma_cm_event* event = next(server_events, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct rdma_cm_id* id = event->id;
    CHECK(event->listen_id == listener);
    CHECK(id != listener);
    CHECK(id->context == (void*)0x5e);
    CHECK_EQ(event->param.conn.private_data_len, REQUEST_DATA);
    CHECK_EQ(memcmp(event->param.conn.private_data, data, length), 0);
    CHECK_EQ(event->param.conn.responder_resources, 2);  // What the peer would initiate.
    CHECK_EQ(event->param.conn.initiator_depth, 3);
    CHECK_EQ(event->param.conn.rnr_retry_count, 6);
    CHECK_EQ(event->param.conn.retry_count, 5);
    const struct sockaddr_in* local = (struct sockaddr_in*)rdma_get_local_addr(id);
    CHECK_EQ(local->sin_addr.s_addr, server_address().sin_addr.s_addr);
    CHECK_EQ(local->sin_port, htons(PORT));
    CHECK_EQ(rdma_ack_cm_event(event), 0);
    return id;
}

static void destroy(struct rdma_cm_id* id) {
    if (id->qp != NULL) rdma_destroy_qp(id);
    CHECK_EQ(rdma_destroy_id(id), 0);
}

/// A connection, its end by the client, and every event of it in order.
static void whole_life(uint8_t request_length, uint8_t reply_length) {
    struct rdma_cm_id* client = make_client(RDMA_PS_TCP);
    make_qp_of(client, IBV_QPT_RC);
    struct rdma_conn_param param = parameters(request_length);
    CHECK_EQ(rdma_connect(client, &param), 0);
    struct rdma_cm_id* server = take_request(request_length);
    make_qp_of(server, IBV_QPT_RC);
    param = parameters(reply_length);
    CHECK_EQ(rdma_accept(server, &param), 0);
    CHECK_EQ(state_of(server->qp), IBV_QPS_RTS);
    struct rdma_cm_event* event = next(client_events, RDMA_CM_EVENT_ESTABLISHED);
    CHECK_EQ(event->param.conn.private_data_len, REPLY_DATA);
    CHECK_EQ(memcmp(event->param.conn.private_data, data, reply_length), 0);
    CHECK_EQ(rdma_ack_cm_event(event), 0);
    CHECK_EQ(state_of(client->qp), IBV_QPS_RTS);
    take(server_events, RDMA_CM_EVENT_ESTABLISHED, 0);
    CHECK_EQ(rdma_get_src_port(client), rdma_get_dst_port(server));

    CHECK_EQ(rdma_disconnect(client), 0);
    CHECK_EQ(state_of(client->qp), IBV_QPS_ERR);
    take(server_events, RDMA_CM_EVENT_DISCONNECTED, 0);
    expect_none(client_events);  // The server has not answered yet.
    CHECK_EQ(rdma_disconnect(server), 0);
    take(client_events, RDMA_CM_EVENT_DISCONNECTED, 0);
    take(server_events, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
    take(client_events, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
    destroy(client);
    destroy(server);
}

static void too_much_data(void) {
    struct rdma_cm_id* client = make_client(RDMA_PS_TCP);
    make_qp_of(client, IBV_QPT_RC);
    struct rdma_conn_param param = parameters(REQUEST_DATA + 1);
    CHECK_EQ(rdma_connect(client, &param), -1);
    CHECK_EQ(errno, EINVAL);
    param = parameters(REQUEST_DATA);
    CHECK_EQ(rdma_connect(client, &param), 0);
    struct rdma_cm_id* server = take_request(REQUEST_DATA);
    make_qp_of(server, IBV_QPT_RC);
    param = parameters(REPLY_DATA + 1);
    CHECK_EQ(rdma_accept(server, &param), -1);
    CHECK_EQ(errno, EINVAL);
    CHECK_EQ(rdma_reject(server, data, REJECT_DATA + 1), -1);
    CHECK_EQ(errno, EINVAL);
    CHECK_EQ(rdma_reject(server, data, REJECT_DATA), 0);
    struct rdma_cm_event* event = next(client_events, RDMA_CM_EVENT_REJECTED);
    CHECK_EQ(event->status, 28);  // Consumer defined.
    CHECK_EQ(event->param.conn.private_data_len, REJECT_DATA);
    CHECK_EQ(memcmp(event->param.conn.private_data, data, REJECT_DATA), 0);
    CHECK_EQ(rdma_ack_cm_event(event), 0);
    destroy(client);
    destroy(server);
}

/// Requests beyond the backlog are refused, and those that the program has seen make room.
static void full_backlog(void) {
    struct rdma_cm_id* clients[BACKLOG + 1];
    struct rdma_conn_param param = parameters(0);
    for (int i = 0; i <= BACKLOG; ++i) {
        clients[i] = make_client(RDMA_PS_TCP);
        make_qp_of(clients[i], IBV_QPT_RC);
        CHECK_EQ(rdma_connect(clients[i], &param), 0);
    }
    take(client_events, RDMA_CM_EVENT_REJECTED, 28);
    destroy(clients[BACKLOG]);
    struct rdma_cm_id* seen = take_request(0);
    clients[BACKLOG] = make_client(RDMA_PS_TCP);
    make_qp_of(clients[BACKLOG], IBV_QPT_RC);
    CHECK_EQ(rdma_connect(clients[BACKLOG], &param), 0);
    destroy(seen);
    take(client_events, RDMA_CM_EVENT_REJECTED, 28);
    // The listener goes, and with it the requests that nobody has seen.
    for (int i = 0; i < BACKLOG; ++i) {
        struct pollfd entry = {server_events->fd, POLLIN, 0};
        CHECK_EQ(poll(&entry, 1, 10000), 1);
    }
    destroy(listener);
    for (int i = 0; i < BACKLOG; ++i)
        take(client_events, RDMA_CM_EVENT_REJECTED, 28);
    expect_none(server_events);
    for (int i = 0; i <= BACKLOG; ++i)
        destroy(clients[i]);
    listener = listen_on(RDMA_PS_TCP);
}

/// Without QPs of its own, the program moves its QPs itself and says when it is ready.
static void own_queue_pairs(void) {
    struct rdma_cm_id* client = make_client(RDMA_PS_TCP);
    struct rdma_conn_param param = parameters(1);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
    int mask = 0;
    param.qp_num = 0x123;
    CHECK_EQ(rdma_connect(client, &param), 0);
    struct rdma_cm_event* event = next(server_events, RDMA_CM_EVENT_CONNECT_REQUEST);
    CHECK_EQ(event->param.conn.qp_num, 0x123);
    struct rdma_cm_id* server = event->id;
    CHECK_EQ(rdma_ack_cm_event(event), 0);
    param.qp_num = 0x456;
    CHECK_EQ(rdma_accept(server, &param), 0);
    CHECK_EQ(rdma_accept(server, &param), -1);
    CHECK_EQ(errno, EINVAL);
    event = next(client_events, RDMA_CM_EVENT_CONNECT_RESPONSE);
    CHECK_EQ(event->param.conn.qp_num, 0x456);
    CHECK_EQ(rdma_ack_cm_event(event), 0);
    expect_none(server_events);
    CHECK_EQ(rdma_init_qp_attr(client, &attr, &mask), 0);
    CHECK_EQ(attr.dest_qp_num, 0x456);
    CHECK((mask & IBV_QP_AV) != 0);
    CHECK_EQ(rdma_establish(client), 0);
    take(server_events, RDMA_CM_EVENT_ESTABLISHED, 0);
    destroy(client);  // Which ends the connection.
    take(server_events, RDMA_CM_EVENT_DISCONNECTED, 0);
    destroy(server);
}

static void datagrams(void) {
    destroy(listener);
    listener = listen_on(RDMA_PS_UDP);
    struct rdma_cm_id* client = make_client(RDMA_PS_UDP);
    make_qp_of(client, IBV_QPT_UD);
    CHECK_EQ(state_of(client->qp), IBV_QPS_RTS);
    struct rdma_conn_param param = parameters(DATAGRAM_REQUEST_DATA);
    CHECK_EQ(rdma_connect(client, &param), 0);
    struct rdma_cm_event* event = next(server_events, RDMA_CM_EVENT_CONNECT_REQUEST);
    CHECK_EQ(event->param.ud.private_data_len, DATAGRAM_REQUEST_DATA);
    CHECK_EQ(memcmp(event->param.ud.private_data, data, DATAGRAM_REQUEST_DATA), 0);
    struct rdma_cm_id* server = event->id;
    CHECK_EQ(rdma_ack_cm_event(event), 0);
    make_qp_of(server, IBV_QPT_UD);
    param = parameters(DATAGRAM_REPLY_DATA + 1);
    CHECK_EQ(rdma_accept(server, &param), -1);
    param = parameters(DATAGRAM_REPLY_DATA);
    CHECK_EQ(rdma_accept(server, &param), 0);
    event = next(client_events, RDMA_CM_EVENT_ESTABLISHED);
    CHECK_EQ(event->param.ud.qp_num, server->qp->qp_num);
    CHECK_EQ(event->param.ud.qkey, RDMA_UDP_QKEY);
    CHECK_EQ(event->param.ud.private_data_len, DATAGRAM_REPLY_DATA);
    CHECK_EQ(memcmp(event->param.ud.private_data, data, DATAGRAM_REPLY_DATA), 0);
    struct ibv_ah* ah = ibv_create_ah(client->pd, &event->param.ud.ah_attr);
    CHECK(ah != NULL);
    CHECK_EQ(ibv_destroy_ah(ah), 0);
    CHECK_EQ(rdma_ack_cm_event(event), 0);
    destroy(server);
    destroy(client);

    client = make_client(RDMA_PS_UDP);
    CHECK_EQ(rdma_connect(client, &param), 0);
    event = next(server_events, RDMA_CM_EVENT_CONNECT_REQUEST);
    server = event->id;
    CHECK_EQ(rdma_ack_cm_event(event), 0);
    CHECK_EQ(rdma_reject(server, NULL, 0), 0);
    take(client_events, RDMA_CM_EVENT_UNREACHABLE, 2);  // SIDR: rejected.
    destroy(server);
    destroy(client);
    destroy(listener);
    listener = listen_on(RDMA_PS_TCP);
}

static struct rdma_cm_event* unacknowledged;
static atomic_int acknowledging;

static void* acknowledge_later(void* unused) {
    (void)unused;
    usleep(100000);
    atomic_store(&acknowledging, 1);
    CHECK_EQ(rdma_ack_cm_event(unacknowledged), 0);
    return NULL;
}

/// An identifier is destroyed only when its events have been acknowledged, and moves with its own.
static void waiting_and_moving(void) {
    struct rdma_cm_id* id = NULL;
    struct sockaddr_in to = server_address();
    CHECK_EQ(rdma_create_id(client_events, &id, NULL, RDMA_PS_TCP), 0);
    CHECK_EQ(rdma_resolve_addr(id, NULL, (struct sockaddr*)&to, 1000), 0);
    struct rdma_event_channel* other = rdma_create_event_channel();
    CHECK_EQ(rdma_migrate_id(id, other), 0);
    expect_none(client_events);
    CHECK(id->channel == other);
    unacknowledged = next(other, RDMA_CM_EVENT_ADDR_RESOLVED);
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, acknowledge_later, NULL), 0);
    CHECK_EQ(rdma_destroy_id(id), 0);
    CHECK_EQ(atomic_load(&acknowledging), 1);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    rdma_destroy_event_channel(other);
}

static atomic_int steps;

/// Takes one event of a channel, and asks for the next when the channel is no more.
static void* ask_a_destroyed_channel(void* argument) {
    struct rdma_event_channel* channel = argument;
    take(channel, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
    atomic_store(&steps, 1);
    while (atomic_load(&steps) != 2)
        sched_yield();
    struct rdma_cm_event* event = NULL;
    rdma_get_cm_event(channel, &event);
    atomic_store(&steps, 3);
    return NULL;
}

/// A thread that waits at a channel is not told that another thread destroyed it, as by a kernel.
static void destroyed_under_a_waiter(void) {
    struct rdma_cm_id* id = NULL;
    struct sockaddr_in to = server_address();
    struct rdma_event_channel* channel = rdma_create_event_channel();
    CHECK(channel != NULL);
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, ask_a_destroyed_channel, channel), 0);
    CHECK_EQ(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
    CHECK_EQ(rdma_resolve_addr(id, NULL, (struct sockaddr*)&to, 1000), 0);
    while (atomic_load(&steps) != 1)
        sched_yield();
    CHECK_EQ(rdma_destroy_id(id), 0);
    rdma_destroy_event_channel(channel);
    atomic_store(&steps, 2);
    usleep(50000);
    CHECK_EQ(atomic_load(&steps), 2);
    CHECK_EQ(pthread_cancel(thread), 0);
    void* result = NULL;
    CHECK_EQ(pthread_join(thread, &result), 0);
    CHECK(result == PTHREAD_CANCELED);
}

static void nobody_listens(void) {
    destroy(listener);
    struct rdma_cm_id* client = make_client(RDMA_PS_TCP);
    make_qp_of(client, IBV_QPT_RC);
    struct rdma_conn_param param = parameters(0);
    CHECK_EQ(rdma_connect(client, &param), 0);
    take(client_events, RDMA_CM_EVENT_REJECTED, 8);  // Invalid service ID.
    destroy(client);
    client = make_client(RDMA_PS_UDP);
    CHECK_EQ(rdma_connect(client, &param), 0);
    take(client_events, RDMA_CM_EVENT_UNREACHABLE, 1);  // SIDR: unsupported.
    destroy(client);
    listener = listen_on(RDMA_PS_TCP);
}

int main(void) {
    for (size_t i = 0; i < sizeof data; ++i)
        data[i] = (uint8_t)(i * 7 + 1);
    server_events = rdma_create_event_channel();
    client_events = rdma_create_event_channel();
    CHECK(server_events != NULL && client_events != NULL);
    listener = listen_on(RDMA_PS_TCP);
    whole_life(0, 0);
    whole_life(REQUEST_DATA, REPLY_DATA);
    too_much_data();
    full_backlog();
    own_queue_pairs();
    datagrams();
    waiting_and_moving();
    destroyed_under_a_waiter();
    nobody_listens();
    for (int i = 0; i < 20; ++i)
        whole_life(1, 1);
    destroy(listener);
    expect_none(server_events);
    expect_none(client_events);
    rdma_destroy_event_channel(server_events);
    rdma_destroy_event_channel(client_events);
    return 0;
}

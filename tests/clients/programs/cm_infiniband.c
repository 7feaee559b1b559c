// SPDX-License-Identifier: Apache-2.0
// cm_infiniband: connections and datagrams by InfiniBand addresses (AF_IB): GIDs and service IDs in
// the place of IP addresses and ports. Both ends in one process, on the host that it is started on.
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <string.h>

#include <infiniband/ib.h>
#include <rdma/rdma_cma.h>

#include "rig.h"

#define PORT 7475
#define REFUSED(call, error)      \
    do {                          \
        errno = 0;                \
        CHECK_EQ((call), -1);     \
        CHECK_EQ(errno, (error)); \
    } while (0)
// All of the message's room is the program's: there is no IP header.
enum { REQUEST_DATA = 92, DATAGRAM_DATA = 216 };

static struct rdma_event_channel* server;
static struct rdma_event_channel* client;
static union ibv_gid own;
static uint8_t data[256];

static struct sockaddr_ib address(const union ibv_gid* gid, uint64_t space, uint16_t port) {
    struct sockaddr_ib out = {.sib_family = AF_IB, .sib_pkey = 0xffff};
    if (gid != NULL) memcpy(&out.sib_addr, gid->raw, sizeof gid->raw);
    out.sib_sid = htobe64(space << 16 | port);
    out.sib_sid_mask = htobe64(space == 0 ? RDMA_IB_IP_PORT_MASK : ~0ULL);
    return out;
}

static struct rdma_cm_event* next(struct rdma_event_channel* channel,
                                  enum rdma_cm_event_type type) {
    struct rdma_cm_event* event = NULL;
    CHECK_EQ(rdma_get_cm_event(channel, &event), 0);
    CHECK_EQ(event->event, type);
    return event;
}

static void take(struct rdma_event_channel* channel, enum rdma_cm_event_type type) {
    CHECK_EQ(rdma_ack_cm_event(next(channel, type)), 0);
}

static void make_qp_of(struct rdma_cm_id* id, enum ibv_qp_type type) {
    struct ibv_qp_init_attr init = {.cap = {4, 4, 1, 1, 0}, .qp_type = type};
    CHECK_EQ(rdma_create_qp(id, NULL, &init), 0);
}

static void check_gid(struct sockaddr* found) {
    const struct sockaddr_ib* ib = (const struct sockaddr_ib*)found;
    CHECK_EQ(ib->sib_family, AF_IB);
    CHECK_EQ(memcmp(&ib->sib_addr, own.raw, sizeof own.raw), 0);
}

static struct rdma_cm_id* listen_at(enum rdma_port_space space, struct sockaddr_ib at) {
    struct rdma_cm_id* id = NULL;
    CHECK_EQ(rdma_create_id(server, &id, NULL, space), 0);
    CHECK_EQ(rdma_bind_addr(id, (struct sockaddr*)&at), 0);
    CHECK_EQ(rdma_get_src_port(id), htons(PORT));
    CHECK_EQ(rdma_listen(id, 4), 0);
    return id;
}

static struct rdma_cm_id* resolve(enum rdma_port_space space, struct sockaddr_ib to) {
    struct rdma_cm_id* id = NULL;
    CHECK_EQ(rdma_create_id(client, &id, NULL, space), 0);
    CHECK_EQ(rdma_resolve_addr(id, NULL, (struct sockaddr*)&to, 1000), 0);
    take(client, RDMA_CM_EVENT_ADDR_RESOLVED);
    CHECK_EQ(rdma_get_dst_port(id), htons(PORT));
    check_gid(rdma_get_local_addr(id));
    CHECK_EQ(rdma_resolve_route(id, 1000), 0);
    take(client, RDMA_CM_EVENT_ROUTE_RESOLVED);
    return id;
}

static void destroy(struct rdma_cm_id* id) {
    rdma_destroy_qp(id);
    CHECK_EQ(rdma_destroy_id(id), 0);
}

/// A connection from `to` to a listener at `at`, with all the private data that there is room for.
static void connect_and_end(enum rdma_port_space space, struct sockaddr_ib at,
                            struct sockaddr_ib to) {
    struct rdma_cm_id* listener = listen_at(space, at);
    struct rdma_cm_id* id = resolve(space, to);
    make_qp_of(id, IBV_QPT_RC);
    struct rdma_conn_param param = {.private_data = data, .private_data_len = REQUEST_DATA + 1};
    REFUSED(rdma_connect(id, &param), EINVAL);
    param.private_data_len = REQUEST_DATA;
    CHECK_EQ(rdma_connect(id, &param), 0);
    struct rdma_cm_event* event = next(server, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct rdma_cm_id* child = event->id;
    CHECK(event->listen_id == listener);
    CHECK_EQ(event->param.conn.private_data_len, REQUEST_DATA);
    CHECK_EQ(memcmp(event->param.conn.private_data, data, REQUEST_DATA), 0);
    check_gid(rdma_get_local_addr(child));
    check_gid(rdma_get_peer_addr(child));
    CHECK_EQ(rdma_get_src_port(child), htons(PORT));
    CHECK_EQ(rdma_ack_cm_event(event), 0);
    make_qp_of(child, IBV_QPT_RC);
    CHECK_EQ(rdma_accept(child, NULL), 0);
    take(client, RDMA_CM_EVENT_ESTABLISHED);
    take(server, RDMA_CM_EVENT_ESTABLISHED);
    CHECK_EQ(rdma_disconnect(id), 0);
    take(server, RDMA_CM_EVENT_DISCONNECTED);
    CHECK_EQ(rdma_disconnect(child), 0);
    take(client, RDMA_CM_EVENT_DISCONNECTED);
    destroy(child);
    destroy(id);
    CHECK_EQ(rdma_destroy_id(listener), 0);
}

static void datagrams(void) {
    struct rdma_cm_id* listener = listen_at(RDMA_PS_UDP, address(NULL, RDMA_PS_UDP, PORT));
    struct rdma_cm_id* id = resolve(RDMA_PS_UDP, address(&own, RDMA_PS_UDP, PORT));
    make_qp_of(id, IBV_QPT_UD);
    struct rdma_conn_param param = {.private_data = data, .private_data_len = DATAGRAM_DATA};
    CHECK_EQ(rdma_connect(id, &param), 0);
    struct rdma_cm_event* event = next(server, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct rdma_cm_id* child = event->id;
    CHECK_EQ(event->param.ud.private_data_len, DATAGRAM_DATA);
    CHECK_EQ(memcmp(event->param.ud.private_data, data, DATAGRAM_DATA), 0);
    CHECK_EQ(rdma_ack_cm_event(event), 0);
    make_qp_of(child, IBV_QPT_UD);
    CHECK_EQ(rdma_accept(child, NULL), 0);
    event = next(client, RDMA_CM_EVENT_ESTABLISHED);
    CHECK_EQ(event->param.ud.qp_num, child->qp->qp_num);
    CHECK_EQ(event->param.ud.qkey, RDMA_UDP_QKEY);
    CHECK_EQ(rdma_ack_cm_event(event), 0);
    destroy(child);
    destroy(id);
    CHECK_EQ(rdma_destroy_id(listener), 0);
}

static void refusals(void) {
    struct rdma_cm_id* id = NULL;
    union ibv_gid nobody = own;
    nobody.raw[15] ^= 0x55;
    struct sockaddr_ib foreign = address(&nobody, RDMA_PS_IB, PORT);
    struct sockaddr_ib other_space = address(NULL, RDMA_PS_UDP, PORT);
    struct sockaddr_ib no_space = address(NULL, 0x1234, PORT);
    CHECK_EQ(rdma_create_id(client, &id, NULL, RDMA_PS_TCP), 0);
    REFUSED(rdma_bind_addr(id, (struct sockaddr*)&other_space), EPROTONOSUPPORT);
    REFUSED(rdma_bind_addr(id, (struct sockaddr*)&no_space), EPROTONOSUPPORT);
    REFUSED(rdma_resolve_addr(id, NULL, (struct sockaddr*)&other_space, 1), EPROTONOSUPPORT);
    CHECK_EQ(rdma_destroy_id(id), 0);
    CHECK_EQ(rdma_create_id(client, &id, NULL, RDMA_PS_IB), 0);
    REFUSED(rdma_bind_addr(id, (struct sockaddr*)&foreign), EADDRNOTAVAIL);
    CHECK_EQ(rdma_resolve_addr(id, NULL, (struct sockaddr*)&foreign, 100), 0);
    take(client, RDMA_CM_EVENT_ADDR_ERROR);
    CHECK_EQ(rdma_destroy_id(id), 0);
    // A port is taken by InfiniBand's addresses as by IP's, each among its own.
    struct sockaddr_ib any = address(NULL, RDMA_PS_TCP, PORT);
    struct rdma_cm_id* listener = listen_at(RDMA_PS_TCP, any);
    CHECK_EQ(rdma_create_id(client, &id, NULL, RDMA_PS_TCP), 0);
    REFUSED(rdma_bind_addr(id, (struct sockaddr*)&any), EADDRINUSE);
    struct sockaddr_in ip = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    CHECK_EQ(rdma_bind_addr(id, (struct sockaddr*)&ip), 0);
    CHECK_EQ(rdma_destroy_id(id), 0);
    // Nobody listens at IP addresses, so a request to one is refused.
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    CHECK_EQ(inet_pton(AF_INET, "100.64.0.1", &to.sin_addr), 1);
    CHECK_EQ(rdma_create_id(client, &id, NULL, RDMA_PS_TCP), 0);
    CHECK_EQ(rdma_resolve_addr(id, NULL, (struct sockaddr*)&to, 1000), 0);
    take(client, RDMA_CM_EVENT_ADDR_RESOLVED);
    CHECK_EQ(rdma_resolve_route(id, 1000), 0);
    take(client, RDMA_CM_EVENT_ROUTE_RESOLVED);
    make_qp_of(id, IBV_QPT_RC);
    CHECK_EQ(rdma_connect(id, NULL), 0);
    take(client, RDMA_CM_EVENT_REJECTED);
    destroy(id);
    CHECK_EQ(rdma_destroy_id(listener), 0);
}

static void check_info(const char* node, int flags, enum rdma_port_space space) {
    struct rdma_addrinfo hints = {.ai_flags = flags | RAI_FAMILY, .ai_family = AF_IB};
    struct rdma_addrinfo* info = NULL;
    hints.ai_port_space = space;
    CHECK_EQ(rdma_getaddrinfo(node, "7475", &hints, &info), 0);
    CHECK_EQ(info->ai_family, AF_IB);
    CHECK_EQ(info->ai_port_space, space);
    const bool passive = (flags & RAI_PASSIVE) != 0;
    struct sockaddr_ib* found =
        (struct sockaddr_ib*)(passive ? info->ai_src_addr : info->ai_dst_addr);
    CHECK(found != NULL);
    CHECK_EQ(passive ? info->ai_src_len : info->ai_dst_len, sizeof *found);
    CHECK(be64toh(found->sib_sid) == ((uint64_t)space << 16 | PORT));
    if (node != NULL)
        check_gid((struct sockaddr*)found);
    else
        CHECK(ib_addr_any(&found->sib_addr));
    rdma_freeaddrinfo(info);
}

static void names(void) {
    char text[INET6_ADDRSTRLEN];
    CHECK(inet_ntop(AF_INET6, own.raw, text, sizeof text) != NULL);
    check_info(text, RAI_NUMERICHOST, RDMA_PS_IB);
    check_info(text, RAI_NUMERICHOST | RAI_PASSIVE, RDMA_PS_TCP);
    check_info("h0", 0, RDMA_PS_TCP);
    check_info("100.64.0.1", 0, RDMA_PS_UDP);
    check_info(NULL, RAI_PASSIVE, RDMA_PS_IB);
    struct rdma_addrinfo hints = {.ai_flags = RAI_FAMILY | RAI_NUMERICHOST, .ai_family = AF_IB};
    struct rdma_addrinfo* info = NULL;
    CHECK(rdma_getaddrinfo("192.0.2.1", NULL, &hints, &info) != 0);
}

int main(void) {
    server = rdma_create_event_channel();
    client = rdma_create_event_channel();
    CHECK(server != NULL && client != NULL);
    int count = 0;
    struct ibv_context** devices = rdma_get_devices(&count);
    CHECK(count == 1);
    CHECK_EQ(ibv_query_gid(devices[0], 1, 0, &own), 0);
    rdma_free_devices(devices);
    fill(data, sizeof data, 3);

    const union ibv_gid loopback = {.raw = {[15] = 1}};
    connect_and_end(RDMA_PS_IB, address(&own, RDMA_PS_IB, PORT), address(&own, RDMA_PS_IB, PORT));
    connect_and_end(RDMA_PS_TCP, address(NULL, RDMA_PS_TCP, PORT), address(&own, 0, PORT));
    // RDMA_PS_IB holds the IP port spaces too.
    connect_and_end(RDMA_PS_IB, address(NULL, RDMA_PS_TCP, PORT),
                    address(&loopback, RDMA_PS_TCP, PORT));
    // Private data that looks like an IP header is none if nobody listens at IP addresses.
    data[0] = 0;
    data[1] = 0x40;
    connect_and_end(RDMA_PS_TCP, address(NULL, RDMA_PS_TCP, PORT), address(&own, 0, PORT));
    datagrams();
    refusals();
    names();
    rdma_destroy_event_channel(client);
    rdma_destroy_event_channel(server);
    return 0;
}

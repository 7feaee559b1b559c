// SPDX-License-Identifier: Apache-2.0
// cm_multicast: groups that are joined by the connection manager: what the events carry, whom
// messages reach, and what becomes of memberships that are doubled, left, or cut short.
//
// cm_multicast down: on the host that it is started on, whose port is down, joining is an error.
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include <infiniband/ib.h>
#include <rdma/rdma_cma.h>

#include "rig.h"

#define REFUSED(call, error)      \
    do {                          \
        errno = 0;                \
        CHECK_EQ((call), -1);     \
        CHECK_EQ(errno, (error)); \
    } while (0)

enum { GRH = 40, MESSAGE = 64, GROUP_QP = 0xffffff, IPOIB_QKEY = 0x0b1b };

static struct rdma_event_channel* channel;
static uint8_t memory[2 * (GRH + MESSAGE)];

static struct sockaddr_storage address(const char* text) {
    struct sockaddr_storage out = {0};
    struct sockaddr_in* in = (struct sockaddr_in*)&out;
    struct sockaddr_in6* in6 = (struct sockaddr_in6*)&out;
    out.ss_family = strchr(text, ':') != NULL ? AF_INET6 : AF_INET;
    void* at = out.ss_family == AF_INET6 ? (void*)&in6->sin6_addr : (void*)&in->sin_addr;
    CHECK_EQ(inet_pton(out.ss_family, text, at), 1);
    return out;
}

static union ibv_gid gid(const char* text) {
    union ibv_gid out;
    CHECK_EQ(inet_pton(AF_INET6, text, out.raw), 1);
    return out;
}

/// Bound to the own host, with a queue pair.
static struct rdma_cm_id* make_member(enum rdma_port_space space) {
    struct rdma_cm_id* id = NULL;
    struct sockaddr_storage own = address("127.0.0.1");
    struct ibv_qp_init_attr init = {.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_UD};
    CHECK_EQ(rdma_create_id(channel, &id, NULL, space), 0);
    CHECK_EQ(rdma_bind_addr(id, (struct sockaddr*)&own), 0);
    CHECK_EQ(rdma_create_qp(id, NULL, &init), 0);
    return id;
}

static struct rdma_cm_event* next(enum rdma_cm_event_type type) {
    struct rdma_cm_event* event = NULL;
    CHECK_EQ(rdma_get_cm_event(channel, &event), 0);
    CHECK_EQ(event->event, type);
    return event;
}

static void destroy(struct rdma_cm_id* id) {
    rdma_destroy_qp(id);
    CHECK_EQ(rdma_destroy_id(id), 0);
}

/// Joins and gives what the event says of the group.
static struct rdma_ud_param join(struct rdma_cm_id* id, struct sockaddr_storage group) {
    CHECK_EQ(rdma_join_multicast(id, (struct sockaddr*)&group, &group), 0);
    struct rdma_cm_event* event = next(RDMA_CM_EVENT_MULTICAST_JOIN);
    CHECK_EQ(event->status, 0);
    CHECK(event->id == id);
    CHECK(event->param.ud.private_data == &group);
    const struct rdma_ud_param out = event->param.ud;
    CHECK_EQ(rdma_ack_cm_event(event), 0);
    return out;
}

static void leave(struct rdma_cm_id* id, struct sockaddr_storage group) {
    CHECK_EQ(rdma_leave_multicast(id, (struct sockaddr*)&group), 0);
}

static struct ibv_mr* memory_of(struct rdma_cm_id* id) {
    struct ibv_mr* mr = ibv_reg_mr(id->pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    CHECK(mr != NULL);
    return mr;
}

static void post_room(struct rdma_cm_id* id, struct ibv_mr* mr) {
    CHECK_EQ(post_receive(id->qp, 1, sge_of(mr, 0, GRH + MESSAGE)), 0);
}

static void send_to(struct rdma_cm_id* id, struct ibv_mr* mr, const struct rdma_ud_param* group) {
    struct ibv_ah_attr where = group->ah_attr;
    struct ibv_ah* ah = ibv_create_ah(id->pd, &where);
    CHECK(ah != NULL);
    struct ibv_sge sge = sge_of(mr, GRH + MESSAGE, MESSAGE);
    struct ibv_send_wr* bad = NULL;
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = group->qp_num;
    wr.wr.ud.remote_qkey = group->qkey;
    CHECK_EQ(ibv_post_send(id->qp, &wr, &bad), 0);
    await_success(id->send_cq);
    CHECK_EQ(ibv_destroy_ah(ah), 0);
}

static bool has_received(struct rdma_cm_id* id) {
    struct ibv_wc wc;
    return ibv_poll_cq(id->recv_cq, 1, &wc) == 1;
}

static void check_group(const struct rdma_ud_param* ud, const char* expected, uint32_t qkey) {
    const union ibv_gid wanted = gid(expected);
    CHECK_EQ(memcmp(ud->ah_attr.grh.dgid.raw, wanted.raw, sizeof wanted.raw), 0);
    CHECK_EQ(ud->ah_attr.is_global, 1);
    CHECK_EQ(ud->ah_attr.port_num, 1);
    CHECK(ud->ah_attr.dlid >= 0xc000 && ud->ah_attr.dlid < 0xffff);
    CHECK_EQ(ud->qp_num, GROUP_QP);
    CHECK_EQ(ud->qkey, qkey);
}

/// Which MGID an address means: RFC 4391, the connection manager's signature, MGIDs themselves.
static void addresses_of_groups(void) {
    struct rdma_cm_id* id = make_member(RDMA_PS_UDP);
    struct rdma_ud_param ud = join(id, address("239.1.2.3"));
    check_group(&ud, "ff12:4001:ffff::0f01:0203", RDMA_UDP_QKEY);
    ud = join(id, address("ff0e:1:2:3:4:5:6:7"));
    check_group(&ud, "ff12:6001:ffff:3:4:5:6:7", RDMA_UDP_QKEY);
    ud = join(id, address("ff12:a01b:ffff::8"));
    check_group(&ud, "ff12:a01b:ffff::8", RDMA_UDP_QKEY);
    struct sockaddr_storage raw = {0};
    struct sockaddr_ib* ib = (struct sockaddr_ib*)&raw;
    ib->sib_family = AF_IB;
    memcpy(&ib->sib_addr, gid("ff15:1234::9").raw, 16);
    ud = join(id, raw);
    check_group(&ud, "ff15:1234::9", RDMA_UDP_QKEY);
    // A group that nobody else has.
    ud = join(id, address("0.0.0.0"));
    const struct rdma_ud_param other = join(id, address("::"));
    CHECK_EQ(ud.ah_attr.grh.dgid.raw[0], 0xff);
    CHECK(memcmp(ud.ah_attr.grh.dgid.raw, other.ah_attr.grh.dgid.raw, 16) != 0);
    destroy(id);  // joined as it is

    id = make_member(RDMA_PS_IPOIB);
    ud = join(id, address("239.1.2.3"));
    check_group(&ud, "ff12:401b:ffff::0f01:0203", IPOIB_QKEY);
    ud = join(id, address("ff0e:1:2:3:4:5:6:7"));
    check_group(&ud, "ff12:601b:ffff:3:4:5:6:7", IPOIB_QKEY);
    destroy(id);
}

static void refusals(void) {
    struct rdma_cm_id* id = make_member(RDMA_PS_UDP);
    struct rdma_cm_id* fresh = NULL;
    struct rdma_cm_id* stream = NULL;
    struct sockaddr_storage group = address("239.0.0.1");
    struct sockaddr_storage single = address("100.64.0.2");
    struct sockaddr_storage own = address("127.0.0.1");
    CHECK_EQ(rdma_create_id(channel, &fresh, NULL, RDMA_PS_UDP), 0);
    REFUSED(rdma_join_multicast(fresh, (struct sockaddr*)&group, NULL), EINVAL);  // Not bound.
    CHECK_EQ(rdma_create_id(channel, &stream, NULL, RDMA_PS_TCP), 0);
    CHECK_EQ(rdma_bind_addr(stream, (struct sockaddr*)&own), 0);
    REFUSED(rdma_join_multicast(stream, (struct sockaddr*)&group, NULL), EINVAL);
    REFUSED(rdma_join_multicast(id, (struct sockaddr*)&single, NULL), EINVAL);
    REFUSED(rdma_join_multicast(id, NULL, NULL), EINVAL);
    REFUSED(rdma_join_multicast_ex(id, NULL, NULL), EINVAL);
    REFUSED(rdma_leave_multicast(id, NULL), EINVAL);
    REFUSED(rdma_leave_multicast(id, (struct sockaddr*)&group), EADDRNOTAVAIL);
    struct rdma_cm_join_mc_attr_ex wish = {.addr = (struct sockaddr*)&group};
    REFUSED(rdma_join_multicast_ex(id, &wish, NULL), EINVAL);  // No address, it says.
    wish.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
    wish.join_flags = RDMA_MC_JOIN_FLAG_RESERVED;
    REFUSED(rdma_join_multicast_ex(id, &wish, NULL), ENOTSUP);
    wish.comp_mask |= RDMA_CM_JOIN_MC_ATTR_RESERVED;
    REFUSED(rdma_join_multicast_ex(id, &wish, NULL), ENOTSUP);
    // No path leads to a group.
    CHECK_EQ(rdma_resolve_addr(fresh, NULL, (struct sockaddr*)&group, 100), 0);
    CHECK_EQ(rdma_ack_cm_event(next(RDMA_CM_EVENT_ADDR_RESOLVED)), 0);
    CHECK_EQ(rdma_resolve_route(fresh, 100), 0);
    CHECK_EQ(rdma_ack_cm_event(next(RDMA_CM_EVENT_ROUTE_ERROR)), 0);
    struct ibv_path_data path = {0};
    REFUSED(rdma_set_option(fresh, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path, sizeof path),
            EINVAL);
    CHECK_EQ(rdma_destroy_id(fresh), 0);
    CHECK_EQ(rdma_destroy_id(stream), 0);
    destroy(id);
}

/// Two joins are two memberships: the queue pair is out of the group with the last of them.
static void joined_twice(void) {
    struct rdma_cm_id* id = make_member(RDMA_PS_UDP);
    struct ibv_mr* mr = memory_of(id);
    const struct sockaddr_storage group = address("239.0.0.2");
    struct rdma_ud_param ud = join(id, group);
    ud = join(id, group);
    post_room(id, mr);
    post_room(id, mr);
    send_to(id, mr, &ud);
    await_success(id->recv_cq);
    CHECK(!has_received(id));  // Once only.
    leave(id, group);
    send_to(id, mr, &ud);
    await_success(id->recv_cq);
    leave(id, group);
    post_room(id, mr);
    send_to(id, mr, &ud);
    CHECK(!has_received(id));
    REFUSED(rdma_leave_multicast(id, (struct sockaddr*)&group), EADDRNOTAVAIL);
    CHECK_EQ(ibv_dereg_mr(mr), 0);
    destroy(id);
}

/// A member that sends only is told of the group, and hears nothing of it.
static void sends_only(void) {
    struct rdma_cm_id* id = make_member(RDMA_PS_UDP);
    struct rdma_cm_id* other = make_member(RDMA_PS_UDP);
    struct ibv_mr* mr = memory_of(id);
    struct ibv_mr* others = memory_of(other);
    struct sockaddr_storage group = address("239.0.0.3");
    struct rdma_cm_join_mc_attr_ex wish = {
        .comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
        .join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
        .addr = (struct sockaddr*)&group};
    CHECK_EQ(rdma_join_multicast_ex(id, &wish, NULL), 0);
    struct rdma_cm_event* event = next(RDMA_CM_EVENT_MULTICAST_JOIN);
    const struct rdma_ud_param ud = event->param.ud;
    CHECK_EQ(rdma_ack_cm_event(event), 0);
    join(other, group);
    post_room(id, mr);
    post_room(other, others);
    send_to(id, mr, &ud);
    await_success(other->recv_cq);
    CHECK(!has_received(id));
    leave(id, group);
    CHECK_EQ(ibv_dereg_mr(mr), 0);
    CHECK_EQ(ibv_dereg_mr(others), 0);
    destroy(other);
    destroy(id);
}

static struct rdma_cm_event* unacknowledged;
static atomic_int acknowledging;

static void* acknowledge_later(void* unused) {
    (void)unused;
    usleep(20000);
    atomic_store(&acknowledging, 1);
    CHECK_EQ(rdma_ack_cm_event(unacknowledged), 0);
    return NULL;
}

/// Leaving waits for the event's acknowledgement, and takes one along that nobody took.
static void events_and_leaving(void) {
    struct rdma_cm_id* id = make_member(RDMA_PS_UDP);
    struct sockaddr_storage group = address("239.0.0.4");
    CHECK_EQ(rdma_join_multicast(id, (struct sockaddr*)&group, NULL), 0);
    leave(id, group);
    struct pollfd quiet = {channel->fd, POLLIN, 0};
    CHECK_EQ(poll(&quiet, 1, 0), 0);
    CHECK_EQ(rdma_join_multicast(id, (struct sockaddr*)&group, NULL), 0);
    unacknowledged = next(RDMA_CM_EVENT_MULTICAST_JOIN);
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, acknowledge_later, NULL), 0);
    leave(id, group);
    CHECK_EQ(atomic_load(&acknowledging), 1);
    struct rdma_cm_event* gone = unacknowledged;
    CHECK_EQ(pthread_join(thread, NULL), 0);
    REFUSED(rdma_ack_cm_event(gone), EINVAL);
    destroy(id);
    // A sync identifier waits within the call, and keeps the event.
    struct sockaddr_storage own = address("127.0.0.1");
    CHECK_EQ(rdma_create_id(NULL, &id, NULL, RDMA_PS_UDP), 0);
    CHECK_EQ(rdma_bind_addr(id, (struct sockaddr*)&own), 0);
    CHECK_EQ(rdma_join_multicast(id, (struct sockaddr*)&group, NULL), 0);
    CHECK(id->event != NULL && id->event->event == RDMA_CM_EVENT_MULTICAST_JOIN);
    leave(id, group);
    CHECK(id->event == NULL);
    CHECK_EQ(rdma_destroy_id(id), 0);
}

/// The queue pair may go first, or be left to its program when the identifier goes.
static void ended_while_joined(void) {
    struct rdma_cm_id* id = make_member(RDMA_PS_UDP);
    struct sockaddr_storage group = address("239.0.0.5");
    join(id, group);
    rdma_destroy_qp(id);
    leave(id, group);
    CHECK_EQ(rdma_destroy_id(id), 0);
    id = make_member(RDMA_PS_UDP);
    join(id, group);
    struct ibv_qp* qp = id->qp;
    CHECK_EQ(rdma_destroy_id(id), 0);
    CHECK_EQ(ibv_destroy_qp(qp), 0);  // EBUSY if it belonged to the group still.
}

/// The event of a join that failed, with what was given to tell it by.
static int failed_join(struct rdma_cm_id* id, struct sockaddr_storage group) {
    CHECK_EQ(rdma_join_multicast(id, (struct sockaddr*)&group, &group), 0);
    struct rdma_cm_event* event = next(RDMA_CM_EVENT_MULTICAST_ERROR);
    CHECK(event->id == id);
    CHECK(event->param.ud.private_data == &group);
    const int status = event->status;
    CHECK_EQ(rdma_ack_cm_event(event), 0);
    return status;
}

/// There is room for so many memberships in the fabric; one more is an error, and leaves all be.
static void full_table(void) {
    struct rdma_cm_id* id = make_member(RDMA_PS_UDP);
    struct ibv_device_attr device;
    struct sockaddr_storage group = address("239.1.0.0");
    struct in_addr* ip = &((struct sockaddr_in*)&group)->sin_addr;
    CHECK_EQ(ibv_query_device(id->verbs, &device), 0);
    for (int i = 0; i < device.max_total_mcast_qp_attach; ++i) {
        ip->s_addr = htonl(ntohl(ip->s_addr) + 1);
        join(id, group);
    }
    const struct sockaddr_storage last = group;
    ip->s_addr = htonl(ntohl(ip->s_addr) + 1);
    CHECK_EQ(failed_join(id, group), -ENOMEM);
    leave(id, group);
    leave(id, last);
    join(id, group);
    destroy(id);
}

static int port_is_down(void) {
    channel = rdma_create_event_channel();
    CHECK(channel != NULL);
    struct rdma_cm_id* id = make_member(RDMA_PS_UDP);
    struct sockaddr_storage group = address("239.0.0.7");
    CHECK_EQ(failed_join(id, group), -ENETUNREACH);
    leave(id, group);
    destroy(id);
    rdma_destroy_event_channel(channel);
    return 0;
}

/// From h1 to members on h0, by the group's GID.
static void across(struct side* side) {
    const struct sockaddr_storage group = address("239.0.0.6");
    channel = rdma_create_event_channel();
    CHECK(channel != NULL);
    struct rdma_cm_id* id = make_member(RDMA_PS_UDP);
    struct rdma_cm_id* second = make_member(RDMA_PS_UDP);
    struct ibv_mr* mr = memory_of(id);
    struct rdma_ud_param ud = join(id, group);
    if (side->index == 0) {
        join(second, group);
        post_room(id, mr);
        CHECK_EQ(post_receive(second->qp, 1, sge_of(mr, GRH + MESSAGE, GRH + MESSAGE)), 0);
    } else {
        post_room(id, mr);
        fill(memory + GRH + MESSAGE, MESSAGE, 7);
    }
    meet(side);
    if (side->index == 1) send_to(id, mr, &ud);
    const struct ibv_wc wc = await_success(id->recv_cq);
    CHECK_EQ(wc.byte_len, GRH + MESSAGE);
    CHECK((wc.wc_flags & IBV_WC_GRH) != 0);
    CHECK(filled(memory + GRH, MESSAGE, 7));
    const struct ibv_grh* grh = (const struct ibv_grh*)memory;
    CHECK_EQ(memcmp(grh->dgid.raw, ud.ah_attr.grh.dgid.raw, 16), 0);
    if (side->index == 0) {
        await_success(second->recv_cq);
        CHECK(filled(memory + 2 * GRH + MESSAGE, MESSAGE, 7));
    }
    meet(side);
    CHECK_EQ(ibv_dereg_mr(mr), 0);
    destroy(second);
    destroy(id);
    rdma_destroy_event_channel(channel);
}

static void alone(struct side* side) {
    if (side->index != 0) return;
    channel = rdma_create_event_channel();
    CHECK(channel != NULL);
    addresses_of_groups();
    refusals();
    joined_twice();
    sends_only();
    events_and_leaving();
    ended_while_joined();
    full_table();
    rdma_destroy_event_channel(channel);
}

int main(int argc, char** argv) {
    if (argc > 1 && strcmp(argv[1], "down") == 0) return port_is_down();
    const int first = run_sides("h0", "h1", 60, alone);
    return first != 0 ? first : run_sides("h0", "h1", 60, across);
}

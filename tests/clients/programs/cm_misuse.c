// SPDX-License-Identifier: Apache-2.0
// cm_misuse: asks the connection manager for what cannot be. Each wrong call gets its errno value
// and changes nothing; at the end a connection can still be made.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>

#include "rig.h"

/// The call gives -1 and this errno value.
#define REFUSED(call, error)      \
    do {                          \
        errno = 0;                \
        CHECK_EQ((call), -1);     \
        CHECK_EQ(errno, (error)); \
    } while (0)

static struct rdma_event_channel* channel;

static struct sockaddr_in address(const char* text, uint16_t port) {
    struct sockaddr_in out = {.sin_family = AF_INET, .sin_port = htons(port)};
    CHECK_EQ(inet_pton(AF_INET, text, &out.sin_addr), 1);
    return out;
}

static struct rdma_cm_id* make_id(enum rdma_port_space space) {
    struct rdma_cm_id* id = NULL;
    CHECK_EQ(rdma_create_id(channel, &id, NULL, space), 0);
    return id;
}

/// Takes the next event, which is of this type.
static void take(enum rdma_cm_event_type type) {
    struct rdma_cm_event* event = NULL;
    CHECK_EQ(rdma_get_cm_event(channel, &event), 0);
    CHECK_EQ(event->event, type);
    CHECK_EQ(rdma_ack_cm_event(event), 0);
}

static void nulls(void) {
    struct rdma_cm_id* id = make_id(RDMA_PS_TCP);
    struct rdma_cm_event* event = NULL;
    struct rdma_addrinfo* info = NULL;
    struct sockaddr_in any = address("0.0.0.0", 0);
    REFUSED(rdma_create_id(channel, NULL, NULL, RDMA_PS_TCP), EINVAL);
    REFUSED(rdma_create_id(channel, &id, NULL, 0), EINVAL);
    REFUSED(rdma_bind_addr(NULL, (struct sockaddr*)&any), EINVAL);
    REFUSED(rdma_bind_addr(id, NULL), EINVAL);
    REFUSED(rdma_resolve_addr(NULL, NULL, (struct sockaddr*)&any, 1), EINVAL);
    REFUSED(rdma_resolve_addr(id, NULL, NULL, 1), EINVAL);
    REFUSED(rdma_resolve_route(NULL, 1), EINVAL);
    REFUSED(rdma_listen(NULL, 1), EINVAL);
    REFUSED(rdma_connect(NULL, NULL), EINVAL);
    REFUSED(rdma_accept(NULL, NULL), EINVAL);
    REFUSED(rdma_reject(NULL, NULL, 0), EINVAL);
    REFUSED(rdma_disconnect(NULL), EINVAL);
    REFUSED(rdma_establish(NULL), EINVAL);
    REFUSED(rdma_notify(NULL, IBV_EVENT_COMM_EST), EINVAL);
    REFUSED(rdma_destroy_id(NULL), EINVAL);
    REFUSED(rdma_migrate_id(NULL, channel), EINVAL);
    REFUSED(rdma_create_qp(NULL, NULL, NULL), EINVAL);
    REFUSED(rdma_create_qp(id, NULL, NULL), EINVAL);
    REFUSED(rdma_get_cm_event(NULL, &event), EINVAL);
    REFUSED(rdma_get_cm_event(channel, NULL), EINVAL);
    REFUSED(rdma_ack_cm_event(NULL), EINVAL);
    REFUSED(rdma_get_request(NULL, &id), EINVAL);
    REFUSED(rdma_create_ep(NULL, NULL, NULL, NULL), EINVAL);
    REFUSED(rdma_getaddrinfo(NULL, NULL, NULL, &info), EINVAL);
    REFUSED(rdma_set_option(NULL, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, NULL, 0), EINVAL);
    REFUSED(rdma_get_remote_ece(id, NULL), EINVAL);
    REFUSED(rdma_set_local_ece(id, NULL), EINVAL);
    CHECK_EQ(rdma_get_src_port(NULL), 0);
    CHECK_EQ(rdma_get_dst_port(id), 0);
    rdma_destroy_qp(NULL);
    rdma_destroy_srq(NULL);
    rdma_destroy_ep(NULL);
    rdma_freeaddrinfo(NULL);
    rdma_free_devices(NULL);
    rdma_destroy_event_channel(NULL);
    CHECK_EQ(rdma_destroy_id(id), 0);
    REFUSED(rdma_destroy_id(id), EINVAL);  // It is gone.
    REFUSED(rdma_listen(id, 1), EINVAL);
}

static void wrong_states(void) {
    struct rdma_cm_id* id = make_id(RDMA_PS_TCP);
    struct ibv_qp_init_attr init = {.cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};
    int mask = 0;
    struct sockaddr_in any = address("0.0.0.0", 0);
    struct sockaddr_in loopback = address("127.0.0.1", 9);
    REFUSED(rdma_create_qp(id, NULL, &init), EINVAL);  // It is on no device.
    REFUSED(rdma_init_qp_attr(id, &attr, &mask), EINVAL);
    REFUSED(rdma_resolve_route(id, 1), EINVAL);
    REFUSED(rdma_connect(id, NULL), EINVAL);
    REFUSED(rdma_accept(id, NULL), EINVAL);
    REFUSED(rdma_reject(id, NULL, 0), EINVAL);
    REFUSED(rdma_disconnect(id), EINVAL);
    REFUSED(rdma_establish(id), EINVAL);
    CHECK_EQ(rdma_bind_addr(id, (struct sockaddr*)&any), 0);
    CHECK(rdma_get_src_port(id) != 0);
    REFUSED(rdma_bind_addr(id, (struct sockaddr*)&any), EINVAL);
    REFUSED(rdma_connect(id, NULL), EINVAL);
    CHECK_EQ(rdma_resolve_addr(id, NULL, (struct sockaddr*)&loopback, 100), 0);
    take(RDMA_CM_EVENT_ADDR_RESOLVED);
    REFUSED(rdma_resolve_addr(id, NULL, (struct sockaddr*)&loopback, 100), EINVAL);
    REFUSED(rdma_listen(id, 1), EINVAL);
    REFUSED(rdma_connect(id, NULL), EINVAL);  // There is no route.
    CHECK_EQ(rdma_resolve_route(id, 100), 0);
    take(RDMA_CM_EVENT_ROUTE_RESOLVED);
    CHECK_EQ(id->route.num_paths, 1);
    CHECK_EQ(rdma_create_qp(id, NULL, &init), 0);
    REFUSED(rdma_create_qp(id, NULL, &init), EINVAL);
    REFUSED(rdma_accept(id, NULL), EINVAL);
    attr.qp_state = IBV_QPS_RTR;
    REFUSED(rdma_init_qp_attr(id, &attr, &mask), EINVAL);  // Nobody has agreed to anything.
    rdma_destroy_qp(id);
    CHECK_EQ(rdma_destroy_id(id), 0);
}

static void bad_addresses(void) {
    struct rdma_cm_id* id = make_id(RDMA_PS_TCP);
    struct sockaddr_in foreign = address("192.0.2.7", 0);
    struct sockaddr_in peer = address("100.64.0.2", 0);
    struct sockaddr unknown = {.sa_family = AF_UNIX};
    REFUSED(rdma_bind_addr(id, (struct sockaddr*)&foreign), EADDRNOTAVAIL);
    REFUSED(rdma_bind_addr(id, (struct sockaddr*)&peer), EADDRNOTAVAIL);  // Another host's.
    REFUSED(rdma_bind_addr(id, &unknown), EAFNOSUPPORT);
    REFUSED(rdma_resolve_addr(id, NULL, &unknown, 1), EAFNOSUPPORT);
    CHECK_EQ(rdma_resolve_addr(id, NULL, (struct sockaddr*)&foreign, 100), 0);
    take(RDMA_CM_EVENT_ADDR_ERROR);
    CHECK_EQ(rdma_destroy_id(id), 0);
}

static void taken_ports(void) {
    struct rdma_cm_id* first = make_id(RDMA_PS_TCP);
    struct rdma_cm_id* second = make_id(RDMA_PS_TCP);
    struct rdma_cm_id* other_space = make_id(RDMA_PS_UDP);
    struct sockaddr_in any = address("0.0.0.0", 7471);
    struct sockaddr_in own = address("100.64.0.1", 7471);
    int on = 1;
    CHECK_EQ(rdma_bind_addr(first, (struct sockaddr*)&any), 0);
    REFUSED(rdma_bind_addr(second, (struct sockaddr*)&any), EADDRINUSE);
    REFUSED(rdma_bind_addr(second, (struct sockaddr*)&own), EADDRINUSE);
    CHECK_EQ(rdma_bind_addr(other_space, (struct sockaddr*)&any), 0);
    CHECK_EQ(rdma_destroy_id(first), 0);
    CHECK_EQ(rdma_bind_addr(second, (struct sockaddr*)&own), 0);
    CHECK_EQ(rdma_destroy_id(second), 0);
    CHECK_EQ(rdma_destroy_id(other_space), 0);

    first = make_id(RDMA_PS_TCP);
    second = make_id(RDMA_PS_TCP);
    CHECK_EQ(rdma_set_option(first, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on), 0);
    CHECK_EQ(rdma_set_option(second, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on), 0);
    CHECK_EQ(rdma_bind_addr(first, (struct sockaddr*)&any), 0);
    CHECK_EQ(rdma_bind_addr(second, (struct sockaddr*)&any), 0);
    CHECK_EQ(rdma_listen(first, 0), 0);
    REFUSED(rdma_listen(second, 0), EADDRINUSE);
    CHECK_EQ(rdma_destroy_id(first), 0);
    CHECK_EQ(rdma_destroy_id(second), 0);
}

static void bad_options(void) {
    struct rdma_cm_id* id = make_id(RDMA_PS_TCP);
    uint8_t byte = 0x20;
    int number = 1;
    const int level = RDMA_OPTION_ID;
    CHECK_EQ(rdma_set_option(id, level, RDMA_OPTION_ID_TOS, &byte, sizeof byte), 0);
    REFUSED(rdma_set_option(id, level, RDMA_OPTION_ID_TOS, &number, sizeof number), EINVAL);
    CHECK_EQ(rdma_set_option(id, level, RDMA_OPTION_ID_AFONLY, &number, sizeof number), 0);
    REFUSED(rdma_set_option(id, level, RDMA_OPTION_ID_AFONLY, &byte, sizeof byte), EINVAL);
    CHECK_EQ(rdma_set_option(id, level, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1), -1);
    byte = 14;
    CHECK_EQ(rdma_set_option(id, level, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1), 0);
    REFUSED(rdma_set_option(id, level, 99, &byte, sizeof byte), ENOSYS);
    REFUSED(rdma_set_option(id, 99, 0, &byte, sizeof byte), ENOSYS);
    REFUSED(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &byte, 1), EINVAL);
    CHECK_EQ(rdma_destroy_id(id), 0);
}

static void events_acknowledged_twice(void) {
    struct rdma_cm_id* id = make_id(RDMA_PS_TCP);
    struct sockaddr_in loopback = address("127.0.0.1", 9);
    struct rdma_cm_event* event = NULL;
    CHECK_EQ(rdma_resolve_addr(id, NULL, (struct sockaddr*)&loopback, 100), 0);
    CHECK_EQ(rdma_get_cm_event(channel, &event), 0);
    CHECK_EQ(rdma_ack_cm_event(event), 0);
    REFUSED(rdma_ack_cm_event(event), EINVAL);
    CHECK_EQ(fcntl(channel->fd, F_SETFL, O_NONBLOCK), 0);
    REFUSED(rdma_get_cm_event(channel, &event), EAGAIN);
    CHECK_EQ(fcntl(channel->fd, F_SETFL, 0), 0);
    // An event that nobody took goes with its identifier, and the channel is quiet again.
    CHECK_EQ(rdma_resolve_route(id, 100), 0);
    CHECK_EQ(rdma_destroy_id(id), 0);
    CHECK_EQ(fcntl(channel->fd, F_SETFL, O_NONBLOCK), 0);
    REFUSED(rdma_get_cm_event(channel, &event), EAGAIN);
    CHECK_EQ(fcntl(channel->fd, F_SETFL, 0), 0);
}

static void child_of_a_fork(void) {
    struct rdma_cm_id* id = make_id(RDMA_PS_TCP);
    struct rdma_cm_id* own = NULL;
    const pid_t child = fork();
    if (child == 0) {
        // Nothing of the parent's is its own, but it may begin anew.
        REFUSED(rdma_listen(id, 1), EINVAL);
        channel = rdma_create_event_channel();
        CHECK(channel != NULL);
        CHECK_EQ(rdma_create_id(channel, &own, NULL, RDMA_PS_TCP), 0);
        CHECK_EQ(rdma_listen(own, 1), 0);
        CHECK_EQ(rdma_destroy_id(own), 0);
        rdma_destroy_event_channel(channel);
        _exit(0);
    }
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    CHECK_EQ(rdma_listen(id, 1), 0);
    CHECK_EQ(rdma_destroy_id(id), 0);
}

int main(void) {
    channel = rdma_create_event_channel();
    CHECK(channel != NULL);
    nulls();
    wrong_states();
    bad_addresses();
    taken_ports();
    bad_options();
    events_acknowledged_twice();
    child_of_a_fork();
    rdma_destroy_event_channel(channel);
    struct rdma_cm_id* id = NULL;
    REFUSED(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), EINVAL);
    return 0;
}

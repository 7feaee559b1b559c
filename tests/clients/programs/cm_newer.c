// SPDX-License-Identifier: Apache-2.0
// cm_newer: functions of librdmacm after release 44, found by name as the library at hand to link
// with may not have them: names resolved behind an identifier, and events of the program's own.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include <rdma/rdma_cma.h>

#include "rig.h"

enum { kResolved = 16, kError = 17, kUser = 18, kBySubnetAdministrator = 0x10 };

static struct rdma_event_channel* channel;
static struct rdma_cm_id* id;
static int (*resolve)(struct rdma_cm_id*, const char*, const char*, const struct rdma_addrinfo*);
static int (*query)(struct rdma_cm_id*, struct rdma_addrinfo**);
static int (*write_event)(struct rdma_cm_id*, int, int, uint64_t);

static void* find(const char* name) {
    void* found = dlvsym(RTLD_DEFAULT, name, "RDMACM_1.4");
    CHECK(found != NULL);
    return found;
}

/// Takes the next event: its type, its status, and what stands where its argument is.
static void take(int type, int status, uint64_t argument) {
    struct rdma_cm_event* event = NULL;
    uint64_t seen = 0;
    CHECK_EQ(rdma_get_cm_event(channel, &event), 0);
    CHECK_EQ((int)event->event, type);
    CHECK_EQ(event->status, status);
    CHECK(event->id == id);
    memcpy(&seen, &event->param, sizeof seen);
    if (type == kUser) CHECK_EQ(seen, argument);
    CHECK_EQ(rdma_ack_cm_event(event), 0);
}

static void names(void) {
    struct rdma_addrinfo* info = NULL;
    struct rdma_addrinfo hints = {.ai_flags = kBySubnetAdministrator};
    CHECK_EQ(query(id, &info), -1);
    CHECK_EQ(errno, ENOENT);
    CHECK_EQ(resolve(id, NULL, "7471", &hints), -1);
    CHECK_EQ(errno, EOPNOTSUPP);
    CHECK_EQ(resolve(id, "h1", "7471", NULL), 0);
    take(kResolved, 0, 0);
    CHECK_EQ(resolve(id, "h1", "7471", NULL), -1);
    CHECK_EQ(errno, EBUSY);
    CHECK_EQ(query(id, &info), 0);
    CHECK(info != NULL && info->ai_dst_addr != NULL);
    CHECK_EQ(ntohs(((struct sockaddr_in*)info->ai_dst_addr)->sin_port), 7471);
    rdma_freeaddrinfo(info);
    CHECK_EQ(query(id, &info), -1);
    CHECK_EQ(resolve(id, "256.256.256.256", "7471", NULL), 0);
    take(kError, -ENODATA, 0);
    CHECK_EQ(query(id, &info), -1);
    CHECK_EQ(errno, ENOENT);
    // Left to the identifier's end.
    CHECK_EQ(resolve(id, "h1", "7471", NULL), 0);
    take(kResolved, 0, 0);
}

static void own_events(void) {
    CHECK_EQ(write_event(id, kUser, -7, 0x123456789abcdefULL), 0);
    CHECK_EQ(write_event(id, kUser, 0, 2), 0);
    take(kUser, -7, 0x123456789abcdefULL);
    take(kUser, 0, 2);
    CHECK_EQ(write_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0), -1);
    CHECK_EQ(errno, EINVAL);
    CHECK_EQ(write_event(NULL, kUser, 0, 0), -1);
    CHECK_EQ(errno, EINVAL);
}

int main(void) {
    channel = rdma_create_event_channel();
    CHECK(channel != NULL);
    CHECK_EQ(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
    *(void**)&resolve = find("rdma_resolve_addrinfo");
    *(void**)&query = find("rdma_query_addrinfo");
    *(void**)&write_event = find("rdma_write_cm_event");
    names();
    own_events();
    CHECK_EQ(rdma_destroy_id(id), 0);
    rdma_destroy_event_channel(channel);
    return 0;
}

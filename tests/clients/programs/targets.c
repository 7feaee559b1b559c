// SPDX-License-Identifier: Apache-2.0
// targets HOST0 HOST1: what a target does while it is written to and read from must not matter. It
// sleeps for an event, it spins on memory and calls nothing, it sleeps in the kernel, it is in a
// system call that never returns by itself; one-sided requests complete all the same.
#include <poll.h>
#include <time.h>

#include "rig.h"

enum { kBytes = 100000 };
static struct ibv_mr* mr;
static struct ibv_mr* local;
static struct address peer;

/// A write, a read and an atomic, all done before the target is called back.
static void use(struct side* side, struct ibv_qp* qp, uint64_t seed) {
    fill(local->addr, kBytes, seed);
    CHECK_EQ(post(qp, IBV_WR_RDMA_WRITE, 1, sge_of(local, 0, kBytes), peer.buffer, peer.rkey), 0);
    await_success(side->cq);
    memset(local->addr, 0, kBytes);
    CHECK_EQ(post(qp, IBV_WR_RDMA_READ, 1, sge_of(local, 0, kBytes), peer.buffer, peer.rkey), 0);
    await_success(side->cq);
    CHECK(filled(local->addr, kBytes, seed));
    struct ibv_sge sge = sge_of(local, 0, 8);
    struct ibv_send_wr* bad = NULL;
    struct ibv_send_wr wr = {.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .sg_list = &sge, .num_sge = 1};
    wr.wr.atomic.remote_addr = peer.buffer + kBytes;
    wr.wr.atomic.rkey = peer.rkey;
    wr.wr.atomic.compare_add = 1;
    CHECK_EQ(ibv_post_send(qp, &wr, &bad), 0);
    await_success(side->cq);
}

static void in_sleep(struct side* side, struct ibv_qp* qp) {
    meet(side);
    if (side->index == 1) {
        sleep(2);
        meet(side);
        return;
    }
    const time_t begin = time(NULL);
    for (uint64_t i = 0; i < 10; ++i)
        use(side, qp, i);
    // Not only once it woke up.
    CHECK(time(NULL) - begin <= 1);
    meet(side);
}

static void in_read(struct side* side, struct ibv_qp* qp) {
    // meet() sleeps in recv().
    meet(side);
    if (side->index == 0) {
        for (uint64_t i = 0; i < 10; ++i)
            use(side, qp, i + 50);
    }
    meet(side);
}

static void spinning(struct side* side, struct ibv_qp* qp) {
    uint64_t* counter = (uint64_t*)(void*)((char*)mr->addr + kBytes);
    if (side->index == 1) *counter = 0;
    meet(side);
    if (side->index == 1) {
        while (__atomic_load_n(counter, __ATOMIC_ACQUIRE) != 10) {
        }
    } else {
        for (uint64_t i = 0; i < 10; ++i)
            use(side, qp, i + 100);
    }
    meet(side);
}

/// Both sleep for events: of a write with immediate data, and of its completion. The receiver
/// answers.
static void in_get_event(struct side* side, struct ibv_qp* qp) {
    for (int round = 0; round < 50; ++round) {
        const bool first = side->index == round % 2;
        const struct ibv_sge sge = sge_of(local, 0, 1000);
        struct ibv_cq* cq = NULL;
        void* context = NULL;
        CHECK_EQ(post_receive(qp, 1, sge_of(mr, 0, 0)), 0);
        CHECK_EQ(ibv_req_notify_cq(side->cq, 0), 0);
        meet(side);
        if (first)
            CHECK_EQ(post(qp, IBV_WR_RDMA_WRITE_WITH_IMM, 2, sge, peer.buffer, peer.rkey), 0);
        CHECK_EQ(ibv_get_cq_event(side->events, &cq, &context), 0);
        CHECK(cq == side->cq);
        CHECK(context == side);
        ibv_ack_cq_events(cq, 1);
        if (!first) {
            CHECK_EQ(await_success(side->cq).opcode, IBV_WC_RECV_RDMA_WITH_IMM);
            CHECK_EQ(post(qp, IBV_WR_RDMA_WRITE_WITH_IMM, 2, sge, peer.buffer, peer.rkey), 0);
        }
        if (first) {
            // The two are of different queues: either may come first.
            const enum ibv_wc_opcode one = await_success(side->cq).opcode;
            const enum ibv_wc_opcode other = await_success(side->cq).opcode;
            CHECK(one != other);
            CHECK(one == IBV_WC_RDMA_WRITE || other == IBV_WC_RDMA_WRITE);
            CHECK(one == IBV_WC_RECV_RDMA_WITH_IMM || other == IBV_WC_RECV_RDMA_WITH_IMM);
        } else {
            CHECK_EQ(await_success(side->cq).opcode, IBV_WC_RDMA_WRITE);
        }
        meet(side);
    }
}

/// poll() on the channel's descriptor, with a time limit, and with O_NONBLOCK's EAGAIN.
static void in_poll(struct side* side, struct ibv_qp* qp) {
    struct pollfd fds = {.fd = side->events->fd, .events = POLLIN};
    struct ibv_cq* cq = NULL;
    void* context = NULL;
    if (side->index == 1) {
        CHECK_EQ(ibv_req_notify_cq(side->cq, 0), 0);
        CHECK_EQ(poll(&fds, 1, 100), 0);
        CHECK_EQ(post_receive(qp, 1, sge_of(mr, 0, 100)), 0);
        meet(side);
        CHECK_EQ(poll(&fds, 1, 10000), 1);
        CHECK_EQ(ibv_get_cq_event(side->events, &cq, &context), 0);
        ibv_ack_cq_events(cq, 1);
        CHECK_EQ(poll(&fds, 1, 0), 0);
        await_success(side->cq);
    } else {
        meet(side);
        const struct timespec pause = {.tv_nsec = 200000000};
        nanosleep(&pause, NULL);
        CHECK_EQ(post(qp, IBV_WR_SEND, 1, sge_of(local, 0, 10), 0, 0), 0);
        await_success(side->cq);
    }
    meet(side);
}

static void body(struct side* side) {
    open_side(side, 1024);
    mr = make_memory(side, kBytes + 8, kAllAccess);
    local = make_memory(side, kBytes, kAllAccess);
    struct ibv_qp* qp = connect_sides(side, &(struct qp_options){.depth = 256}, mr, &peer);
    in_sleep(side, qp);
    in_read(side, qp);
    spinning(side, qp);
    in_poll(side, qp);
    in_get_event(side, qp);
    meet(side);
    CHECK_EQ(ibv_destroy_qp(qp), 0);
}

int main(int argc, char** argv) {
    return argc == 3 ? run_sides(argv[1], argv[2], 60, body) : 2;
}

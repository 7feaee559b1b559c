// SPDX-License-Identifier: Apache-2.0
// events HOST0 HOST1: solicited completions, the limit of a shared receive queue, the last request
// of a queue pair in error, fatal errors of a queue pair, a completion queue that overruns.
#include <fcntl.h>
#include <poll.h>

#include "rig.h"

static struct ibv_mr* mr;

static bool event_waits(int fd, int milliseconds) {
    struct pollfd fds = {.fd = fd, .events = POLLIN};
    return poll(&fds, 1, milliseconds) == 1;
}

static void take_event(struct side* side) {
    struct ibv_cq* cq = NULL;
    void* context = NULL;
    CHECK(event_waits(side->events->fd, 10000));
    CHECK_EQ(ibv_get_cq_event(side->events, &cq, &context), 0);
    CHECK(cq == side->cq);
    ibv_ack_cq_events(cq, 1);
}

static struct ibv_async_event take_async(struct side* side) {
    struct ibv_async_event event;
    CHECK(event_waits(side->context->async_fd, 10000));
    CHECK_EQ(ibv_get_async_event(side->context, &event), 0);
    ibv_ack_async_event(&event);
    return event;
}

static void send_one(struct side* side, struct ibv_qp* qp, bool solicited) {
    struct ibv_sge sge = sge_of(mr, 0, 100);
    struct ibv_send_wr* bad = NULL;
    struct ibv_send_wr wr = {.opcode = IBV_WR_SEND,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .send_flags = solicited ? IBV_SEND_SOLICITED : 0};
    CHECK_EQ(ibv_post_send(qp, &wr, &bad), 0);
    await_success(side->cq);
}

static void solicited(struct side* side, struct ibv_qp* qp) {
    if (side->index == 0) {
        meet(side);
        send_one(side, qp, false);
        meet(side);
        meet(side);
        send_one(side, qp, true);
        meet(side);
        return;
    }
    CHECK_EQ(post_receive(qp, 1, sge_of(mr, 0, 4096)), 0);
    CHECK_EQ(post_receive(qp, 2, sge_of(mr, 0, 4096)), 0);
    CHECK_EQ(ibv_req_notify_cq(side->cq, 1), 0);
    meet(side);
    meet(side);
    CHECK(!event_waits(side->events->fd, 100));
    meet(side);
    take_event(side);
    await_success(side->cq);
    await_success(side->cq);
    // Armed once, told once.
    CHECK(!event_waits(side->events->fd, 50));
    meet(side);
}

static void limit_reached(struct side* side) {
    struct address peer;
    if (side->index == 1) {
        struct ibv_srq_init_attr attr = {.attr = {.max_wr = 16, .max_sge = 1}};
        side->srq = ibv_create_srq(side->pd, &attr);
        CHECK(side->srq != NULL);
    }
    struct ibv_qp* qp = connect_sides(side, &(struct qp_options){0}, mr, &peer);
    if (side->index == 1) {
        struct ibv_sge sge = sge_of(mr, 0, 4096);
        struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1};
        struct ibv_recv_wr* bad = NULL;
        for (int i = 0; i < 8; ++i)
            CHECK_EQ(ibv_post_srq_recv(side->srq, &wr, &bad), 0);
        struct ibv_srq_attr attr = {.srq_limit = 6};
        CHECK_EQ(ibv_modify_srq(side->srq, &attr, IBV_SRQ_LIMIT), 0);
        CHECK_EQ(ibv_query_srq(side->srq, &attr), 0);
        CHECK_EQ(attr.srq_limit, 6);
        CHECK(!event_waits(side->context->async_fd, 50));
        meet(side);
        meet(side);
        for (int i = 0; i < 4; ++i)
            await_success(side->cq);
        const struct ibv_async_event event = take_async(side);
        CHECK_EQ(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
        CHECK(event.element.srq == side->srq);
        // It fires once, and is off then.
        CHECK(!event_waits(side->context->async_fd, 50));
        CHECK_EQ(ibv_query_srq(side->srq, &attr), 0);
        CHECK_EQ(attr.srq_limit, 0);
        // The queue pair's last receive is gone when it is in error.
        to_error(qp);
        const struct ibv_async_event last = take_async(side);
        CHECK_EQ(last.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
        CHECK(last.element.qp == qp);
    } else {
        meet(side);
        for (int i = 0; i < 4; ++i)
            send_one(side, qp, false);
        meet(side);
    }
    meet(side);
    CHECK_EQ(ibv_destroy_qp(qp), 0);
    if (side->index == 1) {
        CHECK_EQ(ibv_destroy_srq(side->srq), 0);
        side->srq = NULL;
    }
}

/// The responder of a request that it must refuse is told, as its own programs would not find out.
static void access_error_at_responder(struct side* side) {
    struct address peer;
    struct ibv_qp* qp = connect_sides(side, &(struct qp_options){0}, mr, &peer);
    if (side->index == 0) {
        CHECK_EQ(post(qp, IBV_WR_RDMA_WRITE, 1, sge_of(mr, 0, 8), peer.buffer, peer.rkey ^ 0xff00),
                 0);
        CHECK_EQ(await_completion(side->cq).status, IBV_WC_REM_ACCESS_ERR);
    } else {
        const struct ibv_async_event event = take_async(side);
        CHECK_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
        CHECK(event.element.qp == qp);
    }
    meet(side);
    CHECK_EQ(ibv_destroy_qp(qp), 0);
}

static void overrun(struct side* side) {
    if (side->index == 0) {
        struct ibv_qp* qps[2];
        struct ibv_cq* kept = side->cq;
        side->cq = ibv_create_cq(side->context, 4, NULL, NULL, 0);
        const int entries = side->cq->cqe;
        connect_loop(side, &(struct qp_options){.depth = 64}, qps);
        for (int i = 0; i < entries + 4 && i < 60; ++i) {
            CHECK_EQ(post(qps[0], IBV_WR_RDMA_WRITE, 1, sge_of(mr, 0, 8),
                          (uint64_t)(uintptr_t)mr->addr, mr->rkey),
                     0);
        }
        const struct ibv_async_event event = take_async(side);
        CHECK_EQ(event.event_type, IBV_EVENT_CQ_ERR);
        CHECK(event.element.cq == side->cq);
        // Its queue pairs may tell of it as well; all that are told are taken before they go.
        while (event_waits(side->context->async_fd, 100))
            take_async(side);
        CHECK_EQ(ibv_destroy_qp(qps[0]), 0);
        CHECK_EQ(ibv_destroy_qp(qps[1]), 0);
        CHECK_EQ(ibv_destroy_cq(side->cq), 0);
        side->cq = kept;
    }
    meet(side);
}

/// Nobody waits for a channel that cannot be read without blocking.
static void not_blocking(struct side* side) {
    struct ibv_cq* cq = NULL;
    void* context = NULL;
    const int flags = fcntl(side->events->fd, F_GETFL);
    CHECK_EQ(fcntl(side->events->fd, F_SETFL, flags | O_NONBLOCK), 0);
    CHECK_EQ(ibv_get_cq_event(side->events, &cq, &context), -1);
    CHECK_EQ(errno, EAGAIN);
    CHECK_EQ(fcntl(side->events->fd, F_SETFL, flags), 0);
}

static void body(struct side* side) {
    struct address peer;
    open_side(side, 256);
    mr = make_memory(side, 65536, kAllAccess);
    struct ibv_qp* qp = connect_sides(side, &(struct qp_options){0}, mr, &peer);
    solicited(side, qp);
    fprintf(stderr, "solicited done\n");
    not_blocking(side);
    limit_reached(side);
    fprintf(stderr, "limit done\n");
    access_error_at_responder(side);
    fprintf(stderr, "access error done\n");
    overrun(side);
    CHECK_EQ(ibv_destroy_qp(qp), 0);
}

int main(int argc, char** argv) {
    return argc == 3 ? run_sides(argv[1], argv[2], 60, body) : 2;
}

// SPDX-License-Identifier: Apache-2.0
// error_completions HOST0 HOST1: side 0 asks for what it must not have, and each wrong gets its own
// completion status, at the right side, with everything behind it flushed. A new pair of queue
// pairs for each, since the first error ends one.
#include <time.h>

#include "rig.h"

enum { kBytes = 8192 };

struct scene {
    struct side* side;
    struct ibv_qp* qp;
    struct ibv_mr* mr;
    struct address peer;
};

static struct scene set_up(struct side* side, struct qp_options options, int access) {
    struct scene s = {.side = side, .mr = make_memory(side, kBytes, access)};
    s.qp = connect_sides(side, &options, s.mr, &s.peer);
    return s;
}

static void tear_down(struct scene* s) {
    struct ibv_wc wc;
    meet(s->side);
    CHECK_EQ(ibv_destroy_qp(s->qp), 0);
    CHECK_EQ(ibv_dereg_mr(s->mr), 0);
    CHECK_EQ(ibv_poll_cq(s->side->cq, 1, &wc), 0);
}

/// The asker's completion has this status, the next request is flushed, and the QP is in error.
static void expect_failure(struct scene* s, enum ibv_wc_status status) {
    struct ibv_wc wc = await_completion(s->side->cq);
    CHECK_EQ(wc.status, status);
    CHECK_EQ(wc.wr_id, 1);
    CHECK_EQ(wc.qp_num, s->qp->qp_num);
    CHECK_EQ(state_of(s->qp), IBV_QPS_ERR);
    CHECK_EQ(post(s->qp, IBV_WR_SEND, 2, sge_of(s->mr, 0, 8), 0, 0), 0);
    wc = await_completion(s->side->cq);
    CHECK_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
    CHECK_EQ(wc.wr_id, 2);
}

/// One-sided: side 1 only stands by.
static void one_sided(struct side* side, enum ibv_wr_opcode opcode, int mr_access, int qp_access,
                      int64_t shift, uint32_t bytes, uint32_t key_change,
                      enum ibv_wc_status status) {
    struct scene s = set_up(side, (struct qp_options){.access = qp_access}, mr_access);
    if (side->index == 0) {
        CHECK_EQ(post(s.qp, opcode, 1, sge_of(s.mr, 0, bytes), s.peer.buffer + (uint64_t)shift,
                      s.peer.rkey ^ key_change),
                 0);
        expect_failure(&s, status);
    }
    tear_down(&s);
}

static void remote_access(struct side* side) {
    const int reads = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
    const int writes = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    // Wrong key; key of nothing.
    one_sided(side, IBV_WR_RDMA_WRITE, kAllAccess, 0, 0, 64, 0x00ff00, IBV_WC_REM_ACCESS_ERR);
    one_sided(side, IBV_WR_RDMA_READ, kAllAccess, 0, 0, 64, 0x80000001, IBV_WC_REM_ACCESS_ERR);
    // Before the region, over its end, far away.
    one_sided(side, IBV_WR_RDMA_WRITE, kAllAccess, 0, -1, 8, 0, IBV_WC_REM_ACCESS_ERR);
    one_sided(side, IBV_WR_RDMA_WRITE, kAllAccess, 0, kBytes - 7, 8, 0, IBV_WC_REM_ACCESS_ERR);
    one_sided(side, IBV_WR_RDMA_READ, kAllAccess, 0, kBytes, 1, 0, IBV_WC_REM_ACCESS_ERR);
    one_sided(side, IBV_WR_RDMA_READ, kAllAccess, 0, INT64_MAX, 4096, 0, IBV_WC_REM_ACCESS_ERR);
    // Rights that the region or the queue pair does not give.
    one_sided(side, IBV_WR_RDMA_WRITE, reads, 0, 0, 64, 0, IBV_WC_REM_ACCESS_ERR);
    one_sided(side, IBV_WR_RDMA_READ, writes, 0, 0, 64, 0, IBV_WC_REM_ACCESS_ERR);
    one_sided(side, IBV_WR_RDMA_WRITE, kAllAccess, reads, 0, 64, 0, IBV_WC_REM_ACCESS_ERR);
    one_sided(side, IBV_WR_RDMA_READ, kAllAccess, writes, 0, 64, 0, IBV_WC_REM_ACCESS_ERR);
}

static void local_protection(struct side* side) {
    struct scene s = set_up(side, (struct qp_options){0}, kAllAccess);
    if (side->index == 0) {
        struct ibv_sge sge = sge_of(s.mr, 0, 64);
        sge.lkey ^= 0x5500;
        CHECK_EQ(post(s.qp, IBV_WR_RDMA_WRITE, 1, sge, s.peer.buffer, s.peer.rkey), 0);
        expect_failure(&s, IBV_WC_LOC_PROT_ERR);
    }
    tear_down(&s);

    // A buffer that goes over the end of its region.
    s = set_up(side, (struct qp_options){0}, kAllAccess);
    if (side->index == 0) {
        CHECK_EQ(post(s.qp, IBV_WR_RDMA_WRITE, 1, sge_of(s.mr, kBytes - 8, 64), s.peer.buffer,
                      s.peer.rkey),
                 0);
        expect_failure(&s, IBV_WC_LOC_PROT_ERR);
    }
    tear_down(&s);

    // What is read would go where nothing may be written.
    s = set_up(side, (struct qp_options){0}, side->index == 0 ? 0 : kAllAccess);
    if (side->index == 0) {
        CHECK_EQ(post(s.qp, IBV_WR_RDMA_READ, 1, sge_of(s.mr, 0, 64), s.peer.buffer, s.peer.rkey),
                 0);
        expect_failure(&s, IBV_WC_LOC_PROT_ERR);
    }
    tear_down(&s);

    // The region belongs to another protection domain.
    s = set_up(side, (struct qp_options){0}, kAllAccess);
    if (side->index == 0) {
        struct ibv_pd* other = ibv_alloc_pd(side->context);
        struct ibv_mr* mr = ibv_reg_mr(other, s.mr->addr, kBytes, kAllAccess);
        CHECK(mr != NULL);
        CHECK_EQ(post(s.qp, IBV_WR_RDMA_WRITE, 1, sge_of(mr, 0, 8), s.peer.buffer, s.peer.rkey), 0);
        expect_failure(&s, IBV_WC_LOC_PROT_ERR);
        CHECK_EQ(ibv_dereg_mr(mr), 0);
        CHECK_EQ(ibv_dealloc_pd(other), 0);
    }
    tear_down(&s);
}

/// A message longer than the receive that takes it: each side has its own name for that.
static void too_long(struct side* side, uint32_t bytes) {
    struct scene s = set_up(side, (struct qp_options){0}, kAllAccess);
    if (side->index == 1) CHECK_EQ(post_receive(s.qp, 9, sge_of(s.mr, 0, 100)), 0);
    meet(side);
    if (side->index == 0) {
        CHECK_EQ(post(s.qp, IBV_WR_SEND, 1, sge_of(s.mr, 0, bytes), 0, 0), 0);
        expect_failure(&s, IBV_WC_REM_INV_REQ_ERR);
    } else {
        const struct ibv_wc wc = await_completion(side->cq);
        CHECK_EQ(wc.status, IBV_WC_LOC_LEN_ERR);
        CHECK_EQ(wc.wr_id, 9);
        CHECK_EQ(state_of(s.qp), IBV_QPS_ERR);
    }
    tear_down(&s);
}

/// A receive into memory that is not its own: the sender learns that the responder failed.
static void bad_receive(struct side* side) {
    struct scene s = set_up(side, (struct qp_options){0}, kAllAccess);
    if (side->index == 1) {
        struct ibv_sge sge = sge_of(s.mr, 0, 4096);
        sge.lkey ^= 0x5500;
        CHECK_EQ(post_receive(s.qp, 9, sge), 0);
    }
    meet(side);
    if (side->index == 0) {
        CHECK_EQ(post(s.qp, IBV_WR_SEND, 1, sge_of(s.mr, 0, 64), 0, 0), 0);
        expect_failure(&s, IBV_WC_REM_OP_ERR);
    } else {
        CHECK_EQ(await_completion(side->cq).status, IBV_WC_LOC_PROT_ERR);
    }
    tear_down(&s);
}

/// Nobody posts a receive.
static void not_ready(struct side* side, uint8_t retries) {
    struct scene s = set_up(
        side, (struct qp_options){.rnr_retries = retries == 0 ? kNone : retries}, kAllAccess);
    if (side->index == 0) {
        CHECK_EQ(post(s.qp, IBV_WR_SEND, 1, sge_of(s.mr, 0, 64), 0, 0), 0);
        expect_failure(&s, IBV_WC_RNR_RETRY_EXC_ERR);
    } else {
        // It moves along while it has nothing to receive.
        struct ibv_wc wc;
        CHECK_EQ(ibv_poll_cq(side->cq, 1, &wc), 0);
    }
    tear_down(&s);
}

/// A receive that comes late is not too late when retries never end.
static void ready_late(struct side* side) {
    struct scene s = set_up(side, (struct qp_options){0}, kAllAccess);
    if (side->index == 0) {
        fill(s.mr->addr, 5000, 3);
        CHECK_EQ(post(s.qp, IBV_WR_SEND, 1, sge_of(s.mr, 0, 5000), 0, 0), 0);
        await_success(side->cq);
    } else {
        struct timespec pause = {.tv_nsec = 300000000};
        nanosleep(&pause, NULL);
        CHECK_EQ(post_receive(s.qp, 9, sge_of(s.mr, 0, kBytes)), 0);
        CHECK_EQ(await_success(side->cq).byte_len, 5000);
        CHECK(filled(s.mr->addr, 5000, 3));
    }
    tear_down(&s);
}

/// ERR flushes everything that was posted, in order; RESET forgets it.
static void flushed(struct side* side) {
    struct scene s = set_up(side, (struct qp_options){0}, kAllAccess);
    if (side->index == 1) {
        for (uint64_t i = 0; i < 5; ++i)
            CHECK_EQ(post_receive(s.qp, i, sge_of(s.mr, 0, 64)), 0);
        to_error(s.qp);
        for (uint64_t i = 0; i < 5; ++i) {
            const struct ibv_wc wc = await_completion(side->cq);
            CHECK_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
            CHECK_EQ(wc.wr_id, i);
        }
        CHECK_EQ(post_receive(s.qp, 77, sge_of(s.mr, 0, 64)), 0);
        const struct ibv_wc wc = await_completion(side->cq);
        CHECK_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
        CHECK_EQ(wc.wr_id, 77);
        meet(side);
    } else {
        meet(side);
        // The other side no longer answers: that is found out, and what stands behind is flushed.
        for (uint64_t i = 1; i < 4; ++i)
            CHECK_EQ(post(s.qp, IBV_WR_SEND, i, sge_of(s.mr, 0, 64), 0, 0), 0);
        struct ibv_wc wc = await_completion(side->cq);
        CHECK_EQ(wc.status, IBV_WC_RETRY_EXC_ERR);
        CHECK_EQ(wc.wr_id, 1);
        for (uint64_t i = 2; i < 4; ++i) {
            wc = await_completion(side->cq);
            CHECK_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
            CHECK_EQ(wc.wr_id, i);
        }
    }
    tear_down(&s);

    s = set_up(side, (struct qp_options){0}, kAllAccess);
    CHECK_EQ(post_receive(s.qp, 1, sge_of(s.mr, 0, 64)), 0);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    CHECK_EQ(ibv_modify_qp(s.qp, &attr, IBV_QP_STATE), 0);
    tear_down(&s);
}

/// The peer is destroyed under us.
static void peer_gone(struct side* side) {
    struct qp_options quick = {.timeout = 10, .retries = 3};
    struct scene s = set_up(side, quick, kAllAccess);
    if (side->index == 1) {
        CHECK_EQ(ibv_destroy_qp(s.qp), 0);
        CHECK_EQ(ibv_dereg_mr(s.mr), 0);
        meet(side);
        meet(side);
        return;
    }
    meet(side);
    CHECK_EQ(post(s.qp, IBV_WR_RDMA_WRITE, 1, sge_of(s.mr, 0, 64), s.peer.buffer, s.peer.rkey), 0);
    expect_failure(&s, IBV_WC_RETRY_EXC_ERR);
    tear_down(&s);
}

/// A region that is gone can no longer be reached, though the queue pair lives.
static void region_gone(struct side* side) {
    struct scene s = set_up(side, (struct qp_options){0}, kAllAccess);
    if (side->index == 1) {
        CHECK_EQ(ibv_dereg_mr(s.mr), 0);
        s.mr = make_memory(side, 4096, 0);
    }
    meet(side);
    if (side->index == 0) {
        CHECK_EQ(post(s.qp, IBV_WR_RDMA_WRITE, 1, sge_of(s.mr, 0, 64), s.peer.buffer, s.peer.rkey),
                 0);
        expect_failure(&s, IBV_WC_REM_ACCESS_ERR);
    }
    tear_down(&s);
}

/// An atomic on an odd address.
static void misaligned(struct side* side) {
    struct scene s = set_up(side, (struct qp_options){0}, kAllAccess);
    if (side->index == 0) {
        struct ibv_sge sge = sge_of(s.mr, 0, 8);
        struct ibv_send_wr* bad = NULL;
        struct ibv_send_wr wr = {.wr_id = 1,
                                 .sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                                 .send_flags = IBV_SEND_SIGNALED};
        wr.wr.atomic.remote_addr = s.peer.buffer + 4;
        wr.wr.atomic.rkey = s.peer.rkey;
        wr.wr.atomic.compare_add = 1;
        CHECK_EQ(ibv_post_send(s.qp, &wr, &bad), 0);
        expect_failure(&s, IBV_WC_REM_INV_REQ_ERR);
    }
    tear_down(&s);
}

static void body(struct side* side) {
    open_side(side, 256);
    remote_access(side);
    fprintf(stderr, "remote access done\n");
    local_protection(side);
    fprintf(stderr, "local protection done\n");
    too_long(side, 101);
    too_long(side, kBytes);
    fprintf(stderr, "too long done\n");
    bad_receive(side);
    fprintf(stderr, "bad receive done\n");
    for (uint8_t retries = 0; retries <= 3; ++retries)
        not_ready(side, retries);
    ready_late(side);
    fprintf(stderr, "not ready done\n");
    flushed(side);
    peer_gone(side);
    region_gone(side);
    fprintf(stderr, "gone done\n");
    misaligned(side);
}

int main(int argc, char** argv) {
    return argc == 3 ? run_sides(argv[1], argv[2], 60, body) : 2;
}

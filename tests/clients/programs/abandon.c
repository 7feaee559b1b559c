// SPDX-License-Identifier: Apache-2.0
// abandon HOST0 HOST1: both sides end in the middle of their traffic and destroy nothing: one
// returns from main, the other ends at once.
#include "rig.h"

static void body(struct side* side) {
    struct address peer;
    struct ibv_srq_init_attr attr = {.attr = {.max_wr = 16, .max_sge = 1}};
    open_side(side, 256);
    CHECK(ibv_create_srq(side->pd, &attr) != NULL);
    struct ibv_mr* mr = make_memory(side, 1 << 20, kAllAccess);
    struct ibv_qp* qp = connect_sides(side, &(struct qp_options){0}, mr, &peer);
    CHECK_EQ(post_receive(qp, 1, sge_of(mr, 0, 4096)), 0);
    for (int i = 0; i < 20; ++i)
        CHECK_EQ(post(qp, IBV_WR_RDMA_WRITE, 1, sge_of(mr, 0, 1 << 20), peer.buffer, peer.rkey), 0);
    for (int i = 0; i < 20; ++i)
        CHECK_EQ(post(qp, IBV_WR_SEND, 1, sge_of(mr, 0, 2000), 0, 0), 0);
    CHECK_EQ(ibv_req_notify_cq(side->cq, 0), 0);
    if (side->index == 1) _exit(0);
}

int main(int argc, char** argv) {
    return argc == 3 ? run_sides(argv[1], argv[2], 30, body) : 2;
}

// SPDX-License-Identifier: Apache-2.0
// many_queue_pairs HOST0 HOST1 COUNT: so many queue pairs between two processes, all used in an
// order of their own, by sends both ways and by writes; every byte is checked.
#include "rig.h"

static int count;
enum { kBytes = 4096, kBatch = 250 };

static void body(struct side* side) {
    struct ibv_qp** qps = calloc((size_t)count, sizeof(*qps));
    struct address* mine = calloc((size_t)count, sizeof(*mine));
    struct address* theirs = calloc((size_t)count, sizeof(*theirs));
    const struct qp_options options = {.depth = 4, .sges = 1};
    open_side(side, 16 * count);
    struct ibv_mr* out = make_memory(side, (size_t)count * kBytes, kAllAccess);
    struct ibv_mr* in = make_memory(side, (size_t)count * kBytes * 2, kAllAccess);
    for (int i = 0; i < count; ++i) {
        qps[i] = make_qp(side, &options);
        to_init(side, qps[i], &options);
        mine[i] = (struct address){.buffer = (uint64_t)(uintptr_t)in->addr,
                                   .rkey = in->rkey,
                                   .qp = qps[i]->qp_num,
                                   .lid = side->port.lid};
    }
    for (int i = 0; i < count; i += kBatch) {
        const int now = count - i < kBatch ? count - i : kBatch;
        exchange(side, mine + i, theirs + i, (size_t)now * sizeof(*mine));
    }
    for (int i = 0; i < count; ++i) {
        to_rtr(side, qps[i], &options, &theirs[i]);
        to_rts(qps[i], &options);
        CHECK_EQ(post_receive(qps[i], (uint64_t)i, sge_of(in, (size_t)i * kBytes, kBytes)), 0);
        fill((char*)out->addr + (size_t)i * kBytes, kBytes, (uint64_t)(i * 2 + side->index));
    }
    meet(side);
    for (int step = 0; step < count; ++step) {
        const size_t i = (size_t)step * 7919 % (size_t)count;
        const struct ibv_sge sge = sge_of(out, i * kBytes, kBytes);
        CHECK_EQ(post(qps[i], IBV_WR_SEND, i, sge, 0, 0), 0);
        CHECK_EQ(post(qps[i], IBV_WR_RDMA_WRITE, i, sge,
                      theirs[i].buffer + ((uint64_t)count + i) * kBytes, theirs[i].rkey),
                 0);
    }
    for (int done = 0; done < 3 * count; ++done) {
        const struct ibv_wc wc = await_success(side->cq);
        CHECK_EQ(wc.qp_num, qps[wc.wr_id]->qp_num);
    }
    meet(side);
    for (size_t i = 0; i < 2 * (size_t)count; ++i)
        CHECK(filled((char*)in->addr + i * kBytes, kBytes,
                     i % (size_t)count * 2 + (uint64_t)(1 - side->index)));
    meet(side);
    for (int i = 0; i < count; ++i)
        CHECK_EQ(ibv_destroy_qp(qps[i]), 0);
}

int main(int argc, char** argv) {
    if (argc != 4) return 2;
    count = atoi(argv[3]);
    // Kept coprime to the step through them.
    return count % 7919 == 0 ? 2 : run_sides(argv[1], argv[2], 100, body);
}

// SPDX-License-Identifier: Apache-2.0
// forking HOST0 HOST1 own|inherit: side 0 forks in the middle of its traffic. The child uses its
// heap and its copy of the registered memory, and ends; the parent's traffic goes on and its data
// is right. With "own" the child opens the device anew and has traffic of its own.
#include <pthread.h>
#include <sys/wait.h>

#include "rig.h"

enum { kBytes = 1 << 20, kRounds = 40 };
static bool own_device;

/// What a child does that has no interest in verbs: it allocates, reads and writes everything.
static void live(struct ibv_mr* mr, uint64_t seed) {
    CHECK(filled(mr->addr, kBytes, seed));
    memset(mr->addr, 0xee, kBytes);
    for (int i = 0; i < 200; ++i) {
        char* block = malloc(100000);
        CHECK(block != NULL);
        memset(block, i, 100000);
        free(block);
    }
}

/// A loop of two queue pairs on a device of one's own.
static void live_with_device(void) {
    struct side side = {0};
    struct ibv_qp* qps[2];
    open_side(&side, 64);
    struct ibv_mr* mr = make_memory(&side, 65536, kAllAccess);
    connect_loop(&side, &(struct qp_options){0}, qps);
    for (int i = 0; i < 50; ++i) {
        fill(mr->addr, 30000, (uint64_t)i);
        CHECK_EQ(post(qps[0], IBV_WR_RDMA_WRITE, 1, sge_of(mr, 0, 30000),
                      (uint64_t)(uintptr_t)mr->addr + 32768, mr->rkey),
                 0);
        await_success(side.cq);
        CHECK(filled((char*)mr->addr + 32768, 30000, (uint64_t)i));
    }
    CHECK_EQ(ibv_destroy_qp(qps[0]), 0);
    CHECK_EQ(ibv_destroy_qp(qps[1]), 0);
    CHECK_EQ(ibv_dereg_mr(mr), 0);
    CHECK_EQ(ibv_destroy_cq(side.cq), 0);
    CHECK_EQ(ibv_destroy_comp_channel(side.events), 0);
    CHECK_EQ(ibv_dealloc_pd(side.pd), 0);
    CHECK_EQ(ibv_close_device(side.context), 0);
}

/// The parent's objects are not the child's: every call says so and none hangs.
static void poke(struct side* side, struct ibv_qp* qp, struct ibv_mr* mr) {
    struct ibv_wc wc;
    CHECK(ibv_alloc_pd(side->context) == NULL);
    CHECK(ibv_destroy_qp(qp) != 0);
    CHECK(ibv_dereg_mr(mr) != 0);
    CHECK(post(qp, IBV_WR_SEND, 1, sge_of(mr, 0, 8), 0, 0) != 0);
    CHECK(ibv_poll_cq(side->cq, 1, &wc) <= 0);
}

static void body(struct side* side) {
    struct address peer;
    CHECK_EQ(ibv_fork_init(), 0);
    open_side(side, 256);
    struct ibv_mr* mr = make_memory(side, kBytes, kAllAccess);
    struct ibv_mr* out = make_memory(side, kBytes, kAllAccess);
    struct ibv_qp* qp = connect_sides(side, &(struct qp_options){0}, mr, &peer);
    for (uint64_t round = 0; round < kRounds; ++round) {
        // Each writes into the other, at once.
        pid_t child = 0;
        fill(out->addr, kBytes, round * 2 + (uint64_t)side->index);
        if (side->index == 0) {
            fill(mr->addr, kBytes, 4711);
            // Before the peer writes: what the child sees is what was there when it was made.
            if (round % 4 == 1) {
                child = fork();
                CHECK(child >= 0);
                if (child == 0) {
                    alarm(20);
                    live(mr, 4711);
                    poke(side, qp, mr);
                    if (own_device) live_with_device();
                    // Both ways out: with and without the library's last words.
                    if (round % 8 == 1) exit(0);
                    _exit(0);
                }
            }
        }
        meet(side);
        CHECK_EQ(post(qp, IBV_WR_RDMA_WRITE, round, sge_of(out, 0, kBytes), peer.buffer, peer.rkey),
                 0);
        await_success(side->cq);
        meet(side);
        CHECK(filled(mr->addr, kBytes, round * 2 + (uint64_t)(1 - side->index)));
        if (child != 0) {
            int status = 0;
            CHECK(waitpid(child, &status, 0) == child);
            CHECK_EQ(status, 0);
        }
        meet(side);
    }
    // The parent still owns everything.
    CHECK_EQ(ibv_destroy_qp(qp), 0);
    CHECK_EQ(ibv_dereg_mr(mr), 0);
    CHECK_EQ(ibv_dereg_mr(out), 0);
}

int main(int argc, char** argv) {
    if (argc != 4) return 2;
    own_device = strcmp(argv[3], "own") == 0;
    return run_sides(argv[1], argv[2], 60, body);
}

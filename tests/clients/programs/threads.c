// SPDX-License-Identifier: Apache-2.0
// threads HOST0 HOST1 [THREADS MESSAGES]: so many threads per side (4), each with a queue pair and
// a completion queue of its own, while the main thread registers and gives up memory and makes and
// destroys objects.
#include <pthread.h>

#include "rig.h"

enum { kThreadsMax = 16, kBytes = 8192, kWindow = 16 };

struct worker {
    pthread_t thread;
    struct side* side;
    struct ibv_cq* cq;
    struct ibv_qp* qp;
    struct ibv_mr* mr;  ///< kWindow slots to send, as many to receive.
    struct address peer;
    uint64_t seed;
};

static bool done;
static int thread_count = 4;
static uint64_t message_count = 3000;

static size_t size_of(uint64_t message) {
    return (size_t)(message * 2654435761U % kBytes) + 1;
}

/// Both directions at once, data checked, a bounded number under way.
static void* work(void* argument) {
    struct worker* w = argument;
    struct side* side = w->side;
    uint64_t posted = 0;
    uint64_t sent = 0;
    uint64_t received = 0;
    const uint64_t in = w->seed + (uint64_t)(1 - side->index) * 1000000;
    const uint64_t out = w->seed + (uint64_t)side->index * 1000000;
    while (sent < message_count || received < message_count) {
        struct ibv_wc wc;
        if (posted < message_count && posted - sent < kWindow && posted < received + kWindow) {
            const size_t slot = posted % kWindow;
            fill((char*)w->mr->addr + slot * kBytes, size_of(posted), out + posted);
            CHECK_EQ(post(w->qp, IBV_WR_SEND, posted, sge_of(w->mr, slot * kBytes, size_of(posted)),
                          0, 0),
                     0);
            ++posted;
        }
        if (ibv_poll_cq(w->cq, 1, &wc) == 0) continue;
        CHECK_EQ(wc.status, IBV_WC_SUCCESS);
        if (wc.opcode == IBV_WC_SEND) {
            CHECK_EQ(wc.wr_id, sent);
            ++sent;
            continue;
        }
        const size_t at = (kWindow + received % (2 * kWindow)) * kBytes;
        CHECK_EQ(wc.byte_len, size_of(received));
        CHECK(filled((char*)w->mr->addr + at, wc.byte_len, in + received));
        CHECK_EQ(post_receive(w->qp, 0, sge_of(w->mr, at, kBytes)), 0);
        ++received;
    }
    return NULL;
}

/// Registers and forgets, in and out of what is registered already.
static void* churn(void* argument) {
    struct side* side = argument;
    while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) {
        struct ibv_mr* mr = make_memory(side, 300000, kAllAccess);
        memset(mr->addr, 1, mr->length);
        struct ibv_mr* again = ibv_reg_mr(side->pd, (char*)mr->addr + 100, 5000, kAllAccess);
        CHECK(again != NULL);
        struct ibv_qp* qp = make_qp(side, &(struct qp_options){0});
        CHECK_EQ(ibv_destroy_qp(qp), 0);
        CHECK_EQ(ibv_dereg_mr(mr), 0);
        CHECK_EQ(ibv_dereg_mr(again), 0);
        char* heap = malloc(50000);
        struct ibv_mr* small = ibv_reg_mr(side->pd, heap, 50000, kAllAccess);
        CHECK(small != NULL);
        CHECK_EQ(ibv_dereg_mr(small), 0);
        free(heap);
    }
    return NULL;
}

static void body(struct side* side) {
    struct worker workers[kThreadsMax] = {0};
    open_side(side, 64);
    struct ibv_cq* shared = side->cq;
    for (int i = 0; i < thread_count; ++i) {
        struct worker* w = &workers[i];
        w->side = side;
        w->seed = (uint64_t)i * 7919;
        w->cq = ibv_create_cq(side->context, 256, NULL, NULL, 0);
        CHECK(w->cq != NULL);
        side->cq = w->cq;
        w->mr = make_memory(side, (size_t)kBytes * kWindow * 3, kAllAccess);
        w->qp = connect_sides(side, &(struct qp_options){0}, w->mr, &w->peer);
        for (size_t slot = 0; slot < 2 * kWindow; ++slot)
            CHECK_EQ(post_receive(w->qp, 0, sge_of(w->mr, (kWindow + slot) * kBytes, kBytes)), 0);
    }
    side->cq = shared;
    meet(side);
    pthread_t churner;
    for (int i = 0; i < thread_count; ++i)
        CHECK_EQ(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    CHECK_EQ(pthread_create(&churner, NULL, churn, side), 0);
    for (int i = 0; i < thread_count; ++i)
        CHECK_EQ(pthread_join(workers[i].thread, NULL), 0);
    __atomic_store_n(&done, true, __ATOMIC_RELEASE);
    CHECK_EQ(pthread_join(churner, NULL), 0);
    meet(side);
    for (int i = 0; i < thread_count; ++i) {
        CHECK_EQ(ibv_destroy_qp(workers[i].qp), 0);
        CHECK_EQ(ibv_destroy_cq(workers[i].cq), 0);
        CHECK_EQ(ibv_dereg_mr(workers[i].mr), 0);
    }
}

int main(int argc, char** argv) {
    if (argc == 5) {
        thread_count = atoi(argv[3]);
        message_count = (uint64_t)atol(argv[4]);
    } else if (argc != 3) {
        return 2;
    }
    if (thread_count < 1 || thread_count > kThreadsMax) return 2;
    return run_sides(argv[1], argv[2], 60, body);
}

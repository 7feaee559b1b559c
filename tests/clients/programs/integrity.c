// SPDX-License-Identifier: Apache-2.0
// integrity HOST0 HOST1: every byte arrives where it should and no other byte changes, for sends,
// writes, reads and atomics, of sizes around everything that has a size, gathered from and
// scattered to several buffers; and the last byte of a write never shows before the rest.
#include "rig.h"

static const size_t kSizes[] = {0,     1,     7,     8,      9,       63,     64,   65,
                                151,   152,   153,   4095,   4096,    4097,   8191, 65535,
                                65536, 65537, 98304, 262144, 1048577, 5242880};
enum { kSizeCount = sizeof(kSizes) / sizeof(kSizes[0]) };
enum { kMax = 5242880, kEdge = 4096, kRoom = kMax + 2 * kEdge };

static struct ibv_mr* mr;
static struct ibv_mr* pieces_mr;
static struct address peer;

static char* at(const struct ibv_mr* region, size_t offset) {
    return (char*)region->addr + offset;
}

/// Nothing around [kEdge, kEdge + bytes) was touched.
static void check_edges(size_t bytes) {
    for (size_t i = 0; i < kEdge; ++i) {
        CHECK_EQ(*at(mr, i), 0x5a);
        CHECK_EQ(*at(mr, kEdge + bytes + i), 0x5a);
    }
}

/// Cuts [from, from + bytes) of a region into `count` pieces of uneven size, one of them empty.
static int cut(const struct ibv_mr* region, size_t from, size_t bytes, int count,
               struct ibv_sge* out) {
    size_t done = 0;
    for (int i = 0; i < count; ++i) {
        size_t length = i == count - 1 ? bytes - done : (bytes - done) / 3;
        if (i == 1) length = 0;
        out[i] = sge_of(region, from + done, length);
        done += length;
    }
    return count;
}

static void post_list(struct ibv_qp* qp, enum ibv_wr_opcode opcode, struct ibv_sge* sges, int count,
                      uint64_t remote) {
    struct ibv_send_wr* bad = NULL;
    struct ibv_send_wr wr = {.wr_id = 1,
                             .sg_list = sges,
                             .num_sge = count,
                             .opcode = opcode,
                             .imm_data = 0x12345678,
                             .send_flags = IBV_SEND_SIGNALED};
    wr.wr.rdma.remote_addr = remote;
    wr.wr.rdma.rkey = peer.rkey;
    CHECK_EQ(ibv_post_send(qp, &wr, &bad), 0);
}

/// Side 0 sends or writes, side 1 looks.
static void forth(struct side* side, struct ibv_qp* qp, enum ibv_wr_opcode opcode, size_t bytes,
                  int pieces) {
    struct ibv_sge sges[8];
    const bool receives = opcode != IBV_WR_RDMA_WRITE;
    const bool sends = opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM;
    if (side->index == 1) {
        memset(mr->addr, 0x5a, bytes + 2 * kEdge);
        if (receives) {
            struct ibv_recv_wr* bad = NULL;
            struct ibv_recv_wr wr = {.wr_id = 2, .sg_list = sges};
            wr.num_sge = sends ? cut(mr, kEdge, bytes, pieces, sges) : 0;
            CHECK_EQ(ibv_post_recv(qp, &wr, &bad), 0);
        }
        meet(side);
        if (receives) {
            const struct ibv_wc wc = await_success(side->cq);
            CHECK_EQ(wc.wr_id, 2);
            CHECK_EQ(wc.opcode, sends ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM);
            CHECK_EQ(wc.byte_len, bytes);
            if (opcode != IBV_WR_SEND) {
                CHECK((wc.wc_flags & IBV_WC_WITH_IMM) != 0);
                CHECK_EQ(wc.imm_data, 0x12345678);
            }
        } else {
            meet(side);
        }
        CHECK(filled(at(mr, kEdge), bytes, bytes + (size_t)opcode));
        check_edges(bytes);
        if (receives) meet(side);
        return;
    }
    fill(at(pieces_mr, 3), bytes, bytes + (size_t)opcode);
    meet(side);
    post_list(qp, opcode, sges, cut(pieces_mr, 3, bytes, pieces, sges), peer.buffer + kEdge);
    const struct ibv_wc wc = await_success(side->cq);
    CHECK_EQ(wc.opcode, sends ? IBV_WC_SEND : IBV_WC_RDMA_WRITE);
    meet(side);
}

/// Side 0 reads what side 1 has.
static void back(struct side* side, struct ibv_qp* qp, size_t bytes, int pieces) {
    struct ibv_sge sges[8];
    if (side->index == 1) {
        fill(at(mr, kEdge), bytes, bytes + 99);
        meet(side);
        meet(side);
        return;
    }
    memset(mr->addr, 0x5a, bytes + 2 * kEdge);
    meet(side);
    post_list(qp, IBV_WR_RDMA_READ, sges, cut(mr, kEdge, bytes, pieces, sges), peer.buffer + kEdge);
    const struct ibv_wc wc = await_success(side->cq);
    CHECK_EQ(wc.opcode, IBV_WC_RDMA_READ);
    CHECK_EQ(wc.byte_len, bytes);
    CHECK(filled(at(mr, kEdge), bytes, bytes + 99));
    check_edges(bytes);
    meet(side);
}

/// Both sides add to, and swap, one number of side 1.
static void atomics(struct side* side, struct ibv_qp* qp) {
    enum { kRounds = 500 };
    uint64_t* counter = (uint64_t*)(void*)at(mr, 0);
    uint64_t* swapped = counter + 1;
    uint64_t* old = (uint64_t*)(void*)at(pieces_mr, 0);
    uint64_t seen = 0;
    if (side->index == 1) *counter = *swapped = 0;
    meet(side);
    for (uint64_t i = 0; i < kRounds; ++i) {
        struct ibv_sge sge = sge_of(pieces_mr, 0, 8);
        struct ibv_send_wr* bad = NULL;
        struct ibv_send_wr wr = {
            .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .sg_list = &sge, .num_sge = 1};
        wr.wr.atomic.remote_addr = side->index == 0 ? peer.buffer : (uint64_t)(uintptr_t)counter;
        wr.wr.atomic.rkey = side->index == 0 ? peer.rkey : mr->rkey;
        wr.wr.atomic.compare_add = 3;
        if (side->index == 1) {
            // Here it is the processor's atomic: ATOMIC_GLOB says that the two agree.
            if (side->device.atomic_cap == IBV_ATOMIC_GLOB)
                __atomic_fetch_add(counter, 3, __ATOMIC_SEQ_CST);
            continue;
        }
        CHECK_EQ(ibv_post_send(qp, &wr, &bad), 0);
        CHECK_EQ(await_success(side->cq).opcode, IBV_WC_FETCH_ADD);
        CHECK(i == 0 || *old > seen);
        seen = *old;
        wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
        wr.wr.atomic.remote_addr += 8;
        wr.wr.atomic.compare_add = i % 5 == 4 ? ~0ULL : i - i / 5;
        wr.wr.atomic.swap = i - i / 5 + 1;
        CHECK_EQ(ibv_post_send(qp, &wr, &bad), 0);
        CHECK_EQ(await_success(side->cq).opcode, IBV_WC_COMP_SWAP);
        CHECK_EQ(*old, i - i / 5);
    }
    meet(side);
    if (side->index == 1) {
        const bool both = side->device.atomic_cap == IBV_ATOMIC_GLOB;
        CHECK_EQ(*counter, (both ? 2 : 1) * 3 * kRounds);
        CHECK_EQ(*swapped, kRounds - kRounds / 5);
    }
    meet(side);
}

/// Side 1 watches the last byte, as programs do that poll on memory and call nothing.
static void last_byte(struct side* side, struct ibv_qp* qp, size_t bytes) {
    enum { kRounds = 40 };
    volatile unsigned char* flag = (volatile unsigned char*)at(mr, bytes - 1);
    for (int round = 1; round <= kRounds; ++round) {
        if (side->index == 1) {
            memset(mr->addr, 0, bytes);
            meet(side);
            while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) == 0) {
            }
            const unsigned char* data = mr->addr;
            for (size_t i = 0; i < bytes; ++i) {
                CHECK_EQ(data[i], round);
            }
            meet(side);
        } else {
            memset(pieces_mr->addr, round, bytes);
            meet(side);
            CHECK_EQ(
                post(qp, IBV_WR_RDMA_WRITE, 1, sge_of(pieces_mr, 0, bytes), peer.buffer, peer.rkey),
                0);
            await_success(side->cq);
            meet(side);
        }
    }
}

/// A write, then another that says it is there, on one queue pair: never the other way round.
static void write_then_flag(struct side* side, struct ibv_qp* qp) {
    enum { kBytes = 300000, kFlagAt = kMax };
    volatile unsigned char* flag = (volatile unsigned char*)at(mr, kFlagAt);
    for (int round = 1; round <= 40; ++round) {
        if (side->index == 1) {
            *flag = 0;
            memset(mr->addr, 0, kBytes);
            meet(side);
            while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) == 0) {
            }
            const unsigned char* data = mr->addr;
            for (size_t i = 0; i < kBytes; ++i)
                CHECK_EQ(data[i], round);
            meet(side);
        } else {
            memset(pieces_mr->addr, round, kBytes);
            meet(side);
            CHECK_EQ(post(qp, IBV_WR_RDMA_WRITE, 1, sge_of(pieces_mr, 0, kBytes), peer.buffer,
                          peer.rkey),
                     0);
            CHECK_EQ(post(qp, IBV_WR_RDMA_WRITE, 2, sge_of(pieces_mr, 0, 1), peer.buffer + kFlagAt,
                          peer.rkey),
                     0);
            CHECK_EQ(await_success(side->cq).wr_id, 1);
            CHECK_EQ(await_success(side->cq).wr_id, 2);
            meet(side);
        }
    }
}

static void body(struct side* side) {
    const enum ibv_mtu mtus[] = {IBV_MTU_4096, IBV_MTU_256};
    open_side(side, 256);
    mr = make_memory(side, kRoom, kAllAccess);
    pieces_mr = make_memory(side, kRoom, IBV_ACCESS_LOCAL_WRITE);
    for (int m = 0; m < 2; ++m) {
        const struct qp_options options = {.mtu = mtus[m], .sges = 8};
        struct ibv_qp* qp = connect_sides(side, &options, mr, &peer);
        for (int i = 0; i < kSizeCount; ++i) {
            const int pieces[] = {1, 3, 8};
            for (int p = 0; p < 3; ++p) {
                const size_t bytes = kSizes[i];
                forth(side, qp, IBV_WR_SEND, bytes, pieces[p]);
                forth(side, qp, IBV_WR_RDMA_WRITE, bytes, pieces[p]);
                back(side, qp, bytes, pieces[p]);
                if (p != 1) continue;
                forth(side, qp, IBV_WR_SEND_WITH_IMM, bytes, pieces[p]);
                forth(side, qp, IBV_WR_RDMA_WRITE_WITH_IMM, bytes, pieces[p]);
            }
        }
        atomics(side, qp);
        last_byte(side, qp, 8);
        last_byte(side, qp, 4096);
        last_byte(side, qp, 65536);
        last_byte(side, qp, 200000);
        write_then_flag(side, qp);
        meet(side);
        CHECK_EQ(ibv_destroy_qp(qp), 0);
    }
}

int main(int argc, char** argv) {
    return argc == 3 ? run_sides(argv[1], argv[2], 120, body) : 2;
}

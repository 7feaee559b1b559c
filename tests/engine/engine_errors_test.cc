// SPDX-License-Identifier: Apache-2.0
// What goes wrong must go wrong as the specification says, and hurt nobody else.
#include <mutex>
#include <thread>
#include <utility>

#include "base/rng.h"
#include "fixture.h"
#include "hca/engine.h"

namespace weir::hca {
namespace {

using Tweak = void (*)(ibv_send_wr&);
constexpr Tweak kPlain = [](ibv_send_wr&) {};

TEST_F(EngineTest, BadRemoteKeyBreaksBothEndsAndFlushesTheRest) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    ASSERT_EQ(b.receive({b.piece(0, 8)}), 0);
    ASSERT_EQ(a.send(IBV_WR_RDMA_WRITE, {a.piece(0, 8)},
                     [&](ibv_send_wr& wr) {
                         to(b, 0)(wr);
                         wr.wr.rdma.rkey ^= 0x100U;
                     }),
              0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(a.qp->current_state(), IBV_QPS_ERR);
    ASSERT_EQ(a.send(IBV_WR_SEND, {a.piece(0, 8)}, kPlain), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(wait(b.receive_cq).status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(b.qp->current_state(), IBV_QPS_ERR);
    AsyncEvent event{};
    EXPECT_EQ(b.hca->take_async(event), 0);
    EXPECT_EQ(event.type, IBV_EVENT_QP_ACCESS_ERR);
    EXPECT_EQ(event.qp, b.qp);
}

TEST_F(EngineTest, WritesEndAtTheEdgeOfTheRegion) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    const auto size = b.memory.size();
    ASSERT_EQ(a.send(IBV_WR_RDMA_WRITE, {a.piece(0, 16)}, to(b, size - 16)), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
    ASSERT_EQ(a.send(IBV_WR_RDMA_WRITE, {a.piece(0, 16)}, to(b, size - 15)), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(EngineTest, ADeregisteredRegionIsClosedAtOnce) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    std::uint32_t lkey = 0;
    std::uint32_t rkey = 0;
    ASSERT_EQ(b.hca->reg_mr(b.pd, b.memory.data(), 4096, 0, End::kAccess, lkey, rkey), 0);
    const auto remote = [&](ibv_send_wr& wr) { wr.wr.rdma.rkey = rkey; };
    ASSERT_EQ(a.send(IBV_WR_RDMA_WRITE, {a.piece(0, 16)}, remote), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
    ASSERT_EQ(b.hca->dereg_mr(lkey), 0);
    EXPECT_EQ(b.hca->dereg_mr(lkey), EINVAL);
    ASSERT_EQ(a.send(IBV_WR_RDMA_WRITE, {a.piece(0, 16)}, remote), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(EngineTest, BadLocalKeyIsALocalErrorInItsTurn) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    ASSERT_EQ(a.send(IBV_WR_RDMA_WRITE, {a.piece(0, 16)}, to(b, 0)), 0);
    auto wrong = a.piece(0, 16);
    wrong.lkey ^= 0x100U;
    ASSERT_EQ(a.send(IBV_WR_RDMA_WRITE, {wrong}, to(b, 0)), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_LOC_PROT_ERR);
}

TEST_F(EngineTest, TooLongASendTellsBothSides) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    ASSERT_EQ(b.receive({b.piece(0, 99)}), 0);
    ASSERT_EQ(a.send(IBV_WR_SEND, {a.piece(0, 100)}, kPlain), 0);
    EXPECT_EQ(wait(b.receive_cq).status, IBV_WC_LOC_LEN_ERR);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_REM_INV_REQ_ERR);
}

TEST_F(EngineTest, RnrRetriesEndWithTheirOwnStatus) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC, 2));
    ASSERT_EQ(a.send(IBV_WR_SEND, {a.piece(0, 8)}, kPlain), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_RNR_RETRY_EXC_ERR);
}

TEST_F(EngineTest, ReceiverNotReadyWaitsWithoutEnd) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC, 7));
    ASSERT_EQ(a.send(IBV_WR_SEND, {a.piece(0, 8)}, kPlain), 0);
    ibv_wc wc{};
    for (int i = 0; i < 10'000; ++i)
        ASSERT_EQ(a.send_cq->poll(1, &wc), 0);
    ASSERT_EQ(b.receive({b.piece(0, 8)}), 0);
    EXPECT_EQ(wait(b.receive_cq).status, IBV_WC_SUCCESS);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
}

TEST_F(EngineTest, APeerThatIsGoneEndsInRetriesExceeded) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    ASSERT_EQ(b.hca->destroy_qp(b.qp), 0);
    b.qp = nullptr;
    ASSERT_EQ(a.send(IBV_WR_RDMA_WRITE, {a.piece(0, 8)}, to(b, 0)), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_RETRY_EXC_ERR);
}

TEST_F(EngineTest, ALocalErrorStopsTheSendsOfUnreliableServicesAlone) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_UC));
    auto wrong = a.piece(0, 16);
    wrong.lkey ^= 0x100U;
    ASSERT_EQ(a.receive({a.piece(4096, 64)}, 5), 0);
    ASSERT_EQ(a.send(IBV_WR_SEND, {wrong}, kPlain), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_LOC_PROT_ERR);
    EXPECT_EQ(a.qp->current_state(), IBV_QPS_SQE);
    ASSERT_EQ(a.send(IBV_WR_SEND, {a.piece(0, 16)}, kPlain), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_WR_FLUSH_ERR);
    ASSERT_EQ(b.send(IBV_WR_SEND, {b.piece(0, 16)}, kPlain), 0);
    EXPECT_EQ(wait(a.receive_cq).status, IBV_WC_SUCCESS) << "it still receives";
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTS;
    ASSERT_EQ(a.qp->modify(attr, IBV_QP_STATE), 0);
    ASSERT_EQ(b.receive({b.piece(0, 64)}), 0);
    ASSERT_EQ(a.send(IBV_WR_SEND, {a.piece(0, 16)}, kPlain), 0);
    EXPECT_EQ(wait(b.receive_cq).status, IBV_WC_SUCCESS);
}

TEST_F(EngineTest, AReceiveInErrorEndsAnUnreliableQueuePairToo) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_UC));
    auto wrong = b.piece(0, 64);
    wrong.lkey ^= 0x100U;
    ASSERT_EQ(b.receive({wrong}), 0);
    ASSERT_EQ(b.receive({b.piece(0, 64)}), 0);
    ASSERT_EQ(a.send(IBV_WR_SEND, {a.piece(0, 16)}, kPlain), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
    EXPECT_EQ(wait(b.receive_cq).status, IBV_WC_LOC_PROT_ERR);
    EXPECT_EQ(wait(b.receive_cq).status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(b.qp->current_state(), IBV_QPS_ERR);
}

TEST_F(EngineTest, WhatNeverHasItsTurnIsFlushedWhateverIsWrongWithIt) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    auto wrong = a.piece(0, 16);
    wrong.lkey ^= 0x100U;
    std::vector<ibv_sge> sges = {wrong, wrong};
    ibv_send_wr wrs[2] = {};
    for (int i = 0; i < 2; ++i) {
        wrs[i].opcode = IBV_WR_SEND;
        wrs[i].sg_list = &sges[static_cast<std::size_t>(i)];
        wrs[i].num_sge = 1;
    }
    wrs[0].next = &wrs[1];
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(a.qp->post_send(wrs, &bad), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_LOC_PROT_ERR);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_WR_FLUSH_ERR) << "behind a failure";
    ASSERT_EQ(a.send(IBV_WR_SEND, {wrong}, kPlain), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_WR_FLUSH_ERR) << "posted in the error state";
}

TEST_F(EngineTest, RightsTakenAwayInRtsAreGoneForTheOwnerToo) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    ASSERT_EQ(b.receive({}), 0);
    ibv_qp_attr attr{};
    attr.qp_access_flags = IBV_ACCESS_REMOTE_READ;
    ASSERT_EQ(b.qp->modify(attr, IBV_QP_ACCESS_FLAGS), 0);
    // With immediate data the owner executes it.
    ASSERT_EQ(a.send(IBV_WR_RDMA_WRITE_WITH_IMM, {a.piece(0, 8)}, to(b, 0)), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(EngineTest, PostingIsRefusedInTheWrongStatesAndShapes) {
    ASSERT_NO_FATAL_FAILURE(a.create(IBV_QPT_RC));
    EXPECT_EQ(a.send(IBV_WR_SEND, {a.piece(0, 8)}, kPlain), EINVAL);
    EXPECT_EQ(a.receive({a.piece(0, 8)}), EINVAL);
    a.to_init();
    EXPECT_EQ(a.receive({a.piece(0, 8)}), 0);
    EXPECT_EQ(a.send(IBV_WR_SEND, {a.piece(0, 8)}, kPlain), EINVAL);
    ASSERT_NO_FATAL_FAILURE(b.create(IBV_QPT_RC));
    b.to_init();
    a.to_rtr(b);
    b.to_rtr(a);
    a.to_rts();
    const std::vector<ibv_sge> nine(9, a.piece(0, 1));
    EXPECT_EQ(a.send(IBV_WR_SEND, nine, kPlain), EINVAL);
    EXPECT_EQ(a.receive(nine), EINVAL);
    EXPECT_EQ(a.send(IBV_WR_SEND, {a.piece(0, 65)},
                     [](ibv_send_wr& wr) { wr.send_flags |= IBV_SEND_INLINE; }),
              EINVAL);
    EXPECT_EQ(a.send(IBV_WR_ATOMIC_FETCH_AND_ADD, {a.piece(0, 4)}, kPlain), EINVAL);
    EXPECT_EQ(a.send(IBV_WR_SEND, {a.piece(0, 8)}, [](ibv_send_wr& wr) { wr.num_sge = -1; }),
              EINVAL);
    EXPECT_EQ(a.send(IBV_WR_SEND, {a.piece(0, 8)}, [](ibv_send_wr& wr) { wr.sg_list = nullptr; }),
              EINVAL);
    EXPECT_EQ(a.send(IBV_WR_TSO, {a.piece(0, 8)}, kPlain), EOPNOTSUPP);
}

TEST_F(EngineTest, ObjectsInUseAreNotDestroyed) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    EXPECT_EQ(a.hca->destroy_cq(a.send_cq), EBUSY);
    EXPECT_EQ(a.hca->dealloc_pd(a.pd), EBUSY);
    EXPECT_EQ(a.hca->dealloc_pd(999), EINVAL);
}

TEST_F(EngineTest, RegistrationRefusesWhatIsNotThere) {
    std::uint32_t lkey = 0;
    std::uint32_t rkey = 0;
    EXPECT_EQ(a.hca->reg_mr(a.pd, reinterpret_cast<void*>(0x1000), 64, 0, 0, lkey, rkey), EFAULT);
    EXPECT_EQ(a.hca->reg_mr(a.pd, reinterpret_cast<void*>(-64L), 128, 0, 0, lkey, rkey), EINVAL);
    EXPECT_EQ(a.hca->reg_mr(999, a.memory.data(), 64, 0, 0, lkey, rkey), EINVAL);
    EXPECT_EQ(a.hca->reg_mr(a.pd, a.memory.data(), 64, 0, IBV_ACCESS_REMOTE_WRITE, lkey, rkey),
              EINVAL);
    static const char kConstant[64] = "read only";
    EXPECT_EQ(a.hca->reg_mr(a.pd, const_cast<char*>(kConstant), 64, 0, IBV_ACCESS_LOCAL_WRITE, lkey,
                            rkey),
              EFAULT);
}

TEST_F(EngineTest, RandomCallsInAnyOrderNeitherCrashNorHang) {
    // Two queue pairs, driven by random verbs in random states: any answer is fine, none is not.
    for (std::uint64_t seed = 1; seed <= 15; ++seed) {
        Rng rng(seed);
        ASSERT_NO_FATAL_FAILURE(a.create(IBV_QPT_RC));
        ASSERT_NO_FATAL_FAILURE(b.create(IBV_QPT_RC));
        for (int i = 0; i < 300; ++i) {
            End& end = rng.one_in(2) ? a : b;
            End& peer = &end == &a ? b : a;
            ibv_qp_attr attr{};
            attr.qp_state = static_cast<ibv_qp_state>(rng.below(7));
            attr.port_num = 1;
            attr.path_mtu = IBV_MTU_1024;
            attr.dest_qp_num = peer.qp->number();
            attr.ah_attr.dlid = peer.lid;
            attr.ah_attr.port_num = 1;
            attr.qp_access_flags = End::kAccess;
            attr.max_rd_atomic = attr.max_dest_rd_atomic = 4;
            attr.timeout = 8;
            constexpr int kInit =
                IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
            constexpr int kRtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                 IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
            constexpr int kRts = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                 IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
            constexpr int kMasks[] = {kInit, kRtr, kRts, IBV_QP_STATE};
            const auto size = static_cast<std::uint32_t>(rng.below(100'000));
            const auto where = rng.below(600'000);
            const auto kind = rng.below(8);
            ibv_wc wc[8];
            if (kind < 3) {
                if (rng.one_in(2)) {  // often the next state in the usual order
                    attr.qp_state = static_cast<ibv_qp_state>(end.qp->current_state() + 1);
                }
                const auto next = static_cast<std::size_t>(attr.qp_state) - 1;
                (void)end.qp->modify(attr, kMasks[std::min<std::size_t>(next, 3)]);
            } else if (kind == 3) {
                (void)end.receive({end.piece(where, size)});
            } else if (kind == 4) {
                (void)end.send(IBV_WR_SEND, {end.piece(where, size)}, kPlain);
            } else if (kind == 5) {
                (void)end.send(rng.one_in(2) ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
                               {end.piece(where, size)}, to(peer, rng.below(1'100'000)));
            } else if (kind == 6) {
                (void)end.send_cq->poll(8, wc);
            } else {
                (void)end.receive_cq->poll(8, wc);
            }
        }
        EXPECT_EQ(a.hca->destroy_qp(a.qp), 0);
        EXPECT_EQ(b.hca->destroy_qp(b.qp), 0);
        a.qp = b.qp = nullptr;
    }
    // And the fabric still works.
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    ASSERT_EQ(a.send(IBV_WR_RDMA_WRITE, {a.piece(0, 8)}, to(b, 0)), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
}

// A payload is copied from the sender's memory, which is the program's again once the request is
// given up: then the message is as good as lost, and not one with other bytes.
TEST_F(EngineTest, WhatWasGivenUpIsNotDeliveredWithOtherBytes) {
    constexpr std::uint32_t kBytes = 64 * 1024;
    for (const auto give_up : {IBV_QPS_ERR, IBV_QPS_RESET, IBV_QPS_UNKNOWN}) {
        ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
        ASSERT_EQ(b.receive({b.piece(0, kBytes)}), 0);
        {
            // The receiver comes too late.
            const std::lock_guard guard(b.hca->state().attachment->lock);
            std::fill_n(a.memory.begin(), kBytes, std::uint8_t{0x11});
            std::fill_n(b.memory.begin(), kBytes, std::uint8_t{0});
            ASSERT_EQ(a.send(IBV_WR_SEND, {a.piece(0, kBytes)}, [](ibv_send_wr&) {}), 0);
            if (give_up == IBV_QPS_UNKNOWN) {
                ASSERT_EQ(a.hca->destroy_qp(std::exchange(a.qp, nullptr)), 0);
            } else {
                ibv_qp_attr attr{};
                attr.qp_state = give_up;
                ASSERT_EQ(a.qp->modify(attr, IBV_QP_STATE), 0);
            }
            std::fill_n(a.memory.begin(), kBytes, std::uint8_t{0xee});
        }
        ibv_wc wc{};
        for (int look = 0; look < 1000; ++look) {
            if (b.receive_cq->poll(1, &wc) == 0) continue;
            // Memory that could not be moved is copied as it is sent.
            EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
            EXPECT_EQ(std::count(b.memory.begin(), b.memory.begin() + kBytes, 0xee), 0)
                << "given up by " << give_up;
        }
        EXPECT_EQ(b.qp->state().entry().requests.occupancy(), 0U);
        for (End* end : {&a, &b}) {
            auto* qp = std::exchange(end->qp, nullptr);
            EXPECT_TRUE(qp == nullptr || end->hca->destroy_qp(qp) == 0);
            while (end->send_cq->poll(1, &wc) == 1) {
            }
        }
    }
}

}  // namespace
}  // namespace weir::hca

// SPDX-License-Identifier: Apache-2.0
// Keys and who they admit: memory windows, regions that change, regions without memory; and the
// receive sides that several senders share: XRC and multicast groups.
#include <algorithm>
#include <cerrno>

#include "fixture.h"
#include "hca/engine.h"

namespace weir::hca {
namespace {

constexpr int kBindable = End::kAccess | IBV_ACCESS_MW_BIND;
constexpr unsigned kWindowAccess = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

class WindowTest : public EngineTest {
  protected:
    void SetUp() override {
        EngineTest::SetUp();
        ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
        memory.resize(4096);
        std::uint32_t rkey = 0;
        ASSERT_EQ(
            b.hca->reg_mr(b.pd, memory.data(), memory.size(), address(), kBindable, lkey, rkey), 0);
    }
    void TearDown() override {
        EXPECT_EQ(b.hca->dereg_mr(lkey), 0);
        EngineTest::TearDown();
    }
    [[nodiscard]] std::uint64_t address() const {
        return reinterpret_cast<std::uintptr_t>(memory.data());
    }
    ibv_wc_status bind(std::uint32_t window, std::uint32_t key, std::uint64_t at,
                       std::uint64_t length, unsigned access = kWindowAccess) {
        ibv_mw mw{};
        mw.rkey = window;
        mw.type = IBV_MW_TYPE_2;
        ibv_mr mr{};
        mr.lkey = lkey;
        EXPECT_EQ(b.send(IBV_WR_BIND_MW, {},
                         [&](ibv_send_wr& wr) {
                             wr.bind_mw.mw = &mw;
                             wr.bind_mw.rkey = key;
                             wr.bind_mw.bind_info = {&mr, at, length, access};
                         }),
                  0);
        const auto wc = wait(b.send_cq);
        EXPECT_EQ(wc.opcode, IBV_WC_BIND_MW);
        return wc.status;
    }
    ibv_wc_status write(std::uint32_t key, std::uint64_t to, std::uint32_t length = 8) {
        EXPECT_EQ(a.send(IBV_WR_RDMA_WRITE, {a.piece(0, length)},
                         [&](ibv_send_wr& wr) {
                             wr.wr.rdma.rkey = key;
                             wr.wr.rdma.remote_addr = to;
                         }),
                  0);
        return wait(a.send_cq).status;
    }
    std::vector<std::uint8_t> memory;
    std::uint32_t lkey = 0;
};

TEST_F(WindowTest, AdmitsPeersToItsPartOnly) {
    std::uint32_t window = 0;
    ASSERT_EQ(b.hca->alloc_mw(b.pd, IBV_MW_TYPE_2, window), 0);
    const auto key = ibv_inc_rkey(window);
    ASSERT_EQ(bind(window, key, address() + 64, 64), IBV_WC_SUCCESS);
    a.memory.at(0) = 77;
    EXPECT_EQ(write(key, address() + 64), IBV_WC_SUCCESS);
    EXPECT_EQ(memory.at(64), 77);
    EXPECT_EQ(b.hca->dereg_mr(lkey), EBUSY) << "a window is bound to it";
    EXPECT_EQ(write(key, address() + 121), IBV_WC_REM_ACCESS_ERR) << "beyond its end";
    EXPECT_EQ(b.hca->dealloc_mw(window), 0);
    EXPECT_EQ(b.hca->dealloc_mw(window), EINVAL);
}

TEST_F(WindowTest, ZeroBasedAddressesBeginAtItsFirstByte) {
    std::uint32_t window = 0;
    ASSERT_EQ(b.hca->alloc_mw(b.pd, IBV_MW_TYPE_2, window), 0);
    ASSERT_EQ(bind(window, window, address() + 100, 8, kWindowAccess | IBV_ACCESS_ZERO_BASED),
              IBV_WC_SUCCESS);
    a.memory.at(0) = 78;
    EXPECT_EQ(write(window, 0), IBV_WC_SUCCESS);
    EXPECT_EQ(memory.at(100), 78);
    EXPECT_EQ(b.hca->dealloc_mw(window), 0);
}

TEST_F(WindowTest, GrantsNoMoreThanItWasAskedTo) {
    std::uint32_t window = 0;
    ASSERT_EQ(b.hca->alloc_mw(b.pd, IBV_MW_TYPE_2, window), 0);
    ASSERT_EQ(bind(window, window, address(), 64, IBV_ACCESS_REMOTE_READ), IBV_WC_SUCCESS);
    EXPECT_EQ(write(window, address()), IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(b.hca->dealloc_mw(window), 0);
}

// IBTA 10.6.7.2.4: a type 2 window is its QP's own, whatever else shares the domain.
TEST_F(WindowTest, IsForThePeerOfItsOwnQpAlone) {
    std::uint32_t window = 0;
    ASSERT_EQ(b.hca->alloc_mw(b.pd, IBV_MW_TYPE_2, window), 0);
    ASSERT_EQ(bind(window, window, address(), 64), IBV_WC_SUCCESS);
    auto* const bound_a = a.qp;
    auto* const bound_b = b.qp;
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    EXPECT_EQ(write(window, address()), IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(a.hca->destroy_qp(a.qp), 0);
    EXPECT_EQ(b.hca->destroy_qp(b.qp), 0);
    a.qp = bound_a;
    b.qp = bound_b;
    EXPECT_EQ(write(window, address()), IBV_WC_SUCCESS);
    EXPECT_EQ(b.hca->dealloc_mw(window), 0);
}

TEST_F(WindowTest, EndsByItsOwnersInvalidation) {
    std::uint32_t window = 0;
    ASSERT_EQ(b.hca->alloc_mw(b.pd, IBV_MW_TYPE_2, window), 0);
    ASSERT_EQ(bind(window, window, address(), 64), IBV_WC_SUCCESS);
    EXPECT_EQ(write(window, address()), IBV_WC_SUCCESS);
    ASSERT_EQ(b.send(IBV_WR_LOCAL_INV, {}, [&](ibv_send_wr& wr) { wr.invalidate_rkey = window; }),
              0);
    const auto wc = wait(b.send_cq);
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.opcode, IBV_WC_LOCAL_INV);
    // Free again, it takes the next key, and the old one admits nobody.
    const auto next = ibv_inc_rkey(window);
    ASSERT_EQ(bind(window, next, address(), 64), IBV_WC_SUCCESS);
    EXPECT_EQ(write(next, address()), IBV_WC_SUCCESS);
    EXPECT_EQ(write(window, address()), IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(b.hca->dealloc_mw(window), 0);
}

TEST_F(WindowTest, EndsByAPeersSend) {
    std::uint32_t window = 0;
    ASSERT_EQ(b.hca->alloc_mw(b.pd, IBV_MW_TYPE_2, window), 0);
    ASSERT_EQ(bind(window, window, address(), 64), IBV_WC_SUCCESS);
    ASSERT_EQ(b.receive({b.piece(0, 8)}), 0);
    ASSERT_EQ(a.send(IBV_WR_SEND_WITH_INV, {a.piece(0, 8)},
                     [&](ibv_send_wr& wr) { wr.invalidate_rkey = window; }),
              0);
    const auto wc = wait(b.receive_cq);
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.wc_flags, static_cast<unsigned>(IBV_WC_WITH_INV));
    EXPECT_EQ(wc.invalidated_rkey, window);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
    EXPECT_EQ(write(window, address()), IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(b.hca->dealloc_mw(window), 0);
}

TEST_F(WindowTest, ASendThatInvalidatesAWrongKeyBreaksBothSides) {
    ASSERT_EQ(b.receive({b.piece(0, 8)}), 0);
    ASSERT_EQ(a.send(IBV_WR_SEND_WITH_INV, {a.piece(0, 8)},
                     [&](ibv_send_wr& wr) { wr.invalidate_rkey = b.rkey; }),
              0);
    EXPECT_EQ(wait(b.receive_cq).status, IBV_WC_REM_INV_REQ_ERR);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_REM_OP_ERR);
    EXPECT_EQ(b.qp->current_state(), IBV_QPS_ERR);
}

TEST_F(WindowTest, WrongBindsEndInAnError) {
    std::uint32_t window = 0;
    ASSERT_EQ(b.hca->alloc_mw(b.pd, IBV_MW_TYPE_2, window), 0);
    EXPECT_EQ(bind(window, window + 0x100, address(), 64), IBV_WC_MW_BIND_ERR) << "another's key";
    EXPECT_EQ(b.qp->current_state(), IBV_QPS_ERR);
    EXPECT_EQ(bind(window, window, address(), 64), IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(b.hca->dealloc_mw(window), 0);
}

TEST_F(WindowTest, BindsNothingBeyondItsRegion) {
    std::uint32_t window = 0;
    ASSERT_EQ(b.hca->alloc_mw(b.pd, IBV_MW_TYPE_2, window), 0);
    EXPECT_EQ(bind(window, window, address() + 4000, 97), IBV_WC_MW_BIND_ERR);
    EXPECT_EQ(b.hca->dealloc_mw(window), 0);
}

TEST_F(WindowTest, ABoundOneIsNotBoundAgain) {
    std::uint32_t window = 0;
    ASSERT_EQ(b.hca->alloc_mw(b.pd, IBV_MW_TYPE_2, window), 0);
    ASSERT_EQ(bind(window, window, address(), 64), IBV_WC_SUCCESS);
    EXPECT_EQ(bind(window, ibv_inc_rkey(window), address(), 64), IBV_WC_MW_BIND_ERR);
    EXPECT_EQ(b.hca->dealloc_mw(window), 0);
}

TEST_F(WindowTest, AWindowsKeyIsNoKeyOfLocalBuffers) {
    std::uint32_t window = 0;
    ASSERT_EQ(b.hca->alloc_mw(b.pd, IBV_MW_TYPE_2, window), 0);
    ASSERT_EQ(bind(window, window, address(), 64), IBV_WC_SUCCESS);
    ASSERT_EQ(b.send(IBV_WR_SEND, {ibv_sge{address(), 8, window}}, [](ibv_send_wr&) {}), 0);
    EXPECT_EQ(wait(b.send_cq).status, IBV_WC_LOC_PROT_ERR);
    EXPECT_EQ(b.hca->dealloc_mw(window), 0);
}

TEST_F(WindowTest, LocalWorkKeepsItsPlaceAmongRequests) {
    std::uint32_t window = 0;
    ASSERT_EQ(b.hca->alloc_mw(b.pd, IBV_MW_TYPE_2, window), 0);
    ASSERT_EQ(bind(window, window, address(), 64), IBV_WC_SUCCESS);
    ASSERT_EQ(b.send(IBV_WR_RDMA_WRITE, {b.piece(0, 8)}, to(a, 0)), 0);
    ASSERT_EQ(b.send(IBV_WR_LOCAL_INV, {}, [&](ibv_send_wr& wr) { wr.invalidate_rkey = window; }),
              0);
    ASSERT_EQ(b.send(IBV_WR_RDMA_READ, {b.piece(0, 8)}, to(a, 0)), 0);
    for (const auto opcode : {IBV_WC_RDMA_WRITE, IBV_WC_LOCAL_INV, IBV_WC_RDMA_READ}) {
        const auto wc = wait(b.send_cq);
        EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
        EXPECT_EQ(wc.opcode, opcode);
    }
    EXPECT_EQ(b.hca->dealloc_mw(window), 0);
}

TEST_F(WindowTest, ARegionChangesUnderItsKey) {
    std::vector<std::uint8_t> other(4096);
    const auto other_address = reinterpret_cast<std::uintptr_t>(other.data());
    Hca::MrChange change{
        IBV_REREG_MR_CHANGE_TRANSLATION, 0, other.data(), other.size(), other_address, 0};
    a.memory.at(0) = 79;
    EXPECT_EQ(write(lkey, address()), IBV_WC_SUCCESS);
    ASSERT_EQ(b.hca->rereg_mr(lkey, change), 0);
    a.memory.at(0) = 80;
    EXPECT_EQ(write(lkey, other_address), IBV_WC_SUCCESS);
    EXPECT_EQ(other.at(0), 80);
    EXPECT_EQ(memory.at(0), 79);
    change.flags = IBV_REREG_MR_CHANGE_ACCESS;
    change.access = IBV_ACCESS_REMOTE_WRITE;
    EXPECT_EQ(b.hca->rereg_mr(lkey, change), EINVAL) << "no local write";
    EXPECT_EQ(write(lkey, other_address), IBV_WC_SUCCESS) << "and so all is as it was";
    change.access = IBV_ACCESS_LOCAL_WRITE;
    ASSERT_EQ(b.hca->rereg_mr(lkey, change), 0);
    EXPECT_EQ(write(lkey, other_address), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(WindowTest, ARegionWithoutMemoryReadsAsZerosAndForgetsWrites) {
    std::uint32_t none = 0;
    ASSERT_EQ(a.hca->alloc_null_mr(a.pd, none), 0);
    std::fill(b.memory.begin(), b.memory.begin() + 100'000, 0xaa);
    for (const std::uint32_t size : {8U, 1000U, 100'000U}) {
        ASSERT_EQ(a.send(IBV_WR_RDMA_WRITE, {ibv_sge{0x1234, size, none}}, to(b, 0)), 0);
        EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
        EXPECT_EQ(std::count(b.memory.begin(), b.memory.begin() + size, 0), size);
        ASSERT_EQ(a.send(IBV_WR_RDMA_READ, {ibv_sge{0, size, none}}, to(b, 0)), 0);
        EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
    }
    EXPECT_EQ(a.hca->dereg_mr(none), 0);
}

class GroupTest : public EngineTest {
  protected:
    void SetUp() override {
        EngineTest::SetUp();
        ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_UD));
        group.raw[0] = 0xff;
        group.raw[1] = 0x12;
        group.raw[15] = 9;
    }
    void send_to_group(std::uint32_t length) {
        AddressHandle handle{};
        handle.attr.is_global = 1;
        handle.attr.grh.dgid = group;
        handle.attr.dlid = kLid;
        handle.attr.port_num = 1;
        ASSERT_EQ(a.hca->resolve_ah(handle), 0);
        ASSERT_EQ(a.send(IBV_WR_SEND, {a.piece(0, length)},
                         [&](ibv_send_wr& wr) {
                             wr.wr.ud = {&handle.base, 0xffffff, 0x1111};
                         }),
                  0);
        EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
    }
    static constexpr std::uint16_t kLid = 0xc001;
    ibv_gid group{};
};

TEST_F(GroupTest, EveryMemberGetsACopy) {
    ASSERT_EQ(a.qp->attach(group, kLid), 0);
    ASSERT_EQ(b.qp->attach(group, kLid), 0);
    ASSERT_EQ(b.qp->attach(group, kLid), 0) << "twice is once";
    for (const std::uint32_t size : {8U, 2000U}) {
        std::fill(a.memory.begin(), a.memory.begin() + size, size & 0xffU);
        for (End* end : {&a, &b}) {
            ASSERT_EQ(end->receive({end->piece(4096, 4096)}), 0);
            ASSERT_EQ(end->receive({end->piece(8192, 4096)}), 0);
        }
        ASSERT_NO_FATAL_FAILURE(send_to_group(size));
        for (End* end : {&a, &b}) {
            const auto wc = wait(end->receive_cq);
            EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
            EXPECT_EQ(wc.byte_len, size + 40);
            EXPECT_EQ(wc.wc_flags, static_cast<unsigned>(IBV_WC_GRH));
            EXPECT_EQ(wc.src_qp, a.qp->number());
            EXPECT_EQ(std::memcmp(end->memory.data() + 4096 + 24, group.raw, 16), 0);
            EXPECT_EQ(end->memory.at(4096 + 40 + size - 1), size & 0xffU);
            ibv_wc more{};
            EXPECT_EQ(end->receive_cq->poll(1, &more), 0) << "one copy each";
        }
        // What is left of the receives is taken by the next.
        ASSERT_NO_FATAL_FAILURE(send_to_group(size));
        for (End* end : {&a, &b})
            EXPECT_EQ(wait(end->receive_cq).status, IBV_WC_SUCCESS);
    }
    EXPECT_EQ(b.hca->destroy_qp(b.qp), EBUSY) << "it belongs to a group";
    ASSERT_EQ(b.qp->detach(group, kLid), 0);
    EXPECT_EQ(b.qp->detach(group, kLid), EINVAL);
    ASSERT_EQ(a.qp->detach(group, kLid), 0);
    ASSERT_NO_FATAL_FAILURE(send_to_group(8));  // to nobody
}

TEST_F(GroupTest, WhatIsNoGroupIsRefused) {
    ibv_gid unicast{};
    unicast.raw[0] = 0xfe;
    EXPECT_EQ(a.qp->attach(unicast, kLid), EINVAL);
    EXPECT_EQ(a.qp->attach(group, 1), EINVAL);
    EXPECT_EQ(a.qp->attach(group, 0xffff), EINVAL);
}

TEST_F(EngineTest, TwoWritesByABadKeyEndAtOnce) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    const auto bad = [](ibv_send_wr& wr) { wr.wr.rdma.rkey = 0xdead00; };
    ASSERT_EQ(a.send(IBV_WR_RDMA_WRITE, {a.piece(0, 8)}, bad), 0);
    ASSERT_EQ(a.send(IBV_WR_RDMA_WRITE, {a.piece(0, 8)}, bad), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(EngineTest, WhatMovesNothingNeedsNoKey) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    const auto bad = [](ibv_send_wr& wr) { wr.wr.rdma.rkey = 0xdead00; };
    for (const auto opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
        ASSERT_EQ(a.send(opcode, {}, bad), 0);
        EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
        ASSERT_EQ(a.send(opcode, {ibv_sge{0x10, 0, 0xdead00}}, bad), 0);
        EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
    }
}

TEST_F(EngineTest, KeysOfAnotherDomainAdmitNobody) {
    for (const bool remote : {true, false}) {
        ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
        End& owner = remote ? b : a;
        const auto other = owner.hca->alloc_pd();
        std::uint32_t lkey = 0;
        std::uint32_t rkey = 0;
        ASSERT_EQ(owner.hca->reg_mr(other, owner.memory.data(), 64,
                                    reinterpret_cast<std::uintptr_t>(owner.memory.data()),
                                    End::kAccess, lkey, rkey),
                  0);
        ibv_sge sge = a.piece(0, 8);
        if (!remote) sge.lkey = lkey;
        ASSERT_EQ(a.send(IBV_WR_RDMA_WRITE, {sge},
                         [&](ibv_send_wr& wr) {
                             to(b, 0)(wr);
                             if (remote) wr.wr.rdma.rkey = rkey;
                         }),
                  0);
        EXPECT_EQ(wait(a.send_cq).status, remote ? IBV_WC_REM_ACCESS_ERR : IBV_WC_LOC_PROT_ERR);
        EXPECT_EQ(owner.hca->dereg_mr(lkey), 0);
        EXPECT_EQ(owner.hca->dealloc_pd(other), 0);
        for (End* end : {&a, &b})
            EXPECT_EQ(end->hca->destroy_qp(std::exchange(end->qp, nullptr)), 0);
    }
}

TEST_F(EngineTest, ReceiveQueuesGrowAndKeepWhatIsPosted) {
    ibv_srq_attr attr{2, 1, 0};
    SharedReceiveQueue* srq = nullptr;
    ASSERT_EQ(b.hca->create_srq(b.pd, attr, srq), 0);
    const auto receive = [&](std::uint64_t id) {
        ibv_sge sge = b.piece(0, 64);
        ibv_recv_wr wr{};
        wr.wr_id = id;
        wr.sg_list = &sge;
        wr.num_sge = 1;
        ibv_recv_wr* bad = nullptr;
        return srq->post(&wr, &bad);
    };
    EXPECT_EQ(receive(1), 0);
    EXPECT_EQ(receive(2), 0);
    EXPECT_EQ(receive(3), ENOMEM);
    attr.max_wr = 1;
    EXPECT_EQ(srq->modify(attr, IBV_SRQ_MAX_WR), EINVAL) << "two are posted";
    attr.max_wr = 4;
    EXPECT_EQ(srq->modify(attr, IBV_SRQ_MAX_WR), 0);
    EXPECT_EQ(receive(3), 0);
    ASSERT_NO_FATAL_FAILURE(a.create(IBV_QPT_RC));
    ASSERT_NO_FATAL_FAILURE(b.create(IBV_QPT_RC, srq));
    for (End* end : {&a, &b})
        ASSERT_NO_FATAL_FAILURE(end->to_init());
    ASSERT_NO_FATAL_FAILURE(a.to_rtr(b));
    ASSERT_NO_FATAL_FAILURE(b.to_rtr(a));
    for (End* end : {&a, &b})
        ASSERT_NO_FATAL_FAILURE(end->to_rts());
    for (std::uint64_t id = 1; id <= 3; ++id) {
        ASSERT_EQ(a.send(IBV_WR_SEND, {a.piece(0, 8)}, [](ibv_send_wr&) {}), 0);
        EXPECT_EQ(wait(b.receive_cq).wr_id, id) << "in order";
        EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
    }
    EXPECT_EQ(b.hca->destroy_qp(b.qp), 0);
    b.qp = nullptr;
    EXPECT_EQ(b.hca->destroy_srq(srq), 0);
}

// A thread that waits for a lock writes to its word. On a page that moves meanwhile that is lost,
// and the thread sleeps for ever: so the lock shares no page with what a program may register.
TEST_F(EngineTest, TheLockThatThreadsWaitForLiesOnPagesOfItsOwn) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto* attachment = a.hca->state().attachment.get();
    const auto at = reinterpret_cast<std::uintptr_t>(attachment);
    EXPECT_EQ(at % page, 0U);
    // And not on the heap: the page before it is no heap page that grew into it.
    const auto* small = new char;
    EXPECT_NE(reinterpret_cast<std::uintptr_t>(small) / page, at / page);
    delete small;
}

}  // namespace
}  // namespace weir::hca

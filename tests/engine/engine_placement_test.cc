// SPDX-License-Identifier: Apache-2.0
// The memory placement extensions (IBTA, annex A19): atomic writes and flushes.
#include <thread>

#include "fixture.h"
#include "hca/newer_verbs.h"

namespace weir::hca {
namespace {

class PlacementTest : public EngineTest {
  protected:
    /// A region of b's with these rights, beside the one of the fixture.
    void grant(int access) { ASSERT_EQ(register_b(access), 0); }
    int register_b(int access) {
        return b.hca->reg_mr(b.pd, b.memory.data(), 4096,
                             reinterpret_cast<std::uintptr_t>(b.memory.data()), access, lkey_,
                             rkey_);
    }
    void allow_at_b(int access) const {
        ibv_qp_attr attr{};
        attr.qp_access_flags = static_cast<unsigned>(access);
        ASSERT_EQ(b.qp->modify(attr, IBV_QP_ACCESS_FLAGS), 0);
    }
    int flush(std::size_t offset, std::uint64_t length, std::uint8_t type, std::uint8_t level,
              std::uint32_t rkey) const {
        ibv_send_wr wr{};
        wr.wr_id = 43;
        wr.opcode = static_cast<ibv_wr_opcode>(kWrFlush);
        wr.send_flags = IBV_SEND_SIGNALED;
        set_flush(wr, {rkey, reinterpret_cast<std::uintptr_t>(b.memory.data()) + offset, length,
                       type, level});
        return a.qp->post_send_whole(&wr);
    }
    int write_word(std::size_t offset, std::uint64_t value) {
        std::memcpy(a.memory.data(), &value, 8);
        return a.send(IBV_WR_ATOMIC_WRITE, {a.piece(0, 8)}, to(b, offset));
    }
    [[nodiscard]] std::uint64_t word_at_b(std::size_t offset) const {
        std::uint64_t value = 0;
        std::memcpy(&value, b.memory.data() + offset, 8);
        return value;
    }
    void TearDown() override {
        if (lkey_ != 0) {
            EXPECT_EQ(b.hca->dereg_mr(lkey_), 0);
        }
        EngineTest::TearDown();
    }
    std::uint32_t lkey_ = 0;
    std::uint32_t rkey_ = 0;
};

constexpr int kWithFlush = End::kAccess | kAccessFlushGlobal;

TEST_F(PlacementTest, AtomicWritesArriveInOrderAfterWritesBeforeThem) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    for (std::uint64_t i = 1; i <= 200; ++i) {
        std::memset(a.memory.data() + 64, static_cast<int>(i), 3000);
        ASSERT_EQ(a.send(IBV_WR_RDMA_WRITE, {a.piece(64, 3000)}, to(b, 64)), 0);
        ASSERT_EQ(write_word(8, i), 0);
        EXPECT_EQ(wait(a.send_cq).opcode, IBV_WC_RDMA_WRITE);
        const auto wc = wait(a.send_cq);
        ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
        EXPECT_EQ(wc.opcode, IBV_WC_ATOMIC_WRITE);
        ASSERT_EQ(word_at_b(8), i);
        ASSERT_EQ(b.memory[3063], static_cast<std::uint8_t>(i));
        // A thread sanitizer sees the order of locks, not that of messages.
        ibv_wc none{};
        ASSERT_EQ(b.receive_cq->poll(1, &none), 0);
    }
}

TEST_F(PlacementTest, AtomicWritesWantAlignmentRightsAndAKey) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    EXPECT_EQ(a.send(IBV_WR_ATOMIC_WRITE, {a.piece(0, 4)}, to(b, 0)), EINVAL);
    EXPECT_EQ(a.send(IBV_WR_ATOMIC_WRITE, {a.piece(0, 4), a.piece(4, 4)}, to(b, 0)), EINVAL);
    ASSERT_EQ(write_word(4, 1), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_REM_INV_REQ_ERR);
    EXPECT_EQ(word_at_b(4), 0U);
}

TEST_F(PlacementTest, AtomicWritesNeedTheRightToWrite) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    ASSERT_NO_FATAL_FAILURE(grant(IBV_ACCESS_REMOTE_READ));
    ASSERT_EQ(a.send(IBV_WR_ATOMIC_WRITE, {a.piece(0, 8)},
                     [&](ibv_send_wr& wr) {
                         to(b, 0)(wr);
                         wr.wr.rdma.rkey = rkey_;
                     }),
              0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(PlacementTest, AFlushEndsWhenWhatWasWrittenIsThere) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    ASSERT_NO_FATAL_FAILURE(grant(kWithFlush));
    ASSERT_NO_FATAL_FAILURE(allow_at_b(kWithFlush));
    for (const std::uint8_t level : {kFlushRange, kFlushRegion}) {
        a.memory[0] = static_cast<std::uint8_t>(level + 1);
        ASSERT_EQ(a.send(IBV_WR_RDMA_WRITE, {a.piece(0, 1)},
                         [&](ibv_send_wr& wr) {
                             to(b, 100)(wr);
                             wr.send_flags = 0;
                         }),
                  0);
        // Of a whole region, address and length mean nothing.
        ASSERT_EQ(flush(100, level == kFlushRange ? 1 : 1U << 30U, kFlushGlobal, level, rkey_), 0);
        const auto wc = wait(a.send_cq);
        ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
        EXPECT_EQ(wc.opcode, kWcFlush);
        EXPECT_EQ(wc.wr_id, 43U);
        EXPECT_EQ(b.memory[100], level + 1);
    }
    EXPECT_EQ(flush(0, 1, 0, kFlushRange, rkey_), EINVAL) << "of no kind";
    EXPECT_EQ(flush(0, 1, 4, kFlushRange, rkey_), EINVAL) << "of an unknown kind";
    EXPECT_EQ(flush(0, 1, kFlushGlobal, 2, rkey_), EINVAL);
}

TEST_F(PlacementTest, AFlushNeedsItsRightInTheRegion) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    ASSERT_NO_FATAL_FAILURE(allow_at_b(kWithFlush));
    ASSERT_EQ(flush(0, 1, kFlushGlobal, kFlushRange, b.rkey), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(PlacementTest, AFlushNeedsItsRightAtTheQueuePair) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    ASSERT_NO_FATAL_FAILURE(grant(kWithFlush));
    ASSERT_EQ(flush(0, 1, kFlushGlobal, kFlushRange, rkey_), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(PlacementTest, AFlushStaysInItsRegionAndPersistsNowhere) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    ASSERT_NO_FATAL_FAILURE(grant(kWithFlush));
    ASSERT_NO_FATAL_FAILURE(allow_at_b(kWithFlush | kAccessFlushPersistent));
    ASSERT_EQ(flush(0, 4096, kFlushGlobal, kFlushRange, rkey_), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
    ASSERT_EQ(flush(0, 8, kFlushGlobal | kFlushPersistent, kFlushRange, rkey_), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(PlacementTest, AFlushBeyondTheRegionIsRefused) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    ASSERT_NO_FATAL_FAILURE(grant(kWithFlush));
    ASSERT_NO_FATAL_FAILURE(allow_at_b(kWithFlush));
    ASSERT_EQ(flush(1, 4096, kFlushGlobal, kFlushRange, rkey_), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(PlacementTest, OtherServicesAndTheOldVerbHaveNone) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_UC));
    EXPECT_EQ(write_word(0, 1), EINVAL);
    EXPECT_EQ(flush(0, 1, kFlushGlobal, kFlushRange, b.rkey), EINVAL);
    EXPECT_EQ(a.send(static_cast<ibv_wr_opcode>(kWrFlush), {}, to(b, 0)), EOPNOTSUPP);
}

TEST_F(PlacementTest, TheDeviceSaysWhatItHas) {
    ibv_device_attr_ex attr{};
    ASSERT_EQ(a.hca->query_device(attr), 0);
    EXPECT_NE(attr.device_cap_flags_ex & 1ULL << 38U, 0U) << "flush global";
    EXPECT_EQ(attr.device_cap_flags_ex & 1ULL << 39U, 0U) << "flush persistent";
    EXPECT_NE(attr.device_cap_flags_ex & 1ULL << 40U, 0U) << "atomic write";
}

}  // namespace
}  // namespace weir::hca

// SPDX-License-Identifier: Apache-2.0
// Goal: whatever a program does to its handles, the control path answers EINVAL and touches nothing
// it should not.
#include "handles.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "verbs_fixture.h"

namespace weir::ibverbs {
namespace {

using HandleTableTest = Verbs;

TEST_F(HandleTableTest, SecondDestructionIsInvalid) {
    char byte = 0;
    ibv_mr* mr = ibv_reg_mr(pd, &byte, 1, IBV_ACCESS_LOCAL_WRITE);
    ASSERT_NE(mr, nullptr);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    EXPECT_EQ(ibv_dereg_mr(mr), EINVAL);
}

TEST_F(HandleTableTest, NullAndForeignPointersAreInvalid) {
    EXPECT_EQ(ibv_dealloc_pd(nullptr), EINVAL);
    EXPECT_EQ(ibv_destroy_qp(nullptr), EINVAL);
    EXPECT_EQ(ibv_destroy_cq(reinterpret_cast<ibv_cq*>(std::uintptr_t{8})), EINVAL);
    EXPECT_EQ(ibv_destroy_srq(reinterpret_cast<ibv_srq*>(pd)), EINVAL);
    EXPECT_EQ(ibv_destroy_ah(nullptr), EINVAL);
    EXPECT_EQ(ibv_destroy_comp_channel(nullptr), EINVAL);
    EXPECT_EQ(ibv_close_device(nullptr), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(ibv_alloc_pd(nullptr), nullptr);
    EXPECT_EQ(ibv_create_cq(nullptr, 1, nullptr, nullptr, 0), nullptr);
    EXPECT_EQ(ibv_create_qp(pd, nullptr), nullptr);
    EXPECT_EQ(errno, EINVAL);
    ibv_ack_cq_events(nullptr, 1);
    ibv_ack_async_event(nullptr);
}

TEST_F(HandleTableTest, ACopiedObjectIsNotTheObject) {
    ibv_pd copy = *pd;
    EXPECT_EQ(ibv_dealloc_pd(&copy), EINVAL);
}

TEST_F(HandleTableTest, DamagedHandleOrContextIsInvalidUntilRepaired) {
    const std::uint32_t handle = cq->handle;
    cq->handle = 0xdeadbeef;
    EXPECT_EQ(ibv_destroy_cq(cq), EINVAL);
    EXPECT_EQ(make_qp(), nullptr);
    EXPECT_EQ(errno, EINVAL);
    cq->handle = handle;
    pd->context = nullptr;
    EXPECT_EQ(ibv_dealloc_pd(pd), EINVAL);
    pd->context = context;
}

TEST_F(HandleTableTest, WhatIsInUseLivesOn) {
    fake::fake().next_error = EBUSY;
    EXPECT_EQ(ibv_destroy_cq(cq), EBUSY);
    EXPECT_EQ(ibv_resize_cq(cq, 31), 0);
    fake::fake().next_error = EBUSY;
    EXPECT_EQ(ibv_dealloc_pd(pd), EBUSY);
}

TEST_F(HandleTableTest, OfManyThreadsOneDestroys) {
    char byte = 0;
    for (int round = 0; round < 50; ++round) {
        ibv_mr* mr = ibv_reg_mr(pd, &byte, 1, IBV_ACCESS_LOCAL_WRITE);
        std::atomic<int> done{0};
        std::vector<std::thread> threads;
        for (int i = 0; i < 4; ++i)
            threads.emplace_back([&] { done += ibv_dereg_mr(mr) == 0 ? 1 : 0; });
        for (auto& thread : threads)
            thread.join();
        EXPECT_EQ(done, 1);
    }
}

TEST_F(HandleTableTest, ClosingBuriesWhatWasLeftAndItStaysHarmless) {
    ibv_context* other = ibv_open_device(device);
    ASSERT_NE(other, nullptr);
    ibv_cq* left = ibv_create_cq(other, 1, nullptr, nullptr, 0);
    ASSERT_NE(left, nullptr);
    EXPECT_EQ(ibv_close_device(other), 0);
    ibv_wc completion;
    EXPECT_EQ(ibv_poll_cq(left, 1, &completion), -1);
    EXPECT_EQ(ibv_req_notify_cq(left, 0), EINVAL);
    EXPECT_EQ(ibv_destroy_cq(left), EINVAL);
    EXPECT_EQ(ibv_close_device(other), -1);
    EXPECT_EQ(ibv_alloc_pd(other), nullptr);
    --fake::fake().live_count;  // The fake engine does not clean up after itself.
}

TEST_F(HandleTableTest, AChildOwnsNothingOfItsParentButMayStartAnew) {
    const pid_t child = fork();
    if (child == 0) {
        const bool refused = ibv_dealloc_pd(pd) == EINVAL && ibv_alloc_pd(context) == nullptr;
        ibv_context* own = ibv_open_device(device);
        ibv_pd* own_pd = own == nullptr ? nullptr : ibv_alloc_pd(own);
        _exit(refused && own_pd != nullptr && ibv_dealloc_pd(own_pd) == 0 ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace weir::ibverbs

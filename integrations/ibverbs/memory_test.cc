// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "verbs_fixture.h"

namespace weir::ibverbs {
namespace {

using MemoryTest = Verbs;

constexpr int kAll = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                     IBV_ACCESS_REMOTE_ATOMIC;

TEST_F(MemoryTest, TheStructSaysWhatWasRegistered) {
    char bytes[64];
    ibv_mr* mr = ibv_reg_mr(pd, bytes, sizeof bytes, kAll);
    ASSERT_NE(mr, nullptr);
    EXPECT_EQ(mr->addr, bytes);
    EXPECT_EQ(mr->length, sizeof bytes);
    EXPECT_EQ(mr->pd, pd);
    EXPECT_EQ(mr->context, context);
    EXPECT_NE(mr->lkey, 0U);
    EXPECT_EQ(fake::fake().last_iova, reinterpret_cast<std::uintptr_t>(bytes));
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(MemoryTest, TheOtherAddressAndOptionalAccess) {
    char bytes[64];
    ibv_mr* mr = ibv_reg_mr_iova(pd, bytes, sizeof bytes, 0x1000, kAll);
    ASSERT_NE(mr, nullptr);
    EXPECT_EQ(fake::fake().last_iova, 0x1000U);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    const int access = kAll | IBV_ACCESS_RELAXED_ORDERING;
    mr = ibv_reg_mr_iova2(pd, bytes, sizeof bytes, 0x2000, static_cast<unsigned>(access));
    ASSERT_NE(mr, nullptr);
    EXPECT_EQ(fake::fake().last_access, kAll) << "the engine may ignore what is optional";
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    mr = ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED);
    ASSERT_NE(mr, nullptr);
    EXPECT_EQ(fake::fake().last_iova, 0U);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(MemoryTest, AccessIsChecked) {
    char bytes[64];
    EXPECT_EQ(ibv_reg_mr(pd, bytes, 1, IBV_ACCESS_REMOTE_WRITE), nullptr);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(ibv_reg_mr(pd, bytes, 1, IBV_ACCESS_REMOTE_ATOMIC), nullptr);
    EXPECT_EQ(ibv_reg_mr(pd, bytes, 1, 1 << 10), nullptr);
    EXPECT_EQ(errno, EINVAL);
    ibv_mr* mr = ibv_reg_mr(pd, bytes, 1, IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB);
    ASSERT_NE(mr, nullptr);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(MemoryTest, TheEnginesErrorIsPassedOn) {
    char byte = 0;
    fake::fake().next_error = EFAULT;
    EXPECT_EQ(ibv_reg_mr(pd, &byte, 1, 0), nullptr);
    EXPECT_EQ(errno, EFAULT);
}

TEST_F(MemoryTest, ReregistrationChangesWhatIsAskedFor) {
    char bytes[8] = {};
    ibv_mr* mr = ibv_reg_mr(pd, bytes, 8, 0);
    ASSERT_NE(mr, nullptr);
    const auto key = mr->lkey;
    EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, bytes + 1, 4, 0), 0);
    EXPECT_EQ(mr->addr, bytes + 1);
    EXPECT_EQ(mr->length, 4U);
    EXPECT_EQ(fake::fake().last_iova, reinterpret_cast<std::uintptr_t>(bytes + 1));
    EXPECT_EQ(mr->lkey, key) << "peers may know it";
    EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, kAll), 0);
    EXPECT_EQ(fake::fake().last_access, kAll);
    ibv_pd* other = ibv_alloc_pd(context);
    EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, other, nullptr, 0, 0), 0);
    EXPECT_EQ(mr->pd, other);
    EXPECT_EQ(ibv_dealloc_pd(other), 0);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(MemoryTest, ReregistrationThatFailsLeavesTheOldRegion) {
    char byte = 0;
    ibv_mr* mr = ibv_reg_mr(pd, &byte, 1, 0);
    ASSERT_NE(mr, nullptr);
    const ibv_mr before = *mr;
    const auto refused = [&](int flags, ibv_pd* to, void* address, std::size_t length, int access) {
        EXPECT_EQ(ibv_rereg_mr(mr, flags, to, address, length, access), IBV_REREG_MR_ERR_INPUT);
        EXPECT_EQ(errno, EINVAL);
    };
    refused(0, pd, &byte, 1, 0);
    refused(8, pd, &byte, 1, 0);
    refused(IBV_REREG_MR_CHANGE_TRANSLATION, pd, nullptr, 1, 0);
    refused(IBV_REREG_MR_CHANGE_TRANSLATION, pd, &byte, 0, 0);
    refused(IBV_REREG_MR_CHANGE_PD, nullptr, &byte, 1, 0);
    refused(IBV_REREG_MR_CHANGE_ACCESS, pd, &byte, 1, IBV_ACCESS_REMOTE_WRITE);
    fake::fake().next_error = EBUSY;
    EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, pd, &byte, 1, kAll),
              IBV_REREG_MR_ERR_CMD);
    EXPECT_EQ(errno, EBUSY);
    EXPECT_EQ(std::memcmp(mr, &before, sizeof before), 0);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST(Fork, IsAlwaysProvidedFor) {
    EXPECT_EQ(ibv_fork_init(), 0);
    EXPECT_EQ(ibv_is_fork_initialized(), IBV_FORK_ENABLED);
}

}  // namespace
}  // namespace weir::ibverbs

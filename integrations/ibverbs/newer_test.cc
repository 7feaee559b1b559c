// SPDX-License-Identifier: Apache-2.0
// What programs of newer headers see: structures as those headers lay them out, written down here a
// second time, and the functions that they added.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "hca/newer_verbs.h"
#include "newer_abi.h"
#include "verbs_fixture.h"

namespace weir::ibverbs {
namespace {

/// ibv_port_attr of 59 and later, field by field.
struct PortAttr59 {
    std::uint32_t state, max_mtu, active_mtu;
    std::int32_t gid_tbl_len;
    std::uint32_t port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
    std::uint16_t pkey_tbl_len, lid, sm_lid;
    std::uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width,
        active_speed, phys_state, link_layer, flags;
    std::uint16_t port_cap_flags2;
    std::uint32_t active_speed_ex;
};
static_assert(sizeof(PortAttr59) == 56);

using FlushOperation = void (*)(ibv_qp_ex*, std::uint32_t, std::uint64_t, std::size_t, std::uint8_t,
                                std::uint8_t);

/// ibv_qp_ex of 46 and later: one operation more.
FlushOperation flush_of(ibv_qp_ex* qp) {
    FlushOperation flush = nullptr;
    std::memcpy(&flush, reinterpret_cast<const std::byte*>(qp) + sizeof(ibv_qp_ex), sizeof flush);
    return flush;
}

class NewerTest : public Verbs {
  protected:
    ibv_qp* make_extended(std::uint64_t operations) {
        ibv_qp_init_attr_ex init{};
        init.send_cq = init.recv_cq = cq;
        init.qp_type = IBV_QPT_RC;
        init.pd = pd;
        init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        init.send_ops_flags = operations;
        init.cap = {64, 64, 2, 2, 32};
        return ibv_create_qp_ex(context, &init);
    }
    template <class Attr>
    ibv_mr* register_with(Attr tweak) {
        ibv_mr_init_attr attr{};
        attr.length = sizeof bytes;
        attr.access = IBV_ACCESS_LOCAL_WRITE;
        tweak(attr);
        return ibv_reg_mr_ex(pd, &attr);
    }
    /// It was refused, and so.
    static void expect_error(const ibv_mr* mr, int error) {
        EXPECT_EQ(mr, nullptr);
        EXPECT_EQ(errno, error);
    }
    alignas(64) char bytes[256] = {};
};

TEST_F(NewerTest, ThePortTellsItsSpeedInTheWiderFieldAndInItsOwnCall) {
    PortAttr59 attr{};
    attr.active_speed_ex = 77;
    const auto* verbs = verbs_get_ctx(context);
    auto* as_ours = reinterpret_cast<ibv_port_attr*>(&attr);
    ASSERT_EQ(verbs->query_port(context, 1, as_ours, sizeof attr), 0);
    EXPECT_EQ(attr.active_speed_ex, attr.active_speed);
    attr.active_speed_ex = 77;
    ASSERT_EQ(verbs->query_port(context, 1, as_ours, offsetof(PortAttr59, active_speed_ex)), 0);
    EXPECT_EQ(attr.active_speed_ex, 77U) << "a caller of 44 has no such field";
    std::uint64_t speed = 0;
    ASSERT_EQ(ibv_query_port_speed(context, 1, &speed), 0);
    ibv_port_attr plain{};
    ASSERT_EQ(ibv_query_port(context, 1, &plain), 0);
    const std::uint64_t lanes = plain.active_width == 2 ? 4 : plain.active_width == 1 ? 1 : 0;
    const std::uint64_t lane = plain.active_speed == 64   ? 500
                               : plain.active_speed == 32 ? 250
                               : plain.active_speed == 1  ? 25
                                                          : 0;
    EXPECT_EQ(speed, lane * lanes);
    EXPECT_EQ(ibv_query_port_speed(context, 300, &speed), EINVAL);
    EXPECT_EQ(ibv_query_port_speed(context, 1, nullptr), EINVAL);
}

TEST_F(NewerTest, AtomicWritesCarryTheirEightBytes) {
    ibv_qp* qp = make_extended(IBV_QP_EX_WITH_ATOMIC_WRITE);
    ASSERT_NE(qp, nullptr);
    ibv_qp_ex* ex = ibv_qp_to_qp_ex(qp);
    EXPECT_EQ(flush_of(ex), nullptr) << "was not asked for";
    ibv_wr_start(ex);
    ex->wr_id = 5;
    ex->wr_flags = IBV_SEND_SIGNALED;
    char word[] = "12345678";
    ibv_wr_atomic_write(ex, 7, 0x1000, word);
    word[0] = 'x';  // The program's again.
    EXPECT_EQ(ibv_wr_complete(ex), 0);
    ASSERT_EQ(fake::fake().posted_list.size(), 1U);
    const auto& posted = fake::fake().posted_list[0];
    EXPECT_EQ(posted.wr.opcode, IBV_WR_ATOMIC_WRITE);
    EXPECT_EQ(posted.wr.wr_id, 5U);
    EXPECT_EQ(posted.wr.wr.rdma.rkey, 7U);
    EXPECT_EQ(posted.wr.wr.rdma.remote_addr, 0x1000U);
    EXPECT_EQ(posted.bytes, "12345678");
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

TEST_F(NewerTest, FlushIsTheOperationBehindThoseOf44) {
    constexpr std::uint64_t kWithFlush = 1U << 11U;
    ibv_qp* qp = make_extended(kWithFlush | IBV_QP_EX_WITH_RDMA_WRITE);
    ASSERT_NE(qp, nullptr);
    ibv_qp_ex* ex = ibv_qp_to_qp_ex(qp);
    const auto flush = flush_of(ex);
    ASSERT_NE(flush, nullptr);
    ibv_wr_start(ex);
    ibv_wr_rdma_write(ex, 1, 2);
    ex->wr_id = 6;
    flush(ex, 9, 0x2000, 300, 1, 0);
    EXPECT_EQ(ibv_wr_complete(ex), 0);
    ASSERT_EQ(fake::fake().posted_list.size(), 2U);
    const auto& wr = fake::fake().posted_list[1].wr;
    EXPECT_EQ(static_cast<int>(wr.opcode), 14);
    EXPECT_EQ(wr.wr_id, 6U);
    const auto seen = hca::flush_of(wr);
    EXPECT_EQ(seen.rkey, 9U);
    EXPECT_EQ(seen.address, 0x2000U);
    EXPECT_EQ(seen.length, 300U);
    EXPECT_EQ(seen.type, 1);
    EXPECT_EQ(seen.level, 0);
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

TEST_F(NewerTest, RegionsOfAllKindsByOneCall) {
    ibv_mr* mr = register_with([&](auto& attr) {
        attr.comp_mask = kRegionAddress;
        attr.addr = bytes;
    });
    ASSERT_NE(mr, nullptr);
    EXPECT_EQ(mr->addr, bytes);
    EXPECT_EQ(mr->length, sizeof bytes);
    EXPECT_EQ(fake::fake().last_iova, reinterpret_cast<std::uintptr_t>(bytes));
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    mr = register_with([&](auto& attr) {
        attr.comp_mask = kRegionAddress | kRegionIova;
        attr.addr = bytes;
        attr.iova = 0x4000;
    });
    ASSERT_NE(mr, nullptr);
    EXPECT_EQ(fake::fake().last_iova, 0x4000U);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    const int file = memfd_create("region", MFD_CLOEXEC);
    ASSERT_EQ(ftruncate(file, 4096), 0);
    mr = register_with([&](auto& attr) {
        attr.comp_mask = kRegionFile | kRegionFileOffset | kRegionIova;
        attr.fd = file;
        attr.fd_offset = 128;
        attr.iova = 0x5000;
    });
    ASSERT_NE(mr, nullptr);
    EXPECT_EQ(fake::fake().last_iova, 0x5000U);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    const auto refused = [&](std::uint64_t fields) {
        return register_with([&](auto& attr) {
            attr.comp_mask = fields;
            attr.addr = bytes;
            attr.fd = file;
        });
    };
    expect_error(refused(0), EINVAL);
    expect_error(refused(kRegionFile | kRegionIova), EINVAL);
    expect_error(refused(kRegionFile | kRegionFileOffset | kRegionIova | kRegionAddress), EINVAL);
    expect_error(refused(kRegionAddress | kRegionFileOffset), EINVAL);
    expect_error(refused(kRegionAddress | kRegionBuffer), EINVAL);
    expect_error(refused(kRegionAddress | kRegionHint), EOPNOTSUPP);
    expect_error(refused(kRegionAddress | 1U << 20U), EOPNOTSUPP);
    expect_error(ibv_reg_mr_ex(pd, nullptr), EINVAL);
    close(file);
}

TEST_F(NewerTest, BuffersOfTheLibraryAreRegisteredWithinTheirBounds) {
    ibv_buf* buffer = nullptr;
    auto* memory = static_cast<char*>(ibv_alloc_buf(pd, 5000, &buffer));
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 4096, 0U);
    std::memset(memory, 1, 5000);
    ibv_mr* mr = ibv_reg_buf_mr(pd, buffer, memory + 1000, 4000, IBV_ACCESS_LOCAL_WRITE);
    ASSERT_NE(mr, nullptr);
    EXPECT_EQ(mr->addr, memory + 1000);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    expect_error(ibv_reg_buf_mr(pd, buffer, memory + 1001, 4000, 0), EINVAL);
    expect_error(ibv_reg_buf_mr(pd, buffer, memory - 1, 10, 0), EINVAL);
    ibv_pd* other = ibv_alloc_pd(context);
    expect_error(ibv_reg_buf_mr(other, buffer, memory, 10, 0), EINVAL);
    EXPECT_EQ(ibv_dealloc_pd(other), 0);
    EXPECT_EQ(ibv_export_buf_dmabuf_fd(buffer), -1);
    EXPECT_EQ(errno, ENODATA);
    ibv_free_buf(buffer);
    expect_error(ibv_reg_buf_mr(pd, buffer, memory, 10, 0), EINVAL);
    EXPECT_EQ(ibv_alloc_buf(pd, 0, &buffer), nullptr);
    EXPECT_EQ(ibv_alloc_buf(pd, 1, nullptr), nullptr);
}

TEST_F(NewerTest, WhatTheDeviceHasNotIsSaid) {
    EXPECT_EQ(ibv_alloc_dmah(context, nullptr), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
    std::uint64_t caps[4] = {};
    EXPECT_EQ(_ibv_query_comp_cntr_caps(context, caps, sizeof caps), EOPNOTSUPP);
    errno = 0;
    EXPECT_EQ(ibv_create_comp_cntr(context, nullptr), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
    constexpr auto kPersistent = static_cast<unsigned>(hca::kAccessFlushPersistent);
    expect_error(ibv_reg_mr_iova2(pd, bytes, sizeof bytes, 0, kPersistent), EINVAL);
    ibv_mr* mr = ibv_reg_mr_iova2(pd, bytes, sizeof bytes, 0,
                                  static_cast<unsigned>(hca::kAccessFlushGlobal));
    ASSERT_NE(mr, nullptr);
    EXPECT_EQ(fake::fake().last_access, hca::kAccessFlushGlobal);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    EXPECT_STREQ(ibv_wr_opcode_str(IBV_WR_ATOMIC_WRITE), "atomic-write");
    EXPECT_STREQ(ibv_wr_opcode_str(IBV_WR_SEND_WITH_INV), "send-with-inv");
    EXPECT_STREQ(ibv_wr_opcode_str(static_cast<ibv_wr_opcode>(14)), "flush");
    EXPECT_STREQ(ibv_wr_opcode_str(static_cast<ibv_wr_opcode>(12)), "unknown");
}

}  // namespace
}  // namespace weir::ibverbs

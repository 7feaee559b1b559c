// SPDX-License-Identifier: Apache-2.0
// Goal: the extended interfaces (ibv_cq_ex, ibv_qp_ex, domains, windows, device memory) hand the
// engine what the program said, refuse what there is not, and give everything back.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "handles.h"
#include "operations.h"
#include "verbs_fixture.h"

namespace weir::ibverbs {
namespace {

class ExtendedTest : public Verbs {
  protected:
    ibv_qp* make_extended(ibv_qp_type type, std::uint64_t operations) {
        ibv_qp_init_attr_ex init{};
        init.send_cq = init.recv_cq = cq;
        init.qp_type = type;
        init.pd = pd;
        init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        init.send_ops_flags = operations;
        init.cap = {64, 64, 2, 2, 32};
        return ibv_create_qp_ex(context, &init);
    }
    static constexpr std::uint64_t kSends = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    std::vector<fake::Posted>& posted() { return fake::fake().posted_list; }
};

TEST_F(ExtendedTest, CompletionsAreReadFieldByField) {
    ibv_cq_init_attr_ex init{};
    init.cqe = 4;
    init.cq_context = this;
    init.wc_flags = IBV_WC_STANDARD_FLAGS;
    init.wc_flags |= IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
    ibv_cq_ex* extended = ibv_create_cq_ex(context, &init);
    ASSERT_NE(extended, nullptr);
    EXPECT_TRUE(fake::fake().last_cq_options.stamped);
    EXPECT_EQ(ibv_cq_ex_to_cq(extended)->cq_context, this);
    EXPECT_EQ(extended->read_cvlan, nullptr) << "was not asked for";
    ibv_poll_cq_attr attr{};
    EXPECT_EQ(ibv_start_poll(extended, &attr), ENOENT);
    ibv_wc wc{};
    wc.wr_id = 5;
    wc.status = IBV_WC_LOC_LEN_ERR;
    wc.opcode = IBV_WC_RECV;
    wc.byte_len = 6;
    wc.imm_data = 7;
    wc.qp_num = 8;
    wc.src_qp = 9;
    wc.wc_flags = IBV_WC_WITH_IMM;
    wc.slid = 10;
    wc.sl = 11;
    fake::fake().completions = {wc, ibv_wc{}};
    ASSERT_EQ(ibv_start_poll(extended, &attr), 0);
    EXPECT_EQ(extended->wr_id, 5U);
    EXPECT_EQ(extended->status, IBV_WC_LOC_LEN_ERR);
    EXPECT_EQ(ibv_wc_read_opcode(extended), IBV_WC_RECV);
    EXPECT_EQ(ibv_wc_read_byte_len(extended), 6U);
    EXPECT_EQ(ibv_wc_read_imm_data(extended), 7U);
    EXPECT_EQ(ibv_wc_read_qp_num(extended), 8U);
    EXPECT_EQ(ibv_wc_read_src_qp(extended), 9U);
    EXPECT_EQ(ibv_wc_read_wc_flags(extended), static_cast<unsigned>(IBV_WC_WITH_IMM));
    EXPECT_EQ(ibv_wc_read_slid(extended), 10U);
    EXPECT_EQ(ibv_wc_read_sl(extended), 11U);
    EXPECT_EQ(ibv_wc_read_completion_ts(extended), 1234U);
    EXPECT_EQ(ibv_next_poll(extended), 0);
    EXPECT_EQ(ibv_next_poll(extended), ENOENT);
    ibv_end_poll(extended);
    attr.comp_mask = 1;
    EXPECT_EQ(ibv_start_poll(extended, &attr), EINVAL);
    EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(extended)), 0);
}

TEST_F(ExtendedTest, WhatNoSuchCqHasIsRefused) {
    ibv_cq_init_attr_ex init{};
    const auto refused = [&] {
        EXPECT_EQ(ibv_create_cq_ex(context, &init), nullptr);
        return errno;
    };
    EXPECT_EQ(refused(), EINVAL) << "no entries";
    init.cqe = 1;
    init.wc_flags = IBV_WC_EX_WITH_CVLAN;
    EXPECT_EQ(refused(), EOPNOTSUPP);
    init.wc_flags = 0;
    init.comp_mask = 1U << 7U;
    EXPECT_EQ(refused(), EOPNOTSUPP);
    init.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
    init.flags = 1U << 9U;
    EXPECT_EQ(refused(), EOPNOTSUPP);
    init.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
    init.parent_domain = pd;
    EXPECT_EQ(refused(), EINVAL) << "a PD, but no parent domain";
    init.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
    init.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN | IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
    ibv_cq_ex* good = ibv_create_cq_ex(context, &init);
    ASSERT_NE(good, nullptr);
    EXPECT_TRUE(fake::fake().last_cq_options.ignore_overrun);
    EXPECT_FALSE(fake::fake().last_cq_options.stamped);
    ibv_modify_cq_attr moderation{};
    moderation.attr_mask = IBV_CQ_ATTR_MODERATE;
    EXPECT_EQ(ibv_modify_cq(ibv_cq_ex_to_cq(good), &moderation), EOPNOTSUPP);
    EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(good)), 0);
}

TEST_F(ExtendedTest, OneThreadReadsAtATime) {
    ibv_cq_init_attr_ex init{};
    init.cqe = 4;
    ibv_cq_ex* extended = ibv_create_cq_ex(context, &init);
    ASSERT_NE(extended, nullptr);
    fake::fake().completions = {ibv_wc{}};
    ibv_poll_cq_attr attr{};
    ASSERT_EQ(ibv_start_poll(extended, &attr), 0);
    std::atomic<bool> ended{false};
    std::atomic<int> found{-1};
    std::thread other([&] {
        ibv_poll_cq_attr own{};
        found = ibv_start_poll(extended, &own);
        EXPECT_TRUE(ended.load()) << "came in while the CQ was another's";
    });
    std::this_thread::yield();
    ended = true;
    ibv_end_poll(extended);
    other.join();
    EXPECT_EQ(found.load(), ENOENT);
    EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(extended)), 0);
}

TEST_F(ExtendedTest, RequestsAreSeenTogetherAndOnlyWhenComplete) {
    ibv_qp* qp = make_extended(
        IBV_QPT_RC, kSends | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP);
    ASSERT_NE(qp, nullptr);
    ibv_qp_ex* ex = ibv_qp_to_qp_ex(qp);
    ASSERT_NE(ex, nullptr);
    EXPECT_EQ(ex->wr_rdma_read, nullptr) << "was not asked for";
    ibv_wr_start(ex);
    ex->wr_id = 1;
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(ex, 11, 12);
    ibv_wr_set_sge(ex, 13, 14, 15);
    ex->wr_id = 2;
    ex->wr_flags = 0;
    ibv_wr_send_imm(ex, 21);
    char text[] = "weir";
    ibv_wr_set_inline_data(ex, text, 4);
    std::strcpy(text, "gone");
    ex->wr_id = 3;
    ibv_wr_atomic_cmp_swp(ex, 31, 32, 33, 34);
    const ibv_sge sges[] = {{1, 2, 3}, {4, 5, 6}};
    ibv_wr_set_sge_list(ex, 2, sges);
    EXPECT_TRUE(posted().empty()) << "seen before its time";
    EXPECT_EQ(ibv_wr_complete(ex), 0);
    ASSERT_EQ(posted().size(), 3U);
    EXPECT_EQ(posted()[0].wr.opcode, IBV_WR_RDMA_WRITE);
    EXPECT_EQ(posted()[0].wr.wr_id, 1U);
    EXPECT_EQ(posted()[0].wr.send_flags, static_cast<unsigned>(IBV_SEND_SIGNALED));
    EXPECT_EQ(posted()[0].wr.wr.rdma.rkey, 11U);
    EXPECT_EQ(posted()[0].wr.wr.rdma.remote_addr, 12U);
    EXPECT_EQ(posted()[0].sges.at(0).lkey, 13U);
    EXPECT_EQ(posted()[0].sges.at(0).addr, 14U);
    EXPECT_EQ(posted()[0].sges.at(0).length, 15U);
    EXPECT_EQ(posted()[1].wr.imm_data, 21U);
    EXPECT_EQ(posted()[1].bytes, "weir") << "as it was when it was set";
    EXPECT_EQ(posted()[2].wr.wr.atomic.compare_add, 33U);
    EXPECT_EQ(posted()[2].wr.wr.atomic.swap, 34U);
    EXPECT_EQ(posted()[2].sges.size(), 2U);
    EXPECT_EQ(posted()[2].sges.at(1).addr, 4U);
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

TEST_F(ExtendedTest, AbortAndErrorsDropAll) {
    ibv_qp* qp = make_extended(IBV_QPT_RC, kSends);
    ASSERT_NE(qp, nullptr);
    ibv_qp_ex* ex = ibv_qp_to_qp_ex(qp);
    posted().push_back({});  // shows that nothing is posted over it
    ibv_wr_start(ex);
    ibv_wr_send(ex);
    ibv_wr_abort(ex);
    ibv_wr_start(ex);
    EXPECT_EQ(ibv_wr_complete(ex), 0) << "nothing is no error";
    const ibv_sge three[3] = {};
    ibv_wr_start(ex);
    ibv_wr_send(ex);
    ibv_wr_set_sge_list(ex, 3, three);
    ibv_wr_send(ex);
    EXPECT_EQ(ibv_wr_complete(ex), EINVAL);
    char much[33] = {};
    ibv_wr_start(ex);
    ibv_wr_send(ex);
    ibv_wr_set_inline_data(ex, much, sizeof much);
    EXPECT_EQ(ibv_wr_complete(ex), EINVAL);
    ibv_wr_start(ex);
    ibv_wr_set_sge(ex, 1, 2, 3);
    EXPECT_EQ(ibv_wr_complete(ex), EINVAL) << "buffers of no request";
    ibv_wr_start(ex);
    for (int i = 0; i < 65; ++i)
        ibv_wr_send(ex);
    EXPECT_EQ(ibv_wr_complete(ex), ENOMEM);
    EXPECT_EQ(posted().size(), 1U);
    fake::fake().next_error = ENOMEM;
    ibv_wr_start(ex);
    ibv_wr_send(ex);
    EXPECT_EQ(ibv_wr_complete(ex), ENOMEM) << "the engine's";
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

TEST_F(ExtendedTest, EachServiceHasItsOperations) {
    EXPECT_EQ(make_extended(IBV_QPT_UD, IBV_QP_EX_WITH_RDMA_WRITE), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
    EXPECT_EQ(make_extended(IBV_QPT_UC, IBV_QP_EX_WITH_RDMA_READ), nullptr);
    EXPECT_EQ(make_extended(IBV_QPT_RC, IBV_QP_EX_WITH_TSO), nullptr);
    EXPECT_EQ(make_extended(IBV_QPT_UC, IBV_QP_EX_WITH_ATOMIC_WRITE), nullptr);
    ibv_qp* qp = make_extended(IBV_QPT_UD, kSends);
    ASSERT_NE(qp, nullptr);
    ibv_qp_ex* ex = ibv_qp_to_qp_ex(qp);
    ibv_ah ah{};
    ibv_wr_start(ex);
    ibv_wr_send(ex);
    ibv_wr_set_ud_addr(ex, &ah, 5, 6);
    EXPECT_EQ(ibv_wr_complete(ex), 0);
    ASSERT_EQ(posted().size(), 1U);
    EXPECT_EQ(posted()[0].wr.wr.ud.ah, &ah);
    EXPECT_EQ(posted()[0].wr.wr.ud.remote_qpn, 5U);
    EXPECT_EQ(posted()[0].wr.wr.ud.remote_qkey, 6U);
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    ibv_qp* plain = make_qp();
    EXPECT_EQ(ibv_qp_to_qp_ex(plain), nullptr);
    EXPECT_EQ(ibv_destroy_qp(plain), 0);
}

TEST_F(ExtendedTest, QpAttributesAreTakenOrRefused) {
    ibv_qp_init_attr_ex init{};
    init.send_cq = init.recv_cq = cq;
    init.qp_type = IBV_QPT_UD;
    init.pd = pd;
    const auto refused = [&](std::uint32_t mask) {
        init.comp_mask = mask;
        EXPECT_EQ(ibv_create_qp_ex(context, &init), nullptr);
        return errno;
    };
    EXPECT_EQ(refused(IBV_QP_INIT_ATTR_CREATE_FLAGS), EINVAL) << "no PD";
    const std::uint32_t with_pd = IBV_QP_INIT_ATTR_PD;
    EXPECT_EQ(refused(with_pd | IBV_QP_INIT_ATTR_IND_TABLE), EOPNOTSUPP);
    EXPECT_EQ(refused(with_pd | IBV_QP_INIT_ATTR_RX_HASH), EOPNOTSUPP);
    init.max_tso_header = 64;
    EXPECT_EQ(refused(with_pd | IBV_QP_INIT_ATTR_MAX_TSO_HEADER), EOPNOTSUPP);
    init.create_flags = IBV_QP_CREATE_SCATTER_FCS;
    EXPECT_EQ(refused(with_pd | IBV_QP_INIT_ATTR_CREATE_FLAGS), EOPNOTSUPP);
    init.create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB;
    init.comp_mask = with_pd | IBV_QP_INIT_ATTR_CREATE_FLAGS;
    ibv_qp* qp = ibv_create_qp_ex(context, &init);
    ASSERT_NE(qp, nullptr);
    EXPECT_TRUE(fake::fake().last_request.refuses_own);
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

TEST_F(ExtendedTest, XrcObjectsHoldTheirDomain) {
    ibv_xrcd_init_attr domain_init{};
    domain_init.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    domain_init.fd = -1;
    ibv_xrcd* domain = ibv_open_xrcd(context, &domain_init);
    ASSERT_NE(domain, nullptr);
    ibv_srq_init_attr_ex srq_init{};
    srq_init.attr = {4, 1, 0};
    srq_init.srq_type = IBV_SRQT_XRC;
    srq_init.pd = pd;
    srq_init.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD;
    EXPECT_EQ(ibv_create_srq_ex(context, &srq_init), nullptr) << "no domain, no CQ";
    srq_init.xrcd = domain;
    srq_init.cq = cq;
    srq_init.comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
    ibv_srq* srq = ibv_create_srq_ex(context, &srq_init);
    ASSERT_NE(srq, nullptr);
    std::uint32_t number = 0;
    EXPECT_EQ(ibv_get_srq_num(srq, &number), 0);
    EXPECT_EQ(number, 0x1234U);
    EXPECT_EQ(ibv_close_xrcd(domain), EBUSY);
    ibv_qp_init_attr_ex qp_init{};
    qp_init.qp_type = IBV_QPT_XRC_RECV;
    qp_init.xrcd = domain;
    qp_init.comp_mask = IBV_QP_INIT_ATTR_XRCD;
    ibv_qp* qp = ibv_create_qp_ex(context, &qp_init);
    ASSERT_NE(qp, nullptr);
    ibv_qp_open_attr open{};
    open.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    open.qp_num = qp->qp_num;
    open.xrcd = domain;
    open.qp_type = IBV_QPT_XRC_RECV;
    ibv_qp* again = ibv_open_qp(context, &open);
    ASSERT_NE(again, nullptr);
    EXPECT_NE(again, qp);
    EXPECT_EQ(again->qp_num, qp->qp_num);
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    EXPECT_EQ(ibv_destroy_srq(srq), 0);
    EXPECT_EQ(ibv_close_xrcd(domain), EBUSY) << "the other handle lives";
    EXPECT_EQ(ibv_destroy_qp(again), 0);
    EXPECT_EQ(ibv_close_xrcd(domain), 0);
    EXPECT_EQ(close_xrcd(domain), EINVAL) << "it is gone";
}

TEST_F(ExtendedTest, DomainsAreKeptByWhatIsMadeOfThem) {
    ibv_td_init_attr td_init{};
    ibv_td* td = ibv_alloc_td(context, &td_init);
    ASSERT_NE(td, nullptr);
    ibv_parent_domain_init_attr init{};
    EXPECT_EQ(ibv_alloc_parent_domain(context, &init), nullptr);
    EXPECT_EQ(errno, EINVAL);
    init.pd = pd;
    init.td = td;
    ibv_pd* parent = ibv_alloc_parent_domain(context, &init);
    ASSERT_NE(parent, nullptr);
    EXPECT_EQ(ibv_dealloc_td(td), EBUSY);
    EXPECT_EQ(ibv_dealloc_pd(pd), EBUSY);
    char byte = 0;
    ibv_mr* mr = ibv_reg_mr(parent, &byte, 1, 0);
    ASSERT_NE(mr, nullptr);
    EXPECT_EQ(mr->pd, parent);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    EXPECT_EQ(ibv_dealloc_pd(parent), 0);
    EXPECT_EQ(ibv_dealloc_td(td), 0);
    EXPECT_EQ(dealloc_td(td), EINVAL) << "it is gone";
}

TEST_F(ExtendedTest, WindowsOfTypeOneAreBoundWithKeysOfOurs) {
    ibv_mw* mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
    ASSERT_NE(mw, nullptr);
    char bytes[8];
    ibv_mr* mr = ibv_reg_mr(pd, bytes, 8, IBV_ACCESS_MW_BIND);
    ibv_qp* qp = make_qp();
    ibv_mw_bind bind{};
    bind.bind_info.mr = mr;
    bind.bind_info.length = 8;
    const auto before = mw->rkey;
    const int posted_before = fake::fake().posted;
    EXPECT_EQ(ibv_bind_mw(qp, mw, &bind), 0);
    EXPECT_EQ(fake::fake().posted, posted_before + 1);
    EXPECT_EQ(mw->rkey, ibv_inc_rkey(before));
    ibv_qp* datagram = make_qp(IBV_QPT_UD);
    EXPECT_EQ(ibv_bind_mw(datagram, mw, &bind), EINVAL);
    EXPECT_EQ(ibv_destroy_qp(datagram), 0);
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    EXPECT_EQ(ibv_dealloc_mw(mw), 0);
    EXPECT_EQ(dealloc_mw(mw), EINVAL) << "it is gone";
}

TEST_F(ExtendedTest, DeviceMemoryIsBoundedAndKept) {
    ibv_alloc_dm_attr attr{};
    attr.length = 100;
    ibv_dm* dm = ibv_alloc_dm(context, &attr);
    ASSERT_NE(dm, nullptr);
    EXPECT_EQ(ibv_memcpy_to_dm(dm, 96, "weir", 4), 0);
    char text[5] = {};
    EXPECT_EQ(ibv_memcpy_from_dm(text, dm, 96, 4), 0);
    EXPECT_STREQ(text, "weir");
    EXPECT_EQ(ibv_memcpy_to_dm(dm, 100, "weir", 4), EINVAL);
    EXPECT_EQ(ibv_memcpy_to_dm(dm, 1, "weir", 4), EINVAL) << "not at a word";
    EXPECT_EQ(ibv_memcpy_from_dm(text, dm, ~0ULL, 4), EINVAL);
    EXPECT_EQ(ibv_reg_dm_mr(pd, dm, 0, 100, IBV_ACCESS_LOCAL_WRITE), nullptr);
    const unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED;
    EXPECT_EQ(ibv_reg_dm_mr(pd, dm, 1, 100, access), nullptr);
    ibv_mr* mr = ibv_reg_dm_mr(pd, dm, 0, 100, access);
    ASSERT_NE(mr, nullptr);
    EXPECT_EQ(fake::fake().last_iova, 0U);
    EXPECT_EQ(ibv_free_dm(dm), EBUSY);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    EXPECT_EQ(ibv_free_dm(dm), 0);
    attr.length = hca::kDeviceMemoryMax + 1;
    EXPECT_EQ(ibv_alloc_dm(context, &attr), nullptr);
    EXPECT_EQ(errno, ENOMEM);
}

TEST_F(ExtendedTest, FilesThatCanBeMappedAreRegistered) {
    const int file = memfd_create("dma-buf", MFD_CLOEXEC);
    ASSERT_EQ(ftruncate(file, 16384), 0);
    ibv_mr* mr = ibv_reg_dmabuf_mr(pd, 4096 + 100, 200, 0x7000, file, IBV_ACCESS_LOCAL_WRITE);
    ASSERT_NE(mr, nullptr);
    EXPECT_EQ(fake::fake().last_iova, 0x7000U);
    EXPECT_EQ(mr->length, 200U);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    EXPECT_EQ(ibv_reg_dmabuf_mr(pd, 16384, 1, 0, file, 0), nullptr) << "beyond its end";
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(ibv_reg_dmabuf_mr(pd, 0, 1, 0, -1, 0), nullptr);
    EXPECT_EQ(errno, EBADF);
    close(file);
}

TEST_F(ExtendedTest, TheClockIsTold) {
    ibv_values_ex values{};
    values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
    EXPECT_EQ(ibv_query_rt_values_ex(context, &values), 0);
    EXPECT_GT(values.raw_clock.tv_nsec, 0);
    const auto first = values.raw_clock.tv_nsec;
    EXPECT_EQ(ibv_query_rt_values_ex(context, &values), 0);
    EXPECT_GE(values.raw_clock.tv_nsec, first);
}

TEST_F(ExtendedTest, WhatADeviceWithoutItSays) {
    ibv_counters_init_attr counters{};
    EXPECT_EQ(ibv_create_counters(context, &counters), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
    ibv_wq_init_attr wq{};
    errno = 0;
    EXPECT_EQ(ibv_create_wq(context, &wq), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
    ibv_srq_init_attr_ex srq{};
    srq.srq_type = IBV_SRQT_TM;
    srq.pd = pd;
    srq.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TM;
    EXPECT_EQ(ibv_create_srq_ex(context, &srq), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
}

}  // namespace
}  // namespace weir::ibverbs

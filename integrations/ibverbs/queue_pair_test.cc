// SPDX-License-Identifier: Apache-2.0
#include "verbs_fixture.h"

namespace weir::ibverbs {
namespace {

using QueuePairTest = Verbs;

TEST_F(QueuePairTest, TheStructSaysWhatWasMade) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.qp_type = IBV_QPT_UD;
    init.qp_context = this;
    init.cap.max_send_wr = 3;
    ibv_qp* qp = ibv_create_qp(pd, &init);
    ASSERT_NE(qp, nullptr);
    EXPECT_EQ(init.cap.max_send_wr, 64U) << "what was given, not what was asked";
    EXPECT_EQ(qp->context, context);
    EXPECT_EQ(qp->pd, pd);
    EXPECT_EQ(qp->send_cq, cq);
    EXPECT_EQ(qp->qp_type, IBV_QPT_UD);
    EXPECT_EQ(qp->state, IBV_QPS_RESET);
    EXPECT_GE(qp->qp_num, 100U);
    ibv_qp_attr attr{};
    ibv_qp_init_attr found{};
    EXPECT_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE, &found), 0);
    EXPECT_EQ(found.send_cq, cq);
    EXPECT_EQ(found.qp_context, this);
    EXPECT_EQ(found.cap.max_send_wr, 64U);
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

TEST_F(QueuePairTest, TheStateFollowsWhatSucceeded) {
    ibv_qp* qp = make_qp();
    ASSERT_NE(qp, nullptr);
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    EXPECT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
    EXPECT_EQ(qp->state, IBV_QPS_INIT);
    attr.qp_state = IBV_QPS_SQE;
    EXPECT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
    EXPECT_EQ(qp->state, IBV_QPS_INIT);
    EXPECT_EQ(ibv_modify_qp(qp, nullptr, IBV_QP_STATE), EINVAL);
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

TEST_F(QueuePairTest, ObjectsOfTwoContextsDoNotMix) {
    ibv_context* other = ibv_open_device(device);
    ASSERT_NE(other, nullptr);
    ibv_cq* foreign = ibv_create_cq(other, 1, nullptr, nullptr, 0);
    ASSERT_NE(foreign, nullptr);
    ibv_qp_init_attr init{};
    init.send_cq = cq;
    init.recv_cq = foreign;
    init.qp_type = IBV_QPT_RC;
    EXPECT_EQ(ibv_create_qp(pd, &init), nullptr);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(ibv_destroy_cq(foreign), 0);
    EXPECT_EQ(ibv_close_device(other), 0);
}

TEST_F(QueuePairTest, TheEnginesErrorIsPassedOn) {
    fake::fake().next_error = ENOMEM;
    EXPECT_EQ(make_qp(), nullptr);
    EXPECT_EQ(errno, ENOMEM);
}

TEST_F(QueuePairTest, TheDataPathReachesTheEngineAndAnEmptyListDoesNot) {
    ibv_qp* qp = make_qp();
    ASSERT_NE(qp, nullptr);
    ibv_send_wr send{};
    ibv_send_wr* bad_send = &send;
    EXPECT_EQ(ibv_post_send(qp, &send, &bad_send), 0);
    ibv_recv_wr receive{};
    ibv_recv_wr* bad_receive = &receive;
    EXPECT_EQ(ibv_post_recv(qp, &receive, &bad_receive), 0);
    EXPECT_EQ(fake::fake().posted, 2);
    EXPECT_EQ(ibv_post_send(qp, nullptr, &bad_send), EINVAL);
    EXPECT_EQ(bad_send, nullptr);
    EXPECT_EQ(ibv_post_recv(qp, nullptr, &bad_receive), EINVAL);
    EXPECT_EQ(fake::fake().posted, 2);
    ibv_wc completion;
    EXPECT_EQ(ibv_poll_cq(cq, 1, &completion), 0);
    EXPECT_EQ(fake::fake().polled, 1);
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

TEST_F(QueuePairTest, SharedReceiveQueues) {
    ibv_srq_init_attr init{};
    init.srq_context = this;
    init.attr.max_wr = 8;
    ibv_srq* srq = ibv_create_srq(pd, &init);
    ASSERT_NE(srq, nullptr);
    EXPECT_EQ(srq->pd, pd);
    EXPECT_EQ(srq->srq_context, this);
    ibv_srq_attr attr{};
    attr.srq_limit = 4;
    EXPECT_EQ(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0);
    EXPECT_EQ(ibv_query_srq(srq, &attr), 0);
    EXPECT_EQ(attr.srq_limit, 4U);
    EXPECT_EQ(attr.max_wr, 8U);
    ibv_recv_wr receive{};
    ibv_recv_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_srq_recv(srq, &receive, &bad), 0);
    ibv_qp_init_attr qp_init{};
    qp_init.send_cq = qp_init.recv_cq = cq;
    qp_init.srq = srq;
    qp_init.qp_type = IBV_QPT_RC;
    ibv_qp* qp = ibv_create_qp(pd, &qp_init);
    ASSERT_NE(qp, nullptr);
    EXPECT_EQ(qp->srq, srq);
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    EXPECT_EQ(ibv_destroy_srq(srq), 0);
    EXPECT_EQ(ibv_create_qp(pd, &qp_init), nullptr) << "its receive queue is gone";
}

TEST_F(QueuePairTest, WhatIsNotOfferedSaysSo) {
    ibv_qp* qp = make_qp();
    ASSERT_NE(qp, nullptr);
    ibv_ece options{};
    EXPECT_EQ(ibv_query_ece(qp, &options), EOPNOTSUPP);
    EXPECT_EQ(ibv_set_ece(qp, &options), EOPNOTSUPP);
    EXPECT_EQ(ibv_qp_to_qp_ex(qp), nullptr);
    EXPECT_EQ(ibv_attach_mcast(qp, nullptr, 0), EINVAL);
    EXPECT_EQ(ibv_query_qp_data_in_order(qp, IBV_WR_SEND, 0), 0);
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

}  // namespace
}  // namespace weir::ibverbs

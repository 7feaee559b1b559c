// SPDX-License-Identifier: Apache-2.0
// misuse: one process that asks for what cannot be. Each wrong call gets its errno value and
// changes nothing; at the end everything still works.
#include "rig.h"

static struct side side = {0};
static struct ibv_mr* mr;

static void busy_objects(void) {
    struct ibv_qp* qp = make_qp(&side, &(struct qp_options){0});
    CHECK_EQ(ibv_dealloc_pd(side.pd), EBUSY);
    CHECK_EQ(ibv_destroy_cq(side.cq), EBUSY);
    CHECK_EQ(ibv_destroy_comp_channel(side.events), EBUSY);
    CHECK_EQ(ibv_destroy_qp(qp), 0);
    CHECK_EQ(ibv_dealloc_pd(side.pd), EBUSY);  // The region is still in it.

    struct ibv_srq_init_attr attr = {.attr = {.max_wr = 8, .max_sge = 1}};
    struct ibv_srq* srq = ibv_create_srq(side.pd, &attr);
    CHECK(srq != NULL);
    side.srq = srq;
    qp = make_qp(&side, &(struct qp_options){0});
    side.srq = NULL;
    CHECK_EQ(ibv_destroy_srq(srq), EBUSY);
    CHECK_EQ(ibv_destroy_qp(qp), 0);
    CHECK_EQ(ibv_destroy_srq(srq), 0);

    struct ibv_pd* pd = ibv_alloc_pd(side.context);
    struct ibv_ah_attr where = {.dlid = side.port.lid, .port_num = 1};
    struct ibv_ah* ah = ibv_create_ah(pd, &where);
    CHECK(ah != NULL);
    CHECK_EQ(ibv_dealloc_pd(pd), EBUSY);
    CHECK_EQ(ibv_destroy_ah(ah), 0);
    CHECK_EQ(ibv_dealloc_pd(pd), 0);
}

static int modify(struct ibv_qp* qp, struct ibv_qp_attr attr, int mask) {
    return ibv_modify_qp(qp, &attr, mask);
}

static void wrong_states(void) {
    struct ibv_qp* qp = make_qp(&side, &(struct qp_options){0});
    const struct ibv_sge sge = sge_of(mr, 0, 8);
    const struct address self = {.qp = qp->qp_num, .lid = side.port.lid};
    CHECK_EQ(state_of(qp), IBV_QPS_RESET);
    CHECK_EQ(post_receive(qp, 1, sge), EINVAL);
    CHECK_EQ(post(qp, IBV_WR_SEND, 1, sge, 0, 0), EINVAL);
    // Steps left out, and attributes left out.
    CHECK_EQ(modify(qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS}, IBV_QP_STATE), EINVAL);
    CHECK_EQ(modify(qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR}, IBV_QP_STATE), EINVAL);
    CHECK_EQ(modify(qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1},
                    IBV_QP_STATE | IBV_QP_PORT),
             EINVAL);
    CHECK_EQ(state_of(qp), IBV_QPS_RESET);
    to_init(&side, qp, &(struct qp_options){0});
    CHECK_EQ(post(qp, IBV_WR_SEND, 1, sge, 0, 0), EINVAL);
    CHECK_EQ(post_receive(qp, 1, sge), 0);
    CHECK_EQ(modify(qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS}, IBV_QP_STATE), EINVAL);
    to_rtr(&side, qp, &(struct qp_options){0}, &self);
    CHECK_EQ(post(qp, IBV_WR_SEND, 1, sge, 0, 0), EINVAL);
    CHECK_EQ(modify(qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS}, IBV_QP_STATE), EINVAL);
    CHECK_EQ(modify(qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1},
                    IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS),
             EINVAL);
    CHECK_EQ(state_of(qp), IBV_QPS_RTR);
    CHECK_EQ(ibv_destroy_qp(qp), 0);
}

static void garbage_attributes(void) {
    struct ibv_qp* qp = make_qp(&side, &(struct qp_options){0});
    const int init = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS;
    const struct ibv_qp_attr good = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    struct ibv_qp_attr attr = good;
    attr.port_num = 0;
    CHECK_EQ(modify(qp, attr, init), EINVAL);
    attr.port_num = 200;
    CHECK_EQ(modify(qp, attr, init), EINVAL);
    attr = good;
    attr.pkey_index = 9999;
    CHECK_EQ(modify(qp, attr, init), EINVAL);
    attr = good;
    attr.qp_state = 77;
    CHECK_EQ(modify(qp, attr, init), EINVAL);
    CHECK_EQ(modify(qp, good, -1), EINVAL);
    CHECK_EQ(modify(qp, good, init), 0);

    const int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    const struct ibv_qp_attr ready = {.qp_state = IBV_QPS_RTR,
                                      .path_mtu = IBV_MTU_1024,
                                      .dest_qp_num = qp->qp_num,
                                      .max_dest_rd_atomic = 1,
                                      .min_rnr_timer = 12,
                                      .ah_attr = {.dlid = side.port.lid, .port_num = 1}};
    attr = ready;
    attr.path_mtu = 9;
    CHECK_EQ(modify(qp, attr, rtr), EINVAL);
    attr.path_mtu = 0;
    CHECK_EQ(modify(qp, attr, rtr), EINVAL);
    attr = ready;
    attr.max_dest_rd_atomic = 255;
    CHECK_EQ(modify(qp, attr, rtr), EINVAL);
    attr = ready;
    attr.ah_attr.port_num = 7;
    CHECK_EQ(modify(qp, attr, rtr), EINVAL);
    attr = ready;
    attr.min_rnr_timer = 32;
    CHECK_EQ(modify(qp, attr, rtr), EINVAL);
    CHECK_EQ(state_of(qp), IBV_QPS_INIT);
    CHECK_EQ(modify(qp, ready, rtr), 0);

    const int rts = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                    IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    const struct ibv_qp_attr send = {
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    attr = send;
    attr.retry_cnt = 8;
    CHECK_EQ(modify(qp, attr, rts), EINVAL);
    attr = send;
    attr.rnr_retry = 8;
    CHECK_EQ(modify(qp, attr, rts), EINVAL);
    attr = send;
    attr.timeout = 32;
    CHECK_EQ(modify(qp, attr, rts), EINVAL);
    attr = send;
    attr.max_rd_atomic = 255;
    CHECK_EQ(modify(qp, attr, rts), EINVAL);
    CHECK_EQ(modify(qp, send, rts), 0);
    CHECK_EQ(ibv_destroy_qp(qp), 0);
}

/// Creation with more than there is.
static void refused(struct ibv_qp_cap cap, enum ibv_qp_type type) {
    struct ibv_qp_init_attr attr = {
        .send_cq = side.cq, .recv_cq = side.cq, .cap = cap, .qp_type = type};
    errno = 0;
    CHECK(ibv_create_qp(side.pd, &attr) == NULL);
    CHECK(errno == EINVAL || errno == ENOMEM || errno == EOPNOTSUPP);
}

static void too_much(void) {
    const struct ibv_qp_cap good = {
        .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1};
    struct ibv_qp_cap cap = good;
    cap.max_send_wr = (uint32_t)side.device.max_qp_wr + 1;
    refused(cap, IBV_QPT_RC);
    cap = good;
    cap.max_recv_wr = UINT32_MAX;
    refused(cap, IBV_QPT_RC);
    cap = good;
    cap.max_send_sge = (uint32_t)side.device.max_sge + 1;
    refused(cap, IBV_QPT_RC);
    cap = good;
    cap.max_recv_sge = UINT32_MAX;
    refused(cap, IBV_QPT_UD);
    cap = good;
    cap.max_inline_data = 1U << 20U;
    refused(cap, IBV_QPT_RC);
    refused(good, 99);
    refused(good, IBV_QPT_RAW_PACKET);

    CHECK(ibv_create_cq(side.context, side.device.max_cqe + 1, NULL, NULL, 0) == NULL);
    CHECK(ibv_create_cq(side.context, 0, NULL, NULL, 0) == NULL);
    CHECK(ibv_create_cq(side.context, -5, NULL, NULL, 0) == NULL);
    CHECK(ibv_create_cq(side.context, 10, NULL, side.events, 99) == NULL);
    struct ibv_srq_init_attr attr = {
        .attr = {.max_wr = (uint32_t)side.device.max_srq_wr + 1, .max_sge = 1}};
    CHECK(ibv_create_srq(side.pd, &attr) == NULL);
    // Nothing is there; remote writing without local writing; memory of nobody.
    char byte = 0;
    CHECK(ibv_reg_mr(side.pd, &byte, 1, IBV_ACCESS_REMOTE_WRITE) == NULL);
    CHECK_EQ(errno, EINVAL);
    CHECK(ibv_reg_mr(side.pd, (void*)0x10000, 4096, IBV_ACCESS_LOCAL_WRITE) == NULL);
    CHECK_EQ(errno, EFAULT);
    struct ibv_port_attr port;
    CHECK(ibv_query_port(side.context, 0, &port) != 0);
    CHECK(ibv_query_port(side.context, 200, &port) != 0);
    union ibv_gid gid;
    CHECK(ibv_query_gid(side.context, 1, 4096, &gid) != 0);
    CHECK(ibv_query_gid(side.context, 1, -1, &gid) != 0);
}

/// As drivers for real adapters have it.
static void bad_address(void) {
    struct ibv_ah_attr nowhere = {.dlid = side.port.lid, .port_num = 9};
    CHECK(ibv_create_ah(side.pd, &nowhere) == NULL);
    nowhere.port_num = 0;
    CHECK(ibv_create_ah(side.pd, &nowhere) == NULL);
}

static int post_wr(struct ibv_qp* qp, struct ibv_send_wr wr, struct ibv_send_wr** bad) {
    static struct ibv_send_wr kept;
    kept = wr;
    const int code = ibv_post_send(qp, &kept, bad);
    if (code != 0) CHECK(*bad == &kept);
    return code;
}

static void bad_requests(void) {
    struct ibv_qp* qps[2];
    struct ibv_send_wr* bad = NULL;
    struct ibv_sge sges[6];
    connect_loop(&side, &(struct qp_options){.depth = 4, .inline_bytes = 64, .unsignaled = true},
                 qps);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK_EQ(ibv_query_qp(qps[0], &attr, IBV_QP_CAP, &init), 0);
    const uint32_t sge_max = init.cap.max_send_sge;
    const uint32_t inline_max = init.cap.max_inline_data;
    CHECK(sge_max >= 4 && sge_max < 6);
    CHECK(inline_max >= 64);
    for (int i = 0; i < 6; ++i)
        sges[i] = sge_of(mr, 0, 8);
    struct ibv_send_wr wr = {.opcode = IBV_WR_SEND, .sg_list = sges, .num_sge = (int)sge_max + 1};
    CHECK_EQ(post_wr(qps[0], wr, &bad), EINVAL);
    wr.num_sge = -1;
    CHECK_EQ(post_wr(qps[0], wr, &bad), EINVAL);
    sges[0].length = inline_max + 1;
    wr.num_sge = 1;
    wr.send_flags = IBV_SEND_INLINE;
    CHECK_EQ(post_wr(qps[0], wr, &bad), EINVAL);
    sges[0].length = 8;
    wr.opcode = 99;
    wr.send_flags = 0;
    const int code = post_wr(qps[0], wr, &bad);
    CHECK(code == EINVAL || code == EOPNOTSUPP);
    struct ibv_recv_wr* bad_receive = NULL;
    struct ibv_recv_wr receive = {.sg_list = sges, .num_sge = 6};
    CHECK_EQ(ibv_post_recv(qps[0], &receive, &bad_receive), EINVAL);
    CHECK(bad_receive == &receive);
    // The queue is full: the request that does not fit is named, those before it are taken.
    struct ibv_recv_wr receives[64];
    CHECK_EQ(ibv_query_qp(qps[1], &attr, IBV_QP_CAP, &init), 0);
    const uint32_t depth = init.cap.max_recv_wr;
    CHECK(depth >= 4 && depth < 64);
    for (uint32_t i = 0; i <= depth; ++i)
        receives[i] = (struct ibv_recv_wr){
            .wr_id = i, .sg_list = sges, .num_sge = 1, .next = i < depth ? &receives[i + 1] : NULL};
    CHECK_EQ(ibv_post_recv(qps[1], receives, &bad_receive), ENOMEM);
    CHECK(bad_receive == &receives[depth]);
    // After all this the pair works.
    memset(mr->addr, 0, 64);
    char* text = mr->addr;
    strcpy(text + 32, "inline");
    sges[0] = sge_of(mr, 32, 7);
    sges[0].lkey = 0;  // Not looked at for inline data.
    wr = (struct ibv_send_wr){.wr_id = 5,
                              .opcode = IBV_WR_SEND,
                              .sg_list = sges,
                              .num_sge = 1,
                              .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED};
    CHECK_EQ(post_wr(qps[0], wr, &bad), 0);
    memset(text + 32, 'x', 7);  // Inline data was taken when it was posted.
    bool sent = false;
    bool received = false;
    while (!sent || !received) {
        const struct ibv_wc wc = await_success(side.cq);
        if (wc.opcode == IBV_WC_SEND) sent = true;
        if (wc.opcode == IBV_WC_RECV) received = wc.wr_id == 0 && wc.byte_len == 7;
    }
    CHECK(memcmp(text, "inline", 7) == 0);
    CHECK_EQ(ibv_destroy_qp(qps[0]), 0);
    CHECK_EQ(ibv_destroy_qp(qps[1]), 0);
}

static void queue_overflow(void) {
    struct ibv_qp* qps[2];
    connect_loop(&side, &(struct qp_options){.depth = 4}, qps);
    int taken = 0;
    int code = 0;
    // Nobody receives, so nothing completes and the queue must fill.
    while ((code = post(qps[0], IBV_WR_SEND, 1, sge_of(mr, 0, 8), 0, 0)) == 0 && taken < 1000)
        ++taken;
    CHECK_EQ(code, ENOMEM);
    CHECK(taken >= 4);
    CHECK_EQ(ibv_destroy_qp(qps[0]), 0);
    CHECK_EQ(ibv_destroy_qp(qps[1]), 0);
}

static void many_objects(void) {
    enum { kCount = 300 };
    struct ibv_mr* mrs[kCount];
    struct ibv_cq* cqs[kCount];
    for (int i = 0; i < kCount; ++i) {
        mrs[i] = ibv_reg_mr(side.pd, (char*)mr->addr + i, 64, IBV_ACCESS_LOCAL_WRITE);
        CHECK(mrs[i] != NULL);
        cqs[i] = ibv_create_cq(side.context, 16, NULL, NULL, 0);
        CHECK(cqs[i] != NULL);
    }
    for (int i = 0; i < kCount; ++i) {
        for (int j = 0; j < i; ++j)
            CHECK(mrs[i]->lkey != mrs[j]->lkey);
        CHECK_EQ(ibv_destroy_cq(cqs[i]), 0);
    }
    for (int i = 0; i < kCount; ++i)
        CHECK_EQ(ibv_dereg_mr(mrs[i]), 0);
}

int main(void) {
    alarm(60);
    open_side(&side, 256);
    mr = make_memory(&side, 65536, kAllAccess);
    busy_objects();
    wrong_states();
    garbage_attributes();
    too_much();
    bad_requests();
    queue_overflow();
    many_objects();
    bad_address();
    CHECK_EQ(ibv_dereg_mr(mr), 0);
    CHECK_EQ(ibv_destroy_cq(side.cq), 0);
    CHECK_EQ(ibv_destroy_comp_channel(side.events), 0);
    CHECK_EQ(ibv_dealloc_pd(side.pd), 0);
    CHECK_EQ(ibv_close_device(side.context), 0);
    return 0;
}

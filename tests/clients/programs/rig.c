// SPDX-License-Identifier: Apache-2.0
#include "rig.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

void give_up(const char* file, int line, const char* what, long error) {
    fprintf(stderr, "%s:%d: (pid %d, host %s) not so: %s (errno %ld)\n", file, line, (int)getpid(),
            getenv("WEIR_HOST"), what, error);
    _exit(1);
}

void check_equal(const char* file, int line, const char* found_text, long found,
                 const char* expected_text, long expected) {
    if (found == expected) return;
    fprintf(stderr, "%s:%d: (pid %d, host %s) %s is %ld, not %s, which is %ld\n", file, line,
            (int)getpid(), getenv("WEIR_HOST"), found_text, found, expected_text, expected);
    _exit(1);
}

int run_sides(const char* host0, const char* host1, unsigned seconds, void (*body)(struct side*)) {
    const char* hosts[2] = {host0, host1};
    int ends[2];
    pid_t pids[2];
    int result = 0;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    for (int i = 0; i < 2; ++i) {
        pids[i] = fork();
        CHECK(pids[i] >= 0);
        if (pids[i] == 0) {
            struct side side = {.index = i, .channel = ends[i]};
            close(ends[1 - i]);
            setenv("WEIR_HOST", hosts[i], 1);
            alarm(seconds);
            body(&side);
            exit(0);
        }
    }
    close(ends[0]);
    close(ends[1]);
    for (int i = 0; i < 2; ++i) {
        int status = 0;
        const pid_t pid = waitpid(-1, &status, 0);
        if (status != 0) {
            result = 1;
            fprintf(stderr, "side %d: %s %d\n", pid == pids[0] ? 0 : 1,
                    WIFSIGNALED(status) ? "signal" : "exit code",
                    WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        }
    }
    return result;
}

void open_side(struct side* side, int cqe) {
    int count = 0;
    struct ibv_device** list = ibv_get_device_list(&count);
    CHECK(list != NULL);
    CHECK(count >= 1);
    side->context = ibv_open_device(list[0]);
    CHECK(side->context != NULL);
    ibv_free_device_list(list);
    CHECK(ibv_query_port(side->context, 1, &side->port) == 0);
    CHECK(ibv_query_device(side->context, &side->device) == 0);
    side->pd = ibv_alloc_pd(side->context);
    CHECK(side->pd != NULL);
    side->events = ibv_create_comp_channel(side->context);
    CHECK(side->events != NULL);
    side->cq = ibv_create_cq(side->context, cqe, side, side->events, 0);
    CHECK(side->cq != NULL);
}

static uint8_t or_default(uint8_t value, uint8_t otherwise) {
    if (value == kNone) return 0;
    return value == 0 ? otherwise : value;
}

struct ibv_qp* make_qp(struct side* side, const struct qp_options* options) {
    const uint32_t depth = options->depth != 0 ? options->depth : 64;
    const uint32_t sges = options->sges != 0 ? options->sges : 4;
    struct ibv_qp_init_attr attr = {.send_cq = side->cq,
                                    .recv_cq = side->cq,
                                    .srq = side->srq,
                                    .cap = {.max_send_wr = depth,
                                            .max_recv_wr = side->srq != NULL ? 0 : depth,
                                            .max_send_sge = sges,
                                            .max_recv_sge = side->srq != NULL ? 0 : sges,
                                            .max_inline_data = options->inline_bytes},
                                    .qp_type = options->type != 0 ? options->type : IBV_QPT_RC,
                                    .sq_sig_all = !options->unsignaled};
    struct ibv_qp* qp = ibv_create_qp(side->pd, &attr);
    CHECK(qp != NULL);
    return qp;
}

void to_init(struct side* side, struct ibv_qp* qp, const struct qp_options* options) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    (void)side;
    if (qp->qp_type == IBV_QPT_UD) {
        attr.qkey = 0x11111111;
        mask |= IBV_QP_QKEY;
    } else {
        const int access = options->access != 0 ? options->access : kAllAccess;
        attr.qp_access_flags = access == kLocalOnly ? 0 : (unsigned)access;
        mask |= IBV_QP_ACCESS_FLAGS;
    }
    CHECK_EQ(ibv_modify_qp(qp, &attr, mask), 0);
}

void to_rtr(struct side* side, struct ibv_qp* qp, const struct qp_options* options,
            const struct address* peer) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
                               .path_mtu = options->mtu != 0 ? options->mtu : IBV_MTU_4096,
                               .dest_qp_num = peer->qp,
                               .rq_psn = 77,
                               .max_dest_rd_atomic = 16,
                               .min_rnr_timer = 12,
                               .ah_attr = {.dlid = (uint16_t)peer->lid, .port_num = 1}};
    int mask = IBV_QP_STATE;
    (void)side;
    if (qp->qp_type != IBV_QPT_UD)
        mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (qp->qp_type == IBV_QPT_RC) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    CHECK_EQ(ibv_modify_qp(qp, &attr, mask), 0);
}

void to_rts(struct ibv_qp* qp, const struct qp_options* options) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS,
                               .sq_psn = 77,
                               .timeout = or_default(options->timeout, 14),
                               .retry_cnt = or_default(options->retries, 7),
                               .rnr_retry = or_default(options->rnr_retries, 7),
                               .max_rd_atomic = 16};
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (qp->qp_type == IBV_QPT_RC)
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    CHECK_EQ(ibv_modify_qp(qp, &attr, mask), 0);
}

void to_error(struct ibv_qp* qp) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    CHECK_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
}

enum ibv_qp_state state_of(struct ibv_qp* qp) {
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
    return attr.qp_state;
}

void exchange(struct side* side, const void* mine, void* theirs, size_t bytes) {
    CHECK(send(side->channel, mine, bytes, MSG_NOSIGNAL) == (ssize_t)bytes);
    CHECK(recv(side->channel, theirs, bytes, MSG_WAITALL) == (ssize_t)bytes);
}

void meet(struct side* side) {
    char mine = 'm';
    char theirs = 0;
    exchange(side, &mine, &theirs, 1);
}

struct ibv_qp* connect_sides(struct side* side, const struct qp_options* options, struct ibv_mr* mr,
                             struct address* peer) {
    struct ibv_qp* qp = make_qp(side, options);
    struct address mine = {.qp = qp->qp_num, .lid = side->port.lid};
    if (mr != NULL) {
        mine.buffer = (uint64_t)(uintptr_t)mr->addr;
        mine.rkey = mr->rkey;
    }
    to_init(side, qp, options);
    exchange(side, &mine, peer, sizeof(mine));
    to_rtr(side, qp, options, peer);
    to_rts(qp, options);
    meet(side);
    return qp;
}

void connect_loop(struct side* side, const struct qp_options* options, struct ibv_qp* qps[2]) {
    for (int i = 0; i < 2; ++i) {
        qps[i] = make_qp(side, options);
        to_init(side, qps[i], options);
    }
    for (int i = 0; i < 2; ++i) {
        const struct address peer = {.qp = qps[1 - i]->qp_num, .lid = side->port.lid};
        to_rtr(side, qps[i], options, &peer);
        to_rts(qps[i], options);
    }
}

struct ibv_mr* make_memory(struct side* side, size_t bytes, int access) {
    void* memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    struct ibv_mr* mr = ibv_reg_mr(side->pd, memory, bytes, access);
    CHECK(mr != NULL);
    return mr;
}

struct ibv_sge sge_of(const struct ibv_mr* mr, size_t at, size_t bytes) {
    return (struct ibv_sge){
        .addr = (uint64_t)(uintptr_t)mr->addr + at, .length = (uint32_t)bytes, .lkey = mr->lkey};
}

int post(struct ibv_qp* qp, enum ibv_wr_opcode opcode, uint64_t wr_id, struct ibv_sge sge,
         uint64_t remote, uint32_t rkey) {
    struct ibv_send_wr wr = {.wr_id = wr_id,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = opcode,
                             .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr* bad = NULL;
    wr.wr.rdma.remote_addr = remote;
    wr.wr.rdma.rkey = rkey;
    return ibv_post_send(qp, &wr, &bad);
}

int post_receive(struct ibv_qp* qp, uint64_t wr_id, struct ibv_sge sge) {
    struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1};
    struct ibv_recv_wr* bad = NULL;
    return ibv_post_recv(qp, &wr, &bad);
}

struct ibv_wc await_completion(struct ibv_cq* cq) {
    struct ibv_wc wc;
    const time_t until = time(NULL) + 20;
    int found = 0;
    while ((found = ibv_poll_cq(cq, 1, &wc)) == 0) {
        CHECK(time(NULL) <= until);
    }
    CHECK_EQ(found, 1);
    return wc;
}

struct ibv_wc await_success(struct ibv_cq* cq) {
    const struct ibv_wc wc = await_completion(cq);
    CHECK_EQ(wc.status, IBV_WC_SUCCESS);
    return wc;
}

static uint8_t byte_at(size_t at, uint64_t seed) {
    const uint64_t mixed = (at + seed * 0x9e3779b97f4a7c15ULL) * 0xbf58476d1ce4e5b9ULL;
    return (uint8_t)(mixed >> 56U);
}

void fill(void* memory, size_t bytes, uint64_t seed) {
    uint8_t* out = memory;
    for (size_t i = 0; i < bytes; ++i)
        out[i] = byte_at(i, seed);
}

bool filled(const void* memory, size_t bytes, uint64_t seed) {
    const uint8_t* in = memory;
    for (size_t i = 0; i < bytes; ++i) {
        if (in[i] != byte_at(i, seed)) {
            fprintf(stderr, "byte %zu of %zu is 0x%02x, not 0x%02x\n", i, bytes, in[i],
                    byte_at(i, seed));
            return false;
        }
    }
    return true;
}

// SPDX-License-Identifier: Apache-2.0
// Queue pairs and shared receive queues of identifiers: made with the CQs they lack, and moved
// along as the connection is agreed.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "abi.h"
#include "cm.h"

namespace weir::rdmacm {
namespace {

/// How long a receiver that is not ready is left alone: code 12 is 0.64 ms.
constexpr std::uint8_t kReceiverNotReadyTimer = 12;
/// 0.54 s without an acknowledgement; times 7, a peer is given up after some seconds.
constexpr std::uint8_t kAckTimeout = 17;

int errno_or(int otherwise) {
    return errno != 0 ? errno : otherwise;
}

void fill_address(const Identifier& id, ibv_qp_attr& attr) {
    fill_path(id, *id.target, attr.ah_attr);
    attr.path_mtu = id.agreement.mtu;
    attr.dest_qp_num = id.agreement.remote_qp;
    attr.rq_psn = id.agreement.receive_psn;
}

int fill_init(const Identifier& id, ibv_qp_attr& attr, int& mask) {
    attr.pkey_index = 0;
    attr.port_num = id.abi.port_num;
    mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    if (id.is_datagram()) {
        attr.qkey = qkey_of(id);
        mask |= IBV_QP_QKEY;
        return 0;
    }
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    if (id.agreement.responder_resources != 0)
        attr.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    mask |= IBV_QP_ACCESS_FLAGS;
    return 0;
}

int fill_receive(const Identifier& id, ibv_qp_attr& attr, int& mask) {
    mask = IBV_QP_STATE;
    if (id.is_datagram()) return 0;
    if (id.target == nullptr || id.agreement.remote_qp == 0) return EINVAL;
    fill_address(id, attr);
    mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (id.abi.qp_type == IBV_QPT_UC) return 0;
    attr.max_dest_rd_atomic = id.agreement.responder_resources;
    attr.min_rnr_timer = kReceiverNotReadyTimer;
    mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    return 0;
}

int fill_send(const Identifier& id, ibv_qp_attr& attr, int& mask) {
    mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    attr.sq_psn = id.is_datagram() ? 0 : id.agreement.send_psn;
    if (id.is_datagram() || id.abi.qp_type == IBV_QPT_UC) return 0;
    attr.timeout = id.ack_timeout.value_or(kAckTimeout);
    attr.retry_cnt = id.agreement.retry_count;
    attr.rnr_retry = id.agreement.rnr_retry_count;
    attr.max_rd_atomic = id.agreement.initiator_depth;
    mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    return 0;
}

int move(Identifier& id, ibv_qp* qp, ibv_qp_state state) {
    ibv_qp_attr attr{};
    attr.qp_state = state;
    int mask = 0;
    const int error = fill_qp_attributes(id, attr, mask);
    return error != 0 ? error : ibv_modify_qp(qp, &attr, mask);
}

/// What an identifier owns, taken from it to be destroyed without the lock: that may wait until
/// the program has acknowledged events.
struct Owned {
    ibv_qp* qp = nullptr;
    ibv_cq* receive_cq = nullptr;
    ibv_cq* send_cq = nullptr;
    ibv_comp_channel* receive_channel = nullptr;
    ibv_comp_channel* send_channel = nullptr;

    static Owned take(rdma_cm_id& id) {
        return {std::exchange(id.qp, nullptr), std::exchange(id.recv_cq, nullptr),
                std::exchange(id.send_cq, nullptr), std::exchange(id.recv_cq_channel, nullptr),
                std::exchange(id.send_cq_channel, nullptr)};
    }
    void destroy() const {
        if (qp != nullptr) ibv_destroy_qp(qp);
        if (receive_cq != nullptr) ibv_destroy_cq(receive_cq);
        if (send_cq != nullptr) ibv_destroy_cq(send_cq);
        if (receive_channel != nullptr) ibv_destroy_comp_channel(receive_channel);
        if (send_channel != nullptr) ibv_destroy_comp_channel(send_channel);
    }
};

int make_queue(Identifier& id, std::uint32_t entries, ibv_comp_channel*& channel, ibv_cq*& cq) {
    channel = ibv_create_comp_channel(id.abi.verbs);
    if (channel == nullptr) return errno_or(ENOMEM);
    const int count = static_cast<int>(std::max(entries, 1U));
    cq = ibv_create_cq(id.abi.verbs, count, &id.abi, channel, 0);
    return cq == nullptr ? errno_or(ENOMEM) : 0;
}

/// The completion queues that the program did not bring.
int make_queues(Identifier& id, ibv_qp_init_attr_ex& init) {
    if (init.recv_cq == nullptr) {
        const int error =
            id.abi.recv_cq != nullptr
                ? 0
                : make_queue(id, init.cap.max_recv_wr, id.abi.recv_cq_channel, id.abi.recv_cq);
        if (error != 0) return error;
        init.recv_cq = id.abi.recv_cq;
    }
    if (init.send_cq == nullptr) {
        const int error =
            id.abi.send_cq != nullptr
                ? 0
                : make_queue(id, init.cap.max_send_wr, id.abi.send_cq_channel, id.abi.send_cq);
        if (error != 0) return error;
        init.send_cq = id.abi.send_cq;
    }
    return 0;
}

int check(const Identifier& id, const ibv_qp_init_attr_ex& init) {
    if (id.abi.qp != nullptr || id.abi.verbs == nullptr || id.device == nullptr) return EINVAL;
    if ((init.comp_mask & IBV_QP_INIT_ATTR_PD) != 0 &&
        (init.pd == nullptr || init.pd->context != id.abi.verbs))
        return EINVAL;
    if (id.abi.recv_cq != nullptr && init.recv_cq != nullptr && id.abi.recv_cq != init.recv_cq)
        return EINVAL;
    return id.abi.send_cq != nullptr && init.send_cq != nullptr && id.abi.send_cq != init.send_cq
               ? EINVAL
               : 0;
}

int move_fresh(Identifier& id, ibv_qp* qp) {
    if (qp->qp_type != IBV_QPT_UD) return move_to_init(id, qp);
    int error = move_to_init(id, qp);
    if (error == 0) error = move(id, qp, IBV_QPS_RTR);
    return error != 0 ? error : move(id, qp, IBV_QPS_RTS);
}

int create_qp(rdma_cm_id* abi, ibv_qp_init_attr_ex& init) {
    auto& cm = Cm::instance();
    const std::lock_guard guard(cm.lock);
    auto* id = cm.find(abi);
    if (id == nullptr) return EINVAL;
    if (const int error = check(*id, init); error != 0) return error;
    if ((init.comp_mask & IBV_QP_INIT_ATTR_PD) == 0) {
        init.comp_mask |= IBV_QP_INIT_ATTR_PD;
        init.pd = abi->pd;
    }
    if (init.srq == nullptr) init.srq = abi->srq;
    const bool had_queues = abi->recv_cq != nullptr || abi->send_cq != nullptr;
    int error = make_queues(*id, init);
    ibv_qp* qp = nullptr;
    if (error == 0) {
        errno = 0;
        qp = ibv_create_qp_ex(abi->verbs, &init);
        error = qp == nullptr ? errno_or(EINVAL) : move_fresh(*id, qp);
    }
    if (error != 0) {
        if (qp != nullptr) ibv_destroy_qp(qp);
        if (!had_queues) Owned::take(*abi).destroy();
        return error;
    }
    abi->qp = qp;
    abi->pd = qp->pd;
    abi->qp_type = qp->qp_type;
    return 0;
}

/// The two structs begin alike, up to sq_sig_all.
ibv_qp_init_attr_ex extended(const ibv_qp_init_attr& init, ibv_pd* pd) {
    ibv_qp_init_attr_ex out{};
    out.qp_context = init.qp_context;
    out.send_cq = init.send_cq;
    out.recv_cq = init.recv_cq;
    out.srq = init.srq;
    out.cap = init.cap;
    out.qp_type = init.qp_type;
    out.sq_sig_all = init.sq_sig_all;
    if (pd != nullptr) {
        out.comp_mask = IBV_QP_INIT_ATTR_PD;
        out.pd = pd;
    }
    return out;
}

int create_srq(rdma_cm_id* abi, ibv_srq_init_attr_ex& init) {
    auto& cm = Cm::instance();
    const std::lock_guard guard(cm.lock);
    auto* id = cm.find(abi);
    if (id == nullptr || abi->srq != nullptr || abi->verbs == nullptr) return EINVAL;
    if ((init.comp_mask & IBV_SRQ_INIT_ATTR_TYPE) == 0) {
        init.comp_mask |= IBV_SRQ_INIT_ATTR_TYPE;
        init.srq_type = IBV_SRQT_BASIC;
    }
    if ((init.comp_mask & IBV_SRQ_INIT_ATTR_PD) == 0 || init.pd == nullptr) {
        init.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
        init.pd = abi->pd;
    }
    errno = 0;
    ibv_srq* srq = ibv_create_srq_ex(abi->verbs, &init);
    if (srq == nullptr) return errno_or(EINVAL);
    abi->srq = srq;
    if (abi->pd == nullptr) abi->pd = init.pd;
    return 0;
}

template <class Body>
void with_identifier(rdma_cm_id* abi, Body&& body) {
    ibverbs::fenced([&] {
        auto& cm = Cm::instance();
        const std::lock_guard guard(cm.lock);
        if (auto* id = cm.find(abi); id != nullptr) body(*id);
        return 0;
    });
}

}  // namespace

int fill_qp_attributes(const Identifier& id, ibv_qp_attr& attr, int& mask) {
    if (id.device == nullptr) return EINVAL;
    switch (attr.qp_state) {
        case IBV_QPS_INIT:
            return fill_init(id, attr, mask);
        case IBV_QPS_RTR:
            return fill_receive(id, attr, mask);
        case IBV_QPS_RTS:
            return fill_send(id, attr, mask);
        default:
            return EINVAL;
    }
}

int move_to_init(Identifier& id, ibv_qp* qp) {
    return move(id, qp, IBV_QPS_INIT);
}

int move_to_ready(Identifier& id) {
    // INIT once more: only now is it known whether the peer may read.
    int error = move(id, id.abi.qp, IBV_QPS_INIT);
    if (error == 0) error = move(id, id.abi.qp, IBV_QPS_RTR);
    return error != 0 ? error : move(id, id.abi.qp, IBV_QPS_RTS);
}

int move_to_error(Identifier& id) {
    if (id.abi.qp == nullptr) return 0;
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_ERR;
    return ibv_modify_qp(id.abi.qp, &attr, IBV_QP_STATE);
}

}  // namespace weir::rdmacm

using namespace weir::rdmacm;  // The functions below are the C ABI, outside any namespace.
using weir::ibverbs::fenced;
using weir::ibverbs::minus_one_if;

extern "C" {

int rdma_create_qp_ex(rdma_cm_id* id, ibv_qp_init_attr_ex* init) {
    if (id == nullptr || init == nullptr) return minus_one_if(EINVAL);
    return minus_one_if(fenced([&] { return create_qp(id, *init); }));
}

int rdma_create_qp(rdma_cm_id* id, ibv_pd* pd, ibv_qp_init_attr* init) {
    if (id == nullptr || init == nullptr) return minus_one_if(EINVAL);
    auto full = extended(*init, pd);
    const int error = fenced([&] { return create_qp(id, full); });
    if (error == 0) {
        init->send_cq = full.send_cq;
        init->recv_cq = full.recv_cq;
        init->srq = full.srq;
        init->cap = full.cap;
    }
    return minus_one_if(error);
}

void rdma_destroy_qp(rdma_cm_id* abi) {
    Owned owned;
    with_identifier(abi, [&owned](Identifier& id) {
        detach_groups(id);
        if (id.abi.qp != nullptr) owned = Owned::take(id.abi);
    });
    owned.destroy();
}

int rdma_create_srq_ex(rdma_cm_id* id, ibv_srq_init_attr_ex* init) {
    if (id == nullptr || init == nullptr) return minus_one_if(EINVAL);
    return minus_one_if(fenced([&] { return create_srq(id, *init); }));
}

int rdma_create_srq(rdma_cm_id* id, ibv_pd* pd, ibv_srq_init_attr* init) {
    if (id == nullptr || init == nullptr) return minus_one_if(EINVAL);
    ibv_srq_init_attr_ex full{};
    full.srq_context = init->srq_context;
    full.attr = init->attr;
    if (pd != nullptr) {
        full.comp_mask = IBV_SRQ_INIT_ATTR_PD;
        full.pd = pd;
    }
    const int error = fenced([&] { return create_srq(id, full); });
    if (error == 0) init->attr = full.attr;
    return minus_one_if(error);
}

void rdma_destroy_srq(rdma_cm_id* abi) {
    ibv_srq* srq = nullptr;
    with_identifier(abi, [&srq](Identifier& id) { srq = std::exchange(id.abi.srq, nullptr); });
    if (srq != nullptr) ibv_destroy_srq(srq);
}

int rdma_init_qp_attr(rdma_cm_id* abi, ibv_qp_attr* attr, int* mask) {
    return minus_one_if(fenced([&] {
        auto& cm = Cm::instance();
        const std::lock_guard guard(cm.lock);
        const auto* id = cm.find(abi);
        if (id == nullptr || attr == nullptr || mask == nullptr) return EINVAL;
        return fill_qp_attributes(*id, *attr, *mask);
    }));
}

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
// Queue pairs and shared receive queues.
#include <memory>

#include "abi.h"
#include "events.h"
#include "handles.h"
#include "operations.h"

namespace weir::ibverbs {

int post_send(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) {
    if (list == nullptr) {
        *bad = nullptr;
        return EINVAL;
    }
    return reinterpret_cast<QueuePair*>(qp)->engine->post_send(list, bad);
}

int post_recv(ibv_qp* qp, ibv_recv_wr* list, ibv_recv_wr** bad) {
    if (list == nullptr) {
        *bad = nullptr;
        return EINVAL;
    }
    return reinterpret_cast<QueuePair*>(qp)->engine->post_receive(list, bad);
}

int post_srq_recv(ibv_srq* srq, ibv_recv_wr* list, ibv_recv_wr** bad) {
    if (list == nullptr) {
        *bad = nullptr;
        return EINVAL;
    }
    return reinterpret_cast<ReceiveQueue*>(srq)->engine->post(list, bad);
}

namespace {

int create_srq(ibv_pd* abi, ibv_srq_init_attr* init, ibv_srq*& out) {
    auto* pd = find<ProtectionDomain>(abi);
    if (pd == nullptr || init == nullptr) return EINVAL;
    Context* context = pd->context;
    auto srq = std::make_unique<ReceiveQueue>();
    if (const int error = context->hca->create_srq(pd->number, init->attr, srq->engine); error != 0)
        return error;
    srq->context = context;
    srq->engine->user = srq.get();
    srq->base.srq_context = init->srq_context;
    srq->base.pd = abi;
    init_acknowledgements(srq->base);
    hca::SharedReceiveQueue* engine = srq->engine;
    return publish(srq, out, [&] { context->hca->destroy_srq(engine); });
}

int release_srq(ReceiveQueue& srq) {
    std::uint32_t taken = 0;
    {
        const std::scoped_lock lock(srq.context->events);
        if (const int error = srq.context->hca->destroy_srq(srq.engine); error != 0) return error;
        taken = srq.events_taken;
    }
    wait_for_acknowledgements(srq.base, srq.base.events_completed, taken);
    return 0;
}

// Finds the engine's side of what a QP is to be made of. All of it must be alive and of one
// context.
int make_request(const ProtectionDomain& pd, const ibv_qp_init_attr& init,
                 hca::Hca::QpRequest& request) {
    const auto* send_cq = find<CompletionQueue>(init.send_cq);
    const auto* receive_cq = find<CompletionQueue>(init.recv_cq);
    if (send_cq == nullptr || receive_cq == nullptr) return EINVAL;
    if (send_cq->context != pd.context || receive_cq->context != pd.context) return EINVAL;
    request = {pd.number, init.qp_type, send_cq->engine,     receive_cq->engine,
               nullptr,   init.cap,     init.sq_sig_all != 0};
    if (init.srq == nullptr) return 0;
    const auto* srq = find<ReceiveQueue>(init.srq);
    if (srq == nullptr || srq->context != pd.context) return EINVAL;
    request.srq = srq->engine;
    return 0;
}

void fill_base(ibv_qp& base, ibv_pd* pd, const ibv_qp_init_attr& init) {
    base.qp_context = init.qp_context;
    base.pd = pd;
    base.send_cq = init.send_cq;
    base.recv_cq = init.recv_cq;
    base.srq = init.srq;
    base.state = IBV_QPS_RESET;
    base.qp_type = init.qp_type;
    init_acknowledgements(base);
}

int create_qp(ibv_pd* abi, ibv_qp_init_attr* init, ibv_qp*& out) {
    auto* pd = find<ProtectionDomain>(abi);
    if (pd == nullptr || init == nullptr) return EINVAL;
    hca::Hca::QpRequest request{};
    if (const int error = make_request(*pd, *init, request); error != 0) return error;
    Context* context = pd->context;
    auto qp = std::make_unique<QueuePair>();
    if (const int error = context->hca->create_qp(request, qp->engine); error != 0) return error;
    qp->context = context;
    qp->engine->user = qp.get();
    qp->made_with = *init;
    qp->made_with.cap = request.cap;
    fill_base(qp->base, abi, *init);
    qp->base.qp_num = qp->engine->number();
    hca::QueuePair* engine = qp->engine;
    const int error = publish(qp, out, [&] { context->hca->destroy_qp(engine); });
    if (error == 0) init->cap = request.cap;
    return error;
}

int release_qp(QueuePair& qp) {
    std::uint32_t taken = 0;
    {
        const std::scoped_lock lock(qp.context->events);
        if (const int error = qp.context->hca->destroy_qp(qp.engine); error != 0) return error;
        taken = qp.events_taken;
    }
    wait_for_acknowledgements(qp.base, qp.base.events_completed, taken);
    return 0;
}

int query_qp(ibv_qp* abi, ibv_qp_attr* attr, int mask, ibv_qp_init_attr* init) {
    const auto* qp = find<QueuePair>(abi);
    if (qp == nullptr || attr == nullptr || init == nullptr) return EINVAL;
    ibv_qp_init_attr engine_init{};
    if (const int error = qp->engine->query(*attr, mask, engine_init); error != 0) return error;
    *init = qp->made_with;
    abi->state = attr->qp_state;
    return 0;
}

}  // namespace
}  // namespace weir::ibverbs

using namespace weir::ibverbs;  // The functions below are the C ABI, outside any namespace.

extern "C" {

ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* init) {
    return fenced_object<ibv_srq>([&](ibv_srq*& out) { return create_srq(pd, init, out); });
}
WEIR_ALSO_IN_1_0(ibv_create_srq);

int ibv_modify_srq(ibv_srq* abi, ibv_srq_attr* attr, int mask) {
    return fenced([&] {
        const auto* srq = find<ReceiveQueue>(abi);
        if (srq == nullptr || attr == nullptr) return EINVAL;
        return srq->engine->modify(*attr, mask);
    });
}
WEIR_ALSO_IN_1_0(ibv_modify_srq);

int ibv_query_srq(ibv_srq* abi, ibv_srq_attr* attr) {
    return fenced([&] {
        const auto* srq = find<ReceiveQueue>(abi);
        if (srq == nullptr || attr == nullptr) return EINVAL;
        return srq->engine->query(*attr);
    });
}
WEIR_ALSO_IN_1_0(ibv_query_srq);

int ibv_destroy_srq(ibv_srq* abi) {
    return fenced([abi] { return destroy<ReceiveQueue>(abi, release_srq); });
}
WEIR_ALSO_IN_1_0(ibv_destroy_srq);

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
    return fenced_object<ibv_qp>([&](ibv_qp*& out) { return create_qp(pd, init, out); });
}
WEIR_ALSO_IN_1_0(ibv_create_qp);

int ibv_modify_qp(ibv_qp* abi, ibv_qp_attr* attr, int mask) {
    return fenced([&] {
        const auto* qp = find<QueuePair>(abi);
        if (qp == nullptr || attr == nullptr) return EINVAL;
        const int error = qp->engine->modify(*attr, mask);
        if (error == 0 && (mask & IBV_QP_STATE) != 0) abi->state = attr->qp_state;
        return error;
    });
}
WEIR_ALSO_IN_1_0(ibv_modify_qp);

int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask, ibv_qp_init_attr* init) {
    return fenced([&] { return query_qp(qp, attr, mask, init); });
}
WEIR_ALSO_IN_1_0(ibv_query_qp);

int ibv_destroy_qp(ibv_qp* abi) {
    return fenced([abi] { return destroy<QueuePair>(abi, release_qp); });
}
WEIR_ALSO_IN_1_0(ibv_destroy_qp);

// Our QPs are posted to by ops.post_send; the builder interface (ibv_wr_*) is not offered.
ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp*) {
    return nullptr;
}

int ibv_query_qp_data_in_order(ibv_qp*, ibv_wr_opcode, std::uint32_t) {
    return 0;  // Not promised.
}

int ibv_query_ece(ibv_qp*, ibv_ece*) {
    return EOPNOTSUPP;
}
int ibv_set_ece(ibv_qp*, ibv_ece*) {
    return EOPNOTSUPP;
}

}  // extern "C"

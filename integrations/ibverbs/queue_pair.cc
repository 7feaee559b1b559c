// SPDX-License-Identifier: Apache-2.0
// Queue pairs.
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

namespace {

// What a QP is to be made of, by either verb.
struct QpOrder {
    ibv_pd* pd;
    ibv_qp_init_attr init;
    ibv_xrcd* domain = nullptr;
    bool refuses_own = false;
    bool extended = false;
    std::uint64_t operations = 0;  ///< IBV_QP_EX_WITH_*
};

// The CQ at `abi`, if it is alive and of `context`. False if not.
bool find_queue(ibv_cq* abi, const Context* context, hca::CompletionQueue*& out) {
    const auto* cq = find<CompletionQueue>(abi);
    if (cq == nullptr || cq->context != context) return false;
    out = cq->engine;
    return true;
}

// Finds the engine's side of what a QP is to be made of. All of it must be alive and of one
// context.
int make_request(const QpOrder& order, const Context* context, hca::Hca::QpRequest& request) {
    const auto& init = order.init;
    request = {0, init.qp_type, nullptr, nullptr, nullptr, init.cap, init.sq_sig_all != 0};
    request.refuses_own = order.refuses_own;
    if (init.qp_type == IBV_QPT_XRC_RECV) {
        const auto* domain = find<XrcDomain>(order.domain);
        if (domain == nullptr || domain->context != context) return EINVAL;
        request.xrc_domain = domain->number;
        return 0;
    }
    const auto* pd = find<ProtectionDomain>(order.pd);
    if (pd == nullptr || pd->context != context) return EINVAL;
    request.pd = pd->number;
    if (!find_queue(init.send_cq, context, request.send_cq)) return EINVAL;
    if (init.qp_type == IBV_QPT_XRC_SEND) return init.srq == nullptr ? 0 : EINVAL;
    if (!find_queue(init.recv_cq, context, request.receive_cq)) return EINVAL;
    if (init.srq == nullptr) return 0;
    const auto* srq = find<ReceiveQueue>(init.srq);
    if (srq == nullptr || srq->context != context || srq->domain != nullptr) return EINVAL;
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

// `order.init.cap` is raised to what was given.
int create_qp(Context* context, QpOrder& order, ibv_qp*& out) {
    hca::Hca::QpRequest request{};
    if (const int error = make_request(order, context, request); error != 0) return error;
    auto qp = std::make_unique<QueuePair>();
    if (const int error = context->hca->create_qp(request, qp->engine); error != 0) return error;
    order.init.cap = request.cap;
    hca::QueuePair* engine = qp->engine;
    qp->context = context;
    engine->user = qp.get();
    qp->next_handle = qp.get();
    qp->made_with = order.init;
    fill_base(qp->base, order.init.qp_type == IBV_QPT_XRC_RECV ? nullptr : order.pd, order.init);
    qp->base.qp_num = engine->number();
    if (order.init.qp_type == IBV_QPT_XRC_RECV) qp->domain = find<XrcDomain>(order.domain);
    if (order.extended) {
        qp->builder = std::make_unique<SendBuilder>(*engine, request.cap);
        fill_send_operations(qp->extended, qp->newer, order.init.qp_type, order.operations);
    }
    XrcDomain* domain = qp->domain;
    const int error = publish(qp, out, [&] { context->hca->destroy_qp(engine); });
    if (error == 0 && domain != nullptr) ++domain->user_count;
    return error;
}

int create_plain(ibv_pd* abi, ibv_qp_init_attr* init, ibv_qp*& out) {
    auto* pd = find<ProtectionDomain>(abi);
    if (pd == nullptr || init == nullptr) return EINVAL;
    QpOrder order{abi, *init};
    const int error = create_qp(pd->context, order, out);
    if (error == 0) init->cap = order.init.cap;
    return error;
}

constexpr std::uint32_t kKnownMask =
    IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_CREATE_FLAGS |
    IBV_QP_INIT_ATTR_MAX_TSO_HEADER | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;

// What of the extended attributes a device like this offers.
int read_extended(const ibv_qp_init_attr_ex& init, QpOrder& order) {
    const auto has = [&init](std::uint32_t bit) { return (init.comp_mask & bit) != 0; };
    if ((init.comp_mask & ~kKnownMask) != 0) return EOPNOTSUPP;
    if (has(IBV_QP_INIT_ATTR_MAX_TSO_HEADER) && init.max_tso_header != 0) return EOPNOTSUPP;
    const auto flags = has(IBV_QP_INIT_ATTR_CREATE_FLAGS) ? init.create_flags : 0;
    if ((flags & ~std::uint32_t{IBV_QP_CREATE_BLOCK_SELF_MCAST_LB}) != 0) return EOPNOTSUPP;
    if (flags != 0 && init.qp_type != IBV_QPT_UD) return EINVAL;
    order.refuses_own = flags != 0;
    const bool receives_only = init.qp_type == IBV_QPT_XRC_RECV;
    if (!has(receives_only ? IBV_QP_INIT_ATTR_XRCD : IBV_QP_INIT_ATTR_PD)) return EINVAL;
    order.pd = init.pd;
    order.domain = receives_only ? init.xrcd : nullptr;
    order.extended = has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS);
    if (!order.extended) return 0;
    order.operations = init.send_ops_flags;
    return (init.send_ops_flags & ~send_operations_of(init.qp_type)) != 0 ? EOPNOTSUPP : 0;
}

int create_extended(ibv_context* abi, ibv_qp_init_attr_ex* init, ibv_qp*& out) {
    auto* context = find<Context>(abi);
    if (context == nullptr || init == nullptr) return EINVAL;
    QpOrder order{};
    order.init = {init->qp_context, init->send_cq, init->recv_cq,   init->srq,
                  init->cap,        init->qp_type, init->sq_sig_all};
    if (const int error = read_extended(*init, order); error != 0) return error;
    const int error = create_qp(context, order, out);
    if (error == 0) init->cap = order.init.cap;
    return error;
}

// Handles of one XRC receive QP form a ring, which this guards: events go to one of them.
std::mutex& handle_rings() {
    static auto* const lock = new std::mutex;
    return *lock;
}

int open_shared(ibv_context* abi, const ibv_qp_open_attr* attr, ibv_qp*& out) {
    auto* context = find<Context>(abi);
    constexpr std::uint32_t kNeeds =
        IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    if (context == nullptr || attr == nullptr) return EINVAL;
    if ((attr->comp_mask & ~(kNeeds | IBV_QP_OPEN_ATTR_CONTEXT)) != 0) return EOPNOTSUPP;
    if ((attr->comp_mask & kNeeds) != kNeeds || attr->qp_type != IBV_QPT_XRC_RECV) return EINVAL;
    XrcDomain* domain = find<XrcDomain>(attr->xrcd);
    if (domain == nullptr || domain->context != context) return EINVAL;
    auto qp = std::make_unique<QueuePair>();
    const std::scoped_lock lock(handle_rings());
    const int found = context->hca->open_qp(domain->number, attr->qp_num, qp->engine);
    if (found != 0) return found;
    auto* first = static_cast<QueuePair*>(qp->engine->user);
    hca::QueuePair* engine = qp->engine;
    if (first->context != context) {  // Events of one context would name objects of another.
        context->hca->destroy_qp(engine);
        return EINVAL;
    }
    qp->context = context;
    qp->domain = domain;
    qp->made_with = first->made_with;
    const bool named = (attr->comp_mask & IBV_QP_OPEN_ATTR_CONTEXT) != 0;
    qp->made_with.qp_context = named ? attr->qp_context : nullptr;
    fill_base(qp->base, nullptr, qp->made_with);
    qp->base.qp_num = engine->number();
    qp->base.state = engine->current_state();
    qp->next_handle = first->next_handle;
    QueuePair* entered = qp.get();
    const int error = publish(qp, out, [&] { context->hca->destroy_qp(engine); });
    if (error != 0) return error;
    first->next_handle = entered;
    ++domain->user_count;
    return 0;
}

void leave_ring(QueuePair& qp) {
    QueuePair* before = &qp;
    while (before->next_handle != &qp)
        before = before->next_handle;
    if (before == &qp) return;
    before->next_handle = qp.next_handle;
    qp.engine->user = before;
}

int release_qp(QueuePair& qp) {
    std::uint32_t taken = 0;
    {
        const std::scoped_lock lock(qp.context->events, handle_rings());
        leave_ring(qp);
        if (const int error = qp.context->hca->destroy_qp(qp.engine); error != 0) return error;
        taken = qp.events_taken;
    }
    if (qp.domain != nullptr) --qp.domain->user_count;
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

ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* init) {
    return fenced_object<ibv_qp>([&](ibv_qp*& out) { return create_extended(context, init, out); });
}

ibv_qp* open_qp(ibv_context* context, ibv_qp_open_attr* attr) {
    return fenced_object<ibv_qp>([&](ibv_qp*& out) { return open_shared(context, attr, out); });
}

}  // namespace weir::ibverbs

using namespace weir::ibverbs;  // The functions below are the C ABI, outside any namespace.

extern "C" {

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
    return fenced_object<ibv_qp>([&](ibv_qp*& out) { return create_plain(pd, init, out); });
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

// Null for a QP that was made without send_ops_flags. The pointer is trusted, as by the data path.
ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* abi) {
    auto* qp = reinterpret_cast<QueuePair*>(abi);
    return qp == nullptr || qp->builder == nullptr ? nullptr : &qp->extended;
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

// SPDX-License-Identifier: Apache-2.0
// Shared receive queues, plain and XRC's, and XRC domains.
#include <memory>

#include "abi.h"
#include "events.h"
#include "handles.h"
#include "operations.h"

namespace weir::ibverbs {

int post_srq_recv(ibv_srq* srq, ibv_recv_wr* list, ibv_recv_wr** bad) {
    if (list == nullptr) {
        *bad = nullptr;
        return EINVAL;
    }
    return reinterpret_cast<ReceiveQueue*>(srq)->engine->post(list, bad);
}

namespace {

struct SrqRequest {
    ibv_pd* pd;
    void* srq_context;
    ibv_srq_attr* attr;
    ibv_xrcd* domain = nullptr;  ///< XRC only, as is `cq`.
    ibv_cq* cq = nullptr;
};

int create_engine_srq(const ProtectionDomain& pd, const SrqRequest& request, ReceiveQueue& srq) {
    hca::Hca& hca = *pd.context->hca;
    if (request.domain == nullptr) return hca.create_srq(pd.number, *request.attr, srq.engine);
    srq.domain = find<XrcDomain>(request.domain);
    const auto* cq = find<CompletionQueue>(request.cq);
    if (srq.domain == nullptr || srq.domain->context != pd.context) return EINVAL;
    if (cq == nullptr || cq->context != pd.context) return EINVAL;
    return hca.create_xrc_srq(pd.number, srq.domain->number, cq->engine, *request.attr, srq.engine);
}

int create_srq(const SrqRequest& request, ibv_srq*& out) {
    auto* pd = find<ProtectionDomain>(request.pd);
    if (pd == nullptr) return EINVAL;
    Context* context = pd->context;
    auto srq = std::make_unique<ReceiveQueue>();
    if (const int error = create_engine_srq(*pd, request, *srq); error != 0) return error;
    srq->context = context;
    srq->engine->user = srq.get();
    srq->base.srq_context = request.srq_context;
    srq->base.pd = request.pd;
    init_acknowledgements(srq->base);
    hca::SharedReceiveQueue* engine = srq->engine;
    XrcDomain* domain = srq->domain;
    const int error = publish(srq, out, [&] { context->hca->destroy_srq(engine); });
    if (error == 0 && domain != nullptr) ++domain->user_count;
    return error;
}

int release_srq(ReceiveQueue& srq) {
    std::uint32_t taken = 0;
    {
        const std::scoped_lock lock(srq.context->events);
        if (const int error = srq.context->hca->destroy_srq(srq.engine); error != 0) return error;
        taken = srq.events_taken;
    }
    if (srq.domain != nullptr) --srq.domain->user_count;
    wait_for_acknowledgements(srq.base, srq.base.events_completed, taken);
    return 0;
}

int open_domain(ibv_context* abi, const ibv_xrcd_init_attr* init, ibv_xrcd*& out) {
    constexpr std::uint32_t kBoth = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    auto* context = find<Context>(abi);
    if (context == nullptr || init == nullptr) return EINVAL;
    if ((init->comp_mask & ~kBoth) != 0) return EOPNOTSUPP;
    if (init->comp_mask != kBoth) return EINVAL;
    auto domain = std::make_unique<XrcDomain>();
    const int error = context->hca->open_xrcd(init->fd, init->oflags, domain->number);
    if (error != 0) return error;
    domain->context = context;
    const auto number = domain->number;
    return publish(domain, out, [&] { context->hca->close_xrcd(number); });
}

}  // namespace

ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* init) {
    return fenced_object<ibv_srq>([&](ibv_srq*& out) {
        if (find<Context>(context) == nullptr || init == nullptr) return EINVAL;
        constexpr std::uint32_t kKnown = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
                                         IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
        const auto mask = init->comp_mask;
        const bool typed = (mask & IBV_SRQ_INIT_ATTR_TYPE) != 0;
        const auto type = typed ? init->srq_type : IBV_SRQT_BASIC;
        if ((mask & ~kKnown) != 0) return EOPNOTSUPP;
        if (type != IBV_SRQT_BASIC && type != IBV_SRQT_XRC) return EOPNOTSUPP;
        if ((mask & IBV_SRQ_INIT_ATTR_PD) == 0) return EINVAL;
        const auto* pd = find<ProtectionDomain>(init->pd);
        if (pd == nullptr || pd->context->abi() != context) return EINVAL;
        SrqRequest request{init->pd, init->srq_context, &init->attr};
        if (type == IBV_SRQT_XRC) {
            constexpr std::uint32_t kNeeds = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
            if ((mask & kNeeds) != kNeeds || init->xrcd == nullptr) return EINVAL;
            request.domain = init->xrcd;
            request.cq = init->cq;
        }
        return create_srq(request, out);
    });
}

int get_srq_num(ibv_srq* abi, std::uint32_t* number) {
    return fenced([&] {
        const auto* srq = find<ReceiveQueue>(abi);
        if (srq == nullptr || number == nullptr || srq->domain == nullptr) return EINVAL;
        *number = srq->engine->number();
        return 0;
    });
}

ibv_xrcd* open_xrcd(ibv_context* context, ibv_xrcd_init_attr* init) {
    return fenced_object<ibv_xrcd>([&](ibv_xrcd*& out) { return open_domain(context, init, out); });
}

int close_xrcd(ibv_xrcd* abi) {
    return fenced([abi] {
        return destroy<XrcDomain>(abi, [](XrcDomain& domain) {
            if (domain.user_count != 0) return EBUSY;
            return domain.context->hca->close_xrcd(domain.number);
        });
    });
}

}  // namespace weir::ibverbs

using namespace weir::ibverbs;  // The functions below are the C ABI, outside any namespace.

extern "C" {

ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* init) {
    return fenced_object<ibv_srq>([&](ibv_srq*& out) {
        return init == nullptr ? EINVAL : create_srq({pd, init->srq_context, &init->attr}, out);
    });
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

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
// Memory windows. Type 1 is bound by its own verb, which picks the key; type 2 by posting
// IBV_WR_BIND_MW, which never comes through here.
#include <memory>

#include "abi.h"
#include "handles.h"
#include "operations.h"

namespace weir::ibverbs {

ibv_mw* alloc_mw(ibv_pd* abi, ibv_mw_type type) {
    return fenced_object<ibv_mw>([&](ibv_mw*& out) {
        auto* pd = find<ProtectionDomain>(abi);
        if (pd == nullptr) return EINVAL;
        auto mw = std::make_unique<MemoryWindow>();
        hca::Hca& hca = *pd->context->hca;
        if (const int error = hca.alloc_mw(pd->number, type, mw->key); error != 0) return error;
        mw->context = pd->context;
        mw->type = type;
        mw->base.pd = abi;
        mw->base.type = type;
        mw->base.rkey = mw->key;
        const auto key = mw->key;
        return publish(mw, out, [&] { hca.dealloc_mw(key); });
    });
}

namespace {

int check_bind(const QueuePair* qp, const MemoryWindow* mw, const ibv_mw_bind* bind) {
    if (qp == nullptr || mw == nullptr || bind == nullptr) return EINVAL;
    if (qp->context != mw->context || mw->type != IBV_MW_TYPE_1) return EINVAL;
    if (qp->base.qp_type == IBV_QPT_UD) return EINVAL;
    if (qp->base.pd != mw->base.pd) return EPERM;
    const auto& info = bind->bind_info;
    if (info.mr == nullptr) return info.addr != 0 || info.length != 0 ? EINVAL : 0;
    const auto* mr = find<MemoryRegion>(info.mr);
    return mr == nullptr || mr->context != mw->context ? EINVAL : 0;
}

}  // namespace

int bind_mw(ibv_qp* qp_abi, ibv_mw* mw_abi, ibv_mw_bind* bind) {
    return fenced([&] {
        auto* qp = find<QueuePair>(qp_abi);
        auto* mw = find<MemoryWindow>(mw_abi);
        if (const int error = check_bind(qp, mw, bind); error != 0) return error;
        // The engine takes binds of type 2 from programs, so that none posts a type 1 with a key of
        // its own making: this one is ours.
        ibv_mw posted = mw->base;
        posted.type = IBV_MW_TYPE_2;
        posted.rkey = mw->key;
        ibv_send_wr wr{};
        wr.wr_id = bind->wr_id;
        wr.opcode = IBV_WR_BIND_MW;
        wr.send_flags = bind->send_flags;
        wr.bind_mw.mw = &posted;
        wr.bind_mw.rkey = ibv_inc_rkey(mw->key);
        wr.bind_mw.bind_info = bind->bind_info;
        ibv_send_wr* bad = nullptr;
        if (const int error = qp->engine->post_send(&wr, &bad); error != 0) return error;
        mw->key = wr.bind_mw.rkey;
        mw_abi->rkey = mw->key;
        return 0;
    });
}

int dealloc_mw(ibv_mw* abi) {
    return fenced([abi] {
        return destroy<MemoryWindow>(
            abi, [](MemoryWindow& mw) { return mw.context->hca->dealloc_mw(mw.key); });
    });
}

}  // namespace weir::ibverbs

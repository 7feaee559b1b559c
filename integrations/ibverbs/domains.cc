// SPDX-License-Identifier: Apache-2.0
// Protection domains, and what programs may tell of their threads: thread domains, and parent
// domains that join the two. The engine has one lock, so a thread domain changes nothing but what
// the program may count on anyway; a parent domain's allocators are never called, as no queue of
// ours lies in memory that a device must reach.
#include <memory>

#include "abi.h"
#include "handles.h"
#include "operations.h"

namespace weir::ibverbs {

ibv_td* alloc_td(ibv_context* abi, ibv_td_init_attr* init) {
    return fenced_object<ibv_td>([&](ibv_td*& out) {
        auto* context = find<Context>(abi);
        if (context == nullptr || init == nullptr) return EINVAL;
        if (init->comp_mask != 0) return EOPNOTSUPP;
        auto td = std::make_unique<ThreadDomain>();
        td->context = context;
        return publish(td, out, [] {});
    });
}

int dealloc_td(ibv_td* abi) {
    return fenced([abi] {
        return destroy<ThreadDomain>(
            abi, [](ThreadDomain& td) { return td.user_count != 0 ? EBUSY : 0; });
    });
}

namespace {

int make_parent_domain(ibv_context* abi, const ibv_parent_domain_init_attr* attr, ibv_pd*& out) {
    auto* context = find<Context>(abi);
    if (context == nullptr || attr == nullptr) return EINVAL;
    constexpr std::uint32_t kKnown =
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    if ((attr->comp_mask & ~kKnown) != 0) return EOPNOTSUPP;
    const bool allocates = (attr->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) != 0;
    if (allocates && (attr->alloc == nullptr || attr->free == nullptr)) return EINVAL;
    auto* made_of = find<ProtectionDomain>(attr->pd);
    if (made_of == nullptr || made_of->context != context) return EINVAL;
    if (made_of->made_of != nullptr) return EINVAL;
    ThreadDomain* thread_domain = nullptr;
    if (attr->td != nullptr) {
        thread_domain = find<ThreadDomain>(attr->td);
        if (thread_domain == nullptr || thread_domain->context != context) return EINVAL;
    }
    auto pd = std::make_unique<ProtectionDomain>();
    pd->context = context;
    pd->number = made_of->number;
    pd->made_of = made_of;
    pd->thread_domain = thread_domain;
    if (const int error = publish(pd, out, [] {}); error != 0) return error;
    ++made_of->child_count;
    if (thread_domain != nullptr) ++thread_domain->user_count;
    return 0;
}

}  // namespace

ibv_pd* alloc_parent_domain(ibv_context* context, ibv_parent_domain_init_attr* attr) {
    return fenced_object<ibv_pd>(
        [&](ibv_pd*& out) { return make_parent_domain(context, attr, out); });
}

}  // namespace weir::ibverbs

using namespace weir::ibverbs;  // The functions below are the C ABI, outside any namespace.

extern "C" {

ibv_pd* ibv_alloc_pd(ibv_context* abi) {
    return fenced_object<ibv_pd>([abi](ibv_pd*& out) {
        auto* context = find<Context>(abi);
        if (context == nullptr) return EINVAL;
        auto pd = std::make_unique<ProtectionDomain>();
        pd->context = context;
        pd->number = context->hca->alloc_pd();
        return publish(pd, out, [&] { context->hca->dealloc_pd(pd->number); });
    });
}
WEIR_ALSO_IN_1_0(ibv_alloc_pd);

int ibv_dealloc_pd(ibv_pd* abi) {
    return fenced([abi] {
        return destroy<ProtectionDomain>(abi, [](ProtectionDomain& pd) {
            if (pd.address_handle_count != 0 || pd.child_count != 0) return EBUSY;
            if (pd.made_of == nullptr) return pd.context->hca->dealloc_pd(pd.number);
            --pd.made_of->child_count;
            if (pd.thread_domain != nullptr) --pd.thread_domain->user_count;
            return 0;
        });
    });
}
WEIR_ALSO_IN_1_0(ibv_dealloc_pd);

}  // extern "C"

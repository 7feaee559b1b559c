// SPDX-License-Identifier: Apache-2.0
// Completion queues and completion channels.
#include <algorithm>
#include <memory>

#include "abi.h"
#include "events.h"
#include "handles.h"
#include "operations.h"
#include "read_completion.h"

namespace weir::ibverbs {

int poll_cq(ibv_cq* cq, int count, ibv_wc* completions) {
    return reinterpret_cast<CompletionQueue*>(cq)->engine->poll(count, completions);
}

int req_notify_cq(ibv_cq* cq, int solicited_only) {
    return reinterpret_cast<CompletionQueue*>(cq)->engine->arm(solicited_only != 0);
}

namespace {

int create_channel(ibv_context* abi, ibv_comp_channel*& out) {
    auto* context = find<Context>(abi);
    if (context == nullptr) return EINVAL;
    auto channel = std::make_unique<Channel>();
    if (const int error = hca::CompletionChannel::create(channel->engine); error != 0) return error;
    channel->context = context;
    channel->base.fd = channel->engine->fd();
    return publish(channel, out, [] {});
}

struct CqRequest {
    int entries;
    void* cq_context;
    ibv_comp_channel* channel;
    int vector;
    hca::Hca::CqOptions options{};
    bool single_threaded = false;
};

// A channel's CQs count themselves, so that it outlives them.
void count_queue(Channel* channel, int change) {
    if (channel == nullptr) return;
    channel->queue_count += change;
    channel->base.refcnt = channel->queue_count;
}

int create_cq(ibv_context* abi, const CqRequest& request, std::uint64_t read_flags, ibv_cq*& out) {
    auto* context = find<Context>(abi);
    if (context == nullptr || request.entries <= 0) return EINVAL;
    if (request.vector < 0 || request.vector >= abi->num_comp_vectors) return EINVAL;
    Channel* channel = nullptr;
    if (request.channel != nullptr) {
        channel = find<Channel>(request.channel);
        if (channel == nullptr || channel->context != context) return EINVAL;
    }
    auto cq = std::make_unique<CompletionQueue>();
    auto* events = channel == nullptr ? nullptr : channel->engine.get();
    if (const int error =
            context->hca->create_cq(request.entries, events, request.options, cq->engine);
        error != 0) {
        return error;
    }
    fill_read_operations(cq->base, read_flags);
    cq->context = context;
    cq->channel = channel;
    cq->engine->user = cq.get();
    cq->base.channel = request.channel;
    cq->single_threaded = request.single_threaded;
    cq->base.cq_context = request.cq_context;
    cq->base.cqe = cq->engine->entries();
    init_acknowledgements(cq->base);
    hca::CompletionQueue* engine = cq->engine;
    const int error = publish(cq, out, [&] { context->hca->destroy_cq(engine); });
    if (error != 0) return error;
    const std::scoped_lock lock(context->events);
    count_queue(channel, 1);
    return 0;
}

int release_cq(CompletionQueue& cq) {
    std::uint32_t completions_taken = 0;
    std::uint32_t async_taken = 0;
    {
        const std::scoped_lock lock(cq.context->events);
        if (const int error = cq.context->hca->destroy_cq(cq.engine); error != 0) return error;
        completions_taken = cq.completion_events_taken;
        async_taken = cq.async_events_taken;
    }
    wait_for_acknowledgements(cq.base, cq.base.comp_events_completed, completions_taken);
    wait_for_acknowledgements(cq.base, cq.base.async_events_completed, async_taken);
    const std::scoped_lock lock(cq.context->events);
    count_queue(cq.channel, -1);
    return 0;
}

int release_channel(Channel& channel) {
    const std::scoped_lock lock(channel.context->events);
    return channel.queue_count != 0 ? EBUSY : 0;
}

int check_extended(const ibv_cq_init_attr_ex& init) {
    constexpr std::uint32_t kKnown = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    if ((init.comp_mask & ~kKnown) != 0 || (init.wc_flags & ~kReadable) != 0) return EOPNOTSUPP;
    constexpr std::uint32_t kFlags =
        IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    const bool flagged = (init.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0;
    if (flagged && (init.flags & ~kFlags) != 0) return EOPNOTSUPP;
    if (init.cqe == 0 || init.cqe > INT32_MAX || init.comp_vector > INT32_MAX) return EINVAL;
    if ((init.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD) == 0) return 0;
    const auto* parent = find<ProtectionDomain>(init.parent_domain);
    return parent == nullptr || parent->made_of == nullptr ? EINVAL : 0;
}

}  // namespace

ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* init) {
    ibv_cq* cq = fenced_object<ibv_cq>([&](ibv_cq*& out) {
        if (init == nullptr) return EINVAL;
        if (const int error = check_extended(*init); error != 0) return error;
        const bool flagged = (init->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0;
        const auto flags = flagged ? init->flags : 0;
        CqRequest request{static_cast<int>(init->cqe), init->cq_context, init->channel,
                          static_cast<int>(init->comp_vector)};
        request.options.ignore_overrun = (flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0;
        request.options.stamped = (init->wc_flags & kStamped) != 0;
        request.single_threaded = (flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED) != 0;
        return create_cq(context, request, init->wc_flags | kExtended, out);
    });
    return reinterpret_cast<ibv_cq_ex*>(cq);
}

// Events are raised at once: the device's capabilities say that there is no moderation.
int modify_cq(ibv_cq* abi, ibv_modify_cq_attr* attr) {
    return fenced([&] {
        if (find<CompletionQueue>(abi) == nullptr || attr == nullptr) return EINVAL;
        return (attr->attr_mask & ~std::uint32_t{IBV_CQ_ATTR_MODERATE}) != 0 ? EINVAL : EOPNOTSUPP;
    });
}

}  // namespace weir::ibverbs

using namespace weir::ibverbs;  // The functions below are the C ABI, outside any namespace.

extern "C" {

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
    return fenced_object<ibv_comp_channel>(
        [context](ibv_comp_channel*& out) { return create_channel(context, out); });
}

int ibv_destroy_comp_channel(ibv_comp_channel* abi) {
    return fenced([abi] { return destroy<Channel>(abi, release_channel); });
}

ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel,
                      int comp_vector) {
    return fenced_object<ibv_cq>([&](ibv_cq*& out) {
        return create_cq(context, {cqe, cq_context, channel, comp_vector}, 0, out);
    });
}
WEIR_ALSO_IN_1_0(ibv_create_cq);

int ibv_resize_cq(ibv_cq* abi, int cqe) {
    return fenced([&] {
        const auto* cq = find<CompletionQueue>(abi);
        if (cq == nullptr || cqe <= 0) return EINVAL;
        const int error = cq->engine->resize(cqe);
        if (error == 0) abi->cqe = cq->engine->entries();
        return error;
    });
}
WEIR_ALSO_IN_1_0(ibv_resize_cq);

int ibv_destroy_cq(ibv_cq* abi) {
    return fenced([abi] { return destroy<CompletionQueue>(abi, release_cq); });
}
WEIR_ALSO_IN_1_0(ibv_destroy_cq);

int ibv_get_cq_event(ibv_comp_channel* abi, ibv_cq** cq, void** cq_context) {
    Channel* channel = nullptr;
    fenced([&] {
        channel = find<Channel>(abi);
        return 0;
    });
    if (channel == nullptr || cq == nullptr || cq_context == nullptr) return minus_one_if(EINVAL);
    return minus_one_if(wait_and_take(channel->engine->fd(), channel->context->events, [&] {
        weir::hca::CompletionQueue* engine = nullptr;
        if (const int error = channel->engine->take(engine); error != 0) return error;
        auto* taken = static_cast<CompletionQueue*>(engine->user);
        ++taken->completion_events_taken;
        *cq = taken->abi();
        *cq_context = taken->base.cq_context;
        return 0;
    }));
}
WEIR_ALSO_IN_1_0(ibv_get_cq_event);

void ibv_ack_cq_events(ibv_cq* abi, unsigned int nevents) {
    fenced([&] {
        if (HandleTable::instance().find_even_claimed<CompletionQueue>(abi) != nullptr)
            acknowledge(abi, abi->comp_events_completed, nevents);
        return 0;
    });
}
WEIR_ALSO_IN_1_0(ibv_ack_cq_events);

}  // extern "C"

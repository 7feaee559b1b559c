// SPDX-License-Identifier: Apache-2.0
// Asynchronous events: of the device, of its ports, and of queues and queue pairs.
#include "events.h"

#include "handles.h"

namespace weir::ibverbs {
namespace {

// Puts an engine's event into the program's terms and counts it as taken. REQUIRES: context.events
// is held, so the object is still there.
void translate(const hca::AsyncEvent& from, ibv_async_event& to) {
    to = {};
    to.event_type = from.type;
    if (from.cq != nullptr) {
        auto* cq = static_cast<CompletionQueue*>(from.cq->user);
        ++cq->async_events_taken;
        to.element.cq = cq->abi();
    } else if (from.qp != nullptr) {
        auto* qp = static_cast<QueuePair*>(from.qp->user);
        ++qp->events_taken;
        to.element.qp = &qp->base;
    } else if (from.srq != nullptr) {
        auto* srq = static_cast<ReceiveQueue*>(from.srq->user);
        ++srq->events_taken;
        to.element.srq = &srq->base;
    } else {
        to.element.port_num = from.port;
    }
}

enum class Subject { kCompletionQueue, kQueuePair, kReceiveQueue, kDevice };

Subject subject_of(ibv_event_type type) {
    switch (type) {
        case IBV_EVENT_CQ_ERR:
            return Subject::kCompletionQueue;
        case IBV_EVENT_QP_FATAL:
        case IBV_EVENT_QP_REQ_ERR:
        case IBV_EVENT_QP_ACCESS_ERR:
        case IBV_EVENT_COMM_EST:
        case IBV_EVENT_SQ_DRAINED:
        case IBV_EVENT_PATH_MIG:
        case IBV_EVENT_PATH_MIG_ERR:
        case IBV_EVENT_QP_LAST_WQE_REACHED:
            return Subject::kQueuePair;
        case IBV_EVENT_SRQ_ERR:
        case IBV_EVENT_SRQ_LIMIT_REACHED:
            return Subject::kReceiveQueue;
        default:
            return Subject::kDevice;
    }
}

template <class Object>
void acknowledge_one(typename Object::Abi* abi) {
    auto* object = HandleTable::instance().find_even_claimed<Object>(abi);
    if (object != nullptr) acknowledge(abi, object->base.events_completed, 1);
}

void acknowledge_event(const ibv_async_event& event) {
    switch (subject_of(event.event_type)) {
        case Subject::kCompletionQueue:
            if (HandleTable::instance().find_even_claimed<CompletionQueue>(event.element.cq))
                acknowledge(event.element.cq, event.element.cq->async_events_completed, 1);
            break;
        case Subject::kQueuePair:
            acknowledge_one<QueuePair>(event.element.qp);
            break;
        case Subject::kReceiveQueue:
            acknowledge_one<ReceiveQueue>(event.element.srq);
            break;
        case Subject::kDevice:
            break;
    }
}

}  // namespace
}  // namespace weir::ibverbs

using namespace weir::ibverbs;  // The functions below are the C ABI, outside any namespace.

extern "C" {

int ibv_get_async_event(ibv_context* abi, ibv_async_event* event) {
    Context* context = nullptr;
    fenced([&] {
        context = find<Context>(abi);
        return 0;
    });
    if (context == nullptr || event == nullptr) return minus_one_if(EINVAL);
    return minus_one_if(wait_and_take(context->hca->async_fd(), context->events, [&] {
        weir::hca::AsyncEvent taken{};
        const int error = context->hca->take_async(taken);
        if (error == 0) translate(taken, *event);
        return error;
    }));
}
WEIR_ALSO_IN_1_0(ibv_get_async_event);

void ibv_ack_async_event(ibv_async_event* event) {
    if (event == nullptr) return;
    fenced([event] {
        acknowledge_event(*event);
        return 0;
    });
}
WEIR_ALSO_IN_1_0(ibv_ack_async_event);

}  // extern "C"

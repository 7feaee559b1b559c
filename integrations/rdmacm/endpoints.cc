// SPDX-License-Identifier: Apache-2.0
// Endpoints: identifiers made from address information, and requests taken from listening ones.
// They are sync identifiers, and most of this is said in terms of the public functions.
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include <rdma/rdma_verbs.h>

#include "abi.h"
#include "cm.h"

namespace weir::rdmacm {
namespace {

constexpr int kTimeoutMs = 2000;

/// Runs `body` on the live identifier, with the lock held.
template <class Body>
int with(rdma_cm_id* abi, Body&& body) {
    return ibverbs::fenced([&] {
        auto& cm = Cm::instance();
        const std::lock_guard guard(cm.lock);
        auto* id = cm.find(abi);
        return id == nullptr ? EINVAL : body(*id);
    });
}

int resolve(rdma_cm_id* id, const rdma_addrinfo& info) {
    if (rdma_resolve_addr(id, info.ai_src_addr, info.ai_dst_addr, kTimeoutMs) != 0) return errno;
    const int unresolved = info.ai_route_len != 0
                               ? rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH,
                                                 info.ai_route, info.ai_route_len)
                               : rdma_resolve_route(id, kTimeoutMs);
    return unresolved != 0 ? errno : 0;
}

int make_passive(rdma_cm_id* id, const rdma_addrinfo& info, ibv_pd* pd,
                 const ibv_qp_init_attr* init) {
    if (rdma_bind_addr(id, info.ai_src_addr) != 0) return errno;
    return with(id, [&](Identifier& own) {
        if (init != nullptr) {
            own.request_qp = *init;
            own.request_qp->qp_type = static_cast<ibv_qp_type>(info.ai_qp_type);
        }
        own.abi.pd = pd;
        return 0;
    });
}

int make_active(rdma_cm_id* id, const rdma_addrinfo& info, ibv_pd* pd, ibv_qp_init_attr* init) {
    if (const int error = resolve(id, info); error != 0) return error;
    if (init != nullptr) {
        init->qp_type = static_cast<ibv_qp_type>(info.ai_qp_type);
        if (rdma_create_qp(id, pd, init) != 0) return errno;
    }
    if (info.ai_connect_len == 0) return 0;
    return with(id, [&](Identifier& own) {
        const auto* data = static_cast<const std::uint8_t*>(info.ai_connect);
        own.connect_data.assign(data, data + info.ai_connect_len);
        return 0;
    });
}

int create_ep(rdma_cm_id** out, const rdma_addrinfo* info, ibv_pd* pd, ibv_qp_init_attr* init) {
    if (out == nullptr || info == nullptr) return EINVAL;
    rdma_cm_id* id = nullptr;
    if (rdma_create_id(nullptr, &id, nullptr, static_cast<rdma_port_space>(info->ai_port_space)) !=
        0)
        return errno;
    int error = with(id, [&](Identifier& own) {
        if (info->ai_qp_type != 0) own.abi.qp_type = static_cast<ibv_qp_type>(info->ai_qp_type);
        return 0;
    });
    if (error == 0)
        error = (info->ai_flags & RAI_PASSIVE) != 0 ? make_passive(id, *info, pd, init)
                                                    : make_active(id, *info, pd, init);
    if (error != 0) {
        rdma_destroy_ep(id);
        return error;
    }
    *out = id;
    return 0;
}

int get_request(rdma_cm_id* listener, rdma_cm_id** out) {
    if (out == nullptr) return EINVAL;
    rdma_cm_event* done = nullptr;
    const int error = with(listener, [&](Identifier& own) {
        if (!own.sync || own.step != Step::kListening) return EINVAL;
        done = std::exchange(own.abi.event, nullptr);
        return 0;
    });
    if (error != 0) return error;
    if (done != nullptr) rdma_ack_cm_event(done);
    rdma_cm_event* event = nullptr;
    if (const int failed = wait_for_event(listener->channel, &event); failed != 0) return failed;
    int status = event->status;
    if (status == 0 && event->event != RDMA_CM_EVENT_CONNECT_REQUEST) status = EINVAL;
    if (status != 0) {
        rdma_ack_cm_event(event);
        return status < 0 ? -status : status;
    }
    rdma_cm_id* id = event->id;
    std::optional<ibv_qp_init_attr> init;
    with(listener, [&](Identifier& own) {
        init = own.request_qp;
        return 0;
    });
    if (init && rdma_create_qp(id, listener->pd, &*init) != 0) {
        const int failed = errno;
        rdma_ack_cm_event(event);
        rdma_destroy_id(id);
        return failed;
    }
    id->event = event;  // acknowledged by the next call that waits
    *out = id;
    return 0;
}

}  // namespace
}  // namespace weir::rdmacm

using namespace weir::rdmacm;  // The functions below are the C ABI, outside any namespace.
using weir::ibverbs::minus_one_if;

extern "C" {

int rdma_create_ep(rdma_cm_id** id, rdma_addrinfo* info, ibv_pd* pd, ibv_qp_init_attr* init) {
    return minus_one_if(create_ep(id, info, pd, init));
}

void rdma_destroy_ep(rdma_cm_id* id) {
    if (id == nullptr) return;
    rdma_destroy_qp(id);
    rdma_destroy_srq(id);
    rdma_destroy_id(id);
}

int rdma_get_request(rdma_cm_id* listener, rdma_cm_id** id) {
    return minus_one_if(get_request(listener, id));
}

}  // extern "C"

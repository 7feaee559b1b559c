// SPDX-License-Identifier: Apache-2.0
// What releases after 44 add to rdma_cma.h: names resolved behind an identifier, and events of the
// program's own. Their event types are known by value, as the installed headers have no names for
// them.
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "abi.h"
#include "cm.h"

namespace weir::rdmacm {
namespace {

constexpr int kAddrInfoResolved = 16;  // rdma_cm_event_type
constexpr int kAddrInfoError = 17;
constexpr int kUser = 18;
constexpr int kBySubnetAdministrator = 0x10;  ///< RAI_SA
constexpr int kByDns = 0x20;                  ///< RAI_DNS

/// Queues an event of a type that is beyond the range of the installed headers' enumeration.
Event* raise(Identifier& id, int type, int status) {
    auto* event = Cm::instance().raise(id, RDMA_CM_EVENT_ADDR_RESOLVED, status);
    static_assert(sizeof event->abi.event == sizeof type);
    if (event != nullptr) std::memcpy(&event->abi.event, &type, sizeof type);
    return event;
}

/// Our tables and the system's resolver answer at once: what is left to say is an event.
int resolve(rdma_cm_id* abi, const char* node, const char* service, const rdma_addrinfo* hints,
            bool& sync) {
    // Service records are the subnet administrator's, and there is none to ask.
    if (hints != nullptr && (hints->ai_flags & kBySubnetAdministrator) != 0) return EOPNOTSUPP;
    rdma_addrinfo wish{};
    if (hints != nullptr) wish = *hints;
    wish.ai_flags &= ~kByDns;
    rdma_addrinfo* found = nullptr;
    auto& cm = Cm::instance();
    {
        const std::lock_guard guard(cm.lock);
        const auto* id = cm.find(abi);
        if (id == nullptr || (node == nullptr && service == nullptr && hints == nullptr))
            return EINVAL;
        if (id->names_asked) return EBUSY;
    }
    // The system's resolver may take its time: not under the lock.
    const bool good =
        rdma_getaddrinfo(node, service, hints != nullptr ? &wish : nullptr, &found) == 0;
    const std::lock_guard guard(cm.lock);
    auto* id = cm.find(abi);
    if (id == nullptr || id->names_asked) {
        rdma_freeaddrinfo(found);
        return id == nullptr ? EINVAL : EBUSY;
    }
    sync = id->sync;
    id->names.reset(good ? found : nullptr);
    id->names_asked = good;
    raise(*id, good ? kAddrInfoResolved : kAddrInfoError, good ? 0 : -ENODATA);
    return 0;
}

int take_names(rdma_cm_id* abi, rdma_addrinfo*& out) {
    auto& cm = Cm::instance();
    const std::lock_guard guard(cm.lock);
    auto* id = cm.find(abi);
    if (id == nullptr) return EINVAL;
    if (!id->names_asked) return ENOENT;
    out = id->names.release();
    id->names_asked = false;
    return 0;
}

int write_event(rdma_cm_id* abi, int type, int status, std::uint64_t argument) {
    if (type != kUser) return EINVAL;
    auto& cm = Cm::instance();
    const std::lock_guard guard(cm.lock);
    auto* id = cm.find(abi);
    if (id == nullptr) return EINVAL;
    auto* event = raise(*id, kUser, status);
    if (event == nullptr) return EINVAL;
    std::memcpy(&event->abi.param, &argument, sizeof argument);
    return 0;
}

}  // namespace
}  // namespace weir::rdmacm

using namespace weir::rdmacm;  // The functions below are the C ABI, outside any namespace.
using weir::ibverbs::fenced;
using weir::ibverbs::minus_one_if;

extern "C" {

int rdma_resolve_addrinfo(rdma_cm_id* id, const char* node, const char* service,
                          const rdma_addrinfo* hints) {
    bool sync = false;
    int error = fenced([&] { return resolve(id, node, service, hints, sync); });
    if (error == 0) error = complete(id, sync);
    return minus_one_if(error);
}

int rdma_query_addrinfo(rdma_cm_id* id, rdma_addrinfo** info) {
    return minus_one_if(fenced([&] { return info == nullptr ? EINVAL : take_names(id, *info); }));
}

int rdma_write_cm_event(rdma_cm_id* id, int event, int status, std::uint64_t arg) {
    return minus_one_if(fenced([&] { return write_event(id, event, status, arg); }));
}

}  // extern "C"

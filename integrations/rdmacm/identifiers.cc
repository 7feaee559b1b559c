// SPDX-License-Identifier: Apache-2.0
// Identifiers: made, destroyed, moved between channels, their options and ports.
#include <arpa/inet.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "abi.h"
#include "cm.h"

namespace weir::rdmacm {
namespace {

bool is_port_space(rdma_port_space ps) {
    return ps == RDMA_PS_TCP || ps == RDMA_PS_UDP || ps == RDMA_PS_IPOIB || ps == RDMA_PS_IB;
}

ibv_qp_type type_of(rdma_port_space ps) {
    return ps == RDMA_PS_TCP || ps == RDMA_PS_IB ? IBV_QPT_RC : IBV_QPT_UD;
}

int create_id(rdma_event_channel* abi, rdma_cm_id** out, void* context, rdma_port_space ps) {
    if (out == nullptr || !is_port_space(ps)) return EINVAL;
    auto& cm = Cm::instance();
    const std::lock_guard guard(cm.lock);
    if (const int error = cm.open_devices(); error != 0) return error;
    auto* channel = abi == nullptr ? cm.make_channel() : cm.find_channel(abi);
    if (channel == nullptr) return abi == nullptr ? errno : EINVAL;
    auto& id = cm.make_identifier(*channel, context, ps, type_of(ps));
    id.sync = abi == nullptr;
    *out = &id.abi;
    return 0;
}

int destroy_id(rdma_cm_id* abi) {
    auto& cm = Cm::instance();
    std::unique_lock guard(cm.lock);
    auto* id = cm.find(abi);
    if (id == nullptr) return EINVAL;
    if (id->sync && abi->event != nullptr) {
        cm.acknowledge(abi->event);
        abi->event = nullptr;
    }
    cm.drop_events_of(*id);
    id->ending = true;
    cm.drop_connection(*id);
    cm.acknowledged.wait(guard, [id] { return id->events_acknowledged == id->events_taken; });
    auto* own_channel = id->sync ? id->channel : nullptr;
    cm.retire(*id);
    if (own_channel != nullptr) cm.drop_channel(*own_channel);
    return 0;
}

int migrate_id(rdma_cm_id* abi, rdma_event_channel* to) {
    auto& cm = Cm::instance();
    std::unique_lock guard(cm.lock);
    auto* id = cm.find(abi);
    if (id == nullptr) return EINVAL;
    auto* channel = to == nullptr ? cm.make_channel() : cm.find_channel(to);
    if (channel == nullptr) return to == nullptr ? errno : EINVAL;
    if (id->sync && abi->event != nullptr) {
        cm.acknowledge(abi->event);
        abi->event = nullptr;
    }
    auto* own_channel = id->sync ? id->channel : nullptr;
    cm.move_events(*id, *channel);
    id->sync = to == nullptr;
    if (own_channel != nullptr && own_channel != channel) cm.drop_channel(*own_channel);
    cm.acknowledged.wait(guard, [id] { return id->events_acknowledged == id->events_taken; });
    return 0;
}

template <class Value>
bool read_option(const void* value, std::size_t size, Value& out) {
    if (value == nullptr || size != sizeof out) return false;
    std::memcpy(&out, value, sizeof out);
    return true;
}

int set_id_option(Identifier& id, int name, const void* value, std::size_t size) {
    const bool early = id.step == Step::kIdle || id.step == Step::kBound;
    std::uint8_t byte = 0;
    int number = 0;
    switch (name) {
        case RDMA_OPTION_ID_TOS:
            if (!read_option(value, size, byte)) return EINVAL;
            id.type_of_service = byte;
            return 0;
        case RDMA_OPTION_ID_REUSEADDR:
            if (!read_option(value, size, number) || !early) return EINVAL;
            id.reuse_address = number != 0;
            return 0;
        case RDMA_OPTION_ID_AFONLY:
            if (!read_option(value, size, number) || !early) return EINVAL;
            id.ipv6_only = number != 0;
            return 0;
        case RDMA_OPTION_ID_ACK_TIMEOUT:
            if (!read_option(value, size, byte) || byte > 31) return EINVAL;
            id.ack_timeout = byte;
            return 0;
        default:
            return ENOSYS;
    }
}

/// The program brings the route along. It can name no other than the fabric's own, so all there is
/// to do is to go on as if it had been asked for.
int set_path_option(Cm& cm, Identifier& id, const void* value, std::size_t size) {
    if (value == nullptr || size == 0 || size % sizeof(ibv_path_data) != 0) return EINVAL;
    if (id.step != Step::kAddressResolved || id.target == nullptr) return EINVAL;
    id.step = Step::kRouteResolved;
    cm.raise(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
    return 0;
}

int set_option(rdma_cm_id* abi, int level, int name, const void* value, std::size_t size,
               bool& sync) {
    auto& cm = Cm::instance();
    const std::lock_guard guard(cm.lock);
    auto* id = cm.find(abi);
    if (id == nullptr) return EINVAL;
    if (level == RDMA_OPTION_ID) return set_id_option(*id, name, value, size);
    if (level != RDMA_OPTION_IB || name != RDMA_OPTION_IB_PATH) return ENOSYS;
    sync = id->sync;
    return set_path_option(cm, *id, value, size);
}

__be16 port_of(const sockaddr& address) {
    const auto endpoint = Endpoint::from(&address);
    return endpoint ? htons(endpoint->port) : 0;
}

}  // namespace
}  // namespace weir::rdmacm

using namespace weir::rdmacm;  // The functions below are the C ABI, outside any namespace.
using weir::ibverbs::fail_null;
using weir::ibverbs::fenced;
using weir::ibverbs::minus_one_if;

extern "C" {

int rdma_create_id(rdma_event_channel* channel, rdma_cm_id** id, void* context,
                   rdma_port_space ps) {
    return minus_one_if(fenced([&] { return create_id(channel, id, context, ps); }));
}

int rdma_destroy_id(rdma_cm_id* id) {
    return minus_one_if(fenced([id] { return destroy_id(id); }));
}

int rdma_migrate_id(rdma_cm_id* id, rdma_event_channel* channel) {
    return minus_one_if(fenced([&] { return migrate_id(id, channel); }));
}

int rdma_set_option(rdma_cm_id* id, int level, int name, void* value, size_t size) {
    bool sync = false;
    int error = fenced([&] { return set_option(id, level, name, value, size, sync); });
    if (error == 0) error = complete(id, sync);
    return minus_one_if(error);
}

__be16 rdma_get_src_port(rdma_cm_id* id) {
    return id == nullptr ? 0 : port_of(id->route.addr.src_addr);
}

__be16 rdma_get_dst_port(rdma_cm_id* id) {
    return id == nullptr ? 0 : port_of(id->route.addr.dst_addr);
}

ibv_context** rdma_get_devices(int* count) {
    ibv_context** list = nullptr;
    const int error = fenced([&] {
        auto& cm = Cm::instance();
        const std::lock_guard guard(cm.lock);
        if (const int unopened = cm.open_devices(); unopened != 0) return unopened;
        const auto& devices = cm.devices();
        list = static_cast<ibv_context**>(std::calloc(devices.size() + 1, sizeof *list));
        if (list == nullptr) return ENOMEM;
        for (std::size_t i = 0; i < devices.size(); ++i)
            list[i] = devices[i]->verbs();
        if (count != nullptr) *count = static_cast<int>(devices.size());
        return 0;
    });
    if (error == 0) return list;
    if (count != nullptr) *count = 0;
    return fail_null<ibv_context*>(error);
}

void rdma_free_devices(ibv_context** list) {
    std::free(list);
}

int rdma_set_local_ece(rdma_cm_id* abi, ibv_ece* ece) {
    return minus_one_if(fenced([&] {
        auto& cm = Cm::instance();
        const std::lock_guard guard(cm.lock);
        auto* id = cm.find(abi);
        if (id == nullptr || abi->qp != nullptr || ece == nullptr || ece->vendor_id == 0 ||
            ece->comp_mask != 0)
            return EINVAL;
        id->local_ece = *ece;
        return 0;
    }));
}

int rdma_get_remote_ece(rdma_cm_id* abi, ibv_ece* ece) {
    return minus_one_if(fenced([&] {
        auto& cm = Cm::instance();
        const std::lock_guard guard(cm.lock);
        const auto* id = cm.find(abi);
        if (id == nullptr || abi->qp != nullptr || ece == nullptr) return EINVAL;
        *ece = id->remote_ece;
        return 0;
    }));
}

}  // extern "C"

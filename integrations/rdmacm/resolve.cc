// SPDX-License-Identifier: Apache-2.0
// Addresses: bound, resolved to a port of the fabric, listened on.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "abi.h"
#include "cm.h"

namespace weir::rdmacm {
namespace {

constexpr std::uint16_t kFirstEphemeral = 32768;
constexpr std::uint16_t kLastEphemeral = 60999;
constexpr int kBacklogMax = 1024;

/// Takes the port of `endpoint` by one device.
int claim_port(Identifier& id, Device& device, const Endpoint& endpoint) {
    weir_service wish{};
    wish.service_id = service_of(id, endpoint);
    wish.token = id.token;
    wish.any_address = endpoint.is_any() ? 1 : 0;
    wish.shareable = id.reuse_address ? 1 : 0;
    wish.families = endpoint.family_bit();
    if (endpoint.family == Family::kIpv6 && endpoint.is_any() && !id.ipv6_only.value_or(false))
        wish.families |= WEIR_IPV4;
    std::uint32_t index = 0;
    const int error = weir_service_claim(device.verbs(), &wish, &index);
    if (error == 0) id.claims.push_back({&device, index});
    return error;
}

int claim_ephemeral_port(Cm& cm, Identifier& id, Device& device, Endpoint& endpoint) {
    constexpr std::uint32_t kCount = kLastEphemeral - kFirstEphemeral + 1;
    const std::uint32_t first = cm.random() % kCount;
    for (std::uint32_t i = 0; i < kCount; ++i) {
        endpoint.port = static_cast<std::uint16_t>(kFirstEphemeral + (first + i) % kCount);
        const int error = claim_port(id, device, endpoint);
        if (error != EADDRINUSE) return error;
    }
    return EADDRNOTAVAIL;
}

/// Says in an InfiniBand address which port space it means for this identifier.
int settle_space(const Identifier& id, Endpoint& endpoint) {
    const auto space = endpoint.space_for(static_cast<std::uint16_t>(id.abi.ps));
    if (!space) return EPROTONOSUPPORT;
    if (endpoint.family != Family::kInfiniband) return 0;
    endpoint.space = *space;
    endpoint.space_mask = RDMA_IB_IP_PS_MASK >> 16U;
    return 0;
}

/// REQUIRES: the identifier is idle.
int bind_to(Cm& cm, Identifier& id, Endpoint endpoint) {
    if (const int error = settle_space(id, endpoint); error != 0) return error;
    Device* device = nullptr;
    std::uint8_t port_number = 1;
    if (!endpoint.is_any()) {
        if (const auto* port = cm.neighbourhood().find(endpoint); port != nullptr) {
            device = cm.device_of_node(port->node);
            port_number = port->number;
        } else if (is_this_machine(endpoint)) {
            device = cm.devices().front().get();
        }
        if (device == nullptr) return EADDRNOTAVAIL;
    }
    Device& taker = device == nullptr ? *cm.devices().front() : *device;
    const int error = endpoint.port == 0 ? claim_ephemeral_port(cm, id, taker, endpoint)
                                         : claim_port(id, taker, endpoint);
    if (error != 0) return error == ENOSPC ? ENOMEM : error;
    if (device != nullptr) cm.attach(id, *device, port_number);
    id.source = endpoint;
    id.any_address = endpoint.is_any();
    id.step = Step::kBound;
    id.show_addresses();
    return 0;
}

/// Puts the identifier on the device that leads to `target`: that of the same rail, if there are
/// several.
int choose_device(Cm& cm, Identifier& id, const weir_port* target, bool by_machine) {
    if (id.device == nullptr) {
        const auto rail = target == nullptr ? 0 : cm.neighbourhood().rail_of(target->node);
        const auto& devices = cm.devices();
        cm.attach(id, *devices[rail < devices.size() ? rail : 0], 1);
    }
    id.target = target;
    if (!id.source.is_any()) return 0;
    const auto* own = cm.neighbourhood().first_of_node(id.device->node());
    if (own == nullptr) return ENODEV;
    auto source = address_of(*own, id.destination.family, id.source.port);
    if (by_machine && !id.destination.is_any() && source.family != Family::kInfiniband)
        source.ip = id.destination.ip;
    source.space = id.destination.space;
    source.space_mask = id.destination.space_mask;
    id.source = source;
    return 0;
}

/// An address of this machine: whichever host listens there, the own one first.
const weir_port* target_on_machine(Cm& cm, const Identifier& id) {
    auto& any = id.device == nullptr ? *cm.devices().front() : *id.device;
    weir_place place{};
    const auto service = service_of(id, id.destination);
    const int error =
        weir_service_find(any.verbs(), service, id.destination.family_bit(), WEIR_ANY_NODE, &place);
    return cm.neighbourhood().first_of_node(error == 0 ? place.node : any.node());
}

/// The answer comes as an event, whatever it is.
void resolve_to(Cm& cm, Identifier& id, const Endpoint& destination) {
    id.destination = destination;
    const bool group = destination.is_group();
    const auto* target = cm.neighbourhood().find(destination);
    const bool by_machine =
        target == nullptr && !group && (destination.is_any() || is_this_machine(destination));
    id.by_machine = by_machine;
    if (by_machine) target = target_on_machine(cm, id);
    const int error =
        target == nullptr && !group ? EHOSTUNREACH : choose_device(cm, id, target, by_machine);
    if (error != 0) {
        id.show_addresses();
        cm.raise(id, RDMA_CM_EVENT_ADDR_ERROR, -error);
        return;
    }
    id.step = Step::kAddressResolved;
    id.show_addresses();
    auto& ib = id.abi.route.addr.addr.ibaddr;
    const auto* own = cm.neighbourhood().first_of_node(id.device->node());
    if (own != nullptr) ib.sgid = own->gid;
    if (target != nullptr) ib.dgid = target->gid;
    if (group) ib.dgid = group_gid(id, destination);
    ib.pkey = 0xffff;
    cm.raise(id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
}

int bind_addr(rdma_cm_id* abi, const sockaddr* address) {
    auto& cm = Cm::instance();
    const std::lock_guard guard(cm.lock);
    auto* id = cm.find(abi);
    if (id == nullptr || address == nullptr) return EINVAL;
    const auto endpoint = Endpoint::from(address);
    if (!endpoint) return EAFNOSUPPORT;
    if (id->step != Step::kIdle) return EINVAL;
    return bind_to(cm, *id, *endpoint);
}

int resolve_addr(rdma_cm_id* abi, const sockaddr* source, const sockaddr* destination, bool& sync) {
    auto& cm = Cm::instance();
    const std::lock_guard guard(cm.lock);
    auto* id = cm.find(abi);
    if (id == nullptr || destination == nullptr) return EINVAL;
    auto to = Endpoint::from(destination);
    if (!to) return EAFNOSUPPORT;
    if (const int error = settle_space(*id, *to); error != 0) return error;
    if (id->step == Step::kIdle) {
        const auto from = source == nullptr ? Endpoint::any(to->family) : Endpoint::from(source);
        if (!from) return EAFNOSUPPORT;
        if (const int error = bind_to(cm, *id, *from); error != 0) return error;
    }
    if (id->step != Step::kBound) return EINVAL;
    if (!id->source.is_any() && id->source.family != to->family) return EINVAL;
    sync = id->sync;
    resolve_to(cm, *id, *to);
    return 0;
}

int resolve_route(rdma_cm_id* abi, bool& sync) {
    auto& cm = Cm::instance();
    const std::lock_guard guard(cm.lock);
    auto* id = cm.find(abi);
    if (id == nullptr || id->step != Step::kAddressResolved) return EINVAL;
    const auto* own = cm.neighbourhood().first_of_node(id->device->node());
    ibv_port_attr port{};
    if (own == nullptr || ibv_query_port(id->device->verbs(), id->abi.port_num, &port) != 0)
        return ENODEV;
    sync = id->sync;
    id->agreement.mtu = port.active_mtu;
    // To a group no path leads: it is joined.
    if (port.state != IBV_PORT_ACTIVE || id->target == nullptr) {
        cm.raise(*id, RDMA_CM_EVENT_ROUTE_ERROR, -ENETUNREACH);
        return 0;
    }
    describe_path(*id, *own);
    id->step = Step::kRouteResolved;
    cm.raise(*id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
    return 0;
}

int listen_on(Cm& cm, Identifier& id) {
    if (const int error = cm.start(); error != 0) return error;
    // Reached by every device of the host, unless it is bound to one.
    for (const auto& device : cm.devices()) {
        if (id.device != nullptr && id.device != device.get()) continue;
        const bool held = std::any_of(id.claims.begin(), id.claims.end(), [&](const auto& claim) {
            return claim.device == device.get();
        });
        if (held) continue;
        if (const int error = claim_port(id, *device, id.source); error != 0) return error;
    }
    for (const auto& claim : id.claims) {
        const int error =
            weir_service_listen(claim.device->verbs(), claim.index, claim.device->control_qp());
        if (error != 0) return error;
    }
    return 0;
}

int listen(rdma_cm_id* abi, int backlog) {
    auto& cm = Cm::instance();
    const std::lock_guard guard(cm.lock);
    auto* id = cm.find(abi);
    if (id == nullptr) return EINVAL;
    if (id->step == Step::kIdle)
        if (const int error = bind_to(cm, *id, Endpoint::any(Family::kIpv4)); error != 0)
            return error;
    if (id->step != Step::kBound) return EINVAL;
    // Before anybody can find it.
    id->backlog_left = backlog > 0 && backlog < kBacklogMax ? backlog : kBacklogMax;
    cm.listeners().push_back(id);
    if (const int error = listen_on(cm, *id); error != 0) {
        std::erase(cm.listeners(), id);
        return error;
    }
    id->step = Step::kListening;
    return 0;
}

}  // namespace

std::uint64_t service_of(const Identifier& id, const Endpoint& endpoint) {
    const auto own = static_cast<std::uint16_t>(id.abi.ps);
    return wire::cm_service_id(endpoint.space_for(own).value_or(own), endpoint.port);
}

void describe_path(Identifier& id, const weir_port& own) {
    auto& path = id.path;
    path = {};
    path.dgid = id.target->gid;
    path.sgid = own.gid;
    path.dlid = htobe16(static_cast<std::uint16_t>(id.target->lid));
    path.slid = htobe16(static_cast<std::uint16_t>(own.lid));
    path.reversible = 1;
    path.numb_path = 1;
    path.pkey = 0xffff;
    path.sl = id.type_of_service >> 5U;
    constexpr std::uint8_t kExactly = 2;
    path.mtu_selector = kExactly;
    path.mtu = id.agreement.mtu;
    path.rate_selector = kExactly;
    path.rate = IBV_RATE_100_GBPS;
    path.packet_life_time_selector = kExactly;
    path.packet_life_time = 12;
    id.abi.route.path_rec = &path;
    id.abi.route.num_paths = 1;
}

void fill_path(const Identifier& id, const weir_port& port, ibv_ah_attr& attr) {
    attr = {};
    attr.dlid = static_cast<std::uint16_t>(port.lid);
    attr.sl = id.agreement.service_level;
    attr.port_num = id.abi.port_num;
    ibv_port_attr own{};
    if (ibv_query_port(id.device->verbs(), id.abi.port_num, &own) == 0 &&
        own.link_layer == IBV_LINK_LAYER_ETHERNET) {
        attr.is_global = 1;
        attr.grh.dgid = port.gid;
        attr.grh.hop_limit = 64;
    }
}

}  // namespace weir::rdmacm

using namespace weir::rdmacm;  // The functions below are the C ABI, outside any namespace.
using weir::ibverbs::fenced;
using weir::ibverbs::minus_one_if;

extern "C" {

int rdma_bind_addr(rdma_cm_id* id, sockaddr* address) {
    return minus_one_if(fenced([&] { return bind_addr(id, address); }));
}

int rdma_resolve_addr(rdma_cm_id* id, sockaddr* source, sockaddr* destination, int) {
    bool sync = false;
    int error = fenced([&] { return resolve_addr(id, source, destination, sync); });
    if (error == 0) error = complete(id, sync);
    return minus_one_if(error);
}

int rdma_resolve_route(rdma_cm_id* id, int) {
    bool sync = false;
    int error = fenced([&] { return resolve_route(id, sync); });
    if (error == 0) error = complete(id, sync);
    return minus_one_if(error);
}

int rdma_listen(rdma_cm_id* id, int backlog) {
    return minus_one_if(fenced([&] { return listen(id, backlog); }));
}

}  // extern "C"

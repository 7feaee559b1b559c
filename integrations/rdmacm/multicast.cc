// SPDX-License-Identifier: Apache-2.0
// Groups, joined by the address of an IP group or by an MGID. Whoever belongs to a group is known
// by the verbs' own table (ADR 0012), so there is nobody to ask: joining is done at once, and its
// answer comes as an event.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "abi.h"
#include "cm.h"
#include "wire/group_address.h"

namespace weir::rdmacm {
namespace {

/// What QP 1 of each port would learn of IP over InfiniBand's broadcast group; OpenSM's default.
constexpr std::uint32_t kIpOverInfinibandQkey = 0x0b1b;
constexpr std::uint32_t kGroupQp = 0xffffff;

bool is_ethernet(const Identifier& id, ibv_port_attr& port) {
    return ibv_query_port(id.device->verbs(), id.abi.port_num, &port) == 0 &&
           port.link_layer == IBV_LINK_LAYER_ETHERNET;
}

wire::CmGid map_group(const Identifier& id, const Endpoint& group, bool ethernet) {
    if (group.family == Family::kInfiniband) return group.ip;
    const auto signature = id.abi.ps == RDMA_PS_IPOIB ? wire::GroupSignature::kIpOverInfiniband
                                                      : wire::GroupSignature::kConnectionManager;
    if (group.family == Family::kIpv6) {
        const bool itself = ethernet || wire::is_chosen_group(group.ip);
        return itself ? group.ip : wire::group_of_ipv6(group.ip, signature);
    }
    std::array<std::uint8_t, 4> ipv4{};
    std::copy(group.ip.end() - 4, group.ip.end(), ipv4.begin());
    return ethernet ? wire::ethernet_group_of_ipv4(ipv4) : wire::group_of_ipv4(ipv4, signature);
}

void tell(Cm& cm, Identifier& id, const std::shared_ptr<Membership>& group, int status) {
    auto* event = cm.raise(
        id, status == 0 ? RDMA_CM_EVENT_MULTICAST_JOIN : RDMA_CM_EVENT_MULTICAST_ERROR, status);
    if (event == nullptr) return;
    event->group = group;
    auto& ud = event->abi.param.ud;
    ud.private_data = group->context;
    if (status != 0) return;
    ud.ah_attr.is_global = 1;
    ud.ah_attr.dlid = group->lid;
    ud.ah_attr.sl = id.type_of_service >> 5U;
    ud.ah_attr.port_num = id.abi.port_num;
    ud.ah_attr.grh.dgid = group->gid;
    ud.ah_attr.grh.hop_limit = 1;
    ud.qp_num = kGroupQp;
    ud.qkey = qkey_of(id);
}

int join(rdma_cm_id* abi, const sockaddr* address, bool sends_only, void* context, bool& sync) {
    auto& cm = Cm::instance();
    const std::lock_guard guard(cm.lock);
    auto* id = cm.find(abi);
    const auto wish = Endpoint::from(address);
    if (id == nullptr || !wish || !(wish->is_group() || wish->is_any())) return EINVAL;
    if (!id->is_datagram() || id->device == nullptr) return EINVAL;
    if (id->step != Step::kBound && id->step != Step::kAddressResolved) return EINVAL;
    auto group = std::make_shared<Membership>();
    group->address = *wish;
    group->context = context;
    group->sends_only = sends_only;
    ibv_port_attr port{};
    const bool ethernet = is_ethernet(*id, port);
    if (wish->is_any()) {
        // A group of its own: others learn of it by the event's address.
        const auto number = static_cast<std::uint64_t>(cm.random()) << 32U | cm.random();
        const auto gid = wire::chosen_group(number);
        std::copy(gid.begin(), gid.end(), group->gid.raw);
    } else {
        group->gid = group_gid(*id, *wish);
    }
    wire::CmGid gid{};
    std::copy(std::begin(group->gid.raw), std::end(group->gid.raw), gid.begin());
    group->lid = ethernet ? 0 : wire::group_lid(gid);
    id->groups.push_back(group);
    sync = id->sync;
    tell(cm, *id, group, port.state == IBV_PORT_ACTIVE ? 0 : -ENETUNREACH);
    return 0;
}

/// Unless another membership of the identifier is in the same group.
void detach(const Identifier& id, Membership& group) {
    if (!std::exchange(group.attached, false) || id.abi.qp == nullptr) return;
    const bool shared = std::any_of(id.groups.begin(), id.groups.end(), [&](const auto& other) {
        return other->attached &&
               std::memcmp(other->gid.raw, group.gid.raw, sizeof group.gid.raw) == 0;
    });
    if (!shared) ibv_detach_mcast(id.abi.qp, &group.gid, group.lid);
}

int leave(rdma_cm_id* abi, const sockaddr* address) {
    auto& cm = Cm::instance();
    std::unique_lock guard(cm.lock);
    auto* id = cm.find(abi);
    const auto wish = Endpoint::from(address);
    if (id == nullptr || !wish) return EINVAL;
    const auto found = std::find_if(id->groups.begin(), id->groups.end(), [&](const auto& group) {
        return group->address.family == wish->family && group->address.ip == wish->ip;
    });
    if (found == id->groups.end()) return EADDRNOTAVAIL;
    const auto group = *found;
    id->groups.erase(found);
    detach(*id, *group);
    cm.drop_events_of(*id, *group);
    // A sync identifier keeps the event of its last call.
    const auto* kept = id->sync ? cm.find(abi->event) : nullptr;
    if (kept != nullptr && kept->group == group) cm.acknowledge(std::exchange(abi->event, nullptr));
    cm.acknowledged.wait(guard, [&] { return group->events_acknowledged == group->events_taken; });
    return 0;
}

int join_ex(rdma_cm_id* id, const rdma_cm_join_mc_attr_ex* wish, void* context, bool& sync) {
    if (wish == nullptr) return EINVAL;
    if (wish->comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED) return ENOTSUP;
    if ((wish->comp_mask & RDMA_CM_JOIN_MC_ATTR_ADDRESS) == 0) return EINVAL;
    const bool has_flags = (wish->comp_mask & RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS) != 0;
    std::uint32_t flags = RDMA_MC_JOIN_FLAG_FULLMEMBER;
    if (has_flags) flags = wish->join_flags;
    if (flags >= RDMA_MC_JOIN_FLAG_RESERVED) return ENOTSUP;
    return join(id, wish->addr, flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, context, sync);
}

}  // namespace

std::uint32_t qkey_of(const Identifier& id) {
    return id.abi.ps == RDMA_PS_IPOIB ? kIpOverInfinibandQkey : RDMA_UDP_QKEY;
}

ibv_gid group_gid(const Identifier& id, const Endpoint& group) {
    ibv_port_attr port{};
    const auto gid = map_group(id, group, is_ethernet(id, port));
    ibv_gid out{};
    std::copy(gid.begin(), gid.end(), out.raw);
    return out;
}

void finish_join(Identifier& id, Event& event) {
    auto& group = *event.group;
    if (event.abi.status != 0 || id.abi.qp == nullptr || group.sends_only) return;
    const int error = ibv_attach_mcast(id.abi.qp, &group.gid, group.lid);
    group.attached = error == 0;
    if (error == 0) return;
    event.abi.event = RDMA_CM_EVENT_MULTICAST_ERROR;
    event.abi.status = -error;
}

void detach_groups(Identifier& id) {
    for (const auto& group : id.groups)
        detach(id, *group);
}

}  // namespace weir::rdmacm

using namespace weir::rdmacm;  // The functions below are the C ABI, outside any namespace.
using weir::ibverbs::fenced;
using weir::ibverbs::minus_one_if;

extern "C" {

int rdma_join_multicast(rdma_cm_id* id, sockaddr* address, void* context) {
    bool sync = false;
    int error = fenced([&] { return join(id, address, false, context, sync); });
    if (error == 0) error = complete(id, sync);
    return minus_one_if(error);
}

int rdma_join_multicast_ex(rdma_cm_id* id, rdma_cm_join_mc_attr_ex* wish, void* context) {
    bool sync = false;
    int error = fenced([&] { return join_ex(id, wish, context, sync); });
    if (error == 0) error = complete(id, sync);
    return minus_one_if(error);
}

int rdma_leave_multicast(rdma_cm_id* id, sockaddr* address) {
    return minus_one_if(fenced([&] { return leave(id, address); }));
}

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
// Multicast groups (IBTA 10.5): who belongs to which is a table in the arena that all hosts read,
// so the sender's HCA copies a datagram for each member and no switch need know of groups.
#include <cerrno>
#include <cstring>

#include "hca/engine.h"

namespace weir::hca {

namespace {

bool is_group(const ibv_gid& gid) {
    return gid.raw[0] == 0xff;
}

bool same_group(const arena::GroupEntry& member, const ibv_gid& gid, std::uint16_t lid) {
    return std::memcmp(member.gid, gid.raw, sizeof gid.raw) == 0 && member.lid == lid;
}

/// The membership of `qp` in the group, or null.
arena::GroupEntry* find_membership(const QueuePair::State& qp, const ibv_gid& gid,
                                   std::uint16_t lid) {
    const auto& arena = qp.attachment->arena;
    const auto end = arena.header().groups_end.load(std::memory_order_acquire);
    for (std::uint32_t i = 0; i < end; ++i) {
        auto& member = arena.group(i);
        if (member.owner.load(std::memory_order_acquire) == qp.attachment->identity &&
            member.qp.load(std::memory_order_relaxed) == qp.number &&
            same_group(member, gid, lid)) {
            return &member;
        }
    }
    return nullptr;
}

/// 0 if a QP like this may belong to a group like that.
int check_group(const QueuePair::State& qp, const ibv_gid& gid, std::uint16_t lid) {
    if (qp.type != IBV_QPT_UD || !is_group(gid)) return EINVAL;
    constexpr std::uint16_t kPermissiveLid = 0xffff;
    const bool infiniband = qp.attachment->arena.header().link_layer == IBV_LINK_LAYER_INFINIBAND;
    return infiniband && (lid < kFirstGroupLid || lid == kPermissiveLid) ? EINVAL : 0;
}

void raise_end(std::atomic<std::uint32_t>& end, std::uint32_t to) {
    auto seen = end.load(std::memory_order_relaxed);
    while (seen < to && !end.compare_exchange_weak(seen, to, std::memory_order_acq_rel)) {
    }
}

}  // namespace

int QueuePair::attach(const ibv_gid& group, std::uint16_t lid) {
    auto& qp = *state_;
    auto& a = *qp.attachment;
    if (a.inherited()) return EIO;
    const std::lock_guard guard(a.lock);
    if (!a.usable()) return EIO;
    const int error = check_group(qp, group, lid);
    if (error != 0) return error;
    if (find_membership(qp, group, lid) != nullptr) return 0;
    for (std::uint32_t i = 0; i < arena::kGroupCount; ++i) {
        auto& member = a.arena.group(i);
        std::uint32_t free = 0;
        if (!member.owner.compare_exchange_strong(free, a.identity, std::memory_order_acq_rel))
            continue;
        std::memcpy(member.gid, group.raw, sizeof member.gid);
        member.lid = lid;
        member.port_lid = qp.entry().own_lid;
        member.refuses_own = qp.refuses_own ? 1 : 0;
        raise_end(a.arena.header().groups_end, i + 1);
        member.qp.store(qp.number, std::memory_order_release);
        ++qp.groups;
        return 0;
    }
    return ENOMEM;
}

int QueuePair::detach(const ibv_gid& group, std::uint16_t lid) {
    auto& qp = *state_;
    auto& a = *qp.attachment;
    if (a.inherited()) return EIO;
    const std::lock_guard guard(a.lock);
    const int error = check_group(qp, group, lid);
    if (error != 0) return error;
    auto* member = find_membership(qp, group, lid);
    if (member == nullptr) return EINVAL;
    member->qp.store(0, std::memory_order_release);
    member->owner.store(0, std::memory_order_release);
    --qp.groups;
    return 0;
}

}  // namespace weir::hca

// SPDX-License-Identifier: Apache-2.0
// Memory windows: keys that open part of a region to peers, bound and ended by posted work
// (IBTA 10.6.7). A bound window has an entry of its own in the MR table, a copy of its region's, so
// that whoever executes a request looks at one place. Type 1 admits every QP of its PD and gets a
// new key at each bind; type 2 admits the QP that bound it, its key's low byte is the program's,
// and it must be invalidated, by its owner or by a peer's send, before it is bound again.
#include <cerrno>

#include "hca/engine.h"

namespace weir::hca {

int Hca::alloc_mw(std::uint32_t pd, ibv_mw_type type, std::uint32_t& rkey) {
    if (type != IBV_MW_TYPE_1 && type != IBV_MW_TYPE_2) return EINVAL;
    auto& a = *state_->attachment;
    if (a.inherited()) return EIO;
    const std::lock_guard guard(a.lock);
    if (!a.usable()) return EIO;
    const auto it = state_->pds.find(pd);
    if (it == state_->pds.end()) return EINVAL;
    const auto index = a.claim_mr();
    if (index == 0) return ENOMEM;
    a.windows[index] = {state_.get(), pd, type, 0};
    ++it->second;
    auto& mr = a.arena.mr(index);
    mr.salt = (mr.salt + 1) & 0xffU;
    rkey = index << 8U | mr.salt;
    return 0;
}

int Hca::dealloc_mw(std::uint32_t rkey) {
    auto& a = *state_->attachment;
    if (a.inherited()) return EIO;
    const std::lock_guard guard(a.lock);
    const auto it = a.windows.find(rkey >> 8U);
    if (it == a.windows.end() || it->second.hca != state_.get()) return EINVAL;
    a.unbind(it->second, it->first);
    a.arena.mr(it->first).owner.store(0, std::memory_order_release);
    const auto pd = state_->pds.find(it->second.pd);
    if (pd != state_->pds.end()) --pd->second;
    a.windows.erase(it);
    return 0;
}

bool Attachment::has_window(std::uint32_t lkey) const {
    for (const auto& [index, window] : windows)
        if (window.region == lkey) return true;
    return false;
}

void Attachment::unbind(Window& window, std::uint32_t index) {
    auto& mr = arena.mr(index);
    if (mr.key.load(std::memory_order_relaxed) != 0) void_key(mr);
    window.region = 0;
}

namespace {

/// Whether the region lets a window be bound that grants this.
bool region_admits(const arena::MrEntry& region, const LocalWork& work) {
    const auto rights = region.access_flags;
    if ((rights & IBV_ACCESS_MW_BIND) == 0 || (rights & (arena::kMrWindow | arena::kMrNull)) != 0) {
        return false;
    }
    const bool changes = (work.access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0;
    return !changes || (rights & IBV_ACCESS_LOCAL_WRITE) != 0;
}

/// What a window may grant. Programs ask for local rights too, which mean nothing here.
constexpr std::uint32_t kWindowRights = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                        IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_ZERO_BASED |
                                        IBV_ACCESS_LOCAL_WRITE | std::uint32_t{kAccessFlushGlobal};

}  // namespace

ibv_wc_status Attachment::bind_window(const QueuePair::State& qp, const LocalWork& work) {
    const auto index = work.window >> 8U;
    const auto it = windows.find(index);
    if (it == windows.end() || it->second.pd != qp.pd) return IBV_WC_MW_BIND_ERR;
    Window& window = it->second;
    auto& mr = arena.mr(index);
    const bool second = window.type == IBV_MW_TYPE_2;
    // Of a type 2 window the program picks the low byte, and the window must be free.
    if ((work.key >> 8U) != index) return IBV_WC_MW_BIND_ERR;
    if (second && (mr.key.load() != 0 || work.length == 0)) return IBV_WC_MW_BIND_ERR;
    if (work.length == 0) {
        unbind(window, index);
        return IBV_WC_SUCCESS;
    }
    if ((work.access & ~kWindowRights) != 0) return IBV_WC_MW_BIND_ERR;
    const auto* region =
        find_mr(identity, qp.pd, work.region, work.address, work.length, 0, nullptr);
    if (region == nullptr || !region_admits(*region, work)) return IBV_WC_MW_BIND_ERR;
    unbind(window, index);
    const auto into = work.address - region->iova;
    mr.iova = (work.access & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : work.address;
    mr.length = work.length;
    mr.address = region->address + into;
    mr.window_offset = region->window_offset + into;
    mr.access_flags = work.access | arena::kMrWindow;
    mr.pd = window.pd;
    mr.memory_access = region->memory_access;
    mr.bound_qp = second ? qp.number : 0;
    mr.salt = work.key & 0xffU;
    window.region = work.region;
    mr.key.store(work.key, std::memory_order_release);
    return IBV_WC_SUCCESS;
}

ibv_wc_status Attachment::invalidate(const QueuePair::State& qp, std::uint32_t key) {
    const auto it = windows.find(key >> 8U);
    if (it == windows.end() || it->second.type != IBV_MW_TYPE_2) return IBV_WC_LOC_QP_OP_ERR;
    auto& mr = arena.mr(it->first);
    const bool ours = mr.key.load() == key && it->second.pd == qp.pd && mr.bound_qp == qp.number;
    if (!ours) return IBV_WC_LOC_QP_OP_ERR;
    unbind(it->second, it->first);
    return IBV_WC_SUCCESS;
}

bool Attachment::work_locally(QueuePair::State& qp, std::uint32_t slot) {
    auto& send = qp.sends[slot];
    const auto& work = qp.local_work[slot];
    const auto status =
        send.wc_opcode == IBV_WC_BIND_MW ? bind_window(qp, work) : invalidate(qp, work.key);
    send.local_error = status;
    qp.requester.local_done(status == IBV_WC_SUCCESS ? transport::RequestStatus::kOk
                                                     : transport::RequestStatus::kRemoteOperation);
    return status == IBV_WC_SUCCESS;
}

}  // namespace weir::hca

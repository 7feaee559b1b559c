// SPDX-License-Identifier: Apache-2.0
// Memory regions: registering, changing and giving them up, and the table that peers check keys in.
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "hca/engine.h"

namespace weir::hca {

namespace {

constexpr std::uintptr_t kPage = 4096;

/// What a region may be asked for; EINVAL or EOPNOTSUPP if that makes no sense. `flags` are those
/// that matter from here on.
int check_region(std::uintptr_t begin, std::size_t length, std::uint64_t iova, int access,
                 unsigned& flags) {
    flags = static_cast<unsigned>(access) & 0xfffffU;  // the rest is optional by definition
    constexpr unsigned kKnown = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                                IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND |
                                IBV_ACCESS_HUGETLB | unsigned{kAccessFlushGlobal};
    if ((flags & ~kKnown) != 0) return EOPNOTSUPP;
    const bool remote_change = (flags & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0;
    if (remote_change && (flags & IBV_ACCESS_LOCAL_WRITE) == 0) return EINVAL;
    return begin + length < begin || iova + length < iova ? EINVAL : 0;
}

/// Finds a way to the memory. What is registered on demand stays where it is, mapped or not, as the
/// program may map it anew.
int place_region(Attachment& a, std::uintptr_t begin, std::size_t length, unsigned flags,
                 Placement& placement) {
    if ((flags & IBV_ACCESS_ON_DEMAND) != 0) {
        placement = {a.reach.kernel_copy_allowed() ? arena::MemoryAccess::kKernel
                                                   : arena::MemoryAccess::kOwner,
                     0};
        return 0;
    }
    const bool writes = (flags & IBV_ACCESS_LOCAL_WRITE) != 0;
    return a.memory.place(begin, length, writes, own_thread_count(), placement);
}

}  // namespace

// NOLINTNEXTLINE(readability-function-size): seven arguments, as the verb has them.
int Hca::reg_mr(std::uint32_t pd, void* address, std::size_t length, std::uint64_t iova, int access,
                std::uint32_t& lkey, std::uint32_t& rkey) {
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    unsigned flags = 0;
    int error = check_region(begin, length, iova, access, flags);
    if (error != 0) return error;
    auto& a = *state_->attachment;
    if (a.inherited()) return EIO;
    const StillGuard guard(state_->attachment);
    if (!a.usable()) return EIO;
    const auto it = state_->pds.find(pd);
    if (it == state_->pds.end()) return EINVAL;
    Placement placement{};
    error = place_region(a, begin, length, flags, placement);
    if (error != 0) return error;
    const auto key = a.publish_mr(begin, length, iova, flags, pd, placement);
    if (key == 0) return ENOMEM;
    ++it->second;
    state_->mrs[key] = pd;
    lkey = rkey = key;
    return 0;
}

int Hca::rereg_mr(std::uint32_t lkey, const MrChange& change) {
    auto& a = *state_->attachment;
    if (a.inherited()) return EIO;
    const StillGuard guard(state_->attachment);
    if (!a.usable()) return EIO;
    const auto it = state_->mrs.find(lkey);
    if (it == state_->mrs.end()) return EINVAL;
    if (a.has_window(lkey)) return EBUSY;
    auto& mr = a.arena.mr(lkey >> 8U);
    if ((mr.access_flags & arena::kMrNull) != 0) return EINVAL;
    const bool moves = (change.flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0;
    const bool alters = (change.flags & IBV_REREG_MR_CHANGE_ACCESS) != 0;
    const auto pd =
        state_->pds.find((change.flags & IBV_REREG_MR_CHANGE_PD) != 0 ? change.pd : it->second);
    if (pd == state_->pds.end()) return EINVAL;
    const auto begin =
        moves ? reinterpret_cast<std::uintptr_t>(change.address) : std::uintptr_t{mr.address};
    const auto length = moves ? change.length : mr.length;
    unsigned flags = 0;
    const int access = alters ? change.access : static_cast<int>(mr.access_flags);
    const auto iova = moves ? change.iova : mr.iova;
    int error = check_region(begin, length, iova, access, flags);
    if (error != 0) return error;
    Placement placement{mr.memory_access, mr.window_offset};
    if (moves || alters) error = place_region(a, begin, length, flags, placement);
    if (error != 0) return error;
    // The key stays, as peers may have been told it; while it changes, nobody gets in by it.
    a.void_key(mr);
    mr.iova = iova;
    mr.length = length;
    mr.address = begin;
    mr.window_offset = placement.window_offset;
    mr.access_flags = flags;
    mr.pd = pd->first;
    mr.memory_access = placement.access;
    --state_->pds[it->second];
    ++pd->second;
    it->second = pd->first;
    mr.key.store(lkey, std::memory_order_release);
    return 0;
}

int Hca::alloc_null_mr(std::uint32_t pd, std::uint32_t& lkey) {
    auto& a = *state_->attachment;
    if (a.inherited()) return EIO;
    const std::lock_guard guard(a.lock);
    if (!a.usable()) return EIO;
    const auto it = state_->pds.find(pd);
    if (it == state_->pds.end()) return EINVAL;
    const auto key = a.publish_mr(0, ~0ULL, 0, IBV_ACCESS_LOCAL_WRITE | arena::kMrNull, pd,
                                  {arena::MemoryAccess::kOwner, 0});
    if (key == 0) return ENOMEM;
    ++it->second;
    state_->mrs[key] = pd;
    lkey = key;
    return 0;
}

int Hca::advise_mr(std::uint32_t pd, bool writes, bool checked, const ibv_sge* sges,
                   std::uint32_t count) {
    auto& a = *state_->attachment;
    if (a.inherited()) return EIO;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
    {
        const std::lock_guard guard(a.lock);
        if (!a.usable()) return EIO;
        if (state_->pds.count(pd) == 0) return EINVAL;
        for (std::uint32_t i = 0; i < count; ++i) {
            const auto& sge = sges[i];
            const auto* mr = a.find_mr(a.identity, pd, sge.lkey, sge.addr, sge.length,
                                       writes ? IBV_ACCESS_LOCAL_WRITE : 0, nullptr);
            if (mr == nullptr) return EFAULT;
            if ((mr->access_flags & arena::kMrNull) != 0) continue;
            ranges.emplace_back(mr->address + (sge.addr - mr->iova), sge.length);
        }
    }
    for (const auto& [address, length] : ranges) {
        if (length == 0) continue;
        const auto begin = address / kPage * kPage;
        const auto bytes = address + length - begin;
        // MADV_POPULATE_READ and _WRITE, which headers older than the kernel lack.
        const int error = madvise(reinterpret_cast<void*>(begin), bytes, writes ? 23 : 22);
        // It is advice: a kernel that knows it not, or memory that takes none, is no error, unless
        // there is no memory at all and the caller wants to know.
        if (error != 0 && errno == ENOMEM && checked) return EFAULT;
    }
    return 0;
}

int Hca::dereg_mr(std::uint32_t lkey) {
    if (state_->attachment->inherited()) return EIO;
    auto& a = *state_->attachment;
    const std::lock_guard guard(a.lock);
    const auto it = state_->mrs.find(lkey);
    if (it == state_->mrs.end()) return EINVAL;
    if (a.has_window(lkey)) return EBUSY;
    a.drop_mr(lkey);
    const auto pd = state_->pds.find(it->second);
    if (pd != state_->pds.end()) --pd->second;
    state_->mrs.erase(it);
    return 0;
}

std::uint32_t Attachment::claim_mr() {
    for (std::uint32_t i = 0; i < arena::kMrCount; ++i) {
        const auto index = (next_mr_hint + i) % arena::kMrCount;
        if (index == 0) continue;  // so that no key is small enough to be hit by a stray zero
        std::uint32_t free = 0;
        if (!arena.mr(index).owner.compare_exchange_strong(free, identity,
                                                           std::memory_order_acq_rel)) {
            continue;
        }
        next_mr_hint = index + 1;
        return index;
    }
    return 0;
}

std::uint32_t Attachment::publish_mr(std::uint64_t address, std::uint64_t length,
                                     std::uint64_t iova, std::uint32_t access, std::uint32_t pd,
                                     const Placement& placement) {
    const auto index = claim_mr();
    if (index == 0) return 0;
    auto& mr = arena.mr(index);
    mr.iova = iova;
    mr.length = length;
    mr.address = address;
    mr.window_offset = placement.window_offset;
    mr.access_flags = access;
    mr.pd = pd;
    mr.memory_access = placement.access;
    mr.bound_qp = 0;
    mr.salt = (mr.salt + 1) & 0xffU;
    const auto key = index << 8U | mr.salt;
    mr.key.store(key, std::memory_order_release);
    return key;
}

void Attachment::drop_mr(std::uint32_t key) {
    auto& mr = arena.mr(key >> 8U);
    if (mr.key.load() != key || mr.owner.load() != identity) return;
    void_key(mr);
    mr.owner.store(0, std::memory_order_release);
}

/// Agents at work in the memory hold a lock of one of our QPs, and are waited for. One that is
/// stopped there by a debugger or a signal is not waited for beyond a moment.
void Attachment::void_key(arena::MrEntry& mr) {
    mr.key.store(0, std::memory_order_seq_cst);
    constexpr std::uint64_t kWaitNs = 20'000'000;
    for (const auto* qp : qps) {
        if (qp == nullptr) continue;
        const auto& lock_word = qp->entry().lock;
        const auto holder = lock_word.load(std::memory_order_acquire);
        if (holder == 0 || holder == identity) continue;
        const auto until = now_ns() + kWaitNs;
        while (lock_word.load(std::memory_order_acquire) == holder && now_ns() < until)
            sched_yield();
    }
}

}  // namespace weir::hca

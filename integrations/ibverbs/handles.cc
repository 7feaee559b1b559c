// SPDX-License-Identifier: Apache-2.0
#include "handles.h"

#include <pthread.h>

namespace weir::ibverbs {

// At load, and so before those of librdmacm, which stands on this library, and of whatever it
// opens.
[[gnu::constructor]] static void watch_forks() {
    hca::register_fork_handlers();
}

HandleTable::HandleTable() {
    hca::register_fork_handlers();
    const auto prepare = [] {
        for (Shard& shard : instance().shards_)
            shard.lock.lock();
    };
    const auto in_parent = [] {
        for (Shard& shard : instance().shards_)
            shard.lock.unlock();
    };
    const auto in_child = [] {
        for (Shard& shard : instance().shards_) {
            shard.entries.clear();
            shard.lock.unlock();
        }
    };
    pthread_atfork(prepare, in_parent, in_child);
}

HandleTable& HandleTable::instance() {
    static auto* const table = new HandleTable;
    return *table;
}

HandleTable::Shard& HandleTable::shard_of(const void* abi) {
    // Allocations are 16 bytes apart or more; a multiplication spreads what is left over the high
    // bits.
    const auto address = reinterpret_cast<std::uintptr_t>(abi) >> 4U;
    return shards_[(address * 0x9e3779b97f4a7c15U) >> 60U];
}

void HandleTable::insert(const void* abi, const Entry& entry) {
    Shard& shard = shard_of(abi);
    const std::scoped_lock lock(shard.lock);
    shard.entries.insert_or_assign(abi, entry);
}

void HandleTable::restore(const void* abi) {
    Shard& shard = shard_of(abi);
    const std::scoped_lock lock(shard.lock);
    if (const auto found = shard.entries.find(abi); found != shard.entries.end())
        found->second.claimed = false;
}

void HandleTable::remove(const void* abi) {
    Shard& shard = shard_of(abi);
    const std::scoped_lock lock(shard.lock);
    shard.entries.erase(abi);
}

std::size_t HandleTable::bury_all_of(const ibv_context* context) {
    std::size_t count = 0;
    for (Shard& shard : shards_) {
        const std::scoped_lock lock(shard.lock);
        for (auto& [abi, entry] : shard.entries) {
            if (entry.context != context) continue;
            entry.claimed = true;
            ++count;
        }
    }
    return count;
}

}  // namespace weir::ibverbs

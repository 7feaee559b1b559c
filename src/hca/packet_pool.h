// SPDX-License-Identifier: Apache-2.0
// PacketPool: the packet descriptors and bulk buffers of one attached process, in the arena.
// Packets are given back by whoever consumes or drops them, anywhere in the fabric
// (PacketEntry::state); the pool notices when it comes round to them. Used under the attachment's
// lock.
#pragma once

#include <cstdint>

#include "arena/layout.h"

namespace weir::hca {

class PacketPool {
  public:
    static constexpr std::uint32_t kNoPacket = 0xffffffffU;

    PacketPool() = default;
    PacketPool(arena::Arena arena, std::uint32_t process_slot)
        : arena_(arena),
          slot_(process_slot),
          first_(process_slot * arena::kPacketsPerProcess) {}

    /// A free packet, marked in flight, or kNoPacket. Looks at a bounded number of descriptors.
    std::uint32_t take(std::uint32_t& generation) {
        for (std::uint32_t tries = 0; tries < kLook; ++tries) {
            const std::uint32_t index = first_ + next_;
            auto& state = arena_.packet(index).state;
            const auto word = state.load(std::memory_order_acquire);
            next_ = (next_ + 1) % arena::kPacketsPerProcess;
            if ((word & 1U) != 0) continue;
            const std::uint32_t fresh = (word >> 1U) + 1;
            state.store(fresh << 1U | 1U, std::memory_order_relaxed);
            generation = fresh & 0xfffU;
            // The next one was last written by whoever released it.
            const auto& after = arena_.packet(first_ + next_);
            __builtin_prefetch(&after, 1);
            __builtin_prefetch(&after.payload, 1);
            return index;
        }
        return kNoPacket;
    }

    /// Gives a packet back that was never injected.
    void put_back(std::uint32_t packet) {
        auto& state = arena_.packet(packet).state;
        state.store(state.load(std::memory_order_relaxed) & ~1U, std::memory_order_release);
    }

    /// A bulk buffer for `packet`: its arena offset, or 0 if all are in use. It is free again when
    /// the packet is.
    std::uint64_t take_bulk(std::uint32_t packet) {
        for (std::uint32_t i = 0; i < arena::kBulkPerProcess; ++i) {
            Bulk& bulk = bulks_[i];
            if (bulk.used) {
                const auto word = arena_.packet(bulk.packet).state.load(std::memory_order_acquire);
                if (word == bulk.state) continue;
            }
            bulk = {true, packet, arena_.packet(packet).state.load(std::memory_order_relaxed)};
            return arena_.bulk_offset(slot_, i);
        }
        return 0;
    }

  private:
    static constexpr std::uint32_t kLook = 128;
    struct Bulk {
        bool used = false;
        std::uint32_t packet = 0;
        std::uint32_t state = 0;  ///< Of the packet while it uses this buffer.
    };
    arena::Arena arena_;
    std::uint32_t slot_ = 0;
    std::uint32_t first_ = 0;
    std::uint32_t next_ = 0;
    Bulk bulks_[arena::kBulkPerProcess] = {};
};

}  // namespace weir::hca

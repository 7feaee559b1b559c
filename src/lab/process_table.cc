// SPDX-License-Identifier: Apache-2.0
#include "lab/process_table.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "arena/service_table.h"
#include "base/check.h"
#include "runtime/real/event_loop.h"
#include "runtime/real/shared_memory.h"

namespace weir::lab {
namespace {

constexpr std::uint32_t kGenerationMask = (1U << (32U - arena::kIdentitySlotBits)) - 1;

/// How long packets of a dead sender may wait at a port for a program that does not read: a second.
constexpr int kLifetimeTicks = 1000 / ProcessTable::kTickMilliseconds;
/// Sweeps on behalf of one that has been stopped.
constexpr int kSweepsMax = 8;

/// Plain word that a mover may be reading meanwhile.
void store_relaxed(std::uint32_t& word, std::uint32_t value) {
    std::atomic_ref<std::uint32_t>(word).store(value, std::memory_order_release);
}

}  // namespace

ProcessTable::ProcessTable(arena::Arena arena, int arena_fd)
    : arena_(arena),
      arena_fd_(arena_fd),
      mover_(arena) {}

template <class Visit>
void ProcessTable::visit_entries(std::uint64_t table_at, std::uint64_t first, std::uint64_t count,
                                 std::uint64_t size, Visit visit) const {
    const std::uint64_t begin = table_at + first * size;
    const std::uint64_t end = begin + count * size;
    std::uint64_t next = first;
    runtime::visit_committed(arena_fd_, begin, end, [&](std::uint64_t from, std::uint64_t to) {
        // An entry that straddles the edge of a page belongs to the part that it begins in, or to
        // the first one that shows any of it.
        const std::uint64_t last = (std::min(to, end) - table_at + size - 1) / size;
        for (next = std::max(next, (from - table_at) / size); next < last; ++next) {
            visit(static_cast<std::uint32_t>(next));
        }
        return true;
    });
}

Result<std::uint32_t> ProcessTable::admit(pid_t pid, std::uint32_t node, runtime::UniqueFd window) {
    const auto free = std::find_if(slots_.begin(), slots_.end(),
                                   [](const Slot& slot) { return slot.stage == Stage::kFree; });
    if (free == slots_.end()) {
        return fail(ErrorCode::kBusy, "all process slots of the fabric are taken");
    }
    Slot& slot = *free;
    const auto index = static_cast<std::uint32_t>(free - slots_.begin());
    slot.generation = (slot.generation + 1) & kGenerationMask;
    slot.identity = (slot.generation << arena::kIdentitySlotBits) | (index + 1);
    slot.stage = Stage::kLive;
    slot.window = std::move(window);
    slot.moving_seen = 0;
    slot.moving_swept = 0;
    slot.ticks = 0;
    ++in_use_;

    auto& entry = arena_.process(index);
    entry.pid = static_cast<std::uint32_t>(pid);
    entry.node = node;
    entry.dead.store(0, std::memory_order_relaxed);
    entry.moving.store(0, std::memory_order_relaxed);
    entry.releasing.store(0, std::memory_order_relaxed);
    entry.rescan.store(0, std::memory_order_relaxed);
    entry.summary.store(0, std::memory_order_relaxed);
    for (auto& word : entry.ready) {
        word.store(0, std::memory_order_relaxed);
    }
    entry.identity.store(slot.identity, std::memory_order_release);
    return slot.identity;
}

int ProcessTable::window_of(std::uint32_t identity) const {
    const std::uint32_t index = arena::slot_of(identity);
    if (index >= slots_.size() || slots_[index].identity != identity ||
        slots_[index].stage != Stage::kLive) {
        return -1;
    }
    return slots_[index].window.get();
}

void ProcessTable::on_departure(std::uint32_t identity) {
    const std::uint32_t index = arena::slot_of(identity);
    if (index < slots_.size() && slots_[index].identity == identity &&
        slots_[index].stage == Stage::kLive) {
        part(index);
        // Mostly all is done at once; what is not is left to the ticks.
        flush(index);
        wake_sleepers();
    }
}

void ProcessTable::on_tick() {
    for (std::uint32_t index = 0; index < slots_.size(); ++index) {
        switch (slots_[index].stage) {
            case Stage::kFree:
                break;
            case Stage::kLive:
                look_at_mover(index);
                break;
            case Stage::kParted:
                flush(index);
                break;
            case Stage::kFlushed:
                drain(index);
                break;
            case Stage::kDrained:
                settle(index);
                break;
        }
    }
    const auto now = runtime::monotonic_nanoseconds();
    if (mover_.next_time() != 0 && now >= mover_.next_time()) {
        mover_.set_now(now);
        mover_.retry_waiting();
    }
    wake_sleepers();
}

void ProcessTable::part(std::uint32_t index) {
    Slot& slot = slots_[index];
    slot.stage = Stage::kParted;
    arena_.process(index).dead.store(1, std::memory_order_release);
    // Its number may soon be another process's: nobody is to copy to or from that one's memory.
    store_relaxed(arena_.process(index).pid, 0);
    const auto& header = arena_.header();
    const std::uint32_t identity = slot.identity;
    visit_entries(header.mrs_at, 0, arena::kMrCount, sizeof(arena::MrEntry), [&](std::uint32_t i) {
        auto& mr = arena_.mr(i);
        if (mr.owner.load(std::memory_order_acquire) == identity) {
            mr.key.store(0, std::memory_order_release);
            mr.owner.store(0, std::memory_order_release);
        }
    });
    visit_entries(header.services_at, 0, arena::kServiceCount, sizeof(arena::ServiceEntry),
                  [&](std::uint32_t i) { arena::release_service(arena_, i, identity); });
    for (std::uint32_t i = 0; i < header.groups_end.load(std::memory_order_acquire); ++i) {
        auto& group = arena_.group(i);
        if (group.owner.load(std::memory_order_acquire) != identity) continue;
        group.qp.store(0, std::memory_order_release);
        group.owner.store(0, std::memory_order_release);
    }
    slot.qps.clear();
    visit_entries(header.qps_at, 0, arena::kQpCount, sizeof(arena::QpEntry), [&](std::uint32_t i) {
        auto& qp = arena_.qp(i);
        if (qp.owner.load(std::memory_order_acquire) == identity) {
            qp.receiving.store(0, std::memory_order_release);
            qp.closing.store(1, std::memory_order_release);  // movers discard from now on
            slot.qps.push_back(i);
        }
        std::uint32_t holder = identity;
        qp.lock.compare_exchange_strong(holder, 0, std::memory_order_acq_rel);
    });
}

bool ProcessTable::sweep() {
    mover_.set_now(runtime::monotonic_nanoseconds());
    // What was stuck at an earlier sweep is no reason to pass it over in this one.
    mover_.retry_stuck();
    mover_.retry_waiting();
    return mover_.sweep();
}

void ProcessTable::flush(std::uint32_t index) {
    // Packets promised to a ring are never refused by it, so one sweep delivers them all. Others
    // may be left waiting for a program that does not read: they are no concern of the dead.
    sweep();
    mover_.recover(arena_.process(index));
    slots_[index].stage = Stage::kFlushed;
    drain(index);
}

bool ProcessTable::drain_qp(std::uint32_t qp_index, std::uint32_t identity) {
    auto& qp = arena_.qp(qp_index);
    // The lock's holder is who consumes requests. A peer may be executing one here at this moment.
    std::uint32_t nobody = 0;
    if (!qp.lock.compare_exchange_strong(nobody, identity, std::memory_order_acq_rel)) {
        return false;
    }
    if (qp.initialised.load(std::memory_order_acquire) != 0) {
        mover_.drain(mover_.request_ring(qp_index));
        mover_.drain(mover_.response_ring(qp_index));
        qp.requests.watched.store(0, std::memory_order_seq_cst);
        qp.responses.watched.store(0, std::memory_order_seq_cst);
    }
    qp.lock.store(0, std::memory_order_release);
    qp.owner.store(0, std::memory_order_release);
    return true;
}

void ProcessTable::drain(std::uint32_t index) {
    Slot& slot = slots_[index];
    std::erase_if(slot.qps, [&](std::uint32_t qp) { return drain_qp(qp, slot.identity); });
    if (slot.qps.empty()) {
        slot.stage = Stage::kDrained;
        slot.ticks = 0;
        alert_all();
        settle(index);
    }
}

bool ProcessTable::packets_in_flight(std::uint32_t index) const {
    bool any = false;
    visit_entries(arena_.header().packets_at, std::uint64_t{index} * arena::kPacketsPerProcess,
                  arena::kPacketsPerProcess, sizeof(arena::PacketEntry), [&](std::uint32_t i) {
                      any = any || (arena_.packet(i).state.load(std::memory_order_acquire) & 1U);
                  });
    return any;
}

/// A packet counts as lost when two looks a second apart missed it: one look may miss what moves
/// meanwhile, but what moves does not stay for a second.
/// Packets that were in nobody's buffer when their sender died (taken, not yet sent), or whose
/// consumer died between taking and releasing them. What stands in no buffer will be released by
/// nobody else, or only by somebody who finds that done.
void ProcessTable::release_lost(std::uint32_t index) {
    const auto first = index * arena::kPacketsPerProcess;
    std::vector<bool> found(arena::kPacketsPerProcess, false);
    const auto note = [&](credit::LaneBuffer& buffer) {
        const auto head = credit::Head::decode(buffer.head.load(std::memory_order_acquire));
        // One more than the buffer holds: a packet may stand at the tail and not be counted yet.
        for (std::uint32_t i = 0; i <= buffer.occupancy() && i < credit::kSlotCount; ++i) {
            const auto at = head.index + i;
            const auto slot = credit::Slot::decode(buffer.slot(at).load(std::memory_order_acquire));
            const bool filled = slot.sequence == (at & credit::kSequenceMask);
            if (filled && slot.packet - first < found.size()) found[slot.packet - first] = true;
        }
    };
    const auto& header = arena_.header();
    for (std::uint32_t port = 0; port < header.port_count; ++port) {
        for (std::uint32_t lane = 0; lane < header.lane_count; ++lane)
            note(arena_.lane(port, lane));
    }
    for (std::uint32_t egress = 0; egress < header.egress_count; ++egress) {
        for (std::uint32_t lane = 0; lane < header.lane_count; ++lane)
            note(arena_.egress(egress, lane));
    }
    visit_entries(header.qps_at, 0, arena::kQpCount, sizeof(arena::QpEntry), [&](std::uint32_t i) {
        auto& qp = arena_.qp(i);
        if (qp.initialised.load(std::memory_order_acquire) == 0) return;
        note(qp.requests);
        note(qp.responses);
    });
    const auto missed_before = std::exchange(slots_[index].missed, {});
    for (std::uint32_t i = 0; i < arena::kPacketsPerProcess; ++i) {
        const auto state = arena_.packet(first + i).state.load(std::memory_order_acquire);
        if ((state & 1U) == 0 || found[i]) continue;
        const auto& seen = missed_before;
        if (std::find(seen.begin(), seen.end(), first + i) != seen.end()) {
            mover_.release({0, (state >> 1U) & 0xfffU, first + i, 0});
        } else {
            slots_[index].missed.push_back(first + i);
        }
    }
}

void ProcessTable::settle(std::uint32_t index) {
    Slot& slot = slots_[index];
    if (packets_in_flight(index)) {
        // Seldom on, when they are in the hands of a program that takes its time.
        const bool look = ++slot.ticks <= kLifetimeTicks || slot.ticks % kLifetimeTicks == 0;
        if (look && !sweep() && slot.ticks >= kLifetimeTicks) {
            mover_.choke_stuck();
        }
        if (slot.ticks % kLifetimeTicks == 0) release_lost(index);
        if (packets_in_flight(index)) return;
    }
    arena_.process(index).identity.store(0, std::memory_order_release);
    slot.identity = 0;
    slot.window.reset();
    slot.stage = Stage::kFree;
    --in_use_;
}

void ProcessTable::look_at_mover(std::uint32_t index) {
    Slot& slot = slots_[index];
    const std::uint64_t moving = arena_.process(index).moving.load(std::memory_order_acquire);
    const std::uint64_t before = std::exchange(slot.moving_seen, moving);
    if (moving % 2 == 0 || moving != before || moving == slot.moving_swept) {
        slot.ticks = 0;
        return;
    }
    // Complete unless something waits for a program that does not read, which may take for ever.
    if (sweep() || ++slot.ticks >= kSweepsMax) {
        slot.moving_swept = moving;
        alert_all();
    }
}

void ProcessTable::ring(std::uint32_t index) {
    auto& entry = arena_.process(index);
    entry.doorbell.fetch_add(1, std::memory_order_acq_rel);
    runtime::wake_futex(&entry.doorbell);
}

void ProcessTable::alert_all() {
    for (std::uint32_t index = 0; index < slots_.size(); ++index) {
        if (slots_[index].stage == Stage::kLive) {
            arena_.process(index).rescan.store(1, std::memory_order_release);
            ring(index);
        }
    }
}

void ProcessTable::wake_sleepers() {
    const auto wakes = mover_.take_wakes();
    for (std::uint32_t index = 0; index < slots_.size(); ++index) {
        if (((wakes[index / 64] >> (index % 64)) & 1U) != 0) {
            ring(index);
        }
    }
}

}  // namespace weir::lab

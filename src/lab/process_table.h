// SPDX-License-Identifier: Apache-2.0
// ProcessTable: who is attached, and the care for those who died. Owned by the daemon, one thread.
//
// A process may die between any two instructions, so whatever it held in the arena is taken back in
// stages. Each stage is bounded, and doing it twice does nothing, so it is simply repeated at the
// next tick until it is complete; other processes use the fabric all the while.
//
//   live ──died──▶ parted ──▶ flushed ──▶ drained ──▶ free
//
//   parted   Its `dead` word is set and the locks that it held are open. Its memory regions are
//   gone,
//            its queue pairs accept nothing more; they stay its own, so that nobody takes them yet.
//   flushed  All that was on its way to them has got there, and what it was doing is finished
//            (switching::Mover::recover).
//   drained  Their rings are empty and they are free. The living look through their own, in case
//            a wake-up died with it.
//   free     None of its packets is in anybody's hands any more; only now may another process have
//            the slot, whose packets carry on with their generations. Those that wait at a port for
//            a program that does not read are dropped after a while, as their sender would have it.
//
// A second care: a living process that is stopped (a debugger, SIGSTOP) in the middle of a move. If
// ProcessEntry::moving stays odd and the same for two ticks, the table moves the packets on
// instead.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <vector>

#include "arena/layout.h"
#include "base/result.h"
#include "runtime/real/unique_fd.h"
#include "switching/forwarding.h"

namespace weir::lab {

class ProcessTable {
  public:
    /// `arena_fd` is the memfd behind the arena and outlives the table.
    ProcessTable(arena::Arena arena, int arena_fd);

    /// Gives a slot. kBusy if none is free.
    Result<std::uint32_t> admit(pid_t pid, std::uint32_t node, runtime::UniqueFd window);

    /// The process is gone, or has let go of the fabric. Idempotent.
    void on_departure(std::uint32_t identity);

    /// Window of a live process, -1 if there is none of this identity.
    [[nodiscard]] int window_of(std::uint32_t identity) const;

    /// One round of care. To be called every kTickMilliseconds while busy().
    void on_tick();
    static constexpr int kTickMilliseconds = 25;

    /// True while anybody is attached or being cleaned up after, or packets that somebody left wait
    /// for a link to be free.
    [[nodiscard]] bool busy() const { return in_use_ != 0 || mover_.next_time() != 0; }

    /// Makes all live processes look at everything again: a death, a link that changed, the end.
    void alert_all();

  private:
    enum class Stage : std::uint8_t { kFree, kLive, kParted, kFlushed, kDrained };
    struct Slot {
        Stage stage = Stage::kFree;
        std::uint32_t generation = 0;
        std::uint32_t identity = 0;
        runtime::UniqueFd window;
        std::uint64_t moving_seen = 0;   ///< ProcessEntry::moving at the last tick.
        std::uint64_t moving_swept = 0;  ///< Value for which the fabric has been swept already.
        int ticks = 0;  ///< Of the present stage, or of the present stand-still of its mover.
        std::vector<std::uint32_t> missed;  ///< Packets in flight that the last look found nowhere.
        std::vector<std::uint32_t> qps;     ///< Dead ones' queue pairs, not yet given back.
    };

    void part(std::uint32_t index);
    void flush(std::uint32_t index);
    void drain(std::uint32_t index);
    void settle(std::uint32_t index);
    bool sweep();
    bool drain_qp(std::uint32_t qp, std::uint32_t identity);
    void look_at_mover(std::uint32_t index);
    [[nodiscard]] bool packets_in_flight(std::uint32_t index) const;
    void release_lost(std::uint32_t index);
    void wake_sleepers();
    void ring(std::uint32_t index);
    /// Calls visit(i) for each entry of a sparse table that has pages.
    template <class Visit>
    void visit_entries(std::uint64_t table_at, std::uint64_t first, std::uint64_t count,
                       std::uint64_t size, Visit visit) const;

    arena::Arena arena_;
    int arena_fd_;
    switching::Mover<> mover_;
    std::array<Slot, arena::kProcessCount> slots_;
    std::uint32_t in_use_ = 0;
};

}  // namespace weir::lab

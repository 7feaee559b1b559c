// SPDX-License-Identifier: Apache-2.0
// RegisteredMemory: decides how others reach what this process registers, and does it. Small
// anonymous ranges are moved into the process's window, a memfd that peers map: the pages are
// copied there and the mapping swapped in at the same address, so the program notices nothing and
// peers store straight into it. What cannot be moved (files, stacks, large ranges, ranges that
// other threads might be writing) is left where it is and reached through the kernel.
//
// The move is safe only while nobody writes to the range. A process with one thread is at rest here
// by being here; with more threads of its own the range stays where it is. After fork() a child
// gets private copies of what was moved, as it would of ordinary memory.
//
// Pages that were moved stay in the window after deregistration, being the program's memory; space
// is taken back when the program has unmapped them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "arena/layout.h"
#include "runtime/real/unique_fd.h"

namespace weir::hca {

struct Placement {
    arena::MemoryAccess access;
    std::uint64_t window_offset;  ///< Of the first byte, if access is kWindow.
};

class RegisteredMemory {
  public:
    /// Largest range that is moved into the window; beyond it the kernel copies fast enough and
    /// moving costs too much at registration.
    static constexpr std::size_t kMoveBytesMax = 64UL << 20U;

    void start(runtime::UniqueFd window, bool kernel_copy);

    /// Finds a way to [address, address + length), moving it if need be. EFAULT if it is not all
    /// mapped, or not writable where `writable` is asked for. `own_threads`: threads of the process
    /// that are Weir's.
    int place(std::uintptr_t address, std::size_t length, bool writable, int own_threads,
              Placement& placement);

    /// Around fork(), so that the child has the memory of the moment of the fork, whatever peers
    /// write meanwhile, as the kernel has it for pinned pages. Before it, in the parent, room is
    /// made for copies of every moved range, and then they are filled. After it the child puts them
    /// in place of the shared pages, and the parent drops them.
    ///
    /// The heap itself may be among the ranges. So nothing may be allocated or freed between the
    /// filling and the fork, else the child's heap is of two moments; and until the child has
    /// adopted its copies it may write nowhere on the heap, for it is still the parent's.
    ///
    /// Of the whole process: what an attachment moved stays moved when it ends.
    static void plan_copies();
    static void copy_for_child();
    static void adopt_copies();
    static void drop_copies();
    /// The child's, once it has adopted them.
    static void forget_copies();

  private:
    struct Area {  // one line of /proc/self/maps, as far as it matters
        std::uintptr_t begin;
        std::uintptr_t end;
        bool readable, writable, shared, anonymous, stack, window;
        std::uint64_t inode;  ///< Of a window, ours or not; else 0.
        std::uint64_t offset;
    };
    [[nodiscard]] std::vector<Area> read_areas(std::uintptr_t begin, std::uintptr_t end) const;
    bool move(std::uintptr_t begin, std::uintptr_t end, std::uint64_t& offset);
    std::uint64_t take_window(std::uint64_t bytes);
    void reclaim();

    struct Range {
        std::uint64_t offset;
        std::uint64_t bytes;
    };
    runtime::UniqueFd window_;
    std::uint64_t window_inode_ = 0;  ///< Tells its mappings from those of peers' windows.
    bool kernel_copy_ = false;
    std::uint64_t window_end_ = 0;  ///< Window space handed out so far.
    std::vector<Range> free_;       ///< Given back, holes punched.
    std::uint64_t reclaim_at_ = 256ULL << 20U;
};

}  // namespace weir::hca

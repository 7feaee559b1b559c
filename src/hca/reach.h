// SPDX-License-Identifier: Apache-2.0
// Reach: moving bytes between this process and others of the fabric: through their windows (shared
// memory, mapped on first use), through the kernel (process_vm_readv and _writev), or through the
// arena. Used under the attachment's lock.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "arena/layout.h"
#include "runtime/real/attach_client.h"
#include "runtime/real/shared_memory.h"

namespace weir::hca {

/// Copies so that the last eight bytes (or all, if fewer) become visible last: programs wait for a
/// message by spinning on its last byte, as RDMA hardware lets them.
void copy_ordered(void* to, const void* from, std::size_t length);

class Reach {
  public:
    void start(arena::Arena arena, runtime::AttachClient* client, std::uint32_t identity) {
        arena_ = arena;
        client_ = client;
        identity_ = identity;
    }

    /// True if the kernel lets processes of this user read each other's memory (no ptrace
    /// restriction).
    [[nodiscard]] bool kernel_copy_allowed() const { return kernel_copy_; }
    void set_kernel_copy(bool allowed) { kernel_copy_ = allowed; }

    /// Address here of `offset` in the window of `owner`; null if that process is gone.
    std::byte* window(std::uint32_t owner, std::uint64_t offset);

    /// Copies into or out of another process by the kernel. False: it is gone or the range is not
    /// mapped.
    bool kernel_write(std::uint32_t owner, std::uint64_t to, const void* from, std::size_t length);
    bool kernel_read(std::uint32_t owner, std::uint64_t from, void* to, std::size_t length);

    /// Copies bytes of a packet's payload from `offset` on to `to`. False if they cannot be had.
    bool fetch(const arena::PacketEntry& packet, std::size_t offset, void* to, std::size_t length);

  private:
    struct Peer {
        std::uint32_t identity = 0;
        runtime::Mapping window;
    };
    [[nodiscard]] int pid_of(std::uint32_t owner) const;

    arena::Arena arena_;
    runtime::AttachClient* client_ = nullptr;
    std::uint32_t identity_ = 0;
    bool kernel_copy_ = false;
    std::array<Peer, arena::kProcessCount> peers_;
};

}  // namespace weir::hca

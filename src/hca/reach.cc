// SPDX-License-Identifier: Apache-2.0
#include "hca/reach.h"

#include <sys/mman.h>

#include <cstring>

namespace weir::hca {

void copy_ordered(void* to, const void* from, std::size_t length) {
    auto* target = static_cast<std::byte*>(to);
    const auto* source = static_cast<const std::byte*>(from);
    if (length > 8) {
        std::memcpy(target, source, length - 8);
        target += length - 8;
        source += length - 8;
        length = 8;
    }
    // Release stores: what was copied before is seen by whoever sees them.
    if (length == 8 && reinterpret_cast<std::uintptr_t>(target) % 8 == 0) {
        std::uint64_t last = 0;
        std::memcpy(&last, source, 8);
        __atomic_store_n(reinterpret_cast<std::uint64_t*>(target), last, __ATOMIC_RELEASE);
        return;
    }
    for (std::size_t i = 0; i < length; ++i)
        __atomic_store_n(reinterpret_cast<std::uint8_t*>(target + i),
                         static_cast<std::uint8_t>(source[i]), __ATOMIC_RELEASE);
}

std::byte* Reach::window(std::uint32_t owner, std::uint64_t offset) {
    Peer& peer = peers_[arena::slot_of(owner)];
    if (peer.identity != owner) {
        peer.identity = 0;
        auto fd = client_->peer_window(owner);
        if (!fd) return nullptr;
        auto mapping =
            runtime::Mapping::map(fd->get(), arena::kWindowBytes, runtime::MapAccess::kReadWrite);
        if (!mapping) return nullptr;
        peer.window = *std::move(mapping);
        // A forked child has no business there, and must not pay for the page tables.
        madvise(peer.window.data(), peer.window.bytes(), MADV_DONTFORK);
        peer.identity = owner;
    }
    return static_cast<std::byte*>(peer.window.data()) + offset;
}

int Reach::pid_of(std::uint32_t owner) const {
    const auto& process = arena_.process(arena::slot_of(owner));
    if (process.identity.load(std::memory_order_acquire) != owner) return -1;
    return static_cast<int>(process.pid);
}

bool Reach::kernel_write(std::uint32_t owner, std::uint64_t to, const void* from,
                         std::size_t length) {
    const int pid = pid_of(owner);
    if (pid < 0) return false;
    const iovec local{const_cast<void*>(from), length};
    const iovec remote{reinterpret_cast<void*>(to), length};
    return process_vm_writev(pid, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(length);
}

bool Reach::kernel_read(std::uint32_t owner, std::uint64_t from, void* to, std::size_t length) {
    const int pid = pid_of(owner);
    if (pid < 0) return false;
    const iovec local{to, length};
    const iovec remote{reinterpret_cast<void*>(from), length};
    return process_vm_readv(pid, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(length);
}

bool Reach::fetch(const arena::PacketEntry& packet, std::size_t offset, void* to,
                  std::size_t length) {
    const void* from = nullptr;
    switch (packet.payload_kind) {
        case arena::PayloadKind::kInline:
            if (offset + length > arena::kInlineBytes) return false;
            from = packet.payload + offset;
            break;
        case arena::PayloadKind::kBulk:
            if (packet.address < arena_.header().bulk_at ||
                packet.address + offset + length > arena_.header().total_bytes) {
                return false;
            }
            from = arena_.bytes(packet.address + offset);
            break;
        case arena::PayloadKind::kReference:
            if (packet.memory_owner != identity_) {
                return kernel_read(packet.memory_owner, packet.address + offset, to, length);
            }
            from = reinterpret_cast<const void*>(packet.address + offset);
            break;
        case arena::PayloadKind::kWindow:
            if (packet.address + offset + length > arena::kWindowBytes) return false;
            from = window(packet.memory_owner, packet.address + offset);
            break;
    }
    if (from == nullptr) return false;
    copy_ordered(to, from, length);
    return true;
}

}  // namespace weir::hca

// SPDX-License-Identifier: Apache-2.0
// The attach protocol: how a program joins a live fabric. A Unix SOCK_SEQPACKET socket per fabric,
// `<runtime folder>/<fabric>/attach.sock`; one request, one reply, each one of these records,
// descriptors beside them by SCM_RIGHTS. An attachment lives as long as its connection and its
// process.
//
//   kObserve     → arena descriptor.                                     (tools: read tables and
//   counters) kAttach      node, window memfd → process identity, arena descriptor (a program's
//   HCA) kPeerWindow  identity → that process's window memfd                  (to reach its
//   registered memory) kSetLink     text = link or port name, argument 1 up, 0 down kSetRate text =
//   link or port name, rate kShutdown the daemon ends, programs get errors
//
// The daemon serves only its own user (and root): SO_PEERCRED decides, whatever the socket's mode
// is. The runtime folder: $WEIR_RUNTIME_DIR, else $XDG_RUNTIME_DIR/weir, else /tmp/weir-<uid>; mode
// 0700, and refused when it belongs to somebody else.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weir::arena {

inline constexpr std::uint32_t kAttachMagic = 0x57455254U;  // "WERT"
inline constexpr std::uint32_t kAttachVersion = 2;
inline constexpr std::size_t kAttachTextBytes = 128;
/// Size of each process's window memfd: sparse, so only what is registered takes memory.
inline constexpr std::uint64_t kWindowBytes = 16ULL << 30U;

enum class AttachKind : std::uint32_t {
    kObserve = 1,
    kAttach = 2,
    kPeerWindow = 3,
    kSetLink = 4,
    kShutdown = 5,
    kSetRate = 6,
};

struct AttachRequest {
    std::uint32_t magic;
    std::uint32_t version;
    AttachKind kind;
    std::uint32_t node;      ///< kAttach: index of the HCA node.
    std::uint32_t identity;  ///< kPeerWindow.
    std::uint32_t argument;
    std::uint64_t rate_bits_per_second;  ///< kSetRate; 0 unlimited.
    char text[kAttachTextBytes];         ///< NUL-terminated.
};

struct AttachReply {
    std::uint32_t magic;
    std::int32_t status;  ///< 0 or an errno value; then text says why.
    std::uint32_t identity;
    std::uint32_t reserved;
    std::uint64_t arena_bytes;
    char text[kAttachTextBytes];
};

}  // namespace weir::arena

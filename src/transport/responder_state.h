// SPDX-License-Identifier: Apache-2.0
// The responder half of a reliable or unreliable connection, as plain data: it lies in shared
// memory, so that a requester can execute one-sided operations while the target program computes.
// Whoever executes holds the QP's lock (arena::QpEntry::lock).
#pragma once

#include <cstdint>

namespace weir::transport {

/// What answers to duplicates of past atomics are drawn from (IBTA 9.4.5).
struct AtomicReply {
    std::uint32_t psn;
    std::uint32_t valid;
    std::uint64_t original;
};
/// Atomics whose answers are kept; at least the outstanding ones that a QP accepts.
inline constexpr std::uint32_t kAtomicReplies = 16;

struct ResponderState {
    std::uint32_t expected_psn;   ///< Of the next new request.
    std::uint32_t message_count;  ///< MSN, 24 bits: messages completed.
    std::uint32_t
        nak_outstanding;          ///< 1 after a sequence-error NAK, until the expected PSN arrives.
    std::uint32_t open_message;   ///< Opcode of the open message's first packet + 1; 0 between.
    std::uint64_t write_address;  ///< Where the open RDMA write goes on.
    std::uint32_t write_rkey;
    std::uint32_t write_left;   ///< Bytes that the open RDMA write still announces.
    std::uint32_t write_bytes;  ///< Bytes of the whole of it.
    std::uint32_t ack_due;      ///< 1 while requests have been executed but not acknowledged.
    std::uint32_t unused;
    std::uint32_t next_reply;  ///< Index of `replies` to be overwritten next.
    AtomicReply replies[kAtomicReplies];
};

}  // namespace weir::transport

// SPDX-License-Identifier: Apache-2.0
// LaneBuffer: the receive buffer of one port for one virtual lane, and with it the credits of the
// link that feeds it. It holds handles of packets, not packets; a packet's bytes stay where its
// sender put them.
//
// The credit law (IBTA 7.9) is not kept beside the buffer, it *is* the buffer: `tail` counts what
// was ever sent into it (FCTBS), `head` what was ever taken out, and the sender's limit (FCCL) is
// head + capacity. So credits cannot leak, whoever dies between two instructions.
//
// Many processes move packets at once and any of them may be stopped or killed at any instruction.
// There is no lock to hold. Each change is one compare-and-swap of one 64-bit word, and the words
// say enough for anybody to finish what another began (switching/forwarding.h has the protocol and
// the argument).
//
//        head: | claim 12 | index 28 | blocks 24 |     claim: where the head packet has been
//        promised to tail: |        index 40     | blocks 24 | slot: | sequence 18 | generation 12
//        | packet 22 | source 12 |
//
// A slot is filled for index i when its sequence equals i mod 2^18; it is free for index i when its
// sequence equals (i - kSlotCount) mod 2^18. Nothing ever needs to be erased, so no late store can
// erase too much.
#pragma once

#include <atomic>
#include <cstdint>

namespace weir::credit {

/// Packets that one lane buffer can hold, whatever their size.
inline constexpr std::uint32_t kSlotCount = 32;
/// Bytes of one flow-control block (IBTA 7.9.4.1: credits are counted in 64-byte blocks).
inline constexpr std::uint32_t kBlockBytes = 64;

inline constexpr std::uint64_t kBlocksMask = (1ULL << 24U) - 1;
inline constexpr std::uint64_t kHeadIndexMask = (1ULL << 28U) - 1;
inline constexpr std::uint64_t kSequenceMask = (1ULL << 18U) - 1;
inline constexpr std::uint32_t kPacketMask = (1U << 21U) - 1;

/// Promises that a head can carry. Codes from 16 up mean output port * 16 + virtual lane.
inline constexpr std::uint32_t kUnclaimed = 0;
inline constexpr std::uint32_t kClaimDiscard = 1;  ///< No way on: the packet is to be dropped.
inline constexpr std::uint32_t kClaimDeliver = 2;  ///< Into the ring of the queue pair it names.

/// Source code of a packet that enters the fabric, and so has no buffer to leave.
inline constexpr std::uint32_t kSourceNone = 0xfff;

struct Head {
    std::uint32_t claim;
    std::uint32_t index;
    std::uint32_t blocks;

    static constexpr Head decode(std::uint64_t word) {
        return {static_cast<std::uint32_t>(word >> 52U),
                static_cast<std::uint32_t>((word >> 24U) & kHeadIndexMask),
                static_cast<std::uint32_t>(word & kBlocksMask)};
    }
    [[nodiscard]] constexpr std::uint64_t encode() const {
        return (static_cast<std::uint64_t>(claim) << 52U) |
               ((static_cast<std::uint64_t>(index) & kHeadIndexMask) << 24U) |
               (blocks & kBlocksMask);
    }
    /// The head after its packet of `size` blocks has left.
    [[nodiscard]] constexpr Head next(std::uint32_t size) const {
        return {kUnclaimed, static_cast<std::uint32_t>((index + 1U) & kHeadIndexMask),
                static_cast<std::uint32_t>((blocks + size) & kBlocksMask)};
    }
};

struct Tail {
    std::uint64_t index;  ///< Packets ever received, modulo 2^40.
    std::uint32_t blocks;

    static constexpr Tail decode(std::uint64_t word) {
        return {word >> 24U, static_cast<std::uint32_t>(word & kBlocksMask)};
    }
    [[nodiscard]] constexpr std::uint64_t encode() const {
        return (index << 24U) | (blocks & kBlocksMask);
    }
    [[nodiscard]] constexpr Tail next(std::uint32_t size) const {
        return {(index + 1U) & ((1ULL << 40U) - 1),
                static_cast<std::uint32_t>((blocks + size) & kBlocksMask)};
    }
};

struct Slot {
    std::uint32_t sequence;
    std::uint32_t
        generation;        ///< Of the packet, so that a reused packet is told from its former self.
    std::uint32_t packet;  ///< Index of the packet descriptor in the arena.
    std::uint32_t source;  ///< Input port * 16 + lane of the node before, or kSourceNone.
    /// In a QP's ring: it came straight from the last switch, whose port `source` names, past the
    /// buffer of its HCA's port.
    bool express = false;

    static constexpr Slot decode(std::uint64_t word) {
        return {static_cast<std::uint32_t>(word >> 46U),
                static_cast<std::uint32_t>((word >> 34U) & 0xfffU),
                static_cast<std::uint32_t>((word >> 12U) & kPacketMask),
                static_cast<std::uint32_t>(word & 0xfffU), ((word >> 33U) & 1U) != 0};
    }
    [[nodiscard]] constexpr std::uint64_t encode() const {
        return (static_cast<std::uint64_t>(sequence & kSequenceMask) << 46U) |
               (static_cast<std::uint64_t>(generation & 0xfffU) << 34U) |
               (static_cast<std::uint64_t>(express ? 1U : 0U) << 33U) |
               (static_cast<std::uint64_t>(packet & kPacketMask) << 12U) | (source & 0xfffU);
    }
    [[nodiscard]] constexpr bool same_packet(const Slot& other) const {
        return packet == other.packet && generation == other.generation;
    }
};

struct alignas(64) LaneBuffer {
    std::atomic<std::uint64_t> head;
    std::atomic<std::uint64_t> tail;
    /// Ports: bytes ever received, headers included, also of packets that went past. PortRcvData of
    /// this lane, and PortXmitData of the link's other end, in bytes. Exact unless a mover is
    /// killed between two given instructions.
    std::atomic<std::uint64_t> received_bytes;
    /// Packets taken out of this buffer and dropped: no route, link down, or ring of a dead
    /// program.
    std::atomic<std::uint64_t> discards;
    /// Times a mover found no credit here: PortXmitWait of the link's other end.
    std::atomic<std::uint64_t> stalls;
    /// Capacity in blocks; fixed when the fabric is made. A single packet may not exceed it.
    std::uint32_t capacity_blocks;
    std::uint32_t port;  ///< Egress lanes: the port whose link they feed.
    /// Rings of queue pairs: 1 while the owner looks here by itself, so that a packet's arrival
    /// need not be told to it. In this line because whoever moves a packet in holds it anyway.
    std::atomic<std::uint32_t> watched;
    std::uint32_t unused;
    /// Rings of responses: how far the peer's responder, on the same machine, has executed
    /// requests. See hca/README.md; 0 if it has said nothing.
    /// Ports: packets received that went past this buffer, straight into a ring.
    std::atomic<std::uint64_t> acknowledged;
    std::atomic<std::uint64_t> slots[kSlotCount];

    void reset(std::uint32_t capacity) {
        head.store(Head{kUnclaimed, 0, 0}.encode(), std::memory_order_relaxed);
        tail.store(Tail{0, 0}.encode(), std::memory_order_relaxed);
        received_bytes.store(0, std::memory_order_relaxed);
        discards.store(0, std::memory_order_relaxed);
        stalls.store(0, std::memory_order_relaxed);
        watched.store(0, std::memory_order_relaxed);
        acknowledged.store(0, std::memory_order_relaxed);
        capacity_blocks = capacity;
        for (std::uint32_t i = 0; i < kSlotCount; ++i) {
            const Slot empty{static_cast<std::uint32_t>((i - kSlotCount) & kSequenceMask), 0, 0, 0};
            slots[i].store(empty.encode(), std::memory_order_relaxed);
        }
    }
    [[nodiscard]] std::atomic<std::uint64_t>& slot(std::uint64_t index) {
        return slots[index % kSlotCount];
    }
    [[nodiscard]] std::atomic<std::uint64_t>& passed() { return acknowledged; }
    /// Ports: packets ever received.
    [[nodiscard]] std::uint64_t received_packets() const {
        return Tail::decode(tail.load(std::memory_order_relaxed)).index +
               acknowledged.load(std::memory_order_relaxed);
    }
    /// Packets in the buffer. A snapshot: exact only while nobody moves.
    [[nodiscard]] std::uint32_t occupancy() const {
        const auto t = Tail::decode(tail.load(std::memory_order_acquire));
        const auto h = Head::decode(head.load(std::memory_order_acquire));
        return static_cast<std::uint32_t>((t.index - h.index) & kHeadIndexMask);
    }
};
static_assert(sizeof(LaneBuffer) == 64 + kSlotCount * 8, "one line of words, then the slots");
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// True if a packet of `size` blocks fits between these two words of a buffer of `capacity` blocks.
constexpr bool has_credit(Head head, Tail tail, std::uint32_t size, std::uint32_t capacity) {
    const auto packets = static_cast<std::uint32_t>((tail.index - head.index) & kHeadIndexMask);
    const auto used = static_cast<std::uint32_t>((tail.blocks - head.blocks) & kBlocksMask);
    return packets < kSlotCount && used + size <= capacity;
}

}  // namespace weir::credit

// SPDX-License-Identifier: Apache-2.0
// What one packet says: its opcode, what that opcode implies, and its header fields in host order.
//
// A packet travels inside Weir as one PacketHeader beside its payload, and is turned into bytes
// (codec.h) only where a cable leaves the machine or a capture is written. Field meanings are those
// of the InfiniBand Architecture Specification (IBTA), volume 1: chapter 7 (LRH), 8 (GRH), 9 (BTH
// and extended headers), annexes A17 (RoCEv2), A14 (extended atomics are not covered).
//
// Nothing here allocates, throws or keeps state.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace weir::wire {

/// BTH opcode (IBTA 9.2.1, table "OpCode field"): three bits of service type, five of operation.
/// Values not named here are refused by the codec.
enum class Opcode : std::uint8_t {
    kRcSendFirst = 0x00,
    kRcSendMiddle = 0x01,
    kRcSendLast = 0x02,
    kRcSendLastImm = 0x03,
    kRcSendOnly = 0x04,
    kRcSendOnlyImm = 0x05,
    kRcWriteFirst = 0x06,
    kRcWriteMiddle = 0x07,
    kRcWriteLast = 0x08,
    kRcWriteLastImm = 0x09,
    kRcWriteOnly = 0x0a,
    kRcWriteOnlyImm = 0x0b,
    kRcReadRequest = 0x0c,
    kRcReadResponseFirst = 0x0d,
    kRcReadResponseMiddle = 0x0e,
    kRcReadResponseLast = 0x0f,
    kRcReadResponseOnly = 0x10,
    kRcAcknowledge = 0x11,
    kRcAtomicAcknowledge = 0x12,
    kRcCompareSwap = 0x13,
    kRcFetchAdd = 0x14,
    kRcSendLastInvalidate = 0x16,
    kRcSendOnlyInvalidate = 0x17,
    kRcFlush = 0x1c,
    kRcAtomicWrite = 0x1d,
    kUcSendFirst = 0x20,
    kUcSendMiddle = 0x21,
    kUcSendLast = 0x22,
    kUcSendLastImm = 0x23,
    kUcSendOnly = 0x24,
    kUcSendOnlyImm = 0x25,
    kUcWriteFirst = 0x26,
    kUcWriteMiddle = 0x27,
    kUcWriteLast = 0x28,
    kUcWriteLastImm = 0x29,
    kUcWriteOnly = 0x2a,
    kUcWriteOnlyImm = 0x2b,
    kUdSendOnly = 0x64,
    kUdSendOnlyImm = 0x65,
    kCnp = 0x81,  ///< Congestion notification packet (A17.9.3): BTH and 16 reserved bytes.
};

/// Which transport service an opcode belongs to.
enum class Service : std::uint8_t { kRc, kUc, kUd, kCnp, kUnknown };

namespace detail {

// One word of facts per opcode value; the public functions below each test one bit.
enum Trait : std::uint16_t {
    kKnown = 1U << 0U,
    kReth = 1U << 1U,
    kAeth = 1U << 2U,
    kImmediate = 1U << 3U,
    kDeth = 1U << 4U,
    kAtomicEth = 1U << 5U,
    kAtomicAck = 1U << 6U,
    kIeth = 1U << 7U,
    kRequest = 1U << 8U,
    kResponse = 1U << 9U,
    kStarts = 1U << 10U,
    kEnds = 1U << 11U,
    kPayload = 1U << 12U,
    kFeth = 1U << 13U,
};

constexpr std::array<std::uint16_t, 256> make_traits() {
    std::array<std::uint16_t, 256> table{};
    const auto set = [](auto& into, unsigned op, unsigned facts) {
        into[op] = static_cast<std::uint16_t>(facts | kKnown);
    };
    constexpr unsigned kOnly = kStarts | kEnds;
    constexpr unsigned kSend = kRequest | kPayload;
    // RC and UC share the numbering of sends and writes (IBTA 9.2.1).
    for (const unsigned service : {0x00U, 0x20U}) {
        set(table, service + 0x00, kSend | kStarts);
        set(table, service + 0x01, kSend);
        set(table, service + 0x02, kSend | kEnds);
        set(table, service + 0x03, kSend | kEnds | kImmediate);
        set(table, service + 0x04, kSend | kOnly);
        set(table, service + 0x05, kSend | kOnly | kImmediate);
        set(table, service + 0x06, kSend | kStarts | kReth);
        set(table, service + 0x07, kSend);
        set(table, service + 0x08, kSend | kEnds);
        set(table, service + 0x09, kSend | kEnds | kImmediate);
        set(table, service + 0x0a, kSend | kOnly | kReth);
        set(table, service + 0x0b, kSend | kOnly | kReth | kImmediate);
    }
    set(table, 0x0c, kRequest | kOnly | kReth);
    set(table, 0x0d, kResponse | kPayload | kStarts | kAeth);
    set(table, 0x0e, kResponse | kPayload);
    set(table, 0x0f, kResponse | kPayload | kEnds | kAeth);
    set(table, 0x10, kResponse | kPayload | kOnly | kAeth);
    set(table, 0x11, kResponse | kOnly | kAeth);
    set(table, 0x12, kResponse | kOnly | kAeth | kAtomicAck);
    set(table, 0x13, kRequest | kOnly | kAtomicEth);
    set(table, 0x14, kRequest | kOnly | kAtomicEth);
    set(table, 0x16, kSend | kEnds | kIeth);
    set(table, 0x17, kSend | kOnly | kIeth);
    set(table, 0x1c, kRequest | kOnly | kFeth | kReth);
    set(table, 0x1d, kRequest | kOnly | kReth | kPayload);
    set(table, 0x64, kSend | kOnly | kDeth);
    set(table, 0x65, kSend | kOnly | kDeth | kImmediate);
    set(table, 0x81, kOnly);
    return table;
}

inline constexpr std::array<std::uint16_t, 256> kTraits = make_traits();

constexpr unsigned traits(Opcode op) {
    return kTraits[static_cast<std::uint8_t>(op)];
}

}  // namespace detail

constexpr bool is_known(Opcode op) {
    return (detail::traits(op) & detail::kKnown) != 0;
}
/// Carries RETH: virtual_address, rkey, dma_length.
constexpr bool has_reth(Opcode op) {
    return (detail::traits(op) & detail::kReth) != 0;
}
/// Carries AETH: syndrome, msn.
constexpr bool has_aeth(Opcode op) {
    return (detail::traits(op) & detail::kAeth) != 0;
}
/// Carries ImmDt: immediate.
constexpr bool has_immediate(Opcode op) {
    return (detail::traits(op) & detail::kImmediate) != 0;
}
/// Carries DETH: qkey, src_qp.
constexpr bool has_deth(Opcode op) {
    return (detail::traits(op) & detail::kDeth) != 0;
}
/// Carries AtomicETH: virtual_address, rkey, swap_or_add, compare.
constexpr bool has_atomic_eth(Opcode op) {
    return (detail::traits(op) & detail::kAtomicEth) != 0;
}
/// Carries AtomicAckETH: original_data (after an AETH).
constexpr bool has_atomic_ack(Opcode op) {
    return (detail::traits(op) & detail::kAtomicAck) != 0;
}
/// Carries IETH: invalidate_rkey.
constexpr bool has_ieth(Opcode op) {
    return (detail::traits(op) & detail::kIeth) != 0;
}
/// Carries FETH: flush (before a RETH).
constexpr bool has_feth(Opcode op) {
    return (detail::traits(op) & detail::kFeth) != 0;
}
/// Goes from requester to responder. A CNP is neither request nor response.
constexpr bool is_request(Opcode op) {
    return (detail::traits(op) & detail::kRequest) != 0;
}
constexpr bool is_response(Opcode op) {
    return (detail::traits(op) & detail::kResponse) != 0;
}
/// First packet of its message, be it of several or the only one.
constexpr bool starts_message(Opcode op) {
    return (detail::traits(op) & detail::kStarts) != 0;
}
/// Last packet of its message, be it of several or the only one.
constexpr bool ends_message(Opcode op) {
    return (detail::traits(op) & detail::kEnds) != 0;
}
/// First of several; use starts_message() to count an only packet too.
constexpr bool is_first(Opcode op) {
    return starts_message(op) && !ends_message(op);
}
constexpr bool is_middle(Opcode op) {
    return is_known(op) && !starts_message(op) && !ends_message(op);
}
/// Last of several; use ends_message() to count an only packet too.
constexpr bool is_last(Opcode op) {
    return ends_message(op) && !starts_message(op);
}
constexpr bool is_only(Opcode op) {
    return starts_message(op) && ends_message(op);
}
/// May have a payload. Where false, payload_length must be 0.
constexpr bool carries_payload(Opcode op) {
    return (detail::traits(op) & detail::kPayload) != 0;
}
constexpr bool is_send(Opcode op) {
    const unsigned low = static_cast<unsigned>(op) & 0x1fU;
    return is_request(op) && (low <= 0x05 || low == 0x16 || low == 0x17);
}
constexpr bool is_write(Opcode op) {
    const unsigned low = static_cast<unsigned>(op) & 0x1fU;
    return is_request(op) && low >= 0x06 && low <= 0x0b;
}
constexpr bool is_read_response(Opcode op) {
    return is_response(op) && carries_payload(op);
}
constexpr bool is_atomic(Opcode op) {
    return has_atomic_eth(op);
}
constexpr Service service(Opcode op) {
    if (!is_known(op)) return Service::kUnknown;
    switch (static_cast<unsigned>(op) >> 5U) {
        case 0:
            return Service::kRc;
        case 1:
            return Service::kUc;
        case 3:
            return Service::kUd;
        default:
            return Service::kCnp;
    }
}

inline constexpr std::size_t kLrhBytes = 8;
inline constexpr std::size_t kGrhBytes = 40;
inline constexpr std::size_t kBthBytes = 12;
inline constexpr std::size_t kRethBytes = 16;
inline constexpr std::size_t kAethBytes = 4;
inline constexpr std::size_t kImmediateBytes = 4;
inline constexpr std::size_t kDethBytes = 8;
inline constexpr std::size_t kAtomicEthBytes = 28;
inline constexpr std::size_t kAtomicAckBytes = 8;
inline constexpr std::size_t kIethBytes = 4;
inline constexpr std::size_t kFethBytes = 4;
inline constexpr std::size_t kXrcEthBytes = 4;
inline constexpr std::size_t kCnpReservedBytes = 16;
inline constexpr std::size_t kIcrcBytes = 4;
inline constexpr std::size_t kVcrcBytes = 2;

/// Bytes of BTH and extended headers that `op` puts before its payload (a CNP's 16 reserved bytes
/// count as header). What the packet takes of a link in total is wire_bytes() in codec.h.
constexpr std::size_t transport_header_bytes(Opcode op) {
    return kBthBytes + (has_deth(op) ? kDethBytes : 0) + (has_reth(op) ? kRethBytes : 0) +
           (has_atomic_eth(op) ? kAtomicEthBytes : 0) + (has_aeth(op) ? kAethBytes : 0) +
           (has_atomic_ack(op) ? kAtomicAckBytes : 0) + (has_immediate(op) ? kImmediateBytes : 0) +
           (has_ieth(op) ? kIethBytes : 0) + (has_feth(op) ? kFethBytes : 0) +
           (op == Opcode::kCnp ? kCnpReservedBytes : 0);
}

/// Largest payload of one PacketHeader: a large segment (see payload_length) stands for up to this.
inline constexpr std::uint32_t kMaxSegmentBytes = 1U << 20U;
/// QP numbers, PSNs and MSNs are 24 bits wide.
inline constexpr std::uint32_t kMask24 = 0xffffffU;
/// The P_Key of the default partition, full member (IBTA 10.9.1).
inline constexpr std::uint16_t kDefaultPkey = 0xffff;

/// Bits of PacketHeader::flags.
enum Flag : std::uint8_t {
    kFlagSolicited = 1U << 0U,   ///< BTH SE: the receiver should raise a solicited event.
    kFlagMigration = 1U << 1U,   ///< BTH MigReq: migration state is Migrated.
    kFlagAckRequest = 1U << 2U,  ///< BTH A: the responder must acknowledge this packet.
    kFlagGrh = 1U << 3U,   ///< A GRH goes with the packet; its Grh is kept beside this header.
    kFlagFecn = 1U << 4U,  ///< Congestion was met on the way (set by switches).
    kFlagBecn = 1U << 5U,  ///< The other direction meets congestion (set by receivers).
    /// The packet names a shared receive queue (XRCETH, IBTA annex A14), see srq_number(). Opcodes
    /// are those of RC, which XRC's differ from in their service type alone.
    kFlagXrc = 1U << 6U,
    kFlagMulticast =
        1U << 7U,  ///< Sent to a group: swap_or_add and compare are its GID as it lies in memory.
};

/// One packet's header fields in host byte order: 64 bytes, one cache line, copied freely.
///
///        0       1       2       3       4       5       6       7
///    +-------------------------------+-------------------------------+
///  0 |             slid              |             dlid              |
///    +-------+-------+-------+-------+---------------+-------+-------+
///  8 |  sl   |  vl   |opcode | flags |     pkey      | syndr |  tag  |
///    +-------+-------+-------+-------+---------------+-------+-------+
/// 16 |            dest_qp            |              psn              |
///    +-------------------------------+-------------------------------+
/// 24 |      src_qp | dma_length      |          rkey | qkey          |
///    +-------------------------------+-------------------------------+
/// 32 |        payload_length         |immediate|inv_rkey|msn|flush|
///    +-------------------------------+-------------------------------+
/// 40 |               virtual_address | original_data                 |
///    +---------------------------------------------------------------+
/// 48 |                          swap_or_add                          |
///    +---------------------------------------------------------------+
/// 56 |                            compare                            |
///    +---------------------------------------------------------------+
///
/// `a | b` are two names of one place: no opcode carries both (DETH never meets RETH; an AETH never
/// or FETH meets immediate data or IETH; an AtomicAckETH never meets RETH or AtomicETH). The
/// members of a pair have the same type and size, so a stale value is only ever wrong, never out of
/// range. Fields that the opcode does not carry are ignored when encoding and zero after decoding.
/// Fill one by assignment: g++ 12 warns of a designated initialiser that leaves out a pair.
struct alignas(8) PacketHeader {
    std::uint32_t slid = 0;  ///< Source LID. 32 bits wide: see docs/protocol/wire.md on large LIDs.
    std::uint32_t dlid = 0;  ///< Destination LID.
    std::uint8_t sl = 0;     ///< Service level, 4 bits; end to end.
    std::uint8_t vl = 0;     ///< Virtual lane, 4 bits; rewritten at every hop.
    Opcode opcode = Opcode::kRcSendFirst;
    std::uint8_t flags = 0;     ///< Flag bits.
    std::uint16_t pkey = 0;     ///< Partition key; bit 15 is full membership.
    std::uint8_t syndrome = 0;  ///< AETH syndrome; see syndrome.h.
    std::uint8_t tag = 0;       ///< Free for whoever holds the packet; never on a wire.
    std::uint32_t dest_qp = 0;  ///< 24 bits.
    std::uint32_t psn = 0;      ///< 24 bits; of the first MTU if this is a large segment.
    union {
        std::uint32_t src_qp = 0;  ///< DETH: sender's QP, 24 bits.
        std::uint32_t dma_length;  ///< RETH: bytes of the whole message.
    };
    union {
        std::uint32_t rkey = 0;  ///< RETH, AtomicETH.
        std::uint32_t qkey;      ///< DETH.
    };
    /// Bytes of payload that go with this header, without pad. May exceed the MTU (up to
    /// kMaxSegmentBytes) while inside Weir: such a large segment stands for the run of MTU-sized
    /// packets it would be on a wire, and consumes as many PSNs.
    std::uint32_t payload_length = 0;
    union {
        std::uint32_t immediate = 0;    ///< ImmDt, as a number (verbs keep it in network order).
        std::uint32_t invalidate_rkey;  ///< IETH.
        std::uint32_t flush;            ///< FETH: see flush_word().
        std::uint32_t msn;              ///< AETH: messages completed by the responder, 24 bits.
    };
    union {
        std::uint64_t virtual_address = 0;  ///< RETH, AtomicETH.
        std::uint64_t original_data;        ///< AtomicAckETH: the value before the operation.
    };
    std::uint64_t swap_or_add = 0;  ///< AtomicETH: CompareSwap's new value or FetchAdd's addend.
    std::uint64_t compare = 0;      ///< AtomicETH: CompareSwap's expected value.

    [[nodiscard]] constexpr bool has(Flag flag) const { return (flags & flag) != 0; }
    constexpr void set(Flag flag, bool on = true) {
        flags = static_cast<std::uint8_t>(on ? flags | flag : flags & ~flag);
    }
};

/// FETH (IBTA 9.2, annex A19): what a flush makes sure of, and for which bytes.
enum FlushBit : std::uint32_t {
    kFlushGlobal = 1U << 0U,      ///< The bytes are visible to all of the responder's system.
    kFlushPersistent = 1U << 1U,  ///< They outlast its power.
    kFlushPlacementMask = 0x0fU,
    kFlushRegion = 1U << 4U,  ///< All of the region, whatever address and length say.
    kFlushSelectivityMask = 0x30U,
};

/// XRC: where the number of the shared receive queue lies, depending on what else there is.
constexpr std::uint32_t srq_number(const PacketHeader& header) {
    return is_atomic(header.opcode) ? header.immediate
                                    : static_cast<std::uint32_t>(header.swap_or_add);
}

static_assert(sizeof(PacketHeader) == 64 && alignof(PacketHeader) == 8);
static_assert(std::is_trivially_copyable_v<PacketHeader> &&
              std::is_standard_layout_v<PacketHeader>);
static_assert(offsetof(PacketHeader, slid) == 0 && offsetof(PacketHeader, dlid) == 4);
static_assert(offsetof(PacketHeader, sl) == 8 && offsetof(PacketHeader, vl) == 9);
static_assert(offsetof(PacketHeader, opcode) == 10 && offsetof(PacketHeader, flags) == 11);
static_assert(offsetof(PacketHeader, pkey) == 12 && offsetof(PacketHeader, syndrome) == 14);
static_assert(offsetof(PacketHeader, tag) == 15 && offsetof(PacketHeader, dest_qp) == 16);
static_assert(offsetof(PacketHeader, psn) == 20 && offsetof(PacketHeader, src_qp) == 24);
static_assert(offsetof(PacketHeader, rkey) == 28 && offsetof(PacketHeader, payload_length) == 32);
static_assert(offsetof(PacketHeader, msn) == 36 && offsetof(PacketHeader, original_data) == 40);
static_assert(offsetof(PacketHeader, swap_or_add) == 48 && offsetof(PacketHeader, compare) == 56);

/// Equal in every byte; the struct has no padding, so this is equality of all fields.
inline bool operator==(const PacketHeader& a, const PacketHeader& b) {
    return std::memcmp(&a, &b, sizeof a) == 0;
}

/// How many PSNs a segment of `bytes` consumes when cut at `mtu`; an empty one consumes one.
/// REQUIRES: mtu > 0.
constexpr std::uint32_t packets_in(std::uint32_t bytes, std::uint32_t mtu) {
    return bytes == 0 ? 1 : (bytes - 1) / mtu + 1;
}

}  // namespace weir::wire

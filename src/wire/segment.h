// SPDX-License-Identifier: Apache-2.0
// Large segments, cut up: the packets of one MTU each that a PacketHeader with a longer payload
// stands for. Needed where packets leave Weir (a real wire, a capture) and by whoever must name one
// PSN inside a segment.
#pragma once

#include <cstdint>

#include "wire/headers.h"
#include "wire/psn.h"

namespace weir::wire {

namespace detail {

// The opcode of a part that keeps or gives up being first and last. Families are the runs first,
// middle, last, (last with immediate), only (IBTA 9.2.1).
constexpr Opcode part_opcode(Opcode op, bool starts, bool ends) {
    if (starts == starts_message(op) && ends == ends_message(op)) return op;
    const unsigned service = static_cast<unsigned>(op) & 0xe0U;
    const unsigned low = static_cast<unsigned>(op) & 0x1fU;
    const bool read = is_read_response(op);
    const unsigned first = read ? 0x0dU : is_write(op) ? 0x06U : 0x00U;
    if (starts) return static_cast<Opcode>(service | first);
    if (!ends) return static_cast<Opcode>(service | (first + 1));
    // Ends but no longer starts: the only packet's last part.
    if (read) return Opcode::kRcReadResponseLast;
    if (op == Opcode::kRcSendOnlyInvalidate) return Opcode::kRcSendLastInvalidate;
    return static_cast<Opcode>(service | (low - 2));  // only -> last, only imm -> last imm
}

}  // namespace detail

/// Packet `index` of the packets_in(segment.payload_length, mtu) that `segment` stands for. Its
/// payload is the segment's from byte index * mtu on. Solicited event and acknowledge request stay
/// with the last of them; fields that the part's opcode does not carry are zero.
/// REQUIRES: mtu > 0 and index is in range; if the segment does not end its message, its length is
/// a multiple of mtu. UD segments are never larger than an MTU.
constexpr PacketHeader packet_of_segment(const PacketHeader& segment, std::uint32_t mtu,
                                         std::uint32_t index) {
    const std::uint32_t count = packets_in(segment.payload_length, mtu);
    const bool last = index + 1 == count;
    if (count == 1) return segment;
    PacketHeader part = segment;
    part.opcode = detail::part_opcode(segment.opcode, index == 0 && starts_message(segment.opcode),
                                      last && ends_message(segment.opcode));
    part.psn = psn_add(segment.psn, index);
    part.payload_length = last ? segment.payload_length - index * mtu : mtu;
    if (!last) {
        part.set(kFlagSolicited, false);
        part.set(kFlagAckRequest, false);
    }
    if (!has_reth(part.opcode)) {
        part.virtual_address = 0;
        part.rkey = 0;
        part.dma_length = 0;
    }
    if (!has_aeth(part.opcode)) part.syndrome = 0;
    if (!has_aeth(part.opcode) && !has_immediate(part.opcode) && !has_ieth(part.opcode))
        part.immediate = 0;
    return part;
}

}  // namespace weir::wire

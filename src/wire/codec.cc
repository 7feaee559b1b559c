// SPDX-License-Identifier: Apache-2.0
#include "wire/codec.h"

#include <cstring>

#include "wire/bytes.h"
#include "wire/crc.h"

namespace weir::wire {
namespace {

using Bytes = std::span<const std::uint8_t>;

constexpr std::uint8_t kLnhLocal = 2;
constexpr std::uint8_t kLnhGlobal = 3;
constexpr std::uint8_t kGrhNextHeader = 0x1b;
constexpr std::size_t kIpv4Bytes = 20;
constexpr std::size_t kIpv6Bytes = 40;
constexpr std::size_t kUdpBytes = 8;
constexpr std::uint8_t kUdpProtocol = 17;
// BTH byte 4 (resv8a), whose top bits are FECN and BECN: switches may change it.
constexpr std::size_t kBthResv8a = 4;

void store32_le(std::uint8_t* at, std::uint32_t value) {
    for (unsigned i = 0; i < 4; ++i)
        at[i] = static_cast<std::uint8_t>(value >> (8U * i));
}
std::uint32_t load32_le(const std::uint8_t* at) {
    return at[0] | (std::uint32_t{at[1]} << 8U) | (std::uint32_t{at[2]} << 16U) |
           (std::uint32_t{at[3]} << 24U);
}

std::size_t pad_of(std::size_t payload_bytes) {
    return (4 - payload_bytes % 4) % 4;
}

// Only an only or last packet may be padded: the others carry exactly one MTU (IBTA 9.2.2).
bool may_pad(Opcode opcode) {
    return ends_message(opcode);
}

// ---- The transport packet, BTH to pad: the same in both forms. ----

CodecStatus check_transport(const PacketHeader& header, Bytes payload) {
    if (!is_known(header.opcode)) return CodecStatus::kUnknownOpcode;
    if (payload.size() != header.payload_length) return CodecStatus::kLengthMismatch;
    if (!payload.empty() && !carries_payload(header.opcode)) return CodecStatus::kUnexpectedPayload;
    if (payload.size() > kMaxMtuBytes) return CodecStatus::kPayloadTooLong;
    if (pad_of(payload.size()) != 0 && !may_pad(header.opcode)) return CodecStatus::kBadPadCount;
    const bool fits = header.dest_qp <= kMask24 && header.psn <= kMask24 &&
                      (!has_deth(header.opcode) || header.src_qp <= kMask24) &&
                      (!has_aeth(header.opcode) || header.msn <= kMask24);
    return fits ? CodecStatus::kOk : CodecStatus::kFieldTooWide;
}

// Writes BTH, extended headers, payload and pad at `at`; returns the end.
// REQUIRES: check_transport() passed and the room is there.
std::uint8_t* put_transport(const PacketHeader& header, Bytes payload, std::uint8_t* at) {
    const Opcode op = header.opcode;
    const std::size_t pad = pad_of(payload.size());
    at[0] = static_cast<std::uint8_t>(op);
    at[1] = static_cast<std::uint8_t>((header.has(kFlagSolicited) ? 0x80U : 0U) |
                                      (header.has(kFlagMigration) ? 0x40U : 0U) | (pad << 4U));
    store16(at + 2, header.pkey);
    at[4] = static_cast<std::uint8_t>((header.has(kFlagFecn) ? 0x80U : 0U) |
                                      (header.has(kFlagBecn) ? 0x40U : 0U));
    store24(at + 5, header.dest_qp);
    at[8] = header.has(kFlagAckRequest) ? 0x80 : 0;
    store24(at + 9, header.psn);
    at += kBthBytes;
    if (has_deth(op)) {
        store32(at, header.qkey);
        store32(at + 4, header.src_qp);
        at += kDethBytes;
    }
    if (has_feth(op)) {
        store32(at, header.flush);
        at += kFethBytes;
    }
    if (has_reth(op)) {
        store64(at, header.virtual_address);
        store32(at + 8, header.rkey);
        store32(at + 12, header.dma_length);
        at += kRethBytes;
    }
    if (has_atomic_eth(op)) {
        store64(at, header.virtual_address);
        store32(at + 8, header.rkey);
        store64(at + 12, header.swap_or_add);
        store64(at + 20, header.compare);
        at += kAtomicEthBytes;
    }
    if (has_aeth(op)) {
        at[0] = header.syndrome;
        store24(at + 1, header.msn);
        at += kAethBytes;
    }
    if (has_atomic_ack(op)) {
        store64(at, header.original_data);
        at += kAtomicAckBytes;
    }
    if (has_immediate(op)) {
        store32(at, header.immediate);
        at += kImmediateBytes;
    }
    if (has_ieth(op)) {
        store32(at, header.invalidate_rkey);
        at += kIethBytes;
    }
    if (op == Opcode::kCnp) {
        std::memset(at, 0, kCnpReservedBytes);
        at += kCnpReservedBytes;
    }
    if (!payload.empty()) std::memmove(at, payload.data(), payload.size());
    at += payload.size();
    std::memset(at, 0, pad);
    return at + pad;
}

bool all_zero(Bytes bytes) {
    for (const std::uint8_t byte : bytes)
        if (byte != 0) return false;
    return true;
}

// Reads the extended headers that follow the BTH. REQUIRES: they are there.
void take_extended(const std::uint8_t* at, DecodedPacket& packet) {
    PacketHeader& header = packet.header;
    const Opcode op = header.opcode;
    if (has_deth(op)) {
        header.qkey = load32(at);
        header.src_qp = load24(at + 5);
        if (at[4] != 0) packet.canonical = false;
        at += kDethBytes;
    }
    if (has_feth(op)) {
        header.flush = load32(at);
        at += kFethBytes;
    }
    if (has_reth(op)) {
        header.virtual_address = load64(at);
        header.rkey = load32(at + 8);
        header.dma_length = load32(at + 12);
        at += kRethBytes;
    }
    if (has_atomic_eth(op)) {
        header.virtual_address = load64(at);
        header.rkey = load32(at + 8);
        header.swap_or_add = load64(at + 12);
        header.compare = load64(at + 20);
        at += kAtomicEthBytes;
    }
    if (has_aeth(op)) {
        header.syndrome = at[0];
        header.msn = load24(at + 1);
        at += kAethBytes;
    }
    if (has_atomic_ack(op)) {
        header.original_data = load64(at);
        at += kAtomicAckBytes;
    }
    if (has_immediate(op)) {
        header.immediate = load32(at);
        at += kImmediateBytes;
    }
    if (has_ieth(op)) header.invalidate_rkey = load32(at);
    if (op == Opcode::kCnp && !all_zero({at, kCnpReservedBytes})) packet.canonical = false;
}

// Reads BTH, extended headers and payload of `bytes`, which ends with the pad (ICRC cut off).
CodecStatus take_transport(Bytes bytes, DecodedPacket& packet) {
    if (bytes.size() < kBthBytes) return CodecStatus::kTruncatedBth;
    PacketHeader& header = packet.header;
    const auto op = static_cast<Opcode>(bytes[0]);
    if ((bytes[1] & 0x0fU) != 0) return CodecStatus::kBadTver;
    if (!is_known(op)) return CodecStatus::kUnknownOpcode;
    header.opcode = op;
    header.set(kFlagSolicited, (bytes[1] & 0x80U) != 0);
    header.set(kFlagMigration, (bytes[1] & 0x40U) != 0);
    header.pkey = load16(&bytes[2]);
    header.set(kFlagFecn, (bytes[4] & 0x80U) != 0);
    header.set(kFlagBecn, (bytes[4] & 0x40U) != 0);
    header.dest_qp = load24(&bytes[5]);
    header.set(kFlagAckRequest, (bytes[8] & 0x80U) != 0);
    header.psn = load24(&bytes[9]);
    if ((bytes[4] & 0x3fU) != 0 || (bytes[8] & 0x7fU) != 0) packet.canonical = false;

    const std::size_t head = transport_header_bytes(op);
    if (bytes.size() < head) return CodecStatus::kTruncatedHeader;
    take_extended(bytes.data() + kBthBytes, packet);

    const Bytes body = bytes.subspan(head);
    const std::size_t pad = (bytes[1] >> 4U) & 3U;
    if (!body.empty() && !carries_payload(op)) return CodecStatus::kUnexpectedPayload;
    if (pad > body.size() || (pad != 0 && !may_pad(op))) return CodecStatus::kBadPadCount;
    if (body.size() > kMaxMtuBytes) return CodecStatus::kPayloadTooLong;
    packet.payload = body.first(body.size() - pad);
    header.payload_length = static_cast<std::uint32_t>(packet.payload.size());
    if (!all_zero(body.last(pad))) packet.canonical = false;
    return CodecStatus::kOk;
}

// ---- ICRC: over a copy of what comes before and in the BTH, masked, then over the rest. ----

std::uint32_t icrc_of(Bytes masked_head, Bytes transport) {
    std::array<std::uint8_t, kBthBytes> bth;
    std::memcpy(bth.data(), transport.data(), bth.size());
    bth[kBthResv8a] = 0xff;
    std::uint32_t state = icrc_update(kIcrcInit, masked_head);
    state = icrc_update(state, bth);
    return ~icrc_update(state, transport.subspan(kBthBytes));
}

// `packet` runs from the LRH to the pad. An LRH before a GRH counts as ones altogether.
std::uint32_t local_icrc(Bytes packet, bool global) {
    std::array<std::uint8_t, kLrhBytes + kGrhBytes> head;
    const std::size_t size = kLrhBytes + (global ? kGrhBytes : 0);
    std::memcpy(head.data(), packet.data(), size);
    if (global) {
        std::memset(head.data(), 0xff, kLrhBytes);
        std::uint8_t* grh = head.data() + kLrhBytes;
        grh[0] |= 0x0f;                 // traffic class, upper half
        std::memset(grh + 1, 0xff, 3);  // traffic class, lower half; flow label
        grh[7] = 0xff;                  // hop limit
    } else {
        head[0] |= 0xf0;  // VL
    }
    return icrc_of({head.data(), size}, packet.subspan(size));
}

// Eight bytes of ones stand where an LRH would be, then IP and UDP headers as they will be around
// `transport` and an ICRC of four bytes (IBTA A17.3.3).
std::uint32_t roce_icrc(const RoceEnvelope& envelope, Bytes transport) {
    std::array<std::uint8_t, kLrhBytes + kIpv6Bytes + kUdpBytes> head{};
    std::memset(head.data(), 0xff, kLrhBytes);
    std::uint8_t* at = head.data() + kLrhBytes;
    const auto udp_bytes = static_cast<std::uint32_t>(kUdpBytes + transport.size() + kIcrcBytes);
    if (envelope.ipv6) {
        at[0] = 0x6f;                  // version; traffic class, upper half
        std::memset(at + 1, 0xff, 3);  // traffic class, lower half; flow label
        store16(at + 4, udp_bytes);
        at[6] = kUdpProtocol;
        at[7] = 0xff;  // hop limit
        std::memcpy(at + 8, envelope.source.data(), 16);
        std::memcpy(at + 24, envelope.target.data(), 16);
        at += kIpv6Bytes;
    } else {
        at[0] = 0x45;
        at[1] = 0xff;  // TOS
        store16(at + 2, kIpv4Bytes + udp_bytes);
        store16(at + 4, envelope.ipv4_id);
        store16(at + 6, envelope.ipv4_fragment);
        at[8] = 0xff;  // TTL
        at[9] = kUdpProtocol;
        store16(at + 10, 0xffff);  // checksum
        std::memcpy(at + 12, envelope.source.data(), 4);
        std::memcpy(at + 16, envelope.target.data(), 4);
        at += kIpv4Bytes;
    }
    store16(at, envelope.source_port);
    store16(at + 2, envelope.target_port);
    store16(at + 4, udp_bytes);
    store16(at + 6, 0xffff);  // checksum
    at += kUdpBytes;
    return icrc_of({head.data(), static_cast<std::size_t>(at - head.data())}, transport);
}

// ---- GRH ----

void put_grh(const Grh& grh, std::size_t payload_bytes, std::uint8_t* at) {
    store32(at, 0x60000000U | (std::uint32_t{grh.traffic_class} << 20U) | grh.flow_label);
    store16(at + 4, static_cast<std::uint32_t>(payload_bytes));
    at[6] = kGrhNextHeader;
    at[7] = grh.hop_limit;
    std::memcpy(at + 8, grh.sgid.data(), grh.sgid.size());
    std::memcpy(at + 24, grh.dgid.data(), grh.dgid.size());
}

CodecStatus take_grh(const std::uint8_t* at, std::size_t payload_bytes, Grh& grh) {
    const std::uint32_t word = load32(at);
    if (word >> 28U != 6 || at[6] != kGrhNextHeader) return CodecStatus::kBadGrh;
    if (load16(at + 4) != payload_bytes) return CodecStatus::kLengthMismatch;
    grh.traffic_class = static_cast<std::uint8_t>(word >> 20U);
    grh.flow_label = word & 0xfffffU;
    grh.hop_limit = at[7];
    std::memcpy(grh.sgid.data(), at + 8, grh.sgid.size());
    std::memcpy(grh.dgid.data(), at + 24, grh.dgid.size());
    return CodecStatus::kOk;
}

}  // namespace

EncodeResult encode_local(const PacketHeader& header, const Grh& grh, Bytes payload,
                          std::span<std::uint8_t> out) {
    const bool global = header.has(kFlagGrh);
    if (const auto status = check_transport(header, payload); status != CodecStatus::kOk)
        return {status, 0};
    if (header.slid > kLrhLidMax || header.dlid > kLrhLidMax)
        return {CodecStatus::kLidNeedsExtension, 0};
    if (header.sl > 15 || header.vl > 15 || (global && grh.flow_label > 0xfffff))
        return {CodecStatus::kFieldTooWide, 0};
    const std::size_t size = local_bytes(header.opcode, payload.size(), global);
    if (out.size() < size) return {CodecStatus::kNoRoom, 0};

    const std::size_t head = kLrhBytes + (global ? kGrhBytes : 0);
    std::uint8_t* const start = out.data();
    std::uint8_t* at = put_transport(header, payload, start + head);
    if (global) put_grh(grh, size - head - kVcrcBytes, start + kLrhBytes);
    start[0] = static_cast<std::uint8_t>(header.vl << 4U);
    start[1] = static_cast<std::uint8_t>((header.sl << 4U) | (global ? kLnhGlobal : kLnhLocal));
    store16(start + 2, header.dlid);
    store16(start + 4, static_cast<std::uint32_t>((size - kVcrcBytes) / 4));
    store16(start + 6, header.slid);

    store32_le(at, local_icrc({start, at}, global));
    at += kIcrcBytes;
    const auto vcrc = static_cast<std::uint16_t>(~vcrc_update(kVcrcInit, {start, at}));
    at[0] = static_cast<std::uint8_t>(vcrc);
    at[1] = static_cast<std::uint8_t>(vcrc >> 8U);
    return {CodecStatus::kOk, size};
}

CodecStatus decode_local(Bytes bytes, DecodedPacket& packet, CrcCheck check) {
    if (bytes.size() < kLrhBytes) return CodecStatus::kTruncatedLrh;
    if ((bytes[0] & 0x0fU) != 0) return CodecStatus::kBadLver;
    const std::uint8_t lnh = bytes[1] & 3U;
    if (lnh != kLnhLocal && lnh != kLnhGlobal) return CodecStatus::kNotTransport;
    const bool global = lnh == kLnhGlobal;
    const std::size_t length = (load16(&bytes[4]) & 0x7ffU) * std::size_t{4};
    if (length + kVcrcBytes != bytes.size()) return CodecStatus::kLengthMismatch;
    const std::size_t head = kLrhBytes + (global ? kGrhBytes : 0);
    if (length < head) return CodecStatus::kTruncatedGrh;

    DecodedPacket found;
    found.header.sl = bytes[1] >> 4U;
    found.header.vl = bytes[0] >> 4U;
    found.header.dlid = load16(&bytes[2]);
    found.header.slid = load16(&bytes[6]);
    found.header.set(kFlagGrh, global);
    if ((bytes[1] & 0x0cU) != 0 || (bytes[4] & 0xf8U) != 0) found.canonical = false;
    if (global) {
        const auto status = take_grh(&bytes[kLrhBytes], length - head, found.grh);
        if (status != CodecStatus::kOk) return status;
    }
    if (length < head + kBthBytes + kIcrcBytes) return CodecStatus::kTruncatedBth;
    const Bytes covered = bytes.first(length - kIcrcBytes);
    const auto status = take_transport(covered.subspan(head), found);
    if (status != CodecStatus::kOk) return status;

    if (check == CrcCheck::kVerify) {
        if (load32_le(&bytes[covered.size()]) != local_icrc(covered, global))
            return CodecStatus::kIcrcMismatch;
        const auto vcrc = static_cast<std::uint16_t>(~vcrc_update(kVcrcInit, bytes.first(length)));
        if ((bytes[length] | (bytes[length + 1] << 8U)) != vcrc) return CodecStatus::kVcrcMismatch;
    }
    packet = found;
    return CodecStatus::kOk;
}

EncodeResult encode_roce(const PacketHeader& header, const RoceEnvelope& envelope, Bytes payload,
                         std::span<std::uint8_t> out) {
    if (const auto status = check_transport(header, payload); status != CodecStatus::kOk)
        return {status, 0};
    const std::size_t size = roce_bytes(header.opcode, payload.size());
    if (out.size() < size) return {CodecStatus::kNoRoom, 0};
    std::uint8_t* const at = put_transport(header, payload, out.data());
    store32_le(at, roce_icrc(envelope, {out.data(), at}));
    return {CodecStatus::kOk, size};
}

CodecStatus decode_roce(Bytes bytes, const RoceEnvelope& envelope, DecodedPacket& packet,
                        CrcCheck check) {
    if (bytes.size() < kBthBytes + kIcrcBytes) return CodecStatus::kTruncatedBth;
    if (bytes.size() % 4 != 0) return CodecStatus::kLengthMismatch;
    DecodedPacket found;
    const Bytes covered = bytes.first(bytes.size() - kIcrcBytes);
    const auto status = take_transport(covered, found);
    if (status != CodecStatus::kOk) return status;
    if (check == CrcCheck::kVerify &&
        load32_le(&bytes[covered.size()]) != roce_icrc(envelope, covered))
        return CodecStatus::kIcrcMismatch;
    packet = found;
    return CodecStatus::kOk;
}

const char* to_string(CodecStatus status) {
    switch (status) {
        case CodecStatus::kOk:
            return "ok";
        case CodecStatus::kTruncatedLrh:
            return "truncated LRH";
        case CodecStatus::kBadLver:
            return "bad link version";
        case CodecStatus::kNotTransport:
            return "raw packet, no transport header";
        case CodecStatus::kLengthMismatch:
            return "length mismatch";
        case CodecStatus::kTruncatedGrh:
            return "truncated GRH";
        case CodecStatus::kBadGrh:
            return "bad GRH";
        case CodecStatus::kTruncatedBth:
            return "truncated BTH";
        case CodecStatus::kBadTver:
            return "bad transport version";
        case CodecStatus::kUnknownOpcode:
            return "unknown opcode";
        case CodecStatus::kTruncatedHeader:
            return "truncated extended header";
        case CodecStatus::kBadPadCount:
            return "bad pad count";
        case CodecStatus::kUnexpectedPayload:
            return "unexpected payload";
        case CodecStatus::kPayloadTooLong:
            return "payload too long";
        case CodecStatus::kIcrcMismatch:
            return "ICRC mismatch";
        case CodecStatus::kVcrcMismatch:
            return "VCRC mismatch";
        case CodecStatus::kLidNeedsExtension:
            return "LID needs extension";
        case CodecStatus::kFieldTooWide:
            return "field too wide";
        case CodecStatus::kNoRoom:
            return "no room";
    }
    return "unknown status";
}

}  // namespace weir::wire

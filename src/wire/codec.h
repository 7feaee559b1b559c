// SPDX-License-Identifier: Apache-2.0
// Packets to bytes and back, in two forms that hold the same transport packet:
//
//   local   LRH [GRH] BTH [extended headers] payload pad ICRC VCRC    (IBTA 7.8, an InfiniBand
//   link) RoCEv2            BTH [extended headers] payload pad ICRC         (IBTA A17, a UDP
//   payload)
//
// Pure functions over caller's memory: no allocation, no state, no exception. Decoding accepts any
// bytes from anyone, reads nothing beyond the span, and writes its result only on success. Both
// directions refuse what the other would: a decoded packet encodes to the bytes it came from
// (if `canonical`), and an encoded one decodes to what was given.
//
// One header is one wire packet here. A large segment (headers.h) is cut up first: segment.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "wire/headers.h"

namespace weir::wire {

/// Outcome of encoding or decoding. Each names the first thing found wrong, front to back.
enum class CodecStatus : std::uint8_t {
    kOk,
    kTruncatedLrh,       ///< Fewer than 8 bytes.
    kBadLver,            ///< LRH link version is not 0.
    kNotTransport,       ///< LNH says raw packet: no BTH follows.
    kLengthMismatch,     ///< LRH, GRH or UDP length disagrees with the bytes given.
    kTruncatedGrh,       ///< LNH promises a GRH that does not fit.
    kBadGrh,             ///< GRH version is not 6 or its next header not 0x1B.
    kTruncatedBth,       ///< No room for BTH and ICRC.
    kBadTver,            ///< BTH header version is not 0.
    kUnknownOpcode,      ///< Not one of Opcode's values.
    kTruncatedHeader,    ///< The extended headers that the opcode calls for do not fit.
    kBadPadCount,        ///< More pad than payload, or pad where none is allowed.
    kUnexpectedPayload,  ///< Payload with an opcode that carries none.
    kPayloadTooLong,     ///< Above 4096 bytes, the largest MTU.
    kIcrcMismatch,
    kVcrcMismatch,
    kLidNeedsExtension,  ///< Encoding: a LID above 0xFFFF has no place in an LRH.
    kFieldTooWide,       ///< Encoding: a field exceeds its width on the wire.
    kNoRoom,             ///< Encoding: the output span is too short.
};

/// A short lower-case phrase, for logs and counters.
const char* to_string(CodecStatus status);

/// Whether decoding checks the CRCs. Skip them only on a cable that has a stronger check of its
/// own.
enum class CrcCheck : std::uint8_t { kVerify, kSkip };

using Gid = std::array<std::uint8_t, 16>;  ///< As on the wire.

/// Global route header (IBTA 8.3), but for the fields that follow from the packet.
struct Grh {
    std::uint8_t traffic_class = 0;
    std::uint8_t hop_limit = 0;
    std::uint32_t flow_label = 0;  ///< 20 bits.
    Gid sgid{};
    Gid dgid{};
    bool operator==(const Grh&) const = default;
};

/// What of the IP and UDP headers around a RoCEv2 packet its ICRC covers. The fields that change on
/// the way (TOS, TTL, checksums, IPv6 traffic class, flow label, hop limit) count as ones.
///
/// A sender that leaves the IPv4 header to the kernel must know its identification field: with
/// don't-fragment set on an unconnected socket Linux sends 0, the default here.
struct RoceEnvelope {
    bool ipv6 = false;
    std::uint16_t ipv4_id = 0;
    std::uint16_t ipv4_fragment = 0x4000;  ///< Flags and fragment offset; default: don't fragment.
    std::uint16_t source_port = 0;
    std::uint16_t target_port = 4791;
    Gid source{};  ///< IPv6 address, or an IPv4 address in the first four bytes.
    Gid target{};
    bool operator==(const RoceEnvelope&) const = default;
};

/// A decoded packet. `payload` points into the bytes that were decoded.
struct DecodedPacket {
    PacketHeader header;
    Grh grh;  ///< Valid if header.has(kFlagGrh).
    std::span<const std::uint8_t> payload;
    /// False if reserved bits or pad bytes were not zero: legal to receive (and ignored, IBTA 9.2),
    /// never sent by us, and not kept.
    bool canonical = true;
};

struct EncodeResult {
    CodecStatus status;
    std::size_t bytes;  ///< Written to the output; 0 unless status is kOk.
};

/// Largest LID that an LRH can hold. In 16 bits, 1 to 0xBFFF are unicast, 0xC000 to 0xFFFE
/// multicast and 0xFFFF permissive, as in IBTA 4.1.3; Weir's further unicast LIDs begin at 0x10000.
inline constexpr std::uint32_t kLrhLidMax = 0xffff;
/// Largest payload of one wire packet: IBTA's largest MTU.
inline constexpr std::size_t kMaxMtuBytes = 4096;
/// Room that always suffices for one encoded packet.
inline constexpr std::size_t kMaxPacketBytes =
    kLrhBytes + kGrhBytes + kBthBytes + kAtomicEthBytes + kMaxMtuBytes + kIcrcBytes + kVcrcBytes;

/// Bytes of the packet in RoCEv2 form, from BTH to ICRC.
constexpr std::size_t roce_bytes(Opcode opcode, std::size_t payload_bytes) {
    return transport_header_bytes(opcode) + ((payload_bytes + 3) & ~std::size_t{3}) + kIcrcBytes;
}
/// Bytes of the packet in local form, from LRH to VCRC: what it takes of a link.
constexpr std::size_t local_bytes(Opcode opcode, std::size_t payload_bytes, bool grh = false) {
    return kLrhBytes + (grh ? kGrhBytes : 0) + roce_bytes(opcode, payload_bytes) + kVcrcBytes;
}

/// Encodes into `out`; header.payload_length must equal payload.size(). `grh` is used if
/// header.has(kFlagGrh). `payload` may lie where it will end up in `out`, not elsewhere in it.
[[nodiscard]] EncodeResult encode_local(const PacketHeader& header, const Grh& grh,
                                        std::span<const std::uint8_t> payload,
                                        std::span<std::uint8_t> out);
/// Decodes one packet that fills `bytes` exactly. `packet` is written only on kOk.
[[nodiscard]] CodecStatus decode_local(std::span<const std::uint8_t> bytes, DecodedPacket& packet,
                                       CrcCheck check = CrcCheck::kVerify);

/// As encode_local(), for the payload of a UDP datagram. LIDs, SL, VL and GRH have no place there:
/// the IP header stands for them.
[[nodiscard]] EncodeResult encode_roce(const PacketHeader& header, const RoceEnvelope& envelope,
                                       std::span<const std::uint8_t> payload,
                                       std::span<std::uint8_t> out);
[[nodiscard]] CodecStatus decode_roce(std::span<const std::uint8_t> bytes,
                                      const RoceEnvelope& envelope, DecodedPacket& packet,
                                      CrcCheck check = CrcCheck::kVerify);

}  // namespace weir::wire

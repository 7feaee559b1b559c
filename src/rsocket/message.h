// SPDX-License-Identifier: Apache-2.0
// What two stream sockets over RDMA say to each other: the greeting in the private data of REQ and
// REP, and the header of each message. Big-endian, like all that travels. The protocol is described
// in docs/protocol/rsockets.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace weir::rsocket {

enum class Kind : std::uint8_t {
    kData = 1,    ///< Bytes of the stream.
    kCredit = 2,  ///< Nothing but the header, which returns slots.
    kFin = 3,     ///< No more bytes come.
    kMap = 4,     ///< A range that the receiver may write to: a Mapping.
    kUnmap = 5,   ///< No longer: a Mapping, of which `offset` and `length` count.
};

/// A number as `kBytes` bytes, most significant first.
template <std::size_t kBytes>
void put_number(std::uint64_t value, std::uint8_t* out) {
    for (std::size_t i = 0; i < kBytes; ++i)
        out[i] = static_cast<std::uint8_t>(value >> (8 * (kBytes - 1 - i)));
}

template <std::size_t kBytes>
std::uint64_t get_number(const std::uint8_t* in) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < kBytes; ++i)
        value = value << 8U | in[i];
    return value;
}

/// What begins every message.
///
///    0 |  kind 8  |      0: 24      |     returned 32     |
///    8 |                 position 64                      |
struct MessageHeader {
    Kind kind = Kind::kData;
    /// How many of its slots the sender has made free again since the beginning, modulo 2^32.
    std::uint32_t returned = 0;
    /// How many bytes of the stream the sender sent before this message.
    std::uint64_t position = 0;
    bool operator==(const MessageHeader&) const = default;
};
inline constexpr std::size_t kMessageHeaderBytes = 16;

inline void encode(const MessageHeader& header, std::uint8_t* out) {
    put_number<4>(static_cast<std::uint32_t>(header.kind) << 24U, out);
    put_number<4>(header.returned, out + 4);
    put_number<8>(header.position, out + 8);
}

/// Nothing if it is too short or of an unknown kind.
inline std::optional<MessageHeader> decode_header(std::span<const std::uint8_t> bytes) {
    if (bytes.size() < kMessageHeaderBytes) return std::nullopt;
    if (bytes[0] < 1 || bytes[0] > static_cast<std::uint8_t>(Kind::kUnmap)) return std::nullopt;
    return MessageHeader{static_cast<Kind>(bytes[0]),
                         static_cast<std::uint32_t>(get_number<4>(bytes.data() + 4)),
                         get_number<8>(bytes.data() + 8)};
}

/// How much of the stream a side can hold: `slots` messages of at most `slot_bytes` bytes each. It
/// has one slot more, for the FIN.
struct Limits {
    std::uint32_t slots = 0;
    std::uint32_t slot_bytes = 0;
    bool operator==(const Limits&) const = default;
};
inline constexpr std::uint32_t kSlotsLeast = 4;
inline constexpr std::uint32_t kSlotsMost = 8192;
inline constexpr std::uint32_t kSlotBytesLeast = 64;
inline constexpr std::uint32_t kSlotBytesMost = 1U << 20U;

/// The greeting, in private data.
///
///    0 |   "WRS1" 32   |   slots 32   |   slot bytes 32   |   mappings 32   |
struct Greeting {
    Limits limits;
    std::uint32_t mappings = 0;  ///< So many of its own the sender may announce at a time.
    bool operator==(const Greeting&) const = default;
};
inline constexpr std::size_t kGreetingBytes = 16;
inline constexpr std::uint32_t kGreetingMagic = 0x57525331;

inline std::array<std::uint8_t, kGreetingBytes> encode(const Greeting& greeting) {
    std::array<std::uint8_t, kGreetingBytes> out{};
    put_number<4>(kGreetingMagic, out.data());
    put_number<4>(greeting.limits.slots, out.data() + 4);
    put_number<4>(greeting.limits.slot_bytes, out.data() + 8);
    put_number<4>(greeting.mappings, out.data() + 12);
    return out;
}

/// Nothing if it is no greeting, or promises what none of ours does.
inline std::optional<Greeting> decode_greeting(std::span<const std::uint8_t> bytes) {
    if (bytes.size() < kGreetingBytes || get_number<4>(bytes.data()) != kGreetingMagic)
        return std::nullopt;
    Greeting out;
    out.limits.slots = static_cast<std::uint32_t>(get_number<4>(bytes.data() + 4));
    out.limits.slot_bytes = static_cast<std::uint32_t>(get_number<4>(bytes.data() + 8));
    out.mappings = static_cast<std::uint32_t>(get_number<4>(bytes.data() + 12));
    if (out.limits.slots < kSlotsLeast || out.limits.slots > kSlotsMost) return std::nullopt;
    if (out.limits.slot_bytes < kSlotBytesLeast || out.limits.slot_bytes > kSlotBytesMost)
        return std::nullopt;
    return out;
}

/// Memory that the peer may write to, under the offset by which it names it.
///
///    0 |   offset 64   |   address 64   |   length 64   |   rkey 32   |
struct Mapping {
    std::uint64_t offset = 0;
    std::uint64_t address = 0;
    std::uint64_t length = 0;
    std::uint32_t rkey = 0;
    bool operator==(const Mapping&) const = default;
};
inline constexpr std::size_t kMappingBytes = 28;

inline void encode(const Mapping& mapping, std::uint8_t* out) {
    put_number<8>(mapping.offset, out);
    put_number<8>(mapping.address, out + 8);
    put_number<8>(mapping.length, out + 16);
    put_number<4>(mapping.rkey, out + 24);
}

inline std::optional<Mapping> decode_mapping(std::span<const std::uint8_t> bytes) {
    if (bytes.size() < kMappingBytes) return std::nullopt;
    return Mapping{get_number<8>(bytes.data()), get_number<8>(bytes.data() + 8),
                   get_number<8>(bytes.data() + 16),
                   static_cast<std::uint32_t>(get_number<4>(bytes.data() + 24))};
}

}  // namespace weir::rsocket

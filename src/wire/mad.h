// SPDX-License-Identifier: Apache-2.0
// The 24-byte header that every management datagram begins with (IBTA 13.4.2). What follows it,
// and the attributes, belong to whoever speaks that class.
//
//         0               1               2               3
//    0 | base version  |     class     | class version |R|   method    |
//    4 |            status             |        class specific         |
//    8 |                                                               |
//   12 |                        transaction id                         |
//   16 |         attribute id          |           reserved            |
//   20 |                      attribute modifier                       |
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "wire/bytes.h"

namespace weir::wire {

inline constexpr std::size_t kMadBytes = 256;
inline constexpr std::size_t kMadHeaderBytes = 24;
/// Bit of `method` that marks a response.
inline constexpr std::uint8_t kMadResponse = 0x80;
/// Bit of `status` in directed-route SMPs: the packet is on its way back (IBTA 14.2.1.2).
inline constexpr std::uint16_t kMadDirection = 0x8000;

enum class MadClass : std::uint8_t {
    kSubnLid = 0x01,
    kSubnAdm = 0x03,
    kPerf = 0x04,
    kDeviceManagement = 0x06,
    kCommunication = 0x07,
    kCongestion = 0x21,
    kSubnDirected = 0x81,
};

enum class MadMethod : std::uint8_t {
    kGet = 0x01,
    kSet = 0x02,
    kSend = 0x03,
    kTrap = 0x05,
    kReport = 0x06,
    kTrapRepress = 0x07,
    kGetResp = 0x81,
};

struct MadHeader {
    std::uint8_t base_version = 1;
    std::uint8_t management_class = 0;  ///< MadClass, or one not named there.
    std::uint8_t class_version = 1;     ///< 2 for subnet administration.
    std::uint8_t method = 0;            ///< MadMethod, or one not named there.
    std::uint16_t status = 0;
    std::uint16_t class_specific = 0;  ///< Directed route: hop pointer, then hop count.
    std::uint64_t transaction_id = 0;
    std::uint16_t attribute_id = 0;
    std::uint32_t attribute_modifier = 0;

    [[nodiscard]] constexpr bool is_response() const { return (method & kMadResponse) != 0; }
    [[nodiscard]] constexpr std::uint8_t hop_pointer() const {
        return static_cast<std::uint8_t>(class_specific >> 8U);
    }
    [[nodiscard]] constexpr std::uint8_t hop_count() const {
        return static_cast<std::uint8_t>(class_specific);
    }
    bool operator==(const MadHeader&) const = default;
};

constexpr void encode_mad_header(const MadHeader& header,
                                 std::span<std::uint8_t, kMadHeaderBytes> out) {
    out[0] = header.base_version;
    out[1] = header.management_class;
    out[2] = header.class_version;
    out[3] = header.method;
    store16(out.data() + 4, header.status);
    store16(out.data() + 6, header.class_specific);
    store64(out.data() + 8, header.transaction_id);
    store16(out.data() + 16, header.attribute_id);
    store16(out.data() + 18, 0);
    store32(out.data() + 20, header.attribute_modifier);
}

/// Nothing if there are fewer than 24 bytes. Values are not judged: an agent answers an unknown
/// version or method by a status, for which it needs the header.
[[nodiscard]] constexpr std::optional<MadHeader> decode_mad_header(
    std::span<const std::uint8_t> bytes) {
    if (bytes.size() < kMadHeaderBytes) return std::nullopt;
    MadHeader header;
    header.base_version = bytes[0];
    header.management_class = bytes[1];
    header.class_version = bytes[2];
    header.method = bytes[3];
    header.status = load16(bytes.data() + 4);
    header.class_specific = load16(bytes.data() + 6);
    header.transaction_id = load64(bytes.data() + 8);
    header.attribute_id = load16(bytes.data() + 16);
    header.attribute_modifier = load32(bytes.data() + 20);
    return header;
}

}  // namespace weir::wire

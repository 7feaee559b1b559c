// SPDX-License-Identifier: Apache-2.0
// The two checksums of an InfiniBand link (IBTA 7.8): the invariant CRC, end to end, and the
// variant CRC, hop by hop, which also guards flow control packets (there called LPCRC).
//
// Both are sent least significant bit of each byte first, so the reflected form of the polynomial
// is computed, and the result goes out least significant byte first. Start from the initial value,
// feed the bytes in any number of pieces, complement at the end:
//     store_le(~icrc_update(icrc_update(kIcrcInit, head), tail))
#pragma once

#include <cstdint>
#include <span>

namespace weir::wire {

inline constexpr std::uint32_t kIcrcInit = 0xffffffffU;
inline constexpr std::uint16_t kVcrcInit = 0xffffU;

/// CRC-32 with Ethernet's polynomial 0x04C11DB7.
std::uint32_t icrc_update(std::uint32_t state, std::span<const std::uint8_t> bytes);
/// CRC-16 with the polynomial 0x100B.
std::uint16_t vcrc_update(std::uint16_t state, std::span<const std::uint8_t> bytes);

}  // namespace weir::wire

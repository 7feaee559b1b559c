// SPDX-License-Identifier: Apache-2.0
// Numbers in network byte order at any alignment. The caller has checked that the bytes exist.
#pragma once

#include <cstdint>

namespace weir::wire {

constexpr std::uint16_t load16(const std::uint8_t* at) {
    return static_cast<std::uint16_t>((at[0] << 8) | at[1]);
}
constexpr std::uint32_t load24(const std::uint8_t* at) {
    return (std::uint32_t{at[0]} << 16U) | (std::uint32_t{at[1]} << 8U) | at[2];
}
constexpr std::uint32_t load32(const std::uint8_t* at) {
    return (std::uint32_t{at[0]} << 24U) | load24(at + 1);
}
constexpr std::uint64_t load64(const std::uint8_t* at) {
    return (std::uint64_t{load32(at)} << 32U) | load32(at + 4);
}

constexpr void store16(std::uint8_t* at, std::uint32_t value) {
    at[0] = static_cast<std::uint8_t>(value >> 8U);
    at[1] = static_cast<std::uint8_t>(value);
}
constexpr void store24(std::uint8_t* at, std::uint32_t value) {
    at[0] = static_cast<std::uint8_t>(value >> 16U);
    store16(at + 1, value);
}
constexpr void store32(std::uint8_t* at, std::uint32_t value) {
    at[0] = static_cast<std::uint8_t>(value >> 24U);
    store24(at + 1, value);
}
constexpr void store64(std::uint8_t* at, std::uint64_t value) {
    store32(at, static_cast<std::uint32_t>(value >> 32U));
    store32(at + 4, static_cast<std::uint32_t>(value));
}

}  // namespace weir::wire

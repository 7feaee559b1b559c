// SPDX-License-Identifier: Apache-2.0
// Arithmetic of 24-bit sequence numbers, which wrap (IBTA 9.7.1): PSNs and MSNs. Of two numbers,
// the later is the one less than half the circle (2^23) ahead; exactly half counts as before, as
// the valid and duplicate regions of the specification are split.
#pragma once

#include <cstdint>

namespace weir::wire {

inline constexpr std::uint32_t kPsnMask = 0xffffffU;

constexpr std::uint32_t psn_add(std::uint32_t psn, std::uint32_t count) {
    return (psn + count) & kPsnMask;
}
constexpr std::uint32_t psn_sub(std::uint32_t psn, std::uint32_t count) {
    return (psn - count) & kPsnMask;
}
constexpr std::uint32_t psn_next(std::uint32_t psn) {
    return psn_add(psn, 1);
}
/// Signed distance from b to a, in [-2^23, 2^23): positive if a is later.
constexpr std::int32_t psn_diff(std::uint32_t a, std::uint32_t b) {
    // Shift the 24-bit difference to the top, so that its sign bit becomes the word's.
    return static_cast<std::int32_t>((a - b) << 8U) >> 8;
}
constexpr bool psn_before(std::uint32_t a, std::uint32_t b) {
    return psn_diff(a, b) < 0;
}
constexpr bool psn_after(std::uint32_t a, std::uint32_t b) {
    return psn_diff(a, b) > 0;
}
constexpr bool psn_equal(std::uint32_t a, std::uint32_t b) {
    return psn_diff(a, b) == 0;
}
/// Negative, zero or positive as a is before, equal to or after b.
constexpr int psn_compare(std::uint32_t a, std::uint32_t b) {
    return psn_diff(a, b);
}
/// Whether psn is one of the `count` numbers from `first` on. REQUIRES: count <= 2^23.
constexpr bool psn_in_window(std::uint32_t psn, std::uint32_t first, std::uint32_t count) {
    return psn_sub(psn, first) < count;
}

}  // namespace weir::wire

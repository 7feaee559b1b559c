// SPDX-License-Identifier: Apache-2.0
// Quantities with their unit in the type or name, so that times, sizes and rates cannot be mixed
// up.
#pragma once

#include <compare>
#include <cstdint>

namespace weir {

/// A span or point of time in picoseconds. 2^63 ps is about 106 days, longer than any simulated
/// run.
struct Picos {
    std::int64_t value = 0;
    constexpr auto operator<=>(const Picos&) const = default;
    constexpr Picos operator+(Picos other) const { return {value + other.value}; }
    constexpr Picos operator-(Picos other) const { return {value - other.value}; }
};

constexpr Picos from_ns(std::int64_t ns) {
    return {ns * 1000};
}
constexpr Picos from_us(std::int64_t us) {
    return {us * 1000000};
}
constexpr Picos from_ms(std::int64_t ms) {
    return {ms * 1000000000};
}
constexpr std::int64_t to_ns(Picos span) {
    return span.value / 1000;
}

/// A rate of a link in bits per second.
struct BitsPerSecond {
    std::int64_t value = 0;
    constexpr auto operator<=>(const BitsPerSecond&) const = default;
};

}  // namespace weir

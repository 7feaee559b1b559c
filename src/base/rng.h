// SPDX-License-Identifier: Apache-2.0
// Rng: a small, fast, seedable generator whose numbers are the same on every compiler and machine,
// which std::*_distribution's are not. Algorithm: splitmix64 (Steele, Lea, Flood, OOPSLA 2014). Not
// for secrets. Never draw twice in one expression: the order of evaluation is the compiler's to
// choose.
#pragma once

#include <cstdint>

namespace weir {

class Rng {
  public:
    explicit constexpr Rng(std::uint64_t seed) : state_(seed) {}

    /// A uniformly distributed 64-bit word.
    constexpr std::uint64_t next() {
        state_ += 0x9e3779b97f4a7c15ULL;
        std::uint64_t z = state_;
        z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
        z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
        return z ^ (z >> 31U);
    }

    /// A number in [0, bound). REQUIRES: bound > 0. The bias is below 2^-32 for bounds under 2^32.
    constexpr std::uint64_t below(std::uint64_t bound) {
        const std::uint64_t word = next();
        return bound <= 0xffffffffULL ? ((word >> 32U) * bound) >> 32U : word % bound;
    }

    /// True once in `n` draws on average. REQUIRES: n > 0.
    constexpr bool one_in(std::uint64_t n) { return below(n) == 0; }

  private:
    std::uint64_t state_;
};

}  // namespace weir

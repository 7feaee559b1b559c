// SPDX-License-Identifier: Apache-2.0
#include "wire/crc.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/rng.h"

namespace weir::wire {
namespace {

using Bytes = std::vector<std::uint8_t>;

// Bit by bit from the polynomial as printed, most significant coefficient first: the slow way that
// the specification draws as a shift register.
template <class Word>
Word slow_crc(Word polynomial, const Bytes& bytes) {
    constexpr unsigned kBits = 8 * sizeof(Word);
    auto state = static_cast<Word>(~Word{0});
    for (const unsigned byte : bytes) {
        for (unsigned bit = 0; bit < 8; ++bit) {
            const bool in = ((byte >> bit) & 1U) != 0;
            const bool top = (state >> (kBits - 1)) != 0;
            state = static_cast<Word>(state << 1U);
            if (in != top) state = static_cast<Word>(state ^ polynomial);
        }
    }
    Word reflected = 0;
    for (unsigned bit = 0; bit < kBits; ++bit)
        if (((std::uint32_t{state} >> bit) & 1U) != 0)
            reflected = static_cast<Word>(reflected | (Word{1} << (kBits - 1 - bit)));
    return static_cast<Word>(~reflected);
}

TEST(Crc, KnownAnswer) {
    // The check value of CRC-32, over the digits 1 to 9.
    const Bytes digits = {'1', '2', '3', '4', '5', '6', '7', '8', '9'};
    EXPECT_EQ(~icrc_update(kIcrcInit, digits), 0xcbf43926U);
}

TEST(Crc, TablesAgreeWithTheShiftRegisterInAnyPieces) {
    Rng rng(1);
    for (std::size_t size = 0; size < 200; ++size) {
        Bytes bytes(size);
        for (auto& byte : bytes)
            byte = static_cast<std::uint8_t>(rng.next());
        const std::size_t cut = size == 0 ? 0 : rng.below(size);
        const std::span<const std::uint8_t> all(bytes);
        const auto icrc = icrc_update(icrc_update(kIcrcInit, all.first(cut)), all.subspan(cut));
        EXPECT_EQ(~icrc, slow_crc<std::uint32_t>(0x04c11db7U, bytes));
        const auto vcrc = vcrc_update(vcrc_update(kVcrcInit, all.first(cut)), all.subspan(cut));
        EXPECT_EQ(static_cast<std::uint16_t>(~vcrc), slow_crc<std::uint16_t>(0x100bU, bytes));
    }
}

}  // namespace
}  // namespace weir::wire

// SPDX-License-Identifier: Apache-2.0
#include "wire/crc.h"

#include <array>
#include <cstddef>

namespace weir::wire {
namespace {

// Eight bytes are folded at a time: table k holds the effect of a byte followed by k zero bytes, so
// the eight look-ups of one step do not wait for each other. Same result as byte by byte.
constexpr std::size_t kStride = 8;
template <class Word>
using Tables = std::array<std::array<Word, 256>, kStride>;

template <class Word>
constexpr Tables<Word> make_tables(Word reflected_polynomial) {
    Tables<Word> tables{};
    for (unsigned byte = 0; byte < 256; ++byte) {
        auto state = static_cast<Word>(byte);
        for (int bit = 0; bit < 8; ++bit) {
            const auto shifted = static_cast<Word>(state >> 1U);
            state = (state & 1U) != 0 ? static_cast<Word>(shifted ^ reflected_polynomial) : shifted;
        }
        tables[0][byte] = state;
    }
    for (std::size_t k = 1; k < kStride; ++k) {
        for (std::size_t byte = 0; byte < 256; ++byte) {
            const Word before = tables[k - 1][byte];
            tables[k][byte] = static_cast<Word>((before >> 8U) ^ tables[0][before & 0xffU]);
        }
    }
    return tables;
}

// 0x04C11DB7 and 0x100B, bits reversed.
constexpr Tables<std::uint32_t> kIcrcTables = make_tables<std::uint32_t>(0xedb88320U);
constexpr Tables<std::uint16_t> kVcrcTables = make_tables<std::uint16_t>(0xd008U);

template <class Word>
Word update(const Tables<Word>& tables, Word state, std::span<const std::uint8_t> bytes) {
    while (bytes.size() >= kStride) {
        Word next = 0;
        for (std::size_t k = 0; k < kStride; ++k) {
            unsigned index = bytes[k];
            if (k < sizeof(Word)) index ^= (static_cast<unsigned>(state) >> (8U * k)) & 0xffU;
            next = static_cast<Word>(next ^ tables[kStride - 1 - k][index]);
        }
        state = next;
        bytes = bytes.subspan(kStride);
    }
    for (const std::uint8_t byte : bytes)
        state = static_cast<Word>((state >> 8U) ^ tables[0][(state ^ byte) & 0xffU]);
    return state;
}

}  // namespace

std::uint32_t icrc_update(std::uint32_t state, std::span<const std::uint8_t> bytes) {
    return update(kIcrcTables, state, bytes);
}

std::uint16_t vcrc_update(std::uint16_t state, std::span<const std::uint8_t> bytes) {
    return update(kVcrcTables, state, bytes);
}

}  // namespace weir::wire

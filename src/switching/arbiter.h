// SPDX-License-Identifier: Apache-2.0
// VL arbitration of one link (IBTA 7.6.9): which lane sends next, and from when on the link is
// free. Pure arithmetic on one 64-bit word, so that a mover takes a turn with one compare-and-swap
// and, stopped or killed at any instruction, wastes at most that turn.
//
//   turns: | busy until 32 | high left 10 | high line 3 | high weight 8 | low line 3 | low weight 8
//   |
//
// "Busy until" is in nanoseconds modulo 2^32. A link is never busy for longer than the largest
// segment takes at its rate, so an older value is told from a coming one; where the clock has gone
// round meanwhile and the two look alike, the cost is one such wait.
//
// The tables' rule: the high-priority table goes first as long as its limit lasts; a low-priority
// packet, or the chance for one, renews the limit. Within a table lanes take turns, each until it
// has sent the weight of its line; a packet may overdraw the weight, and then the turn is over. A
// lane with nothing to send, or no credit to send it, loses the rest of its turn: the link never
// idles for it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "arena/layout.h"

namespace weir::switching {

/// Slowest rate of a link. Below it one segment would take a good part of the clock's round.
inline constexpr std::uint64_t kSlowestRate = 10'000'000;
/// A mover that comes late for a packet that has been waiting books it as though it had come in
/// time, up to this late: the link would have been sending.
inline constexpr std::uint32_t kLateNs = 1'000'000;

/// Nanoseconds that so many bytes take, to the nearest, at least one. REQUIRES: rate > 0.
constexpr std::uint64_t wire_ns(std::uint64_t bytes, std::uint64_t bits_per_second) {
    const std::uint64_t bits = bytes * 8;
    return std::max<std::uint64_t>(
        (bits * 1'000'000'000ULL + bits_per_second / 2) / bits_per_second, 1);
}

/// The longest that one packet keeps a link busy.
constexpr std::uint64_t longest_ns(std::uint64_t bits_per_second) {
    constexpr std::uint64_t kHeaders = 256;
    return wire_ns(arena::kSegmentBytes + kHeaders, bits_per_second);
}
static_assert(longest_ns(kSlowestRate) < 1ULL << 30U);

struct Turns {
    std::uint32_t busy_until = 0;
    std::uint32_t high_left = 0;  ///< KiB of the high table's limit.
    std::uint32_t high_line = 0;
    std::uint32_t high_weight = 0;  ///< What is left of that line's turn, in units of 64 bytes.
    std::uint32_t low_line = 0;
    std::uint32_t low_weight = 0;

    static constexpr Turns decode(std::uint64_t word) {
        const auto field = [word](unsigned at, unsigned bits) {
            return static_cast<std::uint32_t>((word >> at) & ((1ULL << bits) - 1));
        };
        return {field(32, 32), field(22, 10), field(19, 3), field(11, 8), field(8, 3), field(0, 8)};
    }
    [[nodiscard]] constexpr std::uint64_t encode() const {
        return static_cast<std::uint64_t>(busy_until) << 32U |
               static_cast<std::uint64_t>(high_left & 0x3ffU) << 22U |
               static_cast<std::uint64_t>(high_line & 7U) << 19U |
               static_cast<std::uint64_t>(high_weight & 0xffU) << 11U |
               static_cast<std::uint64_t>(low_line & 7U) << 8U | (low_weight & 0xffU);
    }
};

/// The whole of the limit, in KiB. A limit of 0 lets one packet pass, see charge().
constexpr std::uint32_t whole_limit(const arena::ArbitrationTables& tables) {
    return std::clamp<std::uint32_t>(tables.high_limit * 4U, 1, 1023);
}

/// The state of a link that has sent nothing yet.
constexpr Turns first_turns(const arena::ArbitrationTables& tables) {
    Turns turns;
    turns.high_left = whole_limit(tables);
    return turns;
}

inline constexpr std::uint32_t kNoVl = 0xffffffffU;

/// The lane of a table that sends next; kNoVl if none of `eligible` (a bit for each lane) is in it.
constexpr std::uint32_t next_in_table(const arena::ArbitrationLine* lines, std::uint32_t count,
                                      std::uint32_t eligible, std::uint32_t& line,
                                      std::uint32_t& weight) {
    const auto may = [&](std::uint32_t i) { return (eligible >> lines[i].vl & 1U) != 0; };
    if (line < count && weight > 0 && may(line)) return lines[line].vl;
    for (std::uint32_t i = 1; i <= count; ++i) {
        const std::uint32_t at = (line + i) % count;
        if (lines[at].weight == 0 || !may(at)) continue;
        line = at;
        weight = lines[at].weight;
        return lines[at].vl;
    }
    return kNoVl;
}

/// Whose turn it is among the lanes of `eligible`; kNoVl if none of them is in a table. `turns`
/// becomes the state before the packet is charged; `high` says by which table it goes.
constexpr std::uint32_t choose_vl(const arena::ArbitrationTables& tables, std::uint32_t eligible,
                                  Turns& turns, bool& high) {
    Turns by_high = turns;
    const auto high_vl = next_in_table(tables.high, tables.high_count, eligible, by_high.high_line,
                                       by_high.high_weight);
    high = high_vl != kNoVl && (tables.high_limit == arena::kHighLimitNone || turns.high_left > 0);
    if (high) {
        turns = by_high;
        return high_vl;
    }
    const auto low_vl =
        next_in_table(tables.low, tables.low_count, eligible, turns.low_line, turns.low_weight);
    turns.high_left = whole_limit(tables);
    if (low_vl != kNoVl || high_vl == kNoVl) return low_vl;
    high = true;
    by_high.high_left = turns.high_left;
    turns = by_high;
    return high_vl;
}

/// Takes a packet of so many 64-byte blocks off the turn that choose_vl() gave.
constexpr void charge(const arena::ArbitrationTables& tables, bool high, std::uint32_t blocks,
                      Turns& turns) {
    auto& weight = high ? turns.high_weight : turns.low_weight;
    weight -= std::min(weight, blocks);
    if (!high) return;
    // The limit is kept in KiB. Rounding up or down by a dice makes small packets count for what
    // they are; the time of the last packet is dice enough.
    const std::uint32_t dice = turns.busy_until * 2654435761U >> 22U;
    const std::uint32_t kib = (blocks * 64 + dice) / 1024;
    turns.high_left -= std::min(turns.high_left, tables.high_limit == 0 ? 1U : kib);
}

}  // namespace weir::switching

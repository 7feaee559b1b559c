// SPDX-License-Identifier: Apache-2.0
// InfiniBand's signalling generations and their data rate for each lane, as names in netlists:
// a link of "4xHDR" carries 4 * 50 Gbps.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace weir::topology {

struct LaneRate {
    std::string_view name;
    std::int64_t bits_per_second;
};

/// Slowest first. These are the nominal rates that tools print, before encoding.
inline constexpr std::array kLaneRates{
    LaneRate{"SDR", 2'500'000'000},  LaneRate{"DDR", 5'000'000'000},
    LaneRate{"QDR", 10'000'000'000}, LaneRate{"FDR10", 10'312'500'000},
    LaneRate{"FDR", 14'062'500'000}, LaneRate{"EDR", 25'000'000'000},
    LaneRate{"HDR", 50'000'000'000}, LaneRate{"NDR", 100'000'000'000},
    LaneRate{"XDR", 200'000'000'000}};

}  // namespace weir::topology

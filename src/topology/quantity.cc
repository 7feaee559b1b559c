// SPDX-License-Identifier: Apache-2.0
#include "topology/quantity.h"

#include <fmt/core.h>

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

namespace weir::topology {

namespace {

struct Unit {
    std::string_view name;
    std::int64_t factor;
};

constexpr std::array kRateUnits{Unit{"bps", 1}, Unit{"kbps", 1'000}, Unit{"Mbps", 1'000'000},
                                Unit{"Gbps", 1'000'000'000}, Unit{"Tbps", 1'000'000'000'000}};
constexpr std::array kDurationUnits{Unit{"ps", 1}, Unit{"ns", 1'000}, Unit{"us", 1'000'000},
                                    Unit{"ms", 1'000'000'000}, Unit{"s", 1'000'000'000'000}};
constexpr std::array kByteUnits{
    Unit{"B", 1},          Unit{"kB", 1'000},     Unit{"MB", 1'000'000},    Unit{"KiB", 1 << 10U},
    Unit{"MiB", 1 << 20U}, Unit{"GiB", 1 << 30U}, Unit{"GB", 1'000'000'000}};

bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/// digits[.digits] times factor, if it is a whole number of 63 bits.
std::optional<std::int64_t> scale(std::string_view number, std::int64_t factor) {
    constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
    std::int64_t whole = 0;
    std::size_t at = 0;
    for (; at < number.size() && is_digit(number[at]); ++at) {
        const std::int64_t digit = number[at] - '0';
        if (whole > (kMax - digit) / 10) return std::nullopt;
        whole = whole * 10 + digit;
    }
    if (at == 0 || whole > kMax / factor) return std::nullopt;
    whole *= factor;
    if (at == number.size()) return whole;
    if (number[at] != '.' || ++at == number.size()) return std::nullopt;
    // Each digit after the point is worth a tenth of the one before, as long as that is exact.
    std::int64_t place = factor;
    for (; at < number.size(); ++at) {
        if (!is_digit(number[at])) return std::nullopt;
        const std::int64_t digit = number[at] - '0';
        if (digit != 0 && (place * digit) % 10 != 0) return std::nullopt;
        const std::int64_t part = place * digit / 10;
        if (whole > kMax - part) return std::nullopt;
        whole += part;
        if (place % 10 != 0 && at + 1 < number.size()) return std::nullopt;
        place /= 10;
    }
    return whole;
}

Result<std::int64_t> parse(std::string_view text, std::span<const Unit> units,
                           std::string_view what, std::string_view example) {
    std::size_t split = 0;
    while (split < text.size() && (is_digit(text[split]) || text[split] == '.'))
        ++split;
    const std::string_view suffix = text.substr(split);
    const std::string hint = fmt::format("write it as {}", example);
    if (split == 0) {
        return fail(ErrorCode::kInvalid, fmt::format("\"{}\" is not a {}", text, what), hint);
    }
    if (suffix.empty()) {
        return fail(ErrorCode::kInvalid, fmt::format("{} \"{}\" has no unit", what, text), hint);
    }
    for (const Unit& unit : units) {
        if (unit.name != suffix) continue;
        if (const auto value = scale(text.substr(0, split), unit.factor)) return *value;
        return fail(ErrorCode::kInvalid,
                    fmt::format("{} \"{}\" is not a whole number or too large", what, text), hint);
    }
    std::string known;
    for (const Unit& unit : units)
        known += fmt::format("{}{}", known.empty() ? "" : ", ", unit.name);
    return fail(ErrorCode::kInvalid,
                fmt::format("{} \"{}\": unknown unit \"{}\"", what, text, suffix),
                fmt::format("units are {}", known));
}

}  // namespace

Result<BitsPerSecond> parse_rate(std::string_view text) {
    WEIR_TRY(const std::int64_t value, parse(text, kRateUnits, "rate", "400Gbps"));
    return BitsPerSecond{value};
}

Result<Picos> parse_duration(std::string_view text) {
    WEIR_TRY(const std::int64_t value, parse(text, kDurationUnits, "time", "2us"));
    return Picos{value};
}

Result<Bytes> parse_bytes(std::string_view text) {
    WEIR_TRY(const std::int64_t value, parse(text, kByteUnits, "size", "256KiB"));
    return Bytes{value};
}

std::string format_rate(BitsPerSecond rate) {
    for (auto unit = kRateUnits.rbegin(); unit != kRateUnits.rend(); ++unit) {
        if (rate.value != 0 && rate.value % unit->factor == 0)
            return fmt::format("{}{}", rate.value / unit->factor, unit->name);
    }
    return fmt::format("{}bps", rate.value);
}

}  // namespace weir::topology

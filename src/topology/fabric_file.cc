// SPDX-License-Identifier: Apache-2.0
#include "topology/fabric_file.h"

#include <fmt/core.h>

#include <array>
#include <fstream>
#include <iterator>
#include <sstream>

#include "topology/fabric_decode.h"
#include "topology/nearest_word.h"
#include "topology/quantity.h"

namespace weir::topology {

namespace {

constexpr std::array<std::string_view, 11> kTopKeys{"name",        "link_layer", "mtu",     "lanes",
                                                    "speed",       "buffer",     "delay",   "rates",
                                                    "arbitration", "fabric",     "topology"};
constexpr std::array<std::string_view, 2> kArbitrationKeys{"high_limit", "lanes"};
constexpr std::array<std::string_view, 2> kLaneKeys{"weight", "priority"};
constexpr std::array<std::string_view, kLanesMax> kLaneNumbers{"0", "1", "2", "3",
                                                               "4", "5", "6", "7"};

/// The slowest link whose rate can be enforced.
constexpr BitsPerSecond kSlowestEnforced{10'000'000};

constexpr std::size_t kFileBytesLimit = 256U << 20U;

Result<Bytes> decode_buffer(const YamlMap& top, Bytes otherwise) {
    constexpr Bytes kMin{1024};
    constexpr Bytes kMax{1LL << 30U};
    const auto node = top.find("buffer");
    if (!node) return otherwise;
    WEIR_TRY(const std::string text, yaml_text(top.file(), *node, "buffer"));
    const Result<Bytes> value = parse_bytes(text);
    if (!value) return yaml_error(top.file(), *node, value.error());
    if (*value < kMin || *value > kMax)
        return yaml_error(top.file(), *node,
                          fmt::format("buffer {} lies not within 1KiB ... 1GiB", text));
    return *value;
}

/// True if the key is the second of these two words; false if the first, or absent.
Result<bool> decode_choice(const YamlMap& map, std::string_view key,
                           const std::array<std::string_view, 2>& words) {
    const auto node = map.find(key);
    if (!node) return false;
    WEIR_TRY(const std::string text, yaml_text(map.file(), *node, key));
    if (text == words[0]) return false;
    if (text == words[1]) return true;
    const std::string_view nearest = nearest_word(text, words);
    return yaml_error(map.file(), *node,
                      fmt::format("{} is neither {} nor {}", key, words[0], words[1]),
                      nearest.empty() ? "" : fmt::format("did you mean \"{}\"?", nearest));
}

Result<LinkLayer> decode_link_layer(const YamlMap& top) {
    WEIR_TRY(const bool ethernet, decode_choice(top, "link_layer", {"infiniband", "ethernet"}));
    return ethernet ? LinkLayer::kEthernet : LinkLayer::kInfiniband;
}

Result<LaneShare> decode_lane_share(const YAML::Node& node, std::string_view file) {
    WEIR_TRY(const YamlMap map, YamlMap::open(node, file, "a lane", kLaneKeys));
    LaneShare share;
    WEIR_TRY(share.weight, map.count("weight", share.weight, 1, 255));
    WEIR_TRY(share.high, decode_choice(map, "priority", {"low", "high"}));
    return share;
}

Result<Arbitration> decode_arbitration(const YamlMap& top, std::uint32_t data_lanes) {
    Arbitration arbitration;
    const auto node = top.find("arbitration");
    if (!node) return arbitration;
    WEIR_TRY(const YamlMap map, YamlMap::open(*node, top.file(), "arbitration", kArbitrationKeys));
    WEIR_TRY(arbitration.high_limit,
             map.count("high_limit", arbitration.high_limit, 0, kHighLimitNone));
    const auto lanes = map.find("lanes");
    if (!lanes) return arbitration;
    WEIR_TRY(const YamlMap by_number, YamlMap::open(*lanes, top.file(), "lanes", kLaneNumbers));
    for (std::uint32_t vl = 0; vl < kLanesMax; ++vl) {
        const auto share = by_number.find(kLaneNumbers[vl]);
        if (!share) continue;
        if (vl >= data_lanes) {
            return yaml_error(top.file(), *share, fmt::format("there is no lane {}", vl),
                              fmt::format("lanes is {}", data_lanes));
        }
        WEIR_TRY(arbitration.lanes[vl], decode_lane_share(*share, top.file()));
    }
    return arbitration;
}

Result<void> check_rates(const YamlMap& top, const Fabric& fabric) {
    if (!fabric.options.rates_enforced) return {};
    for (const auto& link : fabric.links) {
        if (link.speed >= kSlowestEnforced) continue;
        return yaml_error(top.file(), *top.find("rates"),
                          fmt::format("link {} of {} is too slow for its rate to be enforced",
                                      link.name, format_rate(link.speed)),
                          fmt::format("give it {} or more, or leave the rates unlimited",
                                      format_rate(kSlowestEnforced)));
    }
    return {};
}

Result<Bytes> decode_mtu(const YamlMap& top) {
    WEIR_TRY(const std::uint32_t mtu, top.count("mtu", 4096, 0, 65535));
    if (mtu == 256 || mtu == 512 || mtu == 1024 || mtu == 2048 || mtu == 4096) return Bytes{mtu};
    return yaml_error(top.file(), *top.find("mtu"),
                      fmt::format("mtu is {}; it is 256, 512, 1024, 2048 or 4096", mtu));
}

Result<Options> decode_options(const YamlMap& top) {
    Options options;
    WEIR_TRY(options.link_layer, decode_link_layer(top));
    WEIR_TRY(options.mtu, decode_mtu(top));
    WEIR_TRY(options.data_lanes, top.count("lanes", options.data_lanes, 1, 8));
    WEIR_TRY(options.speed, decode_rate(top, "speed", options.speed));
    WEIR_TRY(options.buffer, decode_buffer(top, options.buffer));
    WEIR_TRY(options.delay, decode_delay(top, "delay", options.delay));
    WEIR_TRY(options.rates_enforced, decode_choice(top, "rates", {"unlimited", "enforced"}));
    WEIR_TRY(options.arbitration, decode_arbitration(top, options.data_lanes));
    return options;
}

Result<std::string> decode_name(const YamlMap& top) {
    WEIR_TRY(std::string name, top.text("name", "fabric"));
    for (const char c : name) {
        const bool good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
        if (!good || name.size() > 63) {
            return yaml_error(top.file(), *top.find("name"),
                              "name is up to 63 letters, digits, \"-\", \"_\" and \".\"");
        }
    }
    return name;
}

Result<Fabric> decode_document(std::string_view text, std::string_view filename) {
    WEIR_TRY(const YAML::Node document, parse_yaml(text, filename));
    WEIR_TRY(const YamlMap top, YamlMap::open(document, filename, "a fabric file", kTopKeys));
    WEIR_TRY(std::string name, decode_name(top));
    WEIR_TRY(const Options options, decode_options(top));
    const auto shape = top.find("fabric");
    const auto list = top.find("topology");
    if (shape && list) {
        return yaml_error(filename, *list, "both \"fabric\" and \"topology\" given",
                          "keep \"fabric\" to generate a shape, or \"topology\" to list nodes");
    }
    if (!shape && !list) {
        return top.error("neither \"fabric\" nor \"topology\" given",
                         "add fabric: {shape: single-switch, hosts: 2}");
    }
    WEIR_TRY(Fabric fabric, shape ? decode_shape(*shape, filename, options)
                                  : decode_topology(*list, filename, options));
    fabric.name = std::move(name);
    WEIR_TRY_VOID(check_rates(top, fabric));
    return fabric;
}

}  // namespace

Result<BitsPerSecond> decode_rate(const YamlMap& map, std::string_view key,
                                  BitsPerSecond otherwise) {
    constexpr BitsPerSecond kMin{1'000};
    constexpr BitsPerSecond kMax{10'000'000'000'000};
    const auto node = map.find(key);
    if (!node) return otherwise;
    WEIR_TRY(const std::string text, yaml_text(map.file(), *node, key));
    const Result<BitsPerSecond> value = parse_rate(text);
    if (!value) return yaml_error(map.file(), *node, value.error());
    if (*value < kMin || *value > kMax)
        return yaml_error(map.file(), *node,
                          fmt::format("{} {} lies not within 1kbps ... 10Tbps", key, text));
    return *value;
}

Result<Picos> decode_delay(const YamlMap& map, std::string_view key, Picos otherwise) {
    constexpr Picos kMax = from_ms(1000);
    const auto node = map.find(key);
    if (!node) return otherwise;
    WEIR_TRY(const std::string text, yaml_text(map.file(), *node, key));
    const Result<Picos> value = parse_duration(text);
    if (!value) return yaml_error(map.file(), *node, value.error());
    if (*value > kMax) return yaml_error(map.file(), *node, fmt::format("{} exceeds 1s", key));
    return *value;
}

Result<Fabric> decode_fabric(std::string_view text, std::string_view filename) {
    if (text.size() > kFileBytesLimit)
        return fail(ErrorCode::kInvalid, fmt::format("{}: larger than 256 MiB", filename));
    // yaml-cpp throws, also from accessors; this is the edge where that ends.
    try {
        return decode_document(text, filename);
    } catch (const std::exception& e) {
        return fail(ErrorCode::kInvalid, fmt::format("{}: not valid YAML: {}", filename, e.what()));
    }
}

Result<Fabric> read_fabric_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        return fail(ErrorCode::kNotFound, fmt::format("{}: cannot be opened", path),
                    "check the path and its permissions");
    }
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (file.bad()) return fail(ErrorCode::kSystem, fmt::format("{}: cannot be read", path));
    return decode_fabric(text, path);
}

std::map<std::string, std::vector<std::string>> fabric_file_keys() {
    const auto list = [](std::span<const std::string_view> keys) {
        return std::vector<std::string>(keys.begin(), keys.end());
    };
    return {{"", list(kTopKeys)},
            {"arbitration", list(kArbitrationKeys)},
            {"lane", list(kLaneKeys)},
            {"topology", list(kTopologyKeys)},
            {"node", list(kNodeKeys)},
            {"labels", list(kLabelKeys)},
            {"link", list(kLinkKeys)},
            {"fabric/single-switch", list(kSingleSwitchKeys)},
            {"fabric/fat-tree", list(kTreeKeys)},
            {"fabric/rail-optimised", list(kTreeKeys)},
            {"fabric/dragonfly", list(kDragonflyKeys)},
            {"fabric/torus", list(kTorusKeys)}};
}

}  // namespace weir::topology

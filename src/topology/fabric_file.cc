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

constexpr std::array<std::string_view, 9> kTopKeys{
    "name", "link_layer", "mtu", "lanes", "speed", "buffer", "delay", "fabric", "topology"};

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

Result<LinkLayer> decode_link_layer(const YamlMap& top) {
    const auto node = top.find("link_layer");
    if (!node) return LinkLayer::kInfiniband;
    WEIR_TRY(const std::string text, yaml_text(top.file(), *node, "link_layer"));
    if (text == "infiniband") return LinkLayer::kInfiniband;
    if (text == "ethernet") return LinkLayer::kEthernet;
    constexpr std::array<std::string_view, 2> kLayers{"infiniband", "ethernet"};
    const std::string_view nearest = nearest_word(text, kLayers);
    return yaml_error(top.file(), *node, "link_layer is neither infiniband nor ethernet",
                      nearest.empty() ? "" : fmt::format("did you mean \"{}\"?", nearest));
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

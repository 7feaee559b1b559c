// SPDX-License-Identifier: Apache-2.0
// The generator block: `fabric: {shape: fat-tree, ...}`.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "topology/builders.h"
#include "topology/fabric_decode.h"
#include "topology/nearest_word.h"

namespace weir::topology {

namespace {

constexpr std::uint32_t kMany = kNodeLimit;

/// "2:1"
Result<Taper> decode_taper(const YamlMap& map) {
    const auto node = map.find("taper");
    if (!node) return Taper{};
    WEIR_TRY(const std::string text, yaml_text(map.file(), *node, "taper"));
    Taper taper{0, 0};
    const char* const end = text.data() + text.size();
    const auto [colon, bad_down] = std::from_chars(text.data(), end, taper.down);
    if (bad_down == std::errc{} && colon != end && *colon == ':') {
        const auto [stop, bad_up] = std::from_chars(colon + 1, end, taper.up);
        if (bad_up != std::errc{} || stop != end) taper.up = 0;
    }
    if (taper.down == 0 || taper.up == 0 || taper.down > kPortLimit || taper.up > kPortLimit) {
        return yaml_error(map.file(), *node, fmt::format("taper \"{}\" is not down:up", text),
                          "quote it: taper: \"2:1\" has two host ports for each uplink");
    }
    return taper;
}

Result<Fabric> decode_single_switch(const YamlMap& map, const Options& options) {
    SingleSwitch shape;
    WEIR_TRY_VOID(map.require("hosts"));
    WEIR_TRY(shape.hosts, map.count("hosts", 0, 1, kMany));
    WEIR_TRY(shape.hcas, map.count("hcas", shape.hcas, 1, kMany));
    WEIR_TRY(shape.ports, map.count("ports", shape.ports, 1, kPortLimit));
    return build_single_switch(shape, options);
}

template <class Shape>
Result<Shape> decode_tree(const YamlMap& map) {
    Shape shape;
    WEIR_TRY_VOID(map.require("hosts"));
    WEIR_TRY_VOID(map.require("radix"));
    WEIR_TRY(shape.levels, map.count("levels", shape.levels, 2, 3));
    WEIR_TRY(shape.radix, map.count("radix", 0, 2, kPortLimit));
    WEIR_TRY(shape.hosts, map.count("hosts", 0, 1, kMany));
    WEIR_TRY(shape.rails, map.count("rails", shape.rails, 1, kPortLimit));
    WEIR_TRY(shape.taper, decode_taper(map));
    WEIR_TRY(shape.su_hosts, map.count("su_hosts", 0, 1, kPortLimit));
    return shape;
}

Result<Fabric> decode_dragonfly(const YamlMap& map, const Options& options) {
    Dragonfly shape;
    for (const std::string_view key : kDragonflyKeys) {
        WEIR_TRY_VOID(map.require(key));
    }
    WEIR_TRY(shape.a, map.count("a", 0, 1, kPortLimit));
    WEIR_TRY(shape.h, map.count("h", 0, 0, kPortLimit));
    WEIR_TRY(shape.p, map.count("p", 0, 1, kPortLimit));
    WEIR_TRY(shape.g, map.count("g", 0, 1, kMany));
    return build_dragonfly(shape, options);
}

Result<Fabric> decode_torus(const YamlMap& map, const Options& options) {
    Torus shape;
    WEIR_TRY(const YAML::Node dims, map.require("dims"));
    if (!dims.IsSequence() || dims.size() < 2 || dims.size() > 3)
        return yaml_error(map.file(), dims, "dims is not a list of two or three sizes");
    shape.dims.clear();
    for (const auto& dim : dims) {
        WEIR_TRY(const std::uint64_t size, yaml_number(map.file(), dim, "a dimension", 1, kMany));
        shape.dims.push_back(static_cast<std::uint32_t>(size));
    }
    WEIR_TRY(shape.hosts_per_switch, map.count("hosts_per_switch", 1, 1, kPortLimit));
    return build_torus(shape, options);
}

/// The value of `shape:`, found before the map is opened, since it decides which keys are known.
Result<std::string> find_shape(const YAML::Node& node, std::string_view file) {
    if (!node.IsMap()) return yaml_error(file, node, "fabric is not a mapping");
    for (const auto& item : node) {
        if (!item.first.IsScalar() || item.first.Scalar() != "shape") continue;
        WEIR_TRY(std::string shape, yaml_text(file, item.second, "shape"));
        if (shape == "rail-optimized") shape = "rail-optimised";
        if (std::find(kShapes.begin(), kShapes.end(), shape) != kShapes.end()) return shape;
        const std::string_view nearest = nearest_word(shape, kShapes);
        return yaml_error(file, item.second, fmt::format("unknown shape \"{}\"", shape),
                          nearest.empty() ? fmt::format("shapes are {}", fmt::join(kShapes, ", "))
                                          : fmt::format("did you mean \"{}\"?", nearest));
    }
    return yaml_error(file, node, "fabric lacks \"shape\"",
                      fmt::format("shapes are {}", fmt::join(kShapes, ", ")));
}

Result<Fabric> build(const std::string& shape, const YAML::Node& node, std::string_view file,
                     const Options& options) {
    const auto open = [&](std::span<const std::string_view> keys) {
        return YamlMap::open(node, file, fmt::format("fabric of shape {}", shape), keys);
    };
    if (shape == "single-switch") {
        WEIR_TRY(const YamlMap map, open(kSingleSwitchKeys));
        return decode_single_switch(map, options);
    }
    if (shape == "fat-tree") {
        WEIR_TRY(const YamlMap map, open(kTreeKeys));
        WEIR_TRY(const FatTree tree, decode_tree<FatTree>(map));
        return build_fat_tree(tree, options);
    }
    if (shape == "rail-optimised") {
        WEIR_TRY(const YamlMap map, open(kTreeKeys));
        WEIR_TRY(const RailOptimised tree, decode_tree<RailOptimised>(map));
        return build_rail_optimised(tree, options);
    }
    if (shape == "dragonfly") {
        WEIR_TRY(const YamlMap map, open(kDragonflyKeys));
        return decode_dragonfly(map, options);
    }
    WEIR_TRY(const YamlMap map, open(kTorusKeys));
    return decode_torus(map, options);
}

}  // namespace

Result<Fabric> decode_shape(const YAML::Node& node, std::string_view file, const Options& options) {
    WEIR_TRY(const std::string shape, find_shape(node, file));
    Result<Fabric> fabric = build(shape, node, file, options);
    // A builder knows no file: its errors get the place of the block.
    if (!fabric && !fabric.error().context.starts_with(file))
        return yaml_error(file, node, fabric.error());
    return fabric;
}

}  // namespace weir::topology

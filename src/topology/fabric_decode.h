// SPDX-License-Identifier: Apache-2.0
// The two halves of the fabric.yaml decoder behind fabric_file.h: the explicit list and the
// generator block. Internal to this module.
#pragma once

#include <array>
#include <string_view>

#include "base/result.h"
#include "topology/graph.h"
#include "topology/yaml_map.h"

namespace weir::topology {

inline constexpr std::array<std::string_view, 2> kTopologyKeys{"nodes", "links"};
inline constexpr std::array<std::string_view, 7> kNodeKeys{
    "kind", "ports", "hcas", "guid", "description", "labels", "addresses"};
inline constexpr std::array<std::string_view, 4> kLabelKeys{"weir-tier", "weir-pod", "weir-rail",
                                                            "weir-su"};
inline constexpr std::array<std::string_view, 4> kLinkKeys{"endpoints", "speed", "width", "delay"};

inline constexpr std::array<std::string_view, 4> kSingleSwitchKeys{"shape", "hosts", "hcas",
                                                                   "ports"};
inline constexpr std::array<std::string_view, 7> kTreeKeys{"shape", "levels", "radix",   "hosts",
                                                           "rails", "taper",  "su_hosts"};
inline constexpr std::array<std::string_view, 5> kDragonflyKeys{"shape", "a", "h", "p", "g"};
inline constexpr std::array<std::string_view, 3> kTorusKeys{"shape", "dims", "hosts_per_switch"};
inline constexpr std::array<std::string_view, 5> kShapes{"single-switch", "fat-tree",
                                                         "rail-optimised", "dragonfly", "torus"};

/// Decodes the value of `topology:` into nodes and links of a fabric with these options.
Result<Fabric> decode_topology(const YAML::Node& node, std::string_view file,
                               const Options& options);

/// Decodes the value of `fabric:` and builds it.
Result<Fabric> decode_shape(const YAML::Node& node, std::string_view file, const Options& options);

/// A quantity key, or `otherwise` if the key is absent.
Result<BitsPerSecond> decode_rate(const YamlMap& map, std::string_view key,
                                  BitsPerSecond otherwise);
Result<Picos> decode_delay(const YamlMap& map, std::string_view key, Picos otherwise);

}  // namespace weir::topology

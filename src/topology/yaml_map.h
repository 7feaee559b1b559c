// SPDX-License-Identifier: Apache-2.0
// YamlMap: strict access to a mapping of a YAML document. Unknown and repeated keys are refused
// when the map is opened; each getter checks type and range. Every error carries file:line:col.
// Internal to this module's .cc files: yaml-cpp is slow to compile and throws, so neither leaves
// them.
//
// A document is decoded within guard_yaml(), which turns yaml-cpp's exceptions into errors.
#pragma once

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace weir::topology {

/// "fabric.yaml:3:7"
std::string yaml_place(std::string_view file, const YAML::Node& node);

/// An error at the place of `node`.
tl::unexpected<Error> yaml_error(std::string_view file, const YAML::Node& node,
                                 std::string_view what, std::string hint = {});

/// Puts file:line:col before an error that has none.
tl::unexpected<Error> yaml_error(std::string_view file, const YAML::Node& node, const Error& error);

/// The only document of `text`; an error if it is no YAML, empty, or several documents.
Result<YAML::Node> parse_yaml(std::string_view text, std::string_view file);

class YamlMap {
  public:
    /// Fails if `node` is not a mapping or has a key outside `known` or a key twice. `what` names
    /// the mapping in messages: "fabric".
    static Result<YamlMap> open(const YAML::Node& node, std::string_view file,
                                std::string_view what, std::span<const std::string_view> known);

    [[nodiscard]] const YAML::Node& node() const { return node_; }
    [[nodiscard]] std::string_view file() const { return file_; }

    /// The value of a key; nothing if it is absent.
    [[nodiscard]] std::optional<YAML::Node> find(std::string_view key) const;
    [[nodiscard]] bool has(std::string_view key) const { return find(key).has_value(); }

    /// The value of a key that must be there.
    [[nodiscard]] Result<YAML::Node> require(std::string_view key) const;

    /// Each getter: the value if the key is there and good, `otherwise` if it is absent.
    [[nodiscard]] Result<std::string> text(std::string_view key, std::string otherwise) const;
    [[nodiscard]] Result<std::uint32_t> count(std::string_view key, std::uint32_t otherwise,
                                              std::uint32_t min, std::uint32_t max) const;
    [[nodiscard]] Result<std::optional<std::uint32_t>> find_count(std::string_view key,
                                                                  std::uint32_t min,
                                                                  std::uint32_t max) const;
    [[nodiscard]] Result<std::string> require_text(std::string_view key) const;

    tl::unexpected<Error> error(std::string_view what, std::string hint = {}) const {
        return yaml_error(file_, node_, what, std::move(hint));
    }

  private:
    YamlMap(YAML::Node node, std::string_view file, std::string_view what)
        : node_(std::move(node)),
          file_(file),
          what_(what) {}

    YAML::Node node_;
    std::string file_;
    std::string what_;
};

/// A non-negative whole number within [min, max], decimal or 0x hexadecimal.
Result<std::uint64_t> yaml_number(std::string_view file, const YAML::Node& node,
                                  std::string_view what, std::uint64_t min, std::uint64_t max);

/// A text value.
Result<std::string> yaml_text(std::string_view file, const YAML::Node& node, std::string_view what);

}  // namespace weir::topology

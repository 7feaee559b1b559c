// SPDX-License-Identifier: Apache-2.0
#include "topology/yaml_map.h"

#include <fmt/core.h>
#include <yaml-cpp/eventhandler.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <sstream>

#include "topology/nearest_word.h"

namespace weir::topology {

namespace {

/// Outside text in a message: shortened, control characters replaced.
std::string shown(std::string_view text) {
    constexpr std::size_t kShownLimit = 60;
    std::string result(text.substr(0, kShownLimit));
    for (char& c : result) {
        if ((c >= 0 && c < ' ') || c == 0x7f) c = '?';
    }
    if (text.size() > kShownLimit) result += "...";
    return result;
}

std::string place(std::string_view file, const YAML::Mark& mark) {
    if (mark.is_null()) return std::string(file);
    return fmt::format("{}:{}:{}", file, mark.line + 1, mark.column + 1);
}

/// Takes a document apart only to learn where it starts.
class StartFinder : public YAML::EventHandler {
  public:
    [[nodiscard]] const YAML::Mark& start() const { return start_; }

    void OnDocumentStart(const YAML::Mark& mark) override { start_ = mark; }
    void OnDocumentEnd() override {}
    void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
    void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
    void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  const std::string&) override {}
    void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                         YAML::EmitterStyle::value) override {}
    void OnSequenceEnd() override {}
    void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                    YAML::EmitterStyle::value) override {}
    void OnMapEnd() override {}

  private:
    YAML::Mark start_;
};

/// Where a second document starts. YAML::LoadAll() would tell too, but never returns on some broken
/// texts: a stray "]" is to it one empty document after the other.
std::optional<YAML::Mark> find_second_document(const std::string& text) {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    StartFinder finder;
    parser.HandleNextDocument(finder);
    if (!parser || !parser.HandleNextDocument(finder)) return std::nullopt;
    return finder.start();
}

}  // namespace

std::string yaml_place(std::string_view file, const YAML::Node& node) {
    return place(file, node.Mark());
}

tl::unexpected<Error> yaml_error(std::string_view file, const YAML::Node& node,
                                 std::string_view what, std::string hint) {
    return fail(ErrorCode::kInvalid, fmt::format("{}: {}", yaml_place(file, node), what),
                std::move(hint));
}

tl::unexpected<Error> yaml_error(std::string_view file, const YAML::Node& node,
                                 const Error& error) {
    return yaml_error(file, node, error.context, error.hint);
}

Result<YAML::Node> parse_yaml(std::string_view text, std::string_view file) {
    try {
        const std::string owned(text);
        const YAML::Node document = YAML::Load(owned);
        if (!document || document.IsNull())
            return fail(ErrorCode::kInvalid, fmt::format("{}: the file is empty", file));
        if (const auto second = find_second_document(owned)) {
            return fail(ErrorCode::kInvalid,
                        fmt::format("{}: a second document, or stray text; one "
                                    "file is one fabric",
                                    place(file, *second)));
        }
        return document;
    } catch (const YAML::Exception& e) {
        return fail(ErrorCode::kInvalid,
                    fmt::format("{}: not valid YAML: {}", place(file, e.mark), e.msg));
    }
}

Result<YamlMap> YamlMap::open(const YAML::Node& node, std::string_view file, std::string_view what,
                              std::span<const std::string_view> known) {
    if (!node.IsMap()) return yaml_error(file, node, fmt::format("{} is not a mapping", what));
    std::set<std::string> seen;
    for (const auto& item : node) {
        if (!item.first.IsScalar())
            return yaml_error(file, item.first, fmt::format("a key of {} is not a word", what));
        const std::string& key = item.first.Scalar();
        if (std::find(known.begin(), known.end(), key) == known.end()) {
            const std::string_view nearest = nearest_word(key, known);
            return yaml_error(
                file, item.first, fmt::format("unknown key \"{}\" in {}", shown(key), what),
                nearest.empty() ? std::string{} : fmt::format("did you mean \"{}\"?", nearest));
        }
        if (!seen.insert(key).second)
            return yaml_error(file, item.first, fmt::format("key \"{}\" given twice", key));
    }
    return YamlMap(node, file, what);
}

std::optional<YAML::Node> YamlMap::find(std::string_view key) const {
    for (const auto& item : node_) {
        if (item.first.Scalar() == key) return item.second;
    }
    return std::nullopt;
}

Result<YAML::Node> YamlMap::require(std::string_view key) const {
    if (const auto value = find(key)) return *value;
    return error(fmt::format("{} lacks \"{}\"", what_, key));
}

Result<std::string> YamlMap::text(std::string_view key, std::string otherwise) const {
    const auto value = find(key);
    if (!value) return otherwise;
    return yaml_text(file_, *value, key);
}

Result<std::string> YamlMap::require_text(std::string_view key) const {
    WEIR_TRY(const YAML::Node value, require(key));
    return yaml_text(file_, value, key);
}

Result<std::uint32_t> YamlMap::count(std::string_view key, std::uint32_t otherwise,
                                     std::uint32_t min, std::uint32_t max) const {
    WEIR_TRY(const std::optional<std::uint32_t> value, find_count(key, min, max));
    return value.value_or(otherwise);
}

Result<std::optional<std::uint32_t>> YamlMap::find_count(std::string_view key, std::uint32_t min,
                                                         std::uint32_t max) const {
    const auto value = find(key);
    if (!value) return std::optional<std::uint32_t>{};
    WEIR_TRY(const std::uint64_t number, yaml_number(file_, *value, key, min, max));
    return std::optional(static_cast<std::uint32_t>(number));
}

Result<std::uint64_t> yaml_number(std::string_view file, const YAML::Node& node,
                                  std::string_view what, std::uint64_t min, std::uint64_t max) {
    if (!node.IsScalar()) return yaml_error(file, node, fmt::format("{} is not a number", what));
    const std::string& text = node.Scalar();
    const bool hex = text.starts_with("0x");
    const char* const begin = text.data() + (hex ? 2 : 0);
    const char* const end = text.data() + text.size();
    std::uint64_t value = 0;
    const auto [stop, failure] = std::from_chars(begin, end, value, hex ? 16 : 10);
    if (failure == std::errc::result_out_of_range ||
        (failure == std::errc{} && stop == end && (value < min || value > max))) {
        return yaml_error(
            file, node,
            fmt::format("{} is {}; it lies within {} ... {}", what, shown(text), min, max));
    }
    if (failure != std::errc{} || stop != end) {
        return yaml_error(file, node,
                          fmt::format("{} is not a whole number: \"{}\"", what, shown(text)));
    }
    return value;
}

Result<std::string> yaml_text(std::string_view file, const YAML::Node& node,
                              std::string_view what) {
    if (!node.IsScalar()) return yaml_error(file, node, fmt::format("{} is not a text", what));
    return node.Scalar();
}

}  // namespace weir::topology

// SPDX-License-Identifier: Apache-2.0
// The lines of a netlist, one at a time: what kind of line it is and what it says. Which line may
// follow which, and how lines fit together, is netlist_read.cc's business. Internal to this module.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "topology/graph.h"

namespace weir::topology {

/// A position within a line; every take_ function advances over what it takes, or takes nothing.
class LineCursor {
  public:
    explicit LineCursor(std::string_view text) : rest_(text) {}

    [[nodiscard]] std::string_view rest() const { return rest_; }
    [[nodiscard]] bool at_end() const { return rest_.empty(); }

    void skip_blanks();
    bool take(std::string_view literal);
    /// "[17]" -> 17
    std::optional<std::uint32_t> take_port();
    /// Decimal digits that fit 32 bits.
    std::optional<std::uint32_t> take_number();
    /// Hexadecimal digits that fit 64 bits, "0x" optional.
    std::optional<std::uint64_t> take_hex();
    /// "\"text\"" -> text
    std::optional<std::string_view> take_quoted();
    /// Up to the next blank.
    std::string_view take_word();

  private:
    std::string_view rest_;
};

/// What the comment after a node or port tells. Absent parts are 0 or empty.
struct LineComment {
    std::string_view description;
    std::uint32_t own_lid = 0;  ///< Before the description: `# lid 12 lmc 0 "desc" lid 34 4xHDR`.
    std::uint32_t own_lmc = 0;
    std::uint32_t lid = 0;  ///< After the description.
    std::uint32_t lmc = 0;
    std::uint32_t width = 0;
    BitsPerSecond speed{};      ///< Of all lanes.
    Picos delay{-1};            ///< -1: not told.
    bool unknown_rate = false;  ///< A rate was told, but by no known name.
};

/// The comment at `at`, which may be absent. Unknown words are skipped, as other tools do.
LineComment take_comment(LineCursor at);

/// Switch 41 "id" # ...
struct NodeLine {
    NodeKind kind = NodeKind::kSwitch;
    std::uint32_t port_count = 0;
    std::string_view id;
    LineComment comment;
};

/// [1](guid) "id"[2](guid) # ...
struct PortLine {
    PortNumber port = 0;
    std::optional<std::uint64_t> guid;
    std::string_view peer_id;
    PortNumber peer_port = 0;
    std::optional<std::uint64_t> peer_guid;
    LineComment comment;
};

/// Nothing if the line is not of that kind or is not complete.
std::optional<NodeLine> parse_node_line(std::string_view line);
std::optional<PortLine> parse_port_line(std::string_view line);

/// The value of "switchguid=0x12(34)" and its like: node and port GUID. 0 = absent.
struct GuidLine {
    std::uint64_t node = 0;
    std::uint64_t port = 0;
};
std::optional<GuidLine> parse_guid_line(std::string_view line);

/// vendid=..., devid=..., sysimgguid=..., a chassis heading: known, and of no use here.
bool is_ignored_line(std::string_view line);

/// A terminal's banner, or a prompt with or without a command: what a copied log has around a dump.
bool is_terminal_noise(std::string_view line);

/// Removes blanks, tabs and carriage returns at both ends.
std::string_view trimmed(std::string_view line);

/// Outside text as a message can show it: shortened, control characters replaced.
std::string shown(std::string_view text);

/// "node-7" of "node-7 HCA-1": the first of exactly two words; else `name`. Tells an HCA's host.
std::string host_of(std::string_view description, std::string_view name);

/// The node id that ibnetdiscover prints: "S-00000002c90300a1", "H-...".
std::string netlist_id(bool is_switch, std::uint64_t guid);

/// One `key=value` or `key="value with blanks"` of a "# weir" line. Nothing at a malformed one.
struct Fact {
    std::string_view key;
    std::string_view value;
};
std::optional<Fact> take_fact(LineCursor& at);

/// Applies a fact of a "# weir fabric", "# weir node" or "# weir port" line; false if it is not
/// understood.
bool apply_fabric_fact(const Fact& fact, Fabric& fabric);
bool apply_node_fact(const Fact& fact, Node& node);
bool apply_port_fact(const Fact& fact, EndPort& end_port);

}  // namespace weir::topology

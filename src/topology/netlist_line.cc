// SPDX-License-Identifier: Apache-2.0
#include "topology/netlist_line.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "topology/ib_rate.h"

namespace weir::topology {

namespace {

bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

template <class T>
std::optional<T> take_digits(std::string_view& rest, int base) {
    T value = 0;
    const auto [stop, failure] =
        std::from_chars(rest.data(), rest.data() + rest.size(), value, base);
    if (failure != std::errc{}) return std::nullopt;
    rest.remove_prefix(static_cast<std::size_t>(stop - rest.data()));
    return value;
}

/// All of `text` as a non-negative number.
std::optional<std::int64_t> whole(std::string_view text) {
    std::int64_t value = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, failure] = std::from_chars(text.data(), end, value);
    if (failure != std::errc{} || stop != end || value < 0) return std::nullopt;
    return value;
}

/// "4xHDR"; words of other form are left alone.
void read_rate(std::string_view word, LineComment& comment) {
    LineCursor at(word);
    const auto width = at.take_number();
    if (!width || !at.take("x")) return;
    const bool known_width =
        *width == 1 || *width == 2 || *width == 4 || *width == 8 || *width == 12;
    const auto* const rate = std::find_if(kLaneRates.begin(), kLaneRates.end(),
                                          [&](const LaneRate& r) { return r.name == at.rest(); });
    if (!known_width || rate == kLaneRates.end()) {
        comment.unknown_rate = true;
        return;
    }
    comment.width = *width;
    comment.speed = {*width * rate->bits_per_second};
}

/// "weir-speed=300000000000" and "weir-delay=5000".
void read_extension(std::string_view word, LineComment& comment) {
    LineCursor at(word);
    const bool is_speed = at.take("weir-speed=");
    if (!is_speed && !at.take("weir-delay=")) return;
    const auto value = whole(at.rest());
    if (!value) return;
    if (is_speed) {
        comment.speed = {*value};
    } else {
        comment.delay = {*value};
    }
}

}  // namespace

void LineCursor::skip_blanks() {
    while (!rest_.empty() && is_blank(rest_.front()))
        rest_.remove_prefix(1);
}

bool LineCursor::take(std::string_view literal) {
    if (!rest_.starts_with(literal)) return false;
    rest_.remove_prefix(literal.size());
    return true;
}

std::optional<std::uint32_t> LineCursor::take_number() {
    return take_digits<std::uint32_t>(rest_, 10);
}

std::optional<std::uint64_t> LineCursor::take_hex() {
    take("0x");
    return take_digits<std::uint64_t>(rest_, 16);
}

std::optional<std::uint32_t> LineCursor::take_port() {
    const std::string_view before = rest_;
    if (take("[")) {
        const auto number = take_number();
        if (number && take("]")) return number;
    }
    rest_ = before;
    return std::nullopt;
}

std::optional<std::string_view> LineCursor::take_quoted() {
    if (!rest_.starts_with('"')) return std::nullopt;
    const std::size_t end = rest_.find('"', 1);
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view text = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return text;
}

std::string_view LineCursor::take_word() {
    const auto* const end = std::find_if(rest_.begin(), rest_.end(), is_blank);
    const std::string_view word = rest_.substr(0, static_cast<std::size_t>(end - rest_.begin()));
    rest_.remove_prefix(word.size());
    return word;
}

LineComment take_comment(LineCursor at) {
    LineComment comment;
    at.skip_blanks();
    if (!at.take("#")) return comment;
    bool described = false;
    for (at.skip_blanks(); !at.at_end(); at.skip_blanks()) {
        if (const auto text = at.take_quoted()) {
            comment.description = *text;
            described = true;
            continue;
        }
        const std::string_view word = at.take_word();
        if (word == "lid" || word == "lmc") {
            at.skip_blanks();
            const std::uint32_t value = at.take_number().value_or(0);
            if (word == "lid") {
                (described ? comment.lid : comment.own_lid) = value;
            } else {
                (described ? comment.lmc : comment.own_lmc) = value;
            }
            continue;
        }
        read_rate(word, comment);
        read_extension(word, comment);
    }
    return comment;
}

std::optional<NodeLine> parse_node_line(std::string_view line) {
    NodeLine node;
    LineCursor at(line);
    if (!at.take("Switch")) {
        if (!at.take("Ca") && !at.take("Hca") && !at.take("Rt")) return std::nullopt;
        node.kind = NodeKind::kHca;
    }
    at.skip_blanks();
    const auto ports = at.take_number();
    at.skip_blanks();
    const auto id = at.take_quoted();
    if (!ports || !id) return std::nullopt;
    node.port_count = *ports;
    node.id = *id;
    node.comment = take_comment(at);
    return node;
}

std::optional<PortLine> parse_port_line(std::string_view line) {
    const auto take_guid = [](LineCursor& at) -> std::optional<std::uint64_t> {
        if (!at.take("(")) return std::nullopt;
        const auto guid = at.take_hex();
        return at.take(")") ? guid : std::nullopt;
    };
    const auto skip_external = [](LineCursor& at) {  // "[ext 3]": the number printed on a chassis.
        if (!at.take("[ext ")) return;
        at.take_number();
        at.take("]");
    };
    PortLine port;
    LineCursor at(line);
    const auto number = at.take_port();
    if (!number) return std::nullopt;
    skip_external(at);
    port.guid = take_guid(at);
    at.skip_blanks();
    const auto id = at.take_quoted();
    const auto peer_port = at.take_port();
    if (!id || !peer_port) return std::nullopt;
    skip_external(at);
    port.peer_guid = take_guid(at);
    port.port = *number;
    port.peer_id = *id;
    port.peer_port = *peer_port;
    port.comment = take_comment(at);
    return port;
}

std::optional<GuidLine> parse_guid_line(std::string_view line) {
    LineCursor at(line);
    if (!at.take("switchguid=") && !at.take("caguid=") && !at.take("hcaguid=") &&
        !at.take("rtguid="))
        return std::nullopt;
    const auto node = at.take_hex();
    if (!node) return std::nullopt;
    GuidLine guids{*node, 0};
    if (at.take("(")) {
        const auto port = at.take_hex();
        if (!port || !at.take(")")) return std::nullopt;
        guids.port = *port;
    }
    at.skip_blanks();
    return at.at_end() ? std::optional(guids) : std::nullopt;
}

bool is_ignored_line(std::string_view line) {
    constexpr std::array<std::string_view, 6> kIgnored{
        "vendid=", "devid=", "sysimgguid=", "Chassis", "Non-Chassis", "module"};
    return std::any_of(kIgnored.begin(), kIgnored.end(),
                       [&](std::string_view start) { return line.starts_with(start); });
}

bool is_terminal_noise(std::string_view line) {
    if (line.starts_with("=~=~")) return true;
    const std::size_t prompt = line.find_last_of("#$>");
    if (line.empty() || line.front() == '[' || prompt == std::string_view::npos) return false;
    const std::string_view command = trimmed(line.substr(prompt + 1));
    return command.empty() || command.find("ibnetdiscover") != std::string_view::npos;
}

std::string_view trimmed(std::string_view line) {
    while (!line.empty() && is_blank(line.front()))
        line.remove_prefix(1);
    while (!line.empty() && is_blank(line.back()))
        line.remove_suffix(1);
    return line;
}

std::string shown(std::string_view text) {
    constexpr std::size_t kShownLimit = 60;
    std::string result(text.substr(0, kShownLimit));
    for (char& c : result) {
        if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = '?';
    }
    if (text.size() > kShownLimit) result += "...";
    return result;
}

std::string host_of(std::string_view description, std::string_view name) {
    const std::string_view text = trimmed(description);
    const std::size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
        return std::string(name);
    return std::string(text.substr(0, space));
}

std::string netlist_id(bool is_switch, std::uint64_t guid) {
    return fmt::format("{}-{:016x}", is_switch ? 'S' : 'H', guid);
}

std::optional<Fact> take_fact(LineCursor& at) {
    const std::size_t equals = at.rest().find('=');
    if (equals == std::string_view::npos) return std::nullopt;
    Fact fact;
    fact.key = at.rest().substr(0, equals);
    at.take(fact.key);
    at.take("=");
    const auto quoted = at.take_quoted();
    fact.value = quoted ? *quoted : at.take_word();
    return fact;
}

bool apply_fabric_fact(const Fact& fact, Fabric& fabric) {
    Options& options = fabric.options;
    if (fact.key == "name") {
        fabric.name = fact.value;
        return true;
    }
    if (fact.key == "link_layer") {
        const bool ethernet = fact.value == "ethernet";
        options.link_layer = ethernet ? LinkLayer::kEthernet : LinkLayer::kInfiniband;
        return ethernet || fact.value == "infiniband";
    }
    const auto number = whole(fact.value);
    if (!number) return false;
    if (fact.key == "mtu" && *number >= 256 && *number <= 4096) {
        options.mtu = {*number};
    } else if (fact.key == "lanes" && *number >= 1 && *number <= 8) {
        options.data_lanes = static_cast<std::uint32_t>(*number);
    } else if (fact.key == "speed" && *number > 0) {
        options.speed = {*number};
    } else if (fact.key == "buffer") {
        options.buffer = {*number};
    } else if (fact.key == "delay") {
        options.delay = {*number};
    } else {
        return false;
    }
    return true;
}

bool apply_node_fact(const Fact& fact, Node& node) {
    if (fact.key == "name") {
        node.name = fact.value;
        return true;
    }
    if (fact.key == "host") {
        node.host = fact.value;
        return true;
    }
    const auto number = whole(fact.value);
    if (!number || *number > 0xffffffffLL) return false;
    const auto label = static_cast<std::uint32_t>(*number);
    if (fact.key == "tier") {
        node.tier = label;
    } else if (fact.key == "pod") {
        node.pod = label;
    } else if (fact.key == "rail") {
        node.rail = label;
    } else if (fact.key == "su") {
        node.su = label;
    } else {
        return false;
    }
    return true;
}

bool apply_port_fact(const Fact& fact, EndPort& end_port) {
    LineCursor at(fact.value);
    if (fact.key == "guid") {
        const auto guid = at.take_hex();
        if (guid) end_port.guid = *guid;
        return guid && at.at_end();
    }
    const auto number = at.take_number();
    if (!number || !at.at_end()) return false;
    if (fact.key == "lid") {
        end_port.lid = *number;
    } else if (fact.key == "lmc" && *number <= 7) {
        end_port.lmc = static_cast<std::uint8_t>(*number);
    } else {
        return false;
    }
    return true;
}

}  // namespace weir::topology

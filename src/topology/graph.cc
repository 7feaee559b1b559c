// SPDX-License-Identifier: Apache-2.0
#include "topology/graph.h"

#include <fmt/core.h>

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "base/check.h"

namespace weir::topology {

namespace {

constexpr std::size_t kNameLengthLimit = 128;
constexpr std::size_t kDescriptionLimit = 64;  // Bytes of IBTA's NodeDescription attribute.

bool is_printable(std::string_view text) {
    return std::all_of(text.begin(), text.end(),
                       [](unsigned char c) { return c >= ' ' && c != '"' && c != 0x7f; });
}

tl::unexpected<Error> invalid(std::string context, std::string hint = {}) {
    return fail(ErrorCode::kInvalid, std::move(context), std::move(hint));
}

Result<void> check_end_ports(const Node& node) {
    const std::size_t expected = node.is_switch() ? 1 : node.port_count;
    if (node.end_ports.size() != expected) {
        return invalid(fmt::format("node \"{}\": {} end ports given, {} expected", node.name,
                                   node.end_ports.size(), expected));
    }
    return {};
}

Result<void> check_node(const Node& node) {
    if (node.name.empty() || node.name.size() > kNameLengthLimit || !is_printable(node.name)) {
        return invalid(
            fmt::format("node of GUID {:#018x}: its name is empty, longer than {} or has "
                        "quotes or control characters",
                        node.guid, kNameLengthLimit));
    }
    if (node.description.size() > kDescriptionLimit || !is_printable(node.description) ||
        node.host.size() > kNameLengthLimit || !is_printable(node.host)) {
        return invalid(
            fmt::format("node \"{}\": its description is longer than {}, or it or the "
                        "host has quotes or control characters",
                        node.name, kDescriptionLimit));
    }
    if (node.guid == 0) return invalid(fmt::format("node \"{}\": GUID is 0", node.name));
    if (node.port_count == 0 || node.port_count > kPortLimit) {
        return invalid(fmt::format("node \"{}\": {} ports; a node has 1 to {}", node.name,
                                   node.port_count, kPortLimit));
    }
    if (node.is_switch() != node.host.empty()) {
        return invalid(
            fmt::format("node \"{}\": {}", node.name,
                        node.is_switch() ? "a switch has no host" : "an HCA has a host"));
    }
    return check_end_ports(node);
}

Result<void> check_nodes(const Fabric& fabric) {
    if (fabric.nodes.size() > kNodeLimit) {
        return invalid(fmt::format("{} nodes; the limit is {}", fabric.nodes.size(), kNodeLimit));
    }
    if (fabric.name.size() > kNameLengthLimit || !is_printable(fabric.name))
        return invalid("the fabric's name is too long or has quotes or control characters");
    std::unordered_set<std::string_view> names;
    std::unordered_map<std::uint64_t, NodeIndex> guids;
    for (NodeIndex i = 0; i < fabric.nodes.size(); ++i) {
        const Node& node = fabric.nodes[i];
        WEIR_TRY_VOID(check_node(node));
        if (!names.insert(node.name).second) {
            return invalid(fmt::format("two nodes are named \"{}\"", node.name));
        }
        const auto [other, fresh] = guids.emplace(node.guid, i);
        if (!fresh) {
            return invalid(fmt::format("nodes \"{}\" and \"{}\" have the same GUID {:#018x}",
                                       fabric.nodes[other->second].name, node.name, node.guid));
        }
    }
    return {};
}

Result<void> check_end(const Fabric& fabric, const Link& link, PortId end) {
    if (end.node >= fabric.nodes.size()) {
        return invalid(fmt::format("link \"{}\": no node at one end", link.name));
    }
    const Node& node = fabric.nodes[end.node];
    if (end.port == 0 || end.port > node.port_count) {
        return invalid(fmt::format("port \"{}:{}\" does not exist ({} has ports 1 ... {})",
                                   node.name, end.port, node.name, node.port_count));
    }
    return {};
}

bool is_width(std::uint32_t width) {
    return width == 1 || width == 2 || width == 4 || width == 8 || width == 12;
}

Result<void> check_links(const Fabric& fabric) {
    std::vector<std::size_t> first(fabric.nodes.size() + 1, 0);
    for (std::size_t i = 0; i < fabric.nodes.size(); ++i)
        first[i + 1] = first[i] + fabric.nodes[i].port_count + 1;
    std::vector<LinkIndex> user(first.back(), kNoIndex);
    for (LinkIndex i = 0; i < fabric.links.size(); ++i) {
        const Link& link = fabric.links[i];
        if (!is_width(link.width)) {
            return invalid(fmt::format("link \"{}\": width {}; it is 1, 2, 4, 8 or 12", link.name,
                                       link.width));
        }
        if (link.speed.value <= 0 || link.delay.value < 0) {
            return invalid(
                fmt::format("link \"{}\": speed or delay is negative or none", link.name));
        }
        for (const PortId end : {link.a, link.b}) {
            WEIR_TRY_VOID(check_end(fabric, link, end));
            LinkIndex& by = user[first[end.node] + end.port];
            if (by == i) {
                return invalid(
                    fmt::format("port \"{}\" is linked to itself", fabric.port_name(end)));
            }
            if (by != kNoIndex) {
                return invalid(fmt::format("port \"{}\" is used by two links, \"{}\" and \"{}\"",
                                           fabric.port_name(end), fabric.links[by].name,
                                           link.name));
            }
            by = i;
        }
    }
    return {};
}

}  // namespace

std::optional<NodeIndex> Fabric::find_node(std::string_view name_or_description) const {
    std::optional<NodeIndex> described;
    std::size_t described_count = 0;
    for (NodeIndex i = 0; i < nodes.size(); ++i) {
        if (nodes[i].name == name_or_description) return i;
        if (nodes[i].description == name_or_description) {
            described = i;
            ++described_count;
        }
    }
    return described_count == 1 ? described : std::nullopt;
}

std::optional<LinkIndex> Fabric::find_link(std::string_view name_or_end) const {
    for (LinkIndex i = 0; i < links.size(); ++i) {
        const Link& link = links[i];
        if (link.name == name_or_end) return i;
        const std::string a = port_name(link.a);
        const std::string b = port_name(link.b);
        if (a == name_or_end || b == name_or_end) return i;
        if (name_or_end.size() == a.size() + b.size() + 1 && name_or_end.starts_with(b) &&
            name_or_end[b.size()] == '-' && name_or_end.ends_with(a))
            return i;
    }
    return std::nullopt;
}

std::size_t Fabric::switch_count() const {
    return static_cast<std::size_t>(
        std::count_if(nodes.begin(), nodes.end(), [](const Node& n) { return n.is_switch(); }));
}

std::size_t Fabric::hca_count() const {
    return nodes.size() - switch_count();
}

std::string Fabric::port_name(PortId end) const {
    return fmt::format("{}:{}", nodes[end.node].name, end.port);
}

void Fabric::finish_links() {
    const auto rank = [this](PortId end) {
        return std::tuple(nodes[end.node].is_switch(), end.node, end.port);
    };
    for (Link& link : links) {
        WEIR_CHECK(link.a.node < nodes.size() && link.b.node < nodes.size());
        if (rank(link.b) < rank(link.a)) std::swap(link.a, link.b);
        link.name = port_name(link.a) + "-" + port_name(link.b);
    }
    std::sort(links.begin(), links.end(),
              [](const Link& x, const Link& y) { return std::tie(x.a, x.b) < std::tie(y.a, y.b); });
}

Result<void> Fabric::validate() const {
    WEIR_TRY_VOID(check_nodes(*this));
    return check_links(*this);
}

Adjacency::Adjacency(const Fabric& fabric) : first_(fabric.nodes.size() + 1, 0) {
    for (std::size_t i = 0; i < fabric.nodes.size(); ++i)
        first_[i + 1] = first_[i] + fabric.nodes[i].port_count + 1;
    peers_.resize(first_.back());
    for (LinkIndex i = 0; i < fabric.links.size(); ++i) {
        const Link& link = fabric.links[i];
        peers_[first_[link.a.node] + link.a.port] = {link.b.node, link.b.port, i};
        peers_[first_[link.b.node] + link.b.port] = {link.a.node, link.a.port, i};
    }
}

Node make_switch(NodeIndex index, std::string name, PortNumber port_count) {
    Node node;
    node.kind = NodeKind::kSwitch;
    node.description = name;
    node.name = std::move(name);
    node.guid = default_guid(index);
    node.port_count = port_count;
    node.end_ports.push_back({.guid = node.guid});
    return node;
}

Node make_hca(NodeIndex index, std::string name, std::string host, PortNumber port_count) {
    Node node;
    node.kind = NodeKind::kHca;
    node.description = name;
    node.name = std::move(name);
    node.host = std::move(host);
    node.guid = default_guid(index);
    node.port_count = port_count;
    for (PortNumber port = 1; port <= port_count; ++port)
        node.end_ports.push_back({.guid = node.guid + port});
    return node;
}

std::uint32_t default_width(BitsPerSecond speed) {
    // Rates that no four lanes of InfiniBand add up to, but one or twelve do.
    constexpr std::int64_t kGiga = 1'000'000'000;
    switch (speed.value) {
        case 5 * kGiga / 2:
        case 5 * kGiga:
        case 25 * kGiga:
        case 50 * kGiga:
            return 1;
        default:
            return 4;
    }
}

}  // namespace weir::topology

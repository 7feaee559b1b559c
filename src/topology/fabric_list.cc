// SPDX-License-Identifier: Apache-2.0
// The explicit list: `topology: {nodes: ..., links: ...}`.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <unordered_map>

#include "topology/address.h"
#include "topology/fabric_decode.h"
#include "topology/nearest_word.h"
#include "topology/quantity.h"

namespace weir::topology {

namespace {

bool is_name(std::string_view text) {
    return !text.empty() && text.size() <= 63 && std::all_of(text.begin(), text.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '_' || c == '.' || c == '-';
    });
}

class ListDecoder {
  public:
    ListDecoder(std::string_view file, const Options& options) : file_(file) {
        fabric_.options = options;
    }

    Result<Fabric> decode(const YAML::Node& node) {
        WEIR_TRY(const YamlMap map, YamlMap::open(node, file_, "topology", kTopologyKeys));
        WEIR_TRY(const YAML::Node nodes, map.require("nodes"));
        WEIR_TRY_VOID(decode_nodes(nodes));
        if (const auto links = map.find("links")) {
            WEIR_TRY_VOID(decode_links(*links));
        }
        settle_port_counts();
        for (const auto& given : addresses_) {
            WEIR_TRY_VOID(decode_addresses(given));
        }
        WEIR_TRY_VOID(check_default_addresses());
        fabric_.finish_links();
        if (const auto valid = fabric_.validate(); !valid)
            return yaml_error(file_, node, valid.error());
        return std::move(fabric_);
    }

  private:
    Result<void> decode_nodes(const YAML::Node& nodes) {
        if (!nodes.IsMap()) return yaml_error(file_, nodes, "nodes is not a mapping");
        for (const auto& item : nodes) {
            if (!item.first.IsScalar() || !is_name(item.first.Scalar())) {
                return yaml_error(file_, item.first,
                                  "a node's name is up to 63 letters, digits, \"-\", \"_\", \".\"");
            }
            WEIR_TRY_VOID(decode_node(item.first, item.second));
        }
        return {};
    }

    Result<bool> decode_is_switch(const YamlMap& map) const {
        WEIR_TRY(const std::string kind, map.require_text("kind"));
        if (kind == "weir_switch") return true;
        if (kind == "weir_host") return false;
        constexpr std::array<std::string_view, 2> kKinds{"weir_switch", "weir_host"};
        const std::string_view nearest = nearest_word(kind, kKinds);
        return yaml_error(file_, *map.find("kind"), "kind is neither weir_switch nor weir_host",
                          nearest.empty() ? "" : fmt::format("did you mean \"{}\"?", nearest));
    }

    Result<void> decode_node(const YAML::Node& key, const YAML::Node& value) {
        const std::string& name = key.Scalar();
        WEIR_TRY(const YamlMap map, YamlMap::open(value, file_, "a node", kNodeKeys));
        WEIR_TRY(const bool is_switch, decode_is_switch(map));
        WEIR_TRY(const std::uint32_t ports, map.count("ports", 0, 1, kPortLimit));
        WEIR_TRY(const std::uint32_t hcas, map.count("hcas", 1, 1, 1024));
        if (is_switch && map.has("hcas"))
            return yaml_error(file_, *map.find("hcas"), "a switch has no \"hcas\"");
        WEIR_TRY(const std::string description, map.text("description", ""));
        Node labels;
        if (const auto given = map.find("labels")) {
            WEIR_TRY_VOID(decode_labels(*given, labels));
        }
        std::uint64_t guid = 0;
        if (const auto given = map.find("guid")) {
            if (hcas > 1) return yaml_error(file_, *given, "one \"guid\" for several HCAs");
            constexpr std::uint64_t kGuidMax = 0xffffffffffffff00ULL;
            WEIR_TRY(guid, yaml_number(file_, *given, "guid", 1, kGuidMax));
        }
        if (const auto given = map.find("addresses")) {
            if (is_switch) return yaml_error(file_, *given, "a switch has no \"addresses\"");
            addresses_.push_back({static_cast<NodeIndex>(fabric_.nodes.size()), hcas, *given});
        }
        for (std::uint32_t i = 0; i < hcas; ++i) {
            const std::string full = hcas == 1 ? name : fmt::format("{}/{}", name, i);
            const auto index = static_cast<NodeIndex>(fabric_.nodes.size());
            if (!by_name_.emplace(full, index).second)
                return yaml_error(file_, key, fmt::format("node \"{}\" given twice", full));
            if (index >= kNodeLimit)
                return yaml_error(file_, key, fmt::format("more than {} nodes", kNodeLimit));
            Node node =
                is_switch ? make_switch(index, full, ports) : make_hca(index, full, name, ports);
            if (guid != 0) set_guid(node, guid);
            if (!description.empty()) node.description = description;
            node.tier = labels.tier;
            node.pod = labels.pod;
            node.rail = labels.rail ? labels.rail : (hcas > 1 ? std::optional(i) : std::nullopt);
            node.su = labels.su;
            fabric_.nodes.push_back(std::move(node));
        }
        return {};
    }

    /// The addresses that a file gives to a host, to be read once its ports are known.
    struct GivenAddresses {
        NodeIndex first;
        std::uint32_t hcas;
        YAML::Node list;
    };

    /// The n-th IPv4 address of the list is the n-th port's of the host, and so with IPv6.
    Result<void> decode_addresses(const GivenAddresses& given) {
        if (!given.list.IsSequence())
            return yaml_error(file_, given.list, "addresses is not a list of IP addresses");
        std::vector<EndPort*> ports;
        for (NodeIndex i = given.first; i < given.first + given.hcas; ++i)
            for (EndPort& port : fabric_.nodes[i].end_ports)
                ports.push_back(&port);
        std::size_t ipv4_count = 0;
        std::size_t ipv6_count = 0;
        for (const auto& item : given.list) {
            WEIR_TRY(const std::string text, yaml_text(file_, item, "an address"));
            const auto address = parse_address(text);
            if (!address) return yaml_error(file_, item, address.error());
            const bool is_ipv4 = address->index() == 0;
            auto& count = is_ipv4 ? ipv4_count : ipv6_count;
            if (count == ports.size())
                return yaml_error(file_, item, "more addresses than the host has ports");
            EndPort& port = *ports[count++];
            if (is_ipv4)
                port.ipv4 = std::get<Ipv4>(*address);
            else
                port.ipv6 = std::get<Ipv6>(*address);
            WEIR_TRY_VOID(claim_address(item, *address));
        }
        return {};
    }

    Result<void> claim_address(const YAML::Node& item, const std::variant<Ipv4, Ipv6>& address) {
        const auto text = std::visit([](const auto& a) { return to_text(a); }, address);
        const auto [user, fresh] = address_users_.emplace(text, item);
        if (fresh) return {};
        return yaml_error(
            file_, item,
            fmt::format("address {} given already, at {}", text, yaml_place(file_, user->second)));
    }

    /// No address that the file gives is one that another port has by default.
    Result<void> check_default_addresses() const {
        if (address_users_.empty()) return {};
        std::uint32_t ordinal = 0;
        for (const Node& node : fabric_.nodes) {
            if (node.is_switch()) continue;
            for (const EndPort& port : node.end_ports) {
                const auto ipv4 = port.ipv4 == Ipv4{} ? to_text(default_ipv4(ordinal)) : "";
                const auto ipv6 = port.ipv6 == Ipv6{} ? to_text(default_ipv6(ordinal)) : "";
                ++ordinal;
                for (const auto& text : {ipv4, ipv6}) {
                    const auto user = address_users_.find(text);
                    if (user == address_users_.end()) continue;
                    return yaml_error(
                        file_, user->second,
                        fmt::format("address {} is that of \"{}\", which is given none", text,
                                    node.name));
                }
            }
        }
        return {};
    }

    static void set_guid(Node& node, std::uint64_t guid) {
        node.guid = guid;
        for (std::size_t i = 0; i < node.end_ports.size(); ++i)
            node.end_ports[i].guid = node.is_switch() ? guid : guid + i + 1;
    }

    Result<void> decode_labels(const YAML::Node& value, Node& labels) const {
        WEIR_TRY(const YamlMap map, YamlMap::open(value, file_, "labels", kLabelKeys));
        WEIR_TRY(labels.tier, map.find_count("weir-tier", 0, kNodeLimit));
        WEIR_TRY(labels.pod, map.find_count("weir-pod", 0, kNodeLimit));
        WEIR_TRY(labels.rail, map.find_count("weir-rail", 0, kNodeLimit));
        WEIR_TRY(labels.su, map.find_count("weir-su", 0, kNodeLimit));
        return {};
    }

    Result<void> decode_links(const YAML::Node& links) {
        if (!links.IsSequence()) return yaml_error(file_, links, "links is not a list");
        for (const auto& item : links) {
            WEIR_TRY_VOID(decode_link(item));
        }
        return {};
    }

    Result<void> decode_link(const YAML::Node& item) {
        WEIR_TRY(const YamlMap map, YamlMap::open(item, file_, "a link", kLinkKeys));
        WEIR_TRY(const YAML::Node ends, map.require("endpoints"));
        if (!ends.IsSequence() || ends.size() != 2) {
            return yaml_error(file_, ends, "endpoints is not a list of two ports",
                              "write endpoints: [\"s0:1\", \"h0:1\"]");
        }
        Link link;
        WEIR_TRY(link.a, decode_end(ends[0]));
        WEIR_TRY(link.b, decode_end(ends[1]));
        WEIR_TRY(link.speed, decode_rate(map, "speed", fabric_.options.speed));
        WEIR_TRY(link.delay, decode_delay(map, "delay", fabric_.options.delay));
        WEIR_TRY(link.width, map.count("width", default_width(link.speed), 1, 12));
        if (link.width != 1 && link.width != 2 && link.width != 4 && link.width != 8 &&
            link.width != 12)
            return yaml_error(file_, *map.find("width"), "width is none of 1, 2, 4, 8, 12");
        fabric_.links.push_back(link);
        return {};
    }

    /// "s0:1". Claims the port for the link.
    Result<PortId> decode_end(const YAML::Node& node) {
        WEIR_TRY(const std::string text, yaml_text(file_, node, "an endpoint"));
        const std::size_t colon = text.rfind(':');
        PortNumber port = 0;
        if (colon != std::string::npos) {
            const char* const end = text.data() + text.size();
            const auto [stop, failure] = std::from_chars(text.data() + colon + 1, end, port);
            if (failure != std::errc{} || stop != end) port = 0;
        }
        if (port == 0) {
            return yaml_error(file_, node, fmt::format("endpoint \"{}\" is not node:port", text),
                              "ports are numbered from 1: \"s0:1\"");
        }
        const std::string name = text.substr(0, colon);
        const auto found = by_name_.find(name);
        if (found == by_name_.end()) return unknown_node(node, name);
        const Node& owner = fabric_.nodes[found->second];
        const PortNumber limit = owner.port_count == 0 ? kPortLimit : owner.port_count;
        if (port > limit) {
            return yaml_error(file_, node,
                              fmt::format("port \"{}\" does not exist ({} has ports 1 ... {})",
                                          text, name, limit));
        }
        const PortId end{found->second, port};
        const auto [user, fresh] = used_.emplace(end, yaml_place(file_, node));
        if (!fresh) {
            return yaml_error(
                file_, node,
                fmt::format("port \"{}\" is linked already, at {}", text, user->second));
        }
        return end;
    }

    tl::unexpected<Error> unknown_node(const YAML::Node& node, const std::string& name) const {
        if (by_name_.contains(name + "/0")) {
            return yaml_error(file_, node, fmt::format("host \"{}\" has several HCAs", name),
                              fmt::format("name one of them: \"{}/0\"", name));
        }
        constexpr std::size_t kSuggestLimit = 4096;  // Else a list of 100,000 would take a second.
        std::vector<std::string_view> names;
        for (const Node& known : fabric_.nodes) {
            if (names.size() < kSuggestLimit) names.push_back(known.name);
        }
        const std::string_view nearest = nearest_word(name, names);
        return yaml_error(file_, node, fmt::format("no node \"{}\"", name),
                          nearest.empty() ? "" : fmt::format("did you mean \"{}\"?", nearest));
    }

    /// Nodes whose `ports` was not given have as many as the links use.
    void settle_port_counts() {
        std::vector<PortNumber> highest(fabric_.nodes.size(), 1);
        for (const auto& [end, place] : used_)
            highest[end.node] = std::max(highest[end.node], end.port);
        for (NodeIndex i = 0; i < fabric_.nodes.size(); ++i) {
            Node& node = fabric_.nodes[i];
            if (node.port_count != 0) continue;
            node.port_count = highest[i];
            if (node.is_switch()) continue;
            node.end_ports.resize(node.port_count);
            for (PortNumber port = 1; port <= node.port_count; ++port)
                node.end_ports[port - 1].guid = node.guid + port;
        }
    }

    std::string file_;
    Fabric fabric_;
    std::unordered_map<std::string, NodeIndex> by_name_;
    std::map<PortId, std::string> used_;
    std::vector<GivenAddresses> addresses_;
    std::map<std::string, YAML::Node> address_users_;
};

}  // namespace

Result<Fabric> decode_topology(const YAML::Node& node, std::string_view file,
                               const Options& options) {
    return ListDecoder(file, options).decode(node);
}

}  // namespace weir::topology

// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <iterator>

#include "topology/ib_rate.h"
#include "topology/netlist.h"
#include "topology/netlist_line.h"

namespace weir::topology {

namespace {

using Out = std::back_insert_iterator<std::string>;

/// "4xHDR", and what that leaves out: the exact speed where no name has it, the delay.
void write_rate(Out out, const Link& link, const Options& options) {
    const LaneRate* best = kLaneRates.data();
    for (const LaneRate& rate : kLaneRates) {
        if (rate.bits_per_second * link.width <= link.speed.value) best = &rate;
    }
    fmt::format_to(out, "{}x{}", link.width, best->name);
    if (best->bits_per_second * link.width != link.speed.value)
        fmt::format_to(out, " weir-speed={}", link.speed.value);
    if (link.delay != options.delay) fmt::format_to(out, " weir-delay={}", link.delay.value);
}

void write_header(Out out, const Fabric& fabric) {
    const Options& o = fabric.options;
    fmt::format_to(out, "#\n# Topology file: written by weir\n#\n");
    fmt::format_to(out,
                   "# weir fabric name=\"{}\" link_layer={} mtu={} lanes={} speed={} buffer={} "
                   "delay={}\n",
                   fabric.name, o.link_layer == LinkLayer::kEthernet ? "ethernet" : "infiniband",
                   o.mtu.value, o.data_lanes, o.speed.value, o.buffer.value, o.delay.value);
}

void write_node_facts(Out out, const Node& node, const std::string& id) {
    std::string facts;
    const auto label = [&](std::string_view key, const std::optional<std::uint32_t>& value) {
        if (value) facts += fmt::format(" {}={}", key, *value);
    };
    if (node.name != id) facts += fmt::format(" name=\"{}\"", node.name);
    if (!node.is_switch() && node.host != host_of(node.description, node.name))
        facts += fmt::format(" host=\"{}\"", node.host);
    label("tier", node.tier);
    label("pod", node.pod);
    label("rail", node.rail);
    label("su", node.su);
    if (!facts.empty()) fmt::format_to(out, "# weir node{}\n", facts);
}

void write_node(Out out, const Node& node) {
    const std::string id = netlist_id(node.is_switch(), node.guid);
    fmt::format_to(out, "\nvendid=0x0\ndevid=0x0\nsysimgguid={:#x}\n", node.guid);
    if (node.is_switch()) {
        const EndPort& own = node.end_ports[0];
        fmt::format_to(out, "switchguid={:#x}({:x})\n", node.guid, own.guid);
        fmt::format_to(out, "Switch\t{} \"{}\"\t\t# \"{}\" base port 0 lid {} lmc {}\n",
                       node.port_count, id, node.description, own.lid, own.lmc);
    } else {
        fmt::format_to(out, "caguid={:#x}\n", node.guid);
        fmt::format_to(out, "Ca\t{} \"{}\"\t\t# \"{}\"\n", node.port_count, id, node.description);
    }
    write_node_facts(out, node, id);
}

void write_port(Out out, const Fabric& fabric, PortId end, const Peer& peer) {
    const Node& node = fabric.nodes[end.node];
    const Node& far = fabric.nodes[peer.node];
    const EndPort& far_end = far.end_ports[far.is_switch() ? 0 : peer.port - 1];
    fmt::format_to(out, "[{}]", end.port);
    if (!node.is_switch()) fmt::format_to(out, "({:x}) ", node.end_ports[end.port - 1].guid);
    fmt::format_to(out, "\t\"{}\"[{}]", netlist_id(far.is_switch(), far.guid), peer.port);
    if (!far.is_switch()) fmt::format_to(out, "({:x}) ", far_end.guid);
    fmt::format_to(out, "\t\t# ");
    if (!node.is_switch()) {
        const EndPort& own = node.end_ports[end.port - 1];
        fmt::format_to(out, "lid {} lmc {} ", own.lid, own.lmc);
    }
    fmt::format_to(out, "\"{}\" lid {} ", far.description, far_end.lid);
    write_rate(out, fabric.links[peer.link], fabric.options);
    fmt::format_to(out, "\n");
}

}  // namespace

std::string format_netlist(const Fabric& fabric) {
    const Adjacency adjacency(fabric);
    std::string text;
    const Out out = std::back_inserter(text);
    write_header(out, fabric);
    for (NodeIndex i = 0; i < fabric.nodes.size(); ++i) {
        const Node& node = fabric.nodes[i];
        write_node(out, node);
        for (PortNumber port = 1; port <= node.port_count; ++port) {
            const Peer& peer = adjacency.peer(i, port);
            if (peer.connected()) {
                write_port(out, fabric, {i, port}, peer);
            } else if (!node.is_switch()) {
                const EndPort& own = node.end_ports[port - 1];
                fmt::format_to(out, "# weir port {} guid={:#x} lid={} lmc={}\n", port, own.guid,
                               own.lid, own.lmc);
            }
        }
    }
    return text;
}

}  // namespace weir::topology

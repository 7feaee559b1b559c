// SPDX-License-Identifier: Apache-2.0
// weir topology: looks at fabric files without bringing anything up.
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "lab/fabric_source.h"
#include "routing/router.h"
#include "routing/verify.h"
#include "session.h"
#include "table.h"
#include "topology/netlist.h"
#include "topology/quantity.h"

namespace weir::cli {
namespace {

void print_notes(const lab::FabricSource& source) {
    for (const auto& note : source.notes) {
        print_warning(note);
    }
}

/// One row per kind of node: switches by tier, and the hosts' HCAs.
int show(const std::string& file, const std::string& format) {
    const auto source = lab::read_fabric_source(file);
    if (!source) return report(source.error());
    const auto& fabric = source->fabric;
    struct Group {
        std::uint64_t nodes = 0;
        std::uint64_t ports = 0;
        std::uint64_t cabled = 0;
        std::set<std::string> rates;
    };
    std::map<std::string, Group> groups;
    const auto group_of = [&](topology::NodeIndex n) -> Group& {
        const auto& node = fabric.nodes[n];
        if (!node.is_switch()) return groups["hca"];
        return groups[node.tier ? fmt::format("switch tier {}", *node.tier) : "switch"];
    };
    for (topology::NodeIndex n = 0; n < fabric.nodes.size(); ++n) {
        ++group_of(n).nodes;
        group_of(n).ports += fabric.nodes[n].port_count;
    }
    for (const auto& link : fabric.links) {
        for (const auto end : {link.a, link.b}) {
            ++group_of(end.node).cabled;
            group_of(end.node).rates.insert(topology::format_rate(link.speed));
        }
    }
    Table table;
    table.schema = "weir.topology.show/v1";
    table.items = "groups";
    table.columns = {{"kind", "KIND"},
                     {"nodes", "NODES"},
                     {"ports", "PORTS"},
                     {"ports_cabled", "CABLED"},
                     {"speeds", "SPEEDS"}};
    for (const auto& [kind, group] : groups) {
        std::string rates;
        for (const auto& rate : group.rates)
            rates += (rates.empty() ? "" : ",") + rate;
        table.rows.push_back({kind, group.nodes, group.ports, group.cabled, rates});
    }
    print_table(table, format);
    return kOk;
}

int check(const std::string& file) {
    const auto source = lab::read_fabric_source(file);
    if (!source) return report(source.error());
    print_notes(*source);
    const auto tables = routing::route(source->fabric);
    if (!tables) return report(tables.error());
    const auto verified = routing::verify(source->fabric, *tables);
    if (!verified) {
        report(verified.error());
        return kNo;
    }
    const auto& fabric = source->fabric;
    fmt::print("{}: good: {} switches, {} HCAs, {} links\n", file, fabric.switch_count(),
               fabric.hca_count(), fabric.links.size());
    fmt::print(
        "every HCA reaches every other, over at most {} switches, and nothing can deadlock\n",
        verified->switches_max);
    if (verified->channels > 0) {
        fmt::print(
            "pairs over one cable: {} to {}, {:.1f} on average; busiest out of {}\n",
            verified->load_min, verified->load_max,
            static_cast<double>(verified->load_sum) / static_cast<double>(verified->channels),
            verified->busiest);
    }
    return kOk;
}

int convert(const std::string& file) {
    const auto source = lab::read_fabric_source(file);
    if (!source) return report(source.error());
    print_notes(*source);
    fmt::print("{}", topology::format_netlist(source->fabric));
    return kOk;
}

CLI::Option* add_file(CLI::App& command, std::string& file) {
    return command.add_option("FILE", file, "fabric.yaml, or what ibnetdiscover prints")
        ->required()
        ->type_name("");
}

}  // namespace

void add_topology_commands(CLI::App& app, Session& session) {
    auto* topology = app.add_subcommand("topology", "Fabric files");
    topology->require_subcommand(1);
    auto file = std::make_shared<std::string>();
    auto format = std::make_shared<std::string>("table");
    auto* shown = add_command(*topology, "show", "What a file describes", session,
                              [file, format] { return show(*file, *format); });
    add_file(*shown, *file);
    add_format_option(*shown, *format);
    auto* checked = add_command(*topology, "check", "Whether a file is good and fully connected",
                                session, [file] { return check(*file); });
    add_file(*checked, *file);
    auto to = std::make_shared<std::string>("ibnetdiscover");
    auto* converted = add_command(*topology, "convert", "Print a file in another form", session,
                                  [file] { return convert(*file); });
    add_file(*converted, *file);
    converted->add_option("--to", *to, "The form wanted")
        ->check(CLI::IsMember({"ibnetdiscover"}))
        ->capture_default_str()
        ->type_name("FORM");
}

}  // namespace weir::cli

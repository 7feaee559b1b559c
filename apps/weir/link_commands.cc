// SPDX-License-Identifier: Apache-2.0
// weir link: the cables of a fabric, their traffic, and taking them down and up.
#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "lab/arena_view.h"
#include "session.h"
#include "table.h"
#include "topology/quantity.h"

namespace weir::cli {
namespace {

using Show = Column::Show;

/// One direction of a cable is what arrived in the buffers at its far end.
void add_direction(std::vector<Cell>& row, const lab::PortTraffic& traffic) {
    row.insert(row.end(),
               {traffic.packets, traffic.bytes, traffic.stalls, traffic.waits, traffic.discards});
}

std::vector<Cell> link_row(arena::Arena arena, lab::LinkView link) {
    const auto& port = arena.port(link.a);
    const bool up = port.up.load(std::memory_order_relaxed) != 0;
    const auto speed =
        topology::format_rate({static_cast<std::int64_t>(port.speed_bits_per_second)});
    const auto rate = arena.arbiter(link.a).rate_bits_per_second.load(std::memory_order_relaxed);
    std::vector<Cell> row{lab::link_name(arena, link),
                          std::string(up ? "up" : "down"),
                          speed,
                          port.speed_bits_per_second,
                          lab::rate_text(rate),
                          rate == 0 ? Cell() : Cell(rate),
                          std::uint64_t{port.width},
                          port.link_downed.load(std::memory_order_relaxed)};
    add_direction(row, lab::traffic_into(arena, link.b));
    add_direction(row, lab::traffic_into(arena, link.a));
    return row;
}

Table link_table() {
    Table table;
    table.schema = "weir.link.list/v1";
    table.items = "links";
    table.columns = {{"name", "LINK"},
                     {"state", "STATE"},
                     {"speed", "SPEED"},
                     {"speed_bits_per_second", "", Show::kJsonOnly},
                     {"rate", "RATE"},
                     {"rate_bits_per_second", "", Show::kJsonOnly},
                     {"width_lanes", "WIDTH", Show::kWide},
                     {"downed", "DOWNED", Show::kWide},
                     {"forward_packets", "PACKETS>"},
                     {"forward_bytes", "BYTES>"},
                     {"forward_stalls", "STALLS>", Show::kWide},
                     {"forward_waits", "WAITS>", Show::kWide},
                     {"forward_discards", "DISCARDS>", Show::kWide},
                     {"backward_packets", "<PACKETS"},
                     {"backward_bytes", "<BYTES"},
                     {"backward_stalls", "<STALLS", Show::kWide},
                     {"backward_waits", "<WAITS", Show::kWide},
                     {"backward_discards", "<DISCARDS", Show::kWide}};
    return table;
}

/// Worst first: what is down, then by name as the fabric has it.
int list(const std::string& name, const std::string& format) {
    return with_fabric(name, [&](runtime::AttachClient& client) {
        const auto arena = client.arena();
        auto links = lab::list_links(arena);
        std::stable_partition(links.begin(), links.end(), [&](const lab::LinkView& link) {
            return arena.port(link.a).up.load(std::memory_order_relaxed) == 0;
        });
        Table table = link_table();
        for (const auto& link : links) {
            table.rows.push_back(link_row(arena, link));
        }
        print_table(table, format);
        return kOk;
    });
}

int set(const std::string& name, const std::vector<std::string>& links, bool up) {
    return with_fabric(name, [&](runtime::AttachClient& client) {
        // All are looked up first, so that a misspelt one changes nothing.
        for (const auto& link : links) {
            if (const auto found = lab::find_link(client.arena(), link); !found) {
                return report(found.error());
            }
        }
        for (const auto& link : links) {
            if (const auto done = client.set_link(link, up); !done) {
                return report(done.error());
            }
            const auto found = lab::find_link(client.arena(), link);
            fmt::print("{} is {}\n", lab::link_name(client.arena(), *found), up ? "up" : "down");
        }
        return static_cast<int>(kOk);
    });
}

int set_rate(const std::string& name, const std::string& link, const std::string& text) {
    std::uint64_t rate = 0;
    if (text != "unlimited") {
        const auto parsed = topology::parse_rate(text);
        if (!parsed || parsed->value <= 0) {
            report(parsed ? Error{ErrorCode::kInvalid, "a rate of nothing is no rate", ""}
                          : parsed.error());
            return kUsage;
        }
        rate = static_cast<std::uint64_t>(parsed->value);
    }
    return with_fabric(name, [&](runtime::AttachClient& client) {
        const auto found = lab::find_link(client.arena(), link);
        if (!found) return report(found.error());
        if (const auto done = client.set_rate(link, rate); !done) return report(done.error());
        fmt::print("{} has rate {}\n", lab::link_name(client.arena(), *found),
                   lab::rate_text(rate));
        return static_cast<int>(kOk);
    });
}

void add_rate(CLI::App& link, Session& session) {
    auto name = std::make_shared<std::string>();
    auto which = std::make_shared<std::string>();
    auto rate = std::make_shared<std::string>();
    auto* command =
        add_command(link, "rate", "Give a cable a rate that is enforced, or none", session,
                    [name, which, rate] { return set_rate(*name, *which, *rate); });
    add_name_option(*command, *name);
    command->add_option("LINK", *which, "A link, h0:1-s0:1, or either of its ends, s0:1")
        ->required()
        ->type_name("");
    command->add_option("RATE", *rate, "10Gbps, or unlimited")->required()->type_name("");
}

void add_setter(CLI::App& link, Session& session, bool up) {
    auto name = std::make_shared<std::string>();
    auto links = std::make_shared<std::vector<std::string>>();
    auto* command =
        add_command(link, up ? "up" : "down", up ? "Plug a cable in again" : "Pull a cable",
                    session, [name, links, up] { return set(*name, *links, up); });
    add_name_option(*command, *name);
    command->add_option("LINK", *links, "A link, h0:1-s0:1, or either of its ends, s0:1")
        ->required()
        ->type_name("");
}

}  // namespace

void add_link_commands(CLI::App& app, Session& session) {
    auto* link = app.add_subcommand("link", "The cables of a fabric");
    link->require_subcommand(1);
    auto name = std::make_shared<std::string>();
    auto format = std::make_shared<std::string>("table");
    auto* command = add_command(*link, "list", "All cables with their traffic each way", session,
                                [name, format] { return list(*name, *format); });
    add_name_option(*command, *name);
    add_format_option(*command, *format, true);
    command->footer(
        "Forward (>) is from the first named end to the second, backward (<) the other "
        "way.");
    add_setter(*link, session, false);
    add_setter(*link, session, true);
    add_rate(*link, session);
}

}  // namespace weir::cli

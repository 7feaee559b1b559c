// SPDX-License-Identifier: Apache-2.0
// weir up, weir down, weir status.
#include <fmt/core.h>

#include <chrono>
#include <memory>

#include "lab/arena_view.h"
#include "lab/lifecycle.h"
#include "session.h"
#include "table.h"

namespace weir::cli {
namespace {

/// Notes on an imported file that are worth showing at once.
constexpr std::size_t kNotesShown = 5;
constexpr int kDownSeconds = 5;

struct UpOptions {
    std::string file;
    std::string name;
    bool foreground = false;
    std::chrono::steady_clock::time_point begin;
    std::string counts;
};

std::string plural(std::size_t count, const char* one, const char* many) {
    return fmt::format("{} {}", count, count == 1 ? one : many);
}

std::string count_hosts_and_switches(const topology::Fabric& fabric) {
    std::vector<std::string_view> hosts;
    for (const auto& node : fabric.nodes) {
        if (!node.is_switch()) hosts.emplace_back(node.host);
    }
    std::sort(hosts.begin(), hosts.end());
    hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
    return fmt::format("{}, {}, {}", plural(hosts.size(), "host", "hosts"),
                       plural(fabric.switch_count(), "switch", "switches"),
                       plural(fabric.links.size(), "link", "links"));
}

void say_up(void* context) {
    const auto& options = *static_cast<UpOptions*>(context);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - options.begin;
    fmt::print("{} is up: {} in {:.3f} s\n", options.name, options.counts, took.count());
    std::fflush(stdout);
}

int up(UpOptions& options) {
    options.begin = std::chrono::steady_clock::now();
    if (options.name.empty()) options.name = "default";
    auto source = lab::read_fabric_source(options.file);
    if (!source) {
        return report(source.error());
    }
    for (std::size_t i = 0; i < std::min(source->notes.size(), kNotesShown); ++i) {
        print_warning(source->notes[i]);
    }
    if (source->notes.size() > kNotesShown) {
        print_warning(fmt::format("{} more notes: weir topology check {}",
                                  source->notes.size() - kNotesShown, options.file));
    }
    options.counts = count_hosts_and_switches(source->fabric);
    const auto outcome =
        lab::bring_up({options.name, *std::move(source), options.foreground}, say_up, &options);
    if (!outcome) {
        return report(outcome.error());
    }
    if (*outcome == lab::UpOutcome::kAlready) {
        fmt::print("{} is already up: {}\n", options.name, options.counts);
    }
    return kOk;
}

int take_down_one(const std::string& name) {
    const auto outcome = lab::take_down(name, kDownSeconds);
    if (!outcome) {
        return report(outcome.error());
    }
    const bool was_up = *outcome == lab::DownOutcome::kDown;
    fmt::print("{} is {}\n", name, was_up ? "down" : "not up");
    return kOk;
}

int down(const std::string& name, bool all) {
    if (!all) {
        return take_down_one(choose_fabric(name));
    }
    const auto fabrics = lab::list_fabrics();
    if (!fabrics) {
        return report(fabrics.error());
    }
    if (fabrics->empty()) {
        fmt::print(stderr, "no fabric is up\n");
    }
    int code = kOk;
    for (const auto& fabric : *fabrics) {
        code = std::max(code, take_down_one(fabric.name));
    }
    return code;
}

std::shared_ptr<Table> programs_of(arena::Arena arena) {
    auto table = std::make_shared<Table>();
    table->items = "programs";
    table->columns = {{"pid", "PID"}, {"host", "HOST"}, {"hca", "HCA"}, {"state", "STATE"}};
    for (const auto& process : lab::list_processes(arena)) {
        const auto& node = arena.node(process.node);
        table->rows.push_back({std::uint64_t{process.pid}, std::string(node.host),
                               std::string(node.name),
                               std::string(process.dead ? "ended" : "attached")});
    }
    return table;
}

std::vector<Cell> status_row(const std::string& name, arena::Arena arena,
                             const std::shared_ptr<Table>& programs) {
    const auto& header = arena.header();
    std::uint64_t switches = 0;
    for (std::uint32_t n = 0; n < header.node_count; ++n) {
        switches += arena.node(n).kind == arena::NodeKind::kSwitch ? 1U : 0U;
    }
    std::uint64_t links_up = 0;
    std::uint64_t links_down = 0;
    for (const auto& link : lab::list_links(arena)) {
        const bool is_up = arena.port(link.a).up.load(std::memory_order_relaxed) != 0;
        ++(is_up ? links_up : links_down);
    }
    return {name,
            std::string("up"),
            std::uint64_t{lab::list_hosts(arena).size()},
            switches,
            links_up,
            links_down,
            std::uint64_t{programs->rows.size()},
            std::uint64_t{header.daemon_pid},
            programs};
}

int status(const std::string& name, const std::string& format) {
    const auto fabrics = lab::list_fabrics();
    if (!fabrics) {
        return report(fabrics.error());
    }
    Table table;
    table.schema = "weir.status/v1";
    table.items = "fabrics";
    table.columns = {{"name", "FABRIC"},
                     {"state", "STATE"},
                     {"hosts", "HOSTS"},
                     {"switches", "SWITCHES"},
                     {"links_up", "LINKS_UP"},
                     {"links_down", "LINKS_DOWN"},
                     {"program_count", "PROGRAMS"},
                     {"daemon_pid", "DAEMON"},
                     {"programs", "", Column::Show::kJsonOnly}};
    std::vector<std::shared_ptr<Table>> programs;
    for (const auto& fabric : *fabrics) {
        if (!name.empty() && fabric.name != name) continue;
        auto client = open_fabric(fabric.name);
        if (fabric.up && client) {
            programs.push_back(programs_of(client->arena()));
            table.rows.push_back(status_row(fabric.name, client->arena(), programs.back()));
        } else {
            std::vector<Cell> row(table.columns.size());
            row[0] = fabric.name;
            row[1] = std::string(fabric.up ? "unreachable" : "ended");
            table.rows.push_back(std::move(row));
        }
    }
    if (!name.empty() && table.rows.empty()) {
        return report_unreachable({ErrorCode::kNotFound,
                                   fmt::format("no fabric \"{}\" is up", name),
                                   fmt::format("start it: weir up FILE --name {}", name)});
    }
    if (table.rows.empty() && format != "json") {
        fmt::print(stderr, "no fabric is up\n");
        print_hint("start one: weir up FILE");
        return kOk;
    }
    print_table(table, format);
    for (const auto& list : programs) {
        if (format != "json" && !list->rows.empty()) {
            fmt::print("\n");
            print_table(*list, format);
        }
    }
    return kOk;
}

}  // namespace

void add_fabric_commands(CLI::App& app, Session& session) {
    auto options = std::make_shared<UpOptions>();
    auto* up_command = add_command(app, "up", "Bring up a fabric on this machine", session,
                                   [options] { return up(*options); });
    up_command->add_option("FILE", options->file, "fabric.yaml, or what ibnetdiscover prints")
        ->required()
        ->type_name("");
    add_name_option(*up_command, options->name);
    up_command->add_flag("--foreground", options->foreground, "Stay, until Ctrl-C");

    auto name = std::make_shared<std::string>();
    auto all = std::make_shared<bool>(false);
    auto* down_command = add_command(app, "down", "Take a fabric down", session,
                                     [name, all] { return down(*name, *all); });
    add_name_option(*down_command, *name);
    down_command->add_flag("--all", *all, "All fabrics of this user")->excludes("--name");

    auto status_name = std::make_shared<std::string>();
    auto format = std::make_shared<std::string>("table");
    auto* status_command =
        add_command(app, "status", "Show the fabrics that are up and who is attached", session,
                    [status_name, format] { return status(*status_name, *format); });
    add_name_option(*status_command, *status_name);
    add_format_option(*status_command, *format);
}

}  // namespace weir::cli

// SPDX-License-Identifier: Apache-2.0
// weir run: programs on hosts of a fabric.
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "lab/arena_view.h"
#include "lab/rank_runner.h"
#include "library_folder.h"
#include "runtime/real/child_process.h"
#include "session.h"
#include "topology/nearest_word.h"

namespace weir::cli {
namespace {

constexpr std::uint32_t kRanksMax = 1024;
/// Where the client of a pair finds its server: both run on this machine.
constexpr const char* kServerAddress = "127.0.0.1";
// As shells have it.
constexpr int kCannotRun = 126;
constexpr int kNoSuchProgram = 127;

struct RunOptions {
    std::string name;
    std::uint32_t ranks = 0;
    std::vector<std::string> hosts;
    bool pair = false;
    bool quiet_labels = false;
};

std::vector<std::string> split(const std::string& word) {
    std::vector<std::string> parts(1);
    for (const char c : word) {
        if (c == ',') {
            parts.emplace_back();
        } else {
            parts.back() += c;
        }
    }
    return parts;
}

runtime::Program program_for(const std::vector<std::string>& words, const std::string& fabric,
                             const std::string& host, std::size_t rank) {
    runtime::Program program;
    program.words = words;
    program.environment = {
        {"WEIR_FABRIC", fabric}, {"WEIR_HOST", host}, {"WEIR_RANK", std::to_string(rank)}};
    const std::string folder = library_folder();
    if (runtime::path_exists(folder)) {
        const char* before = std::getenv("LD_LIBRARY_PATH");
        const bool more = before != nullptr && before[0] != '\0';
        program.environment.emplace_back("LD_LIBRARY_PATH", more ? folder + ":" + before : folder);
    }
    return program;
}

Result<void> check_hosts(const std::vector<std::string>& wanted,
                         const std::vector<std::string>& known) {
    for (const auto& host : wanted) {
        if (std::find(known.begin(), known.end(), host) == known.end()) {
            const std::vector<std::string_view> views(known.begin(), known.end());
            const auto nearest = topology::nearest_word(host, views);
            return fail(ErrorCode::kInvalid, fmt::format("there is no host \"{}\"", host),
                        nearest.empty() ? "see weir host list"
                                        : fmt::format("did you mean \"{}\"?", nearest));
        }
    }
    return {};
}

/// The host of each rank, in order.
Result<std::vector<std::string>> place(const RunOptions& options,
                                       const std::vector<std::string>& known) {
    WEIR_TRY_VOID(check_hosts(options.hosts, known));
    const auto& from = options.hosts.empty() ? known : options.hosts;
    std::size_t count = options.pair ? 2 : std::max<std::size_t>(options.hosts.size(), 1);
    if (options.ranks != 0) {
        count = options.ranks;
    }
    if (from.empty() || (options.pair && from.size() < 2)) {
        return fail(ErrorCode::kInvalid, fmt::format("a pair needs two hosts, and there {} {}",
                                                     from.size() == 1 ? "is" : "are", from.size()));
    }
    std::vector<std::string> hosts;
    for (std::size_t rank = 0; rank < count; ++rank) {
        hosts.push_back(from[rank % from.size()]);
    }
    return hosts;
}

std::string label_of(const std::vector<std::string>& hosts, std::size_t rank) {
    const bool alone = std::count(hosts.begin(), hosts.end(), hosts[rank]) == 1;
    return alone ? fmt::format("[{}] ", hosts[rank]) : fmt::format("[{} {}] ", hosts[rank], rank);
}

int report_start(const Error& error) {
    report(error);
    return error.code == ErrorCode::kNotFound ? kNoSuchProgram : kCannotRun;
}

int run(const RunOptions& options, const std::vector<std::string>& words) {
    if (words.empty()) {
        fmt::print(stderr, "error: weir run: no program given\n");
        print_hint("weir run --hosts h0 -- PROGRAM ARGUMENTS");
        return kUsage;
    }
    const std::string fabric = choose_fabric(options.name);
    std::vector<std::string> known;
    if (auto client = open_fabric(fabric)) {
        known = lab::list_hosts(client->arena());
    } else {
        return report_unreachable(client.error());
    }
    const auto hosts = place(options, known);
    if (!hosts) {
        return report(hosts.error());
    }
    if (!runtime::path_exists(library_folder())) {
        print_warning(fmt::format("{} is not there: programs will use the system's verbs library",
                                  library_folder()));
    }
    if (hosts->size() == 1) {
        return report_start(runtime::become(program_for(words, fabric, hosts->front(), 0)));
    }
    std::vector<lab::Rank> ranks;
    for (std::size_t rank = 0; rank < hosts->size(); ++rank) {
        auto program = program_for(words, fabric, (*hosts)[rank], rank);
        if (options.pair && rank == 1) {
            program.words.emplace_back(kServerAddress);
        }
        ranks.push_back(
            {std::move(program), options.quiet_labels ? std::string() : label_of(*hosts, rank)});
    }
    const auto code = lab::RankRunner::run(
        ranks, options.pair ? lab::Together::kServerAndClient : lab::Together::kIndependent);
    return code ? *code : report_start(code.error());
}

}  // namespace

void add_run_command(CLI::App& app, Session& session) {
    auto options = std::make_shared<RunOptions>();
    auto* command = app.add_subcommand("run", "Run a program on hosts of a fabric");
    command->callback([&session, options, command] {
        session.action = [&session, options, command] {
            auto words = command->remaining();
            words.insert(words.end(), session.program.begin(), session.program.end());
            return run(*options, words);
        };
    });
    add_name_option(*command, options->name);
    auto* ranks = command->add_option("-n,--ranks", options->ranks,
                                      "So many ranks, dealt to the hosts in turn");
    ranks->check(CLI::Range(1U, kRanksMax))->type_name("N");
    // One word, taken apart here: a list of words would swallow the program.
    command
        ->add_option_function<std::string>(
            "--hosts", [options](const std::string& word) { options->hosts = split(word); },
            "One rank on each of these hosts")
        ->type_name("H0,H1");
    command
        ->add_flag("--pair", options->pair,
                   "A server, and once it listens a client with the server's address appended")
        ->excludes(ranks);
    command->add_flag("--quiet-labels", options->quiet_labels,
                      "Leave out the host before each line");
    // Otherwise the program's name would be looked for among weir's own options.
    command->fallthrough(false);
    command->prefix_command();

    command->footer(
        "The program comes after \"--\": weir run [OPTIONS] -- PROGRAM [ARGUMENTS]\n\n"
        "Sets WEIR_FABRIC, WEIR_HOST and WEIR_RANK, and puts the drop-in libraries first.\n"
        "A single rank takes weir's place; the output of several is labelled line by line.\n"
        "The exit code is that of the rank that failed first, 128 + n if signal n ended it.\n\n"
        "Examples:\n"
        "  weir run --hosts h0 -- ibv_devinfo\n"
        "  weir run --pair -- ib_write_bw -s 65536\n"
        "  weir run -n 4 -- ./program");
}

}  // namespace weir::cli

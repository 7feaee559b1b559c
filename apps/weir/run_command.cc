// SPDX-License-Identifier: Apache-2.0
// weir run: programs on hosts of a fabric.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>

#include "lab/arena_view.h"
#include "lab/host_tree.h"
#include "lab/rank_runner.h"
#include "library_folder.h"
#include "runtime/real/child_process.h"
#include "runtime/real/runtime_folder.h"
#include "session.h"
#include "topology/nearest_word.h"
#include "version.h"

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
    std::string rank_variable;
    bool pair = false;
    bool quiet_labels = false;
    bool no_device_files = false;
};

/// What MPI's and batch systems' launchers call the rank of the program that they start.
constexpr const char* kRankVariables[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                          "MV2_COMM_WORLD_RANK", "SLURM_PROCID"};

/// Where one rank runs.
struct Place {
    std::string host;
    std::size_t rank;
    std::string device_files;  ///< Its tree; empty if there is none.
};

std::vector<std::string> split(const std::string& word, char separator) {
    std::vector<std::string> parts(1);
    for (const char c : word) {
        if (c == separator) {
            parts.emplace_back();
        } else {
            parts.back() += c;
        }
    }
    return parts;
}

/// `first` before what a variable that is a list has, once.
std::string prepended(const char* variable, const std::string& first) {
    std::string list = first;
    const char* before = std::getenv(variable);
    for (const auto& part : split(before == nullptr ? "" : before, ':')) {
        if (!part.empty() && part != first) list += ":" + part;
    }
    return list;
}

runtime::Program program_for(const std::vector<std::string>& words, const std::string& fabric,
                             const Place& place) {
    runtime::Program program;
    program.words = words;
    program.environment = {{"WEIR_FABRIC", fabric},
                           {"WEIR_HOST", place.host},
                           {"WEIR_RANK", std::to_string(place.rank)}};
    const std::string folder = library_folder();
    if (runtime::path_exists(folder)) {
        program.environment.emplace_back("LD_LIBRARY_PATH", prepended("LD_LIBRARY_PATH", folder));
    }
    const std::string preload = folder + "/libweir-sys.so";
    if (!place.device_files.empty() && runtime::path_exists(preload)) {
        program.environment.emplace_back("WEIR_SYSFS", place.device_files);
        program.environment.emplace_back("LD_PRELOAD", prepended("LD_PRELOAD", preload));
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

/// The rank that a launcher gave to this very process, if it is to count: the variable that the
/// user names, or else one that we know, where nothing says how many ranks to start.
Result<std::optional<std::size_t>> launched_rank(const RunOptions& options) {
    const bool named = !options.rank_variable.empty();
    if (!named && (options.ranks != 0 || options.pair || !options.hosts.empty())) {
        return std::optional<std::size_t>();
    }
    const std::vector<const char*> variables =
        named ? std::vector<const char*>{options.rank_variable.c_str()}
              : std::vector<const char*>(std::begin(kRankVariables), std::end(kRankVariables));
    for (const char* variable : variables) {
        const char* text = std::getenv(variable);
        if (text == nullptr) continue;
        std::size_t rank = 0;
        const char* end = text + std::strlen(text);
        const auto parsed = std::from_chars(text, end, rank);
        if (parsed.ec == std::errc() && parsed.ptr == end && end != text) {
            return std::optional<std::size_t>(rank);
        }
        if (named) {
            return fail(ErrorCode::kInvalid, fmt::format("{} is \"{}\", no rank", variable, text));
        }
    }
    if (named) {
        return fail(ErrorCode::kInvalid, fmt::format("{} is not set", options.rank_variable),
                    "--rank-env is for programs that a launcher starts: mpirun -n 2 weir run "
                    "--rank-env OMPI_COMM_WORLD_RANK -- PROGRAM");
    }
    return std::optional<std::size_t>();
}

/// The ranks to start, in order.
Result<std::vector<Place>> place(const RunOptions& options, const std::vector<std::string>& known) {
    WEIR_TRY_VOID(check_hosts(options.hosts, known));
    WEIR_TRY(const std::optional<std::size_t> launched, launched_rank(options));
    const auto& from = options.hosts.empty() ? known : options.hosts;
    std::size_t count = options.pair ? 2 : std::max<std::size_t>(options.hosts.size(), 1);
    if (options.ranks != 0) {
        count = options.ranks;
    }
    if (from.empty() || (options.pair && from.size() < 2)) {
        return fail(ErrorCode::kInvalid, fmt::format("a pair needs two hosts, and there {} {}",
                                                     from.size() == 1 ? "is" : "are", from.size()));
    }
    if (launched) {
        return std::vector<Place>{{from[*launched % from.size()], *launched, {}}};
    }
    std::vector<Place> places;
    for (std::size_t rank = 0; rank < count; ++rank) {
        places.push_back({from[rank % from.size()], rank, {}});
    }
    return places;
}

/// Without its device files a program still has its devices, so this only warns.
void make_device_files(const std::string& fabric, arena::Arena arena, std::vector<Place>& places) {
    const std::string folder = runtime::runtime_folder_path() + "/" + fabric;
    for (auto& place : places) {
        auto tree = lab::make_host_tree(folder, arena, place.host, kVersion);
        if (!tree) {
            print_warning(tree.error().context);
            return;
        }
        place.device_files = *std::move(tree);
    }
}

std::string label_of(const std::vector<Place>& places, const Place& place) {
    const auto same = [&place](const Place& other) { return other.host == place.host; };
    const bool alone = std::count_if(places.begin(), places.end(), same) == 1;
    return alone ? fmt::format("[{}] ", place.host)
                 : fmt::format("[{} {}] ", place.host, place.rank);
}

int report_start(const Error& error) {
    report(error);
    return error.code == ErrorCode::kNotFound ? kNoSuchProgram : kCannotRun;
}

int run_ranks(const RunOptions& options, const std::vector<std::string>& words,
              const std::string& fabric, const std::vector<Place>& places) {
    std::vector<lab::Rank> ranks;
    for (const auto& place : places) {
        auto program = program_for(words, fabric, place);
        if (options.pair && place.rank == 1) {
            program.words.emplace_back(kServerAddress);
        }
        ranks.push_back(
            {std::move(program), options.quiet_labels ? std::string() : label_of(places, place)});
    }
    const auto code = lab::RankRunner::run(
        ranks, options.pair ? lab::Together::kServerAndClient : lab::Together::kIndependent);
    return code ? *code : report_start(code.error());
}

int run(const RunOptions& options, const std::vector<std::string>& words) {
    if (words.empty()) {
        fmt::print(stderr, "error: weir run: no program given\n");
        print_hint("weir run --hosts h0 -- PROGRAM ARGUMENTS");
        return kUsage;
    }
    const std::string fabric = choose_fabric(options.name);
    auto client = open_fabric(fabric);
    if (!client) {
        return report_unreachable(client.error());
    }
    auto places = place(options, lab::list_hosts(client->arena()));
    if (!places) {
        return report(places.error());
    }
    if (!runtime::path_exists(library_folder())) {
        print_warning(fmt::format("{} is not there: programs will use the system's verbs library",
                                  library_folder()));
    }
    if (!options.no_device_files) {
        make_device_files(fabric, client->arena(), *places);
    }
    if (places->size() == 1) {
        return report_start(runtime::become(program_for(words, fabric, places->front())));
    }
    return run_ranks(options, words, fabric, *places);
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
            "--hosts", [options](const std::string& word) { options->hosts = split(word, ','); },
            "One rank on each of these hosts")
        ->type_name("H0,H1");
    command
        ->add_flag("--pair", options->pair,
                   "A server, and once it listens a client with the server's address appended")
        ->excludes(ranks);
    command
        ->add_option("--rank-env", options->rank_variable,
                     "One rank: the one that this variable says, as a launcher set it")
        ->type_name("VARIABLE")
        ->excludes(ranks)
        ->excludes("--pair");
    command->add_flag(
        "--no-device-files", options->no_device_files,
        "Leave /dev/infiniband and /sys/class/infiniband as they are on this machine");
    command->add_flag("--quiet-labels", options->quiet_labels,
                      "Leave out the host before each line");
    // Otherwise the program's name would be looked for among weir's own options.
    command->fallthrough(false);
    command->prefix_command();

    command->footer(
        "The program comes after \"--\": weir run [OPTIONS] -- PROGRAM [ARGUMENTS]\n\n"
        "Sets WEIR_FABRIC, WEIR_HOST and WEIR_RANK, puts the drop-in libraries first, and shows\n"
        "the host's adapters in /dev/infiniband and /sys/class/infiniband (by LD_PRELOAD).\n"
        "Started by mpirun, srun or the like, it takes the host that is its rank's turn.\n"
        "A single rank takes weir's place; the output of several is labelled line by line.\n"
        "The exit code is that of the rank that failed first, 128 + n if signal n ended it.\n\n"
        "Examples:\n"
        "  weir run --hosts h0 -- ibv_devinfo\n"
        "  weir run --pair -- ib_write_bw -s 65536\n"
        "  weir run -n 4 -- ./program\n"
        "  mpirun -n 4 weir run -- ./mpi_program");
}

}  // namespace weir::cli

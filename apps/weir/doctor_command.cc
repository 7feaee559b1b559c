// SPDX-License-Identifier: Apache-2.0
// weir doctor: does this machine have what Weir needs, and does what is up work? Each check says
// PASS, WARN (works, but slower or with less) or FAIL, and on what evidence.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "lab/arena_view.h"
#include "lab/lifecycle.h"
#include "library_folder.h"
#include "runtime/real/daemonize.h"
#include "runtime/real/probe.h"
#include "runtime/real/runtime_folder.h"
#include "session.h"
#include "table.h"

namespace weir::cli {
namespace {

constexpr std::uint64_t kMemoryWanted = 1ULL << 30U;
constexpr std::uint64_t kMemoryNeeded = 256ULL << 20U;
/// How long a slot may take to be free again after we have let go of it.
constexpr int kReleaseMilliseconds = 1000;

enum class Verdict { kPass, kWarn, kFail };

struct Check {
    std::string stage;
    std::string name;
    Verdict verdict;
    std::string evidence;
};
using Checks = std::vector<Check>;

const char* word_of(Verdict verdict) {
    switch (verdict) {
        case Verdict::kPass:
            return "PASS";
        case Verdict::kWarn:
            return "WARN";
        case Verdict::kFail:
            return "FAIL";
    }
    return "";
}

Verdict judge(bool works, Verdict otherwise) {
    return works ? Verdict::kPass : otherwise;
}

void check_machine(Checks& checks) {
    const char* stage = "machine";
    const auto folder = runtime::make_runtime_folder();
    checks.push_back({stage, "runtime folder", judge(folder.has_value(), Verdict::kFail),
                      folder ? folder->path : folder.error().context});
    const auto add = [&](const char* name, const runtime::Probe& probe, Verdict otherwise,
                         const char* consequence) {
        const std::string evidence =
            probe.works ? probe.evidence : fmt::format("{}: {}", probe.evidence, consequence);
        checks.push_back({stage, name, judge(probe.works, otherwise), evidence});
    };
    add("shared memory", runtime::probe_shared_memory(), Verdict::kFail, "no fabric can be made");
    add("futex", runtime::probe_futex(), Verdict::kFail, "programs cannot sleep");
    add("eventfd", runtime::probe_eventfd(), Verdict::kFail, "no completion channels");
    add("memory copy", runtime::probe_memory_copy(), Verdict::kWarn,
        "large one-sided transfers need their target's help");
    add("userfaultfd", runtime::probe_userfaultfd(), Verdict::kWarn,
        "registering memory is guarded in a slower way");
    const std::uint64_t memory = runtime::available_memory();
    checks.push_back({stage, "memory",
                      memory >= kMemoryWanted   ? Verdict::kPass
                      : memory >= kMemoryNeeded ? Verdict::kWarn
                                                : Verdict::kFail,
                      fmt::format("{} MiB available", memory >> 20U)});
    const unsigned cpus = runtime::usable_cpus();
    checks.push_back(
        {stage, "CPUs", judge(cpus > 1, Verdict::kWarn),
         cpus > 1 ? fmt::format("{} usable", cpus) : "one: programs that poll take turns"});
}

void check_software(Checks& checks) {
    const char* stage = "software";
    const auto library = runtime::probe_library(
        library_folder() + "/libibverbs.so.1",
        {"ibv_get_device_list", "ibv_open_device", "ibv_create_qp", "ibv_reg_mr", "ibv_create_cq",
         "ibv_modify_qp", "ibv_alloc_pd", "ibv_get_device_name"});
    checks.push_back(
        {stage, "verbs drop-in", judge(library.works, Verdict::kFail), library.evidence});
    const std::string perftest = runtime::find_program("ib_write_bw");
    checks.push_back(
        {stage, "perftest", judge(!perftest.empty(), Verdict::kWarn),
         perftest.empty() ? "ib_write_bw is not in PATH: apt install perftest" : perftest});
}

/// Attaches as a program would, looks whether the fabric agrees, and lets go again.
Check try_attaching(const std::string& fabric) {
    const std::string stage = "fabric " + fabric;
    const auto failure = [&](const std::string& why) {
        return Check{stage, "attach", Verdict::kFail, why};
    };
    auto watcher = open_fabric(fabric);
    if (!watcher) return failure(watcher.error().context);
    const auto arena = watcher->arena();
    const auto& header = arena.header();
    std::uint32_t node = 0;
    while (node < header.node_count && arena.node(node).kind != arena::NodeKind::kHca)
        ++node;
    if (node == header.node_count) return failure("it has no HCA");
    std::uint32_t slot = 0;
    {
        auto program = runtime::AttachClient::connect(fabric);
        const auto window = runtime::create_window();
        if (!program || !window) return failure("cannot connect, or no memory for a window");
        const auto identity = program->attach(node, window->get());
        if (!identity) return failure(identity.error().context);
        slot = arena::slot_of(*identity);
        if (arena.process(slot).pid != static_cast<std::uint32_t>(::getpid())) {
            return failure("the fabric does not know who we are");
        }
    }
    for (int waited = 0; arena.process(slot).identity.load() != 0; ++waited) {
        if (waited == kReleaseMilliseconds) return failure("it does not notice that we left");
        runtime::sleep_milliseconds(1);
    }
    return {stage, "attach", Verdict::kPass,
            fmt::format("to {} and away again", arena.node(node).name)};
}

void check_fabric(Checks& checks, const lab::FabricState& fabric) {
    const std::string stage = "fabric " + fabric.name;
    if (!fabric.up) {
        checks.push_back(
            {stage, "daemon", Verdict::kWarn,
             fmt::format("has ended; clean up with weir down --name {}", fabric.name)});
        return;
    }
    checks.push_back(try_attaching(fabric.name));
    if (const auto client = open_fabric(fabric.name)) {
        const auto links = lab::list_links(client->arena());
        const auto down = std::count_if(links.begin(), links.end(), [&](const auto& link) {
            return client->arena().port(link.a).up.load() == 0;
        });
        checks.push_back({stage, "links", judge(down == 0, Verdict::kWarn),
                          fmt::format("{} of {} are down", down, links.size())});
    }
}

std::string colored(const Session& session, Verdict verdict) {
    const char* word = word_of(verdict);
    if (!use_color(session, STDOUT_FILENO)) return word;
    const int color = verdict == Verdict::kPass ? 32 : verdict == Verdict::kWarn ? 33 : 31;
    return fmt::format("\x1b[{}m{}\x1b[0m", color, word);
}

int doctor(const Session& session, const std::string& format) {
    Checks checks;
    check_machine(checks);
    check_software(checks);
    if (const auto fabrics = lab::list_fabrics()) {
        for (const auto& fabric : *fabrics) {
            check_fabric(checks, fabric);
        }
    }
    if (format == "json") {
        Table table{"weir.doctor/v1", "checks", {}, {}};
        table.columns = {{"stage", ""}, {"name", ""}, {"verdict", ""}, {"evidence", ""}};
        for (const auto& check : checks) {
            table.rows.push_back(
                {check.stage, check.name, std::string(word_of(check.verdict)), check.evidence});
        }
        print_table(table, format);
    }
    std::string stage;
    bool failed = false;
    for (const auto& check : checks) {
        failed = failed || check.verdict == Verdict::kFail;
        if (format == "json") continue;
        if (check.stage != stage) fmt::print("{}\n", check.stage);
        stage = check.stage;
        fmt::print("  {}  {:<15} {}\n", colored(session, check.verdict), check.name,
                   check.evidence);
    }
    return failed ? kNo : kOk;
}

}  // namespace

void add_doctor_command(CLI::App& app, Session& session) {
    auto format = std::make_shared<std::string>("table");
    auto* command = add_command(app, "doctor", "Check this machine, and what is up on it", session,
                                [&session, format] { return doctor(session, *format); });
    add_format_option(*command, *format);
    command->footer("Exit code 1 if a check failed.");
}

}  // namespace weir::cli

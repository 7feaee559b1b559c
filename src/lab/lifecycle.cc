// SPDX-License-Identifier: Apache-2.0
#include "lab/lifecycle.h"

#include <fmt/core.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "lab/daemon.h"
#include "routing/router.h"
#include "runtime/real/attach_client.h"
#include "runtime/real/daemonize.h"
#include "runtime/real/event_loop.h"
#include "runtime/real/runtime_folder.h"

namespace weir::lab {
namespace {

constexpr int kPollMilliseconds = 2;
/// How long a killed daemon may take to be gone.
constexpr int kKillMilliseconds = 2000;
/// How long somebody else's `up` of the same fabric is waited for.
constexpr int kComingUpMilliseconds = 10'000;
/// The folder can vanish under us while its fabric goes down; then it is made again, so many times.
constexpr int kClaimAttempts = 50;

struct Claim {
    runtime::Folder folder;
    runtime::FabricLock lock;
    std::string path;  ///< Of the folder, from the root: a daemon works elsewhere.
};

/// The folder of a fabric that is ours to bring up. kBusy if somebody has it.
Result<Claim> claim_folder(const runtime::Folder& runtime_folder, const std::string& name) {
    for (int attempt = 1;; ++attempt) {
        WEIR_TRY(runtime::Folder folder, runtime::make_fabric_folder(runtime_folder, name));
        auto lock = runtime::FabricLock::take(folder);
        if (lock) {
            std::string path = std::filesystem::absolute(folder.path).string();
            return Claim{std::move(folder), *std::move(lock), std::move(path)};
        }
        const bool settled = runtime::FabricLock::held(folder) ||
                             lock.error().code == ErrorCode::kDenied || attempt == kClaimAttempts;
        if (settled) {
            return tl::unexpected<Error>(std::move(lock).error());
        }
        runtime::sleep_milliseconds(kPollMilliseconds);
    }
}

/// What to say when the name is taken: fine if from the same file.
Result<UpOutcome> compare_running(const runtime::Folder& runtime_folder, const UpRequest& request) {
    WEIR_TRY(const runtime::Folder folder,
             runtime::open_fabric_folder(runtime_folder, request.name));
    // Whoever has it may be bringing it up at this moment: only once it serves is its file written.
    const auto limit = runtime::monotonic_milliseconds() + kComingUpMilliseconds;
    bool serves = runtime::AttachClient::connect(request.name).has_value();
    while (!serves && runtime::FabricLock::held(folder) &&
           runtime::monotonic_milliseconds() < limit) {
        runtime::sleep_milliseconds(kPollMilliseconds);
        serves = runtime::AttachClient::connect(request.name).has_value();
    }
    const auto running = runtime::read_file(folder, runtime::kSourceFileName, kSourceBytesMax);
    if (running && *running == request.source.text) {
        return UpOutcome::kAlready;
    }
    if (!serves) {
        return fail(ErrorCode::kBusy,
                    fmt::format("somebody else's attempt to bring \"{}\" up has not ended well",
                                request.name),
                    "try again");
    }
    return fail(ErrorCode::kBusy,
                fmt::format("fabric \"{}\" is up already, from a different file", request.name),
                fmt::format("weir down --name {0}, or choose another --name", request.name));
}

struct Serving {
    std::unique_ptr<Daemon> daemon;
};

Result<Serving> prepare_daemon(FabricMemory memory, const Claim& claim) {
    WEIR_TRY_VOID(claim.lock.sign());
    memory.arena().header().daemon_pid = static_cast<std::uint32_t>(::getpid());
    runtime::remove_file(claim.folder, runtime::kAttachSocketName);
    WEIR_TRY(runtime::UniqueFd listener,
             runtime::listen_records(claim.folder.fd.get(), claim.folder.path,
                                     runtime::kAttachSocketName));
    Serving serving;
    WEIR_TRY(serving.daemon, Daemon::create(std::move(memory), std::move(listener), ::geteuid()));
    serving.daemon->keep_trees(claim.path);
    return serving;
}

Result<UpOutcome> serve_in_foreground(FabricMemory memory, Claim claim,
                                      const runtime::Folder& runtime_folder,
                                      const std::string& name, void (*on_ready)(void*),
                                      void* context) {
    auto serving = prepare_daemon(std::move(memory), claim);
    if (!serving) {
        runtime::remove_fabric_folder(runtime_folder, name);
        return tl::unexpected<Error>(std::move(serving).error());
    }
    on_ready(context);
    serving->daemon->run();
    runtime::remove_fabric_folder(runtime_folder, name);
    return UpOutcome::kEnded;
}

/// Never returns.
void serve_as_daemon(FabricMemory memory, const Claim& claim, const runtime::Folder& runtime_folder,
                     const std::string& name, runtime::ReadySignal ready) {
    auto serving = prepare_daemon(std::move(memory), claim);
    if (!serving) {
        runtime::remove_fabric_folder(runtime_folder, name);
        ready.send(serving.error().context);
        ::_exit(1);
    }
    ready.send({});
    serving->daemon->run();
    runtime::remove_fabric_folder(runtime_folder, name);
    ::_exit(0);
}

/// True once nobody holds the fabric's lock.
bool wait_for_end(const runtime::Folder& folder, int milliseconds) {
    const auto limit = runtime::monotonic_milliseconds() + milliseconds;
    while (runtime::FabricLock::held(folder)) {
        if (runtime::monotonic_milliseconds() > limit) {
            return false;
        }
        runtime::sleep_milliseconds(kPollMilliseconds);
    }
    return true;
}

}  // namespace

Result<UpOutcome> bring_up(const UpRequest& request, void (*on_ready)(void*), void* context) {
    if (!runtime::is_fabric_name(request.name)) {
        return fail(ErrorCode::kInvalid,
                    fmt::format("\"{}\" is no name for a fabric", request.name),
                    "letters, digits, '-', '_' and '.', at most 63");
    }
    WEIR_TRY(const runtime::Folder runtime_folder, runtime::make_runtime_folder());
    auto claim = claim_folder(runtime_folder, request.name);
    if (!claim) {
        if (claim.error().code == ErrorCode::kBusy) {
            return compare_running(runtime_folder, request);
        }
        return tl::unexpected<Error>(std::move(claim).error());
    }
    // What a killed daemon left would name devices that are no more.
    runtime::remove_trees(claim->folder);
    const auto fill = [&]() -> Result<FabricMemory> {
        WEIR_TRY_VOID(
            runtime::write_file(claim->folder, runtime::kSourceFileName, request.source.text));
        WEIR_TRY(const routing::Tables tables, routing::route(request.source.fabric));
        return build_arena(request.source.fabric, tables, request.name);
    };
    auto memory = fill();
    if (!memory) {
        runtime::remove_fabric_folder(runtime_folder, request.name);
        return tl::unexpected<Error>(std::move(memory).error());
    }
    if (request.foreground) {
        return serve_in_foreground(*std::move(memory), *std::move(claim), runtime_folder,
                                   request.name, on_ready, context);
    }
    runtime::remove_file(claim->folder, runtime::kLogFileName);
    WEIR_TRY(runtime::Daemonized started, runtime::daemonize(claim->folder, runtime::kLogFileName));
    if (started.side == runtime::Side::kDaemon) {
        serve_as_daemon(*std::move(memory), *claim, runtime_folder, request.name,
                        std::move(started.ready));
    }
    if (!started.failure.empty()) {
        return fail(ErrorCode::kSystem, std::move(started.failure));
    }
    on_ready(context);
    return UpOutcome::kStarted;
}

Result<DownOutcome> take_down(const std::string& name, int seconds) {
    if (!runtime::is_fabric_name(name)) {
        return fail(ErrorCode::kInvalid, fmt::format("\"{}\" is no name of a fabric", name));
    }
    const auto runtime_folder = runtime::open_runtime_folder();
    if (!runtime_folder) {
        if (runtime_folder.error().code == ErrorCode::kNotFound) return DownOutcome::kWasNotUp;
        return tl::unexpected<Error>(runtime_folder.error());
    }
    const auto folder = runtime::open_fabric_folder(*runtime_folder, name);
    if (!folder) {
        if (folder.error().code == ErrorCode::kNotFound) return DownOutcome::kWasNotUp;
        return tl::unexpected<Error>(folder.error());
    }
    if (!runtime::FabricLock::held(*folder)) {
        // What a killed daemon left. Taken, so that nobody brings it up while we clean.
        if (const auto lock = runtime::FabricLock::take(*folder)) {
            runtime::remove_fabric_folder(*runtime_folder, name);
        }
        return DownOutcome::kWasNotUp;
    }
    const pid_t daemon = runtime::FabricLock::holder(*folder);
    if (auto client = runtime::AttachClient::connect(name, seconds)) {
        // A lost answer may mean that it is ending already, so it gets a moment even then.
        const bool asked = client->shutdown().has_value();
        if (wait_for_end(*folder, asked ? seconds * 1000 : kKillMilliseconds)) {
            return DownOutcome::kDown;
        }
    }
    if (!runtime::signal_process(daemon, SIGKILL) || !wait_for_end(*folder, kKillMilliseconds)) {
        return fail(ErrorCode::kBusy,
                    fmt::format("the daemon of \"{}\" (pid {}) does not end", name, daemon));
    }
    if (const auto lock = runtime::FabricLock::take(*folder)) {
        runtime::remove_fabric_folder(*runtime_folder, name);
    }
    return DownOutcome::kDown;
}

Result<std::vector<FabricState>> list_fabrics() {
    std::vector<FabricState> fabrics;
    const auto runtime_folder = runtime::open_runtime_folder();
    if (!runtime_folder) {
        if (runtime_folder.error().code == ErrorCode::kNotFound) return fabrics;
        return tl::unexpected<Error>(runtime_folder.error());
    }
    for (auto& name : runtime::list_fabric_folders(*runtime_folder)) {
        // A folder that has vanished meanwhile is a fabric that has gone down.
        if (const auto folder = runtime::open_fabric_folder(*runtime_folder, name)) {
            fabrics.push_back({std::move(name), runtime::FabricLock::held(*folder)});
        }
    }
    return fabrics;
}

}  // namespace weir::lab

// SPDX-License-Identifier: Apache-2.0
#include "lab/daemon.h"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>

#include "lab/host_tree.h"
#include "runtime/real/shared_memory.h"

namespace weir::lab {
namespace {

// Tokens of the poller: two small ones, then two for each connection.
constexpr std::uint64_t kListenerToken = 0;
constexpr std::uint64_t kSignalToken = 1;
constexpr std::uint64_t socket_token(std::uint64_t id) {
    return id * 2;
}
constexpr std::uint64_t process_token(std::uint64_t id) {
    return id * 2 + 1;
}

/// Descriptors that a connection can hold: socket, window, pidfd. Some are kept for the daemon
/// itself.
constexpr std::size_t kFdsPerConnection = 3;
constexpr std::size_t kFdsReserved = 64;
constexpr std::size_t kConnectionsMax = 4096;
constexpr std::size_t kConnectionsWithStrangersMax = 64;
/// Connections taken in one turn, so that a flood of them does not starve those who are in.
constexpr int kAcceptsPerTurn = 32;

template <class... Args>
void log(fmt::format_string<Args...> format, Args&&... args) {
    fmt::print(stderr, "{}\n", fmt::format(format, std::forward<Args>(args)...));
}

int errno_of(ErrorCode code) {
    switch (code) {
        case ErrorCode::kBusy:
            return EBUSY;
        case ErrorCode::kNoSpace:
            return ENOMEM;
        case ErrorCode::kNotFound:
            return ENOENT;
        default:
            return EINVAL;
    }
}

}  // namespace

Daemon::Daemon(FabricMemory memory, runtime::UniqueFd listener, uid_t owner, runtime::Poller poller)
    : memory_(std::move(memory)),
      arena_(memory_.arena()),
      listener_(std::move(listener)),
      owner_(owner),
      poller_(std::move(poller)),
      processes_(arena_, memory_.fd.get()),
      connection_limit_(0) {}

Result<std::unique_ptr<Daemon>> Daemon::create(FabricMemory memory, runtime::UniqueFd listener,
                                               uid_t owner) {
    WEIR_TRY(runtime::Poller poller, runtime::Poller::create());
    std::unique_ptr<Daemon> daemon(
        new Daemon(std::move(memory), std::move(listener), owner, std::move(poller)));
    WEIR_TRY(daemon->signals_, runtime::watch_end_signals());
    WEIR_TRY_VOID(daemon->poller_.add(daemon->listener_.get(), kListenerToken));
    WEIR_TRY_VOID(daemon->poller_.add(daemon->signals_.get(), kSignalToken));
    const std::size_t fds = runtime::raise_descriptor_limit();
    daemon->connection_limit_ = std::clamp((fds - std::min(fds, kFdsReserved)) / kFdsPerConnection,
                                           std::size_t{1}, kConnectionsMax);
    return daemon;
}

void Daemon::run() {
    log("fabric \"{}\" is up", arena_.header().name);
    while (turn(-1)) {
    }
    say_goodbye();
    log("fabric \"{}\" is down", arena_.header().name);
}

bool Daemon::turn(int milliseconds) {
    int patience = milliseconds;
    if (processes_.busy()) {
        const auto left = std::clamp<std::int64_t>(next_tick_ - runtime::monotonic_milliseconds(),
                                                   0, ProcessTable::kTickMilliseconds);
        patience =
            patience < 0 ? static_cast<int>(left) : std::min(patience, static_cast<int>(left));
    }
    for (const std::uint64_t token : poller_.wait(patience)) {
        if (token == kListenerToken) {
            accept_all();
        } else if (token == kSignalToken) {
            ending_ = true;
        } else if (const auto found = connections_.find(token / 2); found != connections_.end()) {
            const bool alive =
                token == socket_token(found->first) && serve(found->first, found->second);
            if (!alive) {
                close(found);
            }
        }
    }
    if (const auto now = runtime::monotonic_milliseconds();
        processes_.busy() && now >= next_tick_) {
        processes_.on_tick();
        next_tick_ = now + ProcessTable::kTickMilliseconds;
    }
    return !ending_;
}

void Daemon::accept_all() {
    for (int i = 0; i < kAcceptsPerTurn; ++i) {
        Connection connection;
        connection.socket = runtime::accept_record_socket(listener_.get());
        if (!connection.socket.valid()) {
            return;
        }
        const auto peer = runtime::peer_credentials(connection.socket.get());
        if (!peer || connections_.size() >= connection_limit_) {
            continue;
        }
        // Strangers get an answer that says why not, but only a few of them at a time.
        const bool stranger = peer->uid != owner_ && peer->uid != 0;
        if (stranger && connections_.size() >= kConnectionsWithStrangersMax) {
            continue;
        }
        connection.peer = *peer;
        const std::uint64_t id = next_id_++;
        if (poller_.add(connection.socket.get(), socket_token(id))) {
            connections_.emplace(id, std::move(connection));
        }
    }
}

bool Daemon::serve(std::uint64_t id, Connection& connection) {
    // One byte more than a request has: longer records show.
    std::array<std::byte, sizeof(arena::AttachRequest) + 1> buffer;
    runtime::Record record;
    const int failure =
        runtime::receive_record(connection.socket.get(), buffer, record, runtime::Waiting::kNever);
    if (failure != 0) {
        return failure == EAGAIN;
    }
    if (record.bytes == 0) {
        return false;
    }
    const Message message{
        {buffer.data(), std::min(record.bytes, buffer.size())}, record.fd_count, record.truncated};
    const Caller caller{connection.peer.uid, connection.identity != 0};
    return carry_out(id, connection, judge(message, caller, owner_, arena_), record);
}

bool Daemon::carry_out(std::uint64_t id, Connection& connection, const Judgement& judgement,
                       runtime::Record& record) {
    switch (judgement.act) {
        case Act::kRefuse:
            return reply(connection, make_reply(judgement.status, judgement.text));
        case Act::kHangUp:
            log("refused pid {} uid {}: {}", connection.peer.pid, connection.peer.uid,
                judgement.text);
            reply(connection, make_reply(judgement.status, judgement.text));
            return false;
        case Act::kGiveArena: {
            auto given = make_reply(0);
            given.arena_bytes = memory_.mapping.bytes();
            return reply(connection, given, memory_.fd.get());
        }
        case Act::kAttach:
            return attach(id, connection, judgement.node, std::move(record.fds[0]));
        case Act::kPeerWindow: {
            const int window = processes_.window_of(judgement.identity);
            return window < 0 ? reply(connection, make_reply(ENOENT, "no such process"))
                              : reply(connection, make_reply(0), window);
        }
        case Act::kSetLink:
            return set_link(connection, judgement.link, judgement.up);
        case Act::kSetRate:
            return set_rate(connection, judgement.link, judgement.rate_bits_per_second);
        case Act::kShutdown:
            log("pid {} asks for the end", connection.peer.pid);
            ending_ = true;
            return reply(connection, make_reply(0));
    }
    return false;
}

bool Daemon::attach(std::uint64_t id, Connection& connection, std::uint32_t node,
                    runtime::UniqueFd window) {
    if (!runtime::is_sealed_memory(window.get(), arena::kWindowBytes)) {
        return reply(connection,
                     make_reply(EINVAL, "the window must be a memfd sealed against shrinking"));
    }
    connection.process = runtime::watch_process(connection.peer.pid);
    if (connection.process.valid() && !poller_.add(connection.process.get(), process_token(id))) {
        return reply(connection, make_reply(ENOMEM, "too many processes to watch"));
    }
    const auto identity = processes_.admit(connection.peer.pid, node, std::move(window));
    if (!identity) {
        return reply(connection,
                     make_reply(errno_of(identity.error().code), identity.error().context));
    }
    connection.identity = *identity;
    log("pid {} attached to {} as {:x}", connection.peer.pid, arena_.node(node).name, *identity);
    auto given = make_reply(0);
    given.identity = *identity;
    given.arena_bytes = memory_.mapping.bytes();
    return reply(connection, given, memory_.fd.get());
}

bool Daemon::set_link(const Connection& connection, LinkView link, bool up) {
    const std::uint32_t value = up ? 1 : 0;
    bool changed = false;
    for (const std::uint32_t end : {link.a, link.b}) {
        auto& port = arena_.port(end);
        if (port.up.exchange(value, std::memory_order_acq_rel) != value) {
            changed = true;
            if (!up) {
                port.link_downed.fetch_add(1, std::memory_order_relaxed);
            }
        }
    }
    if (changed) {
        arena_.header().epoch.fetch_add(1, std::memory_order_acq_rel);
        processes_.alert_all();
        for (const std::uint32_t end : {link.a, link.b}) {
            if (!fabric_folder_.empty()) refresh_host_tree(fabric_folder_, arena_, end);
        }
        log("link {} is {}", link_name(arena_, link), up ? "up" : "down");
    }
    return reply(connection, make_reply(0));
}

bool Daemon::set_rate(const Connection& connection, LinkView link, std::uint64_t rate) {
    // First the way round by the egress lanes, then what makes packets wait there.
    if (rate != 0) arena_.header().rated.store(1, std::memory_order_seq_cst);
    for (const std::uint32_t end : {link.a, link.b}) {
        arena_.arbiter(end).rate_bits_per_second.store(rate, std::memory_order_release);
    }
    arena_.header().epoch.fetch_add(1, std::memory_order_acq_rel);
    processes_.alert_all();
    log("link {} has rate {}", link_name(arena_, link), rate_text(rate));
    return reply(connection, make_reply(0));
}

bool Daemon::reply(const Connection& connection, const arena::AttachReply& reply, int fd) {
    const std::span<const int> fds(&fd, fd >= 0 ? 1U : 0U);
    return runtime::send_record(connection.socket.get(), std::as_bytes(std::span(&reply, 1)), fds,
                                runtime::Waiting::kNever) == 0;
}

void Daemon::close(ConnectionMap::iterator connection) {
    const std::uint32_t identity = connection->second.identity;
    if (identity != 0) {
        log("pid {} ({:x}) is gone", connection->second.peer.pid, identity);
    }
    connections_.erase(connection);
    processes_.on_departure(identity);
}

void Daemon::say_goodbye() {
    arena_.header().closing.store(1, std::memory_order_release);
    processes_.alert_all();
    connections_.clear();
}

}  // namespace weir::lab

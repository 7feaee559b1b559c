// SPDX-License-Identifier: Apache-2.0
#include "cm.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "abi.h"
#include "process_wide.h"
#include "runtime/real/event_counter.h"

namespace weir::rdmacm {
namespace {

std::uint64_t entropy() {
    std::uint64_t bits = 0;
    if (getrandom(&bits, sizeof bits, GRND_NONBLOCK) != sizeof bits)
        bits = Cm::now() ^ static_cast<std::uint64_t>(getpid()) << 32U;
    return bits;
}

constexpr int kRetryMs = 100;

/// Held by the thread while it may touch memory: see weir_private.h.
struct Awake {
    Awake() { weir_awake(1); }
    ~Awake() { weir_awake(0); }
    Awake(const Awake&) = delete;
    Awake& operator=(const Awake&) = delete;
};

/// The thread is woken for a deadline only if it would otherwise be late by more than this.
constexpr connection::Time kSlackNs = 50'000'000;
/// A request to a port where nobody listens is held for this long, looking this often. Programs
/// such as perftest close a listener and open the next while their peer connects already: between
/// real machines a request takes so long that the listener is back.
constexpr connection::Time kListenerGraceNs = 500'000'000;
constexpr connection::Time kLookEveryNs = 2'000'000;
/// While the program takes MADs itself, the thread looks up this seldom.
constexpr int kLookEveryMs = 2;

}  // namespace

Cm& Cm::instance() {
    return ProcessWide<Cm>::get();
}

Cm::Cm()
    : manager_(static_cast<connection::Id>(entropy())),
      next_token_(static_cast<std::uint64_t>(getpid()) << 32U | 1U),
      random_state_(entropy() | 1U) {}

connection::Time Cm::now() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<connection::Time>(t.tv_sec) * 1'000'000'000ULL +
           static_cast<connection::Time>(t.tv_nsec);
}

std::uint32_t Cm::random() {
    random_state_ ^= random_state_ << 13U;
    random_state_ ^= random_state_ >> 7U;
    random_state_ ^= random_state_ << 17U;
    return static_cast<std::uint32_t>(random_state_ >> 16U);
}

// ---------------------------------------------------------------- fork

void Cm::before_fork() {
    if (Cm* cm = ProcessWide<Cm>::find(); cm != nullptr) cm->lock.lock();
}

void Cm::after_fork_in_parent() {
    if (Cm* cm = ProcessWide<Cm>::find(); cm != nullptr) cm->lock.unlock();
}

void Cm::after_fork_in_child() {
    ProcessWide<Cm>::forget();
}

/// After the verbs library has registered its own handlers: ours then run before those, so that our
/// lock is taken first, as it is everywhere.
void Cm::watch_fork() {
    static std::atomic<bool> watched{false};
    if (!watched.exchange(true))
        pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

// ---------------------------------------------------------------- devices

int Cm::open_devices() {
    if (opened_) return devices_.empty() ? ENODEV : 0;
    int count = 0;
    ibv_device** list = ibv_get_device_list(&count);
    if (list == nullptr) return errno;
    for (int i = 0; i < std::min(count, kDevicesMax); ++i)
        if (auto device = Device::open(list[i]); device != nullptr)
            devices_.push_back(std::move(device));
    ibv_free_device_list(list);
    if (devices_.empty()) return ENODEV;
    std::size_t ports = 0;
    if (const int error = weir_ports(devices_[0]->verbs(), nullptr, &ports); error != 0)
        return error;
    std::vector<weir_port> all(ports);
    for (const auto& device : devices_) {
        if (const int error = weir_ports(device->verbs(), all.data(), &ports); error != 0)
            return error;
        for (const auto& port : all)
            if (port.is_own != 0) device->set_node(port.node);
    }
    neighbourhood_ = Neighbourhood(std::move(all));
    watch_fork();
    opened_ = true;
    return 0;
}

Device* Cm::device_of_node(std::uint32_t node) const {
    for (const auto& device : devices_)
        if (device->node() == node) return device.get();
    return nullptr;
}

std::size_t Cm::index_of(const Device& device) const {
    std::size_t i = 0;
    while (i < devices_.size() && devices_[i].get() != &device)
        ++i;
    return i;
}

void Cm::attach(Identifier& id, Device& device, std::uint8_t port) {
    id.device = &device;
    id.abi.verbs = device.verbs();
    id.abi.port_num = port;
    if (id.abi.pd == nullptr) id.abi.pd = device.pd();
}

int Cm::start() {
    for (const auto& device : devices_)
        if (const int error = device->start_control(); error != 0) return error;
    if (thread_runs_) return 0;
    if (kick_fd_ < 0) kick_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (kick_fd_ < 0) return errno;
    if (const int error = start_thread([this] { run_thread(); }); error != 0) return error;
    weir_thread_started();
    thread_runs_ = true;
    return 0;
}

// ---------------------------------------------------------------- the thread

/// How long the thread may sleep, in milliseconds for poll().
int Cm::wait_time(connection::Time time) {
    auto deadline = manager_.deadline();
    const bool backlogged = std::any_of(devices_.begin(), devices_.end(),
                                        [](const auto& device) { return device->backlogged(); });
    if (!waiting_.empty() || backlogged)
        deadline = std::min(deadline.value_or(~0ULL), time + kLookEveryNs);
    if (!deadline) return -1;
    if (*deadline <= time) return 0;
    constexpr connection::Time kNsPerMs = 1'000'000;
    return static_cast<int>(std::min<connection::Time>((*deadline - time) / kNsPerMs + 1, 60'000));
}

void Cm::run_thread() {
    // Outside the lock it touches nothing but its own stack: see weir_thread_started().
    Watch watch{};
    for (;;) {
        if (poll(watch.fds, watch.count, watch.wait_ms) < 0 && errno != EINTR) return;
        const std::lock_guard guard(lock);
        const Awake awake;
        // What there was no memory for comes again: its sender repeats it.
        if (ibverbs::fenced([&] { return take_turn(watch); }) != 0) watch.wait_ms = kRetryMs;
    }
}

int Cm::take_turn(Watch& watch) {
    sleeps_until_.store(0, std::memory_order_relaxed);
    runtime::take_event(kick_fd_);
    watch.count = 0;
    watch.fds[watch.count++] = {kick_fd_, POLLIN, 0};
    bool alerted = false;
    for (const auto& device : devices_) {
        device->disarm();
        const int alert = weir_alert_fd(device->verbs());
        if (alert >= 0 && runtime::take_event(alert)) alerted = true;
        watch.fds[watch.count++] = {device->control_fd(), POLLIN, 0};
        watch.fds[watch.count++] = {alert, POLLIN, 0};
    }
    progress();
    if (alerted) look_for_lost_peers();
    const bool led = looks_ != looks_seen_;
    if (led)
        looks_seen_ = looks_;
    else
        park();
    const auto time = now();
    watch.wait_ms = wait_time(time);
    if (led && (watch.wait_ms < 0 || watch.wait_ms > kLookEveryMs)) watch.wait_ms = kLookEveryMs;
    const auto sleep_ns = static_cast<connection::Time>(watch.wait_ms) * 1'000'000;
    sleeps_until_.store(watch.wait_ms < 0 ? ~connection::Time{0} : time + sleep_ns,
                        std::memory_order_relaxed);
    return 0;
}

void Cm::look() {
    ++looks_;
    progress();
}

void Cm::park() {
    looks_seen_ = looks_;  // who looked does so no more
    for (const auto& device : devices_) {
        if (!device->has_control()) continue;
        device->arm();
        weir_park(device->verbs());
    }
}

bool Cm::progress() {
    bool any = false;
    const auto time = now();
    for (std::size_t i = 0; i < devices_.size(); ++i) {
        devices_[i]->flush();
        any |= devices_[i]->receive([&](const Device::Arrival& arrival) {
            const connection::Peer from{static_cast<std::uint32_t>(i), arrival.lid,
                                        arrival.qp_number};
            manager_.on_mad(from, {arrival.bytes, arrival.size}, time);
        });
    }
    if (const auto deadline = manager_.deadline(); deadline && *deadline <= time)
        manager_.on_time(time);
    if (!waiting_.empty()) look_for_listeners(time);
    act();
    return any;
}

void Cm::act() {
    for (;;) {
        auto actions = manager_.take_actions();
        if (actions.empty()) break;
        for (const auto& action : actions) {
            if (const auto* send = std::get_if<connection::SendAction>(&action)) {
                note_peer(send->to);
                devices_[send->to.device]->send(send->to.lid, send->to.qp_number, send->bytes);
            } else {
                on_notice(std::get<connection::Notice>(action));
            }
        }
    }
    const auto sleeps = sleeps_until_.load(std::memory_order_relaxed);
    for (const auto& device : devices_)
        if (device->backlogged() && sleeps > now() + kLookEveryNs) wake_thread();
    const auto deadline = manager_.deadline();
    if (deadline && sleeps != 0 && *deadline + kSlackNs < sleeps) wake_thread();
}

void Cm::wake_thread() {
    sleeps_until_.store(0, std::memory_order_relaxed);
    runtime::raise_event(kick_fd_);
}

// ---------------------------------------------------------------- requests

void Cm::send_request(Identifier& id, wire::CmBody message) {
    id.pending = std::move(message);
    connection::Peer peer;
    if (find_peer(*this, id, peer)) {
        send_to(id, peer);
        return;
    }
    id.pending_until = now() + kListenerGraceNs;
    waiting_.push_back(&id);
    if (sleeps_until_.load(std::memory_order_relaxed) != 0) wake_thread();
}

void Cm::send_to(Identifier& id, const connection::Peer& peer) {
    auto message = *std::exchange(id.pending, std::nullopt);
    if (const auto* datagram = std::get_if<wire::CmDatagramRequest>(&message)) {
        id.datagram_asked = true;
        bind_connection(id, manager_.request_datagram(peer, *datagram, now()));
    } else {
        auto& request = std::get<wire::CmRequest>(message);
        request.remote_lid = be16toh(id.path.dlid);
        std::copy_n(id.path.dgid.raw, request.remote_gid.size(), request.remote_gid.begin());
        bind_connection(id, manager_.request(peer, request, id.local_ece.options, now()));
    }
    act();
}

void Cm::look_for_listeners(connection::Time time) {
    std::erase_if(waiting_, [&](Identifier* id) {
        connection::Peer peer;
        if (find_peer(*this, *id, peer)) {
            send_to(*id, peer);
        } else if (time >= id->pending_until) {
            id->pending.reset();
            refuse(*this, *id);
        } else {
            return false;
        }
        return true;
    });
}

// ---------------------------------------------------------------- peers that die

void Cm::note_peer(const connection::Peer& peer) {
    for (const auto& known : peers_)
        if (known.peer == peer) return;
    peers_.push_back({peer, weir_process_of_qp(devices_[peer.device]->verbs(), peer.qp_number)});
}

void Cm::look_for_lost_peers() {
    std::erase_if(peers_, [this](const KnownPeer& known) {
        const auto owner =
            weir_process_of_qp(devices_[known.peer.device]->verbs(), known.peer.qp_number);
        if (owner == known.process && owner != 0) return false;
        manager_.on_peer_lost(known.peer, now());
        return true;
    });
    act();
}

// ---------------------------------------------------------------- channels, identifiers, events

Channel* Cm::make_channel() {
    auto channel = std::make_unique<Channel>();
    channel->abi.fd = eventfd(0, EFD_CLOEXEC);
    if (channel->abi.fd < 0) return nullptr;
    auto* out = channel.get();
    channels_.emplace(&out->abi, std::move(channel));
    return out;
}

Channel* Cm::find_channel(rdma_event_channel* channel) {
    const auto it = channels_.find(channel);
    return it == channels_.end() ? nullptr : it->second.get();
}

void Cm::drop_channel(Channel& channel) {
    for (auto& [abi, id] : identifiers_)
        if (id->channel == &channel) id->channel = nullptr;
    for (auto* event : channel.waiting)
        events_.erase(&event->abi);
    close(channel.abi.fd);
    channels_.erase(&channel.abi);
}

Identifier& Cm::make_identifier(Channel& channel, void* context, rdma_port_space ps,
                                ibv_qp_type type) {
    auto id = std::make_unique<Identifier>();
    id->abi.channel = &channel.abi;
    id->channel = &channel;
    id->abi.context = context;
    id->abi.ps = ps;
    id->abi.qp_type = type;
    id->token = next_token();
    id->agreement.send_psn = random() & 0xffffffU;
    auto& out = *id;
    identifiers_.emplace(&out.abi, std::move(id));
    return out;
}

Identifier* Cm::find(rdma_cm_id* id) {
    const auto it = identifiers_.find(id);
    return it == identifiers_.end() || it->second->ending ? nullptr : it->second.get();
}

void Identifier::show_addresses() {
    source.store(&abi.route.addr.src_addr);
    if (target != nullptr || passive || destination.port != 0 || destination.is_group())
        destination.store(&abi.route.addr.dst_addr);
}

void Cm::bind_connection(Identifier& id, connection::Id connection) {
    id.connection = connection;
    by_connection_[connection] = &id;
}

void Cm::drop_connection(Identifier& id) {
    if (id.connection == 0) return;
    by_connection_.erase(id.connection);
    manager_.close(id.connection, now());
    id.connection = 0;
    act();
}

void Cm::retire(Identifier& id) {
    drop_events_of(id);
    detach_groups(id);
    std::erase(listeners_, &id);
    std::erase(waiting_, &id);
    drop_connection(id);
    for (const auto& claim : id.claims)
        weir_service_release(claim.device->verbs(), claim.index);
    identifiers_.erase(&id.abi);
}

Event* Cm::raise(Identifier& id, rdma_cm_event_type type, int status) {
    auto* channel = id.channel;
    if (id.ending || channel == nullptr) return nullptr;
    auto event = std::make_unique<Event>();
    event->abi.id = &id.abi;
    event->abi.event = type;
    event->abi.status = status;
    event->counted_at = &id;
    event->channel = channel;
    auto* out = event.get();
    events_.emplace(&out->abi, std::move(event));
    channel->waiting.push_back(out);
    signal(*channel);
    return out;
}

void Cm::signal(Channel& channel) {
    const bool wanted = !channel.waiting.empty() && channel.lookers == 0;
    if (wanted == channel.readable) return;
    // The counter is 1 if it is to be readable and else 0, so that neither call waits.
    if (wanted)
        runtime::raise_event(channel.abi.fd);
    else
        runtime::take_event(channel.abi.fd);
    channel.readable = wanted;
}

Event* Cm::take(Channel& channel) {
    if (channel.waiting.empty()) return nullptr;
    auto* event = channel.waiting.front();
    channel.waiting.pop_front();
    signal(channel);
    event->channel = nullptr;
    ++event->counted_at->events_taken;
    if (event->group != nullptr) ++event->group->events_taken;
    if (event->abi.event == RDMA_CM_EVENT_CONNECT_REQUEST) ++event->counted_at->backlog_left;
    return event;
}

Event* Cm::find(rdma_cm_event* event) {
    const auto it = events_.find(event);
    return it == events_.end() ? nullptr : it->second.get();
}

bool Cm::acknowledge(rdma_cm_event* event) {
    const auto it = events_.find(event);
    if (it == events_.end() || it->second->channel != nullptr) return false;
    ++it->second->counted_at->events_acknowledged;
    if (it->second->group != nullptr) ++it->second->group->events_acknowledged;
    events_.erase(it);
    acknowledged.notify_all();
    return true;
}

/// Those that wait for it, and that of the request that it came by, if it goes before its program
/// has heard of it. With a listener's events go the requests that they tell of.
void Cm::drop_events_of(Identifier& id) {
    if (id.channel == nullptr) return;
    std::vector<Event*> gone;
    for (auto* event : id.channel->waiting)
        if (event->counted_at == &id || event->abi.id == &id.abi) gone.push_back(event);
    for (auto* event : gone) {
        std::erase(id.channel->waiting, event);
        auto* request = event->abi.listen_id == &id.abi ? find(event->abi.id) : nullptr;
        events_.erase(&event->abi);
        if (request != nullptr) retire(*request);
    }
    signal(*id.channel);
}

void Cm::drop_events_of(Identifier& id, const Membership& group) {
    if (id.channel == nullptr) return;
    std::erase_if(id.channel->waiting, [&](Event* event) {
        const bool of_group = event->group.get() == &group;
        if (of_group) events_.erase(&event->abi);
        return of_group;
    });
    signal(*id.channel);
}

void Cm::move_events(Identifier& id, Channel& to) {
    auto* from = id.channel;
    if (from == &to) return;
    id.abi.channel = &to.abi;
    id.channel = &to;
    if (from == nullptr) return;
    for (auto it = from->waiting.begin(); it != from->waiting.end();) {
        auto* event = *it;
        if (event->counted_at != &id) {
            ++it;
            continue;
        }
        it = from->waiting.erase(it);
        event->channel = &to;
        to.waiting.push_back(event);
    }
    signal(*from);
    signal(to);
}

}  // namespace weir::rdmacm

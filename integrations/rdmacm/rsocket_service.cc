// SPDX-License-Identifier: Apache-2.0
#include "rsocket_service.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <mutex>

#include "abi.h"
#include "process_wide.h"
#include "runtime/real/event_counter.h"

namespace weir::rdmacm {
namespace {

/// How long exit() waits for what is under way.
constexpr Time kExitNs = 5'000'000'000;

std::uint64_t token_of(const rdma_cm_id* id) {
    return id == nullptr ? 0 : reinterpret_cast<std::uintptr_t>(id->context);
}

}  // namespace

Sockets& Sockets::instance() {
    return ProcessWide<Sockets>::get();
}

Sockets::Sockets() {
    static std::once_flag once;
    std::call_once(once, [] {
        pthread_atfork(nullptr, nullptr, ProcessWide<Sockets>::forget);
        std::atexit(at_exit);
    });
}

// ---------------------------------------------------------------- numbers

std::shared_ptr<Socket> Sockets::find(int number) {
    const std::shared_lock guard(numbers_lock_);
    const auto index = static_cast<std::size_t>(number);
    return number < 0 || index >= numbers_.size() ? nullptr : numbers_[index];
}

void Sockets::add(std::shared_ptr<Socket> socket) {
    const std::unique_lock guard(numbers_lock_);
    const auto index = static_cast<std::size_t>(socket->number());
    if (index >= numbers_.size()) numbers_.resize(index + 64);
    numbers_[index] = std::move(socket);
}

std::shared_ptr<Socket> Sockets::remove(int number) {
    const std::unique_lock guard(numbers_lock_);
    const auto index = static_cast<std::size_t>(number);
    if (number < 0 || index >= numbers_.size()) return nullptr;
    return std::exchange(numbers_[index], nullptr);
}

// ---------------------------------------------------------------- the thread

int Sockets::start() {
    if (kick_fd_ < 0) kick_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (kick_fd_ < 0) return errno;
    auto* channel = rdma_create_event_channel();
    if (channel == nullptr) return errno;
    fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
    channel_ = channel;
    const int error = start_thread([this] { run_thread(); });
    if (error != 0) rdma_destroy_event_channel(std::exchange(channel_, nullptr));
    return error;
}

rdma_event_channel* Sockets::channel() {
    const std::lock_guard guard(start_lock_);
    if (channel_ == nullptr)
        if (const int error = start(); error != 0)
            return ibverbs::fail_null<rdma_event_channel>(error);
    return channel_;
}

void Sockets::kick() const {
    runtime::raise_event(kick_fd_);
}

/// What the thread sleeps on, and until when.
Time Sockets::prepare(std::vector<pollfd>& fds) {
    Time until = kForever;
    fds.assign({{kick_fd_, POLLIN, 0}, {channel_->fd, POLLIN, 0}});
    const std::lock_guard guard(closing_lock_);
    for (const auto& closing : closing_) {
        const std::lock_guard held(closing.socket->lock);
        closing.socket->prepare_sleep();
        fds.push_back({closing.socket->wake_fd(), POLLIN, 0});
        until = std::min(until, closing.until);
    }
    return until;
}

void Sockets::run_thread() {
    std::vector<pollfd> fds;
    for (;;) {
        Time until = 0;
        ibverbs::fenced([&] {
            until = prepare(fds);
            look_at_closing();  // once more, now that what comes wakes us
            return 0;
        });
        if (poll(fds.data(), fds.size(), milliseconds_until(until)) < 0 && errno != EINTR) return;
        runtime::take_event(kick_fd_);
        ibverbs::fenced([&] {
            take_events();
            look_at_closing();
            return 0;
        });
    }
}

void Sockets::take_events() {
    rdma_cm_event* event = nullptr;
    while (rdma_get_cm_event(channel_, &event) == 0) {
        ConnectionEvent copy{event->event, event->status, event->id, {}};
        // Of a request the listener is to hear.
        const auto token =
            token_of(event->event == RDMA_CM_EVENT_CONNECT_REQUEST ? event->listen_id : event->id);
        const auto& data = event->param.conn;
        const auto* bytes = static_cast<const std::uint8_t*>(data.private_data);
        if (bytes != nullptr) copy.private_data.assign(bytes, bytes + data.private_data_len);
        // Before anything else: who destroys the identifier waits for this.
        rdma_ack_cm_event(event);
        std::shared_ptr<StreamSocket> socket;
        {
            const std::lock_guard guard(names_lock_);
            if (const auto found = names_.find(token); found != names_.end())
                socket = found->second.lock();
        }
        if (socket != nullptr) {
            socket->on_event(copy);
        } else if (copy.type == RDMA_CM_EVENT_CONNECT_REQUEST) {
            rdma_reject(copy.id, nullptr, 0);
            rdma_destroy_id(copy.id);
        }
    }
}

std::uint64_t Sockets::name(const std::shared_ptr<StreamSocket>& socket) {
    const std::lock_guard guard(names_lock_);
    names_.emplace(next_token_, socket);
    return next_token_++;
}

void Sockets::forget(std::uint64_t token) {
    const std::lock_guard guard(names_lock_);
    names_.erase(token);
}

// ---------------------------------------------------------------- closed sockets

void Sockets::keep(std::shared_ptr<StreamSocket> socket, Time until) {
    {
        const std::lock_guard guard(closing_lock_);
        closing_.push_back({std::move(socket), until});
    }
    kick();
}

void Sockets::look_at_closing() {
    std::vector<Closing> finished;  // ended without the lock
    const std::lock_guard guard(closing_lock_);
    const auto now = time_now();
    std::erase_if(closing_, [&](Closing& closing) {
        const std::lock_guard held(closing.socket->lock);
        closing.socket->after_sleep();
        closing.socket->progress();
        if (!closing.socket->has_finished() && now < closing.until) return false;
        closing.socket->abandon();
        finished.push_back(closing);
        return true;
    });
}

void Sockets::at_exit() {
    auto* sockets = ProcessWide<Sockets>::find();
    if (sockets != nullptr)
        ibverbs::fenced([&] {
            sockets->finish_all();
            return 0;
        });
}

void Sockets::finish_all() {
    std::vector<std::shared_ptr<Socket>> open;
    {
        const std::unique_lock guard(numbers_lock_);
        open.swap(numbers_);
    }
    for (const auto& socket : open)
        if (socket != nullptr) socket->close();
    open.clear();
    const auto until = time_now() + kExitNs;
    for (;;) {
        look_at_closing();
        {
            const std::lock_guard guard(closing_lock_);
            if (closing_.empty() || time_now() >= until) return;
        }
        usleep(100);
    }
}

}  // namespace weir::rdmacm

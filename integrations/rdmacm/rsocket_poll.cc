// SPDX-License-Identifier: Apache-2.0
// rpoll() and rselect(), over rsockets and ordinary descriptors in any mixture.
#include <poll.h>
#include <sys/select.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include <rdma/rsocket.h>

#include "abi.h"
#include "rsocket_service.h"

namespace weir::rdmacm {
namespace {

/// One call's descriptors.
class Watch {
  public:
    Watch(pollfd* fds, nfds_t count) : fds_(fds), count_(count), sockets_(count) {
        for (nfds_t i = 0; i < count; ++i) {
            sockets_[i] = Sockets::instance().find(fds[i].fd);
            if (sockets_[i] == nullptr)
                has_others_ = true;
            else
                has_sockets_ = true;
        }
    }

    ~Watch() {
        if (prepared_) finish();  // the thread was cancelled
    }
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

    [[nodiscard]] bool has_sockets() const { return has_sockets_; }

    /// Fills in what is ready, and returns how many are; -1 with errno set.
    int look() {
        int ready = 0;
        if (has_others_) {
            ready = look_at_others();
            if (ready < 0) return ready;
        }
        for (nfds_t i = 0; i < count_; ++i) {
            if (sockets_[i] == nullptr) continue;
            fds_[i].revents = events_of(*sockets_[i], fds_[i].events);
            if (fds_[i].revents != 0) ++ready;
        }
        return ready;
    }

    /// From now on all that happens ends sleep().
    void prepare() {
        prepared_ = true;
        list_.assign({{sleeper_.fd(), POLLIN, 0}});
        for (nfds_t i = 0; i < count_; ++i) {
            pollfd entry{fds_[i].fd, fds_[i].events, 0};
            if (auto* socket = sockets_[i].get(); socket != nullptr) {
                const std::lock_guard guard(socket->lock);
                socket->add_sleeper(sleeper_);
                socket->prepare_sleep();
                entry = {socket->wake_fd(), POLLIN, 0};
            }
            list_.push_back(entry);
        }
    }

    /// 0 or an errno value.
    int sleep(Time deadline) {
        const ibverbs::CancellationAllowed allowed;
        return poll(list_.data(), list_.size(), milliseconds_until(deadline)) < 0 ? errno : 0;
    }

    void finish() {
        prepared_ = false;
        for (nfds_t i = 0; i < count_; ++i) {
            auto* socket = sockets_[i].get();
            if (socket == nullptr) continue;
            const std::lock_guard guard(socket->lock);
            socket->remove_sleeper(sleeper_);
            if (i + 1 < list_.size() && list_[i + 1].revents != 0) socket->after_sleep();
        }
        sleeper_.clear();
    }

  private:
    static short events_of(Socket& socket, short wanted) {
        const std::lock_guard guard(socket.lock);
        if (socket.progress()) socket.wake_sleepers();
        return static_cast<short>(socket.events() & (wanted | POLLERR | POLLHUP));
    }

    int look_at_others() {
        others_.clear();
        for (nfds_t i = 0; i < count_; ++i)
            others_.push_back({sockets_[i] == nullptr ? fds_[i].fd : -1, fds_[i].events, 0});
        const int ready = poll(others_.data(), others_.size(), 0);
        for (nfds_t i = 0; i < count_; ++i)
            if (sockets_[i] == nullptr) fds_[i].revents = others_[i].revents;
        return ready;
    }

    pollfd* fds_;
    nfds_t count_;
    std::vector<std::shared_ptr<Socket>> sockets_;
    std::vector<pollfd> list_;    ///< What is slept on: our own, then one for each.
    std::vector<pollfd> others_;  ///< The ordinary ones, and -1 for each rsocket.
    Sleeper& sleeper_ = Sleeper::own();
    bool prepared_ = false;
    bool has_sockets_ = false;
    bool has_others_ = false;
};

int watch_until(Watch& watch, Time deadline) {
    Time spin_until = 0;
    for (;;) {
        int ready = watch.look();
        if (ready != 0) return ready;
        const auto now = time_now();
        if (now >= deadline) return 0;
        if (spin_until == 0) spin_until = now + kSpinNs;
        if (now < spin_until) {
            pause_briefly();
            continue;
        }
        watch.prepare();
        ready = watch.look();  // what came before that
        const int error = ready == 0 ? watch.sleep(deadline) : 0;
        watch.finish();
        if (error != 0) return ibverbs::minus_one_if(error);
        if (ready != 0) return ready;
    }
}

int poll_all(pollfd* fds, nfds_t count, int timeout_ms) {
    int ready = -1;
    const int error = ibverbs::fenced([&] {
        const auto ordinary = [&] {
            const ibverbs::CancellationAllowed allowed;
            return poll(fds, count, timeout_ms);
        };
        Watch watch(fds, count);
        constexpr Time kNsPerMs = 1'000'000;
        const auto deadline =
            timeout_ms < 0 ? kForever : time_now() + static_cast<Time>(timeout_ms) * kNsPerMs;
        // Ordinary descriptors alone are the kernel's.
        ready = watch.has_sockets() ? watch_until(watch, deadline) : ordinary();
        return 0;
    });
    return error == 0 ? ready : ibverbs::minus_one_if(error);
}

// ---------------------------------------------------------------- select

/// The three sets of select() and what poll() calls them.
struct Set {
    fd_set* set;
    short asked;
    short means_ready;
};

std::vector<pollfd> read_sets(int count, const Set (&sets)[3]) {
    std::vector<pollfd> fds;
    for (int fd = 0; fd < count; ++fd) {
        short wanted = 0;
        for (const auto& set : sets)
            if (set.set != nullptr && FD_ISSET(fd, set.set))
                wanted = static_cast<short>(wanted | set.asked);
        if (wanted != 0) fds.push_back({fd, wanted, 0});
    }
    return fds;
}

int write_sets(const std::vector<pollfd>& fds, const Set (&sets)[3]) {
    int bits = 0;
    for (const auto& entry : fds) {
        for (const auto& set : sets) {
            if (set.set == nullptr || !FD_ISSET(entry.fd, set.set)) continue;
            const bool asked = (entry.events & set.asked) != 0;
            if (asked && (entry.revents & set.means_ready) != 0)
                ++bits;
            else
                FD_CLR(entry.fd, set.set);
        }
    }
    return bits;
}

int milliseconds_of(const timeval* timeout) {
    if (timeout == nullptr) return -1;
    constexpr std::int64_t kMostMs = 2'000'000'000;
    const std::int64_t ms = std::min<std::int64_t>(timeout->tv_sec, kMostMs / 1000) * 1000 +
                            (timeout->tv_usec + 999) / 1000;
    return static_cast<int>(std::min(ms, kMostMs));
}

int select_all(int count, const Set (&sets)[3], const timeval* timeout) {
    int bits = 0;
    const int error = ibverbs::fenced([&] {
        auto fds = read_sets(count, sets);
        if (poll_all(fds.data(), fds.size(), milliseconds_of(timeout)) < 0) return errno;
        for (const auto& entry : fds)
            if ((entry.revents & POLLNVAL) != 0) return EBADF;
        bits = write_sets(fds, sets);
        return 0;
    });
    return error == 0 ? bits : ibverbs::minus_one_if(error);
}

}  // namespace
}  // namespace weir::rdmacm

extern "C" {

int rpoll(pollfd* fds, nfds_t count, int timeout_ms) {
    return weir::rdmacm::poll_all(fds, count, timeout_ms);
}

int rselect(int count, fd_set* readable, fd_set* writable, fd_set* exceptional, timeval* timeout) {
    if (count < 0 || count > FD_SETSIZE) return weir::ibverbs::minus_one_if(EINVAL);
    const weir::rdmacm::Set sets[3] = {{readable, POLLIN, POLLIN | POLLHUP | POLLERR},
                                       {writable, POLLOUT, POLLOUT | POLLERR},
                                       {exceptional, POLLPRI, POLLPRI}};
    return weir::rdmacm::select_all(count, sets, timeout);
}

}  // extern "C"

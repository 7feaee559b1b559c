// SPDX-License-Identifier: Apache-2.0
#include "rsocket.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <rdma/rsocket.h>

#include "abi.h"
#include "cm.h"
#include "runtime/real/event_counter.h"

namespace weir::rdmacm {

Time time_now() {
    return Cm::now();
}

int milliseconds_until(Time deadline) {
    if (deadline == kForever) return -1;
    const auto now = time_now();
    if (now >= deadline) return 0;
    constexpr Time kNsPerMs = 1'000'000;
    constexpr Time kMostMs = 1'000'000;
    return static_cast<int>(std::min((deadline - now + kNsPerMs - 1) / kNsPerMs, kMostMs));
}

// ---------------------------------------------------------------- sleepers

Sleeper& Sleeper::own() {
    thread_local Sleeper sleeper;
    return sleeper;
}

Sleeper::~Sleeper() {
    if (fd_ >= 0) ::close(fd_);
}

int Sleeper::fd() {
    const int process = getpid();
    if (fd_ >= 0 && process_ == process) return fd_;
    if (fd_ >= 0) ::close(fd_);
    fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    process_ = process;
    return fd_;
}

void Sleeper::wake() const {
    runtime::raise_event(fd_);
}

void Sleeper::clear() const {
    runtime::take_event(fd_);
}

// ---------------------------------------------------------------- cursors

Cursor::Cursor(const iovec* parts, std::size_t count) : part_(parts) {
    for (std::size_t i = 0; i < count; ++i)
        remaining_ += parts[i].iov_len;
}

template <class Move>
void Cursor::walk(std::size_t bytes, Move&& move) {
    remaining_ -= bytes;
    done_ += bytes;
    while (bytes > 0) {
        const auto here = std::min(bytes, part_->iov_len - offset_);
        move(static_cast<std::uint8_t*>(part_->iov_base) + offset_, here);
        bytes -= here;
        offset_ += here;
        if (offset_ == part_->iov_len) {
            ++part_;
            offset_ = 0;
        }
    }
}

void Cursor::take(std::uint8_t* to, std::size_t bytes) {
    walk(bytes, [&to](const std::uint8_t* part, std::size_t length) {
        if (length != 0) std::memcpy(to, part, length);
        to += length;
    });
}

void Cursor::put(const std::uint8_t* from, std::size_t bytes) {
    walk(bytes, [&from](std::uint8_t* part, std::size_t length) {
        if (length != 0) std::memcpy(part, from, length);
        from += length;
    });
}

// ---------------------------------------------------------------- sockets

Socket::~Socket() {
    drop_number();
}

void Socket::drop_number() {
    if (number_ >= 0) ::close(std::exchange(number_, -1));
}

int Socket::take_number(int flags) {
    number_ = eventfd(0, EFD_NONBLOCK | ((flags & SOCK_CLOEXEC) != 0 ? EFD_CLOEXEC : 0));
    return number_ < 0 ? errno : 0;
}

void Socket::remove_sleeper(Sleeper& sleeper) {
    const auto found = std::find(sleepers_.begin(), sleepers_.end(), &sleeper);
    if (found != sleepers_.end()) sleepers_.erase(found);
}

void Socket::wake_sleepers() {
    for (const auto* sleeper : sleepers_)
        sleeper->wake();
}

Time Socket::deadline_of(const timeval& timeout) {
    if (timeout.tv_sec == 0 && timeout.tv_usec == 0) return kForever;
    return time_now() + static_cast<Time>(timeout.tv_sec) * 1'000'000'000ULL +
           static_cast<Time>(timeout.tv_usec) * 1'000ULL;
}

/// A thread asleep for a socket, which it leaves unlocked meanwhile; until it wakes up or is
/// cancelled.
class Socket::Asleep {
  public:
    Asleep(Socket& socket, std::unique_lock<std::mutex>& guard)
        : socket_(socket),
          guard_(guard),
          fds_{{{sleeper_.fd(), POLLIN, 0}, {socket.wake_fd(), POLLIN, 0}}} {
        socket_.add_sleeper(sleeper_);
        guard_.unlock();
    }
    ~Asleep() {
        guard_.lock();
        socket_.remove_sleeper(sleeper_);
        sleeper_.clear();
        if (fds_[1].revents != 0) socket_.after_sleep();
    }
    Asleep(const Asleep&) = delete;
    Asleep& operator=(const Asleep&) = delete;

    int wait(Time deadline) {
        const ibverbs::CancellationAllowed allowed;
        return poll(fds_.data(), fds_.size(), milliseconds_until(deadline)) < 0 ? errno : 0;
    }

  private:
    Socket& socket_;
    std::unique_lock<std::mutex>& guard_;
    Sleeper& sleeper_ = Sleeper::own();
    std::array<pollfd, 2> fds_;
};

int Socket::sleep(std::unique_lock<std::mutex>& guard, Time deadline) {
    Asleep asleep(*this, guard);
    return asleep.wait(deadline);
}

int Socket::read_address(const sockaddr* address, socklen_t length, Endpoint& out) const {
    if (address == nullptr || length < sizeof(sa_family_t)) return EINVAL;
    const socklen_t least =
        address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    const auto endpoint = length < least ? std::nullopt : Endpoint::from(address);
    if (!endpoint) return address->sa_family == domain_ ? EINVAL : EAFNOSUPPORT;
    if (address->sa_family != domain_) return EAFNOSUPPORT;
    out = as_spoken(*endpoint);
    return out.family != endpoint->family && options_.ipv6_only ? ENETUNREACH : 0;
}

// ---------------------------------------------------------------- options

int Socket::set_option(int level, int name, const void* value, socklen_t length) {
    const std::lock_guard guard(lock);
    // The path is the fabric's own, whatever the program would like.
    if (level == SOL_RDMA && name == RDMA_ROUTE)
        return value == nullptr || length == 0 || length % sizeof(ibv_path_data) != 0 ? EINVAL : 0;
    return options_.set(level, name, value, length);
}

int Socket::get_option(int level, int name, void* value, socklen_t* length) {
    const std::lock_guard guard(lock);
    return get_special_option(level, name, value, length);
}

int Socket::get_special_option(int level, int name, void* value, socklen_t* length) {
    int number = 0;
    if (level != SOL_SOCKET) return options_.get(level, name, value, length);
    switch (name) {
        case SO_ERROR:
            number = take_error();
            break;
        case SO_TYPE:
            number = type_;
            break;
        case SO_DOMAIN:
            number = domain_;
            break;
        case SO_PROTOCOL:
            number = type_ == SOCK_STREAM ? IPPROTO_TCP : IPPROTO_UDP;
            break;
        case SO_ACCEPTCONN:
            break;
        default:
            return options_.get(level, name, value, length);
    }
    return give_option(&number, sizeof number, value, length);
}

}  // namespace weir::rdmacm

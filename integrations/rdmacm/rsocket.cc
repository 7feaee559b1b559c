// SPDX-License-Identifier: Apache-2.0
#include "rsocket.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <rdma/rsocket.h>

#include "cm.h"

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
    const std::uint64_t one = 1;
    (void)!write(fd_, &one, sizeof one);
}

void Sleeper::clear() const {
    std::uint64_t count = 0;
    (void)!read(fd_, &count, sizeof count);
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

int Socket::sleep(std::unique_lock<std::mutex>& guard, Time deadline) {
    auto& sleeper = Sleeper::own();
    pollfd fds[2] = {{sleeper.fd(), POLLIN, 0}, {wake_fd(), POLLIN, 0}};
    add_sleeper(sleeper);
    guard.unlock();
    const int ready = poll(fds, 2, milliseconds_until(deadline));
    const int error = ready < 0 ? errno : 0;
    guard.lock();
    remove_sleeper(sleeper);
    sleeper.clear();
    if (fds[1].revents != 0) after_sleep();
    return error;
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

// SPDX-License-Identifier: Apache-2.0
#include "runtime/real/event_loop.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>

#include "runtime/real/system_error.h"

namespace weir::runtime {

Result<Poller> Poller::create() {
    UniqueFd fd(::epoll_create1(EPOLL_CLOEXEC));
    if (!fd.valid()) {
        return fail_errno(errno, "cannot create an epoll descriptor");
    }
    return Poller(std::move(fd));
}

Result<void> Poller::add(int fd, std::uint64_t token) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLRDHUP;
    event.data.u64 = token;
    if (::epoll_ctl(fd_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
        return fail_errno(errno, "cannot watch a descriptor");
    }
    return {};
}

void Poller::remove(int fd) {
    ::epoll_ctl(fd_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

std::span<const std::uint64_t> Poller::wait(int milliseconds) {
    std::array<epoll_event, 64> events{};
    const int count =
        ::epoll_wait(fd_.get(), events.data(), static_cast<int>(events.size()), milliseconds);
    ready_.clear();
    for (int i = 0; i < count; ++i) {
        ready_.push_back(events[static_cast<std::size_t>(i)].data.u64);
    }
    return ready_;
}

UniqueFd watch_process(pid_t pid) {
    return UniqueFd(pid > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)) : -1);
}

Result<UniqueFd> watch_end_signals() {
    sigset_t set;
    sigemptyset(&set);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
        sigaddset(&set, number);
    }
    if (::sigprocmask(SIG_BLOCK, &set, nullptr) != 0) {
        return fail_errno(errno, "cannot block signals");
    }
    UniqueFd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!fd.valid()) {
        return fail_errno(errno, "cannot create a signal descriptor");
    }
    return fd;
}

int take_signal(int signal_fd) {
    signalfd_siginfo info{};
    const ssize_t taken = ::read(signal_fd, &info, sizeof(info));
    return taken == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
}

std::int64_t monotonic_milliseconds() {
    using std::chrono::duration_cast;
    using std::chrono::milliseconds;
    return duration_cast<milliseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::uint64_t monotonic_nanoseconds() {
    using std::chrono::duration_cast;
    using std::chrono::nanoseconds;
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(duration_cast<nanoseconds>(since).count());
}

std::size_t raise_descriptor_limit() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return 256;
    }
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
    ::getrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_cur;
}

}  // namespace weir::runtime

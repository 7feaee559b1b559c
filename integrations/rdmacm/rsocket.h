// SPDX-License-Identifier: Apache-2.0
// What every rsocket is: a number that is a real descriptor, options, a lock, and threads that may
// sleep until something happens to it.
//
// Whoever calls moves a socket on (progress()): there is no thread that reads for it. A thread that
// has to wait looks for a moment by itself, then sleeps on the descriptor by which the socket's CQ
// tells of completions, and on one of its own, by which other threads tell it that they have taken
// what it waits for.
//
// Locks: a socket's own, then the connection manager's (inside of rdma_*()). Never two sockets'.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "addresses.h"
#include "connection/manager.h"
#include "rsocket_options.h"

namespace weir::rdmacm {

using connection::Time;
inline constexpr Time kForever = ~Time{0};

/// A thread's own descriptor, to be woken by.
class Sleeper {
  public:
    /// This thread's.
    static Sleeper& own();
    ~Sleeper();
    Sleeper(const Sleeper&) = delete;
    Sleeper& operator=(const Sleeper&) = delete;
    /// -1 if there is none to be had; the thread then looks by itself again and again.
    [[nodiscard]] int fd();
    void wake() const;
    void clear() const;

  private:
    Sleeper() = default;
    int fd_ = -1;
    int process_ = 0;  ///< After fork() the descriptor is still the parent's too.
};

/// Where bytes come from or go to, in order.
class Cursor {
  public:
    Cursor(const iovec* parts, std::size_t count);
    [[nodiscard]] std::size_t remaining() const { return remaining_; }
    [[nodiscard]] std::size_t done() const { return done_; }
    /// REQUIRES: bytes <= remaining().
    void take(std::uint8_t* to, std::size_t bytes);
    void put(const std::uint8_t* from, std::size_t bytes);

  private:
    template <class Move>
    void walk(std::size_t bytes, Move&& move);

    const iovec* part_;
    std::size_t offset_ = 0;  ///< Within it.
    std::size_t remaining_ = 0;
    std::size_t done_ = 0;
};

/// What recvmsg() and sendmsg() have beside the bytes.
struct Letter {
    const sockaddr* to = nullptr;
    socklen_t to_length = 0;
    Endpoint from{};
    bool has_from = false;
    bool truncated = false;
    std::size_t full_length = 0;  ///< Of a datagram, whatever there was room for.
};

class Socket {
  public:
    Socket(int domain, int type) : domain_(domain), type_(type) {}
    virtual ~Socket();
    Socket(const Socket&) = delete;
    Socket& operator=(const Socket&) = delete;

    // Calls of the interface: 0 or an errno value. They take the lock themselves.

    virtual int bind(const sockaddr* address, socklen_t length) = 0;
    virtual int listen(int) { return EOPNOTSUPP; }
    virtual int accept(std::shared_ptr<Socket>&, Endpoint&) { return EOPNOTSUPP; }
    virtual int connect(const sockaddr* address, socklen_t length) = 0;
    virtual int shutdown(int how) = 0;
    virtual int send(Cursor& from, int flags, Letter& letter) = 0;
    virtual int receive(Cursor& to, int flags, Letter& letter) = 0;
    virtual int local_address(Endpoint& out) = 0;
    virtual int peer_address(Endpoint& out) = 0;
    int set_option(int level, int name, const void* value, socklen_t length);
    int get_option(int level, int name, void* value, socklen_t* length);
    virtual int map(void*, std::size_t, int, off_t, off_t&) { return EOPNOTSUPP; }
    virtual int unmap(void*, std::size_t) { return EOPNOTSUPP; }
    virtual int write_mapped(Cursor&, off_t, int) { return EOPNOTSUPP; }
    /// The program has closed its number. Ends what other threads wait for.
    virtual void close() = 0;

    // With the lock held.

    /// Takes what has come. True if there was anything.
    virtual bool progress() = 0;
    /// What poll() would say of it, of all there is to say.
    [[nodiscard]] virtual short events() = 0;
    /// Before a sleep: what comes from now on makes wake_fd() readable.
    virtual void prepare_sleep() = 0;
    [[nodiscard]] virtual int wake_fd() const { return -1; }
    /// After a sleep: takes readiness off wake_fd().
    virtual void after_sleep() = 0;
    void add_sleeper(Sleeper& sleeper) { sleepers_.push_back(&sleeper); }
    void remove_sleeper(Sleeper& sleeper);
    void wake_sleepers();

    std::mutex lock;
    /// O_NONBLOCK is set.
    std::atomic<bool> nonblocking{false};

    [[nodiscard]] int domain() const { return domain_; }
    [[nodiscard]] int type() const { return type_; }
    [[nodiscard]] int number() const { return number_; }
    /// Makes the descriptor that is its number. 0 or an errno value.
    int take_number(int flags);
    void drop_number();

  protected:
    /// Waits until done(), and moves the socket on meanwhile. EAGAIN if it may not wait or at the
    /// deadline, EINTR after a signal, EBADF if the socket was closed.
    template <class Done>
    int wait(std::unique_lock<std::mutex>& guard, bool may_wait, Time deadline, Done&& done);
    /// A deadline from one of the two timeouts.
    static Time deadline_of(const timeval& timeout);
    [[nodiscard]] bool may_wait(int flags) const {
        return !nonblocking.load(std::memory_order_relaxed) && (flags & MSG_DONTWAIT) == 0;
    }
    /// The address in the terms of the connection manager, which has no IPv4 within IPv6.
    int read_address(const sockaddr* address, socklen_t length, Endpoint& out) const;
    /// What only some sockets have, or say by themselves.
    virtual int get_special_option(int level, int name, void* value, socklen_t* length);
    int take_error() { return std::exchange(error_, 0); }

    SocketOptions options_;
    int error_ = 0;  ///< SO_ERROR.
    bool closed_ = false;

  private:
    int sleep(std::unique_lock<std::mutex>& guard, Time deadline);
    class Asleep;

    int domain_;
    int type_;
    int number_ = -1;
    std::vector<Sleeper*> sleepers_;
};

/// How long a thread looks by itself before it sleeps.
inline constexpr Time kSpinNs = 50'000;

/// For a moment, so that the other hardware thread, or whoever waits for the lock, gets on.
inline void pause_briefly() {
    __builtin_ia32_pause();
}
Time time_now();
/// For poll(): rounded up; -1 for kForever.
int milliseconds_until(Time deadline);

template <class Done>
int Socket::wait(std::unique_lock<std::mutex>& guard, bool may_wait, Time deadline, Done&& done) {
    Time spin_until = 0;
    for (;;) {
        if (progress()) {
            wake_sleepers();
            spin_until = 0;
        }
        if (closed_) return EBADF;
        if (done()) return 0;
        if (!may_wait) return EAGAIN;
        const auto now = time_now();
        if (now >= deadline) return EAGAIN;
        if (spin_until == 0) spin_until = now + kSpinNs;
        if (now < spin_until) {
            guard.unlock();
            pause_briefly();
            guard.lock();
            continue;
        }
        prepare_sleep();
        if (progress()) {
            wake_sleepers();
            continue;
        }
        if (const int error = sleep(guard, deadline); error != 0) return error;
    }
}

}  // namespace weir::rdmacm

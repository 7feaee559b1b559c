// SPDX-License-Identifier: Apache-2.0
// The process's rsockets by their numbers, and the thread that does what a kernel does for sockets
// while the program is elsewhere: it takes events of the connection manager to the sockets they
// concern, and stays with closed sockets until what they sent has arrived.
//
// At exit() what is under way is waited for, as a kernel would go on sending it. fork: a child has
// none of its parent's rsockets (EBADF), and may begin anew.
#pragma once

#include <poll.h>

#include <atomic>
#include <memory>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "rsocket_stream.h"

namespace weir::rdmacm {

template <class T>
class ProcessWide;

class Sockets {
  public:
    /// This process's. Never destroyed.
    static Sockets& instance();

    // By number.
    std::shared_ptr<Socket> find(int number);
    /// REQUIRES: it has taken its number.
    void add(std::shared_ptr<Socket> socket);
    std::shared_ptr<Socket> remove(int number);

    /// The channel of all identifiers of rsockets; starts the thread. Null with errno set.
    rdma_event_channel* channel();
    /// Events of identifiers whose context is the token go to this socket.
    std::uint64_t name(const std::shared_ptr<StreamSocket>& socket);
    void forget(std::uint64_t token);

    /// Keeps a closed socket until it has finished, or for so long.
    void keep(std::shared_ptr<StreamSocket> socket, Time until);

  private:
    struct Closing {
        std::shared_ptr<StreamSocket> socket;
        Time until;
    };
    friend class ProcessWide<Sockets>;
    Sockets();
    static void at_exit();
    int start();
    Time prepare(std::vector<pollfd>& fds);
    void run_thread();
    void take_events();
    void look_at_closing();
    void finish_all();
    void kick() const;

    std::shared_mutex numbers_lock_;
    std::vector<std::shared_ptr<Socket>> numbers_;
    std::mutex names_lock_;
    std::unordered_map<std::uint64_t, std::weak_ptr<StreamSocket>> names_;
    std::uint64_t next_token_ = 1;
    std::mutex start_lock_;
    rdma_event_channel* channel_ = nullptr;
    int kick_fd_ = -1;
    std::mutex closing_lock_;
    std::vector<Closing> closing_;
};

}  // namespace weir::rdmacm

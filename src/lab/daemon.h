// SPDX-License-Identifier: Apache-2.0
// Daemon: serves the attach protocol of one fabric and cares for its processes. One thread, one
// event loop; no client can make it wait. What a client sends is judged by attach_protocol.h, and a
// client that does not read its replies, floods or speaks another protocol loses its connection.
//
// Packets do not need the daemon: programs move them. If it dies, what is attached notices by the
// end of its connection; the next `weir up` starts afresh.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/result.h"
#include "lab/arena_builder.h"
#include "lab/attach_protocol.h"
#include "lab/process_table.h"
#include "runtime/real/event_loop.h"
#include "runtime/real/record_socket.h"

namespace weir::lab {

class Daemon {
  public:
    /// `listener` comes from runtime::listen_records. Only user `owner` and root are served.
    static Result<std::unique_ptr<Daemon>> create(FabricMemory memory, runtime::UniqueFd listener,
                                                  uid_t owner);

    /// Where the device files of the hosts are (host_tree.h): these say what state links are in.
    void keep_trees(std::string fabric_folder) { fabric_folder_ = std::move(fabric_folder); }

    /// Serves until a client asks for the end or SIGINT, SIGTERM or SIGHUP comes. On return all
    /// programs have been told and their connections are closed.
    void run();

    /// One turn of the loop, waiting at most so long. False when it is time to end. For tests.
    bool turn(int milliseconds);

    [[nodiscard]] std::size_t connection_count() const { return connections_.size(); }

  private:
    struct Connection {
        runtime::UniqueFd socket;
        runtime::UniqueFd process;  ///< pidfd, once attached.
        runtime::PeerCredentials peer;
        std::uint32_t identity = 0;  ///< 0 until attached.
    };
    using ConnectionMap = std::map<std::uint64_t, Connection>;

    Daemon(FabricMemory memory, runtime::UniqueFd listener, uid_t owner, runtime::Poller poller);
    void accept_all();
    /// Reads and answers one request. False: the connection is to be closed.
    bool serve(std::uint64_t id, Connection& connection);
    bool carry_out(std::uint64_t id, Connection& connection, const Judgement& judgement,
                   runtime::Record& record);
    bool attach(std::uint64_t id, Connection& connection, std::uint32_t node,
                runtime::UniqueFd window);
    bool set_link(const Connection& connection, LinkView link, bool up);
    bool set_rate(const Connection& connection, LinkView link, std::uint64_t rate);
    static bool reply(const Connection& connection, const arena::AttachReply& reply, int fd = -1);
    void close(ConnectionMap::iterator connection);
    void say_goodbye();

    FabricMemory memory_;
    arena::Arena arena_;
    runtime::UniqueFd listener_;
    runtime::UniqueFd signals_;
    uid_t owner_;
    std::string fabric_folder_;  ///< Empty: no device files are kept.
    runtime::Poller poller_;
    ProcessTable processes_;
    ConnectionMap connections_;
    std::size_t connection_limit_;
    std::uint64_t next_id_ = 1;
    std::int64_t next_tick_ = 0;
    bool ending_ = false;
};

}  // namespace weir::lab

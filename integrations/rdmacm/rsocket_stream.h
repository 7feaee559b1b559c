// SPDX-License-Identifier: Apache-2.0
// SOCK_STREAM: connections by the connection manager, bytes by a Link.
//
//   active:   kFresh ─connect()─▶ kConnecting ─ESTABLISHED─▶ kConnected
//   passive:  kFresh ─listen()─▶ kListening;  a request's socket: kConnecting ─▶ kConnected, then
//   it
//             waits for accept()
//   end:      kConnected ─DISCONNECTED, a broken link─▶ still kConnected, but `lost_`
//
// Events of the connection manager come by the process's service thread (rsocket_service.h), which
// does what a kernel would: it accepts, and ends connections, while the program does other things.
#pragma once

#include <deque>
#include <span>

#include <rdma/rdma_cma.h>

#include "rsocket.h"
#include "rsocket_link.h"

namespace weir::rdmacm {

/// An event of the connection manager, copied.
struct ConnectionEvent {
    rdma_cm_event_type type{};
    int status = 0;
    rdma_cm_id* id = nullptr;
    std::vector<std::uint8_t> private_data;
};

class StreamSocket : public Socket, public std::enable_shared_from_this<StreamSocket> {
  public:
    explicit StreamSocket(int domain) : Socket(domain, SOCK_STREAM) {}
    ~StreamSocket() override;

    int bind(const sockaddr* address, socklen_t length) override;
    int listen(int backlog) override;
    int accept(std::shared_ptr<Socket>& out, Endpoint& peer) override;
    int connect(const sockaddr* address, socklen_t length) override;
    int shutdown(int how) override;
    int send(Cursor& from, int flags, Letter& letter) override;
    int receive(Cursor& to, int flags, Letter& letter) override;
    int local_address(Endpoint& out) override;
    int peer_address(Endpoint& out) override;
    int map(void* address, std::size_t length, int protection, off_t wanted, off_t& out) override;
    int unmap(void* address, std::size_t length) override;
    int write_mapped(Cursor& from, off_t offset, int flags) override;
    void close() override;

    bool progress() override;
    short events() override;
    void prepare_sleep() override;
    [[nodiscard]] int wake_fd() const override;
    void after_sleep() override;

    /// For the service thread, without the lock.
    void on_event(const ConnectionEvent& event);
    /// Closed, and what was sent has arrived or never will.
    [[nodiscard]] bool has_finished() const;
    /// Ends the connection without waiting for what is under way. With the lock held.
    void abandon();

  protected:
    int get_special_option(int level, int name, void* value, socklen_t* length) override;

  private:
    enum class Phase : std::uint8_t { kFresh, kListening, kConnecting, kConnected, kEnded };
    struct Request {
        rdma_cm_id* id;
        rsocket::Greeting greeting;
    };

    int make_identifier();
    void drop_connection();
    int resolve(const Endpoint& to);
    int request_connection(const Endpoint& to);
    int wait_for_connection(std::unique_lock<std::mutex>& guard);
    void on_established(const ConnectionEvent& event);
    void on_failed(int error);
    void on_disconnected();
    void on_request(const ConnectionEvent& event);
    void take_request(const Request& request);
    int answer(const Request& request, rdma_cm_id* id);
    void on_child(StreamSocket& child, bool ready);
    void end_listening();
    void lose(int error);
    [[nodiscard]] bool has_room_for_request() const;
    int send_error();
    int check_connected() const;
    void linger(std::unique_lock<std::mutex>& guard);

    Phase phase_ = Phase::kFresh;
    rdma_cm_id* id_ = nullptr;
    std::uint64_t token_ = 0;  ///< By which events name this socket; 0 before there may be any.
    bool bound_ = false;
    bool passive_ = false;  ///< Came by a request.
    std::unique_ptr<Link> link_;
    bool lost_ = false;      ///< Nothing more comes or goes.
    bool deaf_ = false;      ///< shutdown(SHUT_RD).
    bool finished_ = false;  ///< shutdown(SHUT_WR).

    // A listener's.
    std::size_t backlog_ = 0;
    std::deque<Request> requests_;                        ///< For want of room in the backlog.
    std::vector<std::shared_ptr<StreamSocket>> shaking_;  ///< Their handshake is under way.
    std::deque<std::shared_ptr<StreamSocket>> ready_;
    std::weak_ptr<StreamSocket> parent_;  ///< Of a request's socket.
};

}  // namespace weir::rdmacm

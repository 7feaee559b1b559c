// SPDX-License-Identifier: Apache-2.0
// The connection manager: IBTA chapter 12 as a state machine without clock, thread or system call.
// It takes calls, MADs and the time, and gives actions: MADs to send and notices for the user.
//
//   active:   request() ─REQ▶ kReqSent ◀REP─ kRepReceived ─ready() RTU▶ kEstablished
//   passive:  ◀REQ─ kReqReceived ─accept() REP▶ kRepSent ◀RTU─ kEstablished
//   end:      disconnect() ─DREQ▶ kDreqSent ◀DREP─ kTimewait ─time▶ gone
//             ◀DREQ─ kDreqReceived ─disconnect() DREP▶ kTimewait
//   datagram: request_datagram() ─SIDR_REQ▶ kSidrReqSent ◀SIDR_REP─ gone;  the other side answers
//
// What is lost is sent again: REQ, REP, DREQ and SIDR_REQ are repeated until answered, `retries`
// times. A repeated message is answered again and changes nothing. A REQ that its user is slow to
// answer is met with MRA once it comes again, which makes the other side wait long.
//
// Who listens is the user's business: every REQ is a notice, and he accepts or rejects it.
//
// Deviations from IBTA: no LAP (alternate paths); timewait is not waited for before a peer's QP
// number may come again, because numbers are not shared between machines here.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "wire/cm_mad.h"

namespace weir::connection {

/// Monotonic time in nanoseconds.
using Time = std::uint64_t;
/// The local communication ID. Never 0.
using Id = std::uint32_t;

/// Where MADs come from and go to: a control QP, seen from one of our devices.
struct Peer {
    std::uint32_t device = 0;
    std::uint32_t lid = 0;
    std::uint32_t qp_number = 0;
    bool operator==(const Peer&) const = default;
};

enum class State : std::uint8_t {
    kIdle,
    kReqSent,
    kReqReceived,
    kRepSent,
    kRepReceived,
    kEstablished,
    kDreqSent,
    kDreqReceived,
    kTimewait,
    kSidrReqSent,
    kSidrReqReceived,
    kEnded,  ///< Nothing more will happen; waits for close().
};

/// Exponents count in 4.096 µs * 2^n.
struct Timing {
    std::uint8_t response_timeout = 18;  ///< 1.07 s, that either side may take to answer.
    std::uint8_t retries = 15;
    std::uint8_t service_timeout = 24;  ///< In MRA: 69 s, for users that take their time.
    std::uint8_t timewait = 13;         ///< 34 ms.
};

constexpr Time duration_ns(std::uint8_t exponent) {
    return Time{4096} << (exponent < 31 ? exponent : 31U);
}

struct SendAction {
    Peer to;
    wire::CmMadBytes bytes;
};

enum class NoticeKind : std::uint8_t {
    kRequest,          ///< REQ: a new connection `id`; `mad` is the CmRequest.
    kReply,            ///< REP came; to be followed by ready().
    kReady,            ///< RTU came, or establish().
    kRejected,         ///< `status` is the reason; `mad` the CmReject, if one came.
    kUnreachable,      ///< Nothing came in time.
    kDisconnected,     ///< DREQ or DREP came, or the other end has died.
    kTimewaitEnd,      ///< The QP may be used again.
    kDatagramRequest,  ///< SIDR_REQ: a new `id`.
    kDatagramReply,    ///< SIDR_REP; `mad` is it, whatever its status.
};

struct Notice {
    Id id = 0;
    NoticeKind kind = NoticeKind::kRequest;
    int status = 0;  ///< kRejected: reason. kUnreachable, kDisconnected: 0 or -ETIMEDOUT.
    Peer from;
    wire::CmMad mad;
};

/// In the order in which they are to be done.
using Action = std::variant<SendAction, Notice>;

class Manager {
  public:
    /// `first_id` should differ from run to run: old messages are then not taken for new.
    explicit Manager(Id first_id, Timing timing = {});
    ~Manager();
    Manager(const Manager&) = delete;
    Manager& operator=(const Manager&) = delete;

    // Calls give 0, or EINVAL if the connection's state does not allow it (or it is unknown).

    /// Begins a connection: fills in the message's id and timeouts and sends it.
    Id request(const Peer& to, wire::CmRequest message, std::uint32_t modifier, Time now);
    Id request_datagram(const Peer& to, wire::CmDatagramRequest message, Time now);
    /// Answers kRequest. The message's ids are filled in.
    int accept(Id id, wire::CmReply message, std::uint32_t modifier, Time now);
    /// Answers kDatagramRequest. Ends it, whatever the status in `message`.
    int answer_datagram(Id id, wire::CmDatagramReply message, Time now);
    /// Answers kRequest or kReply with a refusal.
    int reject(Id id, std::uint16_t reason, std::span<const std::uint8_t> private_data, Time now);
    /// Answers kReply: RTU.
    int ready(Id id, Time now);
    /// Data came by the connection before its RTU did.
    int establish(Id id, Time now);
    /// From either side; answers kDisconnected where the peer has asked for the end.
    int disconnect(Id id, Time now);
    /// The user wants to hear no more of it. The peer is told as the state requires.
    void close(Id id, Time now);

    /// A MAD has come. What is no CM MAD, or belongs to nothing here, is dropped or rejected.
    void on_mad(const Peer& from, std::span<const std::uint8_t> bytes, Time now);
    void on_time(Time now);
    /// The process behind this control QP is gone.
    void on_peer_lost(const Peer& peer, Time now);

    /// When on_time() is to be called at the latest.
    [[nodiscard]] std::optional<Time> deadline() const;
    /// What is to be done, since the last call.
    std::vector<Action> take_actions() { return std::exchange(actions_, {}); }

    [[nodiscard]] State state(Id id) const;
    /// The peers of all connections, each once.
    [[nodiscard]] std::vector<Peer> peers() const;
    [[nodiscard]] std::size_t size() const { return connections_.size(); }

  private:
    struct Connection;
    struct RemoteKey {
        Peer peer;
        std::uint32_t remote_id;
        bool datagram;
        bool operator==(const RemoteKey&) const = default;
    };
    struct RemoteKeyHash {
        std::size_t operator()(const RemoteKey& key) const;
    };

    Connection& open(const Peer& peer);
    [[nodiscard]] Connection* find(Id id) const;
    Connection* find_from(Id local_id, const Peer& from, std::uint32_t remote_id) const;
    void forget(Connection& c);
    void send(const Peer& to, const wire::CmMad& mad);
    /// Sends and keeps a copy to repeat it.
    void send_until_answered(Connection& c, const wire::CmMad& mad, Time now);
    void stop_timer(Connection& c);
    void set_timer(Connection& c, Time at);
    void notify(Connection& c, NoticeKind kind, int status, const wire::CmMad& mad);
    void enter_timewait(Connection& c, Time now);
    void end(Connection& c);
    wire::CmMad reply_to(const Connection& c, wire::CmBody body);

    void on(const Peer& from, const wire::CmMad& mad, const wire::CmRequest& m, Time now);
    void on(const Peer& from, const wire::CmMad& mad, const wire::CmMessageReceipt& m, Time now);
    void on(const Peer& from, const wire::CmMad& mad, const wire::CmReject& m, Time now);
    void on(const Peer& from, const wire::CmMad& mad, const wire::CmReply& m, Time now);
    void on(const Peer& from, const wire::CmMad& mad, const wire::CmReadyToUse& m, Time now);
    void on(const Peer& from, const wire::CmMad& mad, const wire::CmDisconnectRequest& m, Time now);
    void on(const Peer& from, const wire::CmMad& mad, const wire::CmDisconnectReply& m, Time now);
    void on(const Peer& from, const wire::CmMad& mad, const wire::CmDatagramRequest& m, Time now);
    void on(const Peer& from, const wire::CmMad& mad, const wire::CmDatagramReply& m, Time now);
    void on_repeated_request(Connection& c);
    bool refuse_stale(const Peer& from, const wire::CmMad& mad, const wire::CmRequest& m, Time now);
    void on_exhausted(Connection& c, Time now);

    Timing timing_;
    Id next_id_;
    std::uint64_t next_transaction_;
    std::unordered_map<Id, std::unique_ptr<Connection>> connections_;
    std::unordered_map<RemoteKey, Id, RemoteKeyHash> by_remote_;
    /// Connected peers' QPs, to notice one that begins anew: {peer LID, QP number} → connection.
    std::unordered_map<std::uint64_t, Id> by_qp_;
    std::set<std::pair<Time, Id>> timers_;
    std::vector<Action> actions_;
};

}  // namespace weir::connection

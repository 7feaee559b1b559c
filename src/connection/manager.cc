// SPDX-License-Identifier: Apache-2.0
#include "connection/manager.h"

#include <algorithm>
#include <cerrno>
#include <variant>

namespace weir::connection {

using wire::CmAnswered;
using wire::CmMad;
using wire::CmReason;

struct Manager::Connection {
    Id id = 0;
    State state = State::kIdle;
    Peer peer;
    std::uint32_t remote_id = 0;
    std::uint32_t remote_qp = 0;
    std::uint64_t transaction_id = 0;
    bool active = false;  ///< We sent the REQ.
    bool datagram = false;
    bool closed = false;                ///< The user wants no notices any more.
    bool connected = false;             ///< Was established, so that its QP has a timewait.
    std::uint8_t response_timeout = 0;  ///< How long the peer may take.
    std::uint8_t retries_max = 0;
    // The message that waits for its answer, or that answers repeated questions.
    wire::CmMadBytes sent{};
    std::uint8_t retries_left = 0;
    Time timer = 0;  ///< 0 while none runs.
};

namespace {

std::uint64_t qp_key(const Peer& peer, std::uint32_t qp_number) {
    return static_cast<std::uint64_t>(peer.lid) << 32U | qp_number;
}

constexpr std::uint16_t code(CmReason reason) {
    return static_cast<std::uint16_t>(reason);
}

}  // namespace

std::size_t Manager::RemoteKeyHash::operator()(const RemoteKey& key) const {
    std::uint64_t hash = static_cast<std::uint64_t>(key.peer.lid) << 32U | key.peer.qp_number;
    hash = hash * 0x9e3779b97f4a7c15ULL + key.remote_id + (key.datagram ? 1ULL << 40U : 0);
    hash = hash * 0x9e3779b97f4a7c15ULL + key.peer.device;
    return hash ^ hash >> 29U;
}

Manager::Manager(Id first_id, Timing timing)
    : timing_(timing),
      next_id_(first_id),
      next_transaction_(static_cast<std::uint64_t>(first_id) << 32U) {}

Manager::~Manager() = default;

Manager::Connection& Manager::open(const Peer& peer) {
    while (next_id_ == 0 || connections_.contains(next_id_))
        ++next_id_;
    auto c = std::make_unique<Connection>();
    c->id = next_id_++;
    c->peer = peer;
    c->response_timeout = timing_.response_timeout;
    c->retries_max = timing_.retries;
    auto& out = *c;
    connections_.emplace(out.id, std::move(c));
    return out;
}

Manager::Connection* Manager::find(Id id) const {
    const auto it = connections_.find(id);
    return it == connections_.end() ? nullptr : it->second.get();
}

/// The connection that a message from `from` means. Its peer must be the one it was made with.
Manager::Connection* Manager::find_from(Id local_id, const Peer& from,
                                        std::uint32_t remote_id) const {
    auto* c = find(local_id);
    if (c == nullptr || c->datagram || !(c->peer == from)) return nullptr;
    return c->remote_id == 0 || c->remote_id == remote_id ? c : nullptr;
}

void Manager::forget(Connection& c) {
    stop_timer(c);
    if (c.remote_id != 0) by_remote_.erase({c.peer, c.remote_id, c.datagram});
    const auto qp = by_qp_.find(qp_key(c.peer, c.remote_qp));
    if (qp != by_qp_.end() && qp->second == c.id) by_qp_.erase(qp);
    connections_.erase(c.id);
}

void Manager::send(const Peer& to, const CmMad& mad) {
    actions_.emplace_back(SendAction{to, wire::encode_cm_mad(mad)});
}

void Manager::send_until_answered(Connection& c, const CmMad& mad, Time now) {
    c.sent = wire::encode_cm_mad(mad);
    c.retries_left = c.retries_max;
    set_timer(c, now + duration_ns(c.response_timeout));
    actions_.emplace_back(SendAction{c.peer, c.sent});
}

void Manager::stop_timer(Connection& c) {
    if (c.timer != 0) timers_.erase({c.timer, c.id});
    c.timer = 0;
}

void Manager::set_timer(Connection& c, Time at) {
    stop_timer(c);
    c.timer = std::max<Time>(at, 1);
    timers_.emplace(c.timer, c.id);
}

void Manager::notify(Connection& c, NoticeKind kind, int status, const CmMad& mad) {
    if (!c.closed) actions_.emplace_back(Notice{c.id, kind, status, c.peer, mad});
}

CmMad Manager::reply_to(const Connection& c, wire::CmBody body) {
    return {c.transaction_id, 0, std::move(body)};
}

void Manager::enter_timewait(Connection& c, Time now) {
    c.state = State::kTimewait;
    set_timer(c, now + duration_ns(timing_.timewait));
}

void Manager::end(Connection& c) {
    stop_timer(c);
    c.state = State::kEnded;
    if (c.closed) forget(c);
}

State Manager::state(Id id) const {
    const auto* c = find(id);
    return c == nullptr ? State::kIdle : c->state;
}

std::vector<Peer> Manager::peers() const {
    std::vector<Peer> all;
    for (const auto& [id, c] : connections_)
        if (std::find(all.begin(), all.end(), c->peer) == all.end()) all.push_back(c->peer);
    return all;
}

std::optional<Time> Manager::deadline() const {
    if (timers_.empty()) return std::nullopt;
    return timers_.begin()->first;
}

// ---------------------------------------------------------------- calls

Id Manager::request(const Peer& to, wire::CmRequest message, std::uint32_t modifier, Time now) {
    auto& c = open(to);
    c.active = true;
    c.state = State::kReqSent;
    c.transaction_id = next_transaction_++;
    message.local_id = c.id;
    message.remote_response_timeout = timing_.response_timeout;
    message.local_response_timeout = timing_.response_timeout;
    message.cm_retries_max = timing_.retries;
    send_until_answered(c, {c.transaction_id, modifier, message}, now);
    return c.id;
}

Id Manager::request_datagram(const Peer& to, wire::CmDatagramRequest message, Time now) {
    auto& c = open(to);
    c.active = true;
    c.datagram = true;
    c.state = State::kSidrReqSent;
    c.transaction_id = next_transaction_++;
    message.request_id = c.id;
    send_until_answered(c, reply_to(c, message), now);
    return c.id;
}

int Manager::accept(Id id, wire::CmReply message, std::uint32_t modifier, Time now) {
    auto* c = find(id);
    if (c == nullptr || c->state != State::kReqReceived) return EINVAL;
    message.local_id = c->id;
    message.remote_id = c->remote_id;
    c->state = State::kRepSent;
    send_until_answered(*c, {c->transaction_id, modifier, message}, now);
    return 0;
}

int Manager::answer_datagram(Id id, wire::CmDatagramReply message, Time now) {
    auto* c = find(id);
    if (c == nullptr || c->state != State::kSidrReqReceived) return EINVAL;
    message.request_id = c->remote_id;
    const auto mad = reply_to(*c, message);
    send(c->peer, mad);
    // Kept for a while, to answer the request again should the reply get lost.
    c->sent = wire::encode_cm_mad(mad);
    c->closed = true;
    c->state = State::kTimewait;
    set_timer(*c, now + duration_ns(c->response_timeout) * 2);
    return 0;
}

int Manager::reject(Id id, std::uint16_t reason, std::span<const std::uint8_t> private_data,
                    Time now) {
    auto* c = find(id);
    if (c == nullptr) return EINVAL;
    const bool passive = c->state == State::kReqReceived || c->state == State::kRepSent;
    if (!passive && c->state != State::kRepReceived && c->state != State::kReqSent) return EINVAL;
    wire::CmReject message;
    message.local_id = c->id;
    message.remote_id = c->remote_id;
    message.answered = c->state == State::kReqReceived   ? CmAnswered::kRequest
                       : c->state == State::kRepReceived ? CmAnswered::kReply
                                                         : CmAnswered::kOther;
    message.reason = reason;
    const auto size = std::min(private_data.size(), message.private_data.size());
    std::copy_n(private_data.begin(), size, message.private_data.begin());
    const auto mad = reply_to(*c, message);
    send(c->peer, mad);
    // A REQ or REP that comes again is rejected again.
    c->sent = wire::encode_cm_mad(mad);
    enter_timewait(*c, now);
    return 0;
}

int Manager::ready(Id id, Time) {
    auto* c = find(id);
    if (c == nullptr || c->state != State::kRepReceived) return EINVAL;
    stop_timer(*c);
    c->state = State::kEstablished;
    c->connected = true;
    const wire::CmReadyToUse message{c->id, c->remote_id, {}};
    const auto mad = reply_to(*c, message);
    c->sent = wire::encode_cm_mad(mad);
    actions_.emplace_back(SendAction{c->peer, c->sent});
    return 0;
}

int Manager::establish(Id id, Time) {
    auto* c = find(id);
    if (c == nullptr) return EINVAL;
    if (c->state == State::kEstablished) return EISCONN;
    if (c->state != State::kRepSent) return EINVAL;
    stop_timer(*c);
    c->state = State::kEstablished;
    c->connected = true;
    notify(*c, NoticeKind::kReady, 0, {});
    return 0;
}

int Manager::disconnect(Id id, Time now) {
    auto* c = find(id);
    if (c == nullptr) return EINVAL;
    if (c->state == State::kEstablished || c->state == State::kRepSent) {
        c->state = State::kDreqSent;
        c->transaction_id = next_transaction_++;
        wire::CmDisconnectRequest message;
        message.local_id = c->id;
        message.remote_id = c->remote_id;
        message.remote_qp_number = c->remote_qp;
        send_until_answered(*c, reply_to(*c, message), now);
        return 0;
    }
    if (c->state != State::kDreqReceived) return EINVAL;
    const wire::CmDisconnectReply message{c->id, c->remote_id, {}};
    const auto mad = reply_to(*c, message);
    c->sent = wire::encode_cm_mad(mad);
    actions_.emplace_back(SendAction{c->peer, c->sent});
    enter_timewait(*c, now);
    return 0;
}

void Manager::close(Id id, Time now) {
    auto* c = find(id);
    if (c == nullptr || c->closed) return;
    switch (c->state) {
        case State::kReqSent:
            reject(id, code(CmReason::kTimeout), {}, now);
            break;
        case State::kReqReceived:
        case State::kRepSent:
        case State::kRepReceived:
            reject(id, code(CmReason::kConsumer), {}, now);
            break;
        case State::kEstablished:
        case State::kDreqReceived:
            disconnect(id, now);
            break;
        case State::kSidrReqReceived: {
            wire::CmDatagramReply refusal;
            refusal.status = wire::CmDatagramStatus::kRejected;
            answer_datagram(id, refusal, now);
            break;
        }
        default:
            break;
    }
    c->closed = true;
    const bool lingers = c->state == State::kTimewait || c->state == State::kDreqSent;
    if (!lingers) {
        forget(*c);
    } else if (c->state == State::kDreqSent) {
        // Nobody waits for the answer any more: the DREQ is not repeated.
        enter_timewait(*c, now);
    }
}

// ---------------------------------------------------------------- MADs

void Manager::on_mad(const Peer& from, std::span<const std::uint8_t> bytes, Time now) {
    const auto mad = wire::decode_cm_mad(bytes);
    if (!mad) return;
    std::visit([&](const auto& message) { on(from, *mad, message, now); }, mad->body);
}

/// The peer has begun anew with a QP that we take for connected: one of the two is of the past
/// (IBTA 12.9.8.3.1). The new one is refused, the old one ends.
bool Manager::refuse_stale(const Peer& from, const CmMad& mad, const wire::CmRequest& m, Time now) {
    const auto known = by_qp_.find(qp_key(from, m.qp_number));
    if (known == by_qp_.end()) return false;
    auto* old = find(known->second);
    if (old == nullptr || old->state != State::kEstablished) return false;
    wire::CmReject refusal;
    refusal.remote_id = m.local_id;
    refusal.reason = code(CmReason::kStaleConnection);
    send(from, {mad.transaction_id, 0, refusal});
    disconnect(old->id, now);
    return true;
}

void Manager::on_repeated_request(Connection& c) {
    if (c.state == State::kReqReceived) {
        wire::CmMessageReceipt receipt;
        receipt.local_id = c.id;
        receipt.remote_id = c.remote_id;
        receipt.answered = CmAnswered::kRequest;
        receipt.service_timeout = timing_.service_timeout;
        send(c.peer, reply_to(c, receipt));
    } else if (c.state == State::kRepSent || c.state == State::kTimewait) {
        actions_.emplace_back(SendAction{c.peer, c.sent});
    }
}

void Manager::on(const Peer& from, const CmMad& mad, const wire::CmRequest& m, Time now) {
    if (m.local_id == 0) return;
    const RemoteKey key{from, m.local_id, false};
    if (const auto known = by_remote_.find(key); known != by_remote_.end()) {
        if (auto* c = find(known->second); c != nullptr) on_repeated_request(*c);
        return;
    }
    if (refuse_stale(from, mad, m, now)) return;
    auto& c = open(from);
    c.state = State::kReqReceived;
    c.remote_id = m.local_id;
    c.remote_qp = m.qp_number;
    c.transaction_id = mad.transaction_id;
    c.response_timeout = m.local_response_timeout;
    c.retries_max = m.cm_retries_max;
    by_remote_[key] = c.id;
    by_qp_[qp_key(from, m.qp_number)] = c.id;
    notify(c, NoticeKind::kRequest, 0, mad);
}

void Manager::on(const Peer& from, const CmMad&, const wire::CmMessageReceipt& m, Time now) {
    auto* c = find_from(m.remote_id, from, m.local_id);
    if (c == nullptr) return;
    const bool waits = (c->state == State::kReqSent && m.answered == CmAnswered::kRequest) ||
                       (c->state == State::kRepSent && m.answered == CmAnswered::kReply);
    if (waits)
        set_timer(*c, now + duration_ns(m.service_timeout) + duration_ns(c->response_timeout));
}

void Manager::on(const Peer& from, const CmMad& mad, const wire::CmReply& m, Time now) {
    auto* c = find_from(m.remote_id, from, m.local_id);
    if (c == nullptr) {
        wire::CmReject refusal;
        refusal.local_id = 0;
        refusal.remote_id = m.local_id;
        refusal.answered = CmAnswered::kReply;
        refusal.reason = code(CmReason::kTimeout);
        send(from, {mad.transaction_id, 0, refusal});
        return;
    }
    switch (c->state) {
        case State::kReqSent:
            stop_timer(*c);
            c->state = State::kRepReceived;
            c->remote_id = m.local_id;
            c->remote_qp = m.qp_number;
            by_remote_[{from, m.local_id, false}] = c->id;
            by_qp_[qp_key(from, m.qp_number)] = c->id;
            notify(*c, NoticeKind::kReply, 0, mad);
            break;
        case State::kRepReceived: {
            wire::CmMessageReceipt receipt;
            receipt.local_id = c->id;
            receipt.remote_id = c->remote_id;
            receipt.answered = CmAnswered::kReply;
            receipt.service_timeout = timing_.service_timeout;
            send(c->peer, reply_to(*c, receipt));
            break;
        }
        case State::kEstablished:  // our RTU got lost
        case State::kTimewait:     // or our refusal
            if (c->active) actions_.emplace_back(SendAction{c->peer, c->sent});
            break;
        default:
            break;
    }
    static_cast<void>(now);
}

void Manager::on(const Peer& from, const CmMad& mad, const wire::CmReadyToUse& m, Time) {
    auto* c = find_from(m.remote_id, from, m.local_id);
    if (c == nullptr || c->state != State::kRepSent) return;
    stop_timer(*c);
    c->state = State::kEstablished;
    c->connected = true;
    notify(*c, NoticeKind::kReady, 0, mad);
}

void Manager::on(const Peer& from, const CmMad& mad, const wire::CmReject& m, Time now) {
    auto* c = find_from(m.remote_id, from, m.local_id == 0 ? 0 : m.local_id);
    if (c == nullptr && m.remote_id == 0) {
        // The refuser of a REQ that was taken back does not know our number, only its own.
        const auto known = by_remote_.find({from, m.local_id, false});
        if (known != by_remote_.end()) c = find(known->second);
    }
    if (c == nullptr && m.local_id == 0) {
        c = find(m.remote_id);
        if (c != nullptr && (c->datagram || !(c->peer == from))) c = nullptr;
    }
    if (c == nullptr) return;
    switch (c->state) {
        case State::kReqSent:
        case State::kReqReceived:
        case State::kRepSent:
        case State::kRepReceived:
            notify(*c, NoticeKind::kRejected, m.reason, mad);
            end(*c);
            break;
        case State::kEstablished:
            notify(*c, NoticeKind::kDisconnected, 0, mad);
            enter_timewait(*c, now);
            break;
        case State::kDreqSent:
            notify(*c, NoticeKind::kDisconnected, 0, mad);
            enter_timewait(*c, now);
            break;
        default:
            break;
    }
}

void Manager::on(const Peer& from, const CmMad& mad, const wire::CmDisconnectRequest& m, Time now) {
    auto* c = find_from(m.remote_id, from, m.local_id);
    if (c == nullptr) {
        // It has ended here already; the other side shall not wait for it.
        send(from, {mad.transaction_id, 0, wire::CmDisconnectReply{m.remote_id, m.local_id, {}}});
        return;
    }
    switch (c->state) {
        case State::kRepSent:  // the RTU got lost
            c->connected = true;
            notify(*c, NoticeKind::kReady, 0, {});
            [[fallthrough]];
        case State::kEstablished:
            stop_timer(*c);
            c->state = State::kDreqReceived;
            c->transaction_id = mad.transaction_id;
            notify(*c, NoticeKind::kDisconnected, 0, mad);
            break;
        case State::kDreqSent:  // both at once: each takes the other's wish for the answer
            send(from, {mad.transaction_id, 0, wire::CmDisconnectReply{c->id, c->remote_id, {}}});
            notify(*c, NoticeKind::kDisconnected, 0, mad);
            enter_timewait(*c, now);
            break;
        case State::kTimewait:
        case State::kEnded:
            send(from, {mad.transaction_id, 0, wire::CmDisconnectReply{c->id, c->remote_id, {}}});
            break;
        default:
            break;
    }
}

void Manager::on(const Peer& from, const CmMad& mad, const wire::CmDisconnectReply& m, Time now) {
    auto* c = find_from(m.remote_id, from, m.local_id);
    if (c == nullptr || c->state != State::kDreqSent) return;
    notify(*c, NoticeKind::kDisconnected, 0, mad);
    enter_timewait(*c, now);
}

void Manager::on(const Peer& from, const CmMad& mad, const wire::CmDatagramRequest& m, Time) {
    if (m.request_id == 0) return;
    const RemoteKey key{from, m.request_id, true};
    if (const auto known = by_remote_.find(key); known != by_remote_.end()) {
        const auto* c = find(known->second);
        if (c != nullptr && c->state == State::kTimewait)
            actions_.emplace_back(SendAction{c->peer, c->sent});
        return;
    }
    auto& c = open(from);
    c.datagram = true;
    c.state = State::kSidrReqReceived;
    c.remote_id = m.request_id;
    c.transaction_id = mad.transaction_id;
    by_remote_[key] = c.id;
    notify(c, NoticeKind::kDatagramRequest, 0, mad);
}

void Manager::on(const Peer& from, const CmMad& mad, const wire::CmDatagramReply& m, Time) {
    auto* c = find(m.request_id);
    if (c == nullptr || c->state != State::kSidrReqSent || !(c->peer == from)) return;
    notify(*c, NoticeKind::kDatagramReply, 0, mad);
    end(*c);
}

// ---------------------------------------------------------------- time and death

/// Nothing came, however often it was sent.
void Manager::on_exhausted(Connection& c, Time now) {
    switch (c.state) {
        case State::kReqSent:
        case State::kRepSent: {
            wire::CmReject refusal;
            refusal.local_id = c.id;
            refusal.remote_id = c.remote_id;
            refusal.answered =
                c.state == State::kRepSent ? CmAnswered::kOther : CmAnswered::kRequest;
            refusal.reason = code(CmReason::kTimeout);
            send(c.peer, reply_to(c, refusal));
            notify(c, NoticeKind::kUnreachable, -ETIMEDOUT, {});
            end(c);
            break;
        }
        case State::kDreqSent:
            notify(c, NoticeKind::kDisconnected, -ETIMEDOUT, {});
            enter_timewait(c, now);
            break;
        default:
            notify(c, NoticeKind::kUnreachable, -ETIMEDOUT, {});
            end(c);
            break;
    }
}

void Manager::on_time(Time now) {
    while (!timers_.empty() && timers_.begin()->first <= now) {
        auto* c = find(timers_.begin()->second);
        timers_.erase(timers_.begin());
        if (c == nullptr) continue;
        c->timer = 0;
        if (c->state == State::kTimewait) {
            if (c->connected) notify(*c, NoticeKind::kTimewaitEnd, 0, {});
            end(*c);
        } else if (c->retries_left == 0) {
            on_exhausted(*c, now);
        } else {
            --c->retries_left;
            set_timer(*c, now + duration_ns(c->response_timeout));
            actions_.emplace_back(SendAction{c->peer, c->sent});
        }
    }
}

void Manager::on_peer_lost(const Peer& peer, Time now) {
    std::vector<Id> lost;
    for (const auto& [id, c] : connections_)
        if (c->peer == peer) lost.push_back(id);
    for (const auto id : lost) {
        auto* c = find(id);
        if (c == nullptr) continue;
        switch (c->state) {
            case State::kReqSent:
            case State::kReqReceived:
            case State::kRepSent:
            case State::kRepReceived:
                // As if its end had been taken from it in an orderly way.
                notify(*c, NoticeKind::kRejected,
                       code(c->active ? CmReason::kConsumer : CmReason::kTimeout), {});
                end(*c);
                break;
            case State::kSidrReqSent:
                notify(*c, NoticeKind::kUnreachable, -ETIMEDOUT, {});
                end(*c);
                break;
            case State::kEstablished:
            case State::kDreqSent:
                notify(*c, NoticeKind::kDisconnected, 0, {});
                enter_timewait(*c, now);
                break;
            case State::kDreqReceived:
                enter_timewait(*c, now);
                break;
            case State::kSidrReqReceived:
                end(*c);
                break;
            default:
                break;
        }
    }
}

}  // namespace weir::connection

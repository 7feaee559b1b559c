// SPDX-License-Identifier: Apache-2.0
// What the state machine has to say, as events of the ABI.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "cm.h"

namespace weir::rdmacm {
namespace {

using connection::Notice;
using connection::NoticeKind;

template <std::size_t kSize>
void attach_data(Event& event, const std::array<std::uint8_t, kSize>& data, std::size_t from,
                 std::uint8_t length) {
    std::copy_n(data.begin() + static_cast<std::ptrdiff_t>(from), length,
                event.private_data.begin());
    auto& conn = event.abi.param.conn;
    conn.private_data = event.private_data.data();
    conn.private_data_len = length;
}

std::uint16_t port_of(std::uint64_t service_id) {
    return static_cast<std::uint16_t>(service_id & RDMA_IB_IP_PORT_MASK);
}

/// The peer's wishes, in the terms of the side that hears of them: its initiator needs our
/// responder.
void show_request(const wire::CmRequest& message, rdma_conn_param& conn) {
    conn.responder_resources = message.initiator_depth;
    conn.initiator_depth = message.responder_resources;
    conn.flow_control = message.flow_control ? 1 : 0;
    conn.retry_count = message.retry_count;
    conn.rnr_retry_count = message.rnr_retry_count;
    conn.srq = message.shared_receives ? 1 : 0;
    conn.qp_num = message.qp_number;
}

/// What both a request and a reply say of their sender.
template <class Message>
void note_peer(const Message& message, std::uint32_t modifier, Identifier& id) {
    auto& a = id.agreement;
    a.remote_qp = message.qp_number;
    a.receive_psn = message.starting_psn;
    a.responder_resources = message.initiator_depth;
    a.initiator_depth = message.responder_resources;
    a.rnr_retry_count = message.rnr_retry_count;
    id.remote_ece = {message.vendor_id, modifier, 0};
}

void note_request(const wire::CmRequest& message, std::uint32_t modifier, Identifier& id) {
    note_peer(message, modifier, id);
    auto& a = id.agreement;
    a.retry_count = message.retry_count;
    a.ack_timeout = message.ack_timeout;
    a.service_level = message.service_level;
    a.mtu = message.mtu >= IBV_MTU_256 && message.mtu <= IBV_MTU_4096
                ? static_cast<ibv_mtu>(message.mtu)
                : IBV_MTU_256;
}

void show_reply(const wire::CmReply& message, std::uint32_t modifier, Identifier& id,
                Event& event) {
    note_peer(message, modifier, id);
    auto& conn = event.abi.param.conn;
    conn.responder_resources = id.agreement.responder_resources;
    conn.initiator_depth = id.agreement.initiator_depth;
    conn.flow_control = message.flow_control ? 1 : 0;
    conn.rnr_retry_count = message.rnr_retry_count;
    conn.srq = message.shared_receives ? 1 : 0;
    conn.qp_num = message.qp_number;
    attach_data(event, message.private_data, 0, kReplyData);
}

void show_datagram_reply(const wire::CmDatagramReply& message, Identifier& id, Event& event) {
    auto& ud = event.abi.param.ud;
    std::copy_n(message.private_data.begin(), kDatagramReplyData, event.private_data.begin());
    ud.private_data = event.private_data.data();
    ud.private_data_len = kDatagramReplyData;
    if (message.status != wire::CmDatagramStatus::kValid) return;
    if (id.target != nullptr) fill_path(id, *id.target, ud.ah_attr);
    ud.qp_num = message.qp_number;
    ud.qkey = message.qkey;
}

}  // namespace

void Cm::on_notice(const Notice& notice) {
    if (const auto* request = std::get_if<wire::CmRequest>(&notice.mad.body);
        notice.kind == NoticeKind::kRequest && request != nullptr) {
        on_request(notice, *request);
        return;
    }
    if (const auto* request = std::get_if<wire::CmDatagramRequest>(&notice.mad.body);
        notice.kind == NoticeKind::kDatagramRequest && request != nullptr) {
        on_datagram_request(notice, *request);
        return;
    }
    const auto known = by_connection_.find(notice.id);
    if (known == by_connection_.end()) return;
    auto& id = *known->second;
    switch (notice.kind) {
        case NoticeKind::kReply:
            // Moving the QP is left to the call that takes the event.
            if (auto* event = raise(id, RDMA_CM_EVENT_CONNECT_RESPONSE, 0); event != nullptr)
                show_reply(std::get<wire::CmReply>(notice.mad.body), notice.mad.attribute_modifier,
                           id, *event);
            break;
        case NoticeKind::kReady:
            id.step = Step::kConnected;
            raise(id, RDMA_CM_EVENT_ESTABLISHED, 0);
            break;
        case NoticeKind::kRejected: {
            auto* event = raise(id, RDMA_CM_EVENT_REJECTED, notice.status);
            const auto* message = std::get_if<wire::CmReject>(&notice.mad.body);
            static const wire::CmReject kNothing;
            if (event != nullptr)
                attach_data(*event, (message != nullptr ? *message : kNothing).private_data, 0,
                            kRejectData);
            id.step = Step::kDisconnected;
            break;
        }
        case NoticeKind::kUnreachable:
            id.step = Step::kDisconnected;
            raise(id, RDMA_CM_EVENT_UNREACHABLE, notice.status);
            break;
        case NoticeKind::kDisconnected:
            id.step = Step::kDisconnected;
            raise(id, RDMA_CM_EVENT_DISCONNECTED, notice.status);
            break;
        case NoticeKind::kTimewaitEnd:
            raise(id, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
            break;
        case NoticeKind::kDatagramReply: {
            const auto& message = std::get<wire::CmDatagramReply>(notice.mad.body);
            const bool good = message.status == wire::CmDatagramStatus::kValid;
            id.step = good ? Step::kConnected : Step::kDisconnected;
            auto* event = raise(id, good ? RDMA_CM_EVENT_ESTABLISHED : RDMA_CM_EVENT_UNREACHABLE,
                                static_cast<int>(message.status));
            if (event != nullptr) show_datagram_reply(message, id, *event);
            break;
        }
        default:
            break;
    }
}

Identifier* Cm::find_listener(std::uint64_t service_id, const Endpoint& local,
                              std::uint32_t device) {
    for (auto* id : listeners_) {
        if (service_of(*id, id->source) != service_id) continue;
        if (id->device != nullptr && id->device != devices_[device].get()) continue;
        // A listener for all IPv6 addresses takes IPv4 as well, unless it was told not to.
        const bool takes_ipv4 = id->source.family == Family::kIpv6 && id->source.is_any() &&
                                !id->ipv6_only.value_or(false);
        if (id->source.family == local.family || (takes_ipv4 && local.family == Family::kIpv4))
            return id;
    }
    return nullptr;
}

/// Who is asked, and by whom. A request to an InfiniBand address has no IP header: its ends are the
/// ports that it came from and to.
Cm::Asked Cm::find_asked(std::uint64_t service_id, const Notice& notice,
                         std::span<const std::uint8_t> private_data) {
    const auto port = port_of(service_id);
    if (const auto header = wire::decode_cm_ip_header(private_data)) {
        const auto family = header->ip_version == 6 ? Family::kIpv6 : Family::kIpv4;
        Asked ip{nullptr, Endpoint::any(family, port), Endpoint::any(family, header->source_port)};
        ip.local.ip = header->destination;
        ip.remote.ip = header->source;
        ip.header_bytes = wire::kCmIpHeaderBytes;
        ip.listener = find_listener(service_id, ip.local, notice.from.device);
        if (ip.listener != nullptr) return ip;
    }
    Asked ib{nullptr, Endpoint::any(Family::kInfiniband, port), Endpoint::any(Family::kInfiniband)};
    const auto* own = neighbourhood_.first_of_node(devices_[notice.from.device]->node());
    if (own != nullptr) ib.local = address_of(*own, Family::kInfiniband, port);
    for (const auto& candidate : neighbourhood_.all())
        if (candidate.lid == notice.from.lid)
            ib.remote = address_of(candidate, Family::kInfiniband, 0);
    ib.local.space = ib.remote.space = (service_id & RDMA_IB_IP_PS_MASK) >> 16U;
    ib.local.space_mask = ib.remote.space_mask = RDMA_IB_IP_PS_MASK >> 16U;
    ib.listener = find_listener(service_id, ib.local, notice.from.device);
    return ib;
}

/// A new identifier for a request, and its event; null if nobody listens or the listener's backlog
/// is full.
Identifier* Cm::child_of(const Asked& asked, const Notice& notice, Event*& event) {
    auto* listener = asked.listener;
    if (listener == nullptr || listener->channel == nullptr || listener->backlog_left <= 0)
        return nullptr;
    auto& child = make_identifier(*listener->channel, listener->abi.context, listener->abi.ps,
                                  listener->abi.qp_type);
    child.passive = true;
    child.step = Step::kConnecting;
    child.source = asked.local;
    child.destination = asked.remote;
    child.type_of_service = listener->type_of_service;
    child.ack_timeout = listener->ack_timeout;
    attach(child, *devices_[notice.from.device], 1);
    for (const auto& port : neighbourhood_.all())
        if (port.lid == notice.from.lid) child.target = &port;
    child.show_addresses();
    event = raise(*listener, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
    if (event == nullptr) {
        retire(child);
        return nullptr;
    }
    --listener->backlog_left;
    event->abi.listen_id = &listener->abi;
    event->abi.id = &child.abi;
    bind_connection(child, notice.id);
    return &child;
}

void Cm::on_request(const Notice& notice, const wire::CmRequest& message) {
    note_peer(notice.from);
    Event* event = nullptr;
    const auto asked = find_asked(message.service_id, notice, message.private_data);
    auto* child = child_of(asked, notice, event);
    if (child == nullptr) {
        const auto reason = asked.listener != nullptr ? wire::CmReason::kConsumer
                                                      : wire::CmReason::kInvalidServiceId;
        manager_.reject(notice.id, static_cast<std::uint16_t>(reason), {}, now());
        manager_.close(notice.id, now());
        return;
    }
    note_request(message, notice.mad.attribute_modifier, *child);
    for (const auto& port : neighbourhood_.all())
        if (port.lid == message.local_lid) child->target = &port;
    show_request(message, event->abi.param.conn);
    attach_data(*event, message.private_data, asked.header_bytes,
                static_cast<std::uint8_t>(message.private_data.size() - asked.header_bytes));
}

void Cm::on_datagram_request(const Notice& notice, const wire::CmDatagramRequest& message) {
    note_peer(notice.from);
    Event* event = nullptr;
    const auto asked = find_asked(message.service_id, notice, message.private_data);
    auto* child = child_of(asked, notice, event);
    if (child == nullptr) {
        wire::CmDatagramReply refusal;
        refusal.status = wire::CmDatagramStatus::kUnsupported;
        refusal.service_id = message.service_id;
        manager_.answer_datagram(notice.id, refusal, now());
        return;
    }
    child->datagram_asked = true;
    auto& ud = event->abi.param.ud;
    std::copy(message.private_data.begin() + static_cast<std::ptrdiff_t>(asked.header_bytes),
              message.private_data.end(), event->private_data.begin());
    ud.private_data = event->private_data.data();
    ud.private_data_len =
        static_cast<std::uint8_t>(message.private_data.size() - asked.header_bytes);
}

}  // namespace weir::rdmacm

// SPDX-License-Identifier: Apache-2.0
// Connections: asked for, accepted, refused, ended.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "abi.h"
#include "cm.h"

namespace weir::rdmacm {
namespace {

constexpr std::uint8_t kRetryMax = 7;

std::uint8_t limit(int device_max) {
    return static_cast<std::uint8_t>(std::clamp(device_max, 0, 255));
}

/// The program's numbers, or the most that the device can where it asks for that.
int take_parameters(Identifier& id, const rdma_conn_param* given, std::uint8_t responder_otherwise,
                    std::uint8_t initiator_otherwise) {
    const auto& device = id.device->attributes();
    const auto responder_max = limit(device.max_qp_rd_atom);
    const auto initiator_max = limit(device.max_qp_init_rd_atom);
    auto& a = id.agreement;
    a.responder_resources = std::min(responder_otherwise, responder_max);
    a.initiator_depth = std::min(initiator_otherwise, initiator_max);
    if (given == nullptr) return 0;
    if (given->responder_resources != RDMA_MAX_RESP_RES) {
        if (given->responder_resources > responder_max) return EINVAL;
        a.responder_resources = given->responder_resources;
    }
    if (given->initiator_depth != RDMA_MAX_INIT_DEPTH) {
        if (given->initiator_depth > initiator_max) return EINVAL;
        a.initiator_depth = given->initiator_depth;
    }
    return 0;
}

int take_qp(Identifier& id, std::uint32_t given_number, bool given_srq) {
    auto& a = id.agreement;
    a.local_qp = id.abi.qp != nullptr ? id.abi.qp->qp_num : given_number;
    a.shared_receives = id.abi.qp != nullptr ? id.abi.qp->srq != nullptr : given_srq;
    return 0;
}

std::span<const std::uint8_t> data_of(const void* data, std::size_t length) {
    return {static_cast<const std::uint8_t*>(data), data == nullptr ? 0 : length};
}

/// The private data of a request: the IP header, unless the addresses are InfiniBand's; what came
/// with the address information; what the program gives.
template <std::size_t kSize>
int fill_request_data(const Identifier& id, std::span<const std::uint8_t> given,
                      std::array<std::uint8_t, kSize>& out) {
    const bool ip = id.destination.family != Family::kInfiniband;
    const std::size_t header_bytes = ip ? wire::kCmIpHeaderBytes : 0;
    if (header_bytes + id.connect_data.size() + given.size() > kSize) return EINVAL;
    if (ip) {
        wire::CmIpHeader header;
        header.ip_version = id.destination.family == Family::kIpv6 ? 6 : 4;
        header.source_port = id.source.port;
        header.source = id.source.ip;
        header.destination = id.destination.ip;
        wire::encode_cm_ip_header(header, out);
    }
    auto at = std::copy(id.connect_data.begin(), id.connect_data.end(),
                        out.begin() + static_cast<std::ptrdiff_t>(header_bytes));
    std::copy(given.begin(), given.end(), at);
    return 0;
}

void fill_request(Identifier& id, const rdma_conn_param* given, wire::CmRequest& message) {
    auto& a = id.agreement;
    a.retry_count = std::min(given == nullptr ? kRetryMax : given->retry_count, kRetryMax);
    a.rnr_retry_count = std::min(given == nullptr ? kRetryMax : given->rnr_retry_count, kRetryMax);
    a.service_level = id.type_of_service >> 5U;
    message.service_id = service_of(id, id.destination);
    message.ca_guid = id.device->guid();
    message.qp_number = a.local_qp;
    message.responder_resources = a.responder_resources;
    message.initiator_depth = a.initiator_depth;
    message.service =
        id.abi.qp_type == IBV_QPT_UC ? wire::CmService::kUnreliable : wire::CmService::kReliable;
    message.flow_control = given != nullptr && given->flow_control != 0;
    message.starting_psn = a.send_psn;
    message.retry_count = a.retry_count;
    message.rnr_retry_count = a.rnr_retry_count;
    message.mtu = static_cast<std::uint8_t>(a.mtu);
    message.shared_receives = a.shared_receives;
    message.local_lid = be16toh(id.path.slid);
    std::copy_n(id.path.sgid.raw, message.local_gid.size(), message.local_gid.begin());
    message.traffic_class = id.type_of_service;
    message.service_level = a.service_level;
    message.ack_timeout = id.ack_timeout.value_or(0);
    message.vendor_id = id.local_ece.vendor_id;
}

int connect(rdma_cm_id* abi, const rdma_conn_param* given, bool& sync) {
    auto& cm = Cm::instance();
    const std::lock_guard guard(cm.lock);
    auto* id = cm.find(abi);
    if (id == nullptr || id->step != Step::kRouteResolved) return EINVAL;
    take_qp(*id, given == nullptr ? 0 : given->qp_num, given != nullptr && given->srq != 0);
    const auto data = given == nullptr ? std::span<const std::uint8_t>{}
                                       : data_of(given->private_data, given->private_data_len);
    if (const int error = cm.start(); error != 0) return error;
    wire::CmBody body;
    if (id->is_datagram()) {
        wire::CmDatagramRequest message;
        if (fill_request_data(*id, data, message.private_data) != 0) return EINVAL;
        message.service_id = service_of(*id, id->destination);
        body = message;
    } else {
        wire::CmRequest message;
        if (take_parameters(*id, given, UINT8_MAX, UINT8_MAX) != 0) return EINVAL;
        if (fill_request_data(*id, data, message.private_data) != 0) return EINVAL;
        fill_request(*id, given, message);
        body = message;
    }
    sync = id->sync;
    id->step = Step::kConnecting;
    cm.send_request(*id, std::move(body));
    return 0;
}

int accept_datagram(Cm& cm, Identifier& id, std::span<const std::uint8_t> data) {
    wire::CmDatagramReply message;
    if (data.size() > message.private_data.size()) return EINVAL;
    std::copy(data.begin(), data.end(), message.private_data.begin());
    message.qp_number = id.agreement.local_qp;
    message.qkey = qkey_of(id);
    message.service_id = service_of(id, id.source);
    const int error = cm.manager().answer_datagram(id.connection, message, Cm::now());
    if (error == 0) id.step = Step::kConnected;
    return error;
}

int accept_connection(Cm& cm, Identifier& id, const rdma_conn_param* given,
                      std::span<const std::uint8_t> data) {
    auto& a = id.agreement;
    wire::CmReply message;
    if (data.size() > message.private_data.size()) return EINVAL;
    if (cm.manager().state(id.connection) != connection::State::kReqReceived) return EINVAL;
    if (take_parameters(id, given, a.responder_resources, a.initiator_depth) != 0) return EINVAL;
    if (id.abi.qp != nullptr)
        if (const int error = move_to_ready(id); error != 0) return error;
    std::copy(data.begin(), data.end(), message.private_data.begin());
    message.qp_number = a.local_qp;
    message.starting_psn = a.send_psn;
    message.responder_resources = a.responder_resources;
    message.initiator_depth = a.initiator_depth;
    message.flow_control = given != nullptr && given->flow_control != 0;
    message.rnr_retry_count =
        std::min(given == nullptr ? kRetryMax : given->rnr_retry_count, kRetryMax);
    message.shared_receives = a.shared_receives;
    message.ca_guid = id.device->guid();
    message.vendor_id = id.local_ece.vendor_id;
    return cm.manager().accept(id.connection, message, id.local_ece.options, Cm::now());
}

int accept(rdma_cm_id* abi, const rdma_conn_param* given, bool& sync) {
    auto& cm = Cm::instance();
    const std::lock_guard guard(cm.lock);
    auto* id = cm.find(abi);
    if (id == nullptr || !id->passive || id->step != Step::kConnecting) return EINVAL;
    take_qp(*id, given == nullptr ? 0 : given->qp_num, given != nullptr && given->srq != 0);
    const auto data = given == nullptr ? std::span<const std::uint8_t>{}
                                       : data_of(given->private_data, given->private_data_len);
    const int error = id->datagram_asked ? accept_datagram(cm, *id, data)
                                         : accept_connection(cm, *id, given, data);
    if (error != 0) return error;
    sync = id->sync && !id->datagram_asked;
    cm.act();
    return 0;
}

int reject(rdma_cm_id* abi, wire::CmReason reason, const void* given, std::uint8_t length) {
    auto& cm = Cm::instance();
    const std::lock_guard guard(cm.lock);
    auto* id = cm.find(abi);
    if (id == nullptr || id->connection == 0) return EINVAL;
    const auto data = data_of(given, length);
    int error = 0;
    if (id->datagram_asked) {
        wire::CmDatagramReply message;
        if (!id->passive || data.size() > message.private_data.size()) return EINVAL;
        message.status = wire::CmDatagramStatus::kRejected;
        message.service_id = service_of(*id, id->source);
        std::copy(data.begin(), data.end(), message.private_data.begin());
        error = cm.manager().answer_datagram(id->connection, message, Cm::now());
    } else {
        if (data.size() > kRejectData) return EINVAL;
        const auto state = cm.manager().state(id->connection);
        if (state != connection::State::kReqReceived && state != connection::State::kRepReceived &&
            state != connection::State::kRepSent)
            return EINVAL;
        error = cm.manager().reject(id->connection, static_cast<std::uint16_t>(reason), data,
                                    Cm::now());
    }
    if (error != 0) return error;
    id->step = Step::kDisconnected;
    cm.act();
    return 0;
}

int disconnect(rdma_cm_id* abi, bool& sync) {
    auto& cm = Cm::instance();
    const std::lock_guard guard(cm.lock);
    auto* id = cm.find(abi);
    if (id == nullptr || id->connection == 0 || id->datagram_asked) return EINVAL;
    move_to_error(*id);
    // To end what has ended is no mistake: each side may be the first.
    const auto before = cm.manager().state(id->connection);
    cm.manager().disconnect(id->connection, Cm::now());
    cm.act();
    id->step = Step::kDisconnected;
    sync = id->sync &&
           (before == connection::State::kEstablished ||
            before == connection::State::kDreqReceived || before == connection::State::kRepSent);
    return 0;
}

int establish(rdma_cm_id* abi) {
    auto& cm = Cm::instance();
    const std::lock_guard guard(cm.lock);
    auto* id = cm.find(abi);
    if (id == nullptr || id->connection == 0 || abi->qp != nullptr) return EINVAL;
    const int error = cm.manager().ready(id->connection, Cm::now());
    if (error == 0) id->step = Step::kConnected;
    cm.act();
    return error;
}

int notify(rdma_cm_id* abi, ibv_event_type event) {
    auto& cm = Cm::instance();
    const std::lock_guard guard(cm.lock);
    auto* id = cm.find(abi);
    if (id == nullptr || id->connection == 0) return EINVAL;
    if (event == IBV_EVENT_PATH_MIG) return 0;  // there is one path
    if (event != IBV_EVENT_COMM_EST) return EINVAL;
    const int error = cm.manager().establish(id->connection, Cm::now());
    cm.act();
    return error;
}

}  // namespace

bool find_peer(Cm& cm, Identifier& id, connection::Peer& peer) {
    weir_place place{};
    const auto node = id.by_machine ? WEIR_ANY_NODE : id.target->node;
    if (weir_service_find(id.device->verbs(), service_of(id, id.destination),
                          id.destination.family_bit(), node, &place) != 0)
        return false;
    const auto* own = cm.neighbourhood().first_of_node(id.device->node());
    const auto* target = cm.neighbourhood().first_of_node(place.node);
    if (own == nullptr || target == nullptr) return false;
    if (id.by_machine && id.target != target) {
        id.target = target;
        describe_path(id, *own);
    }
    peer.lid = place.lid;
    peer.qp_number = place.qp_number;
    const auto& devices = cm.devices();
    while (peer.device < devices.size() && devices[peer.device].get() != id.device)
        ++peer.device;
    return peer.device < devices.size();
}

void refuse(Cm& cm, Identifier& id) {
    id.step = Step::kDisconnected;
    if (id.is_datagram()) {
        cm.raise(id, RDMA_CM_EVENT_UNREACHABLE,
                 static_cast<int>(wire::CmDatagramStatus::kUnsupported));
        return;
    }
    auto* event =
        cm.raise(id, RDMA_CM_EVENT_REJECTED, static_cast<int>(wire::CmReason::kInvalidServiceId));
    if (event == nullptr) return;
    event->abi.param.conn.private_data = event->private_data.data();
    event->abi.param.conn.private_data_len = kRejectData;
}

}  // namespace weir::rdmacm

using namespace weir::rdmacm;  // The functions below are the C ABI, outside any namespace.
using weir::ibverbs::fenced;
using weir::ibverbs::minus_one_if;

extern "C" {

int rdma_connect(rdma_cm_id* id, rdma_conn_param* param) {
    bool sync = false;
    int error = fenced([&] { return connect(id, param, sync); });
    if (error == 0) error = complete(id, sync);
    return minus_one_if(error);
}

int rdma_accept(rdma_cm_id* id, rdma_conn_param* param) {
    bool sync = false;
    int error = fenced([&] { return accept(id, param, sync); });
    if (error == 0) error = complete(id, sync);
    return minus_one_if(error);
}

int rdma_reject(rdma_cm_id* id, const void* data, std::uint8_t length) {
    return minus_one_if(
        fenced([&] { return reject(id, weir::wire::CmReason::kConsumer, data, length); }));
}

int rdma_reject_ece(rdma_cm_id* id, const void* data, std::uint8_t length) {
    return minus_one_if(
        fenced([&] { return reject(id, weir::wire::CmReason::kVendorOption, data, length); }));
}

int rdma_disconnect(rdma_cm_id* id) {
    bool sync = false;
    int error = fenced([&] { return disconnect(id, sync); });
    if (error == 0) error = complete(id, sync);
    return minus_one_if(error);
}

int rdma_establish(rdma_cm_id* id) {
    return minus_one_if(fenced([&] { return establish(id); }));
}

int rdma_notify(rdma_cm_id* id, ibv_event_type event) {
    return minus_one_if(fenced([&] { return notify(id, event); }));
}

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
// Sending: from work requests to packets, and from answers to completions.
#include <algorithm>
#include <cstring>
#include <optional>

#include "hca/engine.h"

namespace weir::hca {

using transport::Emission;
using transport::RequestStatus;
using wire::PacketHeader;

namespace {

ibv_wc_status status_of(RequestStatus status) {
    switch (status) {
        case RequestStatus::kOk:
            return IBV_WC_SUCCESS;
        case RequestStatus::kRetriesExceeded:
            return IBV_WC_RETRY_EXC_ERR;
        case RequestStatus::kRnrRetriesExceeded:
            return IBV_WC_RNR_RETRY_EXC_ERR;
        case RequestStatus::kRemoteInvalidRequest:
            return IBV_WC_REM_INV_REQ_ERR;
        case RequestStatus::kRemoteAccess:
            return IBV_WC_REM_ACCESS_ERR;
        case RequestStatus::kRemoteOperation:
            return IBV_WC_REM_OP_ERR;
        case RequestStatus::kBadResponse:
            return IBV_WC_BAD_RESP_ERR;
        case RequestStatus::kFlushed:
            return IBV_WC_WR_FLUSH_ERR;
    }
    return IBV_WC_GENERAL_ERR;
}

/// Gathers message bytes [offset, offset + length) of a posted request into `to`.
void gather(const QueuePair::State& qp, std::uint32_t slot, std::uint32_t offset,
            std::uint32_t length, std::byte* to) {
    const SendSlot& send = qp.sends[slot];
    if (send.inlined) {
        const auto* from =
            qp.inline_data.data() + static_cast<std::size_t>(slot) * qp.cap.max_inline_data;
        std::memcpy(to, from + offset, length);
        return;
    }
    const ibv_sge* sge = &qp.send_sges[static_cast<std::size_t>(slot) * qp.cap.max_send_sge];
    for (; length > 0; ++sge) {
        if (offset >= sge->length) {
            offset -= sge->length;
            continue;
        }
        const auto part = std::min(length, sge->length - offset);
        if (sge->addr == kNoMemory) {
            std::memset(to, 0, part);
        } else {
            std::memcpy(to, reinterpret_cast<const void*>(sge->addr + offset), part);
        }
        to += part;
        length -= part;
        offset = 0;
    }
}

/// Message bytes in one buffer.
struct Piece {
    std::uint64_t address = 0;  ///< 0: they are not.
    std::uint32_t lkey = 0;
};

Piece contiguous(const QueuePair::State& qp, std::uint32_t slot, std::uint32_t offset,
                 std::uint32_t length) {
    const SendSlot& send = qp.sends[slot];
    if (send.inlined) return {};
    const ibv_sge* sge = &qp.send_sges[static_cast<std::size_t>(slot) * qp.cap.max_send_sge];
    for (std::uint32_t i = 0; i < send.sge_count; ++i, ++sge) {
        if (offset < sge->length) {
            const bool whole = length <= sge->length - offset && sge->addr != kNoMemory;
            return whole ? Piece{sge->addr + offset, sge->lkey} : Piece{};
        }
        offset -= sge->length;
    }
    return {};
}

/// Where in this process's window the piece lies; nothing if it does not.
std::optional<std::uint64_t> place_in_window(const Attachment& a, const Piece& piece,
                                             std::uint32_t length) {
    const auto index = piece.lkey >> 8U;
    if (piece.address == 0 || index >= arena::kMrCount) return std::nullopt;
    const auto& mr = a.arena.mr(index);
    const bool ours = mr.owner.load(std::memory_order_relaxed) == a.identity &&
                      mr.key.load(std::memory_order_relaxed) == piece.lkey;
    if (!ours || mr.memory_access != arena::MemoryAccess::kWindow) return std::nullopt;
    const auto offset = piece.address - mr.address;
    if (offset > mr.length || length > mr.length - offset) return std::nullopt;
    return mr.window_offset + offset;
}

/// Puts the payload of an emission where its consumer finds it: in the descriptor, in a bulk
/// buffer, or, since what is acknowledged is so before the program may touch it again, where it
/// lies. For requests that are given up without, see QpEntry::withdrawals.
bool place_payload(Attachment& a, const QueuePair::State& qp, const Emission& out,
                   std::uint32_t index, bool one_sided) {
    auto& packet = a.arena.packet(index);
    const auto length = out.header.payload_length;
    packet.payload_kind = arena::PayloadKind::kInline;
    if (length <= arena::kInlineBytes) {
        if (length > 0) {
            gather(qp, out.slot, out.offset, length, reinterpret_cast<std::byte*>(packet.payload));
        }
        return true;
    }
    const auto piece = qp.reliable() ? contiguous(qp, out.slot, out.offset, length) : Piece{};
    packet.withdrawals = qp.entry().withdrawals.load(std::memory_order_relaxed);
    if (wire::is_send(out.header.opcode)) {
        if (const auto place = place_in_window(a, piece, length)) {
            packet.payload_kind = arena::PayloadKind::kWindow;
            packet.address = *place;
            packet.memory_owner = a.identity;
            return true;
        }
    }
    const auto here = a.reach.kernel_copy_allowed() ? piece.address : 0;
    const auto bulk = one_sided && here != 0 ? 0 : a.pool.take_bulk(index);
    if (bulk != 0) {
        gather(qp, out.slot, out.offset, length, a.arena.bytes(bulk));
        packet.payload_kind = arena::PayloadKind::kBulk;
        packet.address = bulk;
        return true;
    }
    if (here == 0) return false;
    packet.payload_kind = arena::PayloadKind::kReference;
    packet.address = here;
    packet.memory_owner = a.identity;
    return true;
}

}  // namespace

std::uint32_t wire_words(const PacketHeader& header) {
    const auto bytes = wire::kLrhBytes + (header.has(wire::kFlagGrh) ? wire::kGrhBytes : 0) +
                       (header.has(wire::kFlagXrc) ? wire::kXrcEthBytes : 0) +
                       wire::transport_header_bytes(header.opcode) + header.payload_length +
                       wire::kIcrcBytes;
    return static_cast<std::uint32_t>((bytes + 3) / 4);
}

bool Attachment::send_packet(std::uint32_t packet, std::uint32_t generation, std::uint32_t port,
                             const arena::Route& route) {
    auto& entry = arena.packet(packet);
    entry.route.store(route.encode(), std::memory_order_relaxed);
    const auto& from = arena.port(port);
    const auto vl = route.service_level % arena.header().lane_count;
    const bool loops = route.dlid == from.lid;
    if (!loops && (from.peer == arena::kNone || from.up.load(std::memory_order_relaxed) == 0)) {
        arena.port(port).transmit_discards.fetch_add(1, std::memory_order_relaxed);
        pool.put_back(packet);
        return true;
    }
    auto lane = mover.port_lane(loops ? port : from.peer, vl);
    if (tell_time() && !loops) lane = mover.egress_lane(port, vl);
    mover.begin();
    bool sent = mover.inject(lane, packet, generation);
    for (int tries = 0; !sent && tries < 8 && !mover.is_waiting(lane); ++tries) {
        unfinished = !mover.drive(lane) || unfinished;
        sent = mover.inject(lane, packet, generation);
    }
    if (sent) unfinished = !mover.drive(lane) || unfinished;
    mover.end();
    return sent;
}

void send_reply(Attachment& a, const arena::QpEntry& from, PacketHeader header, bool quiet) {
    std::uint32_t generation = 0;
    const auto index = a.pool.take(generation);
    // Without a packet the answer is lost, which the requester's timer repairs.
    if (index == PacketPool::kNoPacket) return;
    header.slid = from.own_lid;
    header.dlid = from.peer_lid;
    header.sl = static_cast<std::uint8_t>(from.service_level);
    header.dest_qp = from.peer_qp;
    header.pkey = static_cast<std::uint16_t>(from.pkey);
    auto& packet = a.arena.packet(index);
    packet.header = header;
    packet.payload_kind = arena::PayloadKind::kInline;
    const arena::Route route{header.dlid, header.sl,          true,
                             quiet,       wire_words(header), header.dest_qp};
    if (!a.send_packet(index, generation, a.arena.lids()[from.own_lid], route)) {
        a.pool.put_back(index);
    }
}

// NOLINTNEXTLINE(readability-function-size): where the payload lies takes three arguments.
bool send_read_response(Attachment& a, const arena::QpEntry& from, const PacketHeader& request,
                        arena::PayloadKind kind, std::uint32_t memory_owner, std::uint64_t address,
                        bool quiet) {
    std::uint32_t generation = 0;
    const auto index = a.pool.take(generation);
    if (index == PacketPool::kNoPacket) return false;
    auto& packet = a.arena.packet(index);
    packet.payload_kind = kind;
    packet.memory_owner = memory_owner;
    packet.address = address;
    if (kind == arena::PayloadKind::kBulk) {  // `address` is ours: copy, now that it is asked for
        const auto length = request.dma_length;
        const auto* source = reinterpret_cast<const void*>(address);
        const auto bulk = length <= arena::kInlineBytes ? 0 : a.pool.take_bulk(index);
        if (length <= arena::kInlineBytes) {
            packet.payload_kind = arena::PayloadKind::kInline;
            std::memcpy(packet.payload, source, length);
        } else if (bulk != 0 && length <= arena::kSegmentBytes) {
            packet.address = bulk;
            std::memcpy(a.arena.bytes(bulk), source, length);
        } else {
            a.pool.put_back(index);
            return false;
        }
    }
    PacketHeader header;
    header.opcode = wire::Opcode::kRcReadResponseOnly;
    header.syndrome = wire::ack_syndrome();
    header.psn = request.psn;
    header.payload_length = request.dma_length;
    header.slid = from.own_lid;
    header.dlid = from.peer_lid;
    header.sl = static_cast<std::uint8_t>(from.service_level);
    header.dest_qp = from.peer_qp;
    header.pkey = static_cast<std::uint16_t>(from.pkey);
    packet.header = header;
    const arena::Route route{header.dlid, header.sl,          true,
                             quiet,       wire_words(header), header.dest_qp};
    if (!a.send_packet(index, generation, a.arena.lids()[from.own_lid], route)) {
        a.pool.put_back(index);
        return false;
    }
    return true;
}

bool Attachment::send_copy(QueuePair::State& qp, const Emission& out) {
    std::uint32_t generation = 0;
    const auto index = pool.take(generation);
    if (index == PacketPool::kNoPacket) return false;
    if (place_payload(*this, qp, out, index, false)) {
        const auto& header = out.header;
        arena.packet(index).header = header;
        arena.packet(index).acknowledged = 0;
        const arena::Route route{header.dlid, header.sl,          false,
                                 false,       wire_words(header), header.dest_qp};
        if (send_packet(index, generation, arena.lids()[qp.entry().own_lid], route)) return true;
    }
    pool.put_back(index);
    return false;
}

bool Attachment::send_to_group(QueuePair::State& qp, const Emission& out) {
    Emission copy = out;
    copy.header = qp.datagrams[out.slot];
    copy.header.psn = qp.datagram_psn;
    const auto group_lid = copy.header.dlid;
    const bool by_gid = copy.header.has(wire::kFlagGrh);
    const auto end = arena.header().groups_end.load(std::memory_order_acquire);
    for (; qp.group_at < end; ++qp.group_at) {
        const auto& member = arena.group(qp.group_at);
        const auto number = member.qp.load(std::memory_order_acquire);
        if (number == 0 || (number == qp.number && member.refuses_own != 0)) continue;
        const bool same = by_gid ? std::memcmp(member.gid, &copy.header.swap_or_add, 8) == 0 &&
                                       std::memcmp(member.gid + 8, &copy.header.compare, 8) == 0
                                 : member.lid == group_lid;
        if (!same) continue;
        copy.header.dest_qp = number;
        copy.header.dlid = member.port_lid;
        if (!send_copy(qp, copy)) return false;
    }
    qp.group_at = 0;
    qp.datagram_psn = wire::psn_next(qp.datagram_psn);
    return true;
}

/// Sends one packet of the requester. False if nothing more can be sent now.
bool Attachment::pump_one(QueuePair::State& qp, std::uint64_t now, bool& one_sided_out) {
    Emission out;
    if (!qp.requester.next(now, out)) return false;
    if (out.local) return work_locally(qp, out.slot);
    if (qp.type == IBV_QPT_UD && qp.datagrams[out.slot].has(wire::kFlagMulticast)) {
        if (send_to_group(qp, out)) return true;
        qp.requester.unsend();
        try_later(qp);
        return false;
    }
    std::uint32_t generation = 0;
    const auto index = pool.take(generation);
    if (qp.type == IBV_QPT_UD) {
        out.header = qp.datagrams[out.slot];
        out.header.psn = qp.datagram_psn;
    }
    // Which PD an XRC request is checked against, its target alone can tell.
    const bool one_sided = !wire::is_send(out.header.opcode) &&
                           !wire::has_immediate(out.header.opcode) && !qp.is_xrc();
    if (index != PacketPool::kNoPacket && place_payload(*this, qp, out, index, one_sided)) {
        auto& entry = qp.entry();
        auto& header = arena.packet(index).header;
        header = out.header;
        if (qp.type != IBV_QPT_UD) {
            header.slid = entry.own_lid;
            header.dlid = entry.peer_lid;
            header.sl = static_cast<std::uint8_t>(entry.service_level);
            header.dest_qp = entry.peer_qp;
            header.pkey = static_cast<std::uint16_t>(entry.pkey);
        }
        const arena::Route route{header.dlid, header.sl,          false,
                                 one_sided,   wire_words(header), header.dest_qp};
        // What one-sided requests carry is read by an agent, which is ourselves.
        const auto carried = one_sided || owes != &qp ? 0 : take_owed(qp);
        arena.packet(index).acknowledged = carried;
        if (send_packet(index, generation, arena.lids()[entry.own_lid], route)) {
            one_sided_out = one_sided_out || one_sided;
            ++qp.sent_packets;
            qp.datagram_psn = wire::psn_next(qp.datagram_psn);
            return true;
        }
        if (carried != 0) give_back_owed(qp);
    }
    if (index != PacketPool::kNoPacket) pool.put_back(index);
    qp.requester.unsend();
    try_later(qp);
    return false;
}

void Attachment::try_later(QueuePair::State& qp) {
    qp.pumping = true;
    // With the egress full of packets that wait for the link, there is nothing to try before that.
    if (mover.next_time() == 0) {
        look_again(qp);
    } else {
        retry_in_time = true;
    }
}

void Attachment::fetch_peer_ring(const QueuePair::State& qp) const {
    if (qp.type == IBV_QPT_UD || qp.attr.dest_qp_num >= arena::kQpCount) return;
    auto& ring = arena.qp(qp.attr.dest_qp_num).requests;
    __builtin_prefetch(&ring, 1);
    __builtin_prefetch(&ring.slot(qp.sent_packets), 1);
}

void Attachment::pump(QueuePair::State& qp) {
    const auto state = qp.state.load(std::memory_order_relaxed);
    if (state != IBV_QPS_RTS && state != IBV_QPS_SQD) return;
    if (qp.type != IBV_QPT_UD && qp.attr.dest_qp_num < arena::kQpCount) {
        // The peer's ring was last touched by the peer: its lines come while the packet is being
        // made.
        auto& ring = arena.qp(qp.attr.dest_qp_num).requests;
        __builtin_prefetch(&ring, 1);
        __builtin_prefetch(&ring.slot(qp.sent_packets), 1);
    }
    const auto now = qp.requester.waiting() ? now_ns() : coarse_now_ns();
    bool more = true;
    bool one_sided_sent = false;
    while (more) {
        bool one_sided = false;
        std::uint32_t sent = 0;
        qp.pumping = false;
        while (pump_one(qp, now, one_sided))
            ++sent;
        if (sent == 0) break;
        const auto before = qp.requester.unacknowledged();
        if (one_sided) act_as_peer(qp);
        one_sided_sent = one_sided_sent || one_sided;
        // Answers that have come already make room for more.
        if (one_sided || qp.requester.unsent()) service_responses(qp);
        more = !qp.reliable() || qp.requester.unacknowledged() < before;
        if (!qp.reliable()) collect(qp);
    }
    note_deadline(qp.requester.deadline());
    if (qp.requester.unacknowledged() == 0) {
        remove_actor(qp);
    } else if (one_sided_sent) {
        add_actor(qp);
    }
    collect(qp);
}

void Attachment::collect(QueuePair::State& qp) {
    std::uint32_t slot = 0;
    RequestStatus status{};
    bool bad = false;
    while (qp.requester.ended(slot, status)) {
        const SendSlot& send = qp.sends[slot];
        ibv_wc_status wc_status = status_of(status);
        if (send.local_error != IBV_WC_SUCCESS && status != RequestStatus::kFlushed) {
            wc_status = send.local_error;
        }
        const bool atomic =
            send.wc_opcode == IBV_WC_COMP_SWAP || send.wc_opcode == IBV_WC_FETCH_ADD;
        if (wc_status == IBV_WC_SUCCESS && atomic) store_original(qp, slot);
        if (send.signaled || wc_status != IBV_WC_SUCCESS) {
            ibv_wc wc{};
            wc.wr_id = send.wr_id;
            wc.status = wc_status;
            wc.opcode = send.wc_opcode;
            wc.byte_len = send.bytes;
            wc.qp_num = qp.number;
            qp.send_cq->push(wc, false);
        }
        qp.requester.pop();
        if (wc_status != IBV_WC_SUCCESS && !bad) {
            bad = true;
            stop_sends(qp);
        }
    }
    if (qp.drain_event && qp.requester.idle()) {
        qp.drain_event = false;
        qp.hca->raise({IBV_EVENT_SQ_DRAINED, nullptr, qp.self, nullptr, 0});
    }
}

/// A request has failed: RC ends as a whole, of the others the send queue alone does
/// (IBTA 10.3.1.6).
void Attachment::stop_sends(QueuePair::State& qp) {
    const auto state = qp.state.load(std::memory_order_relaxed);
    if (state == IBV_QPS_ERR || state == IBV_QPS_SQE) return;
    if (qp.reliable()) {
        break_qp(qp, false);
        return;
    }
    qp.state.store(IBV_QPS_SQE, std::memory_order_relaxed);
    qp.requester.flush();
}

void Attachment::store_original(QueuePair::State& qp, std::uint32_t slot) {
    const ibv_sge& sge = qp.send_sges[static_cast<std::size_t>(slot) * qp.cap.max_send_sge];
    const auto value = qp.requester.original(slot);
    if (sge.addr == kNoMemory) return;
    std::memcpy(reinterpret_cast<void*>(sge.addr), &value, sizeof value);
}

bool Attachment::place_read(QueuePair::State& qp, const arena::PacketEntry& packet,
                            std::uint32_t slot, std::uint32_t offset) {
    const SendSlot& send = qp.sends[slot];
    Buffers buffers;
    buffers.count = send.sge_count;
    buffers.bytes = send.bytes;
    std::copy_n(&qp.send_sges[static_cast<std::size_t>(slot) * qp.cap.max_send_sge], send.sge_count,
                buffers.sges);
    return scatter(*this, qp.pd, buffers, offset, packet, packet.header.payload_length) ==
           IBV_WC_SUCCESS;
}

/// True once all of it has been taken in, or if it means nothing here.
bool Attachment::take_acknowledge(QueuePair::State& qp, std::uint64_t word) {
    const auto psn = static_cast<std::uint32_t>(word & wire::kMask24);
    return word != acknowledged_word(qp.attr.sq_psn, psn) ||
           qp.requester.on_overtaking_acknowledge(psn, coarse_now_ns());
}

bool Attachment::take_acknowledged(QueuePair::State& qp) {
    const bool carried = qp.carried_acknowledge != 0;
    if (carried && take_acknowledge(qp, qp.carried_acknowledge)) qp.carried_acknowledge = 0;
    const auto word = qp.entry().responses.acknowledged.load(std::memory_order_acquire);
    if (word == qp.seen_acknowledged) return carried;
    if (take_acknowledge(qp, word)) qp.seen_acknowledged = word;
    return true;
}

bool Attachment::service_responses(QueuePair::State& qp) {
    const auto ring = mover.response_ring(qp.number);
    credit::Slot slot{};
    bool any = take_acknowledged(qp);
    while (mover.peek(ring, slot)) {
        const auto& packet = arena.packet(slot.packet);
        const auto& header = packet.header;
        const auto state = qp.state.load(std::memory_order_relaxed);
        const bool live = state == IBV_QPS_RTS || state == IBV_QPS_SQD;
        if (live && header.slid == qp.entry().peer_lid) {
            if (wire::is_read_response(header.opcode)) {
                std::uint32_t wr = 0;
                std::uint32_t offset = 0;
                if (qp.requester.on_read_response(header, wr, offset, coarse_now_ns())) {
                    if (header.payload_length != 0 && !place_read(qp, packet, wr, offset)) {
                        qp.sends[wr].local_error = IBV_WC_LOC_PROT_ERR;
                        qp.requester.fail(wr, RequestStatus::kRemoteOperation);
                    }
                    qp.requester.read_placed(header, coarse_now_ns());
                }
            } else {
                const bool waits = wire::ack_kind(header.syndrome) == wire::AckKind::kRnrNak;
                qp.requester.on_acknowledge(header, waits ? now_ns() : coarse_now_ns());
            }
        }
        mover.pop(ring);
        mover.release(slot);
        any = true;
    }
    return any;
}

void Attachment::check_timers(bool force) {
    if (next_deadline == 0) return;
    const auto now = now_ns();
    if (!force && now < next_deadline) return;
    next_deadline = 0;
    for (auto* qp : qps) {
        if (qp == nullptr) continue;
        const auto deadline = qp->requester.deadline();
        if (deadline == 0) continue;
        if (now >= deadline) {
            qp->requester.on_time(now);
            pump(*qp);
            collect(*qp);
        }
        note_deadline(qp->requester.deadline());
    }
}

}  // namespace weir::hca

// SPDX-License-Identifier: Apache-2.0
// Bodies of Mover's templates; include switching/forwarding.h, which explains them.
#pragma once

#include <algorithm>
#include <utility>

#include "switching/forwarding.h"

namespace weir::switching {

/// Claims from here on name an output port and lane.
inline constexpr std::uint32_t kFirstPortClaim = 16;

template <class Probe>
std::uint32_t Mover<Probe>::decide(LaneId from, std::uint32_t packet,
                                   const arena::Route& route) const {
    const auto& port = arena_.port(port_of(from));
    const auto& node = arena_.node(port.node);
    if (node.kind == arena::NodeKind::kHca && !is_egress(from)) {
        return decide_at_hca(node, port.node, route);
    }
    if (port.up.load(std::memory_order_relaxed) == 0) return credit::kClaimDiscard;
    if (is_egress(from)) return port.number * 16 + from % lanes_;
    if (route.dlid >= arena_.header().lid_count) return credit::kClaimDiscard;
    const std::uint32_t out = arena_.lft(node)[route.dlid];
    if (out == 0 || out > node.port_count) return credit::kClaimDiscard;
    const auto& out_port = arena_.port(node.first_port + out - 1);
    if (out_port.peer == arena::kNone) return credit::kClaimDiscard;
    if (out_port.up.load(std::memory_order_relaxed) == 0) return credit::kClaimDiscard;
    if (!rated() && may_express(out_port, packet, route)) return credit::kClaimDeliver;
    return out * 16 + route.service_level % lanes_;
}

/// True if the packet may go from this switch into its ring, past the buffer of the HCA's port.
template <class Probe>
bool Mover<Probe>::may_express(const arena::PortEntry& out, std::uint32_t packet,
                               const arena::Route& route) const {
    const auto& port = arena_.port(out.peer);
    const auto& node = arena_.node(port.node);
    // upstream() finds the switch by the HCA's only port.
    if (node.kind != arena::NodeKind::kHca || node.port_count != 1) return false;
    auto& lane = arena_.lane(out.peer, route.service_level % lanes_);
    const auto head = credit::Head::decode(lane.head.load(std::memory_order_acquire));
    const auto first = credit::Slot::decode(lane.slot(head.index).load(std::memory_order_acquire));
    if (filled(first, head.index)) return false;
    if (decide_at_hca(node, port.node, route) != credit::kClaimDeliver) return false;
    const auto& qp = arena_.qp(route.dest_qp);
    return qp.reliable != 0 && arena_.packet(packet).header.slid == qp.peer_lid;
}

template <class Probe>
std::uint32_t Mover<Probe>::decide_at_hca(const arena::NodeEntry& node, std::uint32_t node_index,
                                          const arena::Route& route) const {
    const std::uint32_t lid = route.dlid;
    if (lid >= arena_.header().lid_count || route.dest_qp >= arena::kQpCount) {
        return credit::kClaimDiscard;
    }
    const std::uint32_t port = arena_.lids()[lid];
    if (port < node.first_port || port >= node.first_port + node.port_count) {
        return credit::kClaimDiscard;
    }
    const auto& qp = arena_.qp(route.dest_qp);
    if (qp.owner.load(std::memory_order_acquire) == 0 || qp.node != node_index ||
        qp.initialised.load(std::memory_order_acquire) == 0 ||
        qp.closing.load(std::memory_order_acquire) != 0) {
        return credit::kClaimDiscard;
    }
    const bool waits = qp.reliable == 0 && !route.response;
    if (waits && qp.receiving.load(std::memory_order_relaxed) != 1) return credit::kClaimDiscard;
    const auto& ring = route.response ? qp.responses : qp.requests;
    if (ring.occupancy() + kRingMargin < credit::kSlotCount) return credit::kClaimDeliver;
    const bool choked = qp.choked.load(std::memory_order_relaxed) != 0;
    return waits && !choked ? credit::kUnclaimed : credit::kClaimDiscard;
}

template <class Probe>
LaneId Mover<Probe>::destination(LaneId from, std::uint32_t claim,
                                 const arena::Route& route) const {
    if (claim == credit::kClaimDeliver) {
        return route.response ? response_ring(route.dest_qp) : request_ring(route.dest_qp);
    }
    const auto& node = arena_.node(arena_.port(port_of(from)).node);
    const auto peer = arena_.port(node.first_port + claim / 16 - 1).peer;
    return port_lane(peer, claim % 16);
}

template <class Probe>
std::uint32_t Mover<Probe>::claim_for(LaneId to) const {
    if (is_ring(to)) return credit::kClaimDeliver;
    const auto& port = arena_.port(to / lanes_);
    return arena_.port(port.peer).number * 16 + to % lanes_;
}

template <class Probe>
LaneId Mover<Probe>::upstream(LaneId to, const credit::Slot& slot) const {
    auto node_index =
        is_ring(to) ? arena_.qp(ring_qp(to)).node : arena_.port(arena_.port(to / lanes_).peer).node;
    if (slot.express) {
        node_index = arena_.port(arena_.port(arena_.node(node_index).first_port).peer).node;
    }
    const auto& node = arena_.node(node_index);
    const auto port = node.first_port + slot.source / 16 - 1;
    const auto vl = slot.source % 16;
    // What an HCA has sent by a link of its own accord came from its egress.
    if (!is_ring(to) && node.kind == arena::NodeKind::kHca) return egress_lane(port, vl);
    return port_lane(port, vl);
}

template <class Probe>
Advance Mover<Probe>::discard(credit::LaneBuffer& from, std::uint64_t head_word,
                              const credit::Slot& slot, const arena::Route& route) {
    if (self_ != nullptr) {
        const credit::Slot handle{0, slot.generation, slot.packet, 0};
        self_->releasing.store(handle.encode() + 1, std::memory_order_release);
    }
    const auto next = credit::Head::decode(head_word).next(route.blocks()).encode();
    if (swap(from.head, head_word, next)) {
        Probe::point();
        release(slot);
        from.discards.fetch_add(1, std::memory_order_relaxed);
    }
    if (self_ != nullptr) self_->releasing.store(0, std::memory_order_release);
    return {Step::kDiscarded, kNoLane};
}

template <class Probe>
Advance Mover<Probe>::advance(LaneId from) {
    auto& buffer_x = buffer(from);
    for (;;) {
        auto head_word = buffer_x.head.load(std::memory_order_acquire);
        auto head = credit::Head::decode(head_word);
        const auto slot =
            credit::Slot::decode(buffer_x.slot(head.index).load(std::memory_order_acquire));
        if (!filled(slot, head.index)) return {Step::kEmpty, kNoLane};
        const auto tail_word = buffer_x.tail.load(std::memory_order_acquire);
        if ((credit::Tail::decode(tail_word).index & credit::kHeadIndexMask) == head.index) {
            finish(from, tail_word);
            continue;
        }
        Probe::point();
        const auto route = route_of(slot.packet);
        if (head.claim == credit::kUnclaimed) {
            head.claim = decide(from, slot.packet, route);
            if (head.claim == credit::kUnclaimed) {
                if (buffer_x.head.load(std::memory_order_acquire) != head_word) continue;
                return {Step::kBlocked, request_ring(route.dest_qp)};
            }
            if (head.claim >= kFirstPortClaim && rated()) [[unlikely]] {
                const auto turn = take_turn({from, head_word, slot, route}, head.claim);
                if (turn) return *turn;
            }
            if (!swap(buffer_x.head, head_word, head.encode())) continue;
            head_word = head.encode();
            if (head.claim == credit::kClaimDiscard) note_dead_egress(from, route);
        }
        if (head.claim == credit::kClaimDiscard) return discard(buffer_x, head_word, slot, route);
        const LaneId to = destination(from, head.claim, route);
        const auto& port = arena_.port(port_of(from));
        const bool express = is_ring(to) && arena_.node(port.node).kind != arena::NodeKind::kHca;
        const credit::Slot what{0, slot.generation, slot.packet, port.number * 16 + from % lanes_,
                                express};
        const auto still_here = [&] {
            return buffer_x.head.load(std::memory_order_acquire) == head_word;
        };
        switch (insert(to, what, route, still_here)) {
            case Insert::kDone:
                return {Step::kMoved, to};
            case Insert::kBlocked:
                return {Step::kBlocked, to};
            case Insert::kRaced:
                break;
        }
    }
}

template <class Probe>
template <class Valid>
typename Mover<Probe>::Insert Mover<Probe>::insert(LaneId to, credit::Slot what,
                                                   const arena::Route& route, Valid valid) {
    auto& buffer_y = buffer(to);
    for (;;) {
        const auto tail_word = buffer_y.tail.load(std::memory_order_acquire);
        const auto tail = credit::Tail::decode(tail_word);
        Probe::point();
        const auto slot_word = buffer_y.slot(tail.index).load(std::memory_order_acquire);
        const auto slot = credit::Slot::decode(slot_word);
        if (filled(slot, tail.index)) {
            finish(to, tail_word);
            if (!valid()) return Insert::kRaced;
            continue;
        }
        // Anything but the entry of one lap ago means that the tail has moved on meanwhile.
        if (!filled(slot, tail.index - credit::kSlotCount)) continue;
        const auto head = credit::Head::decode(buffer_y.head.load(std::memory_order_acquire));
        if (!has_credit(head, tail, route.blocks(), buffer_y.capacity_blocks)) {
            if (buffer_y.tail.load(std::memory_order_acquire) != tail_word) continue;
            if (!valid()) return Insert::kRaced;
            buffer_y.stalls.fetch_add(1, std::memory_order_relaxed);
            return Insert::kBlocked;
        }
        // The order matters: the tail was read first, only then is the packet seen to be still
        // there.
        if (!valid()) return Insert::kRaced;
        what.sequence = static_cast<std::uint32_t>(tail.index & credit::kSequenceMask);
        const bool inserted = swap(buffer_y.slot(tail.index), slot_word, what.encode());
        finish(to, tail_word);
        if (inserted) return Insert::kDone;
        if (!valid()) return Insert::kRaced;
    }
}

/// Steps 3 and 4 for the packet that stands at the tail. Anybody may do it; all but one achieve
/// nothing.
template <class Probe>
void Mover<Probe>::finish(LaneId to, std::uint64_t tail_word) {
    auto& buffer_y = buffer(to);
    const auto tail = credit::Tail::decode(tail_word);
    const auto slot =
        credit::Slot::decode(buffer_y.slot(tail.index).load(std::memory_order_acquire));
    if (!filled(slot, tail.index)) return;
    // If the packet is gone and its descriptor reused, this is another packet's size: but then the
    // tail has moved, and neither swap below succeeds.
    const auto route = route_of(slot.packet);
    if (slot.source != credit::kSourceNone &&
        !finish_leaving(to, tail_word, slot, route.blocks())) {
        return;
    }
    if (!swap(buffer_y.tail, tail_word, tail.next(route.blocks()).encode())) return;
    if (slot.express) {
        const auto port = arena_.node(arena_.qp(ring_qp(to)).node).first_port;
        auto& lane = arena_.lane(port, route.service_level % lanes_);
        lane.passed().fetch_add(1, std::memory_order_relaxed);
        lane.received_bytes.fetch_add(route.words * 4ULL, std::memory_order_relaxed);
    } else if (!is_ring(to)) {
        buffer_y.received_bytes.fetch_add(route.words * 4ULL, std::memory_order_relaxed);
    }
    // The swap above is a full barrier: an owner that stops watching looks at the ring once more
    // after it has said so, and either sees this packet or is told of it.
    if (is_ring(to) && !route.quiet && buffer_y.watched.load(std::memory_order_seq_cst) == 0) {
        notify(ring_qp(to));
    }
}

/// Step 3. False if the tail has moved on, so that there is nothing left to finish.
template <class Probe>
bool Mover<Probe>::finish_leaving(LaneId to, std::uint64_t tail_word, const credit::Slot& slot,
                                  std::uint32_t blocks) {
    auto& buffer_x = buffer(upstream(to, slot));
    const auto claim = claim_for(to);
    for (;;) {
        const auto head_word = buffer_x.head.load(std::memory_order_acquire);
        const auto head = credit::Head::decode(head_word);
        Probe::point();
        const auto at_head =
            credit::Slot::decode(buffer_x.slot(head.index).load(std::memory_order_acquire));
        if (!filled(at_head, head.index) || !at_head.same_packet(slot) || head.claim != claim) {
            return true;
        }
        // While the tail stands, the packet is in `to` and untaken, so what stands at the head of X
        // is the entry that it came from and not a later visit of the same packet.
        if (buffer(to).tail.load(std::memory_order_acquire) != tail_word) return false;
        if (swap(buffer_x.head, head_word, head.next(blocks).encode())) return true;
    }
}

/// True if a packet went to `to`, and is to be followed there.
constexpr bool carried(const Advance& result) {
    return result.step == Step::kMoved || (result.step == Step::kHelped && result.to != kNoLane);
}

template <class Probe>
bool Mover<Probe>::drive(LaneId start) {
    constexpr std::uint32_t kPendingMax = 64;
    constexpr std::uint32_t kBlockedMax = 256;
    LaneId pending[kPendingMax];
    std::uint32_t count = 1;
    std::uint32_t blocked = 0;
    bool complete = true;
    pending[0] = start;
    const auto known = [&](LaneId lane) {
        return std::find(pending, pending + count, lane) != pending + count;
    };
    while (count > 0) {
        const LaneId lane = pending[count - 1];
        const Advance result = advance(lane);
        if (result.step == Step::kEmpty) {
            --count;
        } else if (result.step == Step::kWaiting) {
            waiting_.add(lane);
            --count;
        } else if (carried(result) && !is_ring(result.to) && !known(result.to)) {
            // Followed when this lane has been emptied, so that a batch moves hop by hop.
            pending[count - 1] = result.to;
            if (count < kPendingMax) {
                pending[count++] = lane;
            } else {
                stuck_.add(lane);
                complete = false;
            }
        } else if (result.step == Step::kBlocked) {
            // What blocks us is drained first, unless it waits itself, for a program or another
            // mover.
            const bool paced = is_waiting(result.to);
            const bool drains = !is_ring(result.to) && count < kPendingMax && !paced &&
                                ++blocked <= kBlockedMax && !stuck_.contains(result.to);
            if (drains) {
                pending[count++] = result.to;
            } else if (paced) {
                waiting_.add(lane);
                --count;
            } else {
                stuck_.add(lane);
                complete = false;
                --count;
            }
        }
    }
    return complete;
}

template <class Probe>
template <std::uint32_t kSize>
bool Mover<Probe>::retry(LaneSet<kSize>& waited) {
    const auto lanes = std::exchange(waited, {});
    if (lanes.overflowed()) return sweep();
    bool complete = true;
    for (const LaneId lane : lanes)
        complete = drive(lane) && complete;
    return complete;
}

template <class Probe>
bool Mover<Probe>::retry_stuck() {
    return retry(stuck_);
}

template <class Probe>
void Mover<Probe>::choke(LaneId id) {
    const auto& port = arena_.port(port_of(id));
    if (arena_.node(port.node).kind != arena::NodeKind::kHca || is_egress(id)) return;
    auto& lane = buffer(id);
    const auto head = credit::Head::decode(lane.head.load(std::memory_order_acquire));
    const auto slot = credit::Slot::decode(lane.slot(head.index).load(std::memory_order_acquire));
    if (!filled(slot, head.index)) return;
    const auto qp = route_of(slot.packet).dest_qp;
    if (qp < arena::kQpCount) arena_.qp(qp).choked.store(1, std::memory_order_relaxed);
}

template <class Probe>
void Mover<Probe>::choke_stuck() {
    for (const LaneId lane : stuck_)
        choke(lane);
    retry_stuck();
}

template <class Probe>
void Mover<Probe>::remember_stuck() {
    noted_count_ = 0;
    for (const LaneId lane : stuck_) {
        const auto head = buffer(lane).head.load(std::memory_order_acquire);
        noted_[noted_count_++] = {lane, credit::Head::decode(head).index};
    }
}

template <class Probe>
void Mover<Probe>::choke_noted() {
    for (std::uint32_t i = 0; i < noted_count_; ++i) {
        const auto head = buffer(noted_[i].lane).head.load(std::memory_order_acquire);
        if (stuck_.contains(noted_[i].lane) && credit::Head::decode(head).index == noted_[i].head)
            choke(noted_[i].lane);
    }
    retry_stuck();
}

template <class Probe>
bool Mover<Probe>::sweep() {
    bool complete = true;
    for (LaneId lane = 0; lane < qp_base_; ++lane) {
        if (buffer(lane).occupancy() != 0 || half_inserted(lane))
            complete = drive(lane) && complete;
    }
    return complete;
}

/// True if a packet stands at the tail that has not been counted yet.
template <class Probe>
bool Mover<Probe>::half_inserted(LaneId lane) const {
    auto& b = buffer(lane);
    const auto tail = credit::Tail::decode(b.tail.load(std::memory_order_acquire));
    return filled(credit::Slot::decode(b.slot(tail.index).load(std::memory_order_acquire)),
                  tail.index);
}

template <class Probe>
bool Mover<Probe>::peek(LaneId ring, credit::Slot& slot) {
    auto& buffer_x = buffer(ring);
    const auto head = credit::Head::decode(buffer_x.head.load(std::memory_order_acquire));
    slot = credit::Slot::decode(buffer_x.slot(head.index).load(std::memory_order_acquire));
    if (!filled(slot, head.index)) return false;
    // What the consumer will write to comes at once, and to be written.
    __builtin_prefetch(&arena_.packet(slot.packet), 1);
    __builtin_prefetch(arena_.packet(slot.packet).payload, 1);
    // Whoever put the packet in is most likely about to count it; helping at once would only take
    // the lines that it needs for it.
    constexpr int kPatience = 64;
    for (int look = 0;; ++look) {
        const auto tail_word = buffer_x.tail.load(std::memory_order_acquire);
        if ((credit::Tail::decode(tail_word).index & credit::kHeadIndexMask) != head.index) break;
        if (look >= kPatience) finish(ring, tail_word);
    }
    __builtin_prefetch(&buffer_x, 1);
    return true;
}

template <class Probe>
void Mover<Probe>::pop(LaneId ring) {
    auto& buffer_x = buffer(ring);
    const auto head_word = buffer_x.head.load(std::memory_order_acquire);
    const auto head = credit::Head::decode(head_word);
    const auto slot =
        credit::Slot::decode(buffer_x.slot(head.index).load(std::memory_order_acquire));
    swap(buffer_x.head, head_word, head.next(route_of(slot.packet).blocks()).encode());
}

/// Counts a drop at the port whose cable is out, where an operator looks for it (PortXmitDiscards).
template <class Probe>
void Mover<Probe>::note_dead_egress(LaneId from, const arena::Route& route) const {
    const auto& node = arena_.node(arena_.port(port_of(from)).node);
    if (is_egress(from)) {
        arena_.port(port_of(from)).transmit_discards.fetch_add(1, std::memory_order_relaxed);
        return;
    }
    if (node.kind != arena::NodeKind::kSwitch || route.dlid >= arena_.header().lid_count) return;
    const std::uint32_t out = arena_.lft(node)[route.dlid];
    if (out == 0 || out > node.port_count) return;
    auto& port = arena_.port(node.first_port + out - 1);
    if (port.up.load(std::memory_order_relaxed) == 0) {
        port.transmit_discards.fetch_add(1, std::memory_order_relaxed);
    }
}

template <class Probe>
bool Mover<Probe>::path_up(std::uint32_t port, std::uint32_t dlid) const {
    constexpr int kHopsMax = 64;
    if (dlid >= arena_.header().lid_count) return false;
    const auto target = arena_.lids()[dlid];
    for (int hop = 0; hop < kHopsMax; ++hop) {
        if (port == target) return true;
        const auto& out = arena_.port(port);
        if (out.peer == arena::kNone || out.up.load(std::memory_order_relaxed) == 0) return false;
        if (out.peer == target) return true;
        const auto& node = arena_.node(arena_.port(out.peer).node);
        if (node.kind != arena::NodeKind::kSwitch) return false;
        const std::uint32_t next = arena_.lft(node)[dlid];
        if (next == 0 || next > node.port_count) return false;
        port = node.first_port + next - 1;
    }
    return false;
}

template <class Probe>
void Mover<Probe>::recover(const arena::ProcessEntry& process) {
    WEIR_CHECK(process.dead.load(std::memory_order_acquire) != 0);
    // Every drop that was decided is carried out first; what is then left to do is at most one
    // release.
    sweep();
    const auto releasing = process.releasing.load(std::memory_order_acquire);
    if (releasing != 0) release(credit::Slot::decode(releasing - 1));
}

template <class Probe>
void Mover<Probe>::notify(std::uint32_t qp_index) {
    const auto& qp = arena_.qp(qp_index);
    const auto owner = qp.owner.load(std::memory_order_acquire);
    if (owner == 0) return;
    const auto process_slot = arena::slot_of(owner);
    auto& process = arena_.process(process_slot);
    const auto word = (qp.local_index / 64) % arena::kReadyWords;
    Probe::point();
    process.ready[word].fetch_or(1ULL << (qp.local_index % 64), std::memory_order_acq_rel);
    Probe::point();
    const auto before = process.summary.fetch_or(1ULL << word, std::memory_order_acq_rel);
    if ((before & arena::kParked) != 0) wakes_[process_slot / 64] |= 1ULL << (process_slot % 64);
}

}  // namespace weir::switching

// SPDX-License-Identifier: Apache-2.0
// Executing requests: by the owner of the target QP, or by the requester as the target's agent.
#include <sched.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "hca/engine.h"

namespace weir::hca {

using transport::Access;
using transport::Receipt;
using transport::Verdict;
using wire::PacketHeader;

transport::ResponderRules rules_of(const arena::QpEntry& qp) {
    return {qp.reliable != 0,
            (qp.access_flags & IBV_ACCESS_REMOTE_WRITE) != 0,
            (qp.access_flags & IBV_ACCESS_REMOTE_READ) != 0,
            (qp.access_flags & IBV_ACCESS_REMOTE_ATOMIC) != 0,
            qp.mtu_bytes,
            static_cast<std::uint8_t>(qp.min_rnr_timer),
            (qp.access_flags & kAccessFlushGlobal) != 0};
}

namespace {

/// In a stream, a sender hears of so many packets before its window is used up.
constexpr std::uint32_t kAckEvery = arena::kQpWindow / 4;
/// Packets at once that do not make a stream.
constexpr std::uint32_t kConversation = 2;

/// QpEntry::receiving: what the owner has to do about it.
constexpr std::uint32_t kBroken = 2;

/// On the program's memory, as a device touches it. What orders it with the program's own accesses
/// lies in the arena, which a thread sanitizer sees at two addresses and so not at all.
__attribute__((no_sanitize("thread"), noinline)) std::uint64_t execute_atomic(
    const PacketHeader& header, std::uint64_t* target) {
    if (header.opcode == wire::Opcode::kRcFetchAdd) {
        return __atomic_fetch_add(target, header.swap_or_add, __ATOMIC_SEQ_CST);
    }
    std::uint64_t expected = header.compare;
    __atomic_compare_exchange_n(target, &expected, header.swap_or_add, false, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
    return expected;
}

/// One store, which nobody sees half of, after all that was stored before.
__attribute__((no_sanitize("thread"), noinline)) void store_whole(std::byte* target,
                                                                  std::uint64_t value) {
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(target), value, __ATOMIC_SEQ_CST);
}

/// What both executors share: the QP served, the packet at hand, and answers.
class EnvBase {
  public:
    /// `quiet`: the answers come back to this very call, and need no notice.
    EnvBase(Attachment& a, arena::QpEntry& qp, std::uint32_t owner, bool quiet)
        : a_(a),
          qp_(qp),
          pd_(qp.pd),
          owner_(owner),
          quiet_(quiet) {}

    void set_packet(const arena::PacketEntry& packet) { packet_ = &packet; }
    void reply(std::uint8_t syndrome, std::uint32_t psn, std::uint32_t msn) {
        PacketHeader header;
        header.opcode = wire::Opcode::kRcAcknowledge;
        header.syndrome = syndrome;
        header.psn = psn;
        header.msn = msn;
        send_reply(a_, qp_, header, quiet_);
    }
    void reply_atomic(std::uint32_t psn, std::uint32_t msn, std::uint64_t original) {
        PacketHeader header;
        header.opcode = wire::Opcode::kRcAtomicAcknowledge;
        header.syndrome = wire::ack_syndrome();
        header.psn = psn;
        header.msn = msn;
        header.original_data = original;
        send_reply(a_, qp_, header, quiet_);
    }
    void reply_done(std::uint32_t psn, std::uint32_t msn) {
        PacketHeader header;
        header.opcode = wire::Opcode::kRcReadResponseOnly;
        header.syndrome = wire::ack_syndrome();
        header.psn = psn;
        header.msn = msn;
        send_reply(a_, qp_, header, quiet_);
    }
    /// What was executed before is in the memory already, and the memory is one for all; the answer
    /// is released after it.
    Access flush(const PacketHeader& header) {
        int access = 0;
        if ((header.flush & wire::kFlushGlobal) != 0) access |= kAccessFlushGlobal;
        if ((header.flush & wire::kFlushPersistent) != 0) access |= kAccessFlushPersistent;
        auto address = header.virtual_address;
        std::uint64_t length = header.dma_length;
        if ((header.flush & wire::kFlushSelectivityMask) == wire::kFlushRegion) {
            const auto index = header.rkey >> 8U;
            address = index < arena::kMrCount ? a_.arena.mr(index).iova : 0;
            length = 0;
        }
        if (find(header.rkey, address, length, access) == nullptr) return Access::kDenied;
        return Access::kOk;
    }
    Access check_write(std::uint32_t rkey, std::uint64_t address, std::uint32_t length) {
        return find(rkey, address, length, IBV_ACCESS_REMOTE_WRITE) != nullptr ? Access::kOk
                                                                               : Access::kDenied;
    }

  protected:
    const arena::MrEntry* find(std::uint32_t rkey, std::uint64_t address, std::uint64_t length,
                               int access) const {
        return a_.find_mr(owner_, pd_, rkey, address, length, access, &qp_);
    }
    /// The payload of an atomic write. Its place in memory must be one that a single store reaches.
    Access store(std::byte* at) {
        std::uint64_t value = 0;
        if (at == nullptr || !a_.reach.fetch(*packet_, 0, &value, sizeof value)) {
            return Access::kFault;
        }
        if (reinterpret_cast<std::uintptr_t>(at) % sizeof value != 0) return Access::kDenied;
        store_whole(at, value);
        return Access::kOk;
    }
    Attachment& a_;
    arena::QpEntry& qp_;
    std::uint32_t pd_;  ///< That requests are checked against.
    std::uint32_t owner_;
    bool quiet_;
    const arena::PacketEntry* packet_ = nullptr;
};

/// The requester executes its own one-sided requests in the peer's memory.
class AgentEnv : public EnvBase {
  public:
    AgentEnv(Attachment& a, arena::QpEntry& qp, std::uint32_t owner,
             transport::Requester& requester)
        : EnvBase(a, qp, owner, true),
          requester_(requester) {}

    Access write(std::uint32_t rkey, std::uint64_t address, std::uint32_t length) {
        // The owner alone takes receives; and the data must be there before the notice.
        if (wire::has_immediate(packet_->header.opcode)) return Access::kLater;
        const auto* mr = find(rkey, address, length, IBV_ACCESS_REMOTE_WRITE);
        if (mr == nullptr) return Access::kDenied;
        const auto offset = address - mr->iova;
        if (mr->memory_access == arena::MemoryAccess::kWindow) {
            auto* to = a_.reach.window(owner_, mr->window_offset + offset);
            if (to == nullptr) return Access::kFault;
            return a_.reach.fetch(*packet_, 0, to, length) ? Access::kOk : Access::kFault;
        }
        if (mr->memory_access == arena::MemoryAccess::kOwner) return Access::kLater;
        const void* from = payload_here();
        if (from == nullptr) return Access::kLater;
        return a_.reach.kernel_write(owner_, mr->address + offset, from, length) ? Access::kOk
                                                                                 : Access::kFault;
    }
    Access read(const PacketHeader& header) {
        const auto* mr =
            find(header.rkey, header.virtual_address, header.dma_length, IBV_ACCESS_REMOTE_READ);
        if (header.dma_length != 0 && mr == nullptr) return Access::kDenied;
        auto kind = arena::PayloadKind::kInline;
        std::uint64_t address = 0;
        if (mr != nullptr && header.dma_length != 0) {
            if (mr->memory_access == arena::MemoryAccess::kOwner) return Access::kLater;
            const bool window = mr->memory_access == arena::MemoryAccess::kWindow;
            kind = window ? arena::PayloadKind::kWindow : arena::PayloadKind::kReference;
            address =
                (window ? mr->window_offset : mr->address) + (header.virtual_address - mr->iova);
        }
        return send_read_response(a_, qp_, header, kind, owner_, address, quiet_) ? Access::kOk
                                                                                  : Access::kLater;
    }
    Access atomic(const PacketHeader& header, std::uint64_t& original) {
        const auto* mr = find(header.rkey, header.virtual_address, 8, IBV_ACCESS_REMOTE_ATOMIC);
        if (mr == nullptr) return Access::kDenied;
        if (mr->memory_access != arena::MemoryAccess::kWindow) return Access::kLater;
        auto* at = a_.reach.window(owner_, mr->window_offset + (header.virtual_address - mr->iova));
        if (at == nullptr) return Access::kFault;
        original = execute_atomic(header, reinterpret_cast<std::uint64_t*>(at));
        return Access::kOk;
    }
    Access atomic_write(const PacketHeader& header) {
        const auto* mr = find(header.rkey, header.virtual_address, 8, IBV_ACCESS_REMOTE_WRITE);
        if (mr == nullptr) return Access::kDenied;
        if (mr->memory_access != arena::MemoryAccess::kWindow) return Access::kLater;
        auto* at = a_.reach.window(owner_, mr->window_offset + (header.virtual_address - mr->iova));
        return store(at);
    }
    /// The requester is here: its answer is handed over, provided that the way back is whole.
    /// Travelling, it would only take cache lines from the other direction's traffic. Behind open
    /// reads it does travel, so as to keep its place after their data.
    void reply(std::uint8_t syndrome, std::uint32_t psn, std::uint32_t msn) {
        if (requester_.reads_open() != 0) {
            EnvBase::reply(syndrome, psn, msn);
            return;
        }
        if (!a_.mover.path_up(a_.arena.lids()[qp_.own_lid], qp_.peer_lid)) return;
        PacketHeader header;
        header.opcode = wire::Opcode::kRcAcknowledge;
        header.syndrome = syndrome;
        header.psn = psn;
        header.msn = msn;
        const bool waits = wire::ack_kind(syndrome) == wire::AckKind::kRnrNak;
        requester_.on_acknowledge(header, waits ? now_ns() : coarse_now_ns());
    }
    static Receipt receive(const PacketHeader&) { return Receipt::kLater; }
    static Receipt notify(const PacketHeader&) { return Receipt::kLater; }
    static void abort_receive() {}

  private:
    transport::Requester& requester_;
    [[nodiscard]] const void* payload_here() const {
        switch (packet_->payload_kind) {
            case arena::PayloadKind::kInline:
                return packet_->payload;
            case arena::PayloadKind::kBulk:
                return a_.arena.bytes(packet_->address);
            case arena::PayloadKind::kReference:
                return packet_->memory_owner == a_.identity
                           ? reinterpret_cast<const void*>(packet_->address)
                           : nullptr;
            case arena::PayloadKind::kWindow:
                break;
        }
        return nullptr;
    }
};

/// The owner executes everything that arrives for its QP.
class OwnerEnv : public EnvBase {
  public:
    OwnerEnv(Attachment& a, QueuePair::State& qp)
        : EnvBase(a, qp.entry(), a.identity, false),
          state_(qp) {}

    /// XRC: the packet says for whose receive queue it is, and so for whose PD. One that is not of
    /// this QP's domain is none.
    void choose_queue(const PacketHeader& header) {
        const auto found = a_.xrc_srqs.find(wire::srq_number(header));
        const bool ours = found != a_.xrc_srqs.end() && found->second->domain == state_.domain;
        state_.srq = ours ? found->second : nullptr;
        state_.receive_cq = ours ? found->second->cq : nullptr;
        state_.receive_open = state_.receive_open && ours;
        pd_ = ours ? found->second->pd : 0;
    }
    Access write(std::uint32_t rkey, std::uint64_t address, std::uint32_t length) {
        const auto* mr = find(rkey, address, length, IBV_ACCESS_REMOTE_WRITE);
        if (mr == nullptr) return Access::kDenied;
        auto* to = reinterpret_cast<void*>(mr->address + (address - mr->iova));
        return a_.reach.fetch(*packet_, 0, to, length) ? Access::kOk : Access::kFault;
    }
    Access read(const PacketHeader& header) {
        const auto* mr =
            find(header.rkey, header.virtual_address, header.dma_length, IBV_ACCESS_REMOTE_READ);
        if (header.dma_length == 0) {
            return send_read_response(a_, qp_, header, arena::PayloadKind::kInline, 0, 0, quiet_)
                       ? Access::kOk
                       : Access::kLater;
        }
        if (mr == nullptr) return Access::kDenied;
        const auto address = mr->address + (header.virtual_address - mr->iova);
        const bool window = mr->memory_access == arena::MemoryAccess::kWindow;
        const auto kind = window ? arena::PayloadKind::kWindow : arena::PayloadKind::kBulk;
        const auto where =
            window ? mr->window_offset + (header.virtual_address - mr->iova) : address;
        return send_read_response(a_, qp_, header, kind, a_.identity, where, quiet_)
                   ? Access::kOk
                   : Access::kLater;
    }
    Access atomic(const PacketHeader& header, std::uint64_t& original) {
        const auto* mr = find(header.rkey, header.virtual_address, 8, IBV_ACCESS_REMOTE_ATOMIC);
        if (mr == nullptr) return Access::kDenied;
        const auto at = mr->address + (header.virtual_address - mr->iova);
        if (at % 8 != 0) return Access::kDenied;
        original = execute_atomic(header, reinterpret_cast<std::uint64_t*>(at));
        return Access::kOk;
    }
    Access atomic_write(const PacketHeader& header) {
        const auto* mr = find(header.rkey, header.virtual_address, 8, IBV_ACCESS_REMOTE_WRITE);
        if (mr == nullptr) return Access::kDenied;
        return store(
            reinterpret_cast<std::byte*>(mr->address + (header.virtual_address - mr->iova)));
    }
    /// A plain acknowledgement is left with the peer's QP instead of sent, if the way there is
    /// whole.
    void reply(std::uint8_t syndrome, std::uint32_t psn, std::uint32_t msn) {
        if (wire::ack_kind(syndrome) != wire::AckKind::kAck || !hand_over(psn)) {
            EnvBase::reply(syndrome, psn, msn);
        }
    }
    Receipt receive(const PacketHeader& header) {
        if (state_.is_xrc() && state_.srq == nullptr) return Receipt::kTooLong;
        if (wire::starts_message(header.opcode) && !open()) return Receipt::kNoReceive;
        if (state_.open_bytes + header.payload_length > state_.open.bytes) {
            end(header, IBV_WC_LOC_LEN_ERR);
            return Receipt::kTooLong;
        }
        const auto status =
            scatter(a_, pd_, state_.open, state_.open_bytes, *packet_, header.payload_length);
        if (withdrawn(status)) return Receipt::kWithdrawn;
        if (status != IBV_WC_SUCCESS) {
            end(header, status);
            return Receipt::kFault;
        }
        state_.open_bytes += header.payload_length;
        if (wire::has_ieth(header.opcode) &&
            a_.invalidate(state_, header.invalidate_rkey) != IBV_WC_SUCCESS) {
            end(header, IBV_WC_REM_INV_REQ_ERR);
            return Receipt::kFault;
        }
        if (wire::ends_message(header.opcode)) end(header, IBV_WC_SUCCESS);
        return Receipt::kOk;
    }
    Receipt notify(const PacketHeader& header) {
        if (state_.is_xrc() && state_.srq == nullptr) return Receipt::kFault;
        if (!open()) return Receipt::kNoReceive;
        end(header, IBV_WC_SUCCESS);
        return Receipt::kOk;
    }
    void abort_receive() { state_.receive_open = false; }

  private:
    /// True if the packet's payload was to be copied from the sender's memory, and that was not
    /// what had been sent any more, or is gone with the sender. Such a packet is as good as lost.
    [[nodiscard]] bool withdrawn(ibv_wc_status copied) const {
        using arena::PayloadKind;
        const auto kind = packet_->payload_kind;
        if (kind == PayloadKind::kInline || kind == PayloadKind::kBulk) return false;
        if (copied == IBV_WC_LOC_ACCESS_ERR) return true;
        if (qp_.peer_qp >= arena::kQpCount) return true;
        // Changing it by nothing keeps the copy before the look, where a load would not.
        auto& count = a_.arena.qp(qp_.peer_qp).withdrawals;
        return count.fetch_add(0, std::memory_order_acq_rel) != packet_->withdrawals;
    }
    bool hand_over(std::uint32_t psn) {
        if (qp_.peer_qp >= arena::kQpCount) return false;
        auto& peer = a_.arena.qp(qp_.peer_qp);
        if (peer.owner.load(std::memory_order_acquire) == 0 || peer.peer_qp != state_.number ||
            peer.own_lid != qp_.peer_lid || peer.peer_lid != qp_.own_lid) {
            return false;
        }
        // With a cable out on the way back the answer is lost, as it would be travelling.
        if (!a_.mover.path_up(a_.arena.lids()[qp_.own_lid], qp_.peer_lid)) return true;
        peer.responses.acknowledged.exchange(acknowledged_word(state_.attr.rq_psn, psn),
                                             std::memory_order_seq_cst);
        if (peer.responses.watched.load(std::memory_order_seq_cst) == 0) {
            a_.mover.notify(qp_.peer_qp);
        }
        return true;
    }
    bool open() {
        auto& ring = state_.receive_ring();
        if (state_.receive_open) return true;  // UC: the receive of a message that was cut short
        if (ring.empty()) return false;
        ring.pop(state_.open_wr_id, state_.open);
        state_.receive_open = true;
        state_.open_bytes = 0;
        auto* srq = state_.srq;
        if (srq != nullptr && srq->limit != 0 && ring.count() < srq->limit) {
            srq->limit = 0;
            srq->hca->raise({IBV_EVENT_SRQ_LIMIT_REACHED, nullptr, nullptr, srq->self, 0});
        }
        return true;
    }
    void end(const PacketHeader& header, ibv_wc_status status) {
        const bool write = wire::is_write(header.opcode);
        ibv_wc wc{};
        wc.wr_id = state_.open_wr_id;
        wc.status = status;
        wc.opcode = write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
        wc.byte_len = write ? message_bytes(header) : state_.open_bytes;
        wc.qp_num = state_.number;
        wc.src_qp = state_.entry().peer_qp;
        wc.slid = static_cast<std::uint16_t>(header.slid);
        wc.sl = header.sl;
        if (wire::has_immediate(header.opcode)) {
            wc.wc_flags |= IBV_WC_WITH_IMM;
            wc.imm_data = __builtin_bswap32(header.immediate);
        } else if (wire::has_ieth(header.opcode)) {
            wc.wc_flags |= IBV_WC_WITH_INV;
            wc.invalidated_rkey = header.invalidate_rkey;
        }
        state_.receive_open = false;
        state_.receive_cq->push(wc, header.has(wire::kFlagSolicited));
    }
    /// Bytes of a whole RDMA write whose last packet this is.
    [[nodiscard]] std::uint32_t message_bytes(const PacketHeader& header) const {
        return wire::starts_message(header.opcode) ? header.dma_length : qp_.responder.write_bytes;
    }
    QueuePair::State& state_;
};

/// Unreliable services: a message that finds no receive posted waits in the ring, and behind it the
/// port, for a head-of-queue lifetime. So a program that posts in bursts loses nothing. Posting
/// serves it.
bool starved(QueuePair::State& qp, const PacketHeader& header) {
    const bool takes = wire::is_send(header.opcode) ? wire::starts_message(header.opcode)
                                                    : wire::has_immediate(header.opcode);
    if (!takes || qp.receive_open || !qp.receive_ring().empty()) return false;
    qp.starved = true;
    if (qp.srq != nullptr) qp.srq->starved = true;
    return true;
}

/// Datagrams: no order, no answers; what finds no receive is dropped, as the service has it.
void take_datagram(Attachment& a, QueuePair::State& qp, const arena::PacketEntry& packet) {
    const auto& header = packet.header;
    if (wire::service(header.opcode) != wire::Service::kUd || header.qkey != qp.attr.qkey) return;
    auto& ring = qp.receive_ring();
    if (ring.empty()) return;
    std::uint64_t wr_id = 0;
    Buffers buffers;
    ring.pop(wr_id, buffers);
    ibv_wc wc{};
    wc.wr_id = wr_id;
    wc.opcode = IBV_WC_RECV;
    wc.byte_len = header.payload_length + kGrhBytes;
    wc.qp_num = qp.number;
    wc.src_qp = header.src_qp;
    wc.slid = static_cast<std::uint16_t>(header.slid);
    wc.sl = header.sl;
    if (wire::has_immediate(header.opcode)) {
        wc.wc_flags |= IBV_WC_WITH_IMM;
        wc.imm_data = __builtin_bswap32(header.immediate);
    }
    if (header.has(wire::kFlagGrh)) wc.wc_flags |= IBV_WC_GRH;
    wc.status = scatter_datagram(a, qp.entry(), buffers, packet);
    qp.receive_cq->push(wc, header.has(wire::kFlagSolicited));
    if (wc.status != IBV_WC_SUCCESS) a.break_qp(qp, false);
}

}  // namespace

void Attachment::service_requests(QueuePair::State& qp) {
    auto& entry = qp.entry();
    const auto receiving = entry.receiving.load(std::memory_order_acquire);
    if (receiving == kBroken) {
        qp.hca->raise({IBV_EVENT_QP_ACCESS_ERR, nullptr, qp.self, nullptr, 0});
        break_qp(qp, false);
        return;
    }
    if (receiving == 0) return;
    if (entry.choked.load(std::memory_order_relaxed) != 0 && !qp.receive_ring().empty()) {
        entry.choked.store(0);
    }
    const auto ring = mover.request_ring(qp.number);
    credit::Slot slot{};
    if (qp.type == IBV_QPT_UD) {
        service_datagrams(qp);
        return;
    }
    if (!request_in_sight(qp, slot)) return;
    fetch_peer_ring(qp);  // an answer is likely
    std::uint32_t free = 0;
    if (!entry.lock.compare_exchange_strong(free, identity, std::memory_order_acquire)) {
        look_again(qp);
        return;
    }
    OwnerEnv env(*this, qp);
    transport::Responder<OwnerEnv> responder(entry.responder, qp.rules, env);
    bool broken = false;
    bool answered = false;
    std::uint32_t taken = 0;
    auto next = entry.taken.load(std::memory_order_relaxed);
    while (!broken && mover.arrived(ring, next, slot)) {
        // Answers make the peer send more: what is in the ring besides is at most kQpLag by then.
        if (qp.lag >= arena::kQpLag) settle(qp);
        const auto& packet = arena.packet(slot.packet);
        if (packet.header.slid == entry.peer_lid) {
            if (qp.type == IBV_QPT_UC && starved(qp, packet.header)) break;
            env.set_packet(packet);
            if (qp.type == IBV_QPT_XRC_RECV) env.choose_queue(packet.header);
            const auto verdict = responder.on_request(packet.header);
            if (verdict == Verdict::kLater) {
                look_again(qp);
                break;
            }
            broken = verdict == Verdict::kBroken;
            if (packet.acknowledged != 0) {
                qp.carried_acknowledge = packet.acknowledged;
                answered = true;
            }
        }
        next = (next + 1) & credit::kHeadIndexMask;
        entry.taken.store(next, std::memory_order_relaxed);
        ++qp.lag;
        if (++taken % kAckEvery == 0) responder.flush_ack();
    }
    qp.next_request = next;
    // The program gets what came before its sender is told: that is not urgent, and costs the wait
    // for the sender's cache lines. But not twice in a row nor in a stream, or its sender would
    // wait for the end of its window each time.
    const bool may_owe = owes == nullptr && taken <= kConversation;
    if (entry.responder.ack_due != 0 && may_owe && !broken) {
        owes = &qp;
    } else {
        responder.flush_ack();
        if (owes == &qp) owes = nullptr;
    }
    entry.lock.store(0, std::memory_order_release);
    lag_behind(qp);
    if (broken) {
        qp.hca->raise({IBV_EVENT_QP_ACCESS_ERR, nullptr, qp.self, nullptr, 0});
        break_qp(qp, false);
    } else if (answered) {
        take_acknowledged(qp);
        pump(qp);
    }
}

void Attachment::service_datagrams(QueuePair::State& qp) {
    auto& entry = qp.entry();
    const auto ring = mover.request_ring(qp.number);
    credit::Slot slot{};
    auto next = entry.taken.load(std::memory_order_relaxed);
    while (entry.receiving.load(std::memory_order_relaxed) == 1 &&
           mover.arrived(ring, next, slot)) {
        const auto& packet = arena.packet(slot.packet);
        if (starved(qp, packet.header)) break;
        if (qp.lag >= arena::kQpLag) settle(qp);
        take_datagram(*this, qp, packet);
        next = (next + 1) & credit::kHeadIndexMask;
        entry.taken.store(next, std::memory_order_relaxed);
        ++qp.lag;
    }
    qp.next_request = next;
    lag_behind(qp);
}

bool Attachment::request_in_sight(QueuePair::State& qp, credit::Slot& slot) const {
    const auto ring = mover.request_ring(qp.number);
    const auto word = mover.buffer(ring).slot(qp.next_request).load(std::memory_order_acquire);
    const auto sequence = credit::Slot::decode(word).sequence;
    // The entry of one lap ago: nothing has come. Else something has, or an agent has gone on.
    if (sequence == ((qp.next_request - credit::kSlotCount) & credit::kSequenceMask)) return false;
    qp.next_request = qp.entry().taken.load(std::memory_order_relaxed);
    return mover.arrived(ring, qp.next_request, slot);
}

void Attachment::settle(QueuePair::State& qp) {
    qp.lag = 0;
    mover.settle(mover.request_ring(qp.number), qp.entry().taken.load(std::memory_order_relaxed));
}

void Attachment::lag_behind(QueuePair::State& qp) {
    if (qp.lag == 0 || lagging == &qp) return;
    catch_up();
    if (lagging == nullptr) lagging = &qp;
}

void Attachment::catch_up() {
    if (lagging == nullptr) return;
    auto& qp = *lagging;
    if (qp.type == IBV_QPT_UD) {
        settle(qp);
    } else {
        auto& lock_word = qp.entry().lock;
        std::uint32_t free = 0;
        // An agent that holds it settles for us.
        if (lock_word.compare_exchange_strong(free, identity, std::memory_order_acquire)) {
            settle(qp);
            lock_word.store(0, std::memory_order_release);
        }
        qp.lag = 0;
    }
    lagging = nullptr;
    idle_looks = 0;
}

void Attachment::forget_debts(const QueuePair::State& qp) {
    if (owes == &qp) owes = nullptr;
    if (lagging == &qp) lagging = nullptr;
}

std::uint64_t Attachment::take_owed(QueuePair::State& qp) {
    auto& entry = qp.entry();
    std::uint32_t free = 0;
    if (qp.type != IBV_QPT_RC ||
        !entry.lock.compare_exchange_strong(free, identity, std::memory_order_acquire)) {
        return 0;
    }
    const bool due = std::exchange(entry.responder.ack_due, 0U) != 0;
    const auto psn = wire::psn_sub(entry.responder.expected_psn, 1);
    entry.lock.store(0, std::memory_order_release);
    return due ? acknowledged_word(qp.attr.rq_psn, psn) : 0;
}

void Attachment::give_back_owed(QueuePair::State& qp) {
    // Whoever has the lock acknowledges more than this before giving it back, or nothing; then the
    // peer asks again.
    auto& entry = qp.entry();
    std::uint32_t free = 0;
    if (!entry.lock.compare_exchange_strong(free, identity, std::memory_order_acquire)) return;
    entry.responder.ack_due = 1;
    entry.lock.store(0, std::memory_order_release);
}

void Attachment::pay() {
    if (owes == nullptr) return;
    auto& qp = *owes;
    auto& entry = qp.entry();
    std::uint32_t free = 0;
    if (!entry.lock.compare_exchange_strong(free, identity, std::memory_order_acquire)) return;
    owes = nullptr;
    OwnerEnv env(*this, qp);
    transport::Responder<OwnerEnv>(entry.responder, qp.rules, env).flush_ack();
    entry.lock.store(0, std::memory_order_release);
}

void Attachment::pay_last_ack(const QueuePair::State& qp) {
    // The peer may hold the QP's lock, for microseconds unless it is stopped.
    constexpr int kTries = 200;
    for (int i = 0; owes == &qp && i < kTries; ++i) {
        if (i != 0) sched_yield();
        pay();
    }
    if (owes == &qp) owes = nullptr;
}

void Attachment::act_as_peer(QueuePair::State& qp) {
    const auto peer = qp.attr.dest_qp_num;
    if (qp.type == IBV_QPT_UD || qp.is_xrc() || peer >= arena::kQpCount) return;
    auto& entry = arena.qp(peer);
    const auto owner = entry.owner.load(std::memory_order_acquire);
    const auto ring = mover.request_ring(peer);
    credit::Slot slot{};
    if (owner == 0 || entry.peer_qp != qp.number || entry.peer_lid != qp.entry().own_lid ||
        entry.receiving.load(std::memory_order_acquire) != 1 ||
        !mover.arrived(ring, entry.taken.load(std::memory_order_relaxed), slot)) {
        return;
    }
    std::uint32_t free = 0;
    if (!entry.lock.compare_exchange_strong(free, identity, std::memory_order_acquire)) {
        mover.notify(peer);
        return;
    }
    AgentEnv env(*this, entry, owner, qp.requester);
    const auto rules = rules_of(entry);
    transport::Responder<AgentEnv> responder(entry.responder, rules, env);
    bool tell = false;
    auto next = entry.taken.load(std::memory_order_relaxed);
    while (mover.arrived(ring, next, slot)) {
        mover.settle(ring, next);
        const auto& packet = arena.packet(slot.packet);
        if (packet.header.slid == entry.peer_lid) {
            env.set_packet(packet);
            const auto verdict = responder.on_request(packet.header);
            if (verdict == Verdict::kLater) {
                // A send has told its owner by arriving; what we meant to execute has not.
                tell = arena::Route::decode(packet.route.load(std::memory_order_relaxed)).quiet;
                break;
            }
            if (verdict == Verdict::kBroken) {
                entry.receiving.store(kBroken, std::memory_order_release);
                tell = true;
            }
        }
        next = (next + 1) & credit::kHeadIndexMask;
        entry.taken.store(next, std::memory_order_relaxed);
        if (entry.receiving.load(std::memory_order_relaxed) != 1) break;
    }
    mover.settle(ring, next);
    responder.flush_ack();
    entry.lock.store(0, std::memory_order_release);
    if (tell) mover.notify(peer);
}

}  // namespace weir::hca

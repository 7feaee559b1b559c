// SPDX-License-Identifier: Apache-2.0
// Queue pairs: states, posting, and what their states do to the fabric's view of them.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "hca/engine.h"

namespace weir::hca {

namespace {

struct Operation {
    transport::RequestKind kind;
    ibv_wc_opcode wc;
    bool immediate;
    bool rc_only;
    bool invalidate = false;
};

/// False for what this device does not do.
bool operation_of(ibv_wr_opcode opcode, Operation& out) {
    using transport::RequestKind;
    switch (static_cast<int>(opcode)) {
        case IBV_WR_SEND:
            out = {RequestKind::kSend, IBV_WC_SEND, false, false};
            return true;
        case IBV_WR_SEND_WITH_IMM:
            out = {RequestKind::kSend, IBV_WC_SEND, true, false};
            return true;
        case IBV_WR_RDMA_WRITE:
            out = {RequestKind::kWrite, IBV_WC_RDMA_WRITE, false, false};
            return true;
        case IBV_WR_RDMA_WRITE_WITH_IMM:
            out = {RequestKind::kWrite, IBV_WC_RDMA_WRITE, true, false};
            return true;
        case IBV_WR_RDMA_READ:
            out = {RequestKind::kRead, IBV_WC_RDMA_READ, false, true};
            return true;
        case IBV_WR_ATOMIC_CMP_AND_SWP:
            out = {RequestKind::kCompareSwap, IBV_WC_COMP_SWAP, false, true};
            return true;
        case IBV_WR_ATOMIC_FETCH_AND_ADD:
            out = {RequestKind::kFetchAdd, IBV_WC_FETCH_ADD, false, true};
            return true;
        case IBV_WR_ATOMIC_WRITE:
            out = {RequestKind::kAtomicWrite, IBV_WC_ATOMIC_WRITE, false, true};
            return true;
        case kWrFlush:
            out = {RequestKind::kFlush, kWcFlush, false, true};
            return true;
        case IBV_WR_SEND_WITH_INV:
            out = {RequestKind::kSend, IBV_WC_SEND, false, true, true};
            return true;
        case IBV_WR_BIND_MW:
            out = {RequestKind::kLocal, IBV_WC_BIND_MW, false, false};
            return true;
        case IBV_WR_LOCAL_INV:
            out = {RequestKind::kLocal, IBV_WC_LOCAL_INV, false, false};
            return true;
        default:
            return false;
    }
}

bool is_atomic(transport::RequestKind kind) {
    return kind == transport::RequestKind::kCompareSwap ||
           kind == transport::RequestKind::kFetchAdd;
}

constexpr unsigned kSendFlags =
    IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE | IBV_SEND_IP_CSUM;

/// Total bytes of a work request's buffers; false if its list or length is out of bounds.
bool total_bytes(const ibv_send_wr& wr, std::uint32_t sge_max, std::uint64_t& bytes) {
    if (wr.num_sge < 0 || static_cast<std::uint32_t>(wr.num_sge) > sge_max) return false;
    if (wr.num_sge > 0 && wr.sg_list == nullptr) return false;
    bytes = 0;
    for (int i = 0; i < wr.num_sge; ++i)
        bytes += wr.sg_list[i].length;
    return bytes <= kMessageMax;
}

int check_local(const ibv_send_wr& wr) {
    if (wr.opcode != IBV_WR_BIND_MW) return 0;
    const auto& bind = wr.bind_mw;
    // Windows of type 1 have a verb of their own (ibv_bind_mw).
    if (bind.mw == nullptr || bind.mw->type != IBV_MW_TYPE_2) return EINVAL;
    return bind.bind_info.mr == nullptr && bind.bind_info.length != 0 ? EINVAL : 0;
}

int check_flush(const ibv_send_wr& wr) {
    const auto flush = flush_of(wr);
    const bool known = (flush.type & ~unsigned{kFlushGlobal | kFlushPersistent}) == 0 &&
                       (flush.level == kFlushRange || flush.level == kFlushRegion);
    const bool possible = flush.length <= UINT32_MAX || flush.level == kFlushRegion;
    return known && possible && flush.type != 0 && wr.num_sge == 0 ? 0 : EINVAL;
}

/// Checks the work request against the queue pair. 0 or an errno value.
int check_send(const QueuePair::State& qp, const ibv_send_wr& wr, Operation& operation,
               std::uint64_t& bytes) {
    if (!operation_of(wr.opcode, operation)) return EOPNOTSUPP;
    if ((wr.send_flags & ~kSendFlags) != 0) return EINVAL;
    if (qp.type == IBV_QPT_UD && operation.kind != transport::RequestKind::kSend) return EINVAL;
    if (qp.type == IBV_QPT_UC && operation.rc_only) return EINVAL;
    if (qp.type == IBV_QPT_XRC_RECV) return EINVAL;
    if (operation.kind == transport::RequestKind::kLocal) return check_local(wr);
    if (!total_bytes(wr, qp.cap.max_send_sge, bytes)) return EINVAL;
    const bool inlined = (wr.send_flags & IBV_SEND_INLINE) != 0;
    if (inlined && bytes > qp.cap.max_inline_data) return EINVAL;
    if (operation.kind == transport::RequestKind::kFlush) return check_flush(wr);
    const bool word = operation.kind == transport::RequestKind::kAtomicWrite;
    const bool takes = operation.kind == transport::RequestKind::kSend ||
                       operation.kind == transport::RequestKind::kWrite || word;
    if (inlined && !takes) return EINVAL;
    if ((is_atomic(operation.kind) || word) && (bytes != 8 || wr.num_sge != 1)) return EINVAL;
    return 0;
}

/// Copies inline data, or checks keys and translates addresses. False: a key does not cover its
/// buffer.
bool take_buffers(QueuePair::State& qp, std::uint32_t slot, const ibv_send_wr& wr,
                  transport::RequestKind kind) {
    auto& send = qp.sends[slot];
    const auto& a = *qp.attachment;
    if (send.inlined) {
        auto* to = qp.inline_data.data() + static_cast<std::size_t>(slot) * qp.cap.max_inline_data;
        for (int i = 0; i < wr.num_sge; ++i) {
            std::memcpy(to, reinterpret_cast<const void*>(wr.sg_list[i].addr),
                        wr.sg_list[i].length);
            to += wr.sg_list[i].length;
        }
        return true;
    }
    const bool reads = kind == transport::RequestKind::kRead;
    auto* to = &qp.send_sges[static_cast<std::size_t>(slot) * qp.cap.max_send_sge];
    for (int i = 0; i < wr.num_sge; ++i) {
        to[i] = wr.sg_list[i];
        if (to[i].length == 0) continue;
        const int access = reads || is_atomic(kind) ? IBV_ACCESS_LOCAL_WRITE : 0;
        const auto* mr =
            a.find_mr(a.identity, qp.pd, to[i].lkey, to[i].addr, to[i].length, access, nullptr);
        if (mr == nullptr) return false;
        // A read's buffers are looked up again when the data comes, so they keep their keys'
        // addresses.
        if (reads) continue;
        to[i].addr = (mr->access_flags & arena::kMrNull) != 0
                         ? kNoMemory
                         : mr->address + (to[i].addr - mr->iova);
    }
    return true;
}

transport::Request request_of(const ibv_send_wr& wr, const Operation& operation,
                              std::uint64_t bytes) {
    transport::Request request;
    request.kind = operation.kind;
    request.solicited = (wr.send_flags & IBV_SEND_SOLICITED) != 0;
    request.fence = (wr.send_flags & IBV_SEND_FENCE) != 0;
    request.has_immediate = operation.immediate;
    request.invalidate = operation.invalidate;
    request.immediate = operation.invalidate ? wr.invalidate_rkey : __builtin_bswap32(wr.imm_data);
    request.srq_number = wr.qp_type.xrc.remote_srqn;
    request.length = is_atomic(operation.kind) ? 0 : static_cast<std::uint32_t>(bytes);
    if (operation.kind == transport::RequestKind::kFlush) {
        const auto flush = flush_of(wr);
        request.rkey = flush.rkey;
        request.remote_address = flush.address;
        request.flush_length = static_cast<std::uint32_t>(flush.length);
        request.flush = flush.type | (flush.level == kFlushRegion ? wire::kFlushRegion : 0U);
    } else if (is_atomic(operation.kind)) {
        request.rkey = wr.wr.atomic.rkey;
        request.remote_address = wr.wr.atomic.remote_addr;
        const bool swap = operation.kind == transport::RequestKind::kCompareSwap;
        request.swap_or_add = swap ? wr.wr.atomic.swap : wr.wr.atomic.compare_add;
        request.compare = wr.wr.atomic.compare_add;
    } else {
        request.rkey = wr.wr.rdma.rkey;
        request.remote_address = wr.wr.rdma.remote_addr;
    }
    return request;
}

void fill_slot(const QueuePair::State& qp, SendSlot& send, const ibv_send_wr& wr,
               const Operation& operation, std::uint64_t bytes) {
    send.wr_id = wr.wr_id;
    send.wc_opcode = operation.wc;
    send.signaled = qp.signal_all || (wr.send_flags & IBV_SEND_SIGNALED) != 0;
    send.inlined = (wr.send_flags & IBV_SEND_INLINE) != 0;
    send.bytes = static_cast<std::uint32_t>(bytes);
    send.sge_count = static_cast<std::uint32_t>(wr.num_sge);
    send.local_error = IBV_WC_SUCCESS;
}

/// A bind or invalidation takes its turn in the queue.
int post_local(QueuePair::State& qp, const ibv_send_wr& wr, const Operation& operation) {
    if (qp.requester.outstanding() >= qp.cap.max_send_wr) return ENOMEM;
    if (qp.local_work.empty()) qp.local_work.resize(qp.requester.slots());
    transport::Request request;
    request.kind = operation.kind;
    request.fence = (wr.send_flags & IBV_SEND_FENCE) != 0;
    const auto slot = qp.requester.post(request);
    fill_slot(qp, qp.sends[slot], wr, operation, 0);
    qp.sends[slot].sge_count = 0;
    auto& work = qp.local_work[slot];
    if (wr.opcode != IBV_WR_BIND_MW) {
        work = LocalWork{wr.invalidate_rkey};
        return 0;
    }
    const auto& info = wr.bind_mw.bind_info;
    work = {wr.bind_mw.rkey,      wr.bind_mw.mw->rkey, info.mr == nullptr ? 0 : info.mr->lkey,
            info.mw_access_flags, info.addr,           info.length};
    return 0;
}

/// A key does not cover its buffer: told in the request's turn, unless that never comes.
void fail_locally(QueuePair::State& qp, std::uint32_t slot) {
    const auto state = qp.state.load(std::memory_order_relaxed);
    if (state == IBV_QPS_ERR || state == IBV_QPS_SQE) return;
    qp.sends[slot].local_error = IBV_WC_LOC_PROT_ERR;
    qp.requester.fail(slot, transport::RequestStatus::kRemoteOperation);
}

int post_connected(QueuePair::State& qp, const ibv_send_wr& wr, const Operation& operation,
                   std::uint64_t bytes) {
    if (operation.kind == transport::RequestKind::kLocal) return post_local(qp, wr, operation);
    if (qp.requester.outstanding() >= qp.cap.max_send_wr) return ENOMEM;
    const auto slot = qp.requester.post(request_of(wr, operation, bytes));
    fill_slot(qp, qp.sends[slot], wr, operation, bytes);
    if (!take_buffers(qp, slot, wr, operation.kind)) fail_locally(qp, slot);
    return 0;
}

int post_datagram(QueuePair::State& qp, const ibv_send_wr& wr, const Operation& operation,
                  std::uint64_t bytes) {
    auto& a = *qp.attachment;
    const auto* ah = reinterpret_cast<const AddressHandle*>(wr.wr.ud.ah);
    if (ah == nullptr || bytes > a.arena.header().mtu_bytes) return EINVAL;
    if (qp.requester.outstanding() >= qp.cap.max_send_wr) return ENOMEM;
    const auto slot = qp.requester.post(request_of(wr, operation, bytes));
    auto& send = qp.sends[slot];
    fill_slot(qp, send, wr, operation, bytes);
    if (!take_buffers(qp, slot, wr, operation.kind)) {
        fail_locally(qp, slot);
        return 0;
    }
    auto& header = qp.datagrams[slot];
    header = wire::PacketHeader{};
    header.opcode = operation.immediate ? wire::Opcode::kUdSendOnlyImm : wire::Opcode::kUdSendOnly;
    header.immediate = operation.immediate ? __builtin_bswap32(wr.imm_data) : 0;
    header.set(wire::kFlagSolicited, (wr.send_flags & IBV_SEND_SOLICITED) != 0);
    header.set(wire::kFlagGrh, ah->attr.is_global != 0);
    header.slid = qp.entry().own_lid;
    header.dlid = ah->dlid;
    header.sl = ah->attr.sl;
    header.pkey = static_cast<std::uint16_t>(qp.entry().pkey);
    header.dest_qp = wr.wr.ud.remote_qpn & wire::kMask24;
    header.src_qp = qp.number;
    // A Q_Key with its highest bit set means the QP's own (IBTA 10.2.5).
    header.qkey = (wr.wr.ud.remote_qkey >> 31U) != 0 ? qp.attr.qkey : wr.wr.ud.remote_qkey;
    header.payload_length = static_cast<std::uint32_t>(bytes);
    const auto& gid = ah->attr.grh.dgid;
    const bool to_gid = ah->attr.is_global != 0 && gid.raw[0] == 0xff;
    if (header.dest_qp == kGroupQp && (to_gid || ah->dlid >= kFirstGroupLid)) {
        header.set(wire::kFlagMulticast);
        std::memcpy(&header.swap_or_add, gid.raw, 8);
        std::memcpy(&header.compare, gid.raw + 8, 8);
    }
    return 0;
}

}  // namespace

QueuePair::State::State(std::shared_ptr<Attachment> owner, std::uint32_t index, std::uint32_t slots)
    : attachment(std::move(owner)),
      number(index),
      fabric_entry(&attachment->arena.qp(index)),
      requester(slots) {}

void ReceiveRing::push(const ibv_recv_wr& wr) {
    const auto index = (first_ + count_++) % capacity_;
    auto& slot = slots_[index];
    slot.wr_id = wr.wr_id;
    slot.sge_count = static_cast<std::uint32_t>(wr.num_sge);
    slot.bytes = 0;
    auto* to = sges_.data() + static_cast<std::size_t>(index) * sge_max_;
    for (std::uint32_t i = 0; i < slot.sge_count; ++i) {
        to[i] = wr.sg_list[i];
        slot.bytes += wr.sg_list[i].length;
    }
}

void ReceiveRing::pop(std::uint64_t& wr_id, Buffers& buffers) {
    const auto& slot = slots_[first_];
    wr_id = slot.wr_id;
    buffers.count = slot.sge_count;
    buffers.bytes = slot.bytes;
    const auto* from = sges_.data() + static_cast<std::size_t>(first_) * sge_max_;
    std::copy_n(from, slot.sge_count, buffers.sges);
    first_ = first_ + 1 == capacity_ ? 0 : first_ + 1;
    --count_;
}

void ReceiveRing::grow(std::uint32_t capacity) {
    ReceiveRing larger;
    larger.resize(capacity, sge_max_);
    for (std::uint32_t i = 0; i < count_; ++i) {
        const auto from = (first_ + i) % capacity_;
        larger.slots_[i] = slots_[from];
        std::copy_n(sges_.data() + static_cast<std::size_t>(from) * sge_max_, sge_max_,
                    larger.sges_.data() + static_cast<std::size_t>(i) * sge_max_);
    }
    larger.count_ = count_;
    *this = std::move(larger);
}

QueuePair::QueuePair(std::unique_ptr<State> state) : state_(std::move(state)) {
    state_->self = this;
}
QueuePair::~QueuePair() = default;

std::uint32_t QueuePair::number() const {
    return state_->number;
}
ibv_qp_state QueuePair::current_state() const {
    return state_->state.load(std::memory_order_relaxed);
}

namespace {

/// 0 if work may be posted in this state at all.
int may_post(const Attachment& a, ibv_qp_state state) {
    if (!a.usable()) return EIO;
    const bool early = state == IBV_QPS_RESET || state == IBV_QPS_INIT || state == IBV_QPS_RTR;
    return early ? EINVAL : 0;
}

int post_one(QueuePair::State& qp, const ibv_send_wr& wr) {
    Operation operation{};
    std::uint64_t bytes = 0;
    const int error = check_send(qp, wr, operation, bytes);
    if (error != 0) return error;
    return qp.type == IBV_QPT_UD ? post_datagram(qp, wr, operation, bytes)
                                 : post_connected(qp, wr, operation, bytes);
}

/// What posting would answer, without posting.
int check_whole(const QueuePair::State& qp, const ibv_send_wr* list) {
    std::uint32_t count = 0;
    for (const auto* wr = list; wr != nullptr; wr = wr->next, ++count) {
        Operation operation{};
        std::uint64_t bytes = 0;
        const int error = check_send(qp, *wr, operation, bytes);
        if (error != 0) return error;
        if (qp.type != IBV_QPT_UD) continue;
        if (wr->wr.ud.ah == nullptr || bytes > qp.attachment->arena.header().mtu_bytes)
            return EINVAL;
    }
    return count > qp.cap.max_send_wr - qp.requester.outstanding() ? ENOMEM : 0;
}

/// Has what was posted sent, and leaves the engine.
void launch(Attachment& a, QueuePair::State& qp, ibv_qp_state state) {
    if (state == IBV_QPS_ERR || state == IBV_QPS_SQE) {
        qp.requester.flush();
        a.collect(qp);
    } else {
        a.pump(qp);
    }
    a.pay();
    a.flush_wakes();
    a.leave_to_thread();
}

}  // namespace

int QueuePair::post_send(ibv_send_wr* list, ibv_send_wr** bad) {
    auto& qp = *state_;
    auto& a = *qp.attachment;
    if (a.inherited()) {
        if (bad != nullptr) *bad = list;
        return EIO;
    }
    const std::lock_guard guard(a.lock);
    const auto state = qp.state.load(std::memory_order_relaxed);
    int error = may_post(a, state);
    ibv_send_wr* wr = list;
    for (; wr != nullptr && error == 0; wr = wr->next) {
        // Its arguments have no place in the struct of ibv_post_send().
        error = wr->opcode == static_cast<ibv_wr_opcode>(kWrFlush) ? EOPNOTSUPP : post_one(qp, *wr);
        if (error != 0) break;
    }
    if (error != 0 && bad != nullptr) *bad = wr;
    launch(a, qp, state);
    return error;
}

int QueuePair::post_send_whole(ibv_send_wr* list) {
    auto& qp = *state_;
    auto& a = *qp.attachment;
    if (a.inherited()) return EIO;
    const std::lock_guard guard(a.lock);
    const auto state = qp.state.load(std::memory_order_relaxed);
    int error = may_post(a, state);
    // One alone is whole by itself.
    if (error == 0 && list != nullptr && list->next != nullptr) error = check_whole(qp, list);
    for (auto* wr = list; wr != nullptr && error == 0; wr = wr->next)
        error = post_one(qp, *wr);
    launch(a, qp, state);
    return error;
}

namespace {
int check_receive(const ibv_recv_wr& wr, std::uint32_t sge_max) {
    if (wr.num_sge < 0 || static_cast<std::uint32_t>(wr.num_sge) > sge_max) return EINVAL;
    if (wr.num_sge > 0 && wr.sg_list == nullptr) return EINVAL;
    std::uint64_t bytes = 0;
    for (int i = 0; i < wr.num_sge; ++i)
        bytes += wr.sg_list[i].length;
    return bytes <= 0xffffffffULL ? 0 : EINVAL;
}

int push_receives(ReceiveRing& ring, ibv_recv_wr* list, ibv_recv_wr** bad) {
    for (auto* wr = list; wr != nullptr; wr = wr->next) {
        int error = check_receive(*wr, ring.sge_max());
        if (error == 0 && ring.full()) error = ENOMEM;
        if (error != 0) {
            if (bad != nullptr) *bad = wr;
            return error;
        }
        ring.push(*wr);
    }
    return 0;
}
}  // namespace

int QueuePair::post_receive(ibv_recv_wr* list, ibv_recv_wr** bad) {
    auto& qp = *state_;
    auto& a = *qp.attachment;
    const auto state = qp.state.load(std::memory_order_relaxed);
    if (a.inherited() || qp.srq != nullptr || state == IBV_QPS_RESET) {
        if (bad != nullptr) *bad = list;
        return a.inherited() ? EIO : EINVAL;
    }
    const std::lock_guard guard(a.lock);
    const int error = push_receives(qp.receives, list, bad);
    if (qp.starved) {
        qp.starved = false;
        a.service_requests(qp);
        a.flush_wakes();
    }
    if (state == IBV_QPS_ERR) a.flush_receives(qp);
    return error;
}

SharedReceiveQueue::SharedReceiveQueue(std::unique_ptr<State> state) : state_(std::move(state)) {
    state_->self = this;
}
SharedReceiveQueue::~SharedReceiveQueue() = default;

int SharedReceiveQueue::post(ibv_recv_wr* list, ibv_recv_wr** bad) {
    if (state_->attachment->inherited()) {
        if (bad != nullptr) *bad = list;
        return EIO;
    }
    auto& a = *state_->attachment;
    const std::lock_guard guard(a.lock);
    const int error = push_receives(state_->ring, list, bad);
    if (state_->starved) {
        state_->starved = false;
        a.retry = true;  // some QP of it waits: look at all
        a.progress();
        a.leave_to_thread();
    }
    return error;
}

int SharedReceiveQueue::modify(const ibv_srq_attr& attr, int mask) {
    if (state_->attachment->inherited()) return EIO;
    const std::lock_guard guard(state_->attachment->lock);
    if ((mask & ~(IBV_SRQ_LIMIT | IBV_SRQ_MAX_WR)) != 0) return EINVAL;
    const bool resizes = (mask & IBV_SRQ_MAX_WR) != 0;
    const bool limits = (mask & IBV_SRQ_LIMIT) != 0;
    const auto capacity = resizes ? attr.max_wr : state_->ring.capacity();
    const auto limit = limits ? attr.srq_limit : state_->limit;
    if (capacity == 0 || capacity > kQueueMax || capacity < state_->ring.count()) return EINVAL;
    if (limit > capacity) return EINVAL;
    if (resizes) state_->ring.grow(capacity);
    if (!limits) return 0;
    state_->limit = attr.srq_limit;
    if (state_->limit != 0 && state_->ring.count() < state_->limit) {
        state_->limit = 0;
        state_->hca->raise({IBV_EVENT_SRQ_LIMIT_REACHED, nullptr, nullptr, this, 0});
    }
    return 0;
}

int SharedReceiveQueue::query(ibv_srq_attr& attr) const {
    const std::lock_guard guard(state_->attachment->lock);
    attr.max_wr = state_->ring.capacity();
    attr.max_sge = state_->ring.sge_max();
    attr.srq_limit = state_->limit;
    return 0;
}

}  // namespace weir::hca

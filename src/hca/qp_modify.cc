// SPDX-License-Identifier: Apache-2.0
// The queue pair's life: creation, state changes, query, destruction.
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "hca/engine.h"
#include "transport/qp_attributes.h"

namespace weir::hca {

namespace {

constexpr std::uint32_t mtu_bytes(ibv_mtu mtu) {
    return 128U << static_cast<unsigned>(mtu);
}

/// Takes the responder lock of an own QP, waiting for an agent at work there, but not for one that
/// is stopped.
bool lock_responder(Attachment& a, arena::QpEntry& entry) {
    constexpr std::uint64_t kWaitNs = 20'000'000;
    const auto until = now_ns() + kWaitNs;
    for (;;) {
        std::uint32_t free = 0;
        if (entry.lock.compare_exchange_strong(free, a.identity, std::memory_order_acquire)) {
            return true;
        }
        if (now_ns() > until) return false;
        sched_yield();
    }
}

/// Empties the QP's rings and forgets what its peer had under way.
void clear_fabric_side(Attachment& a, QueuePair::State& qp) {
    auto& entry = qp.entry();
    entry.receiving.store(0, std::memory_order_release);
    const bool locked = lock_responder(a, entry);
    // An agent that is stopped in the middle keeps the lock; what it holds is one packet of a dead
    // connection.
    if (locked) a.mover.drain(a.mover.request_ring(qp.number));
    a.mover.drain(a.mover.response_ring(qp.number));
    entry.peer_qp = 0;
    entry.peer_lid = 0;
    if (locked) entry.lock.store(0, std::memory_order_release);
}

/// Type 2 windows end with the QP that bound them, and with its reset (IBTA 10.6.7.2.6).
void unbind_windows(Attachment& a, const QueuePair::State& qp) {
    for (auto& [index, window] : a.windows)
        if (window.type == IBV_MW_TYPE_2 && window.region != 0 &&
            a.arena.mr(index).bound_qp == qp.number) {
            a.unbind(window, index);
        }
}

void to_reset(Attachment& a, QueuePair::State& qp) {
    unbind_windows(a, qp);
    a.pay_last_ack(qp);
    a.forget_debts(qp);
    qp.lag = 0;
    clear_fabric_side(a, qp);
    a.remove_actor(qp);
    qp.withdraw();
    qp.requester.reset({}, 0);
    qp.receives.clear();
    qp.receive_open = false;
    qp.last_wqe_told = false;
    qp.pumping = false;
    qp.datagram_psn = 0;
    if (qp.send_cq != nullptr) qp.send_cq->forget(qp.number);
    if (qp.receive_cq != nullptr) qp.receive_cq->forget(qp.number);
    qp.attr = ibv_qp_attr{};
}

void to_rtr(Attachment& a, QueuePair::State& qp) {
    auto& entry = qp.entry();
    entry.mtu_bytes =
        qp.type == IBV_QPT_UD ? a.arena.header().mtu_bytes : mtu_bytes(qp.attr.path_mtu);
    entry.min_rnr_timer = qp.attr.min_rnr_timer;
    entry.max_reads = qp.attr.max_dest_rd_atomic;
    entry.responder = {};
    entry.responder.expected_psn = qp.attr.rq_psn;
    qp.rules = rules_of(entry);
    entry.receiving.store(1, std::memory_order_release);
    // Packets that came early have been waiting in the ring.
    a.look_again(qp);
}

void to_rts(Attachment& a, QueuePair::State& qp) {
    transport::RequesterRules rules;
    rules.reliable = qp.reliable();
    rules.xrc = qp.is_xrc();
    rules.mtu = qp.entry().mtu_bytes;
    // On links with rates a packet keeps all others off for its length.
    const bool rated = a.arena.header().rated.load(std::memory_order_relaxed) != 0;
    rules.segment = rated ? arena::kRatedSegmentBytes : arena::kSegmentBytes;
    rules.window = arena::kQpWindow;
    rules.reads_max = std::max<std::uint32_t>(qp.attr.max_rd_atomic, 1);
    rules.timeout_ns = wire::ack_timeout_ns(qp.attr.timeout);
    rules.retries = qp.attr.retry_cnt;
    rules.rnr_retries = qp.attr.rnr_retry;
    qp.entry().responses.acknowledged.store(0, std::memory_order_relaxed);
    qp.seen_acknowledged = 0;
    qp.carried_acknowledge = 0;
    qp.requester.reset(rules, qp.attr.sq_psn);
    qp.datagram_psn = qp.attr.sq_psn;
    a.look_again(qp);
}

/// Copies the attributes that the mask selects.
void merge(ibv_qp_attr& into, const ibv_qp_attr& from, int mask) {
    const auto take = [mask](int bit, auto& to, const auto& value) {
        if ((mask & bit) != 0) to = value;
    };
    take(IBV_QP_EN_SQD_ASYNC_NOTIFY, into.en_sqd_async_notify, from.en_sqd_async_notify);
    take(IBV_QP_ACCESS_FLAGS, into.qp_access_flags, from.qp_access_flags);
    take(IBV_QP_PKEY_INDEX, into.pkey_index, from.pkey_index);
    take(IBV_QP_PORT, into.port_num, from.port_num);
    take(IBV_QP_QKEY, into.qkey, from.qkey);
    take(IBV_QP_AV, into.ah_attr, from.ah_attr);
    take(IBV_QP_PATH_MTU, into.path_mtu, from.path_mtu);
    take(IBV_QP_TIMEOUT, into.timeout, from.timeout);
    take(IBV_QP_RETRY_CNT, into.retry_cnt, from.retry_cnt);
    take(IBV_QP_RNR_RETRY, into.rnr_retry, from.rnr_retry);
    take(IBV_QP_RQ_PSN, into.rq_psn, from.rq_psn);
    take(IBV_QP_MAX_QP_RD_ATOMIC, into.max_rd_atomic, from.max_rd_atomic);
    take(IBV_QP_ALT_PATH, into.alt_ah_attr, from.alt_ah_attr);
    take(IBV_QP_ALT_PATH, into.alt_pkey_index, from.alt_pkey_index);
    take(IBV_QP_ALT_PATH, into.alt_port_num, from.alt_port_num);
    take(IBV_QP_ALT_PATH, into.alt_timeout, from.alt_timeout);
    take(IBV_QP_MIN_RNR_TIMER, into.min_rnr_timer, from.min_rnr_timer);
    take(IBV_QP_SQ_PSN, into.sq_psn, from.sq_psn);
    take(IBV_QP_MAX_DEST_RD_ATOMIC, into.max_dest_rd_atomic, from.max_dest_rd_atomic);
    take(IBV_QP_PATH_MIG_STATE, into.path_mig_state, from.path_mig_state);
    take(IBV_QP_DEST_QPN, into.dest_qp_num, from.dest_qp_num);
}

/// What peers and their agents see of the attributes.
int publish(Attachment& a, QueuePair::State& qp, int mask) {
    auto& entry = qp.entry();
    if ((mask & IBV_QP_ACCESS_FLAGS) != 0) entry.access_flags = qp.attr.qp_access_flags;
    if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) entry.min_rnr_timer = qp.attr.min_rnr_timer;
    qp.rules = rules_of(entry);
    if ((mask & IBV_QP_PORT) != 0) {
        entry.own_lid = a.arena.port(a.arena.node(a.node).first_port + qp.attr.port_num - 1U).lid;
        entry.pkey = wire::kDefaultPkey;
    }
    if ((mask & IBV_QP_AV) != 0) {
        AddressHandle handle{};
        handle.attr = qp.attr.ah_attr;
        const int error = resolve_address(a, handle);
        if (error != 0) return error;
        entry.peer_lid = handle.dlid;
        entry.service_level = qp.attr.ah_attr.sl;
    }
    if ((mask & IBV_QP_DEST_QPN) != 0) entry.peer_qp = qp.attr.dest_qp_num;
    return 0;
}

transport::AttributeLimits limits_of(const Attachment& a) {
    transport::AttributeLimits limits;
    limits.port_count = static_cast<std::uint8_t>(a.arena.node(a.node).port_count);
    limits.path_mtu_max = mtu_of(a.arena.header().mtu_bytes);
    return limits;
}

}  // namespace

ibv_mtu mtu_of(std::uint32_t bytes) {
    return static_cast<ibv_mtu>(__builtin_ctz(bytes) - 7);
}

int resolve_address(const Attachment& a, AddressHandle& handle) {
    const auto& header = a.arena.header();
    if (handle.attr.is_global != 0) {
        // Only this fabric's own subnet: prefix fe80::, interface id a port's GUID.
        const auto prefix = __builtin_bswap64(handle.attr.grh.dgid.global.subnet_prefix);
        const auto guid = __builtin_bswap64(handle.attr.grh.dgid.global.interface_id);
        if (prefix == 0xfe80000000000000ULL) {
            for (std::uint32_t lid = 1; lid < header.lid_count; ++lid) {
                const auto port = a.arena.lids()[lid];
                if (port < header.port_count && a.arena.port(port).guid == guid) {
                    handle.dlid = lid;
                    return 0;
                }
            }
        }
        if (handle.attr.grh.dgid.raw[0] == 0xff) {  // a group: whoever belongs to it
            handle.dlid = std::max<std::uint32_t>(handle.attr.dlid, kFirstGroupLid);
            return 0;
        }
        if (handle.attr.dlid == 0) return EINVAL;
    }
    if (handle.attr.dlid == 0) return EINVAL;
    // A LID that nobody has is no error here: the packet is dropped on its way, as in any subnet.
    handle.dlid = handle.attr.dlid;
    return 0;
}

void CompletionQueue::State::forget(std::uint32_t qp_number) {
    std::uint32_t kept = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
        const ibv_wc wc = ring[(first + i) % capacity];
        if (wc.qp_num == qp_number) continue;
        const auto to = (first + kept++) % capacity;
        ring[to] = wc;
        if (!stamps.empty()) stamps[to] = stamps[(first + i) % capacity];
    }
    count = kept;
}

int QueuePair::modify(const ibv_qp_attr& attr, int mask) {
    auto& qp = *state_;
    auto& a = *qp.attachment;
    if (a.inherited()) return EIO;
    const std::lock_guard guard(a.lock);
    if (!a.usable()) return EIO;
    const auto current = qp.state.load(std::memory_order_relaxed);
    if ((mask & IBV_QP_CUR_STATE) != 0 && attr.cur_qp_state != current) return EINVAL;
    const auto next = (mask & IBV_QP_STATE) != 0 ? attr.qp_state : current;
    int error = transport::check_modify(qp.type, current, next, mask);
    if (error == 0) error = transport::check_values(attr, mask, limits_of(a));
    if (error != 0) return error;
    const auto before = qp.attr;
    merge(qp.attr, attr, mask);
    error = publish(a, qp, mask);
    if (error != 0) {
        qp.attr = before;
        return error;
    }
    if (next == IBV_QPS_RESET) to_reset(a, qp);
    if (next == IBV_QPS_RTR && current != IBV_QPS_RTR) to_rtr(a, qp);
    // In SQE all that was posted has ended.
    if (next == IBV_QPS_RTS && (current == IBV_QPS_RTR || current == IBV_QPS_SQE)) to_rts(a, qp);
    if (next == IBV_QPS_SQD && current == IBV_QPS_RTS && attr.en_sqd_async_notify != 0) {
        qp.drain_event = true;
    }
    if (next == IBV_QPS_ERR) {
        a.break_qp(qp, false);
    } else {
        qp.state.store(next, std::memory_order_relaxed);
    }
    a.collect(qp);
    a.progress();
    a.leave_to_thread();
    return 0;
}

int QueuePair::query(ibv_qp_attr& attr, int, ibv_qp_init_attr& init) const {
    const auto& qp = *state_;
    if (qp.attachment->inherited()) return EIO;
    const std::lock_guard guard(qp.attachment->lock);
    attr = qp.attr;
    attr.qp_state = attr.cur_qp_state = qp.state.load(std::memory_order_relaxed);
    attr.cap = qp.cap;
    attr.sq_draining = attr.qp_state == IBV_QPS_SQD && !qp.requester.idle() ? 1 : 0;
    init.cap = qp.cap;
    init.qp_type = qp.type;
    init.sq_sig_all = qp.signal_all ? 1 : 0;
    return 0;
}

namespace {

/// A free entry of the arena's QP table that this node has used before or nobody has, or kNone.
/// Claims it.
std::uint32_t claim_entry(Attachment& a) {
    for (std::uint32_t i = 0; i < arena::kQpCount; ++i) {
        const auto index = (a.next_qp_hint + i) % arena::kQpCount;
        if (index < arena::kFirstQp) continue;
        auto& entry = a.arena.qp(index);
        std::uint32_t free = 0;
        if (!entry.owner.compare_exchange_strong(free, a.identity, std::memory_order_acq_rel))
            continue;
        if (entry.initialised.load(std::memory_order_acquire) != 0 && entry.node != a.node) {
            entry.owner.store(0, std::memory_order_release);
            continue;
        }
        a.next_qp_hint = index + 1;
        entry.receiving.store(0, std::memory_order_relaxed);
        entry.node = a.node;
        return index;
    }
    return arena::kNone;
}

void prepare_entry(Attachment& a, QueuePair::State& qp) {
    auto& entry = qp.entry();
    entry.type = static_cast<std::uint32_t>(qp.type);
    entry.local_index = qp.local_index;
    entry.pd = qp.pd;
    entry.access_flags = 0;
    entry.peer_qp = entry.peer_lid = 0;
    entry.own_lid = a.arena.port(a.arena.node(a.node).first_port).lid;
    entry.mtu_bytes = a.arena.header().mtu_bytes;
    entry.service_level = 0;
    entry.reliable = qp.reliable() ? 1 : 0;
    entry.choked.store(0, std::memory_order_relaxed);
    entry.closing.store(0, std::memory_order_release);
    if (entry.initialised.load(std::memory_order_acquire) == 0) {
        // Rings of QPs are bounded by packets alone: any packet that the port let in finds room for
        // its bytes.
        const std::uint32_t blocks =
            credit::kSlotCount * (arena::kSegmentBytes / credit::kBlockBytes + 4);
        entry.requests.reset(blocks);
        entry.responses.reset(blocks);
        entry.initialised.store(1, std::memory_order_release);
    } else {
        a.mover.drain(a.mover.request_ring(qp.number));
        a.mover.drain(a.mover.response_ring(qp.number));
    }
    entry.responses.acknowledged.store(0, std::memory_order_relaxed);
    // A former owner may have died watching.
    entry.requests.watched.store(0, std::memory_order_seq_cst);
    entry.responses.watched.store(0, std::memory_order_seq_cst);
}

std::uint32_t local_index_for(Attachment& a, QueuePair::State* qp) {
    for (auto i = std::exchange(a.first_free, static_cast<std::uint32_t>(a.qps.size()));
         i < a.qps.size(); ++i) {
        if (a.qps[i] == nullptr) {
            a.qps[i] = qp;
            a.first_free = i + 1;
            return i;
        }
    }
    a.qps.push_back(qp);
    a.first_free = static_cast<std::uint32_t>(a.qps.size());
    return a.first_free - 1;
}

int check_caps(const Hca::QpRequest& request) {
    const auto& cap = request.cap;
    if (cap.max_send_wr > kQueueMax || cap.max_recv_wr > kQueueMax) return EINVAL;
    if (cap.max_send_sge > kSgeMax || cap.max_recv_sge > kSgeMax) return EINVAL;
    if (cap.max_inline_data > kInlineMax) return EINVAL;
    switch (request.type) {
        case IBV_QPT_RC:
        case IBV_QPT_UC:
        case IBV_QPT_UD:
            return request.send_cq == nullptr || request.receive_cq == nullptr ? EINVAL : 0;
        case IBV_QPT_XRC_SEND:
            return request.send_cq == nullptr || request.srq != nullptr ? EINVAL : 0;
        case IBV_QPT_XRC_RECV:
            return request.xrc_domain == 0 || request.srq != nullptr ? EINVAL : 0;
        default:
            return EOPNOTSUPP;
    }
}

void size_queues(QueuePair::State& qp) {
    const std::size_t slots = qp.requester.slots();
    qp.sends.resize(slots);
    qp.send_sges.resize(slots * qp.cap.max_send_sge);
    qp.inline_data.resize(slots * qp.cap.max_inline_data);
    if (qp.type == IBV_QPT_UD) qp.datagrams.resize(slots);
    if (qp.srq == nullptr && !qp.is_xrc())
        qp.receives.resize(std::max(qp.cap.max_recv_wr, 1U), qp.cap.max_recv_sge);
    qp.requester.reset({}, 0);
}

/// Counts the QP in (1) or out (-1) with all that it uses.
void count_user(Hca::State& hca, QueuePair::State& qp, std::uint32_t change) {
    if (qp.type == IBV_QPT_XRC_RECV) {
        qp.attachment->xrc_domains[qp.domain - 1].users += change;
        return;
    }
    const auto pd = hca.pds.find(qp.pd);
    if (pd != hca.pds.end()) pd->second += change;
    qp.send_cq->users += change;
    if (qp.receive_cq != nullptr) qp.receive_cq->users += change;
    if (qp.srq != nullptr) qp.srq->users += change;
}

}  // namespace

int Hca::create_qp(QpRequest& request, QueuePair*& out) {
    int error = check_caps(request);
    if (error != 0) return error;
    auto& a = *state_->attachment;
    if (a.inherited()) return EIO;
    const std::lock_guard guard(a.lock);
    if (!a.usable()) return EIO;
    const bool receives_only = request.type == IBV_QPT_XRC_RECV;
    if (!receives_only && state_->pds.find(request.pd) == state_->pds.end()) return EINVAL;
    if (receives_only && (request.xrc_domain > a.xrc_domains.size() ||
                          a.xrc_domains[request.xrc_domain - 1].opens == 0)) {
        return EINVAL;
    }
    const auto index = claim_entry(a);
    if (index == arena::kNone) return ENOMEM;
    auto& cap = request.cap;
    // Devices give more than was asked for, and programs count on a few bytes without asking.
    cap.max_inline_data = std::max(cap.max_inline_data, kInlineLeast);
    if (request.type == IBV_QPT_XRC_SEND) cap.max_recv_wr = cap.max_recv_sge = 0;
    if (receives_only) cap = {};
    cap.max_send_wr = std::max(cap.max_send_wr, 1U);
    cap.max_send_sge = std::max(cap.max_send_sge, 1U);
    cap.max_recv_sge = std::max(cap.max_recv_sge, 1U);
    auto qp = std::make_unique<QueuePair::State>(state_->attachment, index, cap.max_send_wr);
    qp->hca = state_.get();
    qp->type = request.type;
    qp->pd = receives_only ? 0 : request.pd;
    qp->cap = cap;
    qp->signal_all = request.signal_all;
    qp->domain = receives_only ? request.xrc_domain : 0;
    qp->refuses_own = request.refuses_own;
    const auto queue = [](CompletionQueue* cq) { return cq == nullptr ? nullptr : &cq->state(); };
    qp->send_cq = receives_only ? nullptr : queue(request.send_cq);
    qp->receive_cq = qp->is_xrc() ? nullptr : queue(request.receive_cq);
    qp->srq = request.srq != nullptr ? &request.srq->state() : nullptr;
    size_queues(*qp);
    qp->local_index = local_index_for(a, qp.get());
    prepare_entry(a, *qp);
    count_user(*state_, *qp, 1);
    out = new QueuePair(std::move(qp));
    return 0;
}

int Hca::destroy_qp(QueuePair* qp) {
    auto& state = qp->state();
    auto& a = *state.attachment;
    if (a.inherited()) return EIO;
    {
        const std::lock_guard guard(a.lock);
        if (state.groups != 0) return EBUSY;
        if (--state.opens != 0) return 0;
        unbind_windows(a, state);
        state.entry().closing.store(1, std::memory_order_release);
        a.remove_actor(state);
        a.pay_last_ack(state);
        a.forget_debts(state);
        clear_fabric_side(a, state);
        state.withdraw();
        if (a.hot == &state) {
            a.unwatch();
            a.hot = nullptr;
        }
        a.forget(state);
        if (state.send_cq != nullptr) state.send_cq->forget(state.number);
        if (state.receive_cq != nullptr) state.receive_cq->forget(state.number);
        count_user(*state_, state, ~0U);
        state.entry().owner.store(0, std::memory_order_release);
    }
    state_->forget(qp);
    delete qp;
    return 0;
}

}  // namespace weir::hca

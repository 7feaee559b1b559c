// SPDX-License-Identifier: Apache-2.0
#include "transport/requester.h"

#include <algorithm>

#include "wire/segment.h"

namespace weir::transport {

using wire::Opcode;
using wire::psn_add;
using wire::psn_diff;
using wire::psn_sub;

namespace {

/// Packets of one message between two requests for acknowledgement.
constexpr std::uint32_t kAckEvery = 8;

Opcode single_opcode(const Request& request, bool reliable) {
    const bool write = request.kind == RequestKind::kWrite;
    auto low = static_cast<unsigned>(write ? Opcode::kRcWriteOnly : Opcode::kRcSendOnly);
    if (request.has_immediate) ++low;
    if (request.invalidate) low = static_cast<unsigned>(Opcode::kRcSendOnlyInvalidate);
    return static_cast<Opcode>(low + (reliable ? 0U : 0x20U));
}

}  // namespace

void Requester::reset(const RequesterRules& rules, std::uint32_t psn) {
    WEIR_CHECK(rules.window <= kWindowMax && rules.segment % rules.mtu == 0);
    rules_ = rules;
    head_ = tail_ = cursor_ = cursor_offset_ = 0;
    next_psn_ = una_ = emitted_ = highest_ = psn;
    gap_reported_ = false;
    sent_count_ = sent_first_ = reads_open_ = since_ack_request_ = 0;
    timer_ns_ = rnr_until_ns_ = 0;
    retries_left_ = rules.retries;
    rnr_left_ = rules.rnr_retries;
    stopped_ = false;
}

std::uint32_t Requester::post(const Request& request) {
    WEIR_DCHECK(!full());
    Entry& e = entry(tail_);
    e.request = request;
    e.first_psn = next_psn_;
    const bool atomic =
        request.kind == RequestKind::kCompareSwap || request.kind == RequestKind::kFetchAdd;
    e.psn_count = atomic ? 1
                  : request.kind == RequestKind::kLocal
                      ? 0
                      : wire::packets_in(request.length, rules_.mtu);
    e.started = e.ended = e.failed_here = false;
    e.status = RequestStatus::kOk;
    next_psn_ = psn_add(next_psn_, e.psn_count);
    return slot_of(tail_++);
}

bool Requester::may_send(const Entry& e, std::uint64_t now_ns) const {
    if (stopped_ || e.ended || rnr_until_ns_ > now_ns) return false;
    if (!rules_.reliable) return true;
    if (sent_count_ >= rules_.window) return false;
    if (wants_data(e.request.kind) && reads_open_ >= rules_.reads_max) return false;
    return !(e.request.fence && !e.started && reads_open_ > 0);
}

std::uint32_t Requester::emission_length(const Entry& e) const {
    if (e.request.kind == RequestKind::kCompareSwap || e.request.kind == RequestKind::kFetchAdd) {
        return 0;
    }
    return std::min(e.request.length - cursor_offset_, rules_.segment);
}

void Requester::fill_write_or_send(Emission& out, const Entry& e, std::uint32_t length) const {
    auto& header = out.header;
    const auto& request = e.request;
    if (rules_.xrc) header.swap_or_add = request.srq_number;
    const bool starts = cursor_offset_ == 0;
    const bool ends = cursor_offset_ + length == request.length;
    header.opcode =
        wire::detail::part_opcode(single_opcode(request, rules_.reliable), starts, ends);
    header.payload_length = length;
    if (wire::has_reth(header.opcode)) {
        header.virtual_address = request.remote_address;
        header.rkey = request.rkey;
        header.dma_length = request.length;
    }
    if (wire::has_immediate(header.opcode) || wire::has_ieth(header.opcode)) {
        header.immediate = request.immediate;
    }
    header.set(wire::kFlagSolicited, ends && request.solicited);
}

void Requester::fill(Emission& out, const Entry& e) const {
    auto& header = out.header;
    const auto& request = e.request;
    const auto length = emission_length(e);
    header.psn = psn_add(e.first_psn, cursor_offset_ / rules_.mtu);
    header.set(wire::kFlagXrc, rules_.xrc);
    switch (request.kind) {
        case RequestKind::kSend:
        case RequestKind::kWrite:
            fill_write_or_send(out, e, length);
            return;
        case RequestKind::kRead:
            header.opcode = Opcode::kRcReadRequest;
            header.virtual_address = request.remote_address + cursor_offset_;
            header.dma_length = length;
            if (rules_.xrc) header.swap_or_add = request.srq_number;
            break;
        case RequestKind::kCompareSwap:
        case RequestKind::kFetchAdd:
            header.opcode = request.kind == RequestKind::kCompareSwap ? Opcode::kRcCompareSwap
                                                                      : Opcode::kRcFetchAdd;
            header.virtual_address = request.remote_address;
            header.swap_or_add = request.swap_or_add;
            header.compare = request.compare;
            if (rules_.xrc) header.immediate = request.srq_number;
            break;
        case RequestKind::kAtomicWrite:
            header.opcode = Opcode::kRcAtomicWrite;
            header.virtual_address = request.remote_address;
            header.dma_length = header.payload_length = length;
            if (rules_.xrc) header.swap_or_add = request.srq_number;
            break;
        case RequestKind::kFlush:
            header.opcode = Opcode::kRcFlush;
            header.virtual_address = request.remote_address;
            header.dma_length = request.flush_length;
            header.flush = request.flush;
            if (rules_.xrc) header.swap_or_add = request.srq_number;
            break;
        case RequestKind::kLocal:
            break;
    }
    header.rkey = request.rkey;
}

bool Requester::skip_local_done() {
    while (next_is_local() && entry(cursor_).started)
        ++cursor_;
    return cursor_ != tail_;
}

void Requester::local_done(RequestStatus status) {
    if (status != RequestStatus::kOk) {
        fail(slot_of(cursor_), status);
        return;
    }
    entry(cursor_).started = true;
    ++cursor_;
}

bool Requester::next(std::uint64_t now_ns, Emission& out) {
    if (!skip_local_done()) return false;
    Entry& e = entry(cursor_);
    if (!may_send(e, now_ns)) return false;
    out.local = e.request.kind == RequestKind::kLocal;
    if (out.local) {
        out.slot = slot_of(cursor_);
        return true;
    }
    before_cursor_ = cursor_;
    before_offset_ = cursor_offset_;
    before_emitted_ = emitted_;
    before_since_ = since_ack_request_;
    out.header = wire::PacketHeader{};
    out.slot = slot_of(cursor_);
    out.offset = cursor_offset_;
    fill(out, e);
    const auto length = emission_length(e);
    const auto psns = wire::packets_in(length, rules_.mtu);
    e.started = true;
    emitted_ = psn_add(out.header.psn, psns);
    if (psn_diff(emitted_, highest_) > 0) highest_ = emitted_;
    cursor_offset_ += length;
    if (cursor_offset_ >= e.request.length || e.psn_count == 1) {
        ++cursor_;
        cursor_offset_ = 0;
    }
    if (!rules_.reliable) {
        una_ = emitted_;
        return true;
    }
    const bool data = wants_data(e.request.kind);
    sent_[(sent_first_ + sent_count_++) % kWindowMax] = {psn_sub(emitted_, 1), data};
    if (data) ++reads_open_;
    // Local work behind it asks for nothing itself.
    const bool last = cursor_ == tail_ || sent_count_ == rules_.window || next_is_local();
    if (!data && (last || ++since_ack_request_ >= kAckEvery)) {
        out.header.set(wire::kFlagAckRequest);
        since_ack_request_ = 0;
    }
    if (timer_ns_ == 0) timer_ns_ = now_ns;
    return true;
}

void Requester::unsend() {
    cursor_ = before_cursor_;
    cursor_offset_ = before_offset_;
    emitted_ = before_emitted_;
    since_ack_request_ = before_since_;
    if (!rules_.reliable) {
        una_ = emitted_;
        return;
    }
    --sent_count_;
    if (sent_[(sent_first_ + sent_count_) % kWindowMax].wants_data) --reads_open_;
    if (sent_count_ == 0) timer_ns_ = 0;
}

std::uint32_t Requester::position_of(std::uint32_t psn) const {
    for (std::uint32_t position = head_; position != tail_; ++position) {
        const Entry& e = entry(position);
        if (psn_diff(psn, psn_add(e.first_psn, e.psn_count)) < 0) return position;
    }
    return tail_;
}

void Requester::rewind(std::uint32_t psn) {
    cursor_ = position_of(psn);
    cursor_offset_ = cursor_ == tail_ ? 0 : psn_sub(psn, entry(cursor_).first_psn) * rules_.mtu;
    emitted_ = psn;
    sent_count_ = 0;
    reads_open_ = 0;
    timer_ns_ = 0;
}

void Requester::fail_position(std::uint32_t position, RequestStatus status) {
    stopped_ = true;
    timer_ns_ = rnr_until_ns_ = 0;
    if (position == tail_) return;
    entry(position).ended = true;
    entry(position).status = status;
}

void Requester::retry() {
    if (retries_left_ == 0) {
        fail_position(position_of(una_), RequestStatus::kRetriesExceeded);
        return;
    }
    --retries_left_;
    rewind(una_);
}

/// Something is known to be missing. Acted on once until there is progress or the timer runs out: a
/// responder reports a gap once, so a second report is a duplicate.
void Requester::retry_gap() {
    if (gap_reported_) return;
    retry();
    gap_reported_ = true;
}

void Requester::progress(std::uint64_t now_ns) {
    retries_left_ = rules_.retries;
    rnr_left_ = rules_.rnr_retries;
    timer_ns_ = sent_count_ == 0 ? 0 : now_ns;
    gap_reported_ = false;
}

/// Everything up to `psn` has been executed by the peer. A read or atomic among it whose answer has
/// not come was answered into the void: it must be asked for again (IBTA 9.7.5.1.3).
void Requester::acknowledge_through(std::uint32_t psn, std::uint64_t now_ns) {
    bool moved = false;
    while (sent_count_ > 0) {
        const Sent& oldest = sent_[sent_first_];
        if (psn_diff(oldest.last_psn, psn) > 0) break;
        if (oldest.wants_data) {
            if (moved) progress(now_ns);
            retry_gap();
            return;
        }
        una_ = psn_add(oldest.last_psn, 1);
        sent_first_ = (sent_first_ + 1) % kWindowMax;
        --sent_count_;
        moved = true;
    }
    if (skip_acknowledged(psn)) moved = true;
    if (moved) progress(now_ns);
}

/// After a rewind, an answer may come to what was sent before it: that need not be sent again.
/// Stops short of a read or atomic, whose data is still wanted.
bool Requester::skip_acknowledged(std::uint32_t psn) {
    if (sent_count_ > 0 || psn_diff(psn, emitted_) < 0) return false;
    const auto from = emitted_;
    while (cursor_ != tail_ && psn_diff(psn, emitted_) >= 0) {
        const Entry& e = entry(cursor_);
        if (wants_data(e.request.kind) || !e.started) break;
        const auto end = psn_add(e.first_psn, e.psn_count);
        if (psn_diff(psn_add(psn, 1), end) < 0) {
            cursor_offset_ = psn_sub(psn_add(psn, 1), e.first_psn) * rules_.mtu;
            emitted_ = psn_add(psn, 1);
            break;
        }
        ++cursor_;
        cursor_offset_ = 0;
        emitted_ = end;
    }
    una_ = emitted_;
    return emitted_ != from;
}

bool Requester::on_acknowledge(const wire::PacketHeader& header, std::uint64_t now_ns) {
    // Only what lies between the oldest unacknowledged and the last ever sent can be meant.
    if (stopped_ || psn_diff(header.psn, psn_sub(una_, 1)) < 0 ||
        psn_diff(header.psn, highest_) >= 0) {
        return false;
    }
    if (header.opcode == Opcode::kRcAtomicAcknowledge) {
        if (sent_count_ == 0 || header.psn != sent_[sent_first_].last_psn ||
            !sent_[sent_first_].wants_data) {
            // Earlier sends and writes are acknowledged by it as well.
            acknowledge_through(psn_sub(header.psn, 1), now_ns);
        }
        if (sent_count_ == 0 || header.psn != sent_[sent_first_].last_psn ||
            !sent_[sent_first_].wants_data) {
            return false;
        }
        const auto position = position_of(header.psn);
        if (position == tail_ || !wants_data(entry(position).request.kind)) return false;
        entry(position).original = header.original_data;
        read_placed(header, now_ns);
        return true;
    }
    switch (wire::ack_kind(header.syndrome)) {
        case wire::AckKind::kAck:
            acknowledge_through(header.psn, now_ns);
            return true;
        case wire::AckKind::kRnrNak:
            acknowledge_through(psn_sub(header.psn, 1), now_ns);
            if (stopped_ || header.psn != una_) return false;
            if (rules_.rnr_retries != 7) {
                if (rnr_left_ == 0) {
                    fail_position(position_of(header.psn), RequestStatus::kRnrRetriesExceeded);
                    return true;
                }
                --rnr_left_;
            }
            rewind(header.psn);
            rnr_until_ns_ = now_ns + wire::rnr_timer_ns(wire::syndrome_value(header.syndrome));
            return true;
        case wire::AckKind::kNak:
            on_nak(header, now_ns);
            return true;
        case wire::AckKind::kReserved:
            break;
    }
    return false;
}

bool Requester::on_overtaking_acknowledge(std::uint32_t psn, std::uint64_t now_ns) {
    if (stopped_ || psn_diff(psn, una_) < 0 || psn_diff(psn, highest_) >= 0) return true;
    bool moved = false;
    while (sent_count_ > 0 && psn_diff(sent_[sent_first_].last_psn, psn) <= 0) {
        if (sent_[sent_first_].wants_data) {
            if (moved) progress(now_ns);
            return false;
        }
        una_ = psn_add(sent_[sent_first_].last_psn, 1);
        sent_first_ = (sent_first_ + 1) % kWindowMax;
        --sent_count_;
        moved = true;
    }
    if (skip_acknowledged(psn)) moved = true;
    if (moved) progress(now_ns);
    return psn_diff(psn, una_) < 0;
}

void Requester::on_nak(const wire::PacketHeader& header, std::uint64_t now_ns) {
    acknowledge_through(psn_sub(header.psn, 1), now_ns);
    if (stopped_ || header.psn != una_) return;
    const auto position = position_of(header.psn);
    switch (wire::nak_code(header.syndrome)) {
        case wire::NakCode::kPsnSequenceError:
            retry_gap();
            return;
        case wire::NakCode::kRemoteAccessError:
            fail_position(position, RequestStatus::kRemoteAccess);
            return;
        case wire::NakCode::kRemoteOperationalError:
            fail_position(position, RequestStatus::kRemoteOperation);
            return;
        default:
            fail_position(position, RequestStatus::kRemoteInvalidRequest);
            return;
    }
}

bool Requester::on_read_response(const wire::PacketHeader& header, std::uint32_t& slot,
                                 std::uint32_t& offset, std::uint64_t now_ns) {
    if (stopped_ || sent_count_ == 0) return false;
    acknowledge_through(psn_sub(header.psn, 1), now_ns);
    if (stopped_ || sent_count_ == 0 || header.psn != una_) return false;
    const auto position = position_of(header.psn);
    if (position == tail_ || !sent_[sent_first_].wants_data) return false;
    const Entry& e = entry(position);
    // Atomics have an answer of their own kind.
    const auto kind = e.request.kind;
    if (kind == RequestKind::kCompareSwap || kind == RequestKind::kFetchAdd) return false;
    offset = psn_sub(header.psn, e.first_psn) * rules_.mtu;
    slot = slot_of(position);
    const auto expected =
        kind == RequestKind::kRead ? std::min(e.request.length - offset, rules_.segment) : 0;
    if (header.payload_length != expected) {
        fail_position(position, RequestStatus::kBadResponse);
        return false;
    }
    return true;
}

void Requester::read_placed(const wire::PacketHeader& header, std::uint64_t now_ns) {
    una_ = psn_add(header.psn, wire::packets_in(header.payload_length, rules_.mtu));
    sent_first_ = (sent_first_ + 1) % kWindowMax;
    --sent_count_;
    --reads_open_;
    progress(now_ns);
}

std::uint64_t Requester::deadline() const {
    if (stopped_) return 0;
    if (rnr_until_ns_ != 0) return rnr_until_ns_;
    if (timer_ns_ == 0 || rules_.timeout_ns == 0) return 0;
    return timer_ns_ + rules_.timeout_ns;
}

void Requester::on_time(std::uint64_t now_ns) {
    if (stopped_) return;
    if (rnr_until_ns_ != 0) {
        if (now_ns >= rnr_until_ns_) rnr_until_ns_ = 0;
        return;
    }
    if (timer_ns_ != 0 && rules_.timeout_ns != 0 && now_ns >= timer_ns_ + rules_.timeout_ns) {
        gap_reported_ = false;
        retry();
    }
}

bool Requester::ended(std::uint32_t& slot, RequestStatus& status) const {
    if (head_ == tail_) return false;
    const Entry& e = entry(head_);
    const bool acknowledged = e.started && psn_diff(psn_add(e.first_psn, e.psn_count), una_) <= 0;
    if (!e.ended && !acknowledged) return false;
    slot = slot_of(head_);
    status = e.ended ? e.status : RequestStatus::kOk;
    return true;
}

void Requester::pop() {
    WEIR_DCHECK(head_ != tail_);
    if (cursor_ == head_) {
        ++cursor_;
        cursor_offset_ = 0;
    }
    ++head_;
}

void Requester::fail(std::uint32_t slot, RequestStatus status) {
    Entry& e = ring_[slot];
    e.ended = e.failed_here = true;
    e.status = status;
}

void Requester::flush() {
    stopped_ = true;
    timer_ns_ = rnr_until_ns_ = 0;
    for (std::uint32_t position = head_; position != tail_; ++position) {
        Entry& e = entry(position);
        const bool acknowledged =
            e.started && psn_diff(psn_add(e.first_psn, e.psn_count), una_) <= 0;
        // What was to fail in its turn does not come to that.
        if (e.ended ? !e.failed_here : acknowledged) continue;
        e.ended = true;
        e.status = RequestStatus::kFlushed;
    }
}

}  // namespace weir::transport

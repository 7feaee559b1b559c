// SPDX-License-Identifier: Apache-2.0
#include "rsocket/stream.h"

#include "base/check.h"

namespace weir::rsocket {

Stream::Stream(Limits own, std::size_t ring_bytes, std::uint32_t sends_max)
    : own_(own),
      ring_bytes_(ring_bytes),
      sends_max_(sends_max),
      posted_(sends_max),
      chunks_(own.slots + 1),
      free_slots_(own.slots + 1) {
    WEIR_CHECK(own.slots >= kSlotsLeast && own.slot_bytes >= kSlotBytesLeast);
    WEIR_CHECK(ring_bytes > 0 && sends_max > kSendsForFin + kSendsForCredit);
}

void Stream::set_peer(Limits peer) {
    WEIR_CHECK(peer.slots >= kSlotsLeast && sent_ == 0);
    peer_ = peer;
}

// ---------------------------------------------------------------- sending

MessageHeader Stream::head(Kind kind) {
    told_ = returned_;
    return {kind, returned_, position_};
}

std::size_t Stream::take_ring(std::size_t bytes) {
    const auto begin = ring_begin_;
    ring_begin_ = (ring_begin_ + bytes) % ring_bytes_;
    ring_used_ += bytes;
    posted_.push_back(bytes);
    return begin;
}

std::size_t Stream::room() const {
    if (ending_ || !has_data_credit() || !has_send(kSendsForFin + kSendsForCredit)) return 0;
    return std::min<std::size_t>(peer_.slot_bytes, ring_bytes_ - ring_used_);
}

Stream::Cut Stream::cut(std::size_t wanted) {
    const auto length = std::min(wanted, room());
    WEIR_CHECK(length > 0);
    const auto header = head(Kind::kData);
    position_ += length;
    ++sent_;
    return {header, take_ring(length), length};
}

std::size_t Stream::write_room() const {
    if (ending_ || !has_send(kSendsForFin + kSendsForCredit)) return 0;
    return ring_bytes_ - ring_used_;
}

Stream::Cut Stream::cut_write(std::size_t wanted) {
    const auto length = std::min(wanted, write_room());
    WEIR_CHECK(length > 0);
    return {{}, take_ring(length), length};
}

std::optional<MessageHeader> Stream::take_control(Kind kind) {
    if (ending_ || !has_data_credit() || !has_send(kSendsForFin + kSendsForCredit))
        return std::nullopt;
    ++sent_;
    posted_.push_back(0);
    return head(kind);
}

std::optional<MessageHeader> Stream::take_credit_message() {
    // After its FIN the peer has no more use for credits.
    if (fin_received_ || slots_owed() < own_.slots / 2) return std::nullopt;
    if (credits() == 0 || !has_send(kSendsForFin)) return std::nullopt;
    ++sent_;
    posted_.push_back(0);
    return head(Kind::kCredit);
}

std::optional<MessageHeader> Stream::take_fin() {
    if (!ending_ || fin_sent_ || !has_send(0)) return std::nullopt;
    fin_sent_ = true;
    posted_.push_back(0);
    return head(Kind::kFin);
}

bool Stream::on_sent() {
    if (posted_.empty()) return false;
    ring_used_ -= posted_.pop_front();
    return true;
}

// ---------------------------------------------------------------- receiving

Stream::Verdict Stream::on_message(std::uint32_t slot, const MessageHeader& header,
                                   std::size_t length) {
    const std::uint32_t fresh = header.returned - granted_;
    if (fresh > sent_ - granted_ || header.position != expected_) return Verdict::kBroken;
    granted_ = header.returned;
    switch (header.kind) {
        case Kind::kData:
            if (fin_received_ || length == 0 || length > own_.slot_bytes) return Verdict::kBroken;
            expected_ += length;
            if (deaf_) {
                free_slot(slot);
                return Verdict::kTaken;
            }
            readable_ += length;
            chunks_.push_back({slot, 0, static_cast<std::uint32_t>(length)});
            return Verdict::kTaken;
        case Kind::kCredit:
            free_slot(slot);
            return Verdict::kTaken;
        case Kind::kFin:  // its slot is never used again
            if (fin_received_) return Verdict::kBroken;
            fin_received_ = true;
            return Verdict::kTaken;
        case Kind::kMap:
        case Kind::kUnmap:
            return Verdict::kControl;
    }
    return Verdict::kBroken;
}

void Stream::end_receiving() {
    deaf_ = true;
    readable_ = 0;
    while (!chunks_.empty())
        free_slots_.push_back(chunks_.pop_front().slot);
}

std::optional<std::uint32_t> Stream::take_free_slot() {
    if (free_slots_.empty()) return std::nullopt;
    ++returned_;
    return free_slots_.pop_front();
}

}  // namespace weir::rsocket

// SPDX-License-Identifier: Apache-2.0
// The requester: turns posted work requests of a connected QP into request packets and their
// answers into completions (IBTA 9.7.2, 9.7.7, 9.9). Go-back-N with a window in packets,
// acknowledgement timeout and RNR timer. Sans-IO: it says what to send and what has ended; where
// bytes lie is the caller's business.
//
// A work request is named by its slot in a ring; the caller keeps scatter lists and the like beside
// it. Slots are given out and completed in order. Time is passed in, in nanoseconds, and never
// read. One owner at a time; no locks.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "wire/headers.h"
#include "wire/psn.h"
#include "wire/syndrome.h"

namespace weir::transport {

/// kLocal is work on the requester's own HCA (binding a memory window, invalidating a key): it has
/// its turn in the queue, but no packet and no PSN. Atomic writes and flushes are answered by a
/// read response without data.
enum class RequestKind : std::uint8_t {
    kSend,
    kWrite,
    kRead,
    kCompareSwap,
    kFetchAdd,
    kAtomicWrite,
    kFlush,
    kLocal
};

struct Request {
    RequestKind kind = RequestKind::kSend;
    bool solicited = false;
    bool fence = false;  ///< Wait for earlier reads and atomics to end before starting.
    bool has_immediate = false;
    bool invalidate = false;  ///< `immediate` is the rkey that the peer shall invalidate.
    std::uint32_t immediate = 0;
    std::uint32_t length = 0;        ///< Bytes of the message.
    std::uint32_t flush = 0;         ///< wire::FlushBit.
    std::uint32_t flush_length = 0;  ///< Bytes of the peer's memory that are meant.
    std::uint32_t rkey = 0;
    std::uint64_t remote_address = 0;
    std::uint64_t swap_or_add = 0;
    std::uint64_t compare = 0;
    std::uint32_t srq_number = 0;  ///< XRC: the receive queue that the message is for.
};

/// Why a request ended.
enum class RequestStatus : std::uint8_t {
    kOk,
    kRetriesExceeded,
    kRnrRetriesExceeded,
    kRemoteInvalidRequest,
    kRemoteAccess,
    kRemoteOperation,
    kBadResponse,
    kFlushed,
};

struct RequesterRules {
    bool reliable = true;
    bool xrc = false;  ///< Packets name the peer's shared receive queue.
    std::uint32_t mtu = 4096;
    std::uint32_t segment = 65536;  ///< Largest payload of one packet; a multiple of mtu.
    std::uint32_t window = 24;      ///< Packets sent and not acknowledged.
    std::uint32_t reads_max = 1;    ///< Reads and atomics outstanding, max_rd_atomic.
    std::uint64_t timeout_ns = 0;   ///< 0: never.
    std::uint32_t retries = 7;
    std::uint32_t rnr_retries = 7;  ///< 7: without end.
};

/// A packet to be sent: its header (addresses of the network left out) and which bytes of which
/// request.
struct Emission {
    wire::PacketHeader header;
    std::uint32_t slot;
    std::uint32_t offset;
    bool local;  ///< No packet: the caller does the work of `slot`, then calls local_done().
};

class Requester {
  public:
    /// `slots` is rounded up to a power of two. REQUIRES: slots > 0.
    explicit Requester(std::uint32_t slots) : ring_(std::bit_ceil(slots)) {}

    /// Starts afresh at `psn`. Nothing may be outstanding, or is forgotten.
    void reset(const RequesterRules& rules, std::uint32_t psn);

    [[nodiscard]] std::uint32_t slots() const { return static_cast<std::uint32_t>(ring_.size()); }
    [[nodiscard]] bool full() const { return tail_ - head_ == ring_.size(); }
    [[nodiscard]] bool idle() const { return head_ == tail_; }
    [[nodiscard]] std::uint32_t outstanding() const { return tail_ - head_; }
    /// True while there is something that next() has not given out.
    [[nodiscard]] bool unsent() const { return cursor_ != tail_; }
    /// Appends a request; its slot. REQUIRES: !full().
    std::uint32_t post(const Request& request);

    /// The next packet to be sent, if there is one and window, fence and timers allow. The caller
    /// sends it or calls unsend().
    bool next(std::uint64_t now_ns, Emission& out);
    /// Takes the last next() back: the packet could not be sent.
    void unsend();
    /// The local work that next() gave out is done, or has failed for good.
    void local_done(RequestStatus status);

    /// An acknowledgement, NAK or atomic answer. False: it means nothing (old, or not ours).
    bool on_acknowledge(const wire::PacketHeader& header, std::uint64_t now_ns);
    /// An acknowledgement that did not travel with the answers and so may have overtaken them:
    /// everything up to `psn` has been executed. Stops, without asking again, at a read or atomic
    /// whose answer has not come. True once all of it has been taken in, or if it means nothing.
    bool on_overtaking_acknowledge(std::uint32_t psn, std::uint64_t now_ns);
    /// A read response. True: its payload belongs to `slot` at `offset`, and the caller places it,
    /// then calls read_placed(). False: not the one awaited; drop it.
    bool on_read_response(const wire::PacketHeader& header, std::uint32_t& slot,
                          std::uint32_t& offset, std::uint64_t now_ns);
    void read_placed(const wire::PacketHeader& header, std::uint64_t now_ns);

    /// Packets sent and not acknowledged, and how many of them are reads and atomics.
    [[nodiscard]] std::uint32_t unacknowledged() const { return sent_count_; }
    [[nodiscard]] std::uint32_t reads_open() const { return reads_open_; }
    /// True while a receiver-not-ready timer runs; next() then wants the exact time.
    [[nodiscard]] bool waiting() const { return rnr_until_ns_ != 0; }
    /// When on_time() wants to be called; 0 for never.
    [[nodiscard]] std::uint64_t deadline() const;
    void on_time(std::uint64_t now_ns);

    /// The oldest request if it has ended: its slot and how. pop() then frees the slot.
    bool ended(std::uint32_t& slot, RequestStatus& status) const;
    void pop();
    /// The value before an atomic that has ended well.
    [[nodiscard]] std::uint64_t original(std::uint32_t slot) const { return ring_[slot].original; }

    /// The request in `slot` cannot be sent (bad local key): it ends with `status` once those
    /// before it have ended, and nothing after it is sent.
    void fail(std::uint32_t slot, RequestStatus status);
    /// Everything open ends as flushed, and nothing more is sent: the QP went to the error state.
    void flush();

  private:
    struct Entry {
        Request request;
        std::uint32_t first_psn = 0;
        std::uint32_t psn_count = 0;
        std::uint64_t original = 0;
        bool started = false;  ///< A packet of it has been sent.
        bool ended = false;
        bool failed_here = false;  ///< By fail().
        RequestStatus status = RequestStatus::kOk;
    };
    struct Sent {
        std::uint32_t last_psn;
        bool wants_data;  ///< Has an answer of its own: an acknowledgement does not end it.
    };
    static constexpr std::uint32_t kWindowMax = 32;

    [[nodiscard]] std::uint32_t slot_of(std::uint32_t position) const {
        return position & (static_cast<std::uint32_t>(ring_.size()) - 1);
    }
    Entry& entry(std::uint32_t position) { return ring_[slot_of(position)]; }
    [[nodiscard]] const Entry& entry(std::uint32_t position) const {
        return ring_[slot_of(position)];
    }
    static bool wants_data(RequestKind kind) {
        return kind >= RequestKind::kRead && kind <= RequestKind::kFlush;
    }
    /// Passes over local work that was done before a rewind. False: there is nothing left.
    bool skip_local_done();
    [[nodiscard]] bool next_is_local() const {
        return cursor_ != tail_ && entry(cursor_).request.kind == RequestKind::kLocal;
    }
    [[nodiscard]] bool may_send(const Entry& e, std::uint64_t now_ns) const;
    void fill(Emission& out, const Entry& e) const;
    void fill_write_or_send(Emission& out, const Entry& e, std::uint32_t length) const;
    [[nodiscard]] std::uint32_t emission_length(const Entry& e) const;
    void acknowledge_through(std::uint32_t psn, std::uint64_t now_ns);
    bool skip_acknowledged(std::uint32_t psn);
    void rewind(std::uint32_t psn);
    void retry();
    void retry_gap();
    void on_nak(const wire::PacketHeader& header, std::uint64_t now_ns);
    void progress(std::uint64_t now_ns);
    void fail_position(std::uint32_t position, RequestStatus status);
    [[nodiscard]] std::uint32_t position_of(std::uint32_t psn) const;

    RequesterRules rules_{};
    std::vector<Entry> ring_;
    std::uint32_t head_ = 0;    ///< Position of the oldest request not popped.
    std::uint32_t tail_ = 0;    ///< Position of the next post.
    std::uint32_t cursor_ = 0;  ///< Position of the request that next() works on.
    std::uint32_t cursor_offset_ = 0;
    std::uint32_t next_psn_ = 0;  ///< Of the next post.
    std::uint32_t una_ = 0;       ///< Oldest PSN not acknowledged.
    std::uint32_t sent_count_ = 0;
    std::uint32_t sent_first_ = 0;
    std::uint32_t reads_open_ = 0;  ///< Entries of sent_ that want data.
    Sent sent_[kWindowMax] = {};
    std::uint32_t emitted_ = 0;        ///< PSN after the last packet sent.
    std::uint32_t highest_ = 0;        ///< PSN after the last packet ever sent; rewinds leave it.
    std::uint32_t before_cursor_ = 0;  ///< What unsend() restores: cursor, offset, PSN, flags.
    std::uint32_t before_offset_ = 0;
    std::uint32_t before_emitted_ = 0;
    std::uint32_t before_since_ = 0;
    std::uint32_t since_ack_request_ = 0;
    std::uint64_t timer_ns_ = 0;  ///< Running since; 0 stopped.
    std::uint64_t rnr_until_ns_ = 0;
    std::uint32_t retries_left_ = 0;
    std::uint32_t rnr_left_ = 0;
    bool gap_reported_ = false;  ///< A sequence-error NAK was acted on; no progress since.
    bool stopped_ = false;       ///< A request failed for good; only reset() starts again.
};

}  // namespace weir::transport

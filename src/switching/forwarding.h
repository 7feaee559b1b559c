// SPDX-License-Identifier: Apache-2.0
// Mover: moves packets through the fabric's switches and into queue pairs. It is run by whoever has
// reason to: a program that posts or polls, the daemon when a program died half-way, a test under a
// simulated clock.
//
// Any number of movers work at once, none holds a lock, and each may be stopped or killed between
// any two instructions. A move of the head packet of buffer X to the tail of buffer Y is four
// compare-and-swaps:
//
//   1. X.head  {h, unclaimed} → {h, Y}     the decision: route, link state and drop-or-forward are
//   fixed here,
//                                          so all who help with this packet go the same way
//   2. Y.slot[t]  free for t → packet      takes effect only if the slot is still free for that
//   very index
//   3. X.head  {h, Y} → {h + 1, unclaimed} the packet has left
//   4. Y.tail  t → t + 1                   it may now be taken
//
// Whoever finds step 2 done at Y's tail finishes 3 and 4 before anything else, in that order.
// Hence:
//  * Never twice. A mover inserts at t only after it read tail = t and then saw X.head = {h, Y}.
//  Were the
//    packet in Y below t, X.head would have moved on (3 comes before 4); were it at t, the slot is
//    not free.
//  * Never lost. A packet leaves X (3) only after it stands in Y (2).
//  * In order. Only X's head moves, and Y's slots fill in order of t.
//  * No leak of credit. Credits are the difference of the two words (credit/lane_buffer.h).
// A dropped packet is step 1 with kClaimDiscard, then 3, then its release; ProcessEntry::releasing
// lets the daemon repeat the release if the dropper dies in between.
//
// Every lane holds at most one claim at a time, so a QP's ring that refuses new claims kRingMargin
// slots before it is full always has room for the claims already made: a port never waits for a
// program that does not read. What the ring refuses is dropped and counted; reliable senders keep
// within kQpWindow.
//
// A packet for a reliable connection goes straight from the last switch into the ring of its QP if
// the buffer of the HCA's port is empty: a hop less. Its order is safe, since what went before it
// from the same input stands either in that buffer or in the ring by then; and the margin holds,
// since only packets from the QP's own peer do so, of which each input has one at its head.
//
// Links with a rate (ArenaHeader::rated): before step 1 the mover takes a turn of the output's
// arbiter (switching/arbiter.h), one compare-and-swap that books the link for the packet's length.
// A claim is thus a packet that has paid; whoever finds a claim carries it out and asks nobody. If
// the link is busy the lane is left in the arbiter's `waiting` bits and in this mover's list, with
// the time when to look again (next_time). If it is free but another lane's turn, that lane's
// packet is moved in place of ours, so that nobody's absence keeps a link idle. A mover that dies
// between turn and claim has wasted the time of one packet. Packets of an HCA pass through its
// egress lanes, where they wait as they do at a switch.
//
// Sans-IO: no system call, no clock; the time is told (set_now). Wake-ups are collected for the
// caller (take_wakes). The Probe parameter is a test seam: point() is called before each
// compare-and-swap and between the reads that lead to it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "arena/layout.h"
#include "base/check.h"
#include "credit/lane_buffer.h"
#include "switching/arbiter.h"

namespace weir::switching {

/// Names a lane buffer of the arena: port * lanes + vl, then the egress lanes of the HCAs' ports,
/// then two per QP (requests, responses).
using LaneId = std::uint32_t;
inline constexpr LaneId kNoLane = 0xffffffffU;
/// Slots of a QP's ring kept for claims under way; at least the number of lanes.
inline constexpr std::uint32_t kRingMargin = 8;
static_assert(arena::kQpWindow + arena::kQpLag + kRingMargin <= credit::kSlotCount);

struct NoProbe {
    static void point() {}
};

enum class Step : std::uint8_t {
    kEmpty,      ///< Nothing at the head.
    kMoved,      ///< The head packet went on to `to`.
    kDiscarded,  ///< It was dropped.
    kBlocked,    ///< `to` has no credit for it.
    kWaiting,    ///< Its link is busy until next_time().
    kHelped,     ///< It was another lane's turn, whose packet went on to `to` (kNoLane: by itself).
};

struct Advance {
    Step step;
    LaneId to;
};

/// A few lanes, each once. What does not fit is only remembered to have been there.
template <std::uint32_t kSize>
class LaneSet {
  public:
    static constexpr std::uint32_t kMax = kSize;
    [[nodiscard]] bool overflowed() const { return count_ > kMax; }
    [[nodiscard]] const LaneId* begin() const { return lanes_.data(); }
    [[nodiscard]] const LaneId* end() const { return lanes_.data() + std::min(count_, kMax); }
    [[nodiscard]] bool contains(LaneId lane) const {
        return std::find(begin(), end(), lane) != end();
    }
    void add(LaneId lane) {
        if (contains(lane)) return;
        if (count_ < kMax) lanes_[count_] = lane;
        count_ = std::min(count_ + 1, kMax + 1);
    }
    void clear() { count_ = 0; }

  private:
    std::array<LaneId, kMax> lanes_{};
    std::uint32_t count_ = 0;
};

template <class Probe = NoProbe>
class Mover {
  public:
    explicit Mover(arena::Arena arena) : arena_(arena), lanes_(arena.header().lane_count) {
        egress_base_ = arena.header().port_count * lanes_;
        qp_base_ = egress_base_ + static_cast<std::uint32_t>(arena.header().egress_count) * lanes_;
    }

    [[nodiscard]] LaneId port_lane(std::uint32_t port, std::uint32_t vl) const {
        return port * lanes_ + vl;
    }
    /// REQUIRES: `port` is an HCA's.
    [[nodiscard]] LaneId egress_lane(std::uint32_t port, std::uint32_t vl) const {
        return egress_base_ + arena_.port(port).egress * lanes_ + vl;
    }
    [[nodiscard]] LaneId request_ring(std::uint32_t qp) const { return qp_base_ + qp * 2; }
    [[nodiscard]] LaneId response_ring(std::uint32_t qp) const { return qp_base_ + qp * 2 + 1; }
    [[nodiscard]] bool is_ring(LaneId id) const { return id >= qp_base_; }
    [[nodiscard]] std::uint32_t ring_qp(LaneId id) const { return (id - qp_base_) / 2; }
    [[nodiscard]] credit::LaneBuffer& buffer(LaneId id) const {
        if (id < egress_base_) return arena_.lane(id / lanes_, id % lanes_);
        if (!is_ring(id)) return arena_.egress((id - egress_base_) / lanes_, id % lanes_);
        auto& qp = arena_.qp(ring_qp(id));
        return (id - qp_base_) % 2 == 0 ? qp.requests : qp.responses;
    }

    /// Puts a new packet into `lane`. False if it has no credit there; then nothing has changed.
    /// REQUIRES: the packet is in flight, its route and header are written, nobody else injects it.
    bool inject(LaneId lane, std::uint32_t packet, std::uint32_t generation) {
        const credit::Slot what{0, generation, packet, credit::kSourceNone};
        return insert(lane, what, route_of(packet), [] { return true; }) == Insert::kDone;
    }

    /// Moves the head packet of a port's lane one hop.
    Advance advance(LaneId from);

    /// Moves packets on from `start`, and from where they get to, until all have reached a QP.
    /// False if some still wait for credit: then retry_stuck() later.
    bool drive(LaneId start);

    /// Drives the lanes again at which packets had to wait. True if none is left.
    bool retry_stuck();
    /// Gives up on the QPs that the heads of those lanes wait for, and drives again.
    void choke_stuck();
    /// Remembers what is at the head of the stuck lanes, for choke_noted().
    void remember_stuck();
    /// As choke_stuck(), where the head is still what remember_stuck() saw: a lane that moves,
    /// however long it has been full, is nobody's fault.
    void choke_noted();

    /// The time that holds for all that follows, in nanoseconds of one clock for the whole fabric.
    /// REQUIRES, where links have rates: called before a move.
    void set_now(std::uint64_t ns) { now_ = ns; }
    /// When to call retry_waiting(): the earliest moment at which a link is free that some packet
    /// waits for; 0 if this mover knows of none.
    [[nodiscard]] std::uint64_t next_time() const { return next_time_; }
    /// Drives the lanes again that wait for a link. True if none is left that waits for credit.
    bool retry_waiting();
    [[nodiscard]] bool is_waiting(LaneId lane) const { return waiting_.contains(lane); }

    /// The same for every lane of the fabric that holds packets: after somebody died half-way.
    bool sweep();

    /// The packet at the head of a QP's ring; false if none. REQUIRES: caller holds the consuming
    /// side.
    bool peek(LaneId ring, credit::Slot& slot);
    /// Takes the head packet off the ring, without releasing it. REQUIRES: peek was true.
    void pop(LaneId ring);
    /// Takes and releases all packets of a ring. REQUIRES: caller holds the consuming side.
    void drain(LaneId ring) {
        for (credit::Slot slot{}; peek(ring, slot);) {
            pop(ring);
            release(slot);
        }
        if (is_ring(ring) && ring == request_ring(ring_qp(ring))) {
            const auto head = buffer(ring).head.load(std::memory_order_relaxed);
            arena_.qp(ring_qp(ring))
                .taken.store(credit::Head::decode(head).index, std::memory_order_relaxed);
        }
    }

    /// The packet at `index` of a QP's ring, once it stands there, be it counted or not: what is in
    /// a slot cannot be undone, and its consumer need not wait for the rest of the move. False if
    /// none has come. REQUIRES: caller holds the consuming side; `index` is at or after the head.
    bool arrived(LaneId ring, std::uint32_t index, credit::Slot& slot) const {
        slot = credit::Slot::decode(buffer(ring).slot(index).load(std::memory_order_acquire));
        if (!filled(slot, index)) return false;
        // What the consumer will write to comes at once, and to be written.
        __builtin_prefetch(&arena_.packet(slot.packet), 1);
        __builtin_prefetch(arena_.packet(slot.packet).payload, 1);
        return true;
    }
    /// Pops and releases what stands before `index`. REQUIRES: as for arrived(), which was true for
    /// all of them.
    void settle(LaneId ring, std::uint32_t index) {
        auto& head = buffer(ring).head;
        while (credit::Head::decode(head.load(std::memory_order_relaxed)).index != index) {
            credit::Slot slot{};
            if (!peek(ring, slot)) return;
            pop(ring);
            release(slot);
        }
    }

    /// Gives a packet back to its sender. Does nothing if that has been done.
    void release(const credit::Slot& slot) {
        auto& state = arena_.packet(slot.packet).state;
        auto word = state.load(std::memory_order_acquire);
        if ((word & 1U) != 0 && ((word >> 1U) & 0xfffU) == slot.generation) {
            Probe::point();
            state.compare_exchange_strong(word, word & ~1U, std::memory_order_acq_rel);
        }
    }

    /// Finishes what a dead process was doing. REQUIRES: its `dead` word is set.
    void recover(const arena::ProcessEntry& process);

    /// Says that this process starts, and has ended, moving packets (ProcessEntry::moving).
    void begin() {
        if (self_ != nullptr) step_moving(moving_ ? 2 : 1, std::memory_order_relaxed);
        moving_ = true;
    }
    /// While packets wait for a link the process still counts as moving: if it stops, the daemon
    /// moves them.
    void end() {
        if (next_time_ != 0) return;
        if (self_ != nullptr) step_moving(1, std::memory_order_release);
        moving_ = false;
    }

    /// True if a packet from HCA port `port` to `dlid` would find every cable of its path up. Reads
    /// only.
    [[nodiscard]] bool path_up(std::uint32_t port, std::uint32_t dlid) const;

    /// Tells the owner of a QP that its ring has something.
    void notify(std::uint32_t qp);
    /// The processes that sleep and have work, as a bit mask over slots; empties the set.
    std::array<std::uint64_t, 4> take_wakes() { return std::exchange(wakes_, {}); }
    [[nodiscard]] bool has_wakes() const {
        return (wakes_[0] | wakes_[1] | wakes_[2] | wakes_[3]) != 0;
    }
    /// Process entry in which this mover says what it drops. May be null (tests, tools).
    void set_self(arena::ProcessEntry* self) { self_ = self; }

  private:
    // One process moves under one lock, so nobody else writes the word.
    void step_moving(std::uint64_t by, std::memory_order order) {
        self_->moving.store(self_->moving.load(std::memory_order_relaxed) + by, order);
    }
    enum class Insert : std::uint8_t { kDone, kBlocked, kRaced };
    /// A lane's head packet, not claimed yet.
    struct Waiter {
        LaneId lane;
        std::uint64_t head_word;
        credit::Slot slot;
        arena::Route route;
    };
    /// One waiter for each lane of a link, where there is one with credit.
    struct Contest {
        std::array<Waiter, arena::kLanesMax> best;
        std::uint32_t eligible;
    };

    [[nodiscard]] arena::Route route_of(std::uint32_t packet) const {
        return arena::Route::decode(arena_.packet(packet).route.load(std::memory_order_relaxed));
    }
    static bool filled(const credit::Slot& slot, std::uint64_t index) {
        return slot.sequence == (index & credit::kSequenceMask);
    }
    bool swap(std::atomic<std::uint64_t>& word, std::uint64_t from, std::uint64_t to) {
        Probe::point();
        return word.compare_exchange_strong(from, to, std::memory_order_acq_rel,
                                            std::memory_order_acquire);
    }

    [[nodiscard]] std::uint32_t port_of(LaneId lane) const {
        return lane < egress_base_ ? lane / lanes_ : buffer(lane).port;
    }
    [[nodiscard]] bool is_egress(LaneId lane) const {
        return lane >= egress_base_ && lane < qp_base_;
    }
    [[nodiscard]] bool rated() const {
        return arena_.header().rated.load(std::memory_order_relaxed) != 0;
    }
    std::optional<Advance> take_turn(const Waiter& mine, std::uint32_t claim);
    Advance help(const Waiter& other, std::uint32_t claim);
    Contest gather(std::uint32_t out);
    bool find_waiter(std::uint32_t out, std::uint32_t vl, Waiter& found);
    bool find_waiter_at(std::uint32_t out, std::uint32_t vl, std::uint32_t bit, Waiter& found,
                        bool& any);
    bool look_at_head(LaneId lane, std::uint32_t claim, Waiter& found);
    [[nodiscard]] bool has_room(LaneId to, const arena::Route& route) const;
    [[nodiscard]] std::uint32_t wait_bit(LaneId lane) const {
        return is_egress(lane) ? 0 : arena_.port(lane / lanes_).number % 64;
    }
    void queue(arena::ArbiterEntry& arbiter, std::uint32_t vl, std::uint32_t bit);
    void note_time(std::uint64_t when) {
        if (next_time_ == 0 || when < next_time_) next_time_ = when;
    }
    /// Drives lanes again that had to wait. True if none has to go on waiting for credit.
    template <std::uint32_t kSize>
    bool retry(LaneSet<kSize>& waited);

    void note_dead_egress(LaneId from, const arena::Route& route) const;
    std::uint32_t decide(LaneId from, std::uint32_t packet, const arena::Route& route) const;
    [[nodiscard]] bool may_express(const arena::PortEntry& out, std::uint32_t packet,
                                   const arena::Route& route) const;
    std::uint32_t decide_at_hca(const arena::NodeEntry& node, std::uint32_t node_index,
                                const arena::Route& route) const;
    LaneId destination(LaneId from, std::uint32_t claim, const arena::Route& route) const;
    std::uint32_t claim_for(LaneId to) const;
    [[nodiscard]] LaneId upstream(LaneId to, const credit::Slot& slot) const;
    Advance discard(credit::LaneBuffer& from, std::uint64_t head_word, const credit::Slot& slot,
                    const arena::Route& route);
    template <class Valid>
    Insert insert(LaneId to, credit::Slot what, const arena::Route& route, Valid valid);
    void finish(LaneId to, std::uint64_t tail_word);
    [[nodiscard]] bool half_inserted(LaneId lane) const;
    bool finish_leaving(LaneId to, std::uint64_t tail_word, const credit::Slot& slot,
                        std::uint32_t blocks);

    arena::Arena arena_;
    std::uint32_t lanes_;
    LaneId egress_base_;
    LaneId qp_base_;
    arena::ProcessEntry* self_ = nullptr;
    bool moving_ = false;
    std::uint64_t now_ = 0;
    std::uint64_t next_time_ = 0;
    LaneSet<64> waiting_;  ///< For a link that is busy.
    std::array<std::uint64_t, 4> wakes_{};
    LaneSet<16> stuck_;  ///< For credit.
    /// See remember_stuck(): a lane, and the index of its head.
    struct Noted {
        LaneId lane;
        std::uint64_t head;
    };
    std::array<Noted, LaneSet<16>::kMax> noted_{};
    std::uint32_t noted_count_ = 0;
    void choke(LaneId lane);
};

}  // namespace weir::switching

#include "switching/arbitration_impl.h"
#include "switching/forwarding_impl.h"

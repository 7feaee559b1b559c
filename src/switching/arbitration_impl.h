// SPDX-License-Identifier: Apache-2.0
// Bodies of Mover's templates for links that have a rate; include switching/forwarding.h, which
// explains them. Nothing here is run while all links are unlimited.
#pragma once

#include <algorithm>
#include <utility>

#include "switching/forwarding.h"

namespace weir::switching {

constexpr std::uint32_t coarse_time(std::uint64_t ns) {
    return static_cast<std::uint32_t>(ns >> 20U);
}

/// True if the link may still be busy for `left_ns`, which its turn says to 2^32 ns: no longer than
/// a packet keeps it, and no longer after the last turn.
inline bool plausibly_busy(const arena::ArbiterEntry& arbiter, std::uint64_t rate,
                           std::int64_t left_ns, std::uint64_t now) {
    const auto longest = longest_ns(rate);
    const auto idle = coarse_time(now) - arbiter.last_turn.load(std::memory_order_relaxed);
    // One more for the rounding, and a clock that was read before the turn was taken.
    return left_ns <= static_cast<std::int64_t>(longest) && idle + 1 <= coarse_time(longest) + 2;
}

/// Takes a turn of the link that `claim` leads to for the packet `mine`. Nothing: it may be claimed
/// now. Else what happened instead.
template <class Probe>
std::optional<Advance> Mover<Probe>::take_turn(const Waiter& mine, std::uint32_t claim) {
    const auto& node = arena_.node(arena_.port(port_of(mine.lane)).node);
    const auto out = node.first_port + claim / 16 - 1;
    const auto vl = claim % 16;
    const auto bit = wait_bit(mine.lane);
    auto& arbiter = arena_.arbiter(out);
    for (;;) {
        const auto rate = arbiter.rate_bits_per_second.load(std::memory_order_relaxed);
        if (rate == 0) return std::nullopt;
        const auto word = arbiter.turns.load(std::memory_order_acquire);
        auto turns = Turns::decode(word);
        const auto late =
            static_cast<std::int32_t>(static_cast<std::uint32_t>(now_) - turns.busy_until);
        if (late < 0 && plausibly_busy(arbiter, rate, -std::int64_t{late}, now_)) {
            queue(arbiter, vl, bit);
            note_time(now_ + static_cast<std::uint64_t>(-std::int64_t{late}));
            return Advance{Step::kWaiting, kNoLane};
        }
        const LaneId to = destination(mine.lane, claim, mine.route);
        if (!has_room(to, mine.route)) {
            queue(arbiter, vl, bit);
            buffer(to).stalls.fetch_add(1, std::memory_order_relaxed);
            return Advance{Step::kBlocked, to};
        }
        auto contest = gather(out);
        const bool waited_itself =
            (arbiter.waiting[vl].load(std::memory_order_relaxed) >> bit & 1U) != 0;
        const bool waited = waited_itself || contest.eligible != 0;
        if ((contest.eligible >> vl & 1U) == 0) contest.best[vl] = mine;
        contest.eligible |= 1U << vl;
        bool high = false;
        auto chosen_vl = choose_vl(arbiter.tables, contest.eligible, turns, high);
        if (chosen_vl == kNoVl) chosen_vl = vl;
        const Waiter& chosen = contest.best[chosen_vl];
        charge(arbiter.tables, high, chosen.route.blocks(), turns);
        const auto behind =
            waited && late > 0 ? std::min(static_cast<std::uint32_t>(late), kLateNs) : 0U;
        turns.busy_until = static_cast<std::uint32_t>(now_) - behind +
                           static_cast<std::uint32_t>(wire_ns(chosen.route.words * 4ULL, rate));
        // Before the swap: if this is the last that we do, a link that is free may seem busy for
        // the time of a packet, but never one that is busy seem free.
        arbiter.last_turn.store(coarse_time(now_), std::memory_order_relaxed);
        if (!swap(arbiter.turns, word, turns.encode())) continue;
        arbiter.last_input[chosen_vl].store(static_cast<std::uint8_t>(wait_bit(chosen.lane)),
                                            std::memory_order_relaxed);
        if (chosen.lane != mine.lane) return help(chosen, chosen_vl + claim / 16 * 16);
        // The packets behind this one, if any, have been waiting as well.
        if (waited_itself && buffer(mine.lane).occupancy() <= 1) {
            Probe::point();
            arbiter.waiting[vl].fetch_and(~(1ULL << bit), std::memory_order_acq_rel);
        }
        return std::nullopt;
    }
}

/// Moves another lane's packet, for which a turn has been taken.
template <class Probe>
Advance Mover<Probe>::help(const Waiter& other, std::uint32_t claim) {
    auto& buffer_x = buffer(other.lane);
    auto head = credit::Head::decode(other.head_word);
    head.claim = claim;
    const auto claimed = head.encode();
    if (!swap(buffer_x.head, other.head_word, claimed)) return {Step::kHelped, kNoLane};
    const LaneId to = destination(other.lane, claim, other.route);
    const auto source = arena_.port(port_of(other.lane)).number * 16 + other.lane % lanes_;
    const credit::Slot what{0, other.slot.generation, other.slot.packet, source};
    const auto still_here = [&] {
        return buffer_x.head.load(std::memory_order_acquire) == claimed;
    };
    const bool moved = insert(to, what, other.route, still_here) == Insert::kDone;
    return {Step::kHelped, moved ? to : kNoLane};
}

/// For each lane of the link `out` a packet that waits for it and has credit at the far end.
template <class Probe>
typename Mover<Probe>::Contest Mover<Probe>::gather(std::uint32_t out) {
    Contest contest;
    contest.eligible = 0;
    for (std::uint32_t vl = 0; vl < lanes_; ++vl) {
        if (find_waiter(out, vl, contest.best[vl])) contest.eligible |= 1U << vl;
    }
    return contest;
}

template <class Probe>
bool Mover<Probe>::find_waiter(std::uint32_t out, std::uint32_t vl, Waiter& found) {
    auto& arbiter = arena_.arbiter(out);
    const auto bits = arbiter.waiting[vl].load(std::memory_order_acquire);
    if (bits == 0) return false;
    // Inputs take turns too: from the one after the last.
    const unsigned first = (arbiter.last_input[vl].load(std::memory_order_relaxed) + 1U) % 64;
    auto rotated = first == 0 ? bits : bits >> first | bits << (64 - first);
    for (; rotated != 0; rotated &= rotated - 1) {
        const auto bit = (static_cast<std::uint32_t>(__builtin_ctzll(rotated)) + first) % 64;
        bool any = false;
        if (find_waiter_at(out, vl, bit, found, any)) return true;
        if (any) continue;
        Probe::point();
        arbiter.waiting[vl].fetch_and(~(1ULL << bit), std::memory_order_acq_rel);
        // One may have come between the look and the clearing.
        const bool now = find_waiter_at(out, vl, bit, found, any);
        if (any) queue(arbiter, vl, bit);
        if (now) return true;
    }
    return false;
}

/// Among the input ports that this bit stands for. `any` is set if one waits, with credit or not.
template <class Probe>
bool Mover<Probe>::find_waiter_at(std::uint32_t out, std::uint32_t vl, std::uint32_t bit,
                                  Waiter& found, bool& any) {
    const auto& port = arena_.port(out);
    const auto& node = arena_.node(port.node);
    const auto claim = port.number * 16 + vl;
    const auto try_lane = [&](LaneId lane) {
        if (!look_at_head(lane, claim, found)) return false;
        any = true;
        return has_room(port_lane(port.peer, vl), found.route);
    };
    if (node.kind == arena::NodeKind::kHca) return bit == 0 && try_lane(egress_lane(out, vl));
    for (std::uint32_t number = bit == 0 ? 64 : bit; number <= node.port_count; number += 64) {
        if (try_lane(port_lane(node.first_port + number - 1, vl))) return true;
    }
    return false;
}

/// True if the head of `lane` is unclaimed and would be claimed thus.
template <class Probe>
bool Mover<Probe>::look_at_head(LaneId lane, std::uint32_t claim, Waiter& found) {
    auto& b = buffer(lane);
    const auto head_word = b.head.load(std::memory_order_acquire);
    const auto head = credit::Head::decode(head_word);
    if (head.claim != credit::kUnclaimed) return false;
    const auto slot = credit::Slot::decode(b.slot(head.index).load(std::memory_order_acquire));
    if (!filled(slot, head.index)) return false;
    const auto tail_word = b.tail.load(std::memory_order_acquire);
    if ((credit::Tail::decode(tail_word).index & credit::kHeadIndexMask) == head.index) {
        finish(lane, tail_word);
    }
    Probe::point();
    const auto route = route_of(slot.packet);
    if (decide(lane, slot.packet, route) != claim) return false;
    // The route was the packet's if the packet is still there.
    if (b.head.load(std::memory_order_acquire) != head_word) return false;
    found = {lane, head_word, slot, route};
    return true;
}

/// A glance: the credit may be gone when it is needed.
template <class Probe>
bool Mover<Probe>::has_room(LaneId to, const arena::Route& route) const {
    const auto& b = buffer(to);
    const auto tail = credit::Tail::decode(b.tail.load(std::memory_order_acquire));
    const auto head = credit::Head::decode(b.head.load(std::memory_order_acquire));
    return credit::has_credit(head, tail, route.blocks(), b.capacity_blocks);
}

template <class Probe>
void Mover<Probe>::queue(arena::ArbiterEntry& arbiter, std::uint32_t vl, std::uint32_t bit) {
    if ((arbiter.waiting[vl].load(std::memory_order_relaxed) >> bit & 1U) != 0) return;
    Probe::point();
    arbiter.waiting[vl].fetch_or(1ULL << bit, std::memory_order_acq_rel);
    arbiter.waits[vl].fetch_add(1, std::memory_order_relaxed);
}

template <class Probe>
bool Mover<Probe>::retry_waiting() {
    next_time_ = 0;
    return retry(waiting_);
}

}  // namespace weir::switching

// SPDX-License-Identifier: Apache-2.0
#include "rsocket/stream.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <deque>
#include <numeric>

namespace weir::rsocket {
namespace {

/// Two streams, and messages between them that are under way until they are delivered; completions
/// of sends come when asked for. Memory is what a user of Stream would have: a ring and slots.
class Pair {
  public:
    struct Side {
        Side(Limits limits, std::size_t ring_bytes, std::uint32_t sends)
            : stream(limits, ring_bytes, sends),
              ring(ring_bytes),
              slots(limits.slots + 1, std::vector<std::uint8_t>(limits.slot_bytes)) {
            for (std::uint32_t i = 0; i <= limits.slots; ++i)
                receives.push_back(i);
        }
        Stream stream;
        std::vector<std::uint8_t> ring;
        std::vector<std::vector<std::uint8_t>> slots;
        std::deque<std::uint32_t> receives;  ///< Posted, in order.
        std::uint64_t sent = 0;              ///< Bytes so far; each is a function of its place.
        std::uint64_t read = 0;
        std::size_t delivered = 0;  ///< Of its messages; their sending completes in order.
        std::size_t completed = 0;
    };
    /// Its bytes are in the sender's ring until its sending has completed.
    struct Message {
        MessageHeader header;
        std::size_t begin = 0;
        std::size_t length = 0;
    };

    Pair(Limits a, Limits b, std::size_t ring_bytes, std::uint32_t sends)
        : sides{Side(a, ring_bytes, sends), Side(b, ring_bytes, sends)} {
        sides[0].stream.set_peer(b);
        sides[1].stream.set_peer(a);
    }

    static std::uint8_t byte_at(std::uint64_t place, int side) {
        return static_cast<std::uint8_t>((place * 2654435761U >> 7U) + static_cast<unsigned>(side));
    }

    std::size_t send(int from, std::size_t wanted) {
        auto& s = sides[from];
        std::size_t done = 0;
        while (done < wanted && s.stream.room() > 0) {
            const auto cut = s.stream.cut(wanted - done);
            for (std::size_t i = 0; i < cut.length; ++i)
                s.ring[(cut.begin + i) % s.ring.size()] = byte_at(s.sent++, from);
            done += cut.length;
            ways[from].push_back({cut.header, cut.begin, cut.length});
        }
        return done;
    }

    /// Delivers the oldest message to the other side.
    bool deliver(int from) {
        if (ways[from].empty()) return false;
        auto& to = sides[1 - from];
        const auto message = ways[from].front();
        ways[from].pop_front();
        RC_ASSERT(!to.receives.empty());  // never more than there are slots for
        const auto slot = to.receives.front();
        to.receives.pop_front();
        const auto& ring = sides[from].ring;
        for (std::size_t i = 0; i < message.length; ++i)
            to.slots[slot][i] = ring[(message.begin + i) % ring.size()];
        ++sides[from].delivered;
        const auto verdict = to.stream.on_message(slot, message.header, message.length);
        RC_ASSERT(verdict != Stream::Verdict::kBroken);
        if (verdict == Stream::Verdict::kControl) to.stream.free_slot(slot);
        pump(1 - from);
        return true;
    }

    std::size_t read(int side, std::size_t wanted, bool peek = false) {
        auto& s = sides[side];
        auto place = s.read;
        const auto got = s.stream.consume(
            wanted, peek, [&](std::uint32_t slot, std::size_t offset, std::size_t length) {
                for (std::size_t i = 0; i < length; ++i)
                    RC_ASSERT(s.slots[slot][offset + i] == byte_at(place++, 1 - side));
            });
        if (!peek) s.read += got;
        pump(side);
        return got;
    }

    bool complete(int side) {
        auto& s = sides[side];
        if (s.completed == s.delivered) return false;
        ++s.completed;
        RC_ASSERT(s.stream.on_sent());
        pump(side);
        return true;
    }

    void end(int side) {
        sides[side].stream.end_sending();
        pump(side);
    }

    void pump(int side) {
        auto& s = sides[side];
        while (const auto slot = s.stream.take_free_slot())
            s.receives.push_back(*slot);
        while (const auto header = s.stream.take_credit_message())
            ways[side].push_back({*header});
        if (const auto header = s.stream.take_fin()) ways[side].push_back({*header});
    }

    /// Credits in hand, messages under way, slots in use and slots owed make up all slots, but for
    /// those that a message on its way back returns.
    void check() const {
        for (int side = 0; side < 2; ++side) {
            const auto& from = sides[side].stream;
            const auto& to = sides[1 - side].stream;
            std::size_t under_way = 0;
            for (const auto& message : ways[side])
                under_way += message.header.kind != Kind::kFin ? 1 : 0;
            const auto found = from.credits() + under_way + to.slots_filled() + to.slots_owed();
            RC_ASSERT(found <= to.own().slots);
            if (ways[1 - side].empty()) RC_ASSERT(found == to.own().slots);
        }
    }

    Side sides[2];
    std::deque<Message> ways[2];
};

Limits limits_of(std::uint32_t slots, std::uint32_t bytes) {
    return {slots, bytes};
}

RC_GTEST_PROP(Stream, BytesComeOutAsTheyWentInAndCreditsNeverLeak, ()) {
    const auto slots = *rc::gen::inRange<std::uint32_t>(kSlotsLeast, 20);
    const auto more = *rc::gen::inRange<std::uint32_t>(kSlotsLeast, 20);
    const auto bytes = *rc::gen::inRange<std::uint32_t>(kSlotBytesLeast, 200);
    const auto ring = *rc::gen::inRange<std::size_t>(1, 600);
    const auto sends = *rc::gen::inRange<std::uint32_t>(3, 12);
    Pair pair(limits_of(slots, bytes), limits_of(more, kSlotBytesLeast), ring, sends);
    const auto steps = *rc::gen::container<std::vector<std::uint32_t>>(
        *rc::gen::inRange<std::size_t>(0, 400), rc::gen::arbitrary<std::uint32_t>());
    bool ended[2] = {false, false};
    for (const auto step : steps) {
        const int side = static_cast<int>(step & 1U);
        const std::size_t size = (step >> 4U) % 700;
        switch ((step >> 1U) & 7U) {
            case 0:
            case 1:
                if (!ended[side]) pair.send(side, size);
                break;
            case 2:
            case 3:
                pair.deliver(side);
                break;
            case 4:
                pair.read(side, size, true);
                break;
            case 5:
                pair.read(side, size);
                break;
            case 6:
                pair.complete(side);
                break;
            default:
                ended[side] = size < 20;
                if (ended[side]) pair.end(side);
        }
        pair.check();
    }
    // Now everybody reads and all that is under way comes: it must run dry, with an end on both
    // sides, and everything that was sent is read.
    for (int side = 0; side < 2; ++side)
        pair.end(side);
    for (int round = 0; round < 10'000; ++round) {
        bool any = false;
        for (int side = 0; side < 2; ++side) {
            any |= pair.deliver(side);
            any |= pair.complete(side);
            any |= pair.read(side, 50) > 0;
        }
        pair.check();
        if (!any) break;
    }
    for (int side = 0; side < 2; ++side) {
        RC_ASSERT(pair.sides[side].read == pair.sides[1 - side].sent);
        RC_ASSERT(pair.sides[side].stream.at_end());
        RC_ASSERT(pair.sides[side].stream.all_sent());
    }
}

RC_GTEST_PROP(Stream, TwoFullSidesThatThenReadGoOn, ()) {
    const auto slots = *rc::gen::inRange<std::uint32_t>(kSlotsLeast, 40);
    Pair pair(limits_of(slots, 64), limits_of(slots, 64), 1 << 16, 2 * slots + 4);
    const auto sizes =
        *rc::gen::container<std::vector<std::size_t>>(200, rc::gen::inRange<std::size_t>(1, 64));
    const auto order = *rc::gen::container<std::vector<bool>>(400, rc::gen::arbitrary<bool>());
    std::size_t next[2] = {0, 0};
    std::size_t moved = 0;
    // Each side sends as much as it can before anybody reads, again and again.
    for (int round = 0; round < 2000 && (next[0] < sizes.size() || next[1] < sizes.size());
         ++round) {
        const auto before = moved;
        for (int side = 0; side < 2; ++side)
            while (next[side] < sizes.size() && pair.send(side, sizes[next[side]]) > 0)
                ++next[side], ++moved;
        const int first = order[static_cast<std::size_t>(round) % order.size()] ? 1 : 0;
        for (const int side : {first, 1 - first}) {
            while (pair.deliver(1 - side))
                ++moved;
            while (pair.complete(1 - side)) {
            }
            moved += pair.read(side, 1 << 20);
        }
        pair.check();
        RC_ASSERT(moved > before);
    }
    RC_ASSERT(next[0] == sizes.size() && next[1] == sizes.size());
}

TEST(Stream, OneCreditIsKeptForTheCreditMessage) {
    Pair pair(limits_of(4, 64), limits_of(4, 64), 4096, 16);
    EXPECT_EQ(pair.send(0, 1000), 3U * 64);
    EXPECT_EQ(pair.sides[0].stream.room(), 0U);
    EXPECT_EQ(pair.sides[0].stream.credits(), 1U);
}

TEST(Stream, TheFinNeedsNoCredit) {
    Pair pair(limits_of(4, 64), limits_of(4, 64), 4096, 16);
    pair.send(0, 1000);
    pair.end(0);
    ASSERT_EQ(pair.ways[0].size(), 4U);
    EXPECT_EQ(pair.ways[0].back().header.kind, Kind::kFin);
    EXPECT_EQ(pair.sides[0].stream.room(), 0U);
    while (pair.deliver(0)) {
    }
    EXPECT_TRUE(pair.sides[1].stream.fin_received());
    EXPECT_FALSE(pair.sides[1].stream.at_end());
    EXPECT_EQ(pair.read(1, 1000), 3U * 64);
    EXPECT_TRUE(pair.sides[1].stream.at_end());
}

TEST(Stream, AfterItsEndTheOtherWayGoesOn) {
    Pair pair(limits_of(4, 64), limits_of(4, 64), 4096, 16);
    pair.end(0);
    std::size_t moved = 0;
    for (int round = 0; round < 100; ++round) {
        moved += pair.send(1, 64);
        while (pair.deliver(1)) {
        }
        while (pair.complete(1)) {
        }
        pair.read(0, 1000);
        while (pair.deliver(0)) {
        }
        while (pair.complete(0)) {
        }
    }
    EXPECT_EQ(moved, 6400U);
}

TEST(Stream, WhoHasSentItsFinIsTroubledByNoCredits) {
    Pair pair(limits_of(4, 64), limits_of(4, 64), 4096, 16);
    pair.send(0, 1000);
    pair.end(0);
    while (pair.deliver(0)) {
    }
    EXPECT_EQ(pair.read(1, 1000), 3U * 64);
    EXPECT_TRUE(pair.ways[1].empty());
}

TEST(Stream, ADeafSideTakesAndDropsWhatComes) {
    Pair pair(limits_of(4, 64), limits_of(4, 64), 4096, 16);
    pair.send(0, 64);
    pair.deliver(0);
    pair.sides[1].stream.end_receiving();
    EXPECT_EQ(pair.sides[1].stream.readable(), 0U);
    for (int round = 0; round < 20; ++round) {
        EXPECT_EQ(pair.send(0, 64), 64U) << round;
        while (pair.deliver(0)) {
        }
        while (pair.deliver(1)) {
        }
        while (pair.complete(0)) {
        }
        while (pair.complete(1)) {
        }
    }
    EXPECT_EQ(pair.sides[1].stream.readable(), 0U);
}

TEST(Stream, WritesPastItTakeRoomButNoCredit) {
    Pair pair(limits_of(4, 64), limits_of(4, 64), 100, 8);
    auto& stream = pair.sides[0].stream;
    EXPECT_EQ(stream.cut_write(1000).length, 100U);
    EXPECT_EQ(stream.credits(), 4U);
    EXPECT_EQ(stream.room(), 0U);
    EXPECT_TRUE(stream.on_sent());
    EXPECT_EQ(stream.room(), 64U);
}

TEST(Stream, WhatAPeerOfOursWouldNotSendIsRefused) {
    using Verdict = Stream::Verdict;
    const auto verdict = [](const MessageHeader& header, std::size_t length) {
        Stream stream(limits_of(4, 64), 256, 8);
        stream.set_peer(limits_of(4, 64));
        return stream.on_message(0, header, length);
    };
    EXPECT_EQ(verdict({Kind::kData, 0, 0}, 64), Verdict::kTaken);
    EXPECT_EQ(verdict({Kind::kData, 0, 0}, 65), Verdict::kBroken);
    EXPECT_EQ(verdict({Kind::kData, 0, 0}, 0), Verdict::kBroken);
    EXPECT_EQ(verdict({Kind::kData, 0, 1}, 64), Verdict::kBroken);   // a message is missing
    EXPECT_EQ(verdict({Kind::kCredit, 1, 0}, 0), Verdict::kBroken);  // returns what it never had
}

TEST(Messages, ComeOutAsTheyWentIn) {
    const MessageHeader header{Kind::kUnmap, 0xfedcba98, 0x0123456789abcdef};
    std::array<std::uint8_t, kMessageHeaderBytes> bytes{};
    encode(header, bytes.data());
    EXPECT_EQ(bytes[0], 5);
    EXPECT_EQ(bytes[4], 0xfe);
    EXPECT_EQ(bytes[15], 0xef);
    EXPECT_EQ(decode_header(bytes), header);
    bytes[0] = 6;
    EXPECT_EQ(decode_header(bytes), std::nullopt);
    EXPECT_EQ(decode_header({bytes.data(), 15}), std::nullopt);

    const Greeting greeting{{64, 8192}, 3};
    auto hello = encode(greeting);
    EXPECT_EQ(decode_greeting(hello), greeting);
    hello[7] = 3;  // too few slots
    EXPECT_EQ(decode_greeting(hello), std::nullopt);

    const Mapping mapping{1, 0x7f0000001000, 4096, 0x80001234};
    std::array<std::uint8_t, kMappingBytes> map{};
    encode(mapping, map.data());
    EXPECT_EQ(decode_mapping(map), mapping);
}

}  // namespace
}  // namespace weir::rsocket

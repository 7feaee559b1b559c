// SPDX-License-Identifier: Apache-2.0
#include "credit/lane_buffer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace weir::credit {
namespace {

RC_GTEST_PROP(Words, EncodeThenDecodeIsTheSame, ()) {
    const auto word = *rc::gen::arbitrary<std::uint64_t>();
    RC_ASSERT(Head::decode(word).encode() == word);
    RC_ASSERT(Tail::decode(word).encode() == word);
    RC_ASSERT(Slot::decode(word).encode() == word);
}

RC_GTEST_PROP(Credit, GrantedNeverExceedsCapacityAndAlwaysUpToIt, ()) {
    // A sender and a receiver that only know the words: whatever the order of sends and takes, and
    // wherever the counters stand, used blocks stay within capacity and freed ones are usable
    // again.
    const auto start = *rc::gen::arbitrary<std::uint32_t>();
    const std::uint32_t capacity = *rc::gen::inRange(1U, 8192U);
    Head head{kUnclaimed, static_cast<std::uint32_t>(start & kHeadIndexMask),
              static_cast<std::uint32_t>(start & kBlocksMask)};
    Tail tail{head.index, head.blocks};
    std::vector<std::uint32_t> held;
    std::uint32_t used = 0;
    for (const auto size :
         *rc::gen::container<std::vector<std::uint32_t>>(rc::gen::inRange(1U, 2048U))) {
        const bool fits = used + size <= capacity && held.size() < kSlotCount;
        RC_ASSERT(has_credit(head, tail, size, capacity) == fits);
        if (fits) {
            tail = tail.next(size);
            held.push_back(size);
            used += size;
        } else if (!held.empty()) {
            head = head.next(held.front());
            used -= held.front();
            held.erase(held.begin());
        }
    }
}

TEST(LaneBuffer, StartsEmptyWithEverySlotFree) {
    LaneBuffer buffer;
    buffer.reset(64);
    EXPECT_EQ(buffer.occupancy(), 0U);
    for (std::uint32_t i = 0; i < kSlotCount; ++i) {
        const auto slot = Slot::decode(buffer.slot(i).load());
        EXPECT_EQ(slot.sequence, (i - kSlotCount) & kSequenceMask);
    }
}

}  // namespace
}  // namespace weir::credit

// SPDX-License-Identifier: Apache-2.0
#include "hca/lock.h"

#include <gtest/gtest.h>

#include <mutex>
#include <thread>
#include <vector>

namespace weir::hca {
namespace {

/// More threads than cores, holding it now for an instant, now long enough that the others sleep.
TEST(Lock, KeepsThreadsApartAndLeavesNobodyAsleep) {
    constexpr int kThreads = 8;
    constexpr int kTurns = 4000;
    Lock lock;
    std::uint64_t turns = 0;
    int inside = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&] {
            for (int i = 0; i < kTurns; ++i) {
                const std::lock_guard guard(lock);
                ASSERT_EQ(++inside, 1);
                if (i % 64 == 0) std::this_thread::yield();
                ++turns;
                --inside;
            }
        });
    }
    for (auto& thread : threads)
        thread.join();
    EXPECT_EQ(turns, static_cast<std::uint64_t>(kThreads) * kTurns);
}

}  // namespace
}  // namespace weir::hca

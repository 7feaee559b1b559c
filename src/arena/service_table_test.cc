// SPDX-License-Identifier: Apache-2.0
#include "arena/service_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <thread>
#include <vector>

namespace weir::arena {
namespace {

/// An arena of nothing but processes and services.
class ServiceTable : public testing::Test {
  protected:
    ServiceTable() {
        auto& header = *new (memory_.get()) ArenaHeader{};
        header.processes_at = 4096;
        header.services_at = 4096 + sizeof(ProcessEntry) * kProcessCount;
        for (std::uint32_t i = 0; i < 8; ++i)
            arena_.process(i).identity.store(identity(i));
    }

    static std::uint32_t identity(std::uint32_t slot) {
        return 1U << kIdentitySlotBits | (slot + 1);
    }
    int claim(const ServiceClaim& wish, std::uint32_t owner, std::uint32_t& index) {
        return claim_service(
            arena_, wish, identity(owner), [] { return false; }, index);
    }
    int claim(const ServiceClaim& wish, std::uint32_t owner) {
        std::uint32_t index = 0;
        return claim(wish, owner, index);
    }
    std::uint32_t find(std::uint64_t service_id, std::uint32_t family) {
        return find_listener(arena_, service_id, family, [](const auto&) { return true; });
    }

    static constexpr std::size_t kBytes =
        4096 + sizeof(ProcessEntry) * kProcessCount + sizeof(ServiceEntry) * kServiceCount;
    struct Free {
        void operator()(void* at) const { ::operator delete(at, std::align_val_t(4096)); }
    };
    std::unique_ptr<void, Free> memory_{[] {
        void* at = ::operator new(kBytes, std::align_val_t(4096));
        std::memset(at, 0, kBytes);
        return at;
    }()};
    Arena arena_{memory_.get()};
};

ServiceClaim wish(std::uint64_t id, std::uint64_t token, bool any = true) {
    ServiceClaim claim;
    claim.service_id = id;
    claim.token = token;
    claim.any_address = any;
    return claim;
}

TEST_F(ServiceTable, APortIsTakenOnce) {
    std::uint32_t index = 0;
    EXPECT_EQ(claim(wish(5, 1), 0, index), 0);
    EXPECT_EQ(claim(wish(5, 2), 1), EADDRINUSE);
    EXPECT_EQ(claim(wish(6, 2), 1), 0);
    release_service(arena_, index, identity(1));  // not its own
    EXPECT_EQ(claim(wish(5, 3), 1), EADDRINUSE);
    release_service(arena_, index, identity(0));
    EXPECT_EQ(claim(wish(5, 3), 1), 0);
}

TEST_F(ServiceTable, HostsAddressesAndFamiliesAreApart) {
    EXPECT_EQ(claim(wish(5, 1), 0), 0);
    auto other_host = wish(5, 2);
    other_host.host = 7;
    EXPECT_EQ(claim(other_host, 1), 0);
    auto ipv6 = wish(5, 3);
    ipv6.families = kFamilyIpv6;
    EXPECT_EQ(claim(ipv6, 1), 0);
    EXPECT_EQ(claim(wish(5, 4, false), 1), EADDRINUSE);  // some address of a host where all are

    EXPECT_EQ(claim(wish(9, 5, false), 0), 0);
    auto other_node = wish(9, 6, false);
    other_node.node = 1;
    EXPECT_EQ(claim(other_node, 1), 0);
    EXPECT_EQ(claim(wish(9, 7, true), 1), EADDRINUSE);
}

TEST_F(ServiceTable, SharedUntilSomebodyListens) {
    auto first = wish(5, 1);
    auto second = wish(5, 2);
    first.shareable = second.shareable = true;
    std::uint32_t index = 0;
    EXPECT_EQ(claim(first, 0, index), 0);
    EXPECT_EQ(claim(second, 1), 0);
    EXPECT_EQ(claim(wish(5, 3), 1), EADDRINUSE);
    arena_.service(index).listener.store(33);
    second.token = 4;
    EXPECT_EQ(claim(second, 1), EADDRINUSE);
}

TEST_F(ServiceTable, TheDeadHoldNothing) {
    std::uint32_t index = 0;
    EXPECT_EQ(claim(wish(5, 1), 0, index), 0);
    arena_.service(index).listener.store(33);
    EXPECT_EQ(find(5, kFamilyIpv4), index);
    EXPECT_EQ(find(5, kFamilyIpv6), kNone);
    arena_.process(0).dead.store(1);
    EXPECT_EQ(find(5, kFamilyIpv4), kNone);
    EXPECT_EQ(claim(wish(5, 2), 1), 0);
}

TEST_F(ServiceTable, OneWhoTriesAndStopsIsNotWaitedForForEver) {
    std::uint32_t index = 0;
    EXPECT_EQ(claim(wish(4, 1), 0, index), 0);
    const auto stuck = fill_service(arena_, wish(5, 2), identity(1));
    arena_.service(stuck).stage.store(stage_value(ServiceStage::kTrying));
    release_service(arena_, index, identity(0));
    int waits = 0;
    const auto pause = [&waits] { return ++waits < 5; };
    EXPECT_EQ(claim_service(arena_, wish(5, 3), identity(2), pause, index), EADDRINUSE);
    EXPECT_EQ(waits, 5);
}

TEST_F(ServiceTable, OfManyAtOnceOneWins) {
    constexpr int kThreads = 4;
    constexpr int kRounds = 3000;
    std::vector<std::atomic<int>> holders(kRounds);
    std::vector<std::thread> threads;
    for (std::uint32_t t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
            const auto pause = [] {
                std::this_thread::yield();
                return true;
            };
            for (int round = 0; round < kRounds; ++round) {
                std::uint32_t index = 0;
                const auto id = static_cast<std::uint64_t>(round);
                if (claim_service(arena_, wish(id, t + 1), identity(t), pause, index) == 0)
                    holders[static_cast<std::size_t>(round)].fetch_add(1);
            }
        });
    }
    for (auto& thread : threads)
        thread.join();
    for (int round = 0; round < kRounds; ++round)
        EXPECT_EQ(holders[static_cast<std::size_t>(round)].load(), 1) << round;
}

}  // namespace
}  // namespace weir::arena

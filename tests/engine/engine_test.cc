// SPDX-License-Identifier: Apache-2.0
// Data through the engine: every operation, every size that has an edge, both ways of reaching
// memory.
#include "hca/engine.h"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <thread>

#include "base/rng.h"
#include "fixture.h"

namespace weir::hca {
namespace {

void fill(std::uint8_t* to, std::size_t size, std::uint64_t seed) {
    Rng rng(seed);
    for (std::size_t i = 0; i < size; ++i)
        to[i] = static_cast<std::uint8_t>(rng.next());
}

const std::uint32_t kSizes[] = {0,   1,   7,    8,    9,    63,    64,    65,    152,    153,
                                160, 161, 4095, 4096, 4097, 65535, 65536, 65537, 131073, 400'001};

TEST_F(EngineTest, WritesReadsAndSendsCarryEverySize) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    constexpr std::size_t kHalf = 1U << 19U;
    for (const auto size : kSizes) {
        fill(a.memory.data(), size, size + 1);
        std::fill(b.memory.begin(), b.memory.end(), 0xee);
        ASSERT_EQ(a.send(IBV_WR_RDMA_WRITE, {a.piece(0, size)}, to(b, 3)), 0);
        EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS) << size;
        EXPECT_TRUE(std::equal(a.memory.begin(), a.memory.begin() + size, b.memory.begin() + 3))
            << size;
        EXPECT_EQ(b.memory[2], 0xee);
        EXPECT_EQ(b.memory[3 + size], 0xee) << size;

        ASSERT_EQ(a.send(IBV_WR_RDMA_READ, {a.piece(kHalf, size)}, to(b, 3)), 0);
        EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS) << size;
        EXPECT_TRUE(std::equal(a.memory.begin(), a.memory.begin() + size, a.memory.begin() + kHalf))
            << size;

        ASSERT_EQ(b.receive({b.piece(kHalf, 400'001)}, size), 0);
        ASSERT_EQ(a.send(IBV_WR_SEND, {a.piece(0, size)}, [](ibv_send_wr&) {}), 0);
        const auto received = wait(b.receive_cq);
        EXPECT_EQ(received.status, IBV_WC_SUCCESS) << size;
        EXPECT_EQ(received.wr_id, size);
        EXPECT_EQ(received.byte_len, size);
        EXPECT_EQ(received.qp_num, b.qp->number());
        EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS) << size;
        EXPECT_TRUE(std::equal(a.memory.begin(), a.memory.begin() + size, b.memory.begin() + kHalf))
            << size;
    }
}

TEST_F(EngineTest, ScatterAndGatherKeepTheOrderOfBytes) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    fill(a.memory.data(), 100'000, 5);
    std::vector<std::uint8_t> expected;
    std::vector<ibv_sge> from;
    for (const std::uint32_t i : {5U, 0U, 4096U, 70'000U, 1U}) {
        from.push_back(a.piece(i, i));
        expected.insert(expected.end(), a.memory.begin() + i, a.memory.begin() + 2 * i);
    }
    ASSERT_EQ(a.send(IBV_WR_RDMA_WRITE, from, to(b, 0)), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), b.memory.begin()));

    ASSERT_EQ(b.receive({b.piece(200'000, 3), b.piece(300'000, 70'000), b.piece(500'000, 10'000)}),
              0);
    ASSERT_EQ(a.send(IBV_WR_SEND, from, [](ibv_send_wr&) {}), 0);
    EXPECT_EQ(wait(b.receive_cq).byte_len, expected.size());
    EXPECT_TRUE(std::equal(expected.begin(), expected.begin() + 3, b.memory.begin() + 200'000));
    EXPECT_TRUE(
        std::equal(expected.begin() + 3, expected.begin() + 70'003, b.memory.begin() + 300'000));
    EXPECT_TRUE(std::equal(expected.begin() + 70'003, expected.end(), b.memory.begin() + 500'000));
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
}

TEST_F(EngineTest, AtomicsReturnWhatWasThere) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    std::uint64_t value = 100;
    const auto remote = [&](std::uint64_t compare_add, std::uint64_t swap) {
        return [&, compare_add, swap](ibv_send_wr& wr) {
            wr.wr.atomic.remote_addr = reinterpret_cast<std::uintptr_t>(b.memory.data()) + 64;
            wr.wr.atomic.rkey = b.rkey;
            wr.wr.atomic.compare_add = compare_add;
            wr.wr.atomic.swap = swap;
        };
    };
    std::memcpy(b.memory.data() + 64, &value, 8);
    ASSERT_EQ(a.send(IBV_WR_ATOMIC_FETCH_AND_ADD, {a.piece(0, 8)}, remote(5, 0)), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
    std::memcpy(&value, a.memory.data(), 8);
    EXPECT_EQ(value, 100U);
    ASSERT_EQ(a.send(IBV_WR_ATOMIC_CMP_AND_SWP, {a.piece(0, 8)}, remote(105, 7)), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
    ASSERT_EQ(a.send(IBV_WR_ATOMIC_CMP_AND_SWP, {a.piece(0, 8)}, remote(105, 9)), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
    std::memcpy(&value, a.memory.data(), 8);
    EXPECT_EQ(value, 7U);
    std::memcpy(&value, b.memory.data() + 64, 8);
    EXPECT_EQ(value, 7U);
}

TEST_F(EngineTest, ImmediateDataArrivesWithItsMessage) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    for (const std::uint32_t size : {0U, 8U, 200'000U}) {
        fill(a.memory.data(), size, size);
        ASSERT_EQ(b.receive({}), 0);
        ASSERT_EQ(a.send(IBV_WR_RDMA_WRITE_WITH_IMM, {a.piece(0, size)},
                         [&](ibv_send_wr& wr) {
                             to(b, 0)(wr);
                             wr.imm_data = 0x11223344;
                         }),
                  0);
        const auto wc = wait(b.receive_cq);
        EXPECT_EQ(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
        EXPECT_EQ(wc.imm_data, 0x11223344U);
        EXPECT_EQ(wc.byte_len, size);
        EXPECT_TRUE(std::equal(a.memory.begin(), a.memory.begin() + size, b.memory.begin()));
        EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
    }
}

// The sender keeps within what the ring holds beside what is taken and not yet popped.
TEST_F(EngineTest, AStreamOfSendsFindsRoomInTheRing) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC, 7, 0));
    constexpr int kMessages = 64;
    const auto arena = a.hca->state().attachment->arena;
    const auto discards = [&] {
        std::uint64_t sum = 0;
        for (std::uint32_t port = 0; port < arena.header().port_count; ++port)
            sum += arena.lane(port, 0).discards.load();
        return sum;
    };
    const auto before = discards();
    for (int round = 0; round < 20; ++round) {
        for (int i = 0; i < kMessages; ++i) {
            ASSERT_EQ(b.receive({b.piece(0, 64)}), 0);
            ASSERT_EQ(a.send(IBV_WR_SEND, {a.piece(0, 64)}, [](ibv_send_wr&) {}), 0);
        }
        for (int i = 0; i < kMessages; ++i)
            ASSERT_EQ(wait(b.receive_cq).status, IBV_WC_SUCCESS);
        for (int i = 0; i < kMessages; ++i)
            ASSERT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
    }
    EXPECT_EQ(discards(), before);
}

// Whoever waits for its window's end hears of it while the receiver is still busy.
TEST_F(EngineTest, AStreamIsAcknowledgedWithTheFirstLook) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    constexpr int kMessages = 16;
    for (int i = 0; i < kMessages; ++i)
        ASSERT_EQ(b.receive({b.piece(0, 64)}), 0);
    {
        // So that they come all at once, also for the progress thread.
        const std::lock_guard guard(b.hca->state().attachment->lock);
        for (int i = 0; i < kMessages; ++i)
            ASSERT_EQ(a.send(IBV_WR_SEND, {a.piece(0, 64)}, [](ibv_send_wr&) {}), 0);
    }
    ibv_wc completions[kMessages]{};
    wait(b.receive_cq);
    EXPECT_EQ(b.receive_cq->poll(kMessages - 1, completions), kMessages - 1);
    EXPECT_EQ(b.qp->state().entry().responder.ack_due, 0U);
    EXPECT_EQ(a.send_cq->poll(kMessages, completions), kMessages);
}

// A ring's head may follow late, but the packets in it belong to their sender, who has few buffers.
TEST_F(EngineTest, WhoLooksInVainGivesTakenPacketsBack) {
    for (const auto type : {IBV_QPT_RC, IBV_QPT_UC}) {
        ASSERT_NO_FATAL_FAILURE(connect(type));
        for (int message = 0; message < 3; ++message) {
            ASSERT_EQ(b.receive({b.piece(0, 512)}), 0);
            ASSERT_EQ(a.send(IBV_WR_SEND, {a.piece(0, 512)}, [](ibv_send_wr&) {}), 0);
            EXPECT_EQ(wait(b.receive_cq).status, IBV_WC_SUCCESS);
            EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
        }
        ibv_wc wc{};
        for (int look = 0; look < 1000; ++look)
            ASSERT_EQ(b.receive_cq->poll(1, &wc), 0);
        EXPECT_EQ(b.qp->state().entry().requests.occupancy(), 0U);
        for (End* end : {&a, &b}) {
            EXPECT_EQ(end->hca->destroy_qp(end->qp), 0);
            end->qp = nullptr;
        }
    }
}

TEST_F(EngineTest, MemoryThatCannotBeMovedIsReachedAllTheSame) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    // Pages of a file are nobody's to move.
    const int file = memfd_create("engine", MFD_CLOEXEC);
    ASSERT_EQ(ftruncate(file, 65536), 0);
    void* mapped = mmap(nullptr, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    std::uint32_t lkey = 0;
    std::uint32_t rkey = 0;
    ASSERT_EQ(b.hca->reg_mr(b.pd, mapped, 65536, 0, End::kAccess, lkey, rkey), 0);
    const auto remote = [&](ibv_send_wr& wr) { wr.wr.rdma.rkey = rkey; };
    fill(a.memory.data(), 65536, 3);
    ASSERT_EQ(a.send(IBV_WR_RDMA_WRITE, {a.piece(0, 65536)}, remote), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(mapped, a.memory.data(), 65536), 0);
    ASSERT_EQ(a.send(IBV_WR_RDMA_READ, {a.piece(100'000, 65536)}, remote), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(mapped, a.memory.data() + 100'000, 65536), 0);
    // Atomics on such memory are the owner's to execute.
    ASSERT_EQ(a.send(IBV_WR_ATOMIC_FETCH_AND_ADD, {a.piece(0, 8)},
                     [&](ibv_send_wr& wr) {
                         wr.wr.atomic.rkey = rkey;
                         wr.wr.atomic.compare_add = 1;
                     }),
              0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
    EXPECT_EQ(b.hca->dereg_mr(lkey), 0);
    munmap(mapped, 65536);
    close(file);
}

TEST_F(EngineTest, StackMemoryWorks) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    std::uint8_t stack[10'000] = {};
    std::uint32_t lkey = 0;
    std::uint32_t rkey = 0;
    ASSERT_EQ(b.hca->reg_mr(b.pd, stack, sizeof stack, 0x1000, End::kAccess, lkey, rkey), 0);
    fill(a.memory.data(), sizeof stack, 9);
    const auto remote = [&](ibv_send_wr& wr) {
        wr.wr.rdma.remote_addr = 0x1000;  // the MR's own addresses
        wr.wr.rdma.rkey = rkey;
    };
    ASSERT_EQ(a.send(IBV_WR_RDMA_WRITE, {a.piece(0, sizeof stack)}, remote), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(stack, a.memory.data(), sizeof stack), 0);
    ASSERT_EQ(a.send(IBV_WR_RDMA_READ, {a.piece(20'000, sizeof stack)}, remote), 0);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(stack, a.memory.data() + 20'000, sizeof stack), 0);
    EXPECT_EQ(b.hca->dereg_mr(lkey), 0);
}

TEST_F(EngineTest, DatagramsFindTheirWayAndCarryTheirSender) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_UD));
    AddressHandle handle{};
    handle.attr.dlid = b.lid;
    handle.attr.port_num = 1;
    ASSERT_EQ(a.hca->resolve_ah(handle), 0);
    for (std::uint64_t i = 0; i < 200; ++i) {
        const auto size = static_cast<std::uint32_t>(i * 20);
        fill(a.memory.data(), size, i);
        ASSERT_EQ(b.receive({b.piece(0, 4096 + 40)}, i), 0);
        ASSERT_EQ(a.send(IBV_WR_SEND, {a.piece(0, size)},
                         [&](ibv_send_wr& wr) {
                             wr.wr.ud.ah = &handle.base;
                             wr.wr.ud.remote_qpn = b.qp->number();
                             wr.wr.ud.remote_qkey = 0x1111;
                         }),
                  0);
        const auto wc = wait(b.receive_cq);
        EXPECT_EQ(wc.wr_id, i);
        EXPECT_EQ(wc.byte_len, size + 40);
        EXPECT_EQ(wc.src_qp, a.qp->number());
        EXPECT_EQ(wc.slid, a.lid);
        EXPECT_TRUE(std::equal(a.memory.begin(), a.memory.begin() + size, b.memory.begin() + 40));
        EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
    }
}

TEST_F(EngineTest, PacketsSentBeforeThePeerIsReadyWaitForIt) {
    ASSERT_NO_FATAL_FAILURE(a.create(IBV_QPT_RC));
    ASSERT_NO_FATAL_FAILURE(b.create(IBV_QPT_RC));
    a.to_init();
    a.to_rtr(b);
    a.to_rts();
    ASSERT_EQ(a.send(IBV_WR_SEND, {a.piece(0, 100)}, [](ibv_send_wr&) {}), 0);
    b.to_init();
    ASSERT_EQ(b.receive({b.piece(0, 100)}), 0);
    b.to_rtr(a);
    EXPECT_EQ(wait(b.receive_cq).byte_len, 100U);
    EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
}

TEST_F(EngineTest, AThreadOfTheSleepingSideAnswers) {
    // Nobody polls b: its progress thread must take the sends and acknowledge them.
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    for (int i = 0; i < 50; ++i)
        ASSERT_EQ(b.receive({b.piece(0, 1000)}), 0);
    for (int i = 0; i < 50; ++i) {
        ASSERT_EQ(a.send(IBV_WR_SEND, {a.piece(0, 1000)}, [](ibv_send_wr&) {}), 0);
        EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
    }
}

TEST_F(EngineTest, EventsWakeASleeper) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    std::unique_ptr<CompletionChannel> channel;
    ASSERT_EQ(CompletionChannel::create(channel), 0);
    CompletionQueue* cq = nullptr;
    ASSERT_EQ(b.hca->create_cq(16, channel.get(), cq), 0);
    Hca::QpRequest request{b.pd, IBV_QPT_RC, cq, cq, nullptr, {8, 8, 1, 1, 0}, false};
    QueuePair* qp = nullptr;
    ASSERT_EQ(b.hca->create_qp(request, qp), 0);
    std::swap(b.qp, qp);
    b.to_init();
    ibv_qp_attr reset{};
    reset.qp_state = IBV_QPS_RESET;
    ASSERT_EQ(a.qp->modify(reset, IBV_QP_STATE), 0);
    a.to_init();
    a.to_rtr(b);
    b.to_rtr(a);
    a.to_rts();
    for (int i = 0; i < 5; ++i) {
        ASSERT_EQ(b.receive({b.piece(0, 8)}), 0);
        ASSERT_EQ(cq->arm(false), 0);
        std::thread later([&] {
            usleep(20'000);
            EXPECT_EQ(a.send(IBV_WR_SEND, {a.piece(0, 8)}, [](ibv_send_wr&) {}), 0);
        });
        CompletionQueue* woken = nullptr;
        EXPECT_EQ(channel->take(woken), 0);
        EXPECT_EQ(woken, cq);
        ibv_wc wc{};
        EXPECT_EQ(cq->poll(1, &wc), 1);
        later.join();
        EXPECT_EQ(wait(a.send_cq).status, IBV_WC_SUCCESS);
    }
    std::swap(b.qp, qp);
    EXPECT_EQ(b.hca->destroy_qp(qp), 0);
    EXPECT_EQ(b.hca->destroy_cq(cq), 0);
}

TEST_F(EngineTest, ThreadsPostAndPollAtOnce) {
    ASSERT_NO_FATAL_FAILURE(connect(IBV_QPT_RC));
    constexpr int kEach = 500;
    const auto work = [&](End& end, const End& peer, std::size_t at) {
        for (int i = 0; i < kEach; ++i) {
            EXPECT_EQ(end.send(IBV_WR_RDMA_WRITE, {end.piece(at, 64)}, to(peer, at + 4096)), 0);
            ibv_wc wc{};
            while (end.send_cq->poll(1, &wc) == 0) {
            }
            EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
        }
    };
    std::thread one([&] { work(a, b, 0); });
    std::thread two([&] { work(b, a, 8192); });
    one.join();
    two.join();
}

}  // namespace
}  // namespace weir::hca

// SPDX-License-Identifier: Apache-2.0
// Goal: events reach the right object, and nothing is destroyed before its events are acknowledged.
#include <fcntl.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "handles.h"
#include "verbs_fixture.h"

namespace weir::ibverbs {
namespace {

class CompletionTest : public Verbs {
  protected:
    void SetUp() override {
        Verbs::SetUp();
        channel = ibv_create_comp_channel(context);
        ASSERT_NE(channel, nullptr);
        watched = ibv_create_cq(context, 7, &mark, channel, 0);
        ASSERT_NE(watched, nullptr);
    }

    void TearDown() override {
        if (watched != nullptr) {
            EXPECT_EQ(ibv_destroy_cq(watched), 0);
        }
        EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
        Verbs::TearDown();
    }

    ibv_comp_channel* channel = nullptr;
    ibv_cq* watched = nullptr;
    int mark = 0;
};

TEST_F(CompletionTest, TheStructSaysWhatWasGiven) {
    EXPECT_EQ(watched->cqe, 8);
    EXPECT_EQ(watched->cq_context, &mark);
    EXPECT_EQ(watched->channel, channel);
    EXPECT_EQ(channel->refcnt, 1);
    EXPECT_EQ(ibv_resize_cq(watched, 20), 0);
    EXPECT_EQ(watched->cqe, 20);
    EXPECT_EQ(ibv_create_cq(context, 0, nullptr, nullptr, 0), nullptr);
    EXPECT_EQ(ibv_create_cq(context, 1, nullptr, nullptr, 1), nullptr);
    EXPECT_EQ(ibv_create_cq(context, 1, nullptr, nullptr, -1), nullptr);
    EXPECT_EQ(errno, EINVAL);
}

TEST_F(CompletionTest, AChannelOutlivesItsQueues) {
    EXPECT_EQ(ibv_destroy_comp_channel(channel), EBUSY);
}

TEST_F(CompletionTest, AnEventNamesItsQueue) {
    EXPECT_EQ(ibv_req_notify_cq(watched, 0), 0);
    ibv_cq* found = nullptr;
    void* found_context = nullptr;
    EXPECT_EQ(ibv_get_cq_event(channel, &found, &found_context), 0);
    EXPECT_EQ(found, watched);
    EXPECT_EQ(found_context, &mark);
    ibv_ack_cq_events(watched, 1);
}

TEST_F(CompletionTest, ANonBlockingChannelAnswersAtOnce) {
    fcntl(channel->fd, F_SETFL, O_NONBLOCK);
    ibv_cq* found = nullptr;
    void* found_context = nullptr;
    EXPECT_EQ(ibv_get_cq_event(channel, &found, &found_context), -1);
    EXPECT_EQ(errno, EAGAIN);
}

TEST_F(CompletionTest, DestructionWaitsForAcknowledgements) {
    for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(ibv_req_notify_cq(watched, 0), 0);
        ibv_cq* found = nullptr;
        void* found_context = nullptr;
        EXPECT_EQ(ibv_get_cq_event(channel, &found, &found_context), 0);
    }
    EXPECT_EQ(ibv_req_notify_cq(watched, 0), 0);  // Never taken: needs no acknowledgement.
    std::atomic<bool> destroyed{false};
    std::thread destroyer([&] {
        EXPECT_EQ(ibv_destroy_cq(watched), 0);
        destroyed = true;
    });
    ibv_ack_cq_events(watched, 2);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    EXPECT_FALSE(destroyed);
    ibv_ack_cq_events(watched, 1);
    destroyer.join();
    watched = nullptr;
    fcntl(channel->fd, F_SETFL, O_NONBLOCK);
    ibv_cq* found = nullptr;
    void* found_context = nullptr;
    EXPECT_EQ(ibv_get_cq_event(channel, &found, &found_context), -1)
        << "the event that was not taken went with its queue";
}

TEST_F(CompletionTest, AWaitingThreadIsWoken) {
    std::thread waker([this] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        ibv_req_notify_cq(watched, 0);
    });
    ibv_cq* found = nullptr;
    void* found_context = nullptr;
    EXPECT_EQ(ibv_get_cq_event(channel, &found, &found_context), 0);
    ibv_ack_cq_events(watched, 1);
    waker.join();
}

TEST_F(CompletionTest, AWaitingThreadCanBeCancelled) {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "skipped: this sanitizer takes the end of a cancelled thread for an error";
#endif
    pthread_t sleeper{};
    ASSERT_EQ(pthread_create(
                  &sleeper, nullptr,
                  [](void* argument) -> void* {
                      ibv_cq* none = nullptr;
                      void* nothing = nullptr;
                      ibv_get_cq_event(static_cast<ibv_comp_channel*>(argument), &none, &nothing);
                      return nullptr;
                  },
                  channel),
              0);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(pthread_cancel(sleeper), 0);
    void* result = nullptr;
    EXPECT_EQ(pthread_join(sleeper, &result), 0);
    EXPECT_EQ(result, PTHREAD_CANCELED);
}

TEST_F(CompletionTest, AsyncEventsNameTheirObjectAndAreWaitedFor) {
    ibv_qp* qp = make_qp();
    ASSERT_NE(qp, nullptr);
    hca::AsyncEvent event{};
    event.type = IBV_EVENT_QP_FATAL;
    event.qp = reinterpret_cast<QueuePair*>(qp)->engine;
    fake::raise_async(*fake::fake().last_hca, event);
    ibv_async_event taken{};
    EXPECT_EQ(ibv_get_async_event(context, &taken), 0);
    EXPECT_EQ(taken.event_type, IBV_EVENT_QP_FATAL);
    EXPECT_EQ(taken.element.qp, qp);
    std::atomic<bool> destroyed{false};
    std::thread destroyer([&] {
        EXPECT_EQ(ibv_destroy_qp(qp), 0);
        destroyed = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    EXPECT_FALSE(destroyed);
    ibv_ack_async_event(&taken);
    destroyer.join();
}

TEST_F(CompletionTest, PortEventsNeedNoObject) {
    hca::AsyncEvent event{};
    event.type = IBV_EVENT_PORT_ERR;
    event.port = 1;
    fake::raise_async(*fake::fake().last_hca, event);
    ibv_async_event taken{};
    EXPECT_EQ(ibv_get_async_event(context, &taken), 0);
    EXPECT_EQ(taken.element.port_num, 1);
    ibv_ack_async_event(&taken);
    EXPECT_EQ(ibv_get_async_event(nullptr, &taken), -1);
    EXPECT_EQ(errno, EINVAL);
}

}  // namespace
}  // namespace weir::ibverbs

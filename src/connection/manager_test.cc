// SPDX-License-Identifier: Apache-2.0
// Two managers and the channel between them, under a clock that the test turns.
#include "connection/manager.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "base/rng.h"

namespace weir::connection {
namespace {

constexpr Time kMs = 1'000'000;
constexpr Time kSecond = 1000 * kMs;
constexpr Peer kA{0, 1, 100};
constexpr Peer kB{0, 2, 200};

wire::CmRequest request_from(std::uint32_t qp) {
    wire::CmRequest m;
    m.service_id = wire::cm_service_id(0x0106, 7174);
    m.qp_number = qp;
    m.private_data[0] = 0x11;
    return m;
}

wire::CmReply reply_from(std::uint32_t qp) {
    wire::CmReply m;
    m.qp_number = qp;
    m.private_data[0] = 0x22;
    return m;
}

/// One side: its manager, where it is, and what it was told.
struct Side {
    Side(Peer own, Id first_id) : address(own), manager(first_id) {}
    Peer address;
    Manager manager;
    std::vector<Notice> notices;
    /// Called for each notice, as a user would react.
    std::function<void(const Notice&)> react = [](const Notice&) {};

    [[nodiscard]] int count(NoticeKind kind) const {
        return static_cast<int>(std::count_if(notices.begin(), notices.end(),
                                              [kind](const auto& n) { return n.kind == kind; }));
    }
    [[nodiscard]] const Notice& last() const { return notices.back(); }
};

struct Flight {
    Side* to;
    Peer from;
    wire::CmMadBytes bytes;
};

class Manager2 : public testing::Test {
  protected:
    /// What a MAD meets on its way: how many copies arrive.
    std::function<int(const Flight&)> fate = [](const Flight&) { return 1; };

    void collect(Side& side, Side& other) {
        for (;;) {
            const auto actions = side.manager.take_actions();
            if (actions.empty()) return;
            for (const auto& action : actions) {
                if (const auto* send = std::get_if<SendAction>(&action)) {
                    EXPECT_EQ(send->to, other.address);
                    const Flight flight{&other, side.address, send->bytes};
                    ++sent;
                    for (int i = fate(flight); i > 0; --i)
                        flights.push_back(flight);
                } else {
                    side.notices.push_back(std::get<Notice>(action));
                    const auto notice = side.notices.back();
                    side.react(notice);
                }
            }
        }
    }
    /// Until nothing is under way.
    void settle() {
        collect(a, b);
        collect(b, a);
        while (!flights.empty()) {
            const Flight flight = flights.front();
            flights.pop_front();
            flight.to->manager.on_mad(flight.from, flight.bytes, now);
            collect(a, b);
            collect(b, a);
        }
    }
    /// Lets the time pass, stopping at each deadline.
    void pass(Time duration) {
        const Time end = now + duration;
        settle();
        for (;;) {
            const Time next =
                std::min(a.manager.deadline().value_or(end), b.manager.deadline().value_or(end));
            now = std::clamp(next, now, end);
            a.manager.on_time(now);
            b.manager.on_time(now);
            settle();
            if (now >= end) return;
        }
    }
    void users_agree() {
        b.react = [this](const Notice& n) {
            if (n.kind == NoticeKind::kRequest) {
                passive = n.id;
                EXPECT_EQ(b.manager.accept(n.id, reply_from(20), 0, now), 0);
            }
        };
        a.react = [this](const Notice& n) {
            if (n.kind == NoticeKind::kReply) {
                EXPECT_EQ(a.manager.ready(n.id, now), 0);
            }
        };
    }
    void connect() {
        users_agree();
        active = a.manager.request(kB, request_from(10), 0, now);
        settle();
        ASSERT_EQ(a.manager.state(active), State::kEstablished);
        ASSERT_EQ(b.manager.state(passive), State::kEstablished);
    }

    Side a{kA, 1000};
    Side b{kB, 5000};
    Time now = kSecond;
    std::deque<Flight> flights;
    int sent = 0;
    Id active = 0;
    Id passive = 0;
};

/// Loses the MADs whose number, counted from 0, is named.
template <class... Numbers>
auto lose(Numbers... numbers) {
    return [count = 0, lost = std::vector<int>{numbers...}](const Flight&) mutable {
        return std::count(lost.begin(), lost.end(), count++) != 0 ? 0 : 1;
    };
}

TEST_F(Manager2, ThreeMessagesConnect) {
    connect();
    EXPECT_EQ(sent, 3);
    EXPECT_EQ(b.notices[0].kind, NoticeKind::kRequest);
    const auto& request = std::get<wire::CmRequest>(b.notices[0].mad.body);
    EXPECT_EQ(request.qp_number, 10U);
    EXPECT_EQ(request.private_data[0], 0x11);
    const auto& reply = std::get<wire::CmReply>(a.notices[0].mad.body);
    EXPECT_EQ(reply.private_data[0], 0x22);
    EXPECT_EQ(b.count(NoticeKind::kReady), 1);
    EXPECT_FALSE(a.manager.deadline().has_value());
    EXPECT_FALSE(b.manager.deadline().has_value());
}

TEST_F(Manager2, EveryMessageMayBeLostOnce) {
    for (int lost = 0; lost < 3; ++lost) {
        a.notices.clear();
        b.notices.clear();
        fate = lose(lost);
        users_agree();
        const auto id =
            a.manager.request(kB, request_from(10U + static_cast<unsigned>(lost)), 0, now);
        pass(3 * kSecond);
        EXPECT_EQ(a.manager.state(id), State::kEstablished) << lost;
        EXPECT_EQ(b.manager.state(passive), State::kEstablished) << lost;
        EXPECT_EQ(b.count(NoticeKind::kRequest), 1) << lost;
        EXPECT_EQ(a.count(NoticeKind::kReply), 1) << lost;
        EXPECT_EQ(b.count(NoticeKind::kReady), 1) << lost;
    }
}

TEST_F(Manager2, DoubledMessagesChangeNothing) {
    fate = [](const Flight&) { return 2; };
    users_agree();
    active = a.manager.request(kB, request_from(10), 0, now);
    pass(2 * kSecond);
    EXPECT_EQ(b.count(NoticeKind::kRequest), 1);
    EXPECT_EQ(a.count(NoticeKind::kReply), 1);
    EXPECT_EQ(b.count(NoticeKind::kReady), 1);
    EXPECT_EQ(a.manager.disconnect(active, now), 0);
    settle();
    EXPECT_EQ(b.manager.disconnect(passive, now), 0);
    pass(kSecond);
    EXPECT_EQ(a.count(NoticeKind::kDisconnected), 1);
    EXPECT_EQ(b.count(NoticeKind::kDisconnected), 1);
    EXPECT_EQ(a.count(NoticeKind::kTimewaitEnd), 1);
    EXPECT_EQ(b.count(NoticeKind::kTimewaitEnd), 1);
}

TEST_F(Manager2, NobodyThereIsUnreachableInBoundedTime) {
    fate = [](const Flight&) { return 0; };
    active = a.manager.request(kB, request_from(10), 0, now);
    pass(16 * kSecond);
    EXPECT_TRUE(a.notices.empty());
    pass(2 * kSecond);
    ASSERT_EQ(a.count(NoticeKind::kUnreachable), 1);
    EXPECT_EQ(a.last().status, -ETIMEDOUT);
    EXPECT_EQ(sent, 17);  // the request, 15 repetitions, and the word that it is given up
    a.manager.close(active, now);
    EXPECT_EQ(a.manager.size(), 0U);
}

TEST_F(Manager2, ASlowUserIsWaitedForOnceAskedAgain) {
    active = a.manager.request(kB, request_from(10), 0, now);
    pass(60 * kSecond);
    ASSERT_EQ(b.count(NoticeKind::kRequest), 1);
    EXPECT_EQ(sent, 3);  // REQ, REQ again, MRA
    EXPECT_TRUE(a.notices.empty());
    users_agree();
    EXPECT_EQ(b.manager.accept(b.notices[0].id, reply_from(20), 0, now), 0);
    settle();
    EXPECT_EQ(a.manager.state(active), State::kEstablished);
}

TEST_F(Manager2, ASlowActiveUserIsWaitedForToo) {
    users_agree();
    a.react = [](const Notice&) {};
    active = a.manager.request(kB, request_from(10), 0, now);
    pass(30 * kSecond);
    EXPECT_EQ(a.manager.state(active), State::kRepReceived);
    EXPECT_EQ(b.manager.state(passive), State::kRepSent);
    EXPECT_EQ(a.manager.ready(active, now), 0);
    settle();
    EXPECT_EQ(b.manager.state(passive), State::kEstablished);
}

TEST_F(Manager2, RejectionBringsReasonAndData) {
    b.react = [this](const Notice& n) {
        const std::uint8_t data[] = {9, 8, 7};
        EXPECT_EQ(b.manager.reject(n.id, 28, data, now), 0);
        b.manager.close(n.id, now);
    };
    active = a.manager.request(kB, request_from(10), 0, now);
    pass(kSecond);
    ASSERT_EQ(a.count(NoticeKind::kRejected), 1);
    EXPECT_EQ(a.last().status, 28);
    EXPECT_EQ(std::get<wire::CmReject>(a.last().mad.body).private_data[2], 7);
    EXPECT_EQ(b.manager.size(), 0U);
    EXPECT_EQ(a.manager.state(active), State::kEnded);
}

TEST_F(Manager2, ALostRejectionIsRepeated) {
    fate = lose(1);
    b.react = [this](const Notice& n) {
        EXPECT_EQ(b.manager.reject(n.id, 28, {}, now), 0);
        b.manager.close(n.id, now);
    };
    active = a.manager.request(kB, request_from(10), 0, now);
    pass(2 * kSecond);
    EXPECT_EQ(a.count(NoticeKind::kRejected), 1);
}

TEST_F(Manager2, ActiveUserMayRefuseTheReply) {
    users_agree();
    a.react = [this](const Notice& n) { EXPECT_EQ(a.manager.reject(n.id, 28, {}, now), 0); };
    active = a.manager.request(kB, request_from(10), 0, now);
    settle();
    EXPECT_EQ(b.count(NoticeKind::kRejected), 1);
    EXPECT_EQ(b.manager.state(passive), State::kEnded);
}

TEST_F(Manager2, EndAsTheManualHasIt) {
    connect();
    EXPECT_EQ(a.manager.disconnect(active, now), 0);
    settle();
    EXPECT_EQ(b.count(NoticeKind::kDisconnected), 1);
    EXPECT_EQ(a.count(NoticeKind::kDisconnected), 0);  // until the other user has answered
    EXPECT_EQ(b.manager.state(passive), State::kDreqReceived);
    EXPECT_EQ(b.manager.disconnect(passive, now), 0);
    settle();
    EXPECT_EQ(a.count(NoticeKind::kDisconnected), 1);
    EXPECT_EQ(a.manager.state(active), State::kTimewait);
    pass(kSecond);
    EXPECT_EQ(a.count(NoticeKind::kTimewaitEnd), 1);
    EXPECT_EQ(a.manager.disconnect(active, now), EINVAL);
    a.manager.close(active, now);
    b.manager.close(passive, now);
    EXPECT_EQ(a.manager.size() + b.manager.size(), 0U);
}

TEST_F(Manager2, BothEndAtOnce) {
    connect();
    EXPECT_EQ(a.manager.disconnect(active, now), 0);
    EXPECT_EQ(b.manager.disconnect(passive, now), 0);
    pass(kSecond);
    EXPECT_EQ(a.count(NoticeKind::kDisconnected), 1);
    EXPECT_EQ(b.count(NoticeKind::kDisconnected), 1);
    EXPECT_EQ(a.manager.state(active), State::kEnded);
    EXPECT_EQ(b.manager.state(passive), State::kEnded);
}

TEST_F(Manager2, LostDisconnectsAreRepeated) {
    for (int lost = 0; lost < 2; ++lost) {
        fate = [](const Flight&) { return 1; };
        a.notices.clear();
        connect();
        fate = lose(lost);
        b.react = [this](const Notice& n) {
            if (n.kind == NoticeKind::kDisconnected) {
                EXPECT_EQ(b.manager.disconnect(n.id, now), 0);
            }
        };
        EXPECT_EQ(a.manager.disconnect(active, now), 0);
        pass(3 * kSecond);
        EXPECT_EQ(a.count(NoticeKind::kDisconnected), 1) << lost;
        EXPECT_EQ(a.last().kind, NoticeKind::kTimewaitEnd) << lost;
        a.manager.close(active, now);
        b.manager.close(passive, now);
    }
}

TEST_F(Manager2, EndWithoutAnswerTimesOut) {
    connect();
    fate = [](const Flight&) { return 0; };
    EXPECT_EQ(a.manager.disconnect(active, now), 0);
    pass(20 * kSecond);
    ASSERT_EQ(a.count(NoticeKind::kDisconnected), 1);
    EXPECT_EQ(a.count(NoticeKind::kTimewaitEnd), 1);
    EXPECT_EQ(a.manager.state(active), State::kEnded);
}

TEST_F(Manager2, DisconnectBeforeTheReadyMessageArrives) {
    users_agree();
    fate = lose(2);  // the RTU
    active = a.manager.request(kB, request_from(10), 0, now);
    settle();
    EXPECT_EQ(a.manager.disconnect(active, now), 0);
    settle();
    EXPECT_EQ(b.count(NoticeKind::kReady), 1);
    EXPECT_EQ(b.count(NoticeKind::kDisconnected), 1);
    EXPECT_EQ(b.last().kind, NoticeKind::kDisconnected);
}

TEST_F(Manager2, DataBeforeTheReadyMessageEstablishes) {
    users_agree();
    fate = lose(2);
    active = a.manager.request(kB, request_from(10), 0, now);
    settle();
    EXPECT_EQ(b.manager.establish(passive, now), 0);
    EXPECT_EQ(b.manager.establish(passive, now), EISCONN);
    pass(3 * kSecond);
    EXPECT_EQ(b.count(NoticeKind::kReady), 1);
}

TEST_F(Manager2, ClosingTellsThePeerInEveryState) {
    // Asked, not yet answered: the passive side hears that it is given up.
    active = a.manager.request(kB, request_from(10), 0, now);
    settle();
    a.manager.close(active, now);
    settle();
    EXPECT_EQ(b.count(NoticeKind::kRejected), 1);
    EXPECT_EQ(b.last().status, 4);
    // Asked, and the passive side lets go of it.
    active = a.manager.request(kB, request_from(11), 0, now);
    settle();
    b.manager.close(b.last().id, now);
    settle();
    EXPECT_EQ(a.count(NoticeKind::kRejected), 1);
    EXPECT_EQ(a.last().status, 28);
    // Connected.
    connect();
    a.manager.close(active, now);
    settle();
    EXPECT_EQ(b.count(NoticeKind::kDisconnected), 1);
    pass(kSecond);
    EXPECT_EQ(a.manager.deadline(), std::nullopt);
    b.manager.close(passive, now);
    pass(kSecond);
}

TEST_F(Manager2, ClosedConnectionsSayNothing) {
    connect();
    const auto heard = a.notices.size();
    a.manager.close(active, now);
    pass(20 * kSecond);
    EXPECT_EQ(a.notices.size(), heard);
    EXPECT_EQ(a.manager.size(), 0U);
}

TEST_F(Manager2, ARequestWithAQpThatIsConnectedIsStale) {
    connect();
    // The active side's process has begun anew and knows nothing of the connection.
    Side again{kA, 9000};
    const auto id = again.manager.request(kB, request_from(10), 0, now);
    for (const auto& action : again.manager.take_actions())
        b.manager.on_mad(kA, std::get<SendAction>(action).bytes, now);
    bool refused = false;
    for (int round = 0; round < 3; ++round) {
        for (const auto& action : b.manager.take_actions()) {
            if (const auto* send = std::get_if<SendAction>(&action))
                again.manager.on_mad(kB, send->bytes, now);
            else
                b.notices.push_back(std::get<Notice>(action));
        }
        for (const auto& action : again.manager.take_actions()) {
            if (const auto* send = std::get_if<SendAction>(&action)) {
                b.manager.on_mad(kA, send->bytes, now);
            } else {
                const auto& notice = std::get<Notice>(action);
                refused = notice.kind == NoticeKind::kRejected && notice.status == 10;
            }
        }
    }
    EXPECT_TRUE(refused);
    EXPECT_EQ(again.manager.state(id), State::kEnded);
    EXPECT_EQ(b.count(NoticeKind::kRequest), 1);
    EXPECT_EQ(b.count(NoticeKind::kDisconnected), 1);
}

TEST_F(Manager2, MessagesOfOthersAreNotTaken) {
    connect();
    wire::CmDisconnectRequest end;
    end.local_id = active;
    end.remote_id = passive;
    const Peer stranger{0, 9, 900};
    b.manager.on_mad(stranger, wire::encode_cm_mad({1, 0, end}), now);
    EXPECT_EQ(b.manager.state(passive), State::kEstablished);
    b.manager.on_mad(kA, std::vector<std::uint8_t>(256, 0xff), now);
    b.manager.on_mad(kA, {}, now);
    EXPECT_EQ(b.manager.state(passive), State::kEstablished);
}

TEST_F(Manager2, CallsInWrongStatesAreRefused) {
    EXPECT_EQ(a.manager.disconnect(77, now), EINVAL);
    EXPECT_EQ(a.manager.accept(77, {}, 0, now), EINVAL);
    EXPECT_EQ(a.manager.reject(77, 28, {}, now), EINVAL);
    EXPECT_EQ(a.manager.ready(77, now), EINVAL);
    active = a.manager.request(kB, request_from(10), 0, now);
    EXPECT_EQ(a.manager.accept(active, {}, 0, now), EINVAL);
    EXPECT_EQ(a.manager.ready(active, now), EINVAL);
    EXPECT_EQ(a.manager.disconnect(active, now), EINVAL);
    settle();
    EXPECT_EQ(b.manager.ready(b.last().id, now), EINVAL);
    EXPECT_EQ(b.manager.establish(b.last().id, now), EINVAL);
    EXPECT_EQ(b.manager.answer_datagram(b.last().id, {}, now), EINVAL);
}

TEST_F(Manager2, ADeadPeerEndsEverythingWithIt) {
    connect();
    const auto waiting = a.manager.request(kB, request_from(11), 0, now);
    fate = [](const Flight&) { return 0; };
    a.manager.on_peer_lost(kB, now);
    settle();
    EXPECT_EQ(a.count(NoticeKind::kDisconnected), 1);
    EXPECT_EQ(a.count(NoticeKind::kRejected), 1);
    EXPECT_EQ(a.manager.state(waiting), State::kEnded);
    pass(kSecond);
    EXPECT_EQ(a.count(NoticeKind::kTimewaitEnd), 1);
    EXPECT_EQ(a.manager.deadline(), std::nullopt);
}

wire::CmDatagramRequest datagram() {
    wire::CmDatagramRequest m;
    m.service_id = wire::cm_service_id(0x0111, 7);
    return m;
}

TEST_F(Manager2, DatagramsAreAnswered) {
    b.react = [this](const Notice& n) {
        ASSERT_EQ(n.kind, NoticeKind::kDatagramRequest);
        wire::CmDatagramReply m;
        m.qp_number = 33;
        m.qkey = 44;
        EXPECT_EQ(b.manager.answer_datagram(n.id, m, now), 0);
    };
    for (int lost = 0; lost < 3; ++lost) {
        a.notices.clear();
        fate = lose(lost);
        const auto id = a.manager.request_datagram(kB, datagram(), now);
        pass(2 * kSecond);
        ASSERT_EQ(a.count(NoticeKind::kDatagramReply), 1) << lost;
        EXPECT_EQ(std::get<wire::CmDatagramReply>(a.last().mad.body).qp_number, 33U);
        EXPECT_EQ(a.manager.state(id), State::kEnded);
        a.manager.close(id, now);
    }
    pass(10 * kSecond);
    EXPECT_EQ(b.count(NoticeKind::kDatagramRequest), 3);
    EXPECT_EQ(a.manager.size() + b.manager.size(), 0U);
}

TEST_F(Manager2, DatagramRequestsTimeOut) {
    fate = [](const Flight&) { return 0; };
    a.manager.request_datagram(kB, datagram(), now);
    pass(20 * kSecond);
    ASSERT_EQ(a.count(NoticeKind::kUnreachable), 1);
    EXPECT_EQ(a.last().status, -ETIMEDOUT);
}

/// Hundreds of connections over a channel that loses, doubles and reorders: whatever happens, none
/// is left in between, and nothing is left of those that were closed.
TEST_F(Manager2, NothingIsLeftBehindByABadChannel) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        Rng rng(seed);
        fate = [&](const Flight&) {
            if (flights.size() > 1 && rng.below(4) == 0) std::swap(flights.front(), flights.back());
            const auto roll = rng.below(10);
            return roll < 3 ? 0 : roll < 8 ? 1 : 2;
        };
        b.react = [&](const Notice& n) {
            if (n.kind == NoticeKind::kRequest) {
                if (rng.below(5) == 0)
                    b.manager.reject(n.id, 28, {}, now);
                else
                    b.manager.accept(n.id, reply_from(20), 0, now);
            } else if (n.kind == NoticeKind::kDisconnected) {
                b.manager.disconnect(n.id, now);
            }
        };
        a.react = [&](const Notice& n) {
            if (n.kind == NoticeKind::kReply) {
                a.manager.ready(n.id, now);
                if (rng.below(2) == 0) a.manager.disconnect(n.id, now);
            }
        };
        std::vector<Id> ids;
        for (std::uint32_t i = 0; i < 30; ++i) {
            ids.push_back(a.manager.request(
                kB, request_from(static_cast<std::uint32_t>(seed) * 100 + i), 0, now));
            pass(rng.below(200) * kMs);
        }
        pass(200 * kSecond);
        for (const auto id : ids) {
            const auto state = a.manager.state(id);
            EXPECT_TRUE(state == State::kEstablished || state == State::kEnded)
                << "seed " << seed << " state " << static_cast<int>(state);
            a.manager.close(id, now);
        }
        pass(100 * kSecond);
        std::vector<Id> left;
        for (const auto& n : b.notices)
            if (n.kind == NoticeKind::kRequest) left.push_back(n.id);
        for (const auto id : left)
            b.manager.close(id, now);
        pass(100 * kSecond);
        EXPECT_EQ(a.manager.size(), 0U) << "seed " << seed;
        EXPECT_EQ(b.manager.size(), 0U) << "seed " << seed;
        a.notices.clear();
        b.notices.clear();
    }
}

}  // namespace
}  // namespace weir::connection

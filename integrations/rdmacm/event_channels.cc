// SPDX-License-Identifier: Apache-2.0
// Event channels: making, waiting, acknowledging; and what sync identifiers do with them.
#include <fcntl.h>
#include <poll.h>

#include <cerrno>

#include "abi.h"
#include "cm.h"

namespace weir::rdmacm {
namespace {

/// Before a program is put to sleep for an event, MADs are looked for this long: waking costs more.
constexpr connection::Time kSpinNs = 50'000;

/// The channel that this thread last asked and whose descriptor blocks; null once it destroyed it.
thread_local const rdma_event_channel* waited_at = nullptr;

/// What is left to do for an event when the program takes it: the active side's QP is made ready,
/// and the program hears that the connection stands. A QP that cannot be is a failed connection.
void finish(Cm& cm, Event& event) {
    if (event.abi.event == RDMA_CM_EVENT_CONNECT_REQUEST) {
        auto* child = cm.find(event.abi.id);
        auto* listener = cm.find(event.abi.listen_id);
        if (child == nullptr || listener == nullptr || !listener->sync) return;
        if (auto* own = cm.make_channel(); own != nullptr) {
            child->sync = true;
            cm.move_events(*child, *own);
        }
        return;
    }
    if (event.group != nullptr) {
        if (auto* id = cm.find(event.abi.id); id != nullptr) finish_join(*id, event);
        return;
    }
    if (event.abi.event != RDMA_CM_EVENT_CONNECT_RESPONSE || event.abi.id->qp == nullptr) return;
    auto* id = cm.find(event.abi.id);
    if (id == nullptr) return;
    int error = move_to_ready(*id);
    if (error == 0) error = cm.manager().ready(id->connection, Cm::now());
    if (error == 0) {
        id->step = Step::kConnected;
        event.abi.event = RDMA_CM_EVENT_ESTABLISHED;
    } else {
        cm.manager().reject(id->connection, static_cast<std::uint16_t>(wire::CmReason::kConsumer),
                            {}, Cm::now());
        id->step = Step::kDisconnected;
        event.abi.event = RDMA_CM_EVENT_CONNECT_ERROR;
        event.abi.status = -error;
    }
    cm.act();
}

/// A thread of the program that waits at a channel.
class Waiter {
  public:
    explicit Waiter(rdma_event_channel* channel) : abi_(channel) {}
    ~Waiter() {
        if (!looks_) return;  // it is so only after an error
        const std::lock_guard guard(Cm::instance().lock);
        if (auto* channel = Cm::instance().find_channel(abi_); channel != nullptr)
            be_looker(*channel, false);
    }
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;

    /// The descriptor of the channel, once look() found the channel: read there, because another
    /// thread may destroy the channel between two looks.
    [[nodiscard]] int fd() const { return fd_; }

    /// The next event, or EAGAIN, or EINVAL if there is no such channel. With `stays`, the caller
    /// will look again at once if there is none; else what comes makes the descriptor readable.
    int look(rdma_cm_event** out, bool stays) {
        auto& cm = Cm::instance();
        const std::lock_guard guard(cm.lock);
        auto* channel = cm.find_channel(abi_);
        if (channel == nullptr) {
            looks_ = false;
            return EINVAL;
        }
        fd_ = channel->abi.fd;
        auto* event = cm.take(*channel);
        if (event == nullptr) {
            be_looker(*channel, true);
            cm.look();
            event = cm.take(*channel);
        }
        if (event == nullptr && stays) return EAGAIN;
        be_looker(*channel, false);
        if (event == nullptr) {
            cm.park();
            return EAGAIN;
        }
        finish(cm, *event);
        *out = &event->abi;
        return 0;
    }

  private:
    void be_looker(Channel& channel, bool looks) {
        if (looks == looks_) return;
        looks_ = looks;
        channel.lookers += looks ? 1U : ~0U;
        Cm::signal(channel);
    }

    rdma_event_channel* abi_;
    int fd_ = -1;
    bool looks_ = false;
};

/// What the kernel does with a thread that waits at a channel which another thread destroys: it
/// waits on, until a signal or the end of the program. Programs count on it, rping is one: they end
/// their work while a thread of theirs waits for events, and take an error there for a failure.
int wait_for_ever() {
    poll(nullptr, 0, -1);
    return errno;
}

}  // namespace

int wait_for_event(rdma_event_channel* abi, rdma_cm_event** out) {
    Waiter waiter(abi);
    const auto look = [&](bool stays) {
        return ibverbs::fenced([&] { return waiter.look(out, stays); });
    };
    const int first = look(true);
    if (first == EINVAL) return waited_at == abi ? wait_for_ever() : EINVAL;
    if (first != EAGAIN && waited_at == abi) return first;
    const int flags = fcntl(waiter.fd(), F_GETFL);
    const bool blocks = flags >= 0 && (flags & O_NONBLOCK) == 0;
    waited_at = blocks ? abi : nullptr;
    if (first != EAGAIN) return first;
    if (flags < 0) return EBADF;
    const auto until = Cm::now() + kSpinNs;
    for (;;) {
        const bool stays = blocks && Cm::now() < until;
        const int error = look(stays);
        if (error == EINVAL && blocks) return wait_for_ever();
        if (error != EAGAIN) return error;
        if (!blocks) return EAGAIN;
        if (stays) continue;
        pollfd readable{waiter.fd(), POLLIN, 0};
        if (poll(&readable, 1, -1) < 0) return errno;
    }
}

int complete(rdma_cm_id* id, bool sync) {
    if (!sync) return 0;
    auto& cm = Cm::instance();
    if (id->event != nullptr) {
        const std::lock_guard guard(cm.lock);
        cm.acknowledge(id->event);
        id->event = nullptr;
    }
    if (const int error = wait_for_event(id->channel, &id->event); error != 0) return error;
    const int status = id->event->status;
    if (status == 0) return 0;
    if (id->event->event == RDMA_CM_EVENT_REJECTED) return ECONNREFUSED;
    return status < 0 ? -status : EPROTO;
}

}  // namespace weir::rdmacm

using namespace weir::rdmacm;  // The functions below are the C ABI, outside any namespace.
using weir::ibverbs::fail_null;
using weir::ibverbs::fenced;
using weir::ibverbs::minus_one_if;

extern "C" {

rdma_event_channel* rdma_create_event_channel(void) {
    rdma_event_channel* out = nullptr;
    const int error = fenced([&] {
        auto& cm = Cm::instance();
        const std::lock_guard guard(cm.lock);
        if (const int unopened = cm.open_devices(); unopened != 0) return unopened;
        auto* channel = cm.make_channel();
        if (channel == nullptr) return errno;
        out = &channel->abi;
        return 0;
    });
    return error == 0 ? out : fail_null<rdma_event_channel>(error);
}

void rdma_destroy_event_channel(rdma_event_channel* abi) {
    fenced([&] {
        auto& cm = Cm::instance();
        const std::lock_guard guard(cm.lock);
        if (auto* channel = cm.find_channel(abi); channel != nullptr) cm.drop_channel(*channel);
        if (waited_at == abi) waited_at = nullptr;
        return 0;
    });
}

int rdma_get_cm_event(rdma_event_channel* channel, rdma_cm_event** event) {
    if (channel == nullptr || event == nullptr) return minus_one_if(EINVAL);
    return minus_one_if(wait_for_event(channel, event));
}

int rdma_ack_cm_event(rdma_cm_event* event) {
    return minus_one_if(fenced([&] {
        auto& cm = Cm::instance();
        const std::lock_guard guard(cm.lock);
        return event != nullptr && cm.acknowledge(event) ? 0 : EINVAL;
    }));
}

}  // extern "C"

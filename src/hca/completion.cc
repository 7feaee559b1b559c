// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "hca/engine.h"
#include "runtime/real/event_counter.h"

namespace weir::hca {

namespace {
/// Before a program is put to sleep for an event, the fabric is looked at for this long: waking
/// costs more.
constexpr std::uint64_t kSpinNs = 30'000;

bool readable(int fd) {
    pollfd entry{fd, POLLIN, 0};
    return poll(&entry, 1, 0) == 1;
}
}  // namespace

struct CompletionChannel::State {
    std::mutex lock;
    std::deque<CompletionQueue*> events;
    /// Places whose progress the waiter depends on.
    std::vector<std::weak_ptr<Attachment>> attachments;
};

int CompletionChannel::create(std::unique_ptr<CompletionChannel>& out) {
    std::unique_ptr<CompletionChannel> channel(new CompletionChannel);
    channel->state_ = std::make_unique<State>();
    channel->fd_ = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
    if (channel->fd_ < 0) return errno;
    out = std::move(channel);
    return 0;
}

CompletionChannel::~CompletionChannel() {
    if (fd_ >= 0) close(fd_);
}

void CompletionChannel::depend_on(const std::shared_ptr<Attachment>& attachment) {
    const std::lock_guard guard(state_->lock);
    for (const auto& known : state_->attachments)
        if (known.lock() == attachment) return;
    state_->attachments.push_back(attachment);
}

void CompletionChannel::before_sleep() {
    std::vector<std::shared_ptr<Attachment>> places;
    {
        const std::lock_guard guard(state_->lock);
        for (const auto& weak : state_->attachments)
            if (auto place = weak.lock(); place != nullptr) places.push_back(std::move(place));
    }
    const auto until = now_ns() + kSpinNs;
    while (!readable(fd_) && now_ns() < until) {
        for (const auto& place : places) {
            if (!place->usable()) continue;
            const std::lock_guard guard(place->lock);
            place->progress();
        }
    }
    for (const auto& place : places)
        if (place->usable()) place->park_for_wait();
}

int CompletionChannel::take(CompletionQueue*& cq) {
    for (;;) {
        if (!readable(fd_)) before_sleep();
        if (!runtime::take_event(fd_)) return errno;
        const std::lock_guard guard(state_->lock);
        if (state_->events.empty()) continue;  // its CQ was destroyed meanwhile
        cq = state_->events.front();
        state_->events.pop_front();
        return 0;
    }
}

void CompletionChannel::raise(CompletionQueue* cq) {
    const std::lock_guard guard(state_->lock);
    state_->events.push_back(cq);
    runtime::raise_event(fd_);
}

void CompletionChannel::forget(CompletionQueue* cq) {
    const std::lock_guard guard(state_->lock);
    auto gone = std::erase(state_->events, cq);
    for (; gone > 0 && readable(fd_); --gone)
        runtime::take_event(fd_);
}

CompletionQueue::CompletionQueue(std::unique_ptr<State> state) : state_(std::move(state)) {
    state_->self = this;
}
CompletionQueue::~CompletionQueue() = default;

void CompletionQueue::State::push(const ibv_wc& wc, bool solicited) {
    if (count == capacity && ignore_overrun) {
        first = first + 1 == capacity ? 0 : first + 1;  // the oldest makes room
        --count;
    }
    if (count == capacity) {
        if (!overrun) hca->raise({IBV_EVENT_CQ_ERR, self, nullptr, nullptr, 0});
        overrun = true;
        return;
    }
    const auto at = (first + count++) % capacity;
    ring[at] = wc;
    if (!stamps.empty()) stamps[at] = now_ns();
    if (channel == nullptr) return;
    const bool strong = solicited || wc.status != IBV_WC_SUCCESS;
    if (armed == Armed::kAny || (armed == Armed::kSolicited && strong)) {
        armed = Armed::kNo;
        channel->raise(self);
    } else {
        untold = std::max(untold, strong ? Untold::kSolicited : Untold::kPlain);
    }
}

std::uint32_t CompletionQueue::State::take(std::uint32_t count_max, ibv_wc* out) {
    const auto taken = std::min(count, count_max);
    for (std::uint32_t i = 0; i < taken; ++i) {
        out[i] = ring[first];
        first = first + 1 == capacity ? 0 : first + 1;
    }
    count -= taken;
    if (count == 0) untold = Untold::kNone;
    return taken;
}

int CompletionQueue::poll(int count, ibv_wc* completions) {
    if (count < 0 || completions == nullptr) return -1;
    auto& a = *state_->attachment;
    if (a.inherited()) return -1;
    const std::lock_guard guard(a.lock);
    // A relaxed store would do, but other places of this process count in the same word.
    a.app_polls.store(a.app_polls.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    const auto wanted = static_cast<std::uint32_t>(count);
    auto taken = state_->take(wanted, completions);
    if (taken < wanted && a.usable()) {
        a.progress();
        taken += state_->take(wanted - taken, completions + taken);
        a.note_poll();
    }
    a.leave_to_thread();
    if (taken == 0 && state_->overrun) return -1;
    return static_cast<int>(taken);
}

int CompletionQueue::poll_stamped(ibv_wc& completion, std::uint64_t& stamp_ns) {
    auto& a = *state_->attachment;
    if (a.inherited()) return -1;
    const std::lock_guard guard(a.lock);
    a.app_polls.store(a.app_polls.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (state_->count == 0 && a.usable()) {
        a.progress();
        if (state_->count == 0) a.note_poll();
    }
    stamp_ns = state_->first_stamp();
    const auto taken = state_->take(1, &completion);
    a.leave_to_thread();
    if (taken == 0 && state_->overrun) return -1;
    return static_cast<int>(taken);
}

int CompletionQueue::arm(bool solicited_only) {
    auto& a = *state_->attachment;
    if (a.inherited()) return EINVAL;
    const std::lock_guard guard(a.lock);
    using Armed = State::Armed;
    // A wish for any completion is not narrowed by a later one for solicited only (IBTA 11.4.2.2).
    if (state_->armed != Armed::kAny)
        state_->armed = solicited_only ? Armed::kSolicited : Armed::kAny;
    using Untold = State::Untold;
    const auto least = state_->armed == Armed::kAny ? Untold::kPlain : Untold::kSolicited;
    if (state_->untold >= least && state_->channel != nullptr) {
        state_->untold = Untold::kNone;
        state_->armed = Armed::kNo;
        state_->channel->raise(state_->self);
    }
    return 0;
}

int CompletionQueue::resize(int entries) {
    if (entries <= 0 || static_cast<std::uint32_t>(entries) > kCqMax) return EINVAL;
    if (state_->attachment->inherited()) return EINVAL;
    const std::lock_guard guard(state_->attachment->lock);
    if (static_cast<std::uint32_t>(entries) < state_->count) return EINVAL;
    std::vector<ibv_wc> ring(static_cast<std::size_t>(entries));
    std::vector<std::uint64_t> stamps(state_->stamps.empty() ? 0 : ring.size());
    for (std::uint32_t i = 0; !stamps.empty() && i < state_->count; ++i)
        stamps[i] = state_->stamps[(state_->first + i) % state_->capacity];
    state_->stamps.swap(stamps);
    const auto held = state_->take(state_->count, ring.data());
    state_->ring.swap(ring);
    state_->first = 0;
    state_->count = held;
    state_->capacity = static_cast<std::uint32_t>(entries);
    return 0;
}

int CompletionQueue::entries() const {
    return static_cast<int>(state_->capacity);
}

}  // namespace weir::hca

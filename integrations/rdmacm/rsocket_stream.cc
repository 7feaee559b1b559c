// SPDX-License-Identifier: Apache-2.0
// Bytes: sending, receiving, ending. How connections are made is rsocket_connect.cc.
#include "rsocket_stream.h"

#include <poll.h>
#include <sys/mman.h>

#include <cerrno>

#include "rsocket_service.h"

namespace weir::rdmacm {
namespace {

/// How long a closed socket is kept for what it sent to arrive, unless SO_LINGER says otherwise: a
/// peer that does not take it in within this time is stopped or out of reach.
constexpr Time kKeepNs = 10'000'000'000;
/// How long close() itself looks for it, since it rarely takes longer.
constexpr Time kBrieflyNs = 1'000'000;

}  // namespace

StreamSocket::~StreamSocket() {
    drop_connection();
    if (token_ != 0) Sockets::instance().forget(token_);
    for (const auto& request : requests_)
        rdma_destroy_id(request.id);
}

// ---------------------------------------------------------------- bytes

int StreamSocket::check_connected() const {
    switch (phase_) {
        case Phase::kConnected:
            return 0;
        case Phase::kConnecting:
            return EAGAIN;
        default:
            return ENOTCONN;
    }
}

/// Why nothing can be sent; 0 if it can.
int StreamSocket::send_error() {
    if (error_ != 0) return take_error();
    return finished_ || lost_ ? EPIPE : 0;
}

int StreamSocket::send(Cursor& from, int flags, Letter& letter) {
    std::unique_lock guard(lock);
    if ((flags & MSG_OOB) != 0) return EOPNOTSUPP;
    if (letter.to != nullptr && phase_ == Phase::kConnected) return EISCONN;
    const auto deadline = deadline_of(options_.send_timeout);
    const bool waits = may_wait(flags);
    int error = 0;
    if (phase_ == Phase::kConnecting)
        error = wait(guard, waits, deadline, [this] { return phase_ != Phase::kConnecting; });
    if (error == 0 && phase_ != Phase::kConnected)
        error = error_ != 0 ? take_error() : check_connected();
    if (error != 0 || (error_ == 0 && from.remaining() == 0)) return error;
    for (;;) {
        error = wait(guard, waits, deadline,
                     [this] { return error_ != 0 || finished_ || lost_ || link_->writable(); });
        if (error == 0) error = send_error();
        if (error == 0) link_->send(from);
        if (error != 0 || from.remaining() == 0) break;
    }
    // What was taken counts; the error comes back with the next call.
    if (error == 0 || from.done() == 0) return error;
    if (error != EAGAIN && error != EINTR && error != EPIPE) error_ = error;
    return 0;
}

int StreamSocket::receive(Cursor& to, int flags, Letter& letter) {
    std::unique_lock guard(lock);
    if ((flags & MSG_OOB) != 0) return EINVAL;
    const auto deadline = deadline_of(options_.receive_timeout);
    const bool waits = may_wait(flags);
    const bool peek = (flags & MSG_PEEK) != 0;
    int error = 0;
    if (phase_ == Phase::kConnecting)
        error = wait(guard, waits, deadline, [this] { return phase_ != Phase::kConnecting; });
    if (error == 0 && phase_ != Phase::kConnected)
        error = error_ != 0 ? take_error() : check_connected();
    if (error != 0 || to.remaining() == 0) return error;
    // With MSG_WAITALL a peek waits until there is as much to see, if there can be.
    const bool all = (flags & MSG_WAITALL) != 0;
    for (;;) {
        const std::size_t least = all && peek ? to.remaining() : 1;
        error = wait(guard, waits, deadline, [&] {
            return error_ != 0 || lost_ || deaf_ || link_->fin_received() ||
                   link_->readable_bytes() >= least || link_->full();
        });
        if (deaf_) break;
        const auto before = to.done();
        if (link_->readable()) {
            error = 0;
            link_->receive(to, peek);
        }
        const bool came = to.done() > before;
        if (!came && error == 0 && !link_->fin_received()) error = take_error();
        if (error != 0 || !came || peek || !all || to.remaining() == 0) break;
    }
    letter.full_length = to.done();
    if (to.done() == 0) return error;
    if (error != 0 && error != EAGAIN && error != EINTR) error_ = error;
    return 0;
}

int StreamSocket::shutdown(int how) {
    const std::lock_guard guard(lock);
    if (how != SHUT_RD && how != SHUT_WR && how != SHUT_RDWR) return EINVAL;
    if (phase_ == Phase::kListening && how != SHUT_WR) {
        end_listening();
        return 0;
    }
    if (phase_ != Phase::kConnected || lost_) return ENOTCONN;
    if (how != SHUT_WR) {
        deaf_ = true;
        link_->end_receiving();
    }
    if (how != SHUT_RD) {
        finished_ = true;
        link_->end_sending();
    }
    wake_sleepers();
    return 0;
}

// ---------------------------------------------------------------- moving on

bool StreamSocket::progress() {
    if (phase_ != Phase::kConnected || lost_) return false;
    const bool any = link_->progress();
    if (link_->broken()) lose(ECONNRESET);
    return any || lost_;
}

/// The connection is over. What has come can still be read.
void StreamSocket::lose(int error) {
    if (lost_) return;
    lost_ = true;
    if (!link_->fin_received()) error_ = error;
    wake_sleepers();
}

short StreamSocket::events() {
    short out = 0;
    const auto add = [&out](int bits) { out = static_cast<short>(out | bits); };
    if (error_ != 0) add(POLLERR);
    switch (phase_) {
        case Phase::kFresh:
            add(POLLOUT | POLLWRNORM | POLLHUP);
            if (error_ != 0) add(POLLIN | POLLRDNORM);
            break;
        case Phase::kListening:
            if (!ready_.empty()) add(POLLIN | POLLRDNORM);
            break;
        case Phase::kConnecting:
            break;
        case Phase::kEnded:
            add(POLLIN | POLLRDNORM | POLLHUP);
            break;
        case Phase::kConnected: {
            const bool no_more = lost_ || link_->fin_received();
            if (no_more || deaf_ || link_->readable()) add(POLLIN | POLLRDNORM);
            if (no_more || deaf_) add(POLLRDHUP);
            if (lost_ || finished_ || link_->writable()) add(POLLOUT | POLLWRNORM);
            // A peer that ended in order and is gone leaves our own end open, until we try it.
            const bool cut_off = lost_ && !link_->fin_received();
            if (cut_off || (no_more && finished_)) add(POLLHUP);
        }
    }
    return out;
}

void StreamSocket::prepare_sleep() {
    if (phase_ == Phase::kConnected && !lost_) link_->arm();
}

int StreamSocket::wake_fd() const {
    return phase_ == Phase::kConnected && !lost_ ? link_->wake_fd() : -1;
}

void StreamSocket::after_sleep() {
    if (link_ != nullptr) link_->take_wake_ups();
}

// ---------------------------------------------------------------- closing

bool StreamSocket::has_finished() const {
    return phase_ != Phase::kConnected || lost_ || link_->all_sent();
}

void StreamSocket::abandon() {
    lost_ = true;
    if (phase_ == Phase::kConnected) rdma_disconnect(id_);
}

void StreamSocket::close() {
    std::unique_lock guard(lock);
    if (phase_ == Phase::kListening) end_listening();
    const auto& on_close = options_.on_close;
    const bool at_once = on_close.l_onoff != 0 && on_close.l_linger == 0;
    if (phase_ == Phase::kConnected && !lost_ && !at_once) {
        finished_ = true;
        deaf_ = true;
        link_->end_receiving();
        link_->end_sending();
        linger(guard);
    }
    closed_ = true;
    wake_sleepers();
    if (has_finished() || at_once) return;
    guard.unlock();
    Sockets::instance().keep(shared_from_this(), time_now() + kKeepNs);
}

/// Waits for what was sent: for as long as SO_LINGER wants it, or for a moment.
void StreamSocket::linger(std::unique_lock<std::mutex>& guard) {
    const auto& on_close = options_.on_close;
    const auto now = time_now();
    const bool asked = on_close.l_onoff != 0 && may_wait(0);
    const auto seconds = static_cast<Time>(on_close.l_linger);
    const auto deadline = now + (asked ? seconds * 1'000'000'000ULL : kBrieflyNs);
    wait(guard, true, deadline, [this] { return has_finished(); });
}

// ---------------------------------------------------------------- memory that the peer writes to

int StreamSocket::map(void* address, std::size_t length, int protection, off_t wanted, off_t& out) {
    const std::lock_guard guard(lock);
    if (phase_ != Phase::kConnected) return ENOTCONN;
    if (address == nullptr || length == 0 || wanted < -1) return EINVAL;
    return link_->map(address, length, (protection & PROT_WRITE) != 0, wanted, out);
}

int StreamSocket::unmap(void* address, std::size_t length) {
    const std::lock_guard guard(lock);
    return link_ == nullptr ? EINVAL : link_->unmap(address, length);
}

int StreamSocket::write_mapped(Cursor& from, off_t offset, int flags) {
    std::unique_lock guard(lock);
    if (const int error = check_connected(); error != 0) return error;
    if (offset < 0) return EINVAL;
    const auto deadline = deadline_of(options_.send_timeout);
    auto at = static_cast<std::uint64_t>(offset);
    int error = 0;
    while (error == 0 && from.remaining() > 0) {
        error = wait(guard, may_wait(flags), deadline,
                     [this] { return error_ != 0 || finished_ || lost_ || link_->write_room(); });
        if (error == 0) error = send_error();
        if (error == 0) error = link_->write_mapped(from, at);
    }
    return from.done() > 0 ? 0 : error;
}

}  // namespace weir::rdmacm

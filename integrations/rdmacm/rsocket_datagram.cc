// SPDX-License-Identifier: Apache-2.0
#include "rsocket_datagram.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "cm.h"
#include "rsocket/message.h"

namespace weir::rdmacm {
namespace {

/// A port space of their own.
constexpr std::uint16_t kPortSpace = 0x01f0;
constexpr std::uint32_t kQkey = 0x57525331;
constexpr std::uint16_t kFirstEphemeral = 32768;
constexpr std::uint16_t kLastEphemeral = 60999;

std::uintptr_t number_of(const void* address) {
    return reinterpret_cast<std::uintptr_t>(address);
}

int errno_or_no_memory() {
    return errno != 0 ? errno : ENOMEM;
}

}  // namespace

DatagramSocket::~DatagramSocket() {
    if (claimed_) weir_service_release(device_->verbs(), claim_);
    for (const auto& [lid, handle] : handles_)
        ibv_destroy_ah(handle);
    if (qp_ != nullptr) ibv_destroy_qp(qp_);
    if (mr_ != nullptr) ibv_dereg_mr(mr_);
    if (cq_ != nullptr) ibv_destroy_cq(cq_);
    if (channel_ != nullptr) ibv_destroy_comp_channel(channel_);
    if (memory_ != nullptr) munmap(memory_, memory_bytes_);
}

// ---------------------------------------------------------------- making

int DatagramSocket::make_queues() {
    receives_ = std::clamp<std::uint32_t>(
        static_cast<std::uint32_t>(options_.receive_bytes) / kStride, 16, 4096);
    sends_ = std::clamp<std::uint32_t>(static_cast<std::uint32_t>(options_.send_bytes) / kStride, 4,
                                       static_cast<std::uint32_t>(options_.sends));
    memory_bytes_ = std::size_t{receives_ + sends_} * kStride;
    void* pages =
        mmap(nullptr, memory_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return ENOMEM;
    memory_ = static_cast<std::uint8_t*>(pages);
    errno = 0;
    mr_ = ibv_reg_mr(device_->pd(), memory_, memory_bytes_, IBV_ACCESS_LOCAL_WRITE);
    channel_ = ibv_create_comp_channel(device_->verbs());
    if (mr_ == nullptr || channel_ == nullptr) return errno_or_no_memory();
    fcntl(channel_->fd, F_SETFL, fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
    cq_ =
        ibv_create_cq(device_->verbs(), static_cast<int>(receives_ + sends_), nullptr, channel_, 0);
    if (cq_ == nullptr) return errno_or_no_memory();
    ibv_qp_init_attr init{};
    init.send_cq = cq_;
    init.recv_cq = cq_;
    init.cap = {sends_, receives_, 1, 1, 0};
    init.qp_type = IBV_QPT_UD;
    init.sq_sig_all = 1;
    qp_ = ibv_create_qp(device_->pd(), &init);
    if (qp_ == nullptr) return errno_or_no_memory();
    for (std::uint32_t i = 0; i < sends_; ++i)
        free_sends_.push_back(receives_ + i);
    return make_ready();
}

int DatagramSocket::make_ready() {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qkey = kQkey;
    int error =
        ibv_modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
    for (std::uint32_t slot = 0; error == 0 && slot < receives_; ++slot)
        error = post_receive(slot);
    if (error != 0) return error;
    attr.qp_state = IBV_QPS_RTR;
    if (error = ibv_modify_qp(qp_, &attr, IBV_QP_STATE); error != 0) return error;
    attr.qp_state = IBV_QPS_RTS;
    return ibv_modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

int DatagramSocket::post_receive(std::uint32_t slot) {
    ibv_sge sge{number_of(slot_at(slot)), kStride, mr_->lkey};
    ibv_recv_wr wr{};
    wr.wr_id = slot;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    return ibv_post_recv(qp_, &wr, &bad);
}

/// Takes the endpoint's port, or a free one if that is 0, and tells everybody.
int DatagramSocket::claim(Endpoint& endpoint) {
    auto& cm = Cm::instance();
    weir_service wish{};
    {
        const std::lock_guard guard(cm.lock);
        wish.token = cm.next_token();
    }
    wish.any_address = endpoint.is_any() ? 1 : 0;
    wish.shareable = options_.reuse_address ? 1 : 0;
    wish.families = endpoint.family_bit();
    if (endpoint.family == Family::kIpv6 && endpoint.is_any() && !options_.ipv6_only)
        wish.families |= WEIR_IPV4;
    const bool chosen = endpoint.port != 0;
    constexpr std::uint32_t kCount = kLastEphemeral - kFirstEphemeral + 1;
    const auto first = static_cast<std::uint32_t>(time_now() / 1000 % kCount);
    int error = EADDRINUSE;
    for (std::uint32_t i = 0; error == EADDRINUSE && i < (chosen ? 1 : kCount); ++i) {
        if (!chosen)
            endpoint.port = static_cast<std::uint16_t>(kFirstEphemeral + (first + i) % kCount);
        wish.service_id = wire::cm_service_id(kPortSpace, endpoint.port);
        error = weir_service_claim(device_->verbs(), &wish, &claim_);
    }
    if (error != 0) return error == ENOSPC ? ENOMEM : error;
    error = weir_service_listen(device_->verbs(), claim_, qp_->qp_num);
    claimed_ = error == 0;
    if (error != 0) weir_service_release(device_->verbs(), claim_);
    return error;
}

int DatagramSocket::bind_to(Endpoint endpoint) {
    auto& cm = Cm::instance();
    {
        const std::lock_guard guard(cm.lock);
        if (const int error = cm.open_devices(); error != 0) return error;
        const auto* port = cm.neighbourhood().find(endpoint);
        device_ = port != nullptr ? cm.device_of_node(port->node) : cm.devices().front().get();
        if (device_ == nullptr) return EADDRNOTAVAIL;
        if (port == nullptr && !endpoint.is_any() && !is_this_machine(endpoint))
            return EADDRNOTAVAIL;
        const auto* own = cm.neighbourhood().first_of_node(device_->node());
        source_ = address_of(*own, endpoint.family, 0);
    }
    int error = qp_ == nullptr ? make_queues() : 0;
    if (error == 0) error = claim(endpoint);
    if (error != 0) return error;
    own_ = endpoint;
    source_.port = endpoint.port;
    return 0;
}

int DatagramSocket::bind(const sockaddr* address, socklen_t length) {
    const std::lock_guard guard(lock);
    if (claimed_) return EINVAL;
    Endpoint endpoint;
    if (const int error = read_address(address, length, endpoint); error != 0) return error;
    return bind_to(endpoint);
}

int DatagramSocket::connect(const sockaddr* address, socklen_t length) {
    const std::lock_guard guard(lock);
    if (address != nullptr && length >= sizeof(sa_family_t) && address->sa_family == AF_UNSPEC) {
        connected_ = false;
        return 0;
    }
    Endpoint to;
    int error = read_address(address, length, to);
    if (error == 0 && !claimed_) error = bind_to(Endpoint::any(family_of(domain())));
    if (error != 0) return error;
    error = find_route(to);
    if (error != 0 && error != ECONNREFUSED) return error;
    peer_ = to;
    peer_lid_ = route_.lid;
    connected_ = true;
    return 0;
}

int DatagramSocket::local_address(Endpoint& out) {
    const std::lock_guard guard(lock);
    out = claimed_ ? own_ : Endpoint::any(family_of(domain()));
    if (connected_ && own_.is_any()) out = source_;
    return 0;
}

int DatagramSocket::peer_address(Endpoint& out) {
    const std::lock_guard guard(lock);
    if (!connected_) return ENOTCONN;
    out = peer_;
    return 0;
}

int DatagramSocket::shutdown(int how) {
    const std::lock_guard guard(lock);
    if (!connected_) return ENOTCONN;
    deaf_ |= how != SHUT_WR;
    finished_ |= how != SHUT_RD;
    wake_sleepers();
    return 0;
}

void DatagramSocket::close() {
    std::unique_lock guard(lock);
    // Datagrams that are in our queue have still to leave it.
    constexpr Time kLeaveNs = 100'000'000;
    if (qp_ != nullptr)
        wait(guard, true, time_now() + kLeaveNs, [this] { return free_sends_.size() == sends_; });
    closed_ = true;
    wake_sleepers();
}

// ---------------------------------------------------------------- sending

/// Looks up who has this address's port. ECONNREFUSED if nobody does.
int DatagramSocket::find_route(const Endpoint& to) {
    const bool same = route_.to.ip == to.ip && route_.to.port == to.port;
    if (same && route_.process != 0 &&
        weir_process_of_qp(device_->verbs(), route_.qp_number) == route_.process)
        return 0;
    route_ = {};
    auto& cm = Cm::instance();
    const std::lock_guard guard(cm.lock);
    const auto* port = cm.neighbourhood().find(to);
    if (port == nullptr && !to.is_any() && !is_this_machine(to)) return EHOSTUNREACH;
    const auto service = wire::cm_service_id(kPortSpace, to.port);
    const auto find = [&](std::uint32_t node, weir_place& place) {
        return weir_service_find(device_->verbs(), service, to.family_bit(), node, &place);
    };
    weir_place place{};
    int error = find(port == nullptr ? WEIR_ANY_NODE : port->node, place);
    // Who takes all addresses of a host is found by its first port.
    if (error != 0 && port != nullptr && port->host != port->node) error = find(port->host, place);
    if (error != 0) return ECONNREFUSED;
    route_ = {to, place.lid, place.qp_number,
              weir_process_of_qp(device_->verbs(), place.qp_number)};
    return 0;
}

ibv_ah* DatagramSocket::address_handle(std::uint32_t lid) {
    const auto known = handles_.find(lid);
    if (known != handles_.end()) return known->second;
    ibv_ah_attr attr{};
    attr.dlid = static_cast<std::uint16_t>(lid);
    attr.sl = options_.type_of_service >> 5U;
    attr.port_num = 1;
    ibv_ah* handle = ibv_create_ah(device_->pd(), &attr);
    if (handle != nullptr) handles_.emplace(lid, handle);
    return handle;
}

/// REQUIRES: there is a route and a free slot.
int DatagramSocket::post(Cursor& from) {
    ibv_ah* handle = address_handle(route_.lid);
    if (handle == nullptr) return errno_or_no_memory();
    const auto slot = free_sends_.back();
    auto* bytes = slot_at(slot);
    std::memset(bytes, 0, kHeaderBytes);
    bytes[0] = source_.family == Family::kIpv6 ? 6 : 4;
    rsocket::put_number<2>(source_.port, bytes + 2);
    std::copy(source_.ip.begin(), source_.ip.end(), bytes + 4);
    const auto length = kHeaderBytes + from.remaining();
    from.take(bytes + kHeaderBytes, from.remaining());
    ibv_sge sge{number_of(bytes), static_cast<std::uint32_t>(length), mr_->lkey};
    ibv_send_wr wr{};
    wr.wr_id = kSendMark | slot;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.wr.ud.ah = handle;
    wr.wr.ud.remote_qpn = route_.qp_number;
    wr.wr.ud.remote_qkey = kQkey;
    ibv_send_wr* bad = nullptr;
    const int error = ibv_post_send(qp_, &wr, &bad);
    if (error == 0) free_sends_.pop_back();
    return error;
}

int DatagramSocket::send(Cursor& from, int flags, Letter& letter) {
    std::unique_lock guard(lock);
    if ((flags & MSG_OOB) != 0) return EOPNOTSUPP;
    if (error_ != 0) return take_error();
    if (finished_) return EPIPE;
    Endpoint to = peer_;
    if (letter.to != nullptr) {
        if (const int error = read_address(letter.to, letter.to_length, to); error != 0)
            return error;
    } else if (!connected_) {
        return EDESTADDRREQ;
    }
    if (from.remaining() > kBytesMax) return EMSGSIZE;
    if (!claimed_)
        if (const int error = bind_to(Endpoint::any(to.family)); error != 0) return error;
    int error = find_route(to);
    if (error == ECONNREFUSED) {
        // Nobody is there: lost, and who is connected hears of it, the next time.
        if (connected_) error_ = ECONNREFUSED;
        letter.full_length = from.remaining();
        return 0;
    }
    if (error != 0) return error;
    if (letter.to == nullptr) peer_lid_ = route_.lid;
    const auto length = from.remaining();
    error = wait(guard, may_wait(flags), deadline_of(options_.send_timeout),
                 [this] { return !free_sends_.empty(); });
    if (error == 0) error = post(from);
    if (error == 0) letter.full_length = length;
    return error;
}

// ---------------------------------------------------------------- receiving

bool DatagramSocket::comes_from_peer(const Arrival& arrival) const {
    if (!connected_) return true;
    if (arrival.from.port != peer_.port) return false;
    // By an address of the machine the peer has another name than its own.
    return peer_lid_ == 0 || arrival.lid == peer_lid_;
}

void DatagramSocket::on_arrival(const ibv_wc& wc) {
    const auto slot = static_cast<std::uint32_t>(wc.wr_id);
    const auto* bytes = slot_at(slot) + kGrhBytes;
    Arrival arrival{slot, 0, wc.slid, {}};
    bool good = wc.byte_len >= kGrhBytes + kHeaderBytes && (bytes[0] == 4 || bytes[0] == 6);
    if (good) {
        arrival.length = wc.byte_len - kGrhBytes - kHeaderBytes;
        arrival.from.family = bytes[0] == 6 ? Family::kIpv6 : Family::kIpv4;
        arrival.from.port = static_cast<std::uint16_t>(rsocket::get_number<2>(bytes + 2));
        std::copy_n(bytes + 4, arrival.from.ip.size(), arrival.from.ip.begin());
        good = comes_from_peer(arrival);
    }
    if (good)
        arrivals_.push_back(arrival);
    else
        post_receive(slot);
}

bool DatagramSocket::progress() {
    if (qp_ == nullptr) return false;
    constexpr int kBatch = 16;
    ibv_wc done[kBatch];
    bool any = false;
    int count = 0;
    do {
        count = ibv_poll_cq(cq_, kBatch, done);
        for (int i = 0; i < count; ++i) {
            if ((done[i].wr_id & kSendMark) != 0)
                free_sends_.push_back(static_cast<std::uint32_t>(done[i].wr_id));
            else if (done[i].status == IBV_WC_SUCCESS)
                on_arrival(done[i]);
        }
        any |= count > 0;
    } while (count == kBatch);
    return any;
}

int DatagramSocket::receive(Cursor& to, int flags, Letter& letter) {
    std::unique_lock guard(lock);
    if ((flags & MSG_OOB) != 0) return EOPNOTSUPP;
    if (!claimed_)
        if (const int error = bind_to(Endpoint::any(family_of(domain()))); error != 0) return error;
    const int error = wait(guard, may_wait(flags), deadline_of(options_.receive_timeout),
                           [this] { return error_ != 0 || deaf_ || !arrivals_.empty(); });
    if (error_ != 0) return take_error();
    if (error != 0) return error;
    if (arrivals_.empty()) return 0;
    const auto& first = arrivals_.front();
    const auto part = std::min(first.length, to.remaining());
    to.put(slot_at(first.slot) + kGrhBytes + kHeaderBytes, part);
    letter.from = first.from;
    letter.has_from = true;
    letter.full_length = first.length;
    letter.truncated = part < first.length;
    if ((flags & MSG_PEEK) != 0) return 0;
    const int lost = post_receive(first.slot);
    arrivals_.pop_front();
    return lost;
}

short DatagramSocket::events() {
    int out = 0;
    if (!arrivals_.empty() || deaf_ || error_ != 0) out |= POLLIN | POLLRDNORM;
    if (qp_ == nullptr || !free_sends_.empty()) out |= POLLOUT | POLLWRNORM;
    if (error_ != 0) out |= POLLERR;
    if (deaf_ && finished_) out |= POLLHUP;
    return static_cast<short>(out);
}

void DatagramSocket::prepare_sleep() {
    if (cq_ == nullptr) return;
    ibv_req_notify_cq(cq_, 0);
    weir_park(device_->verbs());
}

int DatagramSocket::wake_fd() const {
    return channel_ == nullptr ? -1 : channel_->fd;
}

void DatagramSocket::after_sleep() {
    if (channel_ == nullptr) return;
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    unsigned taken = 0;
    while (ibv_get_cq_event(channel_, &cq, &context) == 0)
        ++taken;
    if (taken != 0) ibv_ack_cq_events(cq_, taken);
}

}  // namespace weir::rdmacm

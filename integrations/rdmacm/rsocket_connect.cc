// SPDX-License-Identifier: Apache-2.0
// How stream sockets come to be connected: addresses, listening, requests, and the events of the
// connection manager.
#include <endian.h>

#include <algorithm>
#include <cerrno>

#include <rdma/rsocket.h>

#include "cm.h"
#include "rsocket_service.h"

namespace weir::rdmacm {
namespace {

constexpr int kResolveMs = 2000;
/// Requests that wait for room in the backlog. Their peers are told to be patient.
constexpr std::size_t kRequestsMax = 1024;
constexpr int kBacklogMost = 4096;

rdma_conn_param parameters(const std::array<std::uint8_t, rsocket::kGreetingBytes>& greeting) {
    rdma_conn_param out{};
    out.private_data = greeting.data();
    out.private_data_len = static_cast<std::uint8_t>(greeting.size());
    out.retry_count = 7;
    out.rnr_retry_count = 7;
    out.flow_control = 1;
    return out;
}

int errno_or(int otherwise) {
    return errno != 0 ? errno : otherwise;
}

int set_flag(rdma_cm_id* id, int name, bool on) {
    int value = on ? 1 : 0;
    return rdma_set_option(id, RDMA_OPTION_ID, name, &value, sizeof value) == 0 ? 0 : errno;
}

/// A path record as RDMA_ROUTE has it.
ibv_path_data path_data(const ibv_sa_path_rec& path) {
    constexpr std::uint32_t kHopLimitBits = 8;
    ibv_path_data out{};
    out.flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;
    auto& record = out.path;
    record.dgid = path.dgid;
    record.sgid = path.sgid;
    record.dlid = path.dlid;
    record.slid = path.slid;
    record.flowlabel_hoplimit = htobe32(be32toh(path.flow_label) << kHopLimitBits | path.hop_limit);
    record.tclass = path.traffic_class;
    record.reversible_numpath = static_cast<std::uint8_t>(path.reversible << 7 | path.numb_path);
    record.pkey = path.pkey;
    record.qosclass_sl = htobe16(path.sl);
    record.mtu = static_cast<std::uint8_t>(path.mtu_selector << 6U | path.mtu);
    record.rate = static_cast<std::uint8_t>(path.rate_selector << 6U | path.rate);
    record.packetlifetime =
        static_cast<std::uint8_t>(path.packet_life_time_selector << 6U | path.packet_life_time);
    return out;
}

}  // namespace

// ---------------------------------------------------------------- addresses

/// An identifier with the options that matter before it has an address. It is a sync one, so that
/// errors of addresses are told at once.
int StreamSocket::make_identifier() {
    if (id_ != nullptr) return 0;
    if (rdma_create_id(nullptr, &id_, nullptr, RDMA_PS_TCP) != 0) return errno_or(ENOMEM);
    int error = set_flag(id_, RDMA_OPTION_ID_REUSEADDR, options_.reuse_address);
    if (error == 0) error = set_flag(id_, RDMA_OPTION_ID_AFONLY, options_.ipv6_only);
    if (error == 0 &&
        rdma_set_option(id_, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &options_.type_of_service, 1) != 0)
        error = errno;
    if (error == 0 && token_ == 0) token_ = Sockets::instance().name(shared_from_this());
    if (error != 0)
        drop_connection();
    else
        id_->context = reinterpret_cast<void*>(token_);
    return error;
}

void StreamSocket::drop_connection() {
    link_.reset();
    if (id_ != nullptr) rdma_destroy_id(std::exchange(id_, nullptr));
    bound_ = false;
}

int StreamSocket::bind(const sockaddr* address, socklen_t length) {
    const std::lock_guard guard(lock);
    Endpoint endpoint;
    if (phase_ != Phase::kFresh || bound_) return EINVAL;
    if (const int error = read_address(address, length, endpoint); error != 0) return error;
    if (const int error = make_identifier(); error != 0) return error;
    sockaddr_storage full{};
    endpoint.store(reinterpret_cast<sockaddr*>(&full));
    if (rdma_bind_addr(id_, reinterpret_cast<sockaddr*>(&full)) != 0) {
        const int error = errno;
        drop_connection();  // may be tried with another address
        return error;
    }
    bound_ = true;
    return 0;
}

int StreamSocket::local_address(Endpoint& out) {
    const std::lock_guard guard(lock);
    out = Endpoint::any(family_of(domain()));
    if (id_ == nullptr) return 0;
    if (const auto found = Endpoint::from(&id_->route.addr.src_addr)) out = *found;
    return 0;
}

int StreamSocket::peer_address(Endpoint& out) {
    const std::lock_guard guard(lock);
    if (phase_ != Phase::kConnected || lost_) return ENOTCONN;
    const auto found = Endpoint::from(&id_->route.addr.dst_addr);
    if (!found) return ENOTCONN;
    out = *found;
    return 0;
}

// ---------------------------------------------------------------- the active side

int StreamSocket::resolve(const Endpoint& to) {
    sockaddr_storage full{};
    to.store(reinterpret_cast<sockaddr*>(&full));
    if (rdma_resolve_addr(id_, nullptr, reinterpret_cast<sockaddr*>(&full), kResolveMs) != 0)
        return errno_or(EHOSTUNREACH);
    return rdma_resolve_route(id_, kResolveMs) != 0 ? errno_or(ENETUNREACH) : 0;
}

int StreamSocket::request_connection(const Endpoint& to) {
    if (const int error = make_identifier(); error != 0) return error;
    auto* channel = Sockets::instance().channel();
    if (channel == nullptr) return errno;
    if (const int error = resolve(to); error != 0) return error;
    if (const int error = Link::make(id_, options_, link_); error != 0) return error;
    if (rdma_migrate_id(id_, channel) != 0) return errno;
    const auto greeting = encode(link_->greeting());
    auto wish = parameters(greeting);
    return rdma_connect(id_, &wish) != 0 ? errno : 0;
}

int StreamSocket::connect(const sockaddr* address, socklen_t length) {
    std::unique_lock guard(lock);
    if (phase_ == Phase::kConnected) return EISCONN;
    if (phase_ == Phase::kConnecting) return EALREADY;
    if (phase_ != Phase::kFresh) return EINVAL;
    if (error_ != 0) return take_error();
    Endpoint to;
    if (const int error = read_address(address, length, to); error != 0) return error;
    if (const int error = request_connection(to); error != 0) {
        drop_connection();
        return error;
    }
    phase_ = Phase::kConnecting;
    return wait_for_connection(guard);
}

int StreamSocket::wait_for_connection(std::unique_lock<std::mutex>& guard) {
    const auto deadline = deadline_of(options_.send_timeout);
    const int error =
        wait(guard, may_wait(0), deadline, [this] { return phase_ != Phase::kConnecting; });
    if (error == EAGAIN) return EINPROGRESS;
    if (error != 0) return error;
    return phase_ == Phase::kConnected ? 0 : take_error();
}

void StreamSocket::on_established(const ConnectionEvent& event) {
    if (phase_ != Phase::kConnecting) return;
    if (!passive_) {
        const auto greeting = rsocket::decode_greeting(event.private_data);
        if (!greeting) {
            on_failed(ECONNREFUSED);
            return;
        }
        link_->start(*greeting);
    }
    phase_ = Phase::kConnected;
    wake_sleepers();
}

void StreamSocket::on_failed(int error) {
    if (phase_ == Phase::kConnected) {
        lose(error == ECONNREFUSED ? ECONNRESET : error);
        return;
    }
    if (phase_ != Phase::kConnecting) return;
    phase_ = Phase::kFresh;
    error_ = error;
    drop_connection();
    wake_sleepers();
}

/// The peer has ended the connection, or died. What it sent before is in the CQ.
void StreamSocket::on_disconnected() {
    if (phase_ == Phase::kConnecting) on_failed(ECONNRESET);
    if (phase_ != Phase::kConnected) return;
    progress();
    lose(ECONNRESET);
    rdma_disconnect(id_);
}

// ---------------------------------------------------------------- the passive side

int StreamSocket::listen(int backlog) {
    const std::lock_guard guard(lock);
    backlog_ = static_cast<std::size_t>(std::clamp(backlog, 1, kBacklogMost));
    if (phase_ == Phase::kListening) return 0;
    if (phase_ != Phase::kFresh) return EINVAL;
    if (const int error = make_identifier(); error != 0) return error;
    if (!bound_) {
        sockaddr_storage any{};
        Endpoint::any(family_of(domain())).store(reinterpret_cast<sockaddr*>(&any));
        if (rdma_bind_addr(id_, reinterpret_cast<sockaddr*>(&any)) != 0) return errno;
        bound_ = true;
    }
    auto* channel = Sockets::instance().channel();
    if (channel == nullptr) return errno;
    if (rdma_migrate_id(id_, channel) != 0) return errno;
    if (rdma_listen(id_, kBacklogMost) != 0) return errno;
    phase_ = Phase::kListening;
    return 0;
}

void StreamSocket::end_listening() {
    phase_ = Phase::kEnded;
    for (const auto& request : requests_)
        rdma_destroy_id(request.id);
    requests_.clear();
    shaking_.clear();
    ready_.clear();
    drop_connection();
    wake_sleepers();
}

bool StreamSocket::has_room_for_request() const {
    return shaking_.size() + ready_.size() < backlog_ + 1;
}

void StreamSocket::on_request(const ConnectionEvent& event) {
    const auto greeting = rsocket::decode_greeting(event.private_data);
    if (phase_ != Phase::kListening || !greeting || requests_.size() >= kRequestsMax) {
        rdma_reject(event.id, nullptr, 0);
        rdma_destroy_id(event.id);
        return;
    }
    event.id->context = nullptr;
    const Request request{event.id, *greeting};
    if (requests_.empty() && has_room_for_request())
        take_request(request);
    else
        requests_.push_back(request);
}

/// Makes a socket for a request, and accepts it.
void StreamSocket::take_request(const Request& request) {
    auto child = std::make_shared<StreamSocket>(domain());
    child->options_ = options_;
    child->parent_ = weak_from_this();
    child->passive_ = true;
    child->phase_ = Phase::kConnecting;
    child->token_ = Sockets::instance().name(child);
    if (child->answer(request, request.id) != 0) {
        rdma_reject(request.id, nullptr, 0);
        return;  // the child destroys the identifier
    }
    shaking_.push_back(std::move(child));
}

int StreamSocket::answer(const Request& request, rdma_cm_id* id) {
    id_ = id;
    id_->context = reinterpret_cast<void*>(token_);
    if (const int error = Link::make(id_, options_, link_); error != 0) return error;
    link_->start(request.greeting);
    const auto greeting = encode(link_->greeting());
    auto agreed = parameters(greeting);
    return rdma_accept(id_, &agreed) != 0 ? errno : 0;
}

/// A request's socket has been connected, or could not be.
void StreamSocket::on_child(StreamSocket& child, bool ready) {
    const std::lock_guard guard(lock);
    const auto found = std::find_if(shaking_.begin(), shaking_.end(),
                                    [&](const auto& own) { return own.get() == &child; });
    if (found == shaking_.end()) return;
    if (ready) ready_.push_back(*found);
    shaking_.erase(found);
    wake_sleepers();
}

int StreamSocket::accept(std::shared_ptr<Socket>& out, Endpoint& peer) {
    std::shared_ptr<StreamSocket> child;
    {
        std::unique_lock guard(lock);
        if (phase_ != Phase::kListening) return EINVAL;
        const auto deadline = deadline_of(options_.receive_timeout);
        const int error = wait(guard, may_wait(0), deadline,
                               [this] { return !ready_.empty() || phase_ != Phase::kListening; });
        if (error != 0) return error;
        if (phase_ != Phase::kListening) return EINVAL;
        child = std::move(ready_.front());
        ready_.pop_front();
        while (!requests_.empty() && has_room_for_request()) {
            take_request(requests_.front());
            requests_.pop_front();
        }
    }
    if (const auto address = Endpoint::from(&child->id_->route.addr.dst_addr)) peer = *address;
    out = std::move(child);
    return 0;
}

// ---------------------------------------------------------------- events

void StreamSocket::on_event(const ConnectionEvent& event) {
    bool settled = false;
    bool ready = false;
    {
        const std::lock_guard guard(lock);
        const bool was_connecting = phase_ == Phase::kConnecting;
        if (event.type != RDMA_CM_EVENT_CONNECT_REQUEST && event.id != id_) return;
        switch (event.type) {
            case RDMA_CM_EVENT_CONNECT_REQUEST:
                on_request(event);
                break;
            case RDMA_CM_EVENT_ESTABLISHED:
                on_established(event);
                break;
            case RDMA_CM_EVENT_REJECTED:
                on_failed(ECONNREFUSED);
                break;
            case RDMA_CM_EVENT_UNREACHABLE:
                on_failed(ETIMEDOUT);
                break;
            case RDMA_CM_EVENT_CONNECT_ERROR:
                on_failed(ECONNABORTED);
                break;
            case RDMA_CM_EVENT_DISCONNECTED:
                on_disconnected();
                break;
            default:
                break;
        }
        settled = was_connecting && phase_ != Phase::kConnecting;
        ready = phase_ == Phase::kConnected;
    }
    if (!settled) return;
    if (const auto parent = parent_.lock(); parent != nullptr) parent->on_child(*this, ready);
}

// ---------------------------------------------------------------- options

int StreamSocket::get_special_option(int level, int name, void* value, socklen_t* length) {
    if (level == SOL_SOCKET && name == SO_ACCEPTCONN) {
        const int listens = phase_ == Phase::kListening ? 1 : 0;
        return give_option(&listens, sizeof listens, value, length);
    }
    if (level == SOL_RDMA && name == RDMA_ROUTE) {
        if (id_ == nullptr || id_->route.num_paths == 0) return ENOTCONN;
        const auto route = path_data(*id_->route.path_rec);
        return give_option(&route, sizeof route, value, length);
    }
    return Socket::get_special_option(level, name, value, length);
}

}  // namespace weir::rdmacm

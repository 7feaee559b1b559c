// SPDX-License-Identifier: Apache-2.0
#include "fake_hca.h"

#include <endian.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <mutex>

namespace weir {
namespace fake {

Fake& fake() {
    static Fake state;
    return state;
}

void reset() {
    fake() = Fake{};
    fake().devices = {
        {"weir0", "default", "h0", 0x0002c90300001234U, 3, IBV_LINK_LAYER_INFINIBAND}};
}

ibv_gid gid_of(int index) {
    ibv_gid gid{};
    if (index == 0) {
        gid.global.subnet_prefix = htobe64(0xfe80000000000000U);
        gid.global.interface_id = htobe64(0x0002c90300001234U);
    }
    return gid;
}

namespace {

int take_error() {
    const int error = fake().next_error;
    fake().next_error = 0;
    return error;
}

Posted copy_of(const ibv_send_wr& wr) {
    Posted copy{wr, {}, {}};
    for (int i = 0; i < wr.num_sge; ++i) {
        copy.sges.push_back(wr.sg_list[i]);
        if ((wr.send_flags & IBV_SEND_INLINE) == 0) continue;
        copy.bytes.append(reinterpret_cast<const char*>(wr.sg_list[i].addr), wr.sg_list[i].length);
    }
    return copy;
}

// Counts an object in, unless the next call is to fail.
int admit(int change) {
    const int error = take_error();
    if (error == 0) fake().live_count += change;
    return error;
}

// Reads one count of a semaphore eventfd.
int wait_for(int fd) {
    std::uint64_t count = 0;
    return ::read(fd, &count, sizeof count) == sizeof count ? 0 : errno;
}

}  // namespace
}  // namespace fake

namespace hca {

using fake::admit;
using fake::fake;

int list_devices(std::vector<DeviceDescription>& devices) {
    devices = fake().devices;
    return fake().list_error;
}

void register_fork_handlers() {}

int device_facts(const DeviceDescription& device, sysfs::DeviceFacts& facts) {
    facts.name = device.name;
    facts.ports = {{1, 7, 0x1122334455667788ULL, 100'000'000'000ULL, 4, fake().list_error == 0}};
    return fake().list_error;
}

struct CompletionChannel::State {
    std::mutex lock;
    std::deque<CompletionQueue*> events;
};

int CompletionChannel::create(std::unique_ptr<CompletionChannel>& out) {
    out.reset(new CompletionChannel);
    out->state_ = std::make_unique<State>();
    out->fd_ = ::eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
    return fake::take_error();
}

CompletionChannel::~CompletionChannel() {
    ::close(fd_);
}

int CompletionChannel::take(CompletionQueue*& cq) {
    if (const int error = fake::wait_for(fd_); error != 0) return error;
    const std::scoped_lock lock(state_->lock);
    cq = state_->events.front();
    state_->events.pop_front();
    return 0;
}

void CompletionChannel::raise(CompletionQueue* cq) {
    const std::scoped_lock lock(state_->lock);
    state_->events.push_back(cq);
    ::eventfd_write(fd_, 1);
}

void CompletionChannel::forget(CompletionQueue* cq) {
    const std::scoped_lock lock(state_->lock);
    for (auto count = std::erase(state_->events, cq); count > 0; --count)
        fake::wait_for(fd_);
}

struct CompletionQueue::State {
    int entries = 0;
    CompletionChannel* channel = nullptr;
};
CompletionQueue::CompletionQueue(std::unique_ptr<State> state) : state_(std::move(state)) {}
CompletionQueue::~CompletionQueue() = default;
int CompletionQueue::poll(int, ibv_wc*) {
    ++fake().polled;
    return 0;
}
int CompletionQueue::poll_stamped(ibv_wc& completion, std::uint64_t& stamp_ns) {
    if (fake().completions.empty()) return 0;
    completion = fake().completions.front();
    stamp_ns = 1234;
    fake().completions.pop_front();
    return 1;
}
int CompletionQueue::arm(bool) {
    if (state_->channel != nullptr) state_->channel->raise(this);
    return 0;
}
int CompletionQueue::resize(int entries) {
    state_->entries = entries;
    return 0;
}
int CompletionQueue::entries() const {
    return state_->entries;
}

struct SharedReceiveQueue::State {
    ibv_srq_attr attr{};
};
SharedReceiveQueue::SharedReceiveQueue(std::unique_ptr<State> state) : state_(std::move(state)) {}
SharedReceiveQueue::~SharedReceiveQueue() = default;
int SharedReceiveQueue::post(ibv_recv_wr*, ibv_recv_wr**) {
    ++fake().posted;
    return 0;
}
int SharedReceiveQueue::modify(const ibv_srq_attr& attr, int) {
    state_->attr.srq_limit = attr.srq_limit;
    return 0;
}
int SharedReceiveQueue::query(ibv_srq_attr& attr) const {
    attr = state_->attr;
    return 0;
}

std::uint32_t SharedReceiveQueue::number() const {
    return 0x1234;
}

struct QueuePair::State {
    std::uint32_t number = 0;
    ibv_qp_state current = IBV_QPS_RESET;
};
QueuePair::QueuePair(std::unique_ptr<State> state) : state_(std::move(state)) {}
QueuePair::~QueuePair() = default;
std::uint32_t QueuePair::number() const {
    return state_->number;
}
ibv_qp_state QueuePair::current_state() const {
    return state_->current;
}
int QueuePair::modify(const ibv_qp_attr& attr, int mask) {
    if (attr.qp_state == IBV_QPS_SQE) return EINVAL;
    if ((mask & IBV_QP_STATE) != 0) state_->current = attr.qp_state;
    return 0;
}
int QueuePair::query(ibv_qp_attr& attr, int, ibv_qp_init_attr&) const {
    attr = {};
    attr.qp_state = state_->current;
    return 0;
}
int QueuePair::post_send(ibv_send_wr*, ibv_send_wr**) {
    ++fake().posted;
    return 0;
}
int QueuePair::post_send_whole(ibv_send_wr* list) {
    fake().posted_list.clear();
    for (const auto* wr = list; wr != nullptr; wr = wr->next)
        fake().posted_list.push_back(fake::copy_of(*wr));
    return fake::take_error();
}
int QueuePair::attach(const ibv_gid&, std::uint16_t) {
    return 0;
}
int QueuePair::detach(const ibv_gid&, std::uint16_t) {
    return EINVAL;
}
int QueuePair::post_receive(ibv_recv_wr*, ibv_recv_wr**) {
    ++fake().posted;
    return 0;
}

struct Hca::State {
    int async_fd = -1;
    std::deque<AsyncEvent> events;
    std::mutex lock;
    std::uint32_t next = 100;
};
Hca::Hca(std::unique_ptr<State> state) : state_(std::move(state)) {}
Hca::~Hca() {
    ::close(state_->async_fd);
}
int Hca::open(const DeviceDescription&, std::unique_ptr<Hca>& out) {
    if (const int error = fake::take_error(); error != 0) return error;
    auto state = std::make_unique<State>();
    state->async_fd = ::eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
    out.reset(new Hca(std::move(state)));
    fake().last_hca = out.get();
    return 0;
}
int Hca::query_device(ibv_device_attr_ex& attr) const {
    attr = {};
    attr.orig_attr.phys_port_cnt = 1;
    attr.orig_attr.max_qp = 77;
    attr.phys_port_cnt_ex = 1;
    return 0;
}
int Hca::query_port(int port, ibv_port_attr& attr) const {
    if (port != 1) return EINVAL;
    attr = {};
    attr.state = IBV_PORT_ACTIVE;
    attr.gid_tbl_len = 2;
    attr.pkey_tbl_len = 2;
    attr.lid = 7;
    attr.flags = 0x5a;
    attr.port_cap_flags2 = 0x1234;
    attr.link_layer = static_cast<std::uint8_t>(fake().link_layer);
    return 0;
}
int Hca::query_gid(int port, int index, ibv_gid& gid) const {
    if (port != 1 || index < 0 || index >= 2) return EINVAL;
    gid = fake::gid_of(index);
    return 0;
}
int Hca::query_pkey(int port, int index, __be16& pkey) const {
    if (port != 1 || index < 0 || index >= 2) return EINVAL;
    pkey = htobe16(index == 0 ? 0xffff : 0x8001);
    return 0;
}
int Hca::resolve_gid(const ibv_gid&, std::uint32_t& lid) const {
    lid = 7;
    return 0;
}
std::uint32_t Hca::alloc_pd() {
    ++fake().live_count;
    return state_->next++;
}
int Hca::dealloc_pd(std::uint32_t) {
    return admit(-1);
}
int Hca::reg_mr(std::uint32_t, void*, std::size_t, std::uint64_t iova, int access,
                std::uint32_t& lkey, std::uint32_t& rkey) {
    fake().last_iova = iova;
    fake().last_access = access;
    lkey = rkey = state_->next++;
    return admit(1);
}
int Hca::dereg_mr(std::uint32_t) {
    return admit(-1);
}
int Hca::rereg_mr(std::uint32_t, const MrChange& change) {
    fake().last_iova = change.iova;
    fake().last_access = change.access;
    return fake::take_error();
}
int Hca::alloc_null_mr(std::uint32_t, std::uint32_t& lkey) {
    lkey = state_->next++;
    return admit(1);
}
int Hca::advise_mr(std::uint32_t, bool, bool, const ibv_sge*, std::uint32_t) {
    return fake::take_error();
}
int Hca::alloc_mw(std::uint32_t, ibv_mw_type, std::uint32_t& rkey) {
    rkey = state_->next++ << 8U;
    return admit(1);
}
int Hca::dealloc_mw(std::uint32_t) {
    return admit(-1);
}
int Hca::open_xrcd(int, int, std::uint32_t& domain) {
    domain = state_->next++;
    return admit(1);
}
int Hca::close_xrcd(std::uint32_t) {
    return admit(-1);
}
int Hca::create_xrc_srq(std::uint32_t pd, std::uint32_t, CompletionQueue*, ibv_srq_attr& attr,
                        SharedReceiveQueue*& out) {
    return create_srq(pd, attr, out);
}
int Hca::open_qp(std::uint32_t, std::uint32_t number, QueuePair*& out) {
    if (fake().last_qp == nullptr || fake().last_qp->number() != number) return EINVAL;
    out = fake().last_qp;
    ++fake().last_qp_opens;
    return 0;
}
int Hca::create_cq(int entries, CompletionChannel* channel, CqOptions options,
                   CompletionQueue*& out) {
    fake().last_cq_options = options;
    if (const int error = admit(1); error != 0) return error;
    auto state = std::make_unique<CompletionQueue::State>();
    state->entries = entries + 1;
    state->channel = channel;
    out = new CompletionQueue(std::move(state));
    return 0;
}
int Hca::destroy_cq(CompletionQueue* cq) {
    if (const int error = admit(-1); error != 0) return error;
    if (cq->state().channel != nullptr) cq->state().channel->forget(cq);
    delete cq;
    return 0;
}
int Hca::create_srq(std::uint32_t, ibv_srq_attr& attr, SharedReceiveQueue*& out) {
    if (const int error = admit(1); error != 0) return error;
    auto state = std::make_unique<SharedReceiveQueue::State>();
    state->attr = attr;
    out = new SharedReceiveQueue(std::move(state));
    return 0;
}
int Hca::destroy_srq(SharedReceiveQueue* srq) {
    if (const int error = admit(-1); error != 0) return error;
    delete srq;
    return 0;
}
int Hca::create_qp(QpRequest& request, QueuePair*& out) {
    if (const int error = admit(1); error != 0) return error;
    auto state = std::make_unique<QueuePair::State>();
    state->number = state_->next++;
    request.cap.max_send_wr = 64;
    fake().last_request = request;
    out = new QueuePair(std::move(state));
    fake().last_qp = out;
    fake().last_qp_opens = 1;
    return 0;
}
int Hca::destroy_qp(QueuePair* qp) {
    if (qp == fake().last_qp && --fake().last_qp_opens > 0) return 0;
    if (const int error = admit(-1); error != 0) return error;
    delete qp;
    return 0;
}
int Hca::resolve_ah(AddressHandle& handle) const {
    if (handle.attr.dlid == 0 && handle.attr.is_global == 0) return EINVAL;
    handle.dlid = handle.attr.dlid;
    return fake::take_error();
}
int Hca::async_fd() const {
    return state_->async_fd;
}
int Hca::take_async(AsyncEvent& event) {
    if (const int error = fake::wait_for(state_->async_fd); error != 0) return error;
    const std::scoped_lock lock(state_->lock);
    event = state_->events.front();
    state_->events.pop_front();
    return 0;
}

}  // namespace hca

void fake::raise_async(hca::Hca& hca, const hca::AsyncEvent& event) {
    const std::scoped_lock lock(hca.state().lock);
    hca.state().events.push_back(event);
    ::eventfd_write(hca.async_fd(), 1);
}

}  // namespace weir

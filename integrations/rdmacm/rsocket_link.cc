// SPDX-License-Identifier: Apache-2.0
#include "rsocket_link.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "weir_private.h"

namespace weir::rdmacm {

using rsocket::Kind;
using rsocket::kMessageHeaderBytes;
using rsocket::MessageHeader;
using rsocket::Stream;

namespace {

int errno_or_no_memory() {
    return errno != 0 ? errno : ENOMEM;
}

rsocket::Limits limits_from(const SocketOptions& options) {
    rsocket::Limits limits;
    const auto bytes = static_cast<std::uint32_t>(options.receive_bytes);
    limits.slots = std::clamp(static_cast<std::uint32_t>(options.receives), rsocket::kSlotsLeast,
                              rsocket::kSlotsMost);
    limits.slot_bytes =
        std::clamp(bytes / limits.slots, rsocket::kSlotBytesLeast, rsocket::kSlotBytesMost);
    return limits;
}

std::uintptr_t number_of(const void* address) {
    return reinterpret_cast<std::uintptr_t>(address);
}

}  // namespace

// ---------------------------------------------------------------- making

Link::Link(rdma_cm_id* id, rsocket::Limits limits, const SocketOptions& options)
    : id_(id),
      stream_(limits, static_cast<std::size_t>(options.send_bytes),
              static_cast<std::uint32_t>(options.sends)),
      sends_max_(static_cast<std::uint32_t>(options.sends)),
      stride_((kMessageHeaderBytes + limits.slot_bytes + 63) / 64 * 64),
      ring_bytes_(static_cast<std::size_t>(options.send_bytes)),
      mappings_max_(static_cast<std::uint32_t>(options.mappings)) {}

int Link::make(rdma_cm_id* id, const SocketOptions& options, std::unique_ptr<Link>& out) {
    std::unique_ptr<Link> link(new Link(id, limits_from(options), options));
    errno = 0;
    if (const int error = link->make_memory(); error != 0) return error;
    if (const int error = link->make_queues(options); error != 0) return error;
    for (std::uint32_t slot = 0; slot <= link->stream_.own().slots; ++slot)
        if (const int error = link->post_receive(slot); error != 0) return error;
    out = std::move(link);
    return 0;
}

int Link::make_memory() {
    const std::size_t slots = (stream_.own().slots + std::size_t{1}) * stride_;
    memory_bytes_ = slots + ring_bytes_ + 64 + sends_max_ * kHeaderStride;
    void* pages =
        mmap(nullptr, memory_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return ENOMEM;
    memory_ = static_cast<std::uint8_t*>(pages);
    ring_ = memory_ + slots;
    headers_ = ring_ + (ring_bytes_ + 63) / 64 * 64;
    mr_ = ibv_reg_mr(id_->pd, memory_, memory_bytes_, IBV_ACCESS_LOCAL_WRITE);
    return mr_ == nullptr ? errno_or_no_memory() : 0;
}

int Link::make_queues(const SocketOptions& options) {
    channel_ = ibv_create_comp_channel(id_->verbs);
    if (channel_ == nullptr) return errno_or_no_memory();
    fcntl(channel_->fd, F_SETFL, fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
    const auto receives = stream_.own().slots + 1;
    cq_ = ibv_create_cq(id_->verbs, static_cast<int>(receives + sends_max_), nullptr, channel_, 0);
    if (cq_ == nullptr) return errno_or_no_memory();
    ibv_qp_init_attr init{};
    init.send_cq = cq_;
    init.recv_cq = cq_;
    init.qp_type = IBV_QPT_RC;
    init.sq_sig_all = 1;
    constexpr std::uint32_t kPieces = 3;  // a header, and bytes that wrap around the ring
    init.cap = {sends_max_, receives, kPieces, 1, static_cast<std::uint32_t>(options.inline_bytes)};
    if (rdma_create_qp(id_, nullptr, &init) != 0) return errno_or_no_memory();
    inline_bytes_ = init.cap.max_inline_data;
    return 0;
}

Link::~Link() {
    if (id_->qp != nullptr) rdma_destroy_qp(id_);
    for (const auto& own : own_mappings_)
        ibv_dereg_mr(own.mr);
    if (mr_ != nullptr) ibv_dereg_mr(mr_);
    if (cq_ != nullptr) ibv_destroy_cq(cq_);
    if (channel_ != nullptr) ibv_destroy_comp_channel(channel_);
    if (memory_ != nullptr) munmap(memory_, memory_bytes_);
}

rsocket::Greeting Link::greeting() const {
    return {stream_.own(), mappings_max_};
}

void Link::start(const rsocket::Greeting& peer) {
    stream_.set_peer(peer.limits);
    peer_mappings_max_ = peer.mappings;
    started_ = true;
}

// ---------------------------------------------------------------- posting

int Link::post_receive(std::uint32_t slot) {
    ibv_sge sge{};
    sge.addr = number_of(slot_at(slot));
    sge.length = static_cast<std::uint32_t>(stride_);
    sge.lkey = mr_->lkey;
    ibv_recv_wr wr{};
    wr.wr_id = slot;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    return ibv_post_recv(id_->qp, &wr, &bad);
}

std::uint8_t* Link::next_header() {
    return headers_ + header_next_++ % sends_max_ * kHeaderStride;
}

int Link::add_pieces(const Stream::Cut& cut, ibv_sge* list) const {
    const auto first = std::min(cut.length, ring_bytes_ - cut.begin);
    list[0] = {number_of(ring_ + cut.begin), static_cast<std::uint32_t>(first), mr_->lkey};
    if (first == cut.length) return 1;
    list[1] = {number_of(ring_), static_cast<std::uint32_t>(cut.length - first), mr_->lkey};
    return 2;
}

void Link::post(ibv_send_wr& wr) {
    std::size_t bytes = 0;
    for (int i = 0; i < wr.num_sge; ++i)
        bytes += wr.sg_list[i].length;
    wr.wr_id = kSendMark;
    if (bytes <= inline_bytes_) wr.send_flags |= IBV_SEND_INLINE;
    ibv_send_wr* bad = nullptr;
    if (ibv_post_send(id_->qp, &wr, &bad) != 0) broken_ = true;
}

void Link::post_message(const MessageHeader& header, const Stream::Cut* cut,
                        const rsocket::Mapping* mapping) {
    auto* head = next_header();
    encode(header, head);
    ibv_sge list[3] = {{number_of(head), kMessageHeaderBytes, mr_->lkey}, {}, {}};
    ibv_send_wr wr{};
    wr.sg_list = list;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    if (mapping != nullptr) {
        encode(*mapping, head + kMessageHeaderBytes);
        list[0].length += rsocket::kMappingBytes;
    }
    if (cut != nullptr) wr.num_sge += add_pieces(*cut, list + 1);
    post(wr);
}

void Link::fill(const Stream::Cut& cut, Cursor& from) {
    const auto first = std::min(cut.length, ring_bytes_ - cut.begin);
    from.take(ring_ + cut.begin, first);
    if (first < cut.length) from.take(ring_, cut.length - first);
}

void Link::send(Cursor& from) {
    while (from.remaining() > 0 && writable() && !broken_) {
        const auto cut = stream_.cut(from.remaining());
        fill(cut, from);
        post_message(cut.header, &cut, nullptr);
    }
}

void Link::receive(Cursor& to, bool peek) {
    stream_.consume(to.remaining(), peek,
                    [&](std::uint32_t slot, std::size_t offset, std::size_t length) {
                        to.put(slot_at(slot) + kMessageHeaderBytes + offset, length);
                    });
    if (!peek) pump();
}

void Link::end_sending() {
    stream_.end_sending();
    pump();
}

void Link::end_receiving() {
    stream_.end_receiving();
    pump();
}

void Link::pump() {
    if (broken_ || !started_) return;
    while (const auto slot = stream_.take_free_slot())
        if (post_receive(*slot) != 0) broken_ = true;
    if (const auto header = stream_.take_credit_message()) post_message(*header, nullptr, nullptr);
    while (!announcements_.empty()) {
        const auto [kind, mapping] = announcements_.front();
        const auto header = stream_.take_control(kind);
        if (!header) break;
        announcements_.erase(announcements_.begin());
        post_message(*header, nullptr, &mapping);
    }
    if (const auto header = stream_.take_fin()) post_message(*header, nullptr, nullptr);
}

// ---------------------------------------------------------------- completions

bool Link::progress() {
    if (!started_) return false;
    ibv_wc done[kBatch];
    bool any = false;
    int count = 0;
    do {
        count = ibv_poll_cq(cq_, kBatch, done);
        for (int i = 0; i < count; ++i)
            on_completion(done[i]);
        any |= count > 0;
    } while (count == kBatch);
    if (any) pump();
    return any;
}

void Link::on_completion(const ibv_wc& wc) {
    if (wc.status != IBV_WC_SUCCESS) {
        broken_ = true;
    } else if ((wc.wr_id & kSendMark) != 0) {
        stream_.on_sent();
    } else if (!broken_) {
        on_message(static_cast<std::uint32_t>(wc.wr_id), wc.byte_len);
    }
}

void Link::on_message(std::uint32_t slot, std::size_t bytes) {
    const auto* begin = slot_at(slot);
    const auto header = rsocket::decode_header({begin, bytes});
    if (!header) {
        broken_ = true;
        return;
    }
    const auto length = bytes - kMessageHeaderBytes;
    const auto verdict = stream_.on_message(slot, *header, length);
    if (verdict == Stream::Verdict::kBroken) broken_ = true;
    if (verdict != Stream::Verdict::kControl) return;
    on_control(*header, begin + kMessageHeaderBytes, length);
    stream_.free_slot(slot);
}

void Link::on_control(const MessageHeader& header, const std::uint8_t* body, std::size_t length) {
    const auto mapping = rsocket::decode_mapping({body, length});
    if (!mapping) {
        broken_ = true;
        return;
    }
    std::erase_if(peer_mappings_, [&](const auto& m) { return m.offset == mapping->offset; });
    if (header.kind == Kind::kUnmap) return;
    if (peer_mappings_.size() >= peer_mappings_max_)
        broken_ = true;
    else
        peer_mappings_.push_back(*mapping);
}

void Link::arm() {
    ibv_req_notify_cq(cq_, 0);
    weir_park(id_->verbs);
}

void Link::take_wake_ups() {
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    unsigned taken = 0;
    while (ibv_get_cq_event(channel_, &cq, &context) == 0)
        ++taken;
    if (taken != 0) ibv_ack_cq_events(cq_, taken);
}

// ---------------------------------------------------------------- memory that the peer writes to

int Link::map(void* address, std::size_t length, bool remote, off_t wanted, off_t& offset) {
    const auto remote_count =
        std::count_if(own_mappings_.begin(), own_mappings_.end(), [](auto& m) { return m.remote; });
    if (remote && static_cast<std::size_t>(remote_count) >= mappings_max_) return ENOBUFS;
    rsocket::Mapping mapping;
    mapping.address = number_of(address);
    mapping.offset = wanted == -1 ? mapping.address : static_cast<std::uint64_t>(wanted);
    mapping.length = length;
    for (const auto& own : own_mappings_)
        if (remote && own.remote && own.mapping.offset < mapping.offset + length &&
            mapping.offset < own.mapping.offset + own.mapping.length)
            return EEXIST;
    int access = IBV_ACCESS_LOCAL_WRITE;
    if (remote) access |= IBV_ACCESS_REMOTE_WRITE;
    errno = 0;
    ibv_mr* mr = (ibv_reg_mr)(id_->pd, address, length, access);
    if (mr == nullptr) return errno_or_no_memory();
    mapping.rkey = mr->rkey;
    own_mappings_.push_back({mapping, mr, remote});
    offset = static_cast<off_t>(mapping.offset);
    if (remote) announcements_.emplace_back(Kind::kMap, mapping);
    pump();
    return 0;
}

int Link::unmap(void* address, std::size_t length) {
    const auto found = std::find_if(own_mappings_.begin(), own_mappings_.end(), [&](auto& own) {
        return own.mapping.address == number_of(address) && own.mapping.length == length;
    });
    if (found == own_mappings_.end()) return EINVAL;
    ibv_dereg_mr(found->mr);
    if (found->remote) announcements_.emplace_back(Kind::kUnmap, found->mapping);
    own_mappings_.erase(found);
    pump();
    return 0;
}

int Link::write_mapped(Cursor& from, std::uint64_t& offset) {
    while (from.remaining() > 0 && stream_.write_room() > 0 && !broken_) {
        const auto found = std::find_if(
            peer_mappings_.begin(), peer_mappings_.end(),
            [&](const auto& m) { return m.offset <= offset && offset - m.offset < m.length; });
        if (found == peer_mappings_.end()) return EFAULT;
        const auto within = offset - found->offset;
        const auto cut =
            stream_.cut_write(std::min<std::uint64_t>(from.remaining(), found->length - within));
        fill(cut, from);
        ibv_sge list[2] = {};
        ibv_send_wr wr{};
        wr.sg_list = list;
        wr.num_sge = add_pieces(cut, list);
        wr.opcode = IBV_WR_RDMA_WRITE;
        wr.wr.rdma.remote_addr = found->address + within;
        wr.wr.rdma.rkey = found->rkey;
        post(wr);
        offset += cut.length;
    }
    return 0;
}

}  // namespace weir::rdmacm

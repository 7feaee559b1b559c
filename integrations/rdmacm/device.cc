// SPDX-License-Identifier: Apache-2.0
#include "device.h"

#include <endian.h>
#include <poll.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace weir::rdmacm {
namespace {

/// The well-known Q_Key of QP 1 (IBTA 10.2.5): the control QPs stand for it.
constexpr std::uint32_t kControlQkey = 0x80010000;

}  // namespace

std::unique_ptr<Device> Device::open(ibv_device* device) {
    std::unique_ptr<Device> out(new Device);
    out->verbs_ = ibv_open_device(device);
    if (out->verbs_ == nullptr) return nullptr;
    out->guid_ = be64toh(ibv_get_device_guid(device));
    out->pd_ = ibv_alloc_pd(out->verbs_);
    if (out->pd_ == nullptr || ibv_query_device(out->verbs_, &out->attributes_) != 0)
        return nullptr;
    return out;
}

Device::~Device() {
    drop_control();
    if (pd_ != nullptr) ibv_dealloc_pd(pd_);
    if (verbs_ != nullptr) ibv_close_device(verbs_);
}

void Device::drop_control() {
    for (const auto& [lid, handle] : handles_)
        ibv_destroy_ah(handle);
    handles_.clear();
    if (qp_ != nullptr) ibv_destroy_qp(qp_);
    if (mr_ != nullptr) ibv_dereg_mr(mr_);
    if (receive_cq_ != nullptr) ibv_destroy_cq(receive_cq_);
    if (send_cq_ != nullptr) ibv_destroy_cq(send_cq_);
    if (channel_ != nullptr) ibv_destroy_comp_channel(channel_);
    if (buffers_ != nullptr) munmap(buffers_, kReceives * kSlotBytes);
    qp_ = nullptr;
    mr_ = nullptr;
    receive_cq_ = send_cq_ = nullptr;
    channel_ = nullptr;
    buffers_ = nullptr;
}

int Device::make_queues() {
    void* pages = mmap(nullptr, kReceives * kSlotBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return ENOMEM;
    buffers_ = static_cast<std::uint8_t*>(pages);
    mr_ = ibv_reg_mr(pd_, buffers_, kReceives * kSlotBytes, IBV_ACCESS_LOCAL_WRITE);
    channel_ = ibv_create_comp_channel(verbs_);
    if (mr_ == nullptr || channel_ == nullptr) return errno;
    receive_cq_ = ibv_create_cq(verbs_, kReceives, nullptr, channel_, 0);
    send_cq_ = ibv_create_cq(verbs_, kSends, nullptr, nullptr, 0);
    if (receive_cq_ == nullptr || send_cq_ == nullptr) return errno;
    ibv_qp_init_attr init{};
    init.send_cq = send_cq_;
    init.recv_cq = receive_cq_;
    init.cap = {kSends, kReceives, 1, 1, wire::kMadBytes};
    init.qp_type = IBV_QPT_UD;
    qp_ = ibv_create_qp(pd_, &init);
    return qp_ == nullptr ? errno : 0;
}

int Device::make_ready() {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qkey = kControlQkey;
    int error =
        ibv_modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
    if (error != 0) return error;
    for (std::uint32_t slot = 0; slot < kReceives; ++slot)
        post(slot);
    if (error = ibv_req_notify_cq(receive_cq_, 0); error != 0) return error;
    attr.qp_state = IBV_QPS_RTR;
    if (error = ibv_modify_qp(qp_, &attr, IBV_QP_STATE); error != 0) return error;
    attr.qp_state = IBV_QPS_RTS;
    return ibv_modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

int Device::start_control() {
    if (has_control()) return 0;
    int error = make_queues();
    if (error == 0) error = make_ready();
    if (error != 0) drop_control();
    return error;
}

void Device::post(std::uint32_t slot) {
    ibv_sge sge{};
    sge.addr = reinterpret_cast<std::uintptr_t>(buffers_ + slot * kSlotBytes);
    sge.length = kSlotBytes;
    sge.lkey = mr_->lkey;
    ibv_recv_wr wr{};
    wr.wr_id = slot;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    ibv_post_recv(qp_, &wr, &bad);
}

void Device::arm() {
    if (qp_ != nullptr) ibv_req_notify_cq(receive_cq_, 0);
}

void Device::disarm() {
    if (qp_ == nullptr) return;
    for (;;) {
        pollfd readable{channel_->fd, POLLIN, 0};
        if (poll(&readable, 1, 0) != 1) break;
        ibv_cq* cq = nullptr;
        void* context = nullptr;
        if (ibv_get_cq_event(channel_, &cq, &context) != 0) break;
        ibv_ack_cq_events(cq, 1);
    }
}

ibv_ah* Device::address_handle(std::uint32_t lid) {
    const auto known = handles_.find(lid);
    if (known != handles_.end()) return known->second;
    ibv_ah_attr attr{};
    attr.dlid = static_cast<std::uint16_t>(lid);
    attr.port_num = 1;
    ibv_ah* handle = ibv_create_ah(pd_, &attr);
    if (handle != nullptr) handles_.emplace(lid, handle);
    return handle;
}

void Device::reap_sends() {
    std::array<ibv_wc, kBatch> done;
    int count = 0;
    do {
        count = ibv_poll_cq(send_cq_, kBatch, done.data());
        for (int i = 0; i < count; ++i) {
            const auto covered =
                static_cast<std::uint32_t>(done[static_cast<std::size_t>(i)].wr_id);
            sends_open_ = sends_posted_ - covered;
        }
    } while (count == kBatch);
}

bool Device::has_room() {
    if (sends_open_ + kSignalEvery >= kSends) reap_sends();
    return sends_open_ < kSends;
}

void Device::flush() {
    while (!waiting_.empty() && has_room()) {
        const auto& first = waiting_.front();
        post_send(first.lid, first.qp_number, first.bytes);
        waiting_.pop_front();
    }
}

void Device::send(std::uint32_t lid, std::uint32_t qp_number, const wire::CmMadBytes& bytes) {
    if (qp_ == nullptr) return;
    flush();
    if (waiting_.empty() && has_room())
        post_send(lid, qp_number, bytes);
    else
        waiting_.push_back({lid, qp_number, bytes});
}

void Device::post_send(std::uint32_t lid, std::uint32_t qp_number, const wire::CmMadBytes& bytes) {
    ibv_ah* handle = address_handle(lid);
    if (handle == nullptr) return;
    ++sends_posted_;
    ++sends_open_;
    ibv_sge sge{};
    sge.addr = reinterpret_cast<std::uintptr_t>(bytes.data());
    sge.length = static_cast<std::uint32_t>(bytes.size());
    ibv_send_wr wr{};
    wr.wr_id = sends_posted_;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_INLINE;
    if (sends_posted_ % kSignalEvery == 0) wr.send_flags |= IBV_SEND_SIGNALED;
    wr.wr.ud.ah = handle;
    wr.wr.ud.remote_qpn = qp_number;
    wr.wr.ud.remote_qkey = kControlQkey;
    ibv_send_wr* bad = nullptr;
    if (ibv_post_send(qp_, &wr, &bad) != 0) {
        --sends_posted_;
        --sends_open_;
    }
}

}  // namespace weir::rdmacm

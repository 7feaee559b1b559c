// SPDX-License-Identifier: Apache-2.0
// A verbs device as the connection manager uses it: opened once per process, with the protection
// domain that identifiers share, and a control QP: an unreliable datagram QP that plays the part of
// QP 1. MADs travel by it across the fabric like any packet, so a pulled cable stops them too.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include <infiniband/verbs.h>

#include "wire/cm_mad.h"

namespace weir::rdmacm {

class Device {
  public:
    /// Opens it. Null with errno set if that fails.
    static std::unique_ptr<Device> open(ibv_device* device);
    ~Device();
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    [[nodiscard]] ibv_context* verbs() const { return verbs_; }
    [[nodiscard]] ibv_pd* pd() const { return pd_; }
    [[nodiscard]] const ibv_device_attr& attributes() const { return attributes_; }
    [[nodiscard]] std::uint64_t guid() const { return guid_; }
    /// HCA node in the fabric.
    [[nodiscard]] std::uint32_t node() const { return node_; }
    void set_node(std::uint32_t node) { node_ = node; }

    /// Makes the control QP if it is not there. 0 or an errno value.
    int start_control();
    [[nodiscard]] bool has_control() const { return qp_ != nullptr; }
    [[nodiscard]] std::uint32_t control_qp() const { return qp_ == nullptr ? 0 : qp_->qp_num; }
    /// Readable once MADs have come after arm(), or before it without having been received.
    [[nodiscard]] int control_fd() const { return channel_ == nullptr ? -1 : channel_->fd; }
    void arm();
    /// Takes readiness off control_fd().
    void disarm();

    struct Arrival {
        std::uint32_t lid;
        std::uint32_t qp_number;
        const std::uint8_t* bytes;
        std::size_t size;
    };
    /// Takes MADs that have come and hands each to `visit`. True if there were any.
    template <class Visit>
    bool receive(Visit visit);
    /// Best effort, as datagrams are: who expects an answer sends again. What the send queue has no
    /// room for waits for flush().
    void send(std::uint32_t lid, std::uint32_t qp_number, const wire::CmMadBytes& bytes);
    /// Sends what waits, as far as there is room. To be called again soon if backlogged().
    void flush();
    [[nodiscard]] bool backlogged() const { return !waiting_.empty(); }

  private:
    Device() = default;
    int make_queues();
    int make_ready();
    void post(std::uint32_t slot);
    ibv_ah* address_handle(std::uint32_t lid);
    void reap_sends();
    bool has_room();
    void post_send(std::uint32_t lid, std::uint32_t qp_number, const wire::CmMadBytes& bytes);
    void drop_control();

    /// More than come at once from a peer that makes a thousand connections: what finds no receive
    /// is lost, and its sender waits a second before it sends again.
    static constexpr std::uint32_t kReceives = 2048;
    static constexpr std::uint32_t kSends = 512;
    static constexpr std::uint32_t kSignalEvery = 32;
    static constexpr std::size_t kGrhBytes = 40;
    static constexpr std::size_t kSlotBytes = 320;
    static constexpr int kBatch = 16;

    ibv_context* verbs_ = nullptr;
    ibv_pd* pd_ = nullptr;
    ibv_device_attr attributes_{};
    std::uint64_t guid_ = 0;
    std::uint32_t node_ = 0;
    ibv_comp_channel* channel_ = nullptr;
    ibv_cq* receive_cq_ = nullptr;
    ibv_cq* send_cq_ = nullptr;
    ibv_qp* qp_ = nullptr;
    ibv_mr* mr_ = nullptr;
    /// On pages of its own, so that registering it moves nobody else's memory.
    std::uint8_t* buffers_ = nullptr;
    std::uint32_t sends_posted_ = 0;
    std::uint32_t sends_open_ = 0;
    std::unordered_map<std::uint32_t, ibv_ah*> handles_;
    struct Waiting {
        std::uint32_t lid;
        std::uint32_t qp_number;
        wire::CmMadBytes bytes;
    };
    std::deque<Waiting> waiting_;
};

template <class Visit>
bool Device::receive(Visit visit) {
    if (qp_ == nullptr) return false;
    bool any = false;
    std::array<ibv_wc, kBatch> done;
    for (;;) {
        const int count = ibv_poll_cq(receive_cq_, kBatch, done.data());
        for (int i = 0; i < count; ++i) {
            const auto& wc = done[static_cast<std::size_t>(i)];
            if (wc.status != IBV_WC_SUCCESS) continue;
            const auto slot = static_cast<std::uint32_t>(wc.wr_id);
            any = true;
            if (wc.byte_len >= kGrhBytes)
                visit(Arrival{wc.slid, wc.src_qp, buffers_ + slot * kSlotBytes + kGrhBytes,
                              wc.byte_len - kGrhBytes});
            post(slot);
        }
        if (count < kBatch) return any;
    }
}

}  // namespace weir::rdmacm

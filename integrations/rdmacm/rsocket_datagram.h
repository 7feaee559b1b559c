// SPDX-License-Identifier: Apache-2.0
// SOCK_DGRAM over an unreliable datagram queue pair. A port is an entry of the fabric's service
// table that names the queue pair itself, so that a sender finds its receiver without asking
// anybody. Ports of datagram rsockets are apart from those of rdma_cm's port spaces.
//
// Each datagram begins with who sent it:
//
//    0 | version 8 |     0: 8     |   source port 16   |
//    4 |        source address, IPv4 in the last 4 bytes          |
//   20 |                  0: 32                        |
#pragma once

#include <deque>
#include <unordered_map>

#include "device.h"
#include "rsocket.h"

namespace weir::rdmacm {

class DatagramSocket : public Socket {
  public:
    explicit DatagramSocket(int domain) : Socket(domain, SOCK_DGRAM) {}
    ~DatagramSocket() override;

    int bind(const sockaddr* address, socklen_t length) override;
    int connect(const sockaddr* address, socklen_t length) override;
    int shutdown(int how) override;
    int send(Cursor& from, int flags, Letter& letter) override;
    int receive(Cursor& to, int flags, Letter& letter) override;
    int local_address(Endpoint& out) override;
    int peer_address(Endpoint& out) override;
    void close() override;

    bool progress() override;
    short events() override;
    void prepare_sleep() override;
    [[nodiscard]] int wake_fd() const override;
    void after_sleep() override;

    /// The longest datagram: a packet less the header.
    static constexpr std::size_t kBytesMax = 4096 - 24;

  private:
    struct Arrival {
        std::uint32_t slot;
        std::size_t length;
        std::uint32_t lid;
        Endpoint from;
    };
    /// Where datagrams to an address go; found again once the queue pair is somebody else's.
    struct Route {
        Endpoint to;
        std::uint32_t lid = 0;
        std::uint32_t qp_number = 0;
        std::uint32_t process = 0;
    };

    int bind_to(Endpoint endpoint);
    int claim(Endpoint& endpoint);
    int make_queues();
    int make_ready();
    int post_receive(std::uint32_t slot);
    int find_route(const Endpoint& to);
    [[nodiscard]] bool comes_from_peer(const Arrival& arrival) const;
    void on_arrival(const ibv_wc& wc);
    int post(Cursor& from);
    ibv_ah* address_handle(std::uint32_t lid);
    [[nodiscard]] std::uint8_t* slot_at(std::uint32_t slot) const {
        return memory_ + slot * kStride;
    }

    static constexpr std::size_t kGrhBytes = 40;
    static constexpr std::size_t kHeaderBytes = 24;
    static constexpr std::size_t kStride = 4160;
    static constexpr std::uint64_t kSendMark = 1ULL << 63U;

    Device* device_ = nullptr;  ///< Once it has an address.
    Endpoint own_{};            ///< As bound.
    Endpoint source_{};         ///< As datagrams tell it.
    std::uint32_t claim_ = 0;
    bool claimed_ = false;
    Endpoint peer_{};
    std::uint32_t peer_lid_ = 0;  ///< 0 as long as nobody is there.
    bool connected_ = false;
    bool finished_ = false;
    bool deaf_ = false;
    Route route_;

    std::uint32_t receives_ = 0;
    std::uint32_t sends_ = 0;
    std::size_t memory_bytes_ = 0;
    std::uint8_t* memory_ = nullptr;  ///< Slots of receives, then of sends.
    ibv_comp_channel* channel_ = nullptr;
    ibv_cq* cq_ = nullptr;
    ibv_qp* qp_ = nullptr;
    ibv_mr* mr_ = nullptr;
    std::unordered_map<std::uint32_t, ibv_ah*> handles_;
    std::deque<Arrival> arrivals_;
    std::vector<std::uint32_t> free_sends_;
};

}  // namespace weir::rdmacm

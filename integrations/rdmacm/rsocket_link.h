// SPDX-License-Identifier: Apache-2.0
// Link: a stream socket's data path. An RC queue pair, its CQ and registered memory, and the Stream
// that says what to do with them. Used under the socket's lock.
//
//   memory:  | slot 0 | slot 1 | … one per receive |  send ring  | headers, one per send |
//
// A message is gathered from its header and the ring; a slot takes a header and its bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <rdma/rdma_cma.h>

#include "rsocket.h"
#include "rsocket/stream.h"

namespace weir::rdmacm {

class Link {
  public:
    /// Gives the identifier a queue pair, with its receives posted. 0 or an errno value.
    static int make(rdma_cm_id* id, const SocketOptions& options, std::unique_ptr<Link>& out);
    /// The identifier has to live until then.
    ~Link();
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    [[nodiscard]] rsocket::Greeting greeting() const;
    /// The connection stands, and this is what the peer said.
    void start(const rsocket::Greeting& peer);

    /// Takes completions, and sends what they make possible. True if there were any.
    bool progress();
    /// The connection is of no use any more: a request failed, or the peer broke the protocol.
    [[nodiscard]] bool broken() const { return broken_; }
    /// What was sent has arrived, the FIN included if it is wanted.
    [[nodiscard]] bool all_sent() const { return stream_.all_sent(); }

    [[nodiscard]] bool writable() const { return announcements_.empty() && stream_.room() > 0; }
    [[nodiscard]] bool readable() const { return stream_.readable() > 0; }
    [[nodiscard]] std::size_t readable_bytes() const { return stream_.readable(); }
    /// The peer has no credit left to send more.
    [[nodiscard]] bool full() const { return stream_.slots_filled() + 1 >= stream_.own().slots; }
    [[nodiscard]] bool fin_received() const { return stream_.fin_received(); }
    /// As much as there is room for.
    void send(Cursor& from);
    /// What there is, as far as it is wanted.
    void receive(Cursor& to, bool peek);
    void end_sending();
    void end_receiving();

    /// Memory that the peer may write to, or for local use (no PROT_WRITE).
    int map(void* address, std::size_t length, bool remote, off_t wanted, off_t& offset);
    [[nodiscard]] int unmap(void* address, std::size_t length);
    /// Writes as much as goes into the peer's mapping at `offset`, which it moves on. EFAULT if
    /// there is none.
    int write_mapped(Cursor& from, std::uint64_t& offset);
    [[nodiscard]] bool write_room() const { return stream_.write_room() > 0; }

    void arm();
    [[nodiscard]] int wake_fd() const { return channel_->fd; }
    void take_wake_ups();

  private:
    explicit Link(rdma_cm_id* id, rsocket::Limits limits, const SocketOptions& options);
    int make_memory();
    int make_queues(const SocketOptions& options);
    int post_receive(std::uint32_t slot);
    void post_message(const rsocket::MessageHeader& header, const rsocket::Stream::Cut* cut,
                      const rsocket::Mapping* mapping);
    /// Adds the bytes of a cut to the list, in one piece or two.
    int add_pieces(const rsocket::Stream::Cut& cut, ibv_sge* list) const;
    void post(ibv_send_wr& wr);
    void fill(const rsocket::Stream::Cut& cut, Cursor& from);
    void on_completion(const ibv_wc& wc);
    void on_message(std::uint32_t slot, std::size_t bytes);
    void on_control(const rsocket::MessageHeader& header, const std::uint8_t* body,
                    std::size_t length);
    /// Receives posted again, credits, the FIN, announcements of mappings.
    void pump();
    [[nodiscard]] std::uint8_t* slot_at(std::uint32_t slot) const {
        return memory_ + slot * stride_;
    }
    [[nodiscard]] std::uint8_t* next_header();

    static constexpr std::size_t kHeaderStride = 64;
    static constexpr std::uint64_t kSendMark = 1ULL << 63U;
    static constexpr int kBatch = 16;

    rdma_cm_id* id_;
    rsocket::Stream stream_;
    std::uint32_t sends_max_;
    std::size_t stride_;
    std::size_t ring_bytes_;
    std::size_t memory_bytes_ = 0;
    std::uint8_t* memory_ = nullptr;
    std::uint8_t* ring_ = nullptr;
    std::uint8_t* headers_ = nullptr;
    ibv_comp_channel* channel_ = nullptr;
    ibv_cq* cq_ = nullptr;
    ibv_mr* mr_ = nullptr;
    std::uint32_t inline_bytes_ = 0;
    std::uint32_t header_next_ = 0;
    bool started_ = false;
    bool broken_ = false;

    struct OwnMapping {
        rsocket::Mapping mapping;
        ibv_mr* mr;
        bool remote;
    };
    std::uint32_t mappings_max_;
    std::uint32_t peer_mappings_max_ = 0;
    std::vector<OwnMapping> own_mappings_;
    std::vector<rsocket::Mapping> peer_mappings_;
    /// What the peer has not been told, because there was no credit.
    std::vector<std::pair<rsocket::Kind, rsocket::Mapping>> announcements_;
};

}  // namespace weir::rdmacm

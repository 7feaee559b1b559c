// SPDX-License-Identifier: Apache-2.0
// Stream: one side of a byte stream over reliable messages, without clock, thread or system call.
// It says what may be sent and where its bytes lie; its user posts, and reports what completed.
//
//   cut() ─▶ message ─────────────▶ on_message() ─▶ consume() ─▶ take_free_slot()
//            │ "returned" of the other way ◀──── header of any message ◀──┘
//
// Credits: each side has `slots` receive slots. A message takes one of the peer's; it is the
// sender's again once the peer says that it returned it, in the header of whatever it sends, or in
// a credit message of its own when half of them are owed. The last credit is kept for that credit
// message, lest two full sides wait for each other: who has none left has just given the other at
// least two. The FIN has a slot of its own and needs no credit.
//
// Invariants, which the property test checks: credits in hand + messages under way + slots in use
// or owed = slots; what is taken from the program is under way, in a slot, or was read.
//
// Bytes accepted are always part of a message that can be posted at once: nothing waits in here for
// somebody to come by.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "rsocket/message.h"

namespace weir::rsocket {

class Stream {
  public:
    /// `ring_bytes`: room for bytes whose sending has not completed. `sends_max`: how many messages
    /// may be posted and not completed.
    Stream(Limits own, std::size_t ring_bytes, std::uint32_t sends_max);
    /// Before anything is sent.
    void set_peer(Limits peer);

    // ---------------------------------------------------------------- sending

    /// How many bytes cut() would take now; 0 if it must not be called.
    [[nodiscard]] std::size_t room() const;
    struct Cut {
        MessageHeader header;
        std::size_t begin;   ///< Where its bytes go in the ring, which they may wrap around.
        std::size_t length;  ///< At most what was wanted.
    };
    /// REQUIRES: room() > 0 and wanted > 0. The message is to be posted at once.
    Cut cut(std::size_t wanted);
    /// The same for bytes that are written straight into the peer's memory: no message, no credit.
    [[nodiscard]] std::size_t write_room() const;
    Cut cut_write(std::size_t wanted);

    /// A message without bytes of the stream: kMap, kUnmap. Nothing if it has to wait.
    std::optional<MessageHeader> take_control(Kind kind);
    /// A credit message, if one is due and possible.
    std::optional<MessageHeader> take_credit_message();
    /// No more cut() from now on.
    void end_sending() { ending_ = true; }
    [[nodiscard]] bool sending_ended() const { return ending_; }
    /// The FIN, once, after end_sending().
    std::optional<MessageHeader> take_fin();
    /// The oldest of what was posted has completed. False if there is none.
    bool on_sent();
    /// All that was posted has completed, the FIN included if it is wanted.
    [[nodiscard]] bool all_sent() const { return posted_.empty() && (!ending_ || fin_sent_); }

    // ---------------------------------------------------------------- receiving

    enum class Verdict : std::uint8_t {
        kTaken,    ///< Whatever it was, it is noted.
        kControl,  ///< kMap or kUnmap: for the user to read, who then calls free_slot().
        kBroken,   ///< Not what a peer of ours would send.
    };
    /// A message of `length` bytes beyond its header has come into a slot.
    Verdict on_message(std::uint32_t slot, const MessageHeader& header, std::size_t length);
    [[nodiscard]] std::size_t readable() const { return readable_; }
    /// All bytes were read and no more come.
    [[nodiscard]] bool at_end() const { return fin_received_ && readable_ == 0; }
    [[nodiscard]] bool fin_received() const { return fin_received_; }
    /// Hands out the next bytes, at most `wanted`: copy(slot, offset, length), in order. With
    /// `peek` they stay. Returns how many.
    template <class Copy>
    std::size_t consume(std::size_t wanted, bool peek, Copy&& copy);
    /// Nobody reads any more: drops what is there and what comes.
    void end_receiving();
    void free_slot(std::uint32_t slot) { free_slots_.push_back(slot); }
    /// A slot that a receive is to be posted for again. To be called until there is none, before
    /// messages are sent.
    std::optional<std::uint32_t> take_free_slot();

    // ---------------------------------------------------------------- for checks

    [[nodiscard]] std::uint32_t credits() const { return peer_.slots + granted_ - sent_; }
    [[nodiscard]] std::uint32_t slots_owed() const { return returned_ - told_; }
    [[nodiscard]] std::size_t slots_filled() const { return chunks_.size() + free_slots_.size(); }
    [[nodiscard]] std::size_t sends_open() const { return posted_.size(); }
    [[nodiscard]] const Limits& own() const { return own_; }

  private:
    /// A queue without allocation, of a capacity that its user never exceeds.
    template <class T>
    class Fifo {
      public:
        explicit Fifo(std::size_t capacity) : items_(capacity) {}
        [[nodiscard]] bool empty() const { return size_ == 0; }
        [[nodiscard]] std::size_t size() const { return size_; }
        T& front() { return items_[head_]; }
        T& at(std::size_t i) { return items_[(head_ + i) % items_.size()]; }
        void push_back(const T& item) {
            items_[(head_ + size_) % items_.size()] = item;
            ++size_;
        }
        T pop_front() {
            const T out = items_[head_];
            head_ = (head_ + 1) % items_.size();
            --size_;
            return out;
        }

      private:
        std::vector<T> items_;
        std::size_t head_ = 0;
        std::size_t size_ = 0;
    };

    /// What of a slot has not been read.
    struct Chunk {
        std::uint32_t slot = 0;
        std::uint32_t offset = 0;
        std::uint32_t length = 0;
    };

    // Of each kind of message, how many sends are kept free for those that must not wait for it.
    static constexpr std::uint32_t kSendsForFin = 1;
    static constexpr std::uint32_t kSendsForCredit = 1;
    [[nodiscard]] bool has_send(std::uint32_t kept) const {
        return posted_.size() + kept < sends_max_;
    }
    [[nodiscard]] bool has_data_credit() const { return credits() > 1; }
    MessageHeader head(Kind kind);
    std::size_t take_ring(std::size_t bytes);

    Limits own_;
    Limits peer_;
    std::size_t ring_bytes_;
    std::uint32_t sends_max_;

    // Sending. Counters are modulo 2^32, as on the wire.
    std::uint64_t position_ = 0;  ///< Bytes of the stream cut so far.
    std::size_t ring_begin_ = 0;  ///< Where the next bytes go.
    std::size_t ring_used_ = 0;
    Fifo<std::size_t> posted_;   ///< Ring bytes of each message that has not completed.
    std::uint32_t sent_ = 0;     ///< Messages that took a slot of the peer's.
    std::uint32_t granted_ = 0;  ///< Slots that the peer returned.
    bool ending_ = false;
    bool fin_sent_ = false;

    // Receiving.
    std::uint64_t expected_ = 0;  ///< Position of the next message.
    Fifo<Chunk> chunks_;
    Fifo<std::uint32_t> free_slots_;
    std::size_t readable_ = 0;
    std::uint32_t returned_ = 0;  ///< Slots posted again.
    std::uint32_t told_ = 0;      ///< As many as the peer knows of.
    bool fin_received_ = false;
    bool deaf_ = false;  ///< Nobody reads any more.
};

template <class Copy>
std::size_t Stream::consume(std::size_t wanted, bool peek, Copy&& copy) {
    std::size_t done = 0;
    for (std::size_t i = 0; done < wanted && i < chunks_.size();) {
        Chunk& chunk = chunks_.at(i);
        const auto part = std::min<std::size_t>(wanted - done, chunk.length);
        copy(chunk.slot, static_cast<std::size_t>(chunk.offset), part);
        done += part;
        if (peek) {
            ++i;
            continue;
        }
        chunk.offset += static_cast<std::uint32_t>(part);
        chunk.length -= static_cast<std::uint32_t>(part);
        readable_ -= part;
        if (chunk.length == 0) free_slots_.push_back(chunks_.pop_front().slot);
    }
    return done;
}

}  // namespace weir::rsocket

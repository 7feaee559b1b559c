// SPDX-License-Identifier: Apache-2.0
// The responder: judges each request packet of a connected QP (RC, UC) and has it executed
// (IBTA 9.7.4, 9.7.5, 9.8.3). Sans-IO: memory, receive queue and replies are the environment's;
// this decides order, duplicates, opcode sequence, lengths and rights, and which answer goes back.
//
// Env gives, for the packet at hand:
//   Access write(rkey, address, length)         place the packet's payload
//   Access check_write(rkey, address, length)   rights for a whole RDMA write, without touching it
//   Access read(header)                         check rights and send the read's responses
//   Access atomic(header, original&)            execute, give the value before
//   Access atomic_write(header)                 store the payload's eight bytes as one
//   Access flush(header)                        check rights; all written before is made visible
//   Receipt receive(header)                     place a send's payload in the receive in progress
//   (taking one
//                                               off the queue at the start of a message); complete
//                                               it at its end
//   Receipt notify(header)                      the receive that a write with immediate consumes;
//   completes it void abort_receive()                        the open message is given up; its
//   receive ends in error void reply(syndrome, psn, msn)              acknowledge void
//   reply_atomic(psn, msn, original)
//   void reply_done(psn, msn)                   a read response without data
#pragma once

#include <cstdint>

#include "transport/responder_state.h"
#include "wire/headers.h"
#include "wire/psn.h"
#include "wire/syndrome.h"

namespace weir::transport {

enum class Access : std::uint8_t {
    kOk,
    kDenied,  ///< Bad key, bounds or rights: NAK, remote access error.
    kFault,   ///< The memory could not be reached: NAK, remote operational error.
    kLater,   ///< Not by this executor: the packet stays and its owner must execute it.
};

enum class Receipt : std::uint8_t {
    kOk,
    kNoReceive,  ///< Nothing posted: RNR NAK.
    kTooLong,    ///< The message exceeds the receive, which ended: NAK, invalid request.
    kFault,      ///< Local protection or memory error, and so: NAK, remote operational error.
    kLater,      ///< Not by this executor.
    kWithdrawn,  ///< Its payload is the sender's again: as if the packet had been lost.
};

/// What to do with the packet after judging it.
enum class Verdict : std::uint8_t {
    kTaken,   ///< Done with it, be it executed, answered or dropped.
    kLater,   ///< Leave it at the head; the QP's owner must see to it.
    kBroken,  ///< Taken, and answered with a fatal NAK if it is RC: the connection is in error.
};

/// What a QP allows its peer, fixed at the move to RTR.
struct ResponderRules {
    bool reliable;  ///< RC; else UC, which answers nothing and drops what it cannot take.
    bool allow_write;
    bool allow_read;
    bool allow_atomic;
    std::uint32_t mtu;
    std::uint8_t rnr_timer_code;
    bool allow_flush = false;
};

template <class Env>
class Responder {
  public:
    Responder(ResponderState& state, const ResponderRules& rules, Env& env)
        : state_(state),
          rules_(rules),
          env_(env) {}

    Verdict on_request(const wire::PacketHeader& header) {
        if (!rules_.reliable) return on_unreliable(header);
        const auto ahead = wire::psn_diff(header.psn, state_.expected_psn);
        if (ahead < 0) return on_duplicate(header);
        if (ahead > 0) return on_gap(header);
        state_.nak_outstanding = 0;
        return on_expected(header);
    }

    /// Sends the acknowledgement that is due, if one is. Called after a batch of requests.
    void flush_ack() {
        if (state_.ack_due == 0) return;
        state_.ack_due = 0;
        env_.reply(wire::ack_syndrome(), wire::psn_sub(state_.expected_psn, 1),
                   state_.message_count);
    }

  private:
    Verdict on_gap(const wire::PacketHeader&) {
        if (state_.nak_outstanding != 0) return Verdict::kTaken;
        state_.nak_outstanding = 1;
        state_.ack_due = 0;
        env_.reply(wire::nak_syndrome(wire::NakCode::kPsnSequenceError), state_.expected_psn,
                   state_.message_count);
        return Verdict::kTaken;
    }

    Verdict on_duplicate(const wire::PacketHeader& header) {
        if (header.opcode == wire::Opcode::kRcReadRequest) {
            // Executed afresh, as IBTA 9.4.4 has it; a read it may no longer do is dropped.
            const auto got = rules_.allow_read ? env_.read(header) : Access::kDenied;
            return got == Access::kLater ? Verdict::kLater : Verdict::kTaken;
        }
        if (wire::is_atomic(header.opcode)) {
            for (const auto& reply : state_.replies) {
                if (reply.valid != 0 && reply.psn == header.psn) {
                    env_.reply_atomic(header.psn, state_.message_count, reply.original);
                }
            }
            return Verdict::kTaken;
        }
        if (header.opcode == wire::Opcode::kRcAtomicWrite ||
            header.opcode == wire::Opcode::kRcFlush) {
            env_.reply_done(header.psn, state_.message_count);
            return Verdict::kTaken;
        }
        state_.ack_due = 1;
        return Verdict::kTaken;
    }

    Verdict on_unreliable(const wire::PacketHeader& header) {
        if (header.psn != state_.expected_psn) {
            // Packets were lost: the open message is void, and what is left of it is passed over.
            if (state_.open_message != 0) env_.abort_receive();
            state_.open_message = 0;
            state_.expected_psn = header.psn;
        }
        if (state_.open_message == 0 && !wire::starts_message(header.opcode)) {
            advance(header);
            return Verdict::kTaken;
        }
        return on_expected(header);
    }

    /// True if the packet goes on with what is open, or starts something when nothing is.
    [[nodiscard]] bool in_sequence(const wire::PacketHeader& header) const {
        if (wire::starts_message(header.opcode)) return state_.open_message == 0;
        if (state_.open_message == 0) return false;
        const auto opened = static_cast<wire::Opcode>(state_.open_message - 1);
        return wire::is_send(opened) == wire::is_send(header.opcode) &&
               wire::is_write(opened) == wire::is_write(header.opcode);
    }

    Verdict on_expected(const wire::PacketHeader& header) {
        if (!wire::is_request(header.opcode) || !in_sequence(header)) {
            return refuse(wire::NakCode::kInvalidRequest, header);
        }
        // All but the last packet of a message are whole multiples of the MTU (IBTA 9.7.4.1.5).
        if (!wire::ends_message(header.opcode) &&
            (header.payload_length == 0 || header.payload_length % rules_.mtu != 0)) {
            return refuse(wire::NakCode::kInvalidRequest, header);
        }
        if (wire::is_send(header.opcode)) return on_send(header);
        if (wire::is_write(header.opcode)) return on_write(header);
        if (!rules_.reliable) return refuse(wire::NakCode::kInvalidRequest, header);
        switch (header.opcode) {
            case wire::Opcode::kRcReadRequest:
                return on_read(header);
            case wire::Opcode::kRcAtomicWrite:
                return on_atomic_write(header);
            case wire::Opcode::kRcFlush:
                return on_answered(rules_.allow_flush ? env_.flush(header) : Access::kDenied,
                                   header);
            default:
                return on_atomic(header);
        }
    }

    Verdict on_send(const wire::PacketHeader& header) {
        switch (env_.receive(header)) {
            case Receipt::kOk:
                break;
            case Receipt::kLater:
                return Verdict::kLater;
            case Receipt::kWithdrawn:
                return Verdict::kTaken;
            case Receipt::kNoReceive:
                return not_ready(header);
            case Receipt::kTooLong:
                refuse(wire::NakCode::kInvalidRequest, header);
                return Verdict::kBroken;  // UC too: a receive has ended in error
            case Receipt::kFault:
                refuse(wire::NakCode::kRemoteOperationalError, header);
                return Verdict::kBroken;
        }
        return accept(header);
    }

    Verdict on_write(const wire::PacketHeader& header) {
        std::uint64_t address = state_.write_address;
        std::uint32_t rkey = state_.write_rkey;
        std::uint32_t left = state_.write_left;
        if (wire::starts_message(header.opcode)) {
            if (!rules_.allow_write) return refuse(wire::NakCode::kRemoteAccessError, header);
            address = header.virtual_address;
            rkey = header.rkey;
            left = header.dma_length;
            // A write of nothing checks no key (IBTA 9.7.4.1.3).
            const auto rights = left == 0 ? Access::kOk : env_.check_write(rkey, address, left);
            if (rights != Access::kOk) return on_access(rights, header);
        }
        const bool ends = wire::ends_message(header.opcode);
        if (header.payload_length > left || (ends && header.payload_length != left)) {
            return refuse(wire::NakCode::kInvalidRequest, header);
        }
        if (header.payload_length > 0) {
            const auto written = env_.write(rkey, address, header.payload_length);
            if (written != Access::kOk) return on_access(written, header);
        }
        if (wire::has_immediate(header.opcode)) {
            switch (env_.notify(header)) {
                case Receipt::kOk:
                    break;
                case Receipt::kLater:
                    return Verdict::kLater;
                case Receipt::kNoReceive:
                    return not_ready(header);
                default:
                    return refuse(wire::NakCode::kRemoteOperationalError, header);
            }
        }
        if (wire::starts_message(header.opcode)) state_.write_bytes = header.dma_length;
        state_.write_address = address + header.payload_length;
        state_.write_rkey = rkey;
        state_.write_left = left - header.payload_length;
        return accept(header);
    }

    Verdict on_read(const wire::PacketHeader& header) {
        const auto got = rules_.allow_read ? env_.read(header) : Access::kDenied;
        if (got != Access::kOk) return on_access(got, header);
        // The responses acknowledge all before them.
        state_.ack_due = 0;
        state_.message_count = (state_.message_count + 1) & wire::kMask24;
        state_.expected_psn =
            wire::psn_add(header.psn, wire::packets_in(header.dma_length, rules_.mtu));
        return Verdict::kTaken;
    }

    Verdict on_atomic(const wire::PacketHeader& header) {
        if (header.virtual_address % 8 != 0) {
            return refuse(wire::NakCode::kInvalidRequest, header);
        }
        std::uint64_t original = 0;
        const auto done = rules_.allow_atomic ? env_.atomic(header, original) : Access::kDenied;
        if (done != Access::kOk) return on_access(done, header);
        state_.replies[state_.next_reply] = {header.psn, 1, original};
        state_.next_reply = (state_.next_reply + 1) % kAtomicReplies;
        state_.ack_due = 0;
        state_.message_count = (state_.message_count + 1) & wire::kMask24;
        advance(header);
        env_.reply_atomic(header.psn, state_.message_count, original);
        return Verdict::kTaken;
    }

    Verdict on_atomic_write(const wire::PacketHeader& header) {
        if (header.virtual_address % 8 != 0 || header.payload_length != 8 ||
            header.dma_length != 8) {
            return refuse(wire::NakCode::kInvalidRequest, header);
        }
        return on_answered(rules_.allow_write ? env_.atomic_write(header) : Access::kDenied,
                           header);
    }

    /// Of one packet, and answered by a read response without data.
    Verdict on_answered(Access done, const wire::PacketHeader& header) {
        if (done != Access::kOk) return on_access(done, header);
        state_.ack_due = 0;
        state_.message_count = (state_.message_count + 1) & wire::kMask24;
        advance(header);
        env_.reply_done(header.psn, state_.message_count);
        return Verdict::kTaken;
    }

    Verdict on_access(Access result, const wire::PacketHeader& header) {
        if (result == Access::kLater) return Verdict::kLater;
        return refuse(result == Access::kDenied ? wire::NakCode::kRemoteAccessError
                                                : wire::NakCode::kRemoteOperationalError,
                      header);
    }

    Verdict accept(const wire::PacketHeader& header) {
        state_.open_message = wire::ends_message(header.opcode) ? 0
                              : wire::starts_message(header.opcode)
                                  ? static_cast<std::uint32_t>(header.opcode) + 1
                                  : state_.open_message;
        if (wire::ends_message(header.opcode)) {
            state_.message_count = (state_.message_count + 1) & wire::kMask24;
        }
        advance(header);
        if (header.has(wire::kFlagAckRequest)) state_.ack_due = rules_.reliable ? 1 : 0;
        return Verdict::kTaken;
    }

    /// No receive is posted. UC passes the message over; RC asks for it again later, from this
    /// packet on.
    Verdict not_ready(const wire::PacketHeader& header) {
        if (!rules_.reliable) {
            state_.open_message = 0;
            advance(header);
            return Verdict::kTaken;
        }
        state_.ack_due = 0;
        // What follows the packet is out of order now, and silence about it is right
        // (IBTA 9.7.5.2.8).
        state_.nak_outstanding = 1;
        env_.reply(wire::rnr_nak_syndrome(rules_.rnr_timer_code), header.psn, state_.message_count);
        return Verdict::kTaken;
    }

    Verdict refuse(wire::NakCode code, const wire::PacketHeader& header) {
        if (!rules_.reliable) {
            if (state_.open_message != 0) env_.abort_receive();
            state_.open_message = 0;
            advance(header);
            return Verdict::kTaken;
        }
        state_.ack_due = 0;
        env_.reply(wire::nak_syndrome(code), header.psn, state_.message_count);
        return Verdict::kBroken;
    }

    void advance(const wire::PacketHeader& header) {
        state_.expected_psn =
            wire::psn_add(header.psn, wire::packets_in(header.payload_length, rules_.mtu));
    }

    ResponderState& state_;
    const ResponderRules& rules_;
    Env& env_;
};

}  // namespace weir::transport

// SPDX-License-Identifier: Apache-2.0
// AttachClient: a program's, or a tool's, side of the attach protocol (arena/attach.h). Holds one
// connection to a fabric's daemon and, once asked for, the mapped arena.
//
// Each request waits for its reply at most kReplySeconds; a daemon that does not answer is an
// error, not a hang. Not thread-safe: the owner serialises. No exceptions but bad_alloc, nothing
// printed.
//
// The connection is the attachment: when the client goes, the daemon takes back all that it held.
// After fork() it still belongs to the parent; a child connects anew.
//
// Error codes of connect(): kInvalid (no fabric's name), kNotFound (no such fabric), kUnreachable
// (its daemon has died, or does not answer), kDenied (another user's).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "arena/attach.h"
#include "arena/layout.h"
#include "base/result.h"
#include "runtime/real/shared_memory.h"
#include "runtime/real/unique_fd.h"

namespace weir::runtime {

inline constexpr int kReplySeconds = 10;

/// The memfd that attach() wants beside the node: the process's window.
Result<UniqueFd> create_window();

class AttachClient {
  public:
    /// `seconds` is the limit for connecting and for each reply.
    static Result<AttachClient> connect(const std::string& fabric, int seconds = kReplySeconds);

    /// Maps the arena for reading. Enough for tools; nothing in the fabric changes.
    Result<void> observe();

    /// Joins as a user of the HCA node `node`, and maps the arena for reading and writing. Gives
    /// the process identity. `window_fd` stays the caller's. Once per client. kBusy: no process
    /// slot is free; kInvalid: no such HCA; kExists: attached already.
    Result<std::uint32_t> attach(std::uint32_t node, int window_fd);

    /// The window of another attached process. kNotFound if it is gone.
    Result<UniqueFd> peer_window(std::uint32_t identity);

    /// `name` is a link ("h0:1-s0:1") or either of its ends ("s0:1").
    Result<void> set_link(std::string_view name, bool up);

    /// The same link's rate in each direction; 0 unlimited. kInvalid: out of range.
    Result<void> set_rate(std::string_view name, std::uint64_t bits_per_second);

    /// Asks the daemon to end. It does so after its reply.
    Result<void> shutdown();

    /// REQUIRES: observe() or attach() succeeded.
    [[nodiscard]] arena::Arena arena() const { return arena::Arena(mapping_.data()); }
    [[nodiscard]] std::uint64_t arena_bytes() const { return mapping_.bytes(); }

    /// Becomes readable (end of stream) when the daemon ends; otherwise never between calls.
    [[nodiscard]] int socket() const { return socket_.get(); }

  private:
    explicit AttachClient(UniqueFd socket, std::string fabric)
        : socket_(std::move(socket)),
          fabric_(std::move(fabric)) {}
    struct Answer {
        arena::AttachReply reply{};
        UniqueFd fd;
    };
    Result<void> ask_of_link(arena::AttachRequest request, std::string_view name);
    Result<Answer> ask(arena::AttachRequest request, int fd);
    Result<void> map_arena(const Answer& answer, MapAccess access);

    UniqueFd socket_;
    std::string fabric_;
    Mapping mapping_;
};

}  // namespace weir::runtime

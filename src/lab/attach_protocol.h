// SPDX-License-Identifier: Apache-2.0
// The daemon's judgement of one request: bytes and who sent them in, what to do and what to answer
// out. A pure function over whatever bytes arrive (it is fuzzed); the daemon only carries it out.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "arena/attach.h"
#include "arena/layout.h"
#include "lab/arena_view.h"

namespace weir::lab {

enum class Act : std::uint8_t {
    kRefuse,  ///< Answer `status` and `text`; the connection lives on.
    kHangUp,  ///< Answer and close: who sends this does not speak our protocol, or may not.
    kGiveArena,
    kAttach,      ///< To node `node`, with the window that came along.
    kPeerWindow,  ///< That of `identity`.
    kSetLink,     ///< `link` to `up`.
    kSetRate,     ///< `link` to `rate_bits_per_second`.
    kShutdown,
};

/// What is known of the sender without looking at its bytes.
struct Caller {
    uid_t uid = 0;
    bool attached = false;
};

/// What arrived.
struct Message {
    std::span<const std::byte> bytes;
    std::size_t fd_count = 0;
    bool truncated = false;  ///< More bytes or descriptors than anybody has reason to send.
};

struct Judgement {
    Act act = Act::kRefuse;
    int status = 0;  ///< errno value, 0 unless refused.
    std::string text{};
    std::uint32_t node = 0;
    std::uint32_t identity = 0;
    LinkView link{0, 0};
    bool up = false;
    std::uint64_t rate_bits_per_second = 0;
};

/// `owner` is the user that the daemon runs as. The arena is the fabric's, which names and indices
/// in the request are checked against.
Judgement judge(const Message& message, const Caller& caller, uid_t owner, arena::Arena arena);

/// The record that says so. Text that is too long is cut.
arena::AttachReply make_reply(int status, std::string_view text = {});

}  // namespace weir::lab

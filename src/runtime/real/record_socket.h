// SPDX-License-Identifier: Apache-2.0
// Records with descriptors beside them, over a Unix SOCK_SEQPACKET socket. One call sends or takes
// exactly one record. What arrives is bounded in bytes and in descriptors: a record that is larger,
// or that brings more descriptors than we have room for, is delivered cut short and marked
// `truncated`; the surplus descriptors are closed by the kernel. Received descriptors are
// close-on-exec.
//
// Errors are plain errno values: these calls sit below everything that can word an error. No
// SIGPIPE.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <span>

#include "base/result.h"
#include "runtime/real/unique_fd.h"

namespace weir::runtime {

/// Descriptors that one record can bring.
inline constexpr std::size_t kRecordFdLimit = 4;

struct Record {
    std::size_t bytes = 0;  ///< 0: the other side has closed.
    bool truncated = false;
    std::size_t fd_count = 0;
    std::array<UniqueFd, kRecordFdLimit> fds;
};

enum class Waiting { kAllowed, kNever };

/// Sends one record. 0, or an errno value; EAGAIN if it may not wait and there is no room, or if
/// the socket's time limit has passed. REQUIRES: fds.size() <= kRecordFdLimit.
int send_record(int socket, std::span<const std::byte> bytes, std::span<const int> fds,
                Waiting waiting);

/// Takes one record into `buffer`. 0, or an errno value; `out` is set on 0 only.
int receive_record(int socket, std::span<std::byte> buffer, Record& out, Waiting waiting);

/// Who is at the other end, by the kernel's word. The process that connected, not who uses it now.
struct PeerCredentials {
    pid_t pid = 0;
    uid_t uid = static_cast<uid_t>(-1);
};
Result<PeerCredentials> peer_credentials(int socket);

/// A listening socket at `name` in the folder `folder_fd`, whose path is `folder` (for messages and
/// where it is short enough for a socket address). Non-blocking, mode 0600.
Result<UniqueFd> listen_records(int folder_fd, const std::string& folder, const std::string& name);

/// Connects. Waits for room in the other side's queue at most `seconds`, which is also the limit of
/// each later call that may wait.
Result<UniqueFd> connect_records(int folder_fd, const std::string& folder, const std::string& name,
                                 int seconds);

/// Takes a waiting connection, non-blocking. Invalid and errno EAGAIN if there is none.
UniqueFd accept_record_socket(int listener);

}  // namespace weir::runtime

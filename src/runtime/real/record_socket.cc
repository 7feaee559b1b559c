// SPDX-License-Identifier: Apache-2.0
#include "runtime/real/record_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/check.h"
#include "runtime/real/system_error.h"

namespace weir::runtime {
namespace {

constexpr int kBacklog = 128;

/// Room for the descriptors' control message, aligned as the kernel wants it.
struct ControlBuffer {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kRecordFdLimit * sizeof(int))> bytes{};
};

/// A socket address is limited to 108 bytes. A longer path is reached through the descriptor of its
/// folder, which needs /proc.
Result<sockaddr_un> address_of(int folder_fd, const std::string& folder, const std::string& name) {
    std::string path = folder + "/" + name;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof(address.sun_path)) {
        path = "/proc/self/fd/" + std::to_string(folder_fd) + "/" + name;
    }
    if (path.size() >= sizeof(address.sun_path)) {
        return fail(ErrorCode::kInvalid, "socket path is too long: " + folder + "/" + name);
    }
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    return address;
}

void take_descriptors(msghdr& message, Record& record) {
    for (cmsghdr* control = CMSG_FIRSTHDR(&message); control != nullptr;
         control = CMSG_NXTHDR(&message, control)) {
        if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        const std::size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; ++i) {
            int fd = -1;
            std::memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof(int));
            UniqueFd owned(fd);
            if (record.fd_count < kRecordFdLimit) {
                record.fds[record.fd_count++] = std::move(owned);
            } else {
                record.truncated = true;
            }
        }
    }
}

}  // namespace

int send_record(int socket, std::span<const std::byte> bytes, std::span<const int> fds,
                Waiting waiting) {
    WEIR_CHECK(fds.size() <= kRecordFdLimit);
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    ControlBuffer control;
    if (!fds.empty()) {
        message.msg_control = control.bytes.data();
        message.msg_controllen = CMSG_SPACE(fds.size_bytes());
        cmsghdr* head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(fds.size_bytes());
        std::memcpy(CMSG_DATA(head), fds.data(), fds.size_bytes());
    }
    const int flags = MSG_NOSIGNAL | (waiting == Waiting::kNever ? MSG_DONTWAIT : 0);
    while (true) {
        const ssize_t sent = ::sendmsg(socket, &message, flags);
        if (sent >= 0) {
            return static_cast<std::size_t>(sent) == bytes.size() ? 0 : EMSGSIZE;
        }
        if (errno != EINTR) {
            return errno;
        }
    }
}

int receive_record(int socket, std::span<std::byte> buffer, Record& out, Waiting waiting) {
    iovec part{buffer.data(), buffer.size()};
    ControlBuffer control;
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes.data();
    message.msg_controllen = control.bytes.size();
    const int flags = MSG_CMSG_CLOEXEC | (waiting == Waiting::kNever ? MSG_DONTWAIT : 0);
    ssize_t taken = -1;
    do {
        taken = ::recvmsg(socket, &message, flags);
    } while (taken < 0 && errno == EINTR);
    if (taken < 0) {
        return errno;
    }
    Record record;
    record.bytes = static_cast<std::size_t>(taken);
    record.truncated = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
    take_descriptors(message, record);
    out = std::move(record);
    return 0;
}

Result<PeerCredentials> peer_credentials(int socket) {
    ucred peer{};
    socklen_t size = sizeof(peer);
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
        return fail_errno(errno, "cannot tell who is connected");
    }
    return PeerCredentials{peer.pid, peer.uid};
}

Result<UniqueFd> listen_records(int folder_fd, const std::string& folder, const std::string& name) {
    WEIR_TRY(const sockaddr_un address, address_of(folder_fd, folder, name));
    UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!listener.valid()) {
        return fail_errno(errno, "cannot create a socket");
    }
    if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
        return fail_errno(errno, "cannot bind " + folder + "/" + name);
    }
    if (::fchmodat(folder_fd, name.c_str(), 0600, 0) != 0 ||
        ::listen(listener.get(), kBacklog) != 0) {
        return fail_errno(errno, "cannot listen at " + folder + "/" + name);
    }
    return listener;
}

Result<UniqueFd> connect_records(int folder_fd, const std::string& folder, const std::string& name,
                                 int seconds) {
    WEIR_TRY(const sockaddr_un address, address_of(folder_fd, folder, name));
    UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (!socket.valid()) {
        return fail_errno(errno, "cannot create a socket");
    }
    const timeval limit{seconds, 0};
    if (::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) != 0 ||
        ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) != 0) {
        return fail_errno(errno, "cannot set a socket's time limit");
    }
    while (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) !=
           0) {
        if (errno != EINTR) {
            return fail_errno(errno, "cannot connect to " + folder + "/" + name);
        }
    }
    return socket;
}

UniqueFd accept_record_socket(int listener) {
    int fd = -1;
    do {
        fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    } while (fd < 0 && (errno == EINTR || errno == ECONNABORTED));
    return UniqueFd(fd);
}

}  // namespace weir::runtime

// SPDX-License-Identifier: Apache-2.0
// The functions of rsocket.h, which lead to the socket that has the number.
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <limits>

#include <rdma/rsocket.h>

#include "abi.h"
#include "cm.h"
#include "rsocket_datagram.h"
#include "rsocket_service.h"
#include "rsocket_stream.h"

namespace weir::rdmacm {
namespace {

constexpr int kTypeFlags = SOCK_NONBLOCK | SOCK_CLOEXEC;

/// Gives the socket its number and puts it into the table.
int publish(const std::shared_ptr<Socket>& socket, int flags) {
    if (const int error = socket->take_number(flags); error != 0) return error;
    socket->nonblocking = (flags & SOCK_NONBLOCK) != 0;
    Sockets::instance().add(socket);
    return 0;
}

int create(int domain, int type, int protocol, int& number) {
    const int kind = type & ~kTypeFlags;
    if (domain != AF_INET && domain != AF_INET6) return EAFNOSUPPORT;
    if (kind != SOCK_STREAM && kind != SOCK_DGRAM) return EPROTONOSUPPORT;
    if (protocol != 0 && protocol != (kind == SOCK_STREAM ? IPPROTO_TCP : IPPROTO_UDP))
        return EPROTONOSUPPORT;
    {
        auto& cm = Cm::instance();
        const std::lock_guard guard(cm.lock);
        if (const int error = cm.open_devices(); error != 0) return error;
    }
    std::shared_ptr<Socket> socket;
    if (kind == SOCK_STREAM)
        socket = std::make_shared<StreamSocket>(domain);
    else
        socket = std::make_shared<DatagramSocket>(domain);
    const int error = publish(socket, type & kTypeFlags);
    number = socket->number();
    return error;
}

/// Runs `body` on the socket; -1 with errno set if it gives an errno value.
template <class Body>
int with(int number, Body&& body) {
    return ibverbs::minus_one_if(ibverbs::fenced([&] {
        const auto socket = Sockets::instance().find(number);
        return socket == nullptr ? EBADF : body(*socket);
    }));
}

int accept_one(Socket& listener, sockaddr* address, socklen_t* length, int& number) {
    std::shared_ptr<Socket> socket;
    Endpoint peer;
    if (const int error = listener.accept(socket, peer); error != 0) return error;
    if (const int error = publish(socket, 0); error != 0) {
        socket->close();
        return error;
    }
    give_address(peer, socket->domain(), address, length);
    number = socket->number();
    return 0;
}

bool are_good(const iovec* parts, std::size_t count) {
    if (count > 0 && parts == nullptr) return false;
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < count; ++i)
        if (__builtin_add_overflow(bytes, parts[i].iov_len, &bytes)) return false;
    return bytes <= static_cast<std::size_t>(std::numeric_limits<ssize_t>::max());
}

ssize_t send(int number, const iovec* parts, std::size_t count, int flags, Letter letter = {}) {
    if (count > IOV_MAX) return ibverbs::minus_one_if(EMSGSIZE);
    if (!are_good(parts, count)) return ibverbs::minus_one_if(EINVAL);
    Cursor from(parts, count);
    bool stream = false;
    const int failed = with(number, [&](Socket& socket) {
        stream = socket.type() == SOCK_STREAM;
        return socket.send(from, flags, letter);
    });
    if (failed == 0) return static_cast<ssize_t>(stream ? from.done() : letter.full_length);
    if (errno == EPIPE && stream && (flags & MSG_NOSIGNAL) == 0) {
        raise(SIGPIPE);
        errno = EPIPE;
    }
    return -1;
}

/// As much as came; of a datagram with MSG_TRUNC all there was.
ssize_t receive(int number, const iovec* parts, std::size_t count, int flags, Letter& letter) {
    if (count > IOV_MAX) return ibverbs::minus_one_if(EMSGSIZE);
    if (!are_good(parts, count)) return ibverbs::minus_one_if(EINVAL);
    Cursor to(parts, count);
    bool stream = false;
    const int failed = with(number, [&](Socket& socket) {
        stream = socket.type() == SOCK_STREAM;
        return socket.receive(to, flags, letter);
    });
    if (failed != 0) return -1;
    const bool all = (flags & MSG_TRUNC) != 0 && !stream;
    return static_cast<ssize_t>(all ? letter.full_length : to.done());
}

void give_sender(int number, const Letter& letter, sockaddr* address, socklen_t* length) {
    if (address == nullptr || length == nullptr) return;
    const auto socket = Sockets::instance().find(number);
    if (letter.has_from && socket != nullptr)
        give_address(letter.from, socket->domain(), address, length);
    else
        *length = 0;
}

int control(Socket& socket, int command, int argument, int& out) {
    switch (command) {
        case F_GETFL:
            out = O_RDWR | (socket.nonblocking ? O_NONBLOCK : 0);
            return 0;
        case F_SETFL:
            socket.nonblocking = (argument & O_NONBLOCK) != 0;
            return 0;
        case F_GETFD:
        case F_SETFD:
            out = fcntl(socket.number(), command, argument);
            return out < 0 ? errno : 0;
        default:
            return EINVAL;
    }
}

iovec part_of(const void* bytes, std::size_t length) {
    return {const_cast<void*>(bytes), length};
}

}  // namespace
}  // namespace weir::rdmacm

using namespace weir::rdmacm;  // The functions below are the C ABI, outside any namespace.
using weir::ibverbs::fenced;
using weir::ibverbs::minus_one_if;

extern "C" {

int rsocket(int domain, int type, int protocol) {
    int number = -1;
    const int error = fenced([&] { return create(domain, type, protocol, number); });
    return error == 0 ? number : minus_one_if(error);
}

int rbind(int number, const sockaddr* address, socklen_t length) {
    return with(number, [&](Socket& socket) { return socket.bind(address, length); });
}

int rlisten(int number, int backlog) {
    return with(number, [&](Socket& socket) { return socket.listen(backlog); });
}

int raccept(int number, sockaddr* address, socklen_t* length) {
    int out = -1;
    const int failed =
        with(number, [&](Socket& socket) { return accept_one(socket, address, length, out); });
    return failed != 0 ? failed : out;
}

int rconnect(int number, const sockaddr* address, socklen_t length) {
    return with(number, [&](Socket& socket) { return socket.connect(address, length); });
}

int rshutdown(int number, int how) {
    return with(number, [&](Socket& socket) { return socket.shutdown(how); });
}

int rclose(int number) {
    return minus_one_if(fenced([&] {
        const auto socket = Sockets::instance().remove(number);
        if (socket == nullptr) return EBADF;
        socket->close();
        socket->drop_number();
        return 0;
    }));
}

ssize_t rrecv(int number, void* bytes, size_t length, int flags) {
    const auto part = part_of(bytes, length);
    Letter letter;
    return receive(number, &part, 1, flags, letter);
}

ssize_t rrecvfrom(int number, void* bytes, size_t length, int flags, sockaddr* from,
                  socklen_t* from_length) {
    const auto part = part_of(bytes, length);
    Letter letter;
    const auto got = receive(number, &part, 1, flags, letter);
    if (got >= 0) give_sender(number, letter, from, from_length);
    return got;
}

ssize_t rrecvmsg(int number, msghdr* message, int flags) {
    if (message == nullptr) return minus_one_if(EFAULT);
    Letter letter;
    const auto got = receive(number, message->msg_iov, message->msg_iovlen, flags, letter);
    if (got < 0) return got;
    give_sender(number, letter, static_cast<sockaddr*>(message->msg_name), &message->msg_namelen);
    message->msg_controllen = 0;
    message->msg_flags = letter.truncated ? MSG_TRUNC : 0;
    return got;
}

ssize_t rread(int number, void* bytes, size_t length) {
    return rrecv(number, bytes, length, 0);
}

ssize_t rreadv(int number, const iovec* parts, int count) {
    if (count < 0) return minus_one_if(EINVAL);
    Letter letter;
    return receive(number, parts, static_cast<std::size_t>(count), 0, letter);
}

ssize_t rsend(int number, const void* bytes, size_t length, int flags) {
    const auto part = part_of(bytes, length);
    return send(number, &part, 1, flags);
}

ssize_t rsendto(int number, const void* bytes, size_t length, int flags, const sockaddr* to,
                socklen_t to_length) {
    const auto part = part_of(bytes, length);
    Letter letter;
    letter.to = to;
    letter.to_length = to_length;
    return send(number, &part, 1, flags, letter);
}

ssize_t rsendmsg(int number, const msghdr* message, int flags) {
    if (message == nullptr) return minus_one_if(EFAULT);
    if (message->msg_control != nullptr && message->msg_controllen != 0)
        return minus_one_if(EOPNOTSUPP);
    Letter letter;
    letter.to = static_cast<const sockaddr*>(message->msg_name);
    letter.to_length = message->msg_namelen;
    return send(number, message->msg_iov, message->msg_iovlen, flags, letter);
}

ssize_t rwrite(int number, const void* bytes, size_t length) {
    return rsend(number, bytes, length, 0);
}

ssize_t rwritev(int number, const iovec* parts, int count) {
    if (count < 0) return minus_one_if(EINVAL);
    return send(number, parts, static_cast<std::size_t>(count), 0);
}

int rgetpeername(int number, sockaddr* address, socklen_t* length) {
    return with(number, [&](Socket& socket) {
        Endpoint peer;
        if (address == nullptr || length == nullptr) return EFAULT;
        const int error = socket.peer_address(peer);
        if (error == 0) give_address(peer, socket.domain(), address, length);
        return error;
    });
}

int rgetsockname(int number, sockaddr* address, socklen_t* length) {
    return with(number, [&](Socket& socket) {
        Endpoint own;
        if (address == nullptr || length == nullptr) return EFAULT;
        const int error = socket.local_address(own);
        if (error == 0) give_address(own, socket.domain(), address, length);
        return error;
    });
}

int rsetsockopt(int number, int level, int name, const void* value, socklen_t length) {
    return with(number,
                [&](Socket& socket) { return socket.set_option(level, name, value, length); });
}

int rgetsockopt(int number, int level, int name, void* value, socklen_t* length) {
    return with(number,
                [&](Socket& socket) { return socket.get_option(level, name, value, length); });
}

int rfcntl(int number, int command, ...) {
    va_list arguments;
    va_start(arguments, command);
    const int argument = command == F_SETFL || command == F_SETFD ? va_arg(arguments, int) : 0;
    va_end(arguments);
    int out = 0;
    const int failed =
        with(number, [&](Socket& socket) { return control(socket, command, argument, out); });
    return failed != 0 ? failed : out;
}

off_t riomap(int number, void* bytes, size_t length, int protection, int, off_t offset) {
    off_t out = 0;
    const int failed = with(
        number, [&](Socket& socket) { return socket.map(bytes, length, protection, offset, out); });
    return failed != 0 ? failed : out;
}

int riounmap(int number, void* bytes, size_t length) {
    return with(number, [&](Socket& socket) { return socket.unmap(bytes, length); });
}

size_t riowrite(int number, const void* bytes, size_t length, off_t offset, int flags) {
    const auto part = part_of(bytes, length);
    Cursor from(&part, 1);
    const int failed =
        with(number, [&](Socket& socket) { return socket.write_mapped(from, offset, flags); });
    return failed != 0 ? static_cast<size_t>(-1) : from.done();
}

}  // extern "C"

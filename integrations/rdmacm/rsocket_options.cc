// SPDX-License-Identifier: Apache-2.0
#include "rsocket_options.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <rdma/rsocket.h>

namespace weir::rdmacm {
namespace {

template <class Value>
bool read_value(const void* value, socklen_t length, Value& out) {
    if (value == nullptr || length < sizeof out) return false;
    std::memcpy(&out, value, sizeof out);
    return true;
}

/// Options that are numbers kept for their own sake.
bool is_kept(int level, int name) {
    static constexpr std::pair<int, int> kKept[] = {
        {SOL_SOCKET, SO_KEEPALIVE},      {SOL_SOCKET, SO_OOBINLINE},
        {SOL_SOCKET, SO_BROADCAST},      {SOL_SOCKET, SO_REUSEPORT},
        {SOL_SOCKET, SO_PRIORITY},       {SOL_SOCKET, SO_RCVLOWAT},
        {SOL_SOCKET, SO_DONTROUTE},      {IPPROTO_TCP, TCP_NODELAY},
        {IPPROTO_TCP, TCP_MAXSEG},       {IPPROTO_TCP, TCP_KEEPIDLE},
        {IPPROTO_TCP, TCP_KEEPINTVL},    {IPPROTO_TCP, TCP_KEEPCNT},
        {IPPROTO_TCP, TCP_QUICKACK},     {IPPROTO_TCP, TCP_CORK},
        {IPPROTO_TCP, TCP_SYNCNT},       {IPPROTO_TCP, TCP_LINGER2},
        {IPPROTO_TCP, TCP_USER_TIMEOUT}, {IPPROTO_TCP, TCP_FASTOPEN},
        {IPPROTO_TCP, TCP_DEFER_ACCEPT},
    };
    return std::find(std::begin(kKept), std::end(kKept), std::pair(level, name)) != std::end(kKept);
}

int otherwise(int level, int name) {
    if (level == IPPROTO_TCP && name == TCP_MAXSEG) return 4096;
    if (level == SOL_SOCKET && name == SO_RCVLOWAT) return 1;
    return 0;
}

/// The numbers that a socket heeds, and what they may be.
struct Heeded {
    int level;
    int name;
    int SocketOptions::*value;
    int least;
    int most;
};
constexpr Heeded kHeeded[] = {
    {SOL_SOCKET, SO_RCVBUF, &SocketOptions::receive_bytes, 256, 1 << 28},
    {SOL_SOCKET, SO_SNDBUF, &SocketOptions::send_bytes, 256, 1 << 28},
    {SOL_RDMA, RDMA_SQSIZE, &SocketOptions::sends, 4, 8192},
    {SOL_RDMA, RDMA_RQSIZE, &SocketOptions::receives, 4, 8192},
    {SOL_RDMA, RDMA_INLINE, &SocketOptions::inline_bytes, 0, 512},
    {SOL_RDMA, RDMA_IOMAPSIZE, &SocketOptions::mappings, 0, 65536},
};

const Heeded* find_heeded(int level, int name) {
    for (const auto& option : kHeeded)
        if (option.level == level && option.name == name) return &option;
    return nullptr;
}

bool is_type_of_service(int level, int name) {
    return (level == IPPROTO_IP && name == IP_TOS) ||
           (level == IPPROTO_IPV6 && name == IPV6_TCLASS);
}

int set_timeout(const void* value, socklen_t length, timeval& out) {
    timeval timeout{};
    if (!read_value(value, length, timeout)) return EINVAL;
    if (timeout.tv_sec < 0 || timeout.tv_usec < 0 || timeout.tv_usec >= 1'000'000) return EDOM;
    out = timeout;
    return 0;
}

}  // namespace

int SocketOptions::set(int level, int name, const void* value, socklen_t length) {
    if (level == SOL_SOCKET && name == SO_RCVTIMEO)
        return set_timeout(value, length, receive_timeout);
    if (level == SOL_SOCKET && name == SO_SNDTIMEO) return set_timeout(value, length, send_timeout);
    if (level == SOL_SOCKET && name == SO_LINGER)
        return read_value(value, length, on_close) ? 0 : EINVAL;
    int number = 0;
    const bool readable = read_value(value, length, number);
    if (const auto* option = find_heeded(level, name); option != nullptr) {
        if (!readable) return EINVAL;
        this->*option->value = std::clamp(number, option->least, option->most);
        return 0;
    }
    if (level == SOL_SOCKET && name == SO_REUSEADDR) {
        reuse_address = number != 0;
    } else if (level == IPPROTO_IPV6 && name == IPV6_V6ONLY) {
        ipv6_only = number != 0;
    } else if (is_type_of_service(level, name)) {
        type_of_service = static_cast<std::uint8_t>(number);
    } else if (is_kept(level, name)) {
        if (readable) kept[{level, name}] = number;
    } else {
        return ENOPROTOOPT;
    }
    return readable ? 0 : EINVAL;
}

int SocketOptions::get(int level, int name, void* value, socklen_t* length) const {
    if (level == SOL_SOCKET && name == SO_RCVTIMEO)
        return give_option(&receive_timeout, sizeof receive_timeout, value, length);
    if (level == SOL_SOCKET && name == SO_SNDTIMEO)
        return give_option(&send_timeout, sizeof send_timeout, value, length);
    if (level == SOL_SOCKET && name == SO_LINGER)
        return give_option(&on_close, sizeof on_close, value, length);
    int number = 0;
    if (const auto* option = find_heeded(level, name); option != nullptr) {
        number = this->*option->value;
    } else if (level == SOL_SOCKET && name == SO_REUSEADDR) {
        number = reuse_address ? 1 : 0;
    } else if (level == IPPROTO_IPV6 && name == IPV6_V6ONLY) {
        number = ipv6_only ? 1 : 0;
    } else if (is_type_of_service(level, name)) {
        number = type_of_service;
    } else if (is_kept(level, name)) {
        const auto found = kept.find({level, name});
        number = found != kept.end() ? found->second : otherwise(level, name);
    } else {
        return ENOPROTOOPT;
    }
    return give_option(&number, sizeof number, value, length);
}

int give_option(const void* from, std::size_t bytes, void* value, socklen_t* length) {
    if (value == nullptr || length == nullptr) return EFAULT;
    const auto part = std::min<std::size_t>(bytes, *length);
    std::memcpy(value, from, part);
    *length = static_cast<socklen_t>(part);
    return 0;
}

// ---------------------------------------------------------------- addresses

namespace {

constexpr std::size_t kIpv4At = 12;

}  // namespace

Endpoint as_spoken(const Endpoint& endpoint) {
    auto out = endpoint;
    const bool mapped = endpoint.family == Family::kIpv6 && endpoint.ip[10] == 0xff &&
                        endpoint.ip[11] == 0xff &&
                        std::all_of(endpoint.ip.begin(), endpoint.ip.begin() + 10,
                                    [](auto byte) { return byte == 0; });
    if (!mapped) return out;
    out.family = Family::kIpv4;
    out.ip[10] = out.ip[11] = 0;
    return out;
}

Endpoint as_shown(const Endpoint& endpoint, int domain) {
    auto out = endpoint;
    if (domain != AF_INET6 || endpoint.family != Family::kIpv4) return out;
    out.family = Family::kIpv6;
    std::fill_n(out.ip.begin(), kIpv4At, std::uint8_t{0});
    if (!endpoint.is_any()) out.ip[10] = out.ip[11] = 0xff;
    return out;
}

void give_address(const Endpoint& endpoint, int domain, sockaddr* out, socklen_t* length) {
    if (out == nullptr || length == nullptr) return;
    const auto shown = as_shown(endpoint, domain);
    sockaddr_storage full{};
    shown.store(reinterpret_cast<sockaddr*>(&full));
    std::memcpy(out, &full, std::min(*length, shown.length()));
    *length = shown.length();
}

}  // namespace weir::rdmacm

// SPDX-License-Identifier: Apache-2.0
// The options of an rsocket: numbers that are kept and given back, some of which the socket heeds.
#pragma once

#include <sys/socket.h>
#include <sys/time.h>

#include <cstdint>
#include <map>
#include <utility>

#include "addresses.h"

namespace weir::rdmacm {

struct SocketOptions {
    // Heeded from the next bind() or connect() on.
    int receive_bytes = 512 * 1024;  ///< SO_RCVBUF, in `receives` slots.
    int send_bytes = 512 * 1024;     ///< SO_SNDBUF.
    int sends = 128;                 ///< RDMA_SQSIZE.
    int receives = 64;               ///< RDMA_RQSIZE.
    int inline_bytes = 64;           ///< RDMA_INLINE.
    int mappings = 0;                ///< RDMA_IOMAPSIZE.
    bool reuse_address = false;
    bool ipv6_only = false;
    std::uint8_t type_of_service = 0;
    // Heeded by each call.
    timeval receive_timeout{};
    timeval send_timeout{};
    linger on_close{};
    /// What is kept and means nothing here: keep-alives are the connection manager's business,
    /// messages are never held back, and so on. By level and name.
    std::map<std::pair<int, int>, int> kept;

    /// 0, ENOPROTOOPT or EINVAL.
    int set(int level, int name, const void* value, socklen_t length);
    int get(int level, int name, void* value, socklen_t* length) const;
};

/// Gives an option's value, cut off where there is no room for it, as getsockopt() does.
int give_option(const void* from, std::size_t bytes, void* value, socklen_t* length);

/// Of a socket's domain: AF_INET or AF_INET6.
inline Family family_of(int domain) {
    return domain == AF_INET6 ? Family::kIpv6 : Family::kIpv4;
}
/// IPv4 within IPv6 as IPv4, which is what the connection manager knows.
Endpoint as_spoken(const Endpoint& endpoint);
/// The other way: as a socket of this family shows it.
Endpoint as_shown(const Endpoint& endpoint, int domain);
/// Writes an address as accept() and others do. A null `out` is nobody who wants to know.
void give_address(const Endpoint& endpoint, int domain, sockaddr* out, socklen_t* length);

}  // namespace weir::rdmacm

// SPDX-License-Identifier: Apache-2.0
#include "addresses.h"

#include <arpa/inet.h>
#include <endian.h>
#include <ifaddrs.h>

#include <algorithm>
#include <cstring>

#include <infiniband/ib.h>
#include <rdma/rdma_cma.h>

namespace weir::rdmacm {
namespace {

constexpr std::size_t kIpv4At = 12;

bool is_mapped(const IpBytes& ip) {
    return std::all_of(ip.begin(), ip.begin() + 10, [](auto byte) { return byte == 0; }) &&
           ip[10] == 0xff && ip[11] == 0xff;
}

/// IPv4 written as IPv6 leads where the IPv4 address does.
bool acts_as_ipv4(const Endpoint& endpoint) {
    return endpoint.family == Family::kIpv4 ||
           (endpoint.family == Family::kIpv6 && is_mapped(endpoint.ip));
}

Endpoint from_infiniband(const sockaddr* address) {
    sockaddr_ib ib{};
    std::memcpy(&ib, address, sizeof ib);
    Endpoint endpoint;
    endpoint.family = Family::kInfiniband;
    std::memcpy(endpoint.ip.data(), &ib.sib_addr, endpoint.ip.size());
    const auto mask = be64toh(ib.sib_sid_mask);
    const auto service = be64toh(ib.sib_sid) & mask;
    endpoint.port = static_cast<std::uint16_t>(service & RDMA_IB_IP_PORT_MASK);
    endpoint.space = (service & RDMA_IB_IP_PS_MASK) >> 16U;
    endpoint.space_mask = (mask & RDMA_IB_IP_PS_MASK) >> 16U;
    return endpoint;
}

void store_infiniband(const Endpoint& endpoint, sockaddr* out) {
    sockaddr_ib ib{};
    ib.sib_family = AF_IB;
    ib.sib_pkey = 0xffff;
    std::memcpy(&ib.sib_addr, endpoint.ip.data(), endpoint.ip.size());
    ib.sib_sid = htobe64(endpoint.space << 16U | endpoint.port);
    ib.sib_sid_mask =
        htobe64(endpoint.space_mask << 16U | (endpoint.port == 0 ? 0 : RDMA_IB_IP_PORT_MASK));
    std::memcpy(out, &ib, sizeof ib);
}

}  // namespace

bool Endpoint::is_any() const {
    const auto skip = family == Family::kIpv4 ? static_cast<std::ptrdiff_t>(kIpv4At) : 0;
    const auto first = ip.begin() + skip;
    return std::all_of(first, ip.end(), [](auto byte) { return byte == 0; });
}

bool Endpoint::is_loopback() const {
    if (acts_as_ipv4(*this)) return ip[kIpv4At] == 127;
    IpBytes one{};
    one.back() = 1;
    return ip == one;
}

bool Endpoint::is_group() const {
    if (acts_as_ipv4(*this)) return (ip[kIpv4At] & 0xf0U) == 0xe0;
    return ip[0] == 0xff;
}

std::uint32_t Endpoint::family_bit() const {
    if (family == Family::kInfiniband) return WEIR_INFINIBAND;
    return family == Family::kIpv6 ? WEIR_IPV6 : WEIR_IPV4;
}

std::optional<std::uint16_t> Endpoint::space_for(std::uint16_t own) const {
    if (family != Family::kInfiniband) return own;
    for (const std::uint16_t known : {RDMA_PS_IB, RDMA_PS_TCP, RDMA_PS_UDP}) {
        const bool belongs = own == RDMA_PS_IB || own == known;
        if (belongs && space == (known & space_mask)) return known;
    }
    // Nothing is asked for: IPoIB's space is not in service IDs.
    return space_mask == 0 ? std::optional(own) : std::nullopt;
}

std::optional<Endpoint> Endpoint::from(const sockaddr* address) {
    if (address == nullptr) return std::nullopt;
    Endpoint endpoint;
    if (address->sa_family == AF_INET) {
        sockaddr_in in{};
        std::memcpy(&in, address, sizeof in);
        std::memcpy(endpoint.ip.data() + kIpv4At, &in.sin_addr, sizeof in.sin_addr);
        endpoint.port = ntohs(in.sin_port);
        return endpoint;
    }
    if (address->sa_family == AF_IB) return from_infiniband(address);
    if (address->sa_family != AF_INET6) return std::nullopt;
    sockaddr_in6 in6{};
    std::memcpy(&in6, address, sizeof in6);
    endpoint.family = Family::kIpv6;
    std::memcpy(endpoint.ip.data(), &in6.sin6_addr, sizeof in6.sin6_addr);
    endpoint.port = ntohs(in6.sin6_port);
    endpoint.scope = in6.sin6_scope_id;
    return endpoint;
}

Endpoint Endpoint::any(Family family, std::uint16_t port) {
    Endpoint endpoint;
    endpoint.family = family;
    endpoint.port = port;
    return endpoint;
}

void Endpoint::store(sockaddr* out) const {
    if (family == Family::kInfiniband) {
        store_infiniband(*this, out);
        return;
    }
    if (family == Family::kIpv4) {
        sockaddr_in in{};
        in.sin_family = AF_INET;
        in.sin_port = htons(port);
        std::memcpy(&in.sin_addr, ip.data() + kIpv4At, sizeof in.sin_addr);
        std::memcpy(out, &in, sizeof in);
        return;
    }
    sockaddr_in6 in6{};
    in6.sin6_family = AF_INET6;
    in6.sin6_port = htons(port);
    in6.sin6_scope_id = scope;
    std::memcpy(&in6.sin6_addr, ip.data(), sizeof in6.sin6_addr);
    std::memcpy(out, &in6, sizeof in6);
}

socklen_t Endpoint::length() const {
    if (family == Family::kInfiniband) return sizeof(sockaddr_ib);
    return family == Family::kIpv6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

bool is_this_machine(const Endpoint& endpoint) {
    if (endpoint.is_loopback()) return true;
    if (endpoint.family == Family::kInfiniband) return false;
    ifaddrs* list = nullptr;
    if (getifaddrs(&list) != 0) return false;
    bool found = false;
    for (const auto* entry = list; entry != nullptr && !found; entry = entry->ifa_next) {
        const auto own = Endpoint::from(entry->ifa_addr);
        if (!own) continue;
        if (acts_as_ipv4(endpoint) != acts_as_ipv4(*own)) continue;
        const auto skip = acts_as_ipv4(endpoint) ? static_cast<std::ptrdiff_t>(kIpv4At) : 0;
        found = std::equal(own->ip.begin() + skip, own->ip.end(), endpoint.ip.begin() + skip);
    }
    freeifaddrs(list);
    return found;
}

const weir_port* Neighbourhood::find(const Endpoint& endpoint) const {
    for (const auto& port : ports_) {
        if (endpoint.family == Family::kInfiniband) {
            if (std::memcmp(port.gid.raw, endpoint.ip.data(), endpoint.ip.size()) == 0)
                return &port;
        } else if (acts_as_ipv4(endpoint)) {
            if (std::equal(std::begin(port.ipv4), std::end(port.ipv4),
                           endpoint.ip.begin() + kIpv4At))
                return &port;
        } else if (std::equal(std::begin(port.ipv6), std::end(port.ipv6), endpoint.ip.begin())) {
            return &port;
        }
    }
    return nullptr;
}

const weir_port* Neighbourhood::find_host(std::string_view name) const {
    for (const auto& port : ports_)
        if (name == port.host_name) return &port;
    return nullptr;
}

const weir_port* Neighbourhood::first_of_node(std::uint32_t node) const {
    for (const auto& port : ports_)
        if (port.node == node) return &port;
    return nullptr;
}

std::uint32_t Neighbourhood::rail_of(std::uint32_t node) const {
    const auto* wanted = first_of_node(node);
    std::uint32_t rail = 0;
    for (const auto& port : ports_) {
        if (wanted == nullptr || port.node == node) break;
        if (port.host == wanted->host && port.number == 1) ++rail;
    }
    return rail;
}

Endpoint address_of(const weir_port& port, Family family, std::uint16_t ip_port) {
    auto endpoint = Endpoint::any(family, ip_port);
    if (family == Family::kInfiniband)
        std::copy(std::begin(port.gid.raw), std::end(port.gid.raw), endpoint.ip.begin());
    else if (family == Family::kIpv6)
        std::copy(std::begin(port.ipv6), std::end(port.ipv6), endpoint.ip.begin());
    else
        std::copy(std::begin(port.ipv4), std::end(port.ipv4), endpoint.ip.begin() + kIpv4At);
    return endpoint;
}

}  // namespace weir::rdmacm

// SPDX-License-Identifier: Apache-2.0
// rdma_getaddrinfo: names to addresses. Hosts of the fabric by their names ("h0"), all else as
// getaddrinfo has it; GIDs for who asks for AF_IB.
#include <arpa/inet.h>
#include <netdb.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "abi.h"
#include "cm.h"

namespace weir::rdmacm {
namespace {

int system_flags(int flags) {
    int out = 0;
    if ((flags & RAI_PASSIVE) != 0) out |= AI_PASSIVE;
    if ((flags & RAI_NUMERICHOST) != 0) out |= AI_NUMERICHOST;
    return out;
}

/// Port space and QP type follow from each other.
void choose_service(const rdma_addrinfo* hints, rdma_addrinfo& out) {
    out.ai_port_space = hints != nullptr ? hints->ai_port_space : 0;
    out.ai_qp_type = hints != nullptr ? hints->ai_qp_type : 0;
    if (out.ai_port_space == 0)
        out.ai_port_space = out.ai_qp_type == IBV_QPT_UD ? RDMA_PS_UDP : RDMA_PS_TCP;
    if (out.ai_qp_type == 0)
        out.ai_qp_type = out.ai_port_space == RDMA_PS_UDP || out.ai_port_space == RDMA_PS_IPOIB
                             ? IBV_QPT_UD
                             : IBV_QPT_RC;
}

/// A copy on the heap; null if there is no memory, or nothing to copy.
sockaddr* copy_of(const sockaddr* address, socklen_t length) {
    if (address == nullptr || length == 0) return nullptr;
    void* copy = std::calloc(1, length);
    if (copy != nullptr) std::memcpy(copy, address, length);
    return static_cast<sockaddr*>(copy);
}

rdma_addrinfo* make_info(const rdma_addrinfo* hints, int family, const sockaddr* address,
                         socklen_t length) {
    auto* info = static_cast<rdma_addrinfo*>(std::calloc(1, sizeof(rdma_addrinfo)));
    if (info == nullptr) return nullptr;
    choose_service(hints, *info);
    info->ai_flags = hints != nullptr ? hints->ai_flags : 0;
    info->ai_family = family;
    if ((info->ai_flags & RAI_PASSIVE) != 0) {
        info->ai_src_addr = copy_of(address, length);
        info->ai_src_len = length;
        return info;
    }
    info->ai_dst_addr = copy_of(address, length);
    info->ai_dst_len = length;
    if (hints != nullptr && hints->ai_src_len != 0) {
        info->ai_src_addr = copy_of(hints->ai_src_addr, hints->ai_src_len);
        info->ai_src_len = hints->ai_src_len;
    }
    return info;
}

/// The host's address in the fabric, in the family asked for; false if it is no host of it.
bool find_fabric_host(const char* name, int family, Endpoint& out) {
    bool found = false;
    ibverbs::fenced([&] {
        auto& cm = Cm::instance();
        const std::lock_guard guard(cm.lock);
        if (cm.open_devices() != 0) return 0;
        const auto* port = cm.neighbourhood().find_host(name);
        if (port == nullptr) return 0;
        const auto wanted = family == AF_IB      ? Family::kInfiniband
                            : family == AF_INET6 ? Family::kIpv6
                                                 : Family::kIpv4;
        out = address_of(*port, wanted, 0);
        found = true;
        return 0;
    });
    return found;
}

/// The port that a service means. 0 or getaddrinfo's error.
int find_port(const char* service, int family, std::uint16_t& port) {
    addrinfo wish{};
    wish.ai_family = family;
    wish.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (const int error = getaddrinfo(nullptr, service, &wish, &found); error != 0) return error;
    if (const auto with_port = Endpoint::from(found->ai_addr)) port = with_port->port;
    freeaddrinfo(found);
    return 0;
}

int get_by_host(const Endpoint& host, const char* service, const rdma_addrinfo* hints,
                rdma_addrinfo** out) {
    sockaddr_storage storage{};
    auto* address = reinterpret_cast<sockaddr*>(&storage);
    auto endpoint = host;
    if (service != nullptr) {
        const int family = host.family == Family::kIpv6 ? AF_INET6 : AF_INET;
        if (const int error = find_port(service, family, endpoint.port); error != 0) return error;
    }
    if (endpoint.family == Family::kInfiniband) {
        rdma_addrinfo chosen{};
        choose_service(hints, chosen);
        endpoint.space = static_cast<std::uint64_t>(chosen.ai_port_space);
        endpoint.space_mask = RDMA_IB_IP_PS_MASK >> 16U;
    }
    endpoint.store(address);
    *out = make_info(hints, storage.ss_family, address, endpoint.length());
    return *out == nullptr ? EAI_MEMORY : 0;
}

/// The GID of the fabric's port that has this IP address. One of this machine stays a loopback.
bool find_gid(const Endpoint& ip, Endpoint& out) {
    bool found = false;
    ibverbs::fenced([&] {
        auto& cm = Cm::instance();
        const std::lock_guard guard(cm.lock);
        if (cm.open_devices() != 0) return 0;
        const auto* port = cm.neighbourhood().find(ip);
        if (port != nullptr) out = address_of(*port, Family::kInfiniband, 0);
        found = port != nullptr;
        return 0;
    });
    if (found || !is_this_machine(ip)) return found;
    out = Endpoint::any(Family::kInfiniband);
    out.ip.back() = 1;
    return true;
}

/// For hints that ask for AF_IB: a GID in the letters of an IPv6 address if the name is numeric,
/// else the GID of whoever has the name or the IP address.
int get_infiniband(const char* node, const char* service, const rdma_addrinfo& hints,
                   rdma_addrinfo** out) {
    auto host = Endpoint::any(Family::kInfiniband);
    if (node == nullptr) {
        if ((hints.ai_flags & RAI_PASSIVE) == 0) host.ip.back() = 1;
        return get_by_host(host, service, &hints, out);
    }
    if (inet_pton(AF_INET6, node, host.ip.data()) == 1 || find_fabric_host(node, AF_IB, host))
        return get_by_host(host, service, &hints, out);
    addrinfo wish{};
    wish.ai_flags = system_flags(hints.ai_flags);
    wish.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (const int error = getaddrinfo(node, nullptr, &wish, &found); error != 0) return error;
    const auto ip = Endpoint::from(found->ai_addr);
    freeaddrinfo(found);
    if (!ip || !find_gid(*ip, host)) return EAI_NONAME;
    return get_by_host(host, service, &hints, out);
}

int get_by_system(const char* node, const char* service, const rdma_addrinfo* hints,
                  rdma_addrinfo** out) {
    addrinfo wish{};
    if (hints != nullptr) {
        wish.ai_flags = system_flags(hints->ai_flags);
        wish.ai_family = hints->ai_family;
    }
    wish.ai_socktype = SOCK_STREAM;  // else each address comes once for each kind of socket
    addrinfo* found = nullptr;
    if (const int error = getaddrinfo(node, service, &wish, &found); error != 0) return error;
    rdma_addrinfo** tail = out;
    for (const auto* entry = found; entry != nullptr; entry = entry->ai_next) {
        *tail = make_info(hints, entry->ai_family, entry->ai_addr, entry->ai_addrlen);
        if (*tail == nullptr) break;
        tail = &(*tail)->ai_next;
    }
    freeaddrinfo(found);
    return *out == nullptr ? EAI_MEMORY : 0;
}

/// Without names: the addresses that the hints bring.
int get_by_hints(const rdma_addrinfo& hints, rdma_addrinfo** out) {
    const bool passive = (hints.ai_flags & RAI_PASSIVE) != 0;
    const auto* address = passive ? hints.ai_src_addr : hints.ai_dst_addr;
    const auto length = passive ? hints.ai_src_len : hints.ai_dst_len;
    if (address == nullptr || length == 0) return EAI_NONAME;
    *out = make_info(&hints, address->sa_family, address, length);
    return *out == nullptr ? EAI_MEMORY : 0;
}

}  // namespace
}  // namespace weir::rdmacm

using namespace weir::rdmacm;  // The functions below are the C ABI, outside any namespace.

extern "C" {

int rdma_getaddrinfo(const char* node, const char* service, const rdma_addrinfo* hints,
                     rdma_addrinfo** out) {
    if (out == nullptr || (node == nullptr && service == nullptr && hints == nullptr))
        return weir::ibverbs::minus_one_if(EINVAL);
    *out = nullptr;
    if (node == nullptr && service == nullptr) return get_by_hints(*hints, out);
    const int family = hints != nullptr ? hints->ai_family : 0;
    if (family == AF_IB) return get_infiniband(node, service, *hints, out);
    Endpoint host;
    if (node != nullptr && find_fabric_host(node, family, host))
        return get_by_host(host, service, hints, out);
    return get_by_system(node, service, hints, out);
}

void rdma_freeaddrinfo(rdma_addrinfo* info) {
    while (info != nullptr) {
        rdma_addrinfo* next = info->ai_next;
        std::free(info->ai_src_addr);
        std::free(info->ai_dst_addr);
        std::free(info->ai_src_canonname);
        std::free(info->ai_dst_canonname);
        std::free(info->ai_route);
        std::free(info->ai_connect);
        std::free(info);
        info = next;
    }
}

const char* rdma_event_str(rdma_cm_event_type event) {
    switch (event) {
        case RDMA_CM_EVENT_ADDR_RESOLVED:
            return "RDMA_CM_EVENT_ADDR_RESOLVED";
        case RDMA_CM_EVENT_ADDR_ERROR:
            return "RDMA_CM_EVENT_ADDR_ERROR";
        case RDMA_CM_EVENT_ROUTE_RESOLVED:
            return "RDMA_CM_EVENT_ROUTE_RESOLVED";
        case RDMA_CM_EVENT_ROUTE_ERROR:
            return "RDMA_CM_EVENT_ROUTE_ERROR";
        case RDMA_CM_EVENT_CONNECT_REQUEST:
            return "RDMA_CM_EVENT_CONNECT_REQUEST";
        case RDMA_CM_EVENT_CONNECT_RESPONSE:
            return "RDMA_CM_EVENT_CONNECT_RESPONSE";
        case RDMA_CM_EVENT_CONNECT_ERROR:
            return "RDMA_CM_EVENT_CONNECT_ERROR";
        case RDMA_CM_EVENT_UNREACHABLE:
            return "RDMA_CM_EVENT_UNREACHABLE";
        case RDMA_CM_EVENT_REJECTED:
            return "RDMA_CM_EVENT_REJECTED";
        case RDMA_CM_EVENT_ESTABLISHED:
            return "RDMA_CM_EVENT_ESTABLISHED";
        case RDMA_CM_EVENT_DISCONNECTED:
            return "RDMA_CM_EVENT_DISCONNECTED";
        case RDMA_CM_EVENT_DEVICE_REMOVAL:
            return "RDMA_CM_EVENT_DEVICE_REMOVAL";
        case RDMA_CM_EVENT_MULTICAST_JOIN:
            return "RDMA_CM_EVENT_MULTICAST_JOIN";
        case RDMA_CM_EVENT_MULTICAST_ERROR:
            return "RDMA_CM_EVENT_MULTICAST_ERROR";
        case RDMA_CM_EVENT_ADDR_CHANGE:
            return "RDMA_CM_EVENT_ADDR_CHANGE";
        case RDMA_CM_EVENT_TIMEWAIT_EXIT:
            return "RDMA_CM_EVENT_TIMEWAIT_EXIT";
        default:
            break;
    }
    // Of later releases, whose names the installed headers have not.
    switch (static_cast<int>(event)) {
        case 16:
            return "RDMA_CM_EVENT_ADDRINFO_RESOLVED";
        case 17:
            return "RDMA_CM_EVENT_ADDRINFO_ERROR";
        default:
            return "UNKNOWN EVENT";
    }
}

}  // extern "C"

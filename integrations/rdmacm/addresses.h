// SPDX-License-Identifier: Apache-2.0
// IP addresses as programs give them, and which HCA port of the fabric each leads to.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "weir_private.h"

namespace weir::rdmacm {

using IpBytes = std::array<std::uint8_t, 16>;  ///< IPv4 in the last four.

/// An IPv4 or IPv6 address with a port.
struct Endpoint {
    bool ipv6 = false;
    IpBytes ip{};
    std::uint16_t port = 0;   ///< Host byte order.
    std::uint32_t scope = 0;  ///< Of an IPv6 address, as it was given.

    [[nodiscard]] bool is_any() const;
    /// 127.0.0.0/8, ::1, and IPv4 written as IPv6.
    [[nodiscard]] bool is_loopback() const;
    [[nodiscard]] std::uint32_t family_bit() const { return ipv6 ? WEIR_IPV6 : WEIR_IPV4; }

    /// Nothing for families that we do not know.
    static std::optional<Endpoint> from(const sockaddr* address);
    static Endpoint any(bool ipv6, std::uint16_t port = 0);
    /// REQUIRES: `out` has room for a sockaddr_in6.
    void store(sockaddr* out) const;
    /// Bytes of the sockaddr that store() writes.
    [[nodiscard]] socklen_t length() const;
};

/// True for loopback addresses and for those that an interface of this machine has. All hosts of a
/// fabric are on this machine, so such an address names whichever of them listens.
bool is_this_machine(const Endpoint& endpoint);

/// All HCA ports of the fabric.
class Neighbourhood {
  public:
    Neighbourhood() = default;
    explicit Neighbourhood(std::vector<weir_port> ports) : ports_(std::move(ports)) {}

    [[nodiscard]] std::span<const weir_port> all() const { return ports_; }
    /// The port with this address; null if none has it.
    [[nodiscard]] const weir_port* find(const Endpoint& endpoint) const;
    /// The first port of a host of this name; null if there is none.
    [[nodiscard]] const weir_port* find_host(std::string_view name) const;
    [[nodiscard]] const weir_port* first_of_node(std::uint32_t node) const;
    /// Which HCA of its host this one is, from 0.
    [[nodiscard]] std::uint32_t rail_of(std::uint32_t node) const;

  private:
    std::vector<weir_port> ports_;
};

/// The address of a port, in the family asked for.
Endpoint address_of(const weir_port& port, bool ipv6, std::uint16_t ip_port);

}  // namespace weir::rdmacm

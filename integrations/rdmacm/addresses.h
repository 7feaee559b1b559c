// SPDX-License-Identifier: Apache-2.0
// Addresses as programs give them, and which HCA port of the fabric each leads to.
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

using IpBytes = std::array<std::uint8_t, 16>;  ///< IPv4 in the last four; a GID.

enum class Family : std::uint8_t { kIpv4, kIpv6, kInfiniband };

/// An address with a port. InfiniBand's (sockaddr_ib) are a GID and a service ID, which is a port
/// within a port space.
struct Endpoint {
    Family family = Family::kIpv4;
    IpBytes ip{};
    std::uint16_t port = 0;   ///< Host byte order.
    std::uint32_t scope = 0;  ///< Of an IPv6 address, as it was given.
    /// InfiniBand: what the service ID says of the port space, and which of its bits count.
    std::uint64_t space = 0;
    std::uint64_t space_mask = 0;

    [[nodiscard]] bool is_any() const;
    /// 127.0.0.0/8, ::1, and IPv4 written as IPv6.
    [[nodiscard]] bool is_loopback() const;
    /// 224.0.0.0/4, ff00::/8.
    [[nodiscard]] bool is_group() const;
    [[nodiscard]] std::uint32_t family_bit() const;
    /// The port space of its service: an identifier's own, unless an InfiniBand address names
    /// another that belongs to it. Nothing if it names one that does not.
    [[nodiscard]] std::optional<std::uint16_t> space_for(std::uint16_t own) const;

    /// Nothing for families that we do not know.
    static std::optional<Endpoint> from(const sockaddr* address);
    static Endpoint any(Family family, std::uint16_t port = 0);
    /// REQUIRES: `out` has room for a sockaddr_storage.
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
Endpoint address_of(const weir_port& port, Family family, std::uint16_t ip_port);

}  // namespace weir::rdmacm

// SPDX-License-Identifier: Apache-2.0
#include "topology/address.h"

#include <arpa/inet.h>
#include <fmt/core.h>

#include <algorithm>
#include <set>

namespace weir::topology {
namespace {

constexpr std::uint32_t kFirstIpv4 = 0x64400001U;  // 100.64.0.1
constexpr Ipv6 kFirstIpv6{0xfd, 0x57, 0x65, 0x69, 0x00, 0x72};

void store(std::uint32_t number, std::uint8_t* out) {
    for (unsigned i = 0; i < 4; ++i)
        out[i] = static_cast<std::uint8_t>(number >> (24U - 8 * i));
}

bool is_host(const Ipv4& a) {
    return a[0] != 0 && a[0] != 127 && a[0] < 224;
}

bool is_host(const Ipv6& a) {
    const bool low = std::all_of(a.begin(), a.end() - 4, [](auto byte) { return byte == 0; });
    const bool mapped = std::all_of(a.begin(), a.begin() + 10, [](auto b) { return b == 0; }) &&
                        a[10] == 0xff && a[11] == 0xff;
    return !low && !mapped && a[0] != 0xff;
}

template <class Address>
std::string text_of(int family, const Address& address) {
    char text[INET6_ADDRSTRLEN] = "";
    inet_ntop(family, address.data(), text, sizeof text);
    return text;
}

template <class Address>
Result<void> enter(std::set<Address>& known, const Address& address, const Node& node) {
    if (known.insert(address).second) return {};
    return fail(ErrorCode::kInvalid, fmt::format("address {} of node \"{}\" is another port's too",
                                                 to_text(address), node.name));
}

}  // namespace

Ipv4 default_ipv4(std::uint32_t ordinal) {
    Ipv4 address{};
    store(kFirstIpv4 + ordinal, address.data());
    return address;
}

Ipv6 default_ipv6(std::uint32_t ordinal) {
    Ipv6 address = kFirstIpv6;
    store(1 + ordinal, address.data() + 12);
    return address;
}

std::string to_text(const Ipv4& address) {
    return text_of(AF_INET, address);
}

std::string to_text(const Ipv6& address) {
    return text_of(AF_INET6, address);
}

Result<std::variant<Ipv4, Ipv6>> parse_address(std::string_view text) {
    const std::string copy(text);
    Ipv4 v4{};
    Ipv6 v6{};
    const bool is_v4 = inet_pton(AF_INET, copy.c_str(), v4.data()) == 1;
    if (!is_v4 && inet_pton(AF_INET6, copy.c_str(), v6.data()) != 1) {
        return fail(ErrorCode::kInvalid, fmt::format("\"{}\" is not an IP address", text),
                    "as in 10.1.0.5 or fd00::5");
    }
    if (is_v4 ? !is_host(v4) : !is_host(v6))
        return fail(ErrorCode::kInvalid, fmt::format("{} cannot be a host's address", text));
    if (is_v4) return v4;
    return v6;
}

Result<void> fill_addresses(Fabric& fabric) {
    std::uint32_t ordinal = 0;
    std::set<Ipv4> ipv4;
    std::set<Ipv6> ipv6;
    for (Node& node : fabric.nodes) {
        if (node.is_switch()) continue;
        for (EndPort& port : node.end_ports) {
            if (port.ipv4 == Ipv4{}) port.ipv4 = default_ipv4(ordinal);
            if (port.ipv6 == Ipv6{}) port.ipv6 = default_ipv6(ordinal);
            ++ordinal;
            WEIR_TRY_VOID(enter(ipv4, port.ipv4, node));
            WEIR_TRY_VOID(enter(ipv6, port.ipv6, node));
        }
    }
    return {};
}

}  // namespace weir::topology

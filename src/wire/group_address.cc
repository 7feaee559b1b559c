// SPDX-License-Identifier: Apache-2.0
#include "wire/group_address.h"

#include <algorithm>

#include "wire/headers.h"

namespace weir::wire {
namespace {

constexpr std::uint8_t kChosenHigh = 0xa0;
constexpr std::uint8_t kChosenLow = 0x1b;

/// The first six bytes of a group that any manager may make: not permanent (IBTA 4.1.1).
CmGid begin_group(std::uint8_t high, std::uint8_t low) {
    CmGid gid{};
    gid[0] = 0xff;
    gid[1] = 0x10 | kLinkLocalScope;
    gid[2] = high;
    gid[3] = low;
    gid[4] = kDefaultPkey >> 8U;
    gid[5] = kDefaultPkey & 0xffU;
    return gid;
}

}  // namespace

CmGid group_of_ipv4(const std::array<std::uint8_t, 4>& address, GroupSignature signature) {
    auto gid = begin_group(0x40, static_cast<std::uint8_t>(signature));
    std::copy(address.begin(), address.end(), gid.end() - 4);
    gid[12] &= 0x0f;
    return gid;
}

CmGid group_of_ipv6(const std::array<std::uint8_t, 16>& address, GroupSignature signature) {
    auto gid = begin_group(0x60, static_cast<std::uint8_t>(signature));
    std::copy(address.begin() + 6, address.end(), gid.begin() + 6);
    return gid;
}

CmGid ethernet_group_of_ipv4(const std::array<std::uint8_t, 4>& address) {
    CmGid gid{};
    gid[0] = 0xff;
    gid[1] = 0x0e;
    gid[10] = gid[11] = 0xff;
    std::copy(address.begin(), address.end(), gid.end() - 4);
    return gid;
}

bool is_chosen_group(const CmGid& gid) {
    return gid[0] == 0xff && (gid[1] & 0xf0) == 0x10 && gid[2] == kChosenHigh &&
           gid[3] == kChosenLow;
}

CmGid chosen_group(std::uint64_t number) {
    auto gid = begin_group(kChosenHigh, kChosenLow);
    for (std::size_t i = gid.size(); i > 8; number >>= 8U)
        gid[--i] = static_cast<std::uint8_t>(number);
    return gid;
}

std::uint16_t group_lid(const CmGid& gid) {
    constexpr std::uint32_t kFirst = 0xc000;
    constexpr std::uint32_t kLast = 0xfffe;
    std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
    for (const auto byte : gid)
        hash = (hash ^ byte) * 0x100000001b3ULL;
    return static_cast<std::uint16_t>(kFirst + (hash >> 32U) % (kLast - kFirst + 1));
}

}  // namespace weir::wire

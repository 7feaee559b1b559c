// SPDX-License-Identifier: Apache-2.0
// Address handles: where a datagram goes, or where it came from.
#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "abi.h"
#include "handles.h"

namespace weir::ibverbs {
namespace {

constexpr std::uint8_t kServiceLevelMax = 15;

int create_ah(ibv_pd* abi, const ibv_ah_attr* attr, ibv_ah*& out) {
    auto* pd = find<ProtectionDomain>(abi);
    if (pd == nullptr || attr == nullptr || attr->sl > kServiceLevelMax) return EINVAL;
    auto ah = std::make_unique<AddressHandle>();
    ah->engine.attr = *attr;
    if (const int error = pd->context->hca->resolve_ah(ah->engine); error != 0) return error;
    ah->pd = pd;
    ah->context = pd->context;
    ah->engine.base.pd = abi;
    const int error = publish(ah, out, [] {});
    if (error == 0) ++pd->address_handle_count;
    return error;
}

// The index of a GID in a port's table: which of our addresses the sender used.
int find_gid(const Context& context, int port, const ibv_gid& gid, std::uint8_t& index) {
    ibv_port_attr attr{};
    if (const int error = context.hca->query_port(port, attr); error != 0) return error;
    const int count = std::min(attr.gid_tbl_len, 256);
    for (int i = 0; i < count; ++i) {
        ibv_gid found{};
        if (context.hca->query_gid(port, i, found) != 0) continue;
        if (std::memcmp(found.raw, gid.raw, sizeof gid.raw) != 0) continue;
        index = static_cast<std::uint8_t>(i);
        return 0;
    }
    return ENOENT;
}

// The way back to the sender of a datagram (IBTA 11.4.2.1: slid, sl and the GRH with its ends
// exchanged).
int reverse(const Context& context, std::uint8_t port, const ibv_wc& wc, const ibv_grh* grh,
            ibv_ah_attr& attr) {
    attr = {};
    attr.dlid = wc.slid;
    attr.sl = wc.sl;
    attr.src_path_bits = wc.dlid_path_bits;
    attr.port_num = port;
    if ((wc.wc_flags & IBV_WC_GRH) == 0) return 0;
    if (grh == nullptr) return EINVAL;
    const std::uint32_t word = ntohl(grh->version_tclass_flow);
    attr.is_global = 1;
    attr.grh.dgid = grh->sgid;
    attr.grh.flow_label = word & 0xfffffU;
    attr.grh.traffic_class = static_cast<std::uint8_t>((word >> 20U) & 0xffU);
    attr.grh.hop_limit = grh->hop_limit;
    return find_gid(context, port, grh->dgid, attr.grh.sgid_index);
}

// The MAC address in a link-local GID: its interface id is the address with ff:fe in the middle and
// the universal bit turned (RFC 4291, appendix A).
bool mac_of_link_local(const ibv_gid& gid, std::uint8_t mac[ETHERNET_LL_SIZE]) {
    const std::uint8_t* raw = gid.raw;
    if (raw[0] != 0xfe || raw[1] != 0x80 || raw[11] != 0xff || raw[12] != 0xfe) return false;
    mac[0] = raw[8] ^ 2U;
    std::copy(raw + 9, raw + 11, mac + 1);
    std::copy(raw + 13, raw + 16, mac + 3);
    return true;
}

constexpr std::uint16_t kNoVlan = 0xffff;

}  // namespace
}  // namespace weir::ibverbs

using namespace weir::ibverbs;  // The functions below are the C ABI, outside any namespace.

extern "C" {

ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attr) {
    return fenced_object<ibv_ah>([&](ibv_ah*& out) { return create_ah(pd, attr, out); });
}
WEIR_ALSO_IN_1_0(ibv_create_ah);

int ibv_init_ah_from_wc(ibv_context* abi, std::uint8_t port, ibv_wc* wc, ibv_grh* grh,
                        ibv_ah_attr* attr) {
    return minus_one_if(fenced([&] {
        const auto* context = find<Context>(abi);
        if (context == nullptr || wc == nullptr || attr == nullptr) return EINVAL;
        return reverse(*context, port, *wc, grh, *attr);
    }));
}

ibv_ah* ibv_create_ah_from_wc(ibv_pd* abi, ibv_wc* wc, ibv_grh* grh, std::uint8_t port) {
    return fenced_object<ibv_ah>([&](ibv_ah*& out) {
        const auto* pd = find<ProtectionDomain>(abi);
        if (pd == nullptr || wc == nullptr) return EINVAL;
        ibv_ah_attr attr;
        if (const int error = reverse(*pd->context, port, *wc, grh, attr); error != 0) return error;
        return create_ah(abi, &attr, out);
    });
}

int ibv_destroy_ah(ibv_ah* abi) {
    return fenced([abi] {
        return destroy<AddressHandle>(abi, [](AddressHandle& ah) {
            --ah.pd->address_handle_count;
            return 0;
        });
    });
}
WEIR_ALSO_IN_1_0(ibv_destroy_ah);

int ibv_attach_mcast(ibv_qp* abi, const ibv_gid* gid, std::uint16_t lid) {
    return fenced([&] {
        const auto* qp = find<QueuePair>(abi);
        return qp == nullptr || gid == nullptr ? EINVAL : qp->engine->attach(*gid, lid);
    });
}
WEIR_ALSO_IN_1_0(ibv_attach_mcast);

int ibv_detach_mcast(ibv_qp* abi, const ibv_gid* gid, std::uint16_t lid) {
    return fenced([&] {
        const auto* qp = find<QueuePair>(abi);
        return qp == nullptr || gid == nullptr ? EINVAL : qp->engine->detach(*gid, lid);
    });
}
WEIR_ALSO_IN_1_0(ibv_detach_mcast);

int ibv_resolve_eth_l2_from_gid(ibv_context* abi, ibv_ah_attr* attr,
                                std::uint8_t eth_mac[ETHERNET_LL_SIZE], std::uint16_t* vid) {
    return minus_one_if(fenced([&] {
        if (find<Context>(abi) == nullptr || attr == nullptr || eth_mac == nullptr) return EINVAL;
        if (!mac_of_link_local(attr->grh.dgid, eth_mac)) return EOPNOTSUPP;
        if (vid != nullptr) *vid = kNoVlan;
        return 0;
    }));
}

}  // extern "C"

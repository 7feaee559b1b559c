// SPDX-License-Identifier: Apache-2.0
#include "weir_private.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "abi.h"
#include "arena/service_table.h"
#include "handles.h"

namespace weir::ibverbs {
namespace {

/// A taker of a port that is stopped half-way holds others up for this many turns at most.
constexpr int kPauses = 20'000;

std::uint32_t host_of(arena::Arena arena, std::uint32_t node) {
    const auto& wanted = arena.node(node);
    for (std::uint32_t n = 0; n < arena.header().node_count; ++n) {
        const auto& other = arena.node(n);
        if (other.kind == arena::NodeKind::kHca && std::strcmp(other.host, wanted.host) == 0)
            return n;
    }
    return node;
}

void describe(arena::Arena arena, const arena::PortEntry& port, std::uint32_t own_node,
              weir_port& out) {
    const auto& node = arena.node(port.node);
    out = {};
    out.node = port.node;
    out.host = host_of(arena, port.node);
    out.lid = port.lid;
    out.number = static_cast<std::uint8_t>(port.number);
    out.is_own = port.node == own_node ? 1 : 0;
    std::copy_n(port.ipv4, sizeof port.ipv4, out.ipv4);
    std::copy_n(port.ipv6, sizeof port.ipv6, out.ipv6);
    out.gid.global.subnet_prefix = __builtin_bswap64(0xfe80000000000000ULL);
    out.gid.global.interface_id = __builtin_bswap64(port.guid);
    std::memcpy(out.host_name, node.host, sizeof out.host_name);
}

int claim(Context& context, const weir_service& service, std::uint32_t& index) {
    const auto arena = context.hca->arena();
    arena::ServiceClaim wish;
    wish.service_id = service.service_id;
    wish.token = service.token;
    wish.node = context.hca->node_index();
    wish.host = host_of(arena, wish.node);
    wish.families = service.families;
    wish.any_address = service.any_address != 0;
    wish.shareable = service.shareable != 0;
    int pauses = 0;
    const auto pause = [&pauses] {
        sched_yield();
        return ++pauses < kPauses;
    };
    return arena::claim_service(arena, wish, context.hca->identity(), pause, index);
}

bool has_rival(arena::Arena arena, const arena::ServiceEntry& own) {
    const auto found =
        arena::find_listener(arena, own.service_id, own.families, [&](const auto& e) {
            if (e.host != own.host || e.token == own.token) return false;
            return e.any_address != 0 || own.any_address != 0 || e.node == own.node;
        });
    return found != arena::kNone;
}

int find_service(const Context& context, std::uint64_t service_id, std::uint32_t family,
                 std::uint32_t node, weir_place& place) {
    const auto arena = context.hca->arena();
    auto found = arena::kNone;
    if (node != WEIR_ANY_NODE) {
        found = arena::find_listener(arena, service_id, family,
                                     [node](const auto& e) { return e.node == node; });
    } else {
        const auto own_host = host_of(arena, context.hca->node_index());
        found = arena::find_listener(arena, service_id, family,
                                     [own_host](const auto& e) { return e.host == own_host; });
        if (found == arena::kNone)
            found =
                arena::find_listener(arena, service_id, family, [](const auto&) { return true; });
    }
    if (found == arena::kNone) return ENOENT;
    const auto& entry = arena.service(found);
    place.node = entry.node;
    place.host = entry.host;
    place.lid = arena.node(entry.node).lid;
    place.qp_number = entry.listener.load(std::memory_order_acquire);
    return place.qp_number == 0 ? ENOENT : 0;
}

}  // namespace
}  // namespace weir::ibverbs

using namespace weir::ibverbs;  // The functions below are the C ABI, outside any namespace.

extern "C" {

int weir_ports(ibv_context* abi, weir_port* ports, size_t* count) {
    return fenced([&] {
        auto* context = find<Context>(abi);
        if (context == nullptr) return EINVAL;
        const auto arena = context->hca->arena();
        const size_t room = *count;
        *count = 0;
        for (std::uint32_t p = 0; p < arena.header().port_count; ++p) {
            const auto& port = arena.port(p);
            if (arena.node(port.node).kind != weir::arena::NodeKind::kHca) continue;
            if (*count < room) describe(arena, port, context->hca->node_index(), ports[*count]);
            ++*count;
        }
        return 0;
    });
}

int weir_service_claim(ibv_context* abi, const weir_service* service, uint32_t* index) {
    return fenced([&] {
        auto* context = find<Context>(abi);
        return context == nullptr ? EINVAL : claim(*context, *service, *index);
    });
}

int weir_service_listen(ibv_context* abi, uint32_t index, uint32_t qp_number) {
    return fenced([&] {
        auto* context = find<Context>(abi);
        if (context == nullptr || index >= weir::arena::kServiceCount) return EINVAL;
        auto& entry = context->hca->arena().service(index);
        if (entry.owner.load() != context->hca->identity()) return EINVAL;
        if (qp_number != 0 && has_rival(context->hca->arena(), entry)) return EADDRINUSE;
        entry.listener.store(qp_number, std::memory_order_release);
        return 0;
    });
}

void weir_service_release(ibv_context* abi, uint32_t index) {
    fenced([&] {
        auto* context = find<Context>(abi);
        if (context == nullptr || index >= weir::arena::kServiceCount) return EINVAL;
        weir::arena::release_service(context->hca->arena(), index, context->hca->identity());
        return 0;
    });
}

int weir_service_find(ibv_context* abi, uint64_t service_id, uint32_t family, uint32_t node,
                      weir_place* place) {
    return fenced([&] {
        auto* context = find<Context>(abi);
        return context == nullptr ? EINVAL
                                  : find_service(*context, service_id, family, node, *place);
    });
}

uint32_t weir_process_of_qp(ibv_context* abi, uint32_t qp_number) {
    uint32_t owner = 0;
    fenced([&] {
        auto* context = find<Context>(abi);
        if (context == nullptr || qp_number >= weir::arena::kQpCount) return EINVAL;
        const auto arena = context->hca->arena();
        owner = arena.qp(qp_number).owner.load(std::memory_order_acquire);
        if (!weir::arena::is_alive(arena, owner)) owner = 0;
        return 0;
    });
    return owner;
}

int weir_alert_fd(ibv_context* abi) {
    int fd = -1;
    fenced([&] {
        auto* context = find<Context>(abi);
        if (context != nullptr) fd = context->hca->alert_fd();
        return 0;
    });
    return fd;
}

void weir_park(ibv_context* abi) {
    fenced([&] {
        auto* context = find<Context>(abi);
        if (context != nullptr) context->hca->park();
        return 0;
    });
}

void weir_thread_started(void) {
    weir::hca::own_thread_started();
}

void weir_thread_ended(void) {
    weir::hca::own_thread_ended();
}

void weir_awake(int on) {
    if (on != 0)
        weir::hca::lock_awake();
    else
        weir::hca::unlock_awake();
}

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
// Which ports of the connection manager are taken on which host, and by which control QP their
// listener is reached. It stands in for two things at once: the port table in each host's kernel,
// and QP 1, by which any host can ask another's connection manager.
//
// Taking a port is lock-free, and no two that exclude each other are ever both held. A taker fills
// a free entry, shows it as kTrying, and then looks at all others:
//
//   held              → it withdraws
//   trying, and lower → it withdraws
//   trying, and above → that one either has not looked yet, and will see ours and withdraw, or has
//                       looked before ours was there, and will be held: it waits for which
//
// One that stops while trying makes others fail after a moment, and one that dies is cleared away
// by the daemon.
#pragma once

#include <cerrno>
#include <cstdint>

#include "arena/layout.h"

namespace weir::arena {

enum class ServiceStage : std::uint32_t { kHidden = 0, kTrying = 1, kHeld = 2 };

inline constexpr std::uint32_t kFamilyIpv4 = 1;
inline constexpr std::uint32_t kFamilyIpv6 = 2;
inline constexpr std::uint32_t kFamilyInfiniband = 4;

struct ServiceClaim {
    std::uint64_t service_id = 0;
    std::uint64_t token = 0;
    std::uint32_t host = 0;
    std::uint32_t node = 0;
    std::uint32_t families = kFamilyIpv4;
    bool any_address = false;
    bool shareable = false;
};

inline std::uint32_t stage_value(ServiceStage stage) {
    return static_cast<std::uint32_t>(stage);
}

/// False for what a process has left behind that ended a moment ago.
inline bool is_alive(Arena arena, std::uint32_t identity) {
    if (identity == 0 || slot_of(identity) >= kProcessCount) return false;
    const auto& process = arena.process(slot_of(identity));
    return process.identity.load(std::memory_order_acquire) == identity &&
           process.dead.load(std::memory_order_acquire) == 0;
}

/// True if the entry is taken in a way that leaves no room for the claim.
inline bool excludes(Arena arena, const ServiceEntry& entry, const ServiceClaim& claim) {
    if (entry.service_id != claim.service_id || entry.host != claim.host) return false;
    if ((entry.families & claim.families) == 0 || entry.token == claim.token) return false;
    if (entry.any_address == 0 && !claim.any_address && entry.node != claim.node) return false;
    const bool listens = entry.listener.load(std::memory_order_acquire) != 0;
    if (entry.shareable != 0 && claim.shareable && !listens) return false;
    return is_alive(arena, entry.owner.load(std::memory_order_acquire));
}

/// Idempotent; does nothing to an entry of somebody else.
inline void release_service(Arena arena, std::uint32_t index, std::uint32_t identity) {
    auto& entry = arena.service(index);
    if (entry.owner.load(std::memory_order_acquire) != identity) return;
    entry.listener.store(0, std::memory_order_release);
    entry.stage.store(stage_value(ServiceStage::kHidden), std::memory_order_seq_cst);
    entry.owner.store(0, std::memory_order_release);
}

/// Takes a free entry for `identity` and fills it, hidden. kNone if there is none.
inline std::uint32_t fill_service(Arena arena, const ServiceClaim& claim, std::uint32_t identity) {
    for (std::uint32_t i = 0; i < kServiceCount; ++i) {
        auto& entry = arena.service(i);
        std::uint32_t nobody = 0;
        if (entry.owner.load(std::memory_order_relaxed) != 0 ||
            !entry.owner.compare_exchange_strong(nobody, identity, std::memory_order_acq_rel)) {
            continue;
        }
        entry.service_id = claim.service_id;
        entry.token = claim.token;
        entry.host = claim.host;
        entry.node = claim.node;
        entry.families = claim.families;
        entry.any_address = claim.any_address ? 1 : 0;
        entry.shareable = claim.shareable ? 1 : 0;
        entry.listener.store(0, std::memory_order_relaxed);
        auto used = arena.header().services_used.load(std::memory_order_relaxed);
        while (used <= i && !arena.header().services_used.compare_exchange_weak(
                                used, i + 1, std::memory_order_seq_cst)) {
        }
        return i;
    }
    return kNone;
}

/// Takes a port. 0, EADDRINUSE, or ENOSPC if the table is full. `pause` is called while it waits
/// for another taker, and says whether to wait on.
template <class Pause>
int claim_service(Arena arena, const ServiceClaim& claim, std::uint32_t identity, Pause pause,
                  std::uint32_t& index) {
    index = fill_service(arena, claim, identity);
    if (index == kNone) return ENOSPC;
    auto& own = arena.service(index);
    own.stage.store(stage_value(ServiceStage::kTrying), std::memory_order_seq_cst);
    const auto used = arena.header().services_used.load(std::memory_order_seq_cst);
    for (std::uint32_t i = 0; i < used; ++i) {
        if (i == index) continue;
        const auto& other = arena.service(i);
        for (;;) {
            const auto stage = other.stage.load(std::memory_order_seq_cst);
            if (stage == stage_value(ServiceStage::kHidden) || !excludes(arena, other, claim))
                break;
            const bool wait = stage == stage_value(ServiceStage::kTrying) && i > index && pause();
            if (wait) continue;
            release_service(arena, index, identity);
            return EADDRINUSE;
        }
    }
    own.stage.store(stage_value(ServiceStage::kHeld), std::memory_order_seq_cst);
    return 0;
}

/// Where a listener for this service is found: its entry, or kNone. `matches` narrows the choice.
template <class Matches>
std::uint32_t find_listener(Arena arena, std::uint64_t service_id, std::uint32_t family,
                            Matches matches) {
    const auto used = arena.header().services_used.load(std::memory_order_acquire);
    for (std::uint32_t i = 0; i < used; ++i) {
        const auto& entry = arena.service(i);
        if (entry.stage.load(std::memory_order_acquire) != stage_value(ServiceStage::kHeld))
            continue;
        if (entry.service_id != service_id || (entry.families & family) == 0) continue;
        if (entry.listener.load(std::memory_order_acquire) == 0 || !matches(entry)) continue;
        if (is_alive(arena, entry.owner.load(std::memory_order_acquire))) return i;
    }
    return kNone;
}

}  // namespace weir::arena

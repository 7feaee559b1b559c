// SPDX-License-Identifier: Apache-2.0
// verify: whether a set of forwarding tables may be programmed. It trusts nothing of how the tables
// came about: every destination is followed from every switch, and every dependency of one channel
// on another that some destination causes is collected; a cycle among those is a possible deadlock
// (Dally, Seitz 1987), since every switch can send to every LID.
//
// Cost: one step for each (switch, LID) and pass, no path is walked twice.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "routing/router.h"
#include "topology/graph.h"

namespace weir::routing {

struct VerifyOptions {
    /// The most switches on a path between HCAs. 64 is the longest that a directed route can probe.
    std::uint32_t switches_max = 64;
};

/// What sound tables look like. A pair is an ordered pair of HCA ports. A channel is one direction
/// of a cable between switches.
struct VerifyReport {
    std::uint64_t pairs = 0;
    std::uint32_t switches_max = 0;  ///< Switches on the longest path between HCAs.
    std::uint64_t switches_sum = 0;  ///< Over all pairs; / pairs gives the mean.
    /// Switches that have no route to some HCA. Hosts are not concerned, in-band management is.
    std::uint32_t deaf_switches = 0;
    std::uint64_t dependencies = 0;  ///< Edges of the channel dependency graph.
    // Balance over channels: how many pairs cross each.
    std::uint64_t channels = 0;
    std::uint64_t load_min = 0;
    std::uint64_t load_max = 0;
    std::uint64_t load_sum = 0;  ///< / channels gives the mean.
    std::string busiest;         ///< Out-port of the channel of load_max: "leaf0:5".
};

/// Fails with the first thing wrong: tables of the wrong size, an out-port without a cable, a loop
/// ("leaf0 -> spine1 -> leaf0"), a pair without a route, a path too long, or a cycle of channel
/// dependencies, written out port by port. REQUIRES: fabric.validate() holds.
Result<VerifyReport> verify(const topology::Fabric& fabric, const Tables& tables,
                            const VerifyOptions& options = {});

}  // namespace weir::routing

// SPDX-License-Identifier: Apache-2.0
// Makes the arena of a fabric: lays it out, commits its fixed part, fills in nodes, ports, lanes
// and tables (arena/layout.h). What is sparse stays so; queue pairs, memory regions and packets are
// zero and begin their life when a program takes them.
#pragma once

#include <cstdint>
#include <string>

#include "arena/layout.h"
#include "base/result.h"
#include "routing/router.h"
#include "runtime/real/shared_memory.h"
#include "runtime/real/unique_fd.h"
#include "topology/graph.h"

namespace weir::lab {

struct FabricMemory {
    runtime::UniqueFd fd;
    runtime::Mapping mapping;
    [[nodiscard]] arena::Arena arena() const { return arena::Arena(mapping.data()); }
};

/// Capacity of every lane buffer, in blocks: what the fabric's options say, but no less than one
/// segment, which must fit for anything to move at all.
std::uint32_t lane_capacity_blocks(const topology::Options& options);

/// The layout of an arena for such a fabric: all sizes and offsets of its header.
/// kInvalid if a name is too long for the layout.
Result<void> plan_arena(const topology::Fabric& fabric, const routing::Tables& tables,
                        const std::string& name, arena::ArenaHeader& header);

/// REQUIRES: fabric.validate() holds and the tables are this fabric's.
/// kNoSpace if the machine has not enough memory.
Result<FabricMemory> build_arena(const topology::Fabric& fabric, const routing::Tables& tables,
                                 const std::string& name);

}  // namespace weir::lab

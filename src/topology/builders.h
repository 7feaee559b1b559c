// SPDX-License-Identifier: Apache-2.0
// Builders of regular fabrics. A builder is a pure function: the same parameters give the same
// nodes in the same order with the same names and GUIDs, on every machine. Hosts come first ("h0",
// "h1"; with several HCAs "h0/0", "h0/1"), then switches from the edge inwards. Link speed and
// delay are those of `options`. Parameters that cannot be built are an error that says which bound
// was hit.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "topology/graph.h"

namespace weir::topology {

/// One switch, "s0".
struct SingleSwitch {
    std::uint32_t hosts = 2;
    std::uint32_t hcas = 1;   ///< HCAs of each host.
    std::uint32_t ports = 0;  ///< Of the switch; 0 = as many as needed.
};

/// Down-links to up-links of a leaf: 2:1 has twice as many hosts' ports as uplinks.
struct Taper {
    std::uint32_t down = 1;
    std::uint32_t up = 1;
};

/// A two- or three-level folded Clos of equal switches: "leaf0", "spine0", "core0".
///
/// A leaf gives `up = radix * taper.up / (taper.down + taper.up)` ports to uplinks (rounded down)
/// and `min(radix - up, up * taper.down / taper.up)` to hosts; odd radices leave ports free rather
/// than taper more than asked. Links between two switches are parallel where fewer spines suffice,
/// and all leaves have the same number of links to each spine.
///
/// With `rails` > 1 each host has that many HCAs, and HCA r is cabled to a leaf of rail r: the
/// hosts of one scalable unit share one leaf per rail, so that equal ranks are one hop apart.
struct FatTree {
    std::uint32_t levels = 2;  ///< 2 or 3.
    std::uint32_t radix = 8;
    std::uint32_t hosts = 2;
    std::uint32_t rails = 1;
    Taper taper{};
    std::uint32_t su_hosts =
        0;  ///< Hosts of a scalable unit; 0 = as many as a leaf has down-ports.
};

/// A fat tree for accelerator clusters: as FatTree, with as many rails as a host has accelerators.
struct RailOptimised {
    std::uint32_t levels = 2;
    std::uint32_t radix = 64;
    std::uint32_t hosts = 2;
    std::uint32_t rails = 8;
    Taper taper{};
    std::uint32_t su_hosts = 0;
};

/// Groups of fully meshed switches, and global links spread evenly over the other groups (Kim,
/// Dally, Scott, Abts, ISCA 2008). Switches are "g0.s0". All links of a whole round over the other
/// groups are used; a remainder of global ports that does not reach all groups is left free.
struct Dragonfly {
    std::uint32_t a = 4;  ///< Switches of a group.
    std::uint32_t h = 2;  ///< Global links of a switch.
    std::uint32_t p = 2;  ///< Hosts of a switch.
    std::uint32_t g = 9;  ///< Groups, at most a * h + 1.
};

/// A grid of switches with wrap-around links, "s0.1.2". A dimension of 2 has one link, not two.
struct Torus {
    std::vector<std::uint32_t> dims{4, 4};  ///< Two or three.
    std::uint32_t hosts_per_switch = 1;
};

Result<Fabric> build_single_switch(const SingleSwitch& shape, const Options& options = {});
Result<Fabric> build_fat_tree(const FatTree& shape, const Options& options = {});
Result<Fabric> build_rail_optimised(const RailOptimised& shape, const Options& options = {});
Result<Fabric> build_dragonfly(const Dragonfly& shape, const Options& options = {});
Result<Fabric> build_torus(const Torus& shape, const Options& options = {});

}  // namespace weir::topology

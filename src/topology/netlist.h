// SPDX-License-Identifier: Apache-2.0
// Netlists: the text that ibnetdiscover prints, ibsim simulates and most InfiniBand tools exchange.
//
//     switchguid=0x2c90300a1(2c90300a1)
//     Switch  41 "S-00000002c90300a1"    # "edge-5" enhanced port 0 lid 13 lmc 0
//     [17]    "S-00000002c90300b1"[1]    # "spine-1" lid 12 4xHDR
//     [41]    "H-00000002c90300c1"[1](2c90300c2)    # "node-7 HCA-1" lid 15 4xHDR
//
// Read leniently where files in the wild differ and nothing is lost: tabs or none, CRLF, a terminal
// log's banner and prompt around the dump, hand-written names instead of GUIDs, cables told from
// one end only, nodes only their neighbours tell of. Each such leniency leaves a note with
// file:line. What contradicts itself is an error that names both lines.
//
// A node is named by its quoted id; find_node() also takes its description. The HCA's host is the
// first word of a two-word description ("node-7 HCA-1"), else the HCA's own name.
//
// What the form can't say (our names, tiers, lanes...) is written as comment lines "# weir ...",
// which other tools skip, so that parse_netlist(format_netlist(f)) gives f back.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "topology/graph.h"

namespace weir::topology {

struct Netlist {
    Fabric fabric;                   ///< finish_links() done, validate() holds.
    std::vector<std::string> notes;  ///< "file:line: what was odd and how it was taken".
};

/// Parses `text`; `filename` is used in errors and notes only.
Result<Netlist> parse_netlist(std::string_view text, std::string_view filename);

/// Reads and parses a file.
Result<Netlist> read_netlist_file(const std::string& path);

/// REQUIRES: fabric.finish_links() done, fabric.validate() holds.
std::string format_netlist(const Fabric& fabric);

}  // namespace weir::topology

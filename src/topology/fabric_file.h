// SPDX-License-Identifier: Apache-2.0
// fabric.yaml: the one file that every Weir tool starts from. It either generates a fabric
//
//     name: lab
//     speed: 400Gbps
//     fabric: {shape: fat-tree, levels: 2, radix: 8, hosts: 16}
//
// or lists it, in a superset of containerlab's form
//
//     topology:
//       nodes:
//         s0: {kind: weir_switch, ports: 8}
//         h0: {kind: weir_host}
//       links:
//         - endpoints: ["s0:1", "h0:1"]
//
// The decoder is strict: an unknown key, a missing unit or a repeated key is an error with
// file:line:col, and no value is guessed. docs/reference/fabric.schema.json tells editors the same
// keys; a test holds the two together. Nothing is thrown.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "topology/graph.h"

namespace weir::topology {

/// Decodes `text`; `filename` is used in errors only.
Result<Fabric> decode_fabric(std::string_view text, std::string_view filename);

/// Reads and decodes a file.
Result<Fabric> read_fabric_file(const std::string& path);

/// The keys that the decoder knows, by section: "" (the top), "arbitration", "lane", "topology",
/// "node", "labels", "link", and "fabric/<shape>". For the schema's test and for completion in
/// tools.
std::map<std::string, std::vector<std::string>> fabric_file_keys();

}  // namespace weir::topology

// SPDX-License-Identifier: Apache-2.0
// From a file to a fabric: fabric.yaml or what ibnetdiscover prints, told apart by what is in it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "topology/graph.h"

namespace weir::lab {

/// Files larger than this are taken to be a mistake.
inline constexpr std::size_t kSourceBytesMax = 256UL << 20U;

struct FabricSource {
    std::string text;  ///< The file, word for word.
    topology::Fabric fabric;
    std::vector<std::string> notes;  ///< What was odd in a netlist, with file:line.
};

/// True if the text is in ibnetdiscover's form.
bool looks_like_netlist(std::string_view text);

Result<FabricSource> read_fabric_source(const std::string& path);

}  // namespace weir::lab

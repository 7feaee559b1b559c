// SPDX-License-Identifier: Apache-2.0
// Any bytes as a netlist: an error that names the file, or a sound fabric that reads back from its
// own export.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "topology/netlist.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace weir::topology;
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const auto netlist = parse_netlist(text, "fuzz.txt");
    if (!netlist) {
        WEIR_CHECK(netlist.error().context.starts_with("fuzz.txt:"));
        return 0;
    }
    WEIR_CHECK(netlist->fabric.validate().has_value());
    const auto back = parse_netlist(format_netlist(netlist->fabric), "export");
    WEIR_CHECK(back && back->fabric == netlist->fabric);
    return 0;
}

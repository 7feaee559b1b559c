// SPDX-License-Identifier: Apache-2.0
// Any bytes as fabric.yaml: either a sound fabric or an error that names the file; never a crash.
// Inputs with long numbers are passed over: a fabric of 200,000 nodes is legal and takes its time.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "topology/fabric_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
    std::size_t run = 0;
    for (const char c : text) {
        run = is_digit(c) ? run + 1 : 0;
        if (run > 3) return 0;
    }
    const auto fabric = weir::topology::decode_fabric(text, "fuzz.yaml");
    if (fabric) {
        WEIR_CHECK(fabric->validate().has_value());
    } else {
        WEIR_CHECK(fabric.error().context.starts_with("fuzz.yaml:"));
    }
    return 0;
}

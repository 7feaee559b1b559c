// SPDX-License-Identifier: Apache-2.0
// Whatever comes as a connection management MAD is refused or understood; what is understood is
// encoded to bytes that are understood the same way. No reserved bits come back.
#include <array>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "wire/cm_mad.h"

// The name is libFuzzer's.
// NOLINTNEXTLINE(readability-identifier-naming)
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::span<const std::uint8_t> bytes(data, size);
    if (const auto header = weir::wire::decode_cm_ip_header(bytes); header.has_value()) {
        std::array<std::uint8_t, weir::wire::kCmIpHeaderBytes> out{};
        encode_cm_ip_header(*header, out);
        WEIR_CHECK(weir::wire::decode_cm_ip_header(out) == header);
    }
    const auto mad = weir::wire::decode_cm_mad(bytes);
    if (!mad.has_value()) return 0;
    const auto encoded = encode_cm_mad(*mad);
    WEIR_CHECK(weir::wire::decode_cm_mad(encoded) == mad);
    return 0;
}

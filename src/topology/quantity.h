// SPDX-License-Identifier: Apache-2.0
// Quantities as people write them in files and flags: "400Gbps", "2us", "16MiB". The unit is
// required, fractions are allowed if the result is whole ("56.25Gbps"), and no arithmetic is done
// in floating point. Errors say what was expected but not where: the caller knows the file and
// line.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "base/units.h"
#include "topology/graph.h"

namespace weir::topology {

Result<BitsPerSecond> parse_rate(std::string_view text);  ///< bps, kbps, Mbps, Gbps, Tbps.
Result<Picos> parse_duration(std::string_view text);      ///< ps, ns, us, ms, s.
Result<Bytes> parse_bytes(std::string_view text);         ///< B, kB, MB, GB, KiB, MiB, GiB.

/// The shortest exact spelling that the parsers read back: "400Gbps".
std::string format_rate(BitsPerSecond rate);

}  // namespace weir::topology

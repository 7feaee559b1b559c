// SPDX-License-Identifier: Apache-2.0
// Reading completions one by one through ibv_cq_ex, field by field. Between start_poll and end_poll
// the CQ is this reader's, unless it was made for one thread.
#pragma once

#include <cstdint>

#include <infiniband/verbs.h>

namespace weir::ibverbs {

/// Fields that can be asked for (IBV_WC_EX_WITH_*), those that want the time, and the mark that the
/// CQ is to be extended at all.
inline constexpr std::uint64_t kStamped =
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
inline constexpr std::uint64_t kReadable = IBV_WC_STANDARD_FLAGS | kStamped;
inline constexpr std::uint64_t kExtended = 1ULL << 63U;

/// Sets the operations that `read_flags` asks for; the others stay null. None without kExtended.
void fill_read_operations(ibv_cq_ex& cq, std::uint64_t read_flags);

}  // namespace weir::ibverbs

// SPDX-License-Identifier: Apache-2.0
// What headers after rdma-core 44 add to the verbs and this device has, by the ABI's values: so
// that Weir builds with the older headers and serves programs built with the newer ones.
#pragma once

#include <cstdint>

#include <infiniband/verbs.h>

namespace weir::hca {

// Memory placement extensions (IBTA, annex A19): flush and atomic write.
inline constexpr int kWrFlush = 14;  ///< ibv_wr_opcode
inline constexpr auto kWcFlush = static_cast<ibv_wc_opcode>(8);
inline constexpr int kAccessFlushGlobal = 1 << 8;  ///< ibv_access_flags
inline constexpr int kAccessFlushPersistent = 1 << 9;
inline constexpr std::uint64_t kDeviceFlushGlobal = 1ULL << 38U;  ///< ibv_device_attr_ex
inline constexpr std::uint64_t kDeviceAtomicWrite = 1ULL << 40U;
inline constexpr std::uint32_t kOdpFlush = 1U << 6U;
inline constexpr std::uint32_t kOdpAtomicWrite = 1U << 7U;
inline constexpr std::uint64_t kQpExWithFlush = 1ULL << 11U;  ///< ibv_qp_create_send_ops_flags

/// Arguments of a flush: placement types as bits, and what is meant.
inline constexpr std::uint8_t kFlushGlobal = 1U << 0U;
inline constexpr std::uint8_t kFlushPersistent = 1U << 1U;
inline constexpr std::uint8_t kFlushRange = 0;
inline constexpr std::uint8_t kFlushRegion = 1;

struct Flush {
    std::uint32_t rkey;
    std::uint64_t address;
    std::uint64_t length;
    std::uint8_t type;
    std::uint8_t level;
};

/// A flush comes by ibv_wr_flush() alone, as ibv_send_wr has no place of its own for it. On the way
/// through the engine it borrows the atomics'.
inline void set_flush(ibv_send_wr& wr, const Flush& flush) {
    wr.wr.atomic.rkey = flush.rkey;
    wr.wr.atomic.remote_addr = flush.address;
    wr.wr.atomic.compare_add = flush.length;
    wr.wr.atomic.swap = flush.type | static_cast<unsigned>(flush.level) << 8U;
}
inline Flush flush_of(const ibv_send_wr& wr) {
    const auto kinds = wr.wr.atomic.swap;
    return {wr.wr.atomic.rkey, wr.wr.atomic.remote_addr, wr.wr.atomic.compare_add,
            static_cast<std::uint8_t>(kinds), static_cast<std::uint8_t>(kinds >> 8U)};
}

}  // namespace weir::hca

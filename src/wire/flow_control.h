// SPDX-License-Identifier: Apache-2.0
// Link-level flow control packets (IBTA 7.9.4) and the arithmetic of their 12-bit credit counters.
//
//    31   28 27                 16 15   12 11                  0
//   +-------+---------------------+-------+---------------------+
//   |  op   |        FCTBS        |  VL   |        FCCL         |   then LPCRC, 16 bits
//   +-------+---------------------+-------+---------------------+
//
// Counters run in blocks of 64 bytes, modulo 4096. FCTBS (total blocks sent) lets the receiver
// resynchronise its own count (ABR) after a loss; FCCL (credit limit) is ABR plus the free blocks
// of its buffer. A sender holding CL = FCCL may send a packet of n blocks if (CL - FCTBS - n) mod
// 4096 is at most 2048: not negative, seen round the circle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace weir::wire {

inline constexpr std::size_t kFlowControlBytes = 6;
inline constexpr std::uint32_t kCreditBlockBytes = 64;
inline constexpr std::uint32_t kCreditModulus = 4096;
/// The most credit a limit may run ahead by, so that full and empty stay distinct.
inline constexpr std::uint32_t kCreditBlocksMax = 2048;

enum class FlowControlOp : std::uint8_t {
    kNormal = 0,
    kInit = 1,  ///< Sent while the link initialises; the receiver takes FCTBS as its ABR.
};

struct FlowControl {
    FlowControlOp op = FlowControlOp::kNormal;
    std::uint8_t vl = 0;      ///< 0 to 14; VL15 has no flow control.
    std::uint16_t fctbs = 0;  ///< 12 bits.
    std::uint16_t fccl = 0;   ///< 12 bits.
    bool operator==(const FlowControl&) const = default;
};

/// Writes six bytes. Fields are cut to their widths.
void encode_flow_control(const FlowControl& packet, std::span<std::uint8_t, kFlowControlBytes> out);
/// Nothing if the size, the op or the LPCRC is wrong: IBTA has such packets dropped silently.
[[nodiscard]] std::optional<FlowControl> decode_flow_control(std::span<const std::uint8_t> bytes);

constexpr std::uint16_t credit_add(std::uint32_t counter, std::uint32_t blocks) {
    return static_cast<std::uint16_t>((counter + blocks) % kCreditModulus);
}
/// Blocks from b on to a, modulo 4096.
constexpr std::uint16_t credit_sub(std::uint32_t a, std::uint32_t b) {
    return static_cast<std::uint16_t>((a - b) % kCreditModulus);
}
/// Whether `blocks` more may be sent after `sent` under the limit `limit`.
/// REQUIRES: blocks <= kCreditBlocksMax.
constexpr bool credit_allows(std::uint32_t limit, std::uint32_t sent, std::uint32_t blocks) {
    return credit_sub(limit, sent + blocks) <= kCreditBlocksMax;
}
/// Blocks that may be sent after `sent` under `limit`; 0 if the limit lies behind.
constexpr std::uint32_t credit_available(std::uint32_t limit, std::uint32_t sent) {
    const std::uint32_t ahead = credit_sub(limit, sent);
    return ahead <= kCreditBlocksMax ? ahead : 0;
}
/// Blocks that a packet of `bytes` on the link (LRH to VCRC) takes of a buffer.
constexpr std::uint32_t credit_blocks(std::size_t bytes) {
    return static_cast<std::uint32_t>((bytes + kCreditBlockBytes - 1) / kCreditBlockBytes);
}

}  // namespace weir::wire

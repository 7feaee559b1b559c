// SPDX-License-Identifier: Apache-2.0
#include "wire/flow_control.h"

#include "wire/bytes.h"
#include "wire/crc.h"

namespace weir::wire {
namespace {

constexpr std::size_t kCoveredBytes = 4;
constexpr std::uint32_t kCounterMask = kCreditModulus - 1;

std::uint16_t lpcrc_of(std::span<const std::uint8_t> bytes) {
    return static_cast<std::uint16_t>(~vcrc_update(kVcrcInit, bytes.first(kCoveredBytes)));
}

}  // namespace

void encode_flow_control(const FlowControl& packet,
                         std::span<std::uint8_t, kFlowControlBytes> out) {
    const std::uint32_t op = static_cast<std::uint32_t>(packet.op) & 0xfU;
    store32(out.data(), (op << 28U) | ((packet.fctbs & kCounterMask) << 16U) |
                            ((packet.vl & 0xfU) << 12U) | (packet.fccl & kCounterMask));
    const std::uint16_t lpcrc = lpcrc_of(out);
    out[4] = static_cast<std::uint8_t>(lpcrc);
    out[5] = static_cast<std::uint8_t>(lpcrc >> 8U);
}

std::optional<FlowControl> decode_flow_control(std::span<const std::uint8_t> bytes) {
    if (bytes.size() != kFlowControlBytes) return std::nullopt;
    if ((bytes[4] | (bytes[5] << 8U)) != lpcrc_of(bytes)) return std::nullopt;
    const std::uint32_t word = load32(bytes.data());
    const std::uint32_t op = word >> 28U;
    if (op > static_cast<std::uint32_t>(FlowControlOp::kInit)) return std::nullopt;
    FlowControl packet;
    packet.op = static_cast<FlowControlOp>(op);
    packet.fctbs = static_cast<std::uint16_t>((word >> 16U) & kCounterMask);
    packet.vl = static_cast<std::uint8_t>((word >> 12U) & 0xfU);
    packet.fccl = static_cast<std::uint16_t>(word & kCounterMask);
    return packet;
}

}  // namespace weir::wire

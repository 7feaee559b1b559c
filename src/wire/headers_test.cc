// SPDX-License-Identifier: Apache-2.0
// Facts about opcodes, syndromes, time codes and sequence numbers, against IBTA's tables written
// out in full here, so that a slip in the compact tables under test shows.
#include "wire/headers.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>

#include "wire/psn.h"
#include "wire/syndrome.h"

namespace weir::wire {
namespace {

struct OpcodeFacts {
    unsigned opcode;
    Service service;
    // r request, p response; F first, M middle, L last, O only; then the extended headers in wire
    // order: D DETH, H FETH, R RETH, A AtomicETH, E AETH, K AtomicAckETH, I immediate, V IETH; +
    // payload.
    const char* facts;
};

constexpr Service kRc = Service::kRc;
constexpr Service kUc = Service::kUc;
constexpr OpcodeFacts kFacts[] = {
    {0x00, kRc, "rF+"},         {0x01, kRc, "rM+"},           {0x02, kRc, "rL+"},
    {0x03, kRc, "rLI+"},        {0x04, kRc, "rO+"},           {0x05, kRc, "rOI+"},
    {0x06, kRc, "rFR+"},        {0x07, kRc, "rM+"},           {0x08, kRc, "rL+"},
    {0x09, kRc, "rLI+"},        {0x0a, kRc, "rOR+"},          {0x0b, kRc, "rORI+"},
    {0x0c, kRc, "rOR"},         {0x0d, kRc, "pFE+"},          {0x0e, kRc, "pM+"},
    {0x0f, kRc, "pLE+"},        {0x10, kRc, "pOE+"},          {0x11, kRc, "pOE"},
    {0x12, kRc, "pOEK"},        {0x13, kRc, "rOA"},           {0x14, kRc, "rOA"},
    {0x16, kRc, "rLV+"},        {0x17, kRc, "rOV+"},          {0x1c, kRc, "rOHR"},
    {0x1d, kRc, "rOR+"},        {0x20, kUc, "rF+"},           {0x21, kUc, "rM+"},
    {0x22, kUc, "rL+"},         {0x23, kUc, "rLI+"},          {0x24, kUc, "rO+"},
    {0x25, kUc, "rOI+"},        {0x26, kUc, "rFR+"},          {0x27, kUc, "rM+"},
    {0x28, kUc, "rL+"},         {0x29, kUc, "rLI+"},          {0x2a, kUc, "rOR+"},
    {0x2b, kUc, "rORI+"},       {0x64, Service::kUd, "rOD+"}, {0x65, Service::kUd, "rODI+"},
    {0x81, Service::kCnp, "O"},
};

std::string facts_of(Opcode op) {
    std::string facts;
    if (is_request(op)) facts += 'r';
    if (is_response(op)) facts += 'p';
    if (is_first(op)) facts += 'F';
    if (is_middle(op)) facts += 'M';
    if (is_last(op)) facts += 'L';
    if (is_only(op)) facts += 'O';
    if (has_deth(op)) facts += 'D';
    if (has_feth(op)) facts += 'H';
    if (has_reth(op)) facts += 'R';
    if (has_atomic_eth(op)) facts += 'A';
    if (has_aeth(op)) facts += 'E';
    if (has_atomic_ack(op)) facts += 'K';
    if (has_immediate(op)) facts += 'I';
    if (has_ieth(op)) facts += 'V';
    if (carries_payload(op)) facts += '+';
    return facts;
}

TEST(Opcode, TraitsAreThoseOfTheSpecificationForAll256Values) {
    std::array<const OpcodeFacts*, 256> expected{};
    for (const OpcodeFacts& row : kFacts)
        expected[row.opcode] = &row;
    for (unsigned value = 0; value < 256; ++value) {
        const auto op = static_cast<Opcode>(value);
        const OpcodeFacts* row = expected[value];
        EXPECT_EQ(is_known(op), row != nullptr) << value;
        EXPECT_EQ(facts_of(op), row != nullptr ? row->facts : "") << value;
        EXPECT_EQ(service(op), row != nullptr ? row->service : Service::kUnknown) << value;
    }
}

TEST(Opcode, KindsPartitionTheRequests) {
    EXPECT_TRUE(is_send(Opcode::kRcSendOnlyInvalidate));
    EXPECT_TRUE(is_send(Opcode::kUdSendOnlyImm));
    EXPECT_TRUE(is_write(Opcode::kUcWriteLastImm));
    EXPECT_TRUE(is_read_response(Opcode::kRcReadResponseMiddle));
    EXPECT_FALSE(is_read_response(Opcode::kRcAcknowledge));
    for (const OpcodeFacts& row : kFacts) {
        const auto op = static_cast<Opcode>(row.opcode);
        const int kinds = int{is_send(op)} + int{is_write(op)} + int{is_atomic(op)} +
                          int{op == Opcode::kRcReadRequest} + int{op == Opcode::kRcFlush} +
                          int{op == Opcode::kRcAtomicWrite};
        EXPECT_EQ(kinds, is_request(op) ? 1 : 0) << row.opcode;
    }
}

TEST(Opcode, HeaderBytes) {
    EXPECT_EQ(transport_header_bytes(Opcode::kRcSendMiddle), 12U);
    EXPECT_EQ(transport_header_bytes(Opcode::kRcWriteOnlyImm), 32U);
    EXPECT_EQ(transport_header_bytes(Opcode::kRcCompareSwap), 40U);
    EXPECT_EQ(transport_header_bytes(Opcode::kRcAtomicAcknowledge), 24U);
    EXPECT_EQ(transport_header_bytes(Opcode::kUdSendOnlyImm), 24U);
    EXPECT_EQ(transport_header_bytes(Opcode::kRcFlush), 32U);
    EXPECT_EQ(transport_header_bytes(Opcode::kRcAtomicWrite), 28U);
    EXPECT_EQ(transport_header_bytes(Opcode::kCnp), 28U);
}

TEST(PacketHeader, FlagsSetAndClearAlone) {
    PacketHeader header;
    header.set(kFlagAckRequest);
    header.set(kFlagFecn);
    EXPECT_TRUE(header.has(kFlagAckRequest));
    EXPECT_FALSE(header.has(kFlagBecn));
    header.set(kFlagFecn, false);
    EXPECT_EQ(header.flags, kFlagAckRequest);
}

TEST(Syndrome, KindsAndValues) {
    EXPECT_EQ(ack_syndrome(), 0x1f);
    EXPECT_EQ(ack_syndrome(5), 0x05);
    EXPECT_EQ(rnr_nak_syndrome(12), 0x2c);
    EXPECT_EQ(nak_syndrome(NakCode::kPsnSequenceError), 0x60);
    EXPECT_EQ(nak_syndrome(NakCode::kInvalidRequest), 0x61);
    EXPECT_EQ(nak_syndrome(NakCode::kRemoteAccessError), 0x62);
    EXPECT_EQ(nak_syndrome(NakCode::kRemoteOperationalError), 0x63);
    EXPECT_EQ(nak_syndrome(NakCode::kInvalidRdRequest), 0x64);
    EXPECT_EQ(ack_kind(0x1f), AckKind::kAck);
    EXPECT_EQ(ack_kind(0x20), AckKind::kRnrNak);
    EXPECT_EQ(ack_kind(0x40), AckKind::kReserved);
    EXPECT_EQ(ack_kind(0x63), AckKind::kNak);
    EXPECT_EQ(nak_code(0x62), NakCode::kRemoteAccessError);
    EXPECT_EQ(syndrome_value(0x2c), 12);
}

TEST(Syndrome, CreditCodesAreTheTableAndNeverPromiseTooMuch) {
    constexpr std::uint32_t kTable[] = {0,    1,    2,    3,     4,     6,     8,    12,
                                        16,   24,   32,   48,    64,    96,    128,  192,
                                        256,  384,  512,  768,   1024,  1536,  2048, 3072,
                                        4096, 6144, 8192, 12288, 16384, 24576, 32768};
    for (std::uint8_t code = 0; code < kNoCreditCode; ++code) {
        EXPECT_EQ(credits_of_code(code), kTable[code]);
        EXPECT_EQ(code_of_credits(kTable[code]), code);
        EXPECT_EQ(
            code_of_credits(kTable[code] + 1),
            code + 1 < kNoCreditCode && kTable[code + 1] == kTable[code] + 1 ? code + 1 : code);
    }
    EXPECT_EQ(code_of_credits(0xffffffffU), 30);
}

TEST(Timers, RnrCodesAreTheTable) {
    // Milliseconds times 100, as printed in the table, in code order.
    constexpr std::uint64_t kTable[] = {65536, 1,    2,    3,     4,     6,     8,     12,
                                        16,    24,   32,   48,    64,    96,    128,   192,
                                        256,   384,  512,  768,   1024,  1536,  2048,  3072,
                                        4096,  6144, 8192, 12288, 16384, 24576, 32768, 49152};
    for (std::uint8_t code = 0; code < 32; ++code) {
        EXPECT_EQ(rnr_timer_ns(code), kTable[code] * 10000);
        EXPECT_EQ(rnr_timer_code(rnr_timer_ns(code)), code);
    }
    EXPECT_EQ(rnr_timer_code(0), 1);
    EXPECT_EQ(rnr_timer_code(10'001), 2);
    EXPECT_EQ(rnr_timer_code(10'000'000'000), 0);
}

TEST(Timers, AckTimeouts) {
    EXPECT_EQ(ack_timeout_ns(0), 0U);
    EXPECT_EQ(ack_timeout_ns(1), 8192U);
    EXPECT_EQ(ack_timeout_ns(14), 67'108'864U);
    EXPECT_EQ(ack_timeout_ns(31), 8'796'093'022'208U);
    for (std::uint8_t code = 2; code < 32; ++code)
        EXPECT_EQ(ack_timeout_ns(code), 2 * ack_timeout_ns(static_cast<std::uint8_t>(code - 1)));
}

TEST(Psn, WrapsAndCompares) {
    EXPECT_EQ(psn_next(0xffffff), 0U);
    EXPECT_EQ(psn_sub(0, 1), 0xffffffU);
    EXPECT_EQ(psn_diff(2, 0xfffffe), 4);
    EXPECT_EQ(psn_diff(0xfffffe, 2), -4);
    EXPECT_EQ(psn_diff(0x800000, 0), -0x800000);
    EXPECT_EQ(psn_diff(0x7fffff, 0), 0x7fffff);
    EXPECT_TRUE(psn_before(0xffffff, 0));
    EXPECT_TRUE(psn_after(0, 0xffffff));
    EXPECT_TRUE(psn_equal(0x1000005, 5));
    EXPECT_LT(psn_compare(1, 2), 0);
    EXPECT_TRUE(psn_in_window(1, 0xffffff, 3));
    EXPECT_FALSE(psn_in_window(2, 0xffffff, 3));
    EXPECT_FALSE(psn_in_window(0xfffffe, 0xffffff, 3));
}

}  // namespace
}  // namespace weir::wire

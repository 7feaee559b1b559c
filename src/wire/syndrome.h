// SPDX-License-Identifier: Apache-2.0
// The AETH syndrome byte (IBTA 9.7.5.1.1, table "AETH Syndrome Field"), and the two time codes that
// QPs negotiate: RNR NAK timers and acknowledgement timeouts.
//
//     7    6   5    4   3   2   1   0
//   +----+--------+--------------------+
//   | 0  |  kind  |       value        |   kind 00 ACK: value is a credit code
//   +----+--------+--------------------+        01 RNR NAK: value is a timer code
//                                               10 reserved    11 NAK: value is a NakCode
#pragma once

#include <array>
#include <cstdint>

namespace weir::wire {

enum class AckKind : std::uint8_t { kAck = 0, kRnrNak = 1, kReserved = 2, kNak = 3 };

/// Why a responder refuses a request (IBTA table "NAK Codes"). Values above kInvalidRdRequest are
/// reserved.
enum class NakCode : std::uint8_t {
    kPsnSequenceError = 0,
    kInvalidRequest = 1,
    kRemoteAccessError = 2,
    kRemoteOperationalError = 3,
    kInvalidRdRequest = 4,
};

/// The credit code that says "this responder does not do end-to-end credits" (IBTA 9.7.7.2.5).
inline constexpr std::uint8_t kNoCreditCode = 31;

constexpr std::uint8_t ack_syndrome(std::uint8_t credit_code = kNoCreditCode) {
    return credit_code & 0x1fU;
}
constexpr std::uint8_t rnr_nak_syndrome(std::uint8_t timer_code) {
    return static_cast<std::uint8_t>(0x20U | (timer_code & 0x1fU));
}
constexpr std::uint8_t nak_syndrome(NakCode code) {
    return static_cast<std::uint8_t>(0x60U | static_cast<unsigned>(code));
}
constexpr AckKind ack_kind(std::uint8_t syndrome) {
    return static_cast<AckKind>((static_cast<unsigned>(syndrome) >> 5U) & 3U);
}
/// The low five bits: credit code, timer code or NAK code, as ack_kind() says.
constexpr std::uint8_t syndrome_value(std::uint8_t syndrome) {
    return syndrome & 0x1fU;
}
/// REQUIRES: ack_kind(syndrome) == AckKind::kNak. May be a reserved value.
constexpr NakCode nak_code(std::uint8_t syndrome) {
    return static_cast<NakCode>(syndrome_value(syndrome));
}

/// Receive credits that a credit code stands for (IBTA table "End-to-End Flow Control Credit
/// Encoding"): 0 1 2 3, then 4 6 8 12 16 24 ... 32768. REQUIRES: code < kNoCreditCode.
constexpr std::uint32_t credits_of_code(std::uint8_t code) {
    if (code < 4) return code;
    return (2U + (code & 1U)) << (code / 2U - 1U);
}
/// The largest code whose credits do not exceed `credits`: never promises more than there is.
constexpr std::uint8_t code_of_credits(std::uint32_t credits) {
    std::uint8_t code = kNoCreditCode - 1;
    while (credits_of_code(code) > credits)
        --code;
    return code;
}

namespace detail {
// IBTA table 45 in units of 10 us, by code.
inline constexpr std::array<std::uint32_t, 32> kRnrTensOfMicroseconds = {
    65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
    48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
    2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
}  // namespace detail

/// How long a requester waits after an RNR NAK, in ns (IBTA 9.7.5.2.8, table 45): 10 us to 491.52
/// ms, and 655.36 ms for code 0. Only the low five bits of `code` count.
constexpr std::uint64_t rnr_timer_ns(std::uint8_t code) {
    return std::uint64_t{detail::kRnrTensOfMicroseconds[code & 0x1fU]} * 10'000U;
}
/// The code of the shortest RNR timer not below `ns`; 0, the longest, if none suffices.
constexpr std::uint8_t rnr_timer_code(std::uint64_t ns) {
    for (std::uint8_t code = 1; code < 32; ++code)
        if (rnr_timer_ns(code) >= ns) return code;
    return 0;
}

/// Acknowledgement timeout of a QP, 4.096 us * 2^code, in ns (IBTA 9.7.6.1.3). 0 means never: code
/// 0 disables the timer. Only the low five bits of `code` count.
constexpr std::uint64_t ack_timeout_ns(std::uint8_t code) {
    const unsigned exponent = code & 0x1fU;
    return exponent == 0 ? 0 : std::uint64_t{4096} << exponent;
}

}  // namespace weir::wire

// SPDX-License-Identifier: Apache-2.0
// Any bytes may arrive. Whatever decodes must encode again, to the same bytes where the packet was
// canonical, and what was encoded must decode, CRCs checked, to the same packet. The first byte
// selects the form: 0, 1 local; 2 RoCEv2 over IPv4; 3 over IPv6.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "wire/codec.h"
#include "wire/flow_control.h"

namespace {

using weir::wire::CodecStatus;
using weir::wire::CrcCheck;
using weir::wire::DecodedPacket;
using weir::wire::EncodeResult;
using Bytes = std::span<const std::uint8_t>;

struct Form {
    bool local = true;
    weir::wire::RoceEnvelope envelope{};

    CodecStatus decode(Bytes bytes, DecodedPacket& packet, CrcCheck check) const {
        return local ? decode_local(bytes, packet, check)
                     : decode_roce(bytes, envelope, packet, check);
    }
    EncodeResult encode(const DecodedPacket& packet, std::span<std::uint8_t> out) const {
        return local ? encode_local(packet.header, packet.grh, packet.payload, out)
                     : encode_roce(packet.header, envelope, packet.payload, out);
    }
};

void check_packet(const Form& form, Bytes bytes) {
    DecodedPacket packet;
    const CodecStatus unverified = form.decode(bytes, packet, CrcCheck::kSkip);
    DecodedPacket verified;
    const bool intact = form.decode(bytes, verified, CrcCheck::kVerify) == CodecStatus::kOk;
    WEIR_CHECK(unverified == CodecStatus::kOk || !intact);
    if (unverified != CodecStatus::kOk) return;

    static std::array<std::uint8_t, weir::wire::kMaxPacketBytes> out;
    const EncodeResult result = form.encode(packet, out);
    WEIR_CHECK(result.status == CodecStatus::kOk);
    WEIR_CHECK(result.bytes == bytes.size());
    const Bytes encoded = Bytes(out).first(result.bytes);
    if (packet.canonical) {
        const std::size_t crcs =
            intact ? 0 : weir::wire::kIcrcBytes + (form.local ? weir::wire::kVcrcBytes : 0);
        WEIR_CHECK(std::equal(bytes.begin(), bytes.end() - static_cast<std::ptrdiff_t>(crcs),
                              encoded.begin()));
    }
    DecodedPacket again;
    WEIR_CHECK(form.decode(encoded, again, CrcCheck::kVerify) == CodecStatus::kOk);
    WEIR_CHECK(again.canonical && again.header == packet.header && again.grh == packet.grh);
    WEIR_CHECK(std::ranges::equal(again.payload, packet.payload));
}

}  // namespace

// The name is libFuzzer's.
// NOLINTNEXTLINE(readability-identifier-naming)
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    Form form;
    form.local = (data[0] & 3U) < 2;
    form.envelope.ipv6 = (data[0] & 3U) == 3;
    const Bytes bytes(data + 1, size - 1);
    check_packet(form, bytes);
    if (const auto flow = weir::wire::decode_flow_control(bytes); flow.has_value()) {
        std::array<std::uint8_t, weir::wire::kFlowControlBytes> out;
        encode_flow_control(*flow, out);
        WEIR_CHECK(std::ranges::equal(out, bytes));
    }
    return 0;
}

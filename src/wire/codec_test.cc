// SPDX-License-Identifier: Apache-2.0
// Golden vectors (the specification's own sample packet; RoCEv2 packets whose ICRC an independent
// implementation, scapy 2.5, computed), round trips, and refusal of everything that is not a
// packet.
#include "wire/codec.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wire/bytes.h"

namespace weir::wire {
namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes from_hex(std::string_view hex) {
    Bytes bytes;
    for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
        bytes.push_back(
            static_cast<std::uint8_t>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
    return bytes;
}

Bytes payload_of(const DecodedPacket& packet) {
    return {packet.payload.begin(), packet.payload.end()};
}

Bytes local(const PacketHeader& header, const Grh& grh, const Bytes& payload) {
    Bytes out(kMaxPacketBytes);
    const EncodeResult result = encode_local(header, grh, payload, out);
    EXPECT_EQ(result.status, CodecStatus::kOk) << to_string(result.status);
    out.resize(result.bytes);
    return out;
}

Bytes roce(const PacketHeader& header, const RoceEnvelope& envelope, const Bytes& payload) {
    Bytes out(kMaxPacketBytes);
    const EncodeResult result = encode_roce(header, envelope, payload, out);
    EXPECT_EQ(result.status, CodecStatus::kOk) << to_string(result.status);
    out.resize(result.bytes);
    return out;
}

RoceEnvelope ipv4(std::array<std::uint8_t, 4> source, std::array<std::uint8_t, 4> target) {
    RoceEnvelope envelope;
    std::copy(source.begin(), source.end(), envelope.source.begin());
    std::copy(target.begin(), target.end(), envelope.target.begin());
    return envelope;
}

constexpr std::array<Opcode, 40> make_opcodes() {
    std::array<Opcode, 40> list{};
    std::size_t count = 0;
    for (unsigned value = 0; value < 256; ++value)
        if (is_known(static_cast<Opcode>(value))) list[count++] = static_cast<Opcode>(value);
    return list;
}
constexpr auto kOpcodes = make_opcodes();

// A header of `op` with every field that it carries filled from `draw(bound)`, a number below
// bound (0 stands for 2^64), and only those: what decoding must give back.
template <class Draw>
PacketHeader any_header(Opcode op, std::size_t payload_bytes, Draw draw) {
    const auto u32 = [&] { return static_cast<std::uint32_t>(draw(1ULL << 32U)); };
    const auto u24 = [&] { return static_cast<std::uint32_t>(draw(1ULL << 24U)); };
    PacketHeader header;
    header.opcode = op;
    header.flags = static_cast<std::uint8_t>(draw(64));
    header.set(kFlagGrh, false);
    header.pkey = static_cast<std::uint16_t>(draw(1U << 16U));
    header.dest_qp = u24();
    header.psn = u24();
    header.payload_length = static_cast<std::uint32_t>(payload_bytes);
    if (has_deth(op)) {
        header.qkey = u32();
        header.src_qp = u24();
    }
    if (has_reth(op) || has_atomic_eth(op)) {
        header.virtual_address = draw(0);
        header.rkey = u32();
    }
    if (has_reth(op)) header.dma_length = u32();
    if (has_atomic_eth(op)) {
        header.swap_or_add = draw(0);
        header.compare = draw(0);
    }
    if (has_aeth(op)) {
        header.syndrome = static_cast<std::uint8_t>(draw(256));
        header.msn = u24();
    }
    if (has_atomic_ack(op)) header.original_data = draw(0);
    if (has_immediate(op)) header.immediate = u32();
    if (has_ieth(op)) header.invalidate_rkey = u32();
    if (has_feth(op)) header.flush = u32();
    return header;
}

std::uint64_t generate(std::uint64_t bound) {
    const auto word = *rc::gen::arbitrary<std::uint64_t>();
    return bound == 0 ? word : word % bound;
}

Bytes any_payload(Opcode op) {
    if (!carries_payload(op)) return {};
    Bytes payload = *rc::gen::arbitrary<Bytes>();
    if (!ends_message(op)) payload.resize(payload.size() / 4 * 4);
    return payload;
}

// ---- Golden vectors ----

TEST(Codec, SamplePacketOfTheSpecification) {
    // IBTA 7.8.3: an RC RDMA write only of 14 bytes; ICRC 96 25 B7 5A.
    const Bytes bytes = from_hex(
        "7012375c000e17d2"
        "0a2024870087b1b3000dec2a"
        "01710a1c015d400238f27a050000000e"
        "bb884d85fd5cfba4728bc0690ed40000"
        "9625b75a"
        "45fa");
    DecodedPacket packet;
    ASSERT_EQ(decode_local(bytes, packet), CodecStatus::kOk);
    EXPECT_TRUE(packet.canonical);
    const PacketHeader& header = packet.header;
    EXPECT_EQ(header.vl, 7);
    EXPECT_EQ(header.sl, 1);
    EXPECT_EQ(header.dlid, 0x375cU);
    EXPECT_EQ(header.slid, 0x17d2U);
    EXPECT_EQ(header.opcode, Opcode::kRcWriteOnly);
    EXPECT_EQ(header.flags, 0);
    EXPECT_EQ(header.pkey, 0x2487);
    EXPECT_EQ(header.dest_qp, 0x87b1b3U);
    EXPECT_EQ(header.psn, 0x0dec2aU);
    EXPECT_EQ(header.virtual_address, 0x01710a1c015d4002U);
    EXPECT_EQ(header.rkey, 0x38f27a05U);
    EXPECT_EQ(header.dma_length, 14U);
    EXPECT_EQ(payload_of(packet), from_hex("bb884d85fd5cfba4728bc0690ed4"));
    EXPECT_EQ(local(header, {}, payload_of(packet)), bytes);
}

TEST(Codec, RoceIpv4SendWithPad) {
    auto envelope = ipv4({10, 1, 2, 3}, {10, 1, 2, 4});
    envelope.ipv4_id = 0x1234;
    envelope.source_port = 49152;
    const Bytes bytes =
        from_hex("04b0ffff0012345680abcdef101112131415161718191a1b1c000000e994c7fd");
    DecodedPacket packet;
    ASSERT_EQ(decode_roce(bytes, envelope, packet), CodecStatus::kOk);
    EXPECT_EQ(packet.header.flags, kFlagSolicited | kFlagAckRequest);
    EXPECT_EQ(packet.header.dest_qp, 0x123456U);
    EXPECT_EQ(packet.header.psn, 0xabcdefU);
    EXPECT_EQ(payload_of(packet), from_hex("101112131415161718191a1b1c"));
    EXPECT_EQ(roce(packet.header, envelope, payload_of(packet)), bytes);
}

TEST(Codec, RoceIpv4Acknowledge) {
    auto envelope = ipv4({192, 168, 0, 1}, {192, 168, 0, 2});
    envelope.ipv4_fragment = 0;
    envelope.source_port = 50000;
    const Bytes bytes = from_hex("1100ffff00000011000000051f0000096f2f7f62");
    DecodedPacket packet;
    ASSERT_EQ(decode_roce(bytes, envelope, packet), CodecStatus::kOk);
    EXPECT_EQ(packet.header.syndrome, 0x1f);
    EXPECT_EQ(packet.header.msn, 9U);
    EXPECT_EQ(roce(packet.header, envelope, {}), bytes);
}

TEST(Codec, RoceIpv4CongestionNotification) {
    auto envelope = ipv4({10, 0, 0, 1}, {10, 0, 0, 2});
    envelope.ipv4_id = 7;
    envelope.source_port = 1;
    const Bytes bytes =
        from_hex("8100ffff40000077000000000000000000000000000000000000000092c94e33");
    DecodedPacket packet;
    ASSERT_EQ(decode_roce(bytes, envelope, packet), CodecStatus::kOk);
    EXPECT_EQ(packet.header.opcode, Opcode::kCnp);
    EXPECT_EQ(packet.header.flags, kFlagBecn);
    EXPECT_EQ(packet.header.dest_qp, 0x77U);
    EXPECT_EQ(roce(packet.header, envelope, {}), bytes);
}

TEST(Codec, RoceIpv6WriteWithImmediate) {
    // From zlib over the masked bytes, put together by hand: scapy knows no RoCE over IPv6.
    RoceEnvelope envelope;
    envelope.ipv6 = true;
    envelope.source_port = 49153;
    envelope.source = {0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
    envelope.target = {0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2};
    const Bytes bytes = from_hex(
        "0b4080018000004200000001001122334455667789abcdef00000004deadbeef010203042fa87aca");
    DecodedPacket packet;
    ASSERT_EQ(decode_roce(bytes, envelope, packet), CodecStatus::kOk);
    EXPECT_EQ(packet.header.flags, kFlagMigration | kFlagFecn);
    EXPECT_EQ(packet.header.immediate, 0xdeadbeefU);
    EXPECT_EQ(roce(packet.header, envelope, payload_of(packet)), bytes);
}

TEST(Codec, ExtendedHeadersLieInTheOrderOfTheSpecification) {
    // After BTH: DETH or RETH or AtomicETH or AETH, then AtomicAckETH, immediate or IETH.
    const auto extended = [](PacketHeader header) {
        header.payload_length = 0;
        const Bytes bytes = roce(header, {}, {});
        return Bytes(bytes.begin() + kBthBytes, bytes.end() - kIcrcBytes);
    };
    PacketHeader header;
    header.opcode = Opcode::kUdSendOnlyImm;
    header.qkey = 0x80010000U;
    header.src_qp = 0x123456;
    header.immediate = 0xcafef00dU;
    EXPECT_EQ(extended(header), from_hex("8001000000123456cafef00d"));
    header = {};
    header.opcode = Opcode::kRcCompareSwap;
    header.virtual_address = 0x0102030405060708U;
    header.rkey = 0x11121314U;
    header.swap_or_add = 0x2122232425262728U;
    header.compare = 0x3132333435363738U;
    EXPECT_EQ(extended(header), from_hex("0102030405060708"
                                         "11121314"
                                         "2122232425262728"
                                         "3132333435363738"));
    header = {};
    header.opcode = Opcode::kRcAtomicAcknowledge;
    header.syndrome = 0x1f;
    header.msn = 0x010203;
    header.original_data = 0x4142434445464748U;
    EXPECT_EQ(extended(header), from_hex("1f0102034142434445464748"));
    header = {};
    header.opcode = Opcode::kRcSendOnlyInvalidate;
    header.invalidate_rkey = 0x51525354U;
    EXPECT_EQ(extended(header), from_hex("51525354"));
}

TEST(Codec, GrhFields) {
    PacketHeader header;
    header.opcode = Opcode::kUdSendOnly;
    header.payload_length = 5;
    header.set(kFlagGrh);
    Grh grh;
    grh.traffic_class = 0xab;
    grh.flow_label = 0x12345;
    grh.hop_limit = 64;
    grh.sgid[15] = 1;
    grh.dgid[15] = 2;
    const Bytes bytes = local(header, grh, Bytes(5, 0xee));
    ASSERT_EQ(bytes.size(), local_bytes(header.opcode, 5, true));
    EXPECT_EQ(bytes[1] & 3, 3);
    EXPECT_EQ(load16(&bytes[4]) * 4U, bytes.size() - kVcrcBytes);
    EXPECT_EQ(load32(&bytes[8]), 0x6ab12345U);
    EXPECT_EQ(load16(&bytes[12]), bytes.size() - kVcrcBytes - kLrhBytes - kGrhBytes);
    EXPECT_EQ(bytes[14], 0x1b);
    EXPECT_EQ(bytes[15], 64);
    EXPECT_EQ(bytes[31], 1);
    EXPECT_EQ(bytes[47], 2);
}

// ---- Properties ----

TEST(Codec, RoundTripInBothFormsForEveryOpcode) {
    for (const Opcode op : kOpcodes) {
        EXPECT_TRUE(rc::check([op] {
            const Bytes payload = any_payload(op);
            PacketHeader header = any_header(op, payload.size(), generate);
            DecodedPacket packet;

            RoceEnvelope envelope;
            envelope.ipv6 = generate(2) != 0;
            envelope.ipv4_id = static_cast<std::uint16_t>(generate(65536));
            envelope.source_port = static_cast<std::uint16_t>(generate(65536));
            store64(envelope.source.data(), generate(0));
            const Bytes datagram = roce(header, envelope, payload);
            RC_ASSERT(datagram.size() == roce_bytes(op, payload.size()));
            RC_ASSERT(decode_roce(datagram, envelope, packet) == CodecStatus::kOk);
            RC_ASSERT(packet.header == header);
            RC_ASSERT(payload_of(packet) == payload);

            header.slid = static_cast<std::uint32_t>(generate(65536));
            header.dlid = static_cast<std::uint32_t>(generate(65536));
            header.sl = static_cast<std::uint8_t>(generate(16));
            header.vl = static_cast<std::uint8_t>(generate(16));
            Grh grh;
            header.set(kFlagGrh, generate(2) != 0);
            if (header.has(kFlagGrh)) {
                grh.traffic_class = static_cast<std::uint8_t>(generate(256));
                grh.hop_limit = static_cast<std::uint8_t>(generate(256));
                grh.flow_label = static_cast<std::uint32_t>(generate(1U << 20U));
                store64(grh.sgid.data(), generate(0));
                store64(grh.dgid.data() + 8, generate(0));
            }
            const Bytes bytes = local(header, grh, payload);
            RC_ASSERT(bytes.size() == local_bytes(op, payload.size(), header.has(kFlagGrh)));
            RC_ASSERT(decode_local(bytes, packet) == CodecStatus::kOk);
            RC_ASSERT(packet.canonical);
            RC_ASSERT(packet.header == header);
            RC_ASSERT(packet.grh == grh);
            RC_ASSERT(payload_of(packet) == payload);
        })) << static_cast<unsigned>(op);
    }
}

TEST(Codec, LargestPacketFitsAndOneByteMoreIsRefused) {
    PacketHeader header;
    header.opcode = Opcode::kRcWriteOnlyImm;
    header.set(kFlagGrh);
    header.payload_length = kMaxMtuBytes;
    EXPECT_LE(local(header, {}, Bytes(kMaxMtuBytes)).size(), kMaxPacketBytes);
    header.payload_length = kMaxMtuBytes + 1;
    Bytes out(2 * kMaxPacketBytes);
    EXPECT_EQ(encode_local(header, {}, Bytes(kMaxMtuBytes + 1), out).status,
              CodecStatus::kPayloadTooLong);
}

TEST(Codec, PayloadMayLieInPlace) {
    PacketHeader header;
    header.opcode = Opcode::kRcSendOnly;
    header.payload_length = 7;
    Bytes out(kMaxPacketBytes, 0x55);
    const std::size_t head = kLrhBytes + kBthBytes;
    const auto result = encode_local(header, {}, std::span(out).subspan(head, 7), out);
    out.resize(result.bytes);
    EXPECT_EQ(out, local(header, {}, Bytes(7, 0x55)));
}

TEST(Codec, FieldsThatChangeOnTheWayAreOutsideTheIcrc) {
    // VL, FECN and hop limit are a switch's or router's to change: only the VCRC notices.
    PacketHeader header;
    header.opcode = Opcode::kUdSendOnly;
    Grh grh;
    const Bytes plain = local(header, grh, {});
    header.vl = 5;
    header.set(kFlagFecn);
    const Bytes changed = local(header, grh, {});
    const auto icrc = [](const Bytes& bytes) { return load32(&bytes[bytes.size() - 6]); };
    EXPECT_EQ(icrc(plain), icrc(changed));
    EXPECT_NE(plain, changed);

    header.set(kFlagGrh);
    const Bytes global = local(header, grh, {});
    grh.hop_limit = 3;
    grh.traffic_class = 0xff;
    grh.flow_label = 0xfffff;
    header.dlid = 9;
    header.sl = 2;
    EXPECT_EQ(icrc(global), icrc(local(header, grh, {})));
    grh.dgid[0] = 1;
    EXPECT_NE(icrc(global), icrc(local(header, grh, {})));
}

// ---- Refusals ----

TEST(Codec, TruncationAtEveryLengthIsRefused) {
    for (const Opcode op : kOpcodes) {
        const Bytes payload(carries_payload(op) ? 8 : 0, 0x11);
        PacketHeader header = any_header(op, payload.size(), [](std::uint64_t) { return 1ULL; });
        header.set(kFlagGrh);
        const Bytes whole = local(header, {}, payload);
        const Bytes datagram = roce(header, {}, payload);
        DecodedPacket packet;
        for (std::size_t size = 0; size < whole.size(); ++size) {
            // A copy of its own, so that a sanitizer sees a read beyond its end.
            const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
            EXPECT_EQ(decode_local(cut, packet),
                      size < kLrhBytes ? CodecStatus::kTruncatedLrh : CodecStatus::kLengthMismatch);
        }
        for (std::size_t size = 0; size < datagram.size(); ++size) {
            const Bytes cut(datagram.begin(), datagram.begin() + static_cast<std::ptrdiff_t>(size));
            EXPECT_NE(decode_roce(cut, {}, packet), CodecStatus::kOk) << size;
        }
    }
}

TEST(Codec, LengthsThatAgreeButCutHeadersAreRefused) {
    // Both length fields are made to match at every size, so that the inner checks have to hold.
    PacketHeader header;
    header.opcode = Opcode::kRcCompareSwap;
    header.set(kFlagGrh);
    const Bytes whole = local(header, {}, {});
    constexpr std::size_t kHead = kLrhBytes + kGrhBytes;
    for (std::size_t length = kLrhBytes; length + kVcrcBytes < whole.size(); length += 4) {
        const auto size = static_cast<std::ptrdiff_t>(length + kVcrcBytes);
        Bytes cut(whole.begin(), whole.begin() + size);
        store16(&cut[4], static_cast<std::uint32_t>(length / 4));
        if (length >= kHead) store16(&cut[12], static_cast<std::uint32_t>(length - kHead));
        const auto expected = length < kHead ? CodecStatus::kTruncatedGrh
                              : length < kHead + kBthBytes + kIcrcBytes
                                  ? CodecStatus::kTruncatedBth
                                  : CodecStatus::kTruncatedHeader;
        DecodedPacket packet;
        EXPECT_EQ(decode_local(cut, packet, CrcCheck::kSkip), expected) << length;
    }
}

TEST(Codec, EachFaultHasItsName) {
    PacketHeader header;
    header.opcode = Opcode::kRcSendOnly;
    header.payload_length = 3;
    header.set(kFlagGrh);
    const Bytes good = local(header, {}, Bytes(3, 1));
    const auto with = [&good](std::size_t at, unsigned value) {
        Bytes bad = good;
        bad[at] = static_cast<std::uint8_t>(value);
        DecodedPacket packet;
        return decode_local(bad, packet, CrcCheck::kSkip);
    };
    EXPECT_EQ(with(0, 0x01), CodecStatus::kBadLver);
    EXPECT_EQ(with(1, 0x00), CodecStatus::kNotTransport);
    EXPECT_EQ(with(1, 0x01), CodecStatus::kNotTransport);
    EXPECT_EQ(with(5, good[5] + 1U), CodecStatus::kLengthMismatch);
    EXPECT_EQ(with(8, 0x40), CodecStatus::kBadGrh);
    EXPECT_EQ(with(14, 0x11), CodecStatus::kBadGrh);
    EXPECT_EQ(with(13, good[13] + 1U), CodecStatus::kLengthMismatch);
    EXPECT_EQ(with(48, 0x15), CodecStatus::kUnknownOpcode);
    EXPECT_EQ(with(48, 0xff), CodecStatus::kUnknownOpcode);
    EXPECT_EQ(with(48, 0x0a), CodecStatus::kTruncatedHeader);
    EXPECT_EQ(with(48, 0x11), CodecStatus::kBadPadCount);
    EXPECT_EQ(with(48, 0x00), CodecStatus::kBadPadCount);
    EXPECT_EQ(with(49, 0x01), CodecStatus::kBadTver);
    DecodedPacket packet;
    Bytes bad = good;
    bad[bad.size() - 3] ^= 1;
    EXPECT_EQ(decode_local(bad, packet), CodecStatus::kIcrcMismatch);
    bad = good;
    bad[bad.size() - 1] ^= 1;
    EXPECT_EQ(decode_local(bad, packet), CodecStatus::kVcrcMismatch);

    const auto datagram = [&packet](std::string_view hex) {
        return decode_roce(from_hex(hex), {}, packet, CrcCheck::kSkip);
    };
    EXPECT_EQ(datagram("0400ffff00000001000000010000"), CodecStatus::kTruncatedBth);
    EXPECT_EQ(datagram("0430ffff000000010000000100000000"), CodecStatus::kBadPadCount);
    EXPECT_EQ(datagram("0400ffff00000001000000010000000000"), CodecStatus::kLengthMismatch);
    EXPECT_EQ(datagram("1100ffff000000010000000100000000aaaaaaaa00000000"),
              CodecStatus::kUnexpectedPayload);
    EXPECT_EQ(datagram("1110ffff000000010000000100000000aaaaaaaa"), CodecStatus::kBadPadCount);
    Bytes jumbo = from_hex("0400ffff0000000100000001");
    jumbo.resize(kBthBytes + kMaxMtuBytes + 4 + kIcrcBytes);
    EXPECT_EQ(decode_roce(jumbo, {}, packet, CrcCheck::kSkip), CodecStatus::kPayloadTooLong);
}

TEST(Codec, EverySingleBitErrorIsCaught) {
    PacketHeader header;
    header.opcode = Opcode::kRcWriteOnly;
    header.payload_length = 6;
    header.dlid = 5;
    const Bytes good = local(header, {}, Bytes(6, 0x3c));
    DecodedPacket packet;
    for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
        Bytes bad = good;
        bad[bit / 8] ^= static_cast<std::uint8_t>(1U << (bit % 8));
        EXPECT_NE(decode_local(bad, packet), CodecStatus::kOk) << bit;
    }
}

TEST(Codec, EncodingRefusesWhatHasNoPlaceOnTheWire) {
    const auto status = [](auto change, std::size_t payload = 0, Opcode op = Opcode::kUdSendOnly) {
        PacketHeader header;
        header.opcode = op;
        header.payload_length = static_cast<std::uint32_t>(payload);
        change(header);
        Bytes out(kMaxPacketBytes);
        const EncodeResult result = encode_local(header, {}, Bytes(payload), out);
        EXPECT_EQ(result.bytes == 0, result.status != CodecStatus::kOk);
        return result.status;
    };
    const auto nothing = [](PacketHeader&) {};
    EXPECT_EQ(status(nothing), CodecStatus::kOk);
    EXPECT_EQ(status([](auto& h) { h.dlid = 0xffff; }), CodecStatus::kOk);
    EXPECT_EQ(status([](auto& h) { h.dlid = 0x10000; }), CodecStatus::kLidNeedsExtension);
    EXPECT_EQ(status([](auto& h) { h.slid = 0x10000; }), CodecStatus::kLidNeedsExtension);
    EXPECT_EQ(status([](auto& h) { h.sl = 16; }), CodecStatus::kFieldTooWide);
    EXPECT_EQ(status([](auto& h) { h.vl = 16; }), CodecStatus::kFieldTooWide);
    EXPECT_EQ(status([](auto& h) { h.psn = 0x1000000; }), CodecStatus::kFieldTooWide);
    EXPECT_EQ(status([](auto& h) { h.dest_qp = 0x1000000; }), CodecStatus::kFieldTooWide);
    EXPECT_EQ(status([](auto& h) { h.src_qp = 0x1000000; }), CodecStatus::kFieldTooWide);
    EXPECT_EQ(status([](auto& h) { h.payload_length = 1; }), CodecStatus::kLengthMismatch);
    EXPECT_EQ(status([](auto& h) { h.opcode = static_cast<Opcode>(0x15); }),
              CodecStatus::kUnknownOpcode);
    EXPECT_EQ(status(nothing, 4, Opcode::kRcAcknowledge), CodecStatus::kUnexpectedPayload);
    EXPECT_EQ(status(nothing, 5, Opcode::kRcSendFirst), CodecStatus::kBadPadCount);

    PacketHeader header;
    header.opcode = Opcode::kRcSendOnly;
    Bytes out(kMaxPacketBytes);
    for (std::size_t room = 0; room < local_bytes(header.opcode, 0); ++room)
        EXPECT_EQ(encode_local(header, {}, {}, std::span(out).first(room)).status,
                  CodecStatus::kNoRoom);
    for (std::size_t room = 0; room < roce_bytes(header.opcode, 0); ++room)
        EXPECT_EQ(encode_roce(header, {}, {}, std::span(out).first(room)).status,
                  CodecStatus::kNoRoom);
}

TEST(Codec, ReservedBitsAreIgnoredButReported) {
    PacketHeader header;
    header.opcode = Opcode::kUdSendOnly;
    header.payload_length = 1;
    const Bytes good = local(header, {}, Bytes(1, 9));
    // LRH reserved bits twice, resv8a, resv7, DETH reserved byte, pad.
    const std::pair<std::size_t, unsigned> places[] = {{1, 0x04},  {4, 0x80},  {12, 0x01},
                                                       {16, 0x01}, {24, 0x01}, {30, 0x01}};
    for (const auto& [at, bit] : places) {
        Bytes odd = good;
        odd[at] = static_cast<std::uint8_t>(odd[at] | bit);
        DecodedPacket packet;
        ASSERT_EQ(decode_local(odd, packet, CrcCheck::kSkip), CodecStatus::kOk) << at;
        EXPECT_FALSE(packet.canonical) << at;
        EXPECT_EQ(packet.header, header) << at;
    }
}

TEST(Codec, FailureLeavesTheResultAlone) {
    DecodedPacket packet;
    packet.header.psn = 77;
    EXPECT_NE(decode_local(Bytes(40, 0), packet), CodecStatus::kOk);
    EXPECT_NE(decode_roce(Bytes(40, 0xff), {}, packet), CodecStatus::kOk);
    EXPECT_EQ(packet.header.psn, 77U);
}

TEST(Codec, EveryStatusHasAName) {
    for (int i = 0; i <= static_cast<int>(CodecStatus::kNoRoom); ++i)
        EXPECT_STRNE(to_string(static_cast<CodecStatus>(i)), "unknown status");
}

// ---- Seeds of the fuzzer ----

// One seed per opcode and form, as packet_fuzz.cc reads them: a byte that selects the form, then
// the packet. With WEIR_UPDATE_CORPUS set, writes them instead.
TEST(Corpus, SeedsAreWhatTheEncoderWrites) {
    // No other thread runs here. NOLINTBEGIN(concurrency-mt-unsafe)
    const char* root = std::getenv("WEIR_SOURCE_DIR");
    const bool update = std::getenv("WEIR_UPDATE_CORPUS") != nullptr;
    // NOLINTEND(concurrency-mt-unsafe)
    if (root == nullptr) GTEST_SKIP() << "WEIR_SOURCE_DIR is not set";
    const auto folder = std::filesystem::path(root) / "src/wire/corpus/packet_fuzz";
    for (const Opcode op : kOpcodes) {
        auto word = static_cast<std::uint64_t>(op);
        const Bytes payload(!carries_payload(op) ? 0 : ends_message(op) ? 5 : 8, 0x5a);
        PacketHeader header = any_header(op, payload.size(), [&word](std::uint64_t bound) {
            word = word * 6364136223846793005U + 1442695040888963407U;
            return bound == 0 ? word : (word >> 16U) % bound;
        });
        for (std::uint8_t form = 0; form < 4; ++form) {
            header.set(kFlagGrh, form == 1);
            RoceEnvelope envelope;
            envelope.ipv6 = form == 3;
            Bytes seed = form < 2 ? local(header, {}, payload) : roce(header, envelope, payload);
            seed.insert(seed.begin(), form);
            const auto path =
                folder / (std::to_string(static_cast<unsigned>(op)) + "_" + std::to_string(form));
            if (update) {
                std::ofstream file(path, std::ios::binary);
                file.write(reinterpret_cast<const char*>(seed.data()),
                           static_cast<std::streamsize>(seed.size()));
                continue;
            }
            std::ifstream file(path, std::ios::binary);
            const std::string kept((std::istreambuf_iterator<char>(file)), {});
            EXPECT_EQ(Bytes(kept.begin(), kept.end()), seed) << path;
        }
    }
}

}  // namespace
}  // namespace weir::wire

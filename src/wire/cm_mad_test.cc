// SPDX-License-Identifier: Apache-2.0
#include "wire/cm_mad.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

namespace weir::wire {
namespace {

CmRequest sample_request() {
    CmRequest m;
    m.local_id = 0x01020304;
    m.vendor_id = 0x0a0b0c;
    m.service_id = cm_service_id(0x0106, 7174);
    m.ca_guid = 0x1122334455667788ULL;
    m.qkey = 0x99aabbcc;
    m.qp_number = 0x010203;
    m.responder_resources = 0x11;
    m.initiator_depth = 0x22;
    m.remote_response_timeout = 18;
    m.service = CmService::kUnreliable;
    m.flow_control = true;
    m.starting_psn = 0xabcdef;
    m.local_response_timeout = 19;
    m.retry_count = 7;
    m.pkey = 0x8001;
    m.mtu = 5;
    m.rnr_retry_count = 6;
    m.cm_retries_max = 15;
    m.shared_receives = true;
    m.local_lid = 0x0102;
    m.remote_lid = 0x0304;
    m.local_gid[15] = 1;
    m.remote_gid[0] = 0xfe;
    m.packet_rate = 16;
    m.traffic_class = 0x55;
    m.hop_limit = 64;
    m.service_level = 3;
    m.subnet_local = true;
    m.ack_timeout = 17;
    m.private_data.front() = 0x5a;
    m.private_data.back() = 0xa5;
    return m;
}

TEST(CmMad, RequestLiesWhereIbtaSaysSo) {
    const auto bytes = encode_cm_mad({0x1234, 0x77, sample_request()});
    EXPECT_EQ(bytes[0], 1);
    EXPECT_EQ(bytes[1], 0x07);
    EXPECT_EQ(bytes[2], 2);
    EXPECT_EQ(bytes[3], 0x03);
    EXPECT_EQ(load64(bytes.data() + 8), 0x1234U);
    EXPECT_EQ(load16(bytes.data() + 16), 0x10);
    EXPECT_EQ(load32(bytes.data() + 20), 0x77U);
    const auto* data = bytes.data() + kMadHeaderBytes;
    EXPECT_EQ(load32(data), 0x01020304U);
    EXPECT_EQ(load64(data + 8), 0x0000000001061c06ULL);
    EXPECT_EQ(load64(data + 16), 0x1122334455667788ULL);
    EXPECT_EQ(load32(data + 32), 0x01020311U);
    EXPECT_EQ(data[39], 0x22);
    EXPECT_EQ(data[43], 18U << 3U | 1U << 1U | 1U);
    EXPECT_EQ(load32(data + 44), 0xabcdef00U | 19U << 3U | 7U);
    EXPECT_EQ(load32(data + 48), 0x80015000U | 6U << 8U | 0xf0U | 0x08U);
    EXPECT_EQ(load32(data + 52), 0x01020304U);
    EXPECT_EQ(data[56 + 15], 1);
    EXPECT_EQ(data[72], 0xfe);
    EXPECT_EQ(data[91], 16);
    EXPECT_EQ(load32(data + 92), 0x55400000U | 0x38U << 8U | 17U << 3U);
    EXPECT_EQ(data[140], 0x5a);
    EXPECT_EQ(data[231], 0xa5);
}

TEST(CmMad, ReplyAndRejectLieWhereIbtaSaysSo) {
    CmReply reply;
    reply.local_id = 5;
    reply.remote_id = 6;
    reply.qp_number = 0x112233;
    reply.vendor_id = 0xaabbcc;
    reply.starting_psn = 0x445566;
    reply.responder_resources = 7;
    reply.initiator_depth = 8;
    reply.target_ack_delay = 9;
    reply.flow_control = true;
    reply.rnr_retry_count = 7;
    reply.shared_receives = true;
    reply.private_data.back() = 1;
    const auto bytes = encode_cm_mad({1, 0, reply});
    const auto* data = bytes.data() + kMadHeaderBytes;
    EXPECT_EQ(load32(data + 12), 0x112233aaU);
    EXPECT_EQ(data[19], 0xbb);
    EXPECT_EQ(load32(data + 20), 0x445566ccU);
    EXPECT_EQ(load32(data + 24), 0x07080000U | (9U << 3U | 1U) << 8U | 0xf0U);
    EXPECT_EQ(data[231], 1);

    CmReject reject;
    reject.answered = CmAnswered::kOther;
    reject.info_length = 4;
    reject.reason = static_cast<std::uint16_t>(CmReason::kInvalidServiceId);
    reject.private_data.front() = 3;
    const auto rejected = encode_cm_mad({1, 0, reject});
    data = rejected.data() + kMadHeaderBytes;
    EXPECT_EQ(load32(data + 8), 0x80080008U);
    EXPECT_EQ(data[84], 3);
}

template <class Message>
CmMad filled(Message message, std::uint8_t mark) {
    message.private_data.fill(mark);
    return {mark, 0, message};
}

TEST(CmMad, EveryKindComesBackAsItWas) {
    CmMessageReceipt receipt;
    receipt.local_id = 1;
    receipt.remote_id = 2;
    receipt.answered = CmAnswered::kReply;
    receipt.service_timeout = 24;
    CmDisconnectRequest end;
    end.remote_qp_number = 0xfffffe;
    CmDatagramRequest ask;
    ask.request_id = 77;
    ask.pkey = 0x7fff;
    ask.service_id = cm_service_id(0x0111, 1);
    CmDatagramReply answer;
    answer.status = CmDatagramStatus::kRejected;
    answer.qp_number = 0x20;
    answer.qkey = 0x01234567;
    answer.service_id = ask.service_id;
    CmReject reject;
    reject.reason = 28;
    reject.info.fill(9);
    reject.info_length = 72;
    const CmMad all[] = {{3, 1, sample_request()},
                         filled(receipt, 1),
                         filled(reject, 2),
                         filled(CmReply{}, 3),
                         filled(CmReadyToUse{}, 4),
                         filled(end, 5),
                         filled(CmDisconnectReply{}, 6),
                         filled(ask, 7),
                         filled(answer, 8)};
    for (const auto& mad : all) {
        const auto again = decode_cm_mad(encode_cm_mad(mad));
        ASSERT_TRUE(again.has_value());
        EXPECT_EQ(*again, mad) << mad.body.index();
    }
}

TEST(CmMad, ForeignMadsAreNothing) {
    const auto good = encode_cm_mad({1, 0, CmReadyToUse{}});
    EXPECT_TRUE(decode_cm_mad(good).has_value());
    EXPECT_FALSE(decode_cm_mad(std::span(good).first(kMadBytes - 1)).has_value());
    for (const std::size_t at : {0U, 1U, 2U, 3U, 17U}) {
        auto bad = good;
        bad[at] = 0x7f;
        EXPECT_FALSE(decode_cm_mad(bad).has_value()) << at;
    }
}

TEST(CmIpHeader, GoesThereAndBack) {
    CmIpHeader header;
    header.ip_version = 6;
    header.source_port = 0x1234;
    header.source[0] = 0xfd;
    header.destination[15] = 9;
    std::array<std::uint8_t, kCmIpHeaderBytes> bytes{};
    encode_cm_ip_header(header, bytes);
    EXPECT_EQ(bytes[1], 0x60);
    EXPECT_EQ(load16(bytes.data() + 2), 0x1234);
    EXPECT_EQ(bytes[4], 0xfd);
    EXPECT_EQ(bytes[35], 9);
    EXPECT_EQ(decode_cm_ip_header(bytes), header);
    EXPECT_FALSE(decode_cm_ip_header(std::span(bytes).first(35)).has_value());
    bytes[0] = 0x10;
    EXPECT_FALSE(decode_cm_ip_header(bytes).has_value());
    bytes[0] = 0;
    bytes[1] = 0x50;
    EXPECT_FALSE(decode_cm_ip_header(bytes).has_value());
}

}  // namespace
}  // namespace weir::wire

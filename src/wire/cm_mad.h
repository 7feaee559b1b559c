// SPDX-License-Identifier: Apache-2.0
// The messages by which connections are made and ended (IBTA 12.6 to 12.11): MADs of class 0x07,
// version 2, method Send. And the header that the RDMA IP CM service (IBTA annex A11) puts before
// the private data of requests, so that a listener learns the IP addresses of both ends.
//
//   REQ →            SIDR_REQ →       a datagram's peer: its QP number and Q_Key
//      ← MRA*               ← SIDR_REP
//      ← REP, REJ
//   RTU →            DREQ → ← DREP    the end of a connection, from either side
//
// Private data has a fixed room in each message; what the sender did not fill is zero, and a
// receiver cannot tell how much was filled. Load alternate path (LAP, APR) is not here: paths are
// not migrated by the CM.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>

#include "wire/mad.h"

namespace weir::wire {

inline constexpr std::uint8_t kCmClassVersion = 2;

enum class CmAttribute : std::uint16_t {
    kRequest = 0x10,
    kMessageReceipt = 0x11,
    kReject = 0x12,
    kReply = 0x13,
    kReadyToUse = 0x14,
    kDisconnectRequest = 0x15,
    kDisconnectReply = 0x16,
    kDatagramRequest = 0x17,
    kDatagramReply = 0x18,
};

/// Which message a REJ or MRA answers.
enum class CmAnswered : std::uint8_t { kRequest = 0, kReply = 1, kOther = 2 };

/// Why a connection was refused (IBTA 12.6.7.2); the ones that we give or look for.
enum class CmReason : std::uint16_t {
    kNoQueuePair = 1,
    kNoResources = 3,
    kTimeout = 4,
    kInvalidServiceId = 8,
    kInvalidTransport = 9,
    kStaleConnection = 10,
    kConsumer = 28,
    kVendorOption = 35,  ///< The peer wants another extended connection (ECE).
};

/// SIDR_REP's status.
enum class CmDatagramStatus : std::uint8_t {
    kValid = 0,
    kUnsupported = 1,  ///< No such service.
    kRejected = 2,
    kNoQueuePair = 3,
};

/// REQ's transport service type.
enum class CmService : std::uint8_t { kReliable = 0, kUnreliable = 1 };

using CmGid = std::array<std::uint8_t, 16>;

/// REQ: a connection is asked for.
struct CmRequest {
    static constexpr CmAttribute kAttribute = CmAttribute::kRequest;
    std::uint32_t local_id = 0;   ///< The sender's number of the connection.
    std::uint32_t vendor_id = 0;  ///< Extended connection establishment; 24 bits.
    std::uint64_t service_id = 0;
    std::uint64_t ca_guid = 0;
    std::uint32_t qkey = 0;
    std::uint32_t qp_number = 0;
    std::uint8_t responder_resources = 0;
    std::uint8_t initiator_depth = 0;
    std::uint8_t remote_response_timeout = 0;  ///< 4.096 µs * 2^n that the peer may take.
    CmService service = CmService::kReliable;
    bool flow_control = false;
    std::uint32_t starting_psn = 0;
    std::uint8_t local_response_timeout = 0;  ///< The same for the sender.
    std::uint8_t retry_count = 0;
    std::uint16_t pkey = 0xffff;
    std::uint8_t mtu = 0;  ///< IBTA's code: 1 = 256 … 5 = 4096.
    std::uint8_t rnr_retry_count = 0;
    std::uint8_t cm_retries_max = 0;
    bool shared_receives = false;
    std::uint16_t local_lid = 0;
    std::uint16_t remote_lid = 0;
    CmGid local_gid{};
    CmGid remote_gid{};
    std::uint8_t packet_rate = 0;
    std::uint8_t traffic_class = 0;
    std::uint8_t hop_limit = 0;
    std::uint8_t service_level = 0;
    bool subnet_local = true;
    std::uint8_t ack_timeout = 0;
    std::array<std::uint8_t, 92> private_data{};
    bool operator==(const CmRequest&) const = default;
};

/// MRA: the message has come, the answer will take its time.
struct CmMessageReceipt {
    static constexpr CmAttribute kAttribute = CmAttribute::kMessageReceipt;
    std::uint32_t local_id = 0;
    std::uint32_t remote_id = 0;
    CmAnswered answered = CmAnswered::kRequest;
    std::uint8_t service_timeout = 0;
    std::array<std::uint8_t, 222> private_data{};
    bool operator==(const CmMessageReceipt&) const = default;
};

struct CmReject {
    static constexpr CmAttribute kAttribute = CmAttribute::kReject;
    std::uint32_t local_id = 0;  ///< 0 if the rejecter has no connection of it.
    std::uint32_t remote_id = 0;
    CmAnswered answered = CmAnswered::kRequest;
    std::uint8_t info_length = 0;
    std::uint16_t reason = 0;  ///< CmReason, or one not named there.
    std::array<std::uint8_t, 72> info{};
    std::array<std::uint8_t, 148> private_data{};
    bool operator==(const CmReject&) const = default;
};

/// REP: the connection is accepted.
struct CmReply {
    static constexpr CmAttribute kAttribute = CmAttribute::kReply;
    std::uint32_t local_id = 0;
    std::uint32_t remote_id = 0;
    std::uint32_t qkey = 0;
    std::uint32_t qp_number = 0;
    std::uint32_t vendor_id = 0;
    std::uint32_t starting_psn = 0;
    std::uint8_t responder_resources = 0;
    std::uint8_t initiator_depth = 0;
    std::uint8_t target_ack_delay = 0;
    std::uint8_t failover = 0;
    bool flow_control = false;
    std::uint8_t rnr_retry_count = 0;
    bool shared_receives = false;
    std::uint64_t ca_guid = 0;
    std::array<std::uint8_t, 196> private_data{};
    bool operator==(const CmReply&) const = default;
};

struct CmReadyToUse {
    static constexpr CmAttribute kAttribute = CmAttribute::kReadyToUse;
    std::uint32_t local_id = 0;
    std::uint32_t remote_id = 0;
    std::array<std::uint8_t, 224> private_data{};
    bool operator==(const CmReadyToUse&) const = default;
};

struct CmDisconnectRequest {
    static constexpr CmAttribute kAttribute = CmAttribute::kDisconnectRequest;
    std::uint32_t local_id = 0;
    std::uint32_t remote_id = 0;
    std::uint32_t remote_qp_number = 0;
    std::array<std::uint8_t, 220> private_data{};
    bool operator==(const CmDisconnectRequest&) const = default;
};

struct CmDisconnectReply {
    static constexpr CmAttribute kAttribute = CmAttribute::kDisconnectReply;
    std::uint32_t local_id = 0;
    std::uint32_t remote_id = 0;
    std::array<std::uint8_t, 224> private_data{};
    bool operator==(const CmDisconnectReply&) const = default;
};

/// SIDR_REQ: which QP serves datagrams for this service?
struct CmDatagramRequest {
    static constexpr CmAttribute kAttribute = CmAttribute::kDatagramRequest;
    std::uint32_t request_id = 0;
    std::uint16_t pkey = 0xffff;
    std::uint64_t service_id = 0;
    std::array<std::uint8_t, 216> private_data{};
    bool operator==(const CmDatagramRequest&) const = default;
};

struct CmDatagramReply {
    static constexpr CmAttribute kAttribute = CmAttribute::kDatagramReply;
    std::uint32_t request_id = 0;
    CmDatagramStatus status = CmDatagramStatus::kValid;
    std::uint8_t info_length = 0;
    std::uint32_t qp_number = 0;
    std::uint64_t service_id = 0;
    std::uint32_t qkey = 0;
    std::array<std::uint8_t, 72> info{};
    std::array<std::uint8_t, 136> private_data{};
    bool operator==(const CmDatagramReply&) const = default;
};

using CmBody =
    std::variant<CmRequest, CmMessageReceipt, CmReject, CmReply, CmReadyToUse, CmDisconnectRequest,
                 CmDisconnectReply, CmDatagramRequest, CmDatagramReply>;

struct CmMad {
    std::uint64_t transaction_id = 0;
    std::uint32_t attribute_modifier = 0;  ///< Options of an extended connection.
    CmBody body;
    bool operator==(const CmMad&) const = default;
};

using CmMadBytes = std::array<std::uint8_t, kMadBytes>;

/// Values that have fewer bits on the wire than here are cut to them.
[[nodiscard]] CmMadBytes encode_cm_mad(const CmMad& mad);

/// Nothing if it is no connection management MAD of a kind named above, or too short.
[[nodiscard]] std::optional<CmMad> decode_cm_mad(std::span<const std::uint8_t> bytes);

/// What begins the private data of REQ and SIDR_REQ for services of an IP port space (A11.4).
///
///    0 | major 4| minor 4 | IP version 4 | reserved 4 |        source port          |
///    4 |                 source address, IPv4 in the last 4 bytes                    |
///   20 |                 destination address                                         |
struct CmIpHeader {
    std::uint8_t ip_version = 4;  ///< 4 or 6.
    std::uint16_t source_port = 0;
    CmGid source{};
    CmGid destination{};
    bool operator==(const CmIpHeader&) const = default;
};
inline constexpr std::size_t kCmIpHeaderBytes = 36;

/// REQUIRES: out has room for it.
void encode_cm_ip_header(const CmIpHeader& header, std::span<std::uint8_t> out);
/// Nothing if it is too short, of another version, or neither IPv4 nor IPv6.
[[nodiscard]] std::optional<CmIpHeader> decode_cm_ip_header(std::span<const std::uint8_t> bytes);

/// Service IDs of the IP CM service: {0x0000000001, port space, port} (A11.3).
constexpr std::uint64_t cm_service_id(std::uint16_t port_space, std::uint16_t port) {
    return static_cast<std::uint64_t>(port_space) << 16U | port;
}

}  // namespace weir::wire

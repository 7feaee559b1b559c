// SPDX-License-Identifier: Apache-2.0
#include "wire/cm_mad.h"

#include <algorithm>
#include <type_traits>

namespace weir::wire {
namespace {

constexpr std::size_t kDataBytes = kMadBytes - kMadHeaderBytes;

// The layout of each message is said once, by a function that shows its fields to a Writer or a
// Reader: byte, first bit of it (the highest is 0), number of bits, value.

class Writer {
  public:
    explicit Writer(std::uint8_t* data) : data_(data) {}

    template <class T>
    void bits(std::size_t byte, unsigned first, unsigned count, const T& value) {
        auto number = static_cast<std::uint64_t>(value);
        for (unsigned i = 0; i < count; ++i, number >>= 1U) {
            const unsigned bit = first + count - 1 - i;
            const auto mask = static_cast<std::uint8_t>(0x80U >> (bit % 8));
            if ((number & 1U) != 0) data_[byte + bit / 8] |= mask;
        }
    }
    template <std::size_t kSize>
    void bytes(std::size_t byte, const std::array<std::uint8_t, kSize>& value) {
        std::copy(value.begin(), value.end(), data_ + byte);
    }

  private:
    std::uint8_t* data_;
};

class Reader {
  public:
    explicit Reader(const std::uint8_t* data) : data_(data) {}

    template <class T>
    void bits(std::size_t byte, unsigned first, unsigned count, T& value) {
        std::uint64_t number = 0;
        for (unsigned bit = first; bit < first + count; ++bit)
            number = number << 1U | (std::uint32_t{data_[byte + bit / 8]} >> (7U - bit % 8) & 1U);
        value = static_cast<T>(number);
    }
    template <std::size_t kSize>
    void bytes(std::size_t byte, std::array<std::uint8_t, kSize>& value) {
        std::copy_n(data_ + byte, kSize, value.begin());
    }

  private:
    const std::uint8_t* data_;
};

template <class Io, class Message>
void show_ids(Io& io, Message& m) {
    io.bits(0, 0, 32, m.local_id);
    io.bits(4, 0, 32, m.remote_id);
}

template <class Io, class Message>
void show_request(Io& io, Message& m) {
    io.bits(0, 0, 32, m.local_id);
    io.bits(5, 0, 24, m.vendor_id);
    io.bits(8, 0, 64, m.service_id);
    io.bits(16, 0, 64, m.ca_guid);
    io.bits(28, 0, 32, m.qkey);
    io.bits(32, 0, 24, m.qp_number);
    io.bits(35, 0, 8, m.responder_resources);
    io.bits(39, 0, 8, m.initiator_depth);
    io.bits(43, 0, 5, m.remote_response_timeout);
    io.bits(43, 5, 2, m.service);
    io.bits(43, 7, 1, m.flow_control);
    io.bits(44, 0, 24, m.starting_psn);
    io.bits(47, 0, 5, m.local_response_timeout);
    io.bits(47, 5, 3, m.retry_count);
    io.bits(48, 0, 16, m.pkey);
    io.bits(50, 0, 4, m.mtu);
    io.bits(50, 5, 3, m.rnr_retry_count);
    io.bits(51, 0, 4, m.cm_retries_max);
    io.bits(51, 4, 1, m.shared_receives);
    io.bits(52, 0, 16, m.local_lid);
    io.bits(54, 0, 16, m.remote_lid);
    io.bytes(56, m.local_gid);
    io.bytes(72, m.remote_gid);
    io.bits(91, 2, 6, m.packet_rate);
    io.bits(92, 0, 8, m.traffic_class);
    io.bits(93, 0, 8, m.hop_limit);
    io.bits(94, 0, 4, m.service_level);
    io.bits(94, 4, 1, m.subnet_local);
    io.bits(95, 0, 5, m.ack_timeout);
    io.bytes(140, m.private_data);
}

template <class Io, class Message>
void show_reply(Io& io, Message& m) {
    show_ids(io, m);
    io.bits(8, 0, 32, m.qkey);
    io.bits(12, 0, 24, m.qp_number);
    io.bits(20, 0, 24, m.starting_psn);
    io.bits(24, 0, 8, m.responder_resources);
    io.bits(25, 0, 8, m.initiator_depth);
    io.bits(26, 0, 5, m.target_ack_delay);
    io.bits(26, 5, 2, m.failover);
    io.bits(26, 7, 1, m.flow_control);
    io.bits(27, 0, 3, m.rnr_retry_count);
    io.bits(27, 3, 1, m.shared_receives);
    io.bits(28, 0, 64, m.ca_guid);
    io.bytes(36, m.private_data);
}

// The vendor's number of a REP lies in three bytes that were reserved, high to low.
void show_reply_vendor(Writer& io, const CmReply& m) {
    io.bits(15, 0, 8, (m.vendor_id >> 16U) & 0xffU);
    io.bits(19, 0, 8, (m.vendor_id >> 8U) & 0xffU);
    io.bits(23, 0, 8, m.vendor_id & 0xffU);
}
void show_reply_vendor(Reader& io, CmReply& m) {
    std::uint32_t high = 0;
    std::uint32_t middle = 0;
    std::uint32_t low = 0;
    io.bits(15, 0, 8, high);
    io.bits(19, 0, 8, middle);
    io.bits(23, 0, 8, low);
    m.vendor_id = high << 16U | middle << 8U | low;
}

template <class Io, class Message>
void show_datagram_reply(Io& io, Message& m) {
    io.bits(0, 0, 32, m.request_id);
    io.bits(4, 0, 8, m.status);
    io.bits(5, 0, 8, m.info_length);
    io.bits(8, 0, 24, m.qp_number);
    io.bits(12, 0, 64, m.service_id);
    io.bits(20, 0, 32, m.qkey);
    io.bytes(24, m.info);
    io.bytes(96, m.private_data);
}

template <class Io, class Message>
void show(Io& io, Message& m) {
    using Kind = std::remove_const_t<Message>;
    if constexpr (std::is_same_v<Kind, CmRequest>) {
        show_request(io, m);
    } else if constexpr (std::is_same_v<Kind, CmReply>) {
        show_reply(io, m);
        show_reply_vendor(io, m);
    } else if constexpr (std::is_same_v<Kind, CmDatagramReply>) {
        show_datagram_reply(io, m);
    } else if constexpr (std::is_same_v<Kind, CmDatagramRequest>) {
        io.bits(0, 0, 32, m.request_id);
        io.bits(4, 0, 16, m.pkey);
        io.bits(8, 0, 64, m.service_id);
        io.bytes(16, m.private_data);
    } else if constexpr (std::is_same_v<Kind, CmMessageReceipt>) {
        show_ids(io, m);
        io.bits(8, 0, 2, m.answered);
        io.bits(9, 0, 5, m.service_timeout);
        io.bytes(10, m.private_data);
    } else if constexpr (std::is_same_v<Kind, CmReject>) {
        show_ids(io, m);
        io.bits(8, 0, 2, m.answered);
        io.bits(9, 0, 7, m.info_length);
        io.bits(10, 0, 16, m.reason);
        io.bytes(12, m.info);
        io.bytes(84, m.private_data);
    } else if constexpr (std::is_same_v<Kind, CmDisconnectRequest>) {
        show_ids(io, m);
        io.bits(8, 0, 24, m.remote_qp_number);
        io.bytes(12, m.private_data);
    } else {
        show_ids(io, m);
        io.bytes(8, m.private_data);
    }
}

template <class Message>
CmBody read_body(const std::uint8_t* data) {
    Message message;
    Reader reader(data);
    show(reader, message);
    return message;
}

using ReadBody = CmBody (*)(const std::uint8_t*);

/// How to read a message of this attribute; null if there is none.
template <std::size_t kIndex = 0>
ReadBody reader_of(std::uint16_t attribute) {
    if constexpr (kIndex == std::variant_size_v<CmBody>) {
        return nullptr;
    } else {
        using Message = std::variant_alternative_t<kIndex, CmBody>;
        if (attribute == static_cast<std::uint16_t>(Message::kAttribute))
            return &read_body<Message>;
        return reader_of<kIndex + 1>(attribute);
    }
}

}  // namespace

CmMadBytes encode_cm_mad(const CmMad& mad) {
    CmMadBytes bytes{};
    MadHeader header;
    header.management_class = static_cast<std::uint8_t>(MadClass::kCommunication);
    header.class_version = kCmClassVersion;
    header.method = static_cast<std::uint8_t>(MadMethod::kSend);
    header.transaction_id = mad.transaction_id;
    header.attribute_modifier = mad.attribute_modifier;
    std::visit(
        [&](const auto& message) {
            header.attribute_id =
                static_cast<std::uint16_t>(std::decay_t<decltype(message)>::kAttribute);
            Writer writer(bytes.data() + kMadHeaderBytes);
            show(writer, message);
        },
        mad.body);
    encode_mad_header(header, std::span(bytes).first<kMadHeaderBytes>());
    return bytes;
}

std::optional<CmMad> decode_cm_mad(std::span<const std::uint8_t> bytes) {
    if (bytes.size() < kMadBytes) return std::nullopt;
    const auto header = decode_mad_header(bytes);
    if (!header || header->base_version != 1 || header->class_version != kCmClassVersion ||
        header->management_class != static_cast<std::uint8_t>(MadClass::kCommunication) ||
        header->method != static_cast<std::uint8_t>(MadMethod::kSend)) {
        return std::nullopt;
    }
    const auto read = reader_of(header->attribute_id);
    if (read == nullptr) return std::nullopt;
    return CmMad{header->transaction_id, header->attribute_modifier,
                 read(bytes.data() + kMadHeaderBytes)};
}

void encode_cm_ip_header(const CmIpHeader& header, std::span<std::uint8_t> out) {
    out[0] = 0;
    out[1] = static_cast<std::uint8_t>(header.ip_version << 4U);
    store16(out.data() + 2, header.source_port);
    std::copy(header.source.begin(), header.source.end(), out.begin() + 4);
    std::copy(header.destination.begin(), header.destination.end(), out.begin() + 20);
}

std::optional<CmIpHeader> decode_cm_ip_header(std::span<const std::uint8_t> bytes) {
    if (bytes.size() < kCmIpHeaderBytes || bytes[0] != 0) return std::nullopt;
    CmIpHeader header;
    header.ip_version = bytes[1] >> 4U;
    if (header.ip_version != 4 && header.ip_version != 6) return std::nullopt;
    header.source_port = load16(bytes.data() + 2);
    std::copy_n(bytes.begin() + 4, header.source.size(), header.source.begin());
    std::copy_n(bytes.begin() + 20, header.destination.size(), header.destination.begin());
    return header;
}

static_assert(kDataBytes == 232);

}  // namespace weir::wire

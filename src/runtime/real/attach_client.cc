// SPDX-License-Identifier: Apache-2.0
#include "runtime/real/attach_client.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/real/record_socket.h"
#include "runtime/real/runtime_folder.h"
#include "runtime/real/system_error.h"

namespace weir::runtime {
namespace {

using arena::AttachKind;
using arena::AttachReply;
using arena::AttachRequest;

tl::unexpected<Error> no_such_fabric(const std::string& name) {
    return fail(ErrorCode::kNotFound, "no fabric \"" + name + "\" is up",
                "start it: weir up FILE --name " + name);
}

tl::unexpected<Error> daemon_gone(const std::string& name) {
    return fail(ErrorCode::kUnreachable, "the daemon of fabric \"" + name + "\" has ended",
                "start it again: weir up FILE --name " + name);
}

AttachRequest request_of(AttachKind kind) {
    AttachRequest request{};
    request.magic = arena::kAttachMagic;
    request.version = arena::kAttachVersion;
    request.kind = kind;
    return request;
}

std::string text_of(const AttachReply& reply) {
    const auto* end = std::find(reply.text, reply.text + arena::kAttachTextBytes, '\0');
    return {reply.text, end};
}

/// The daemon must be our own user's or root's: anybody can bind a socket in a folder that root
/// chose to look into.
Result<void> check_server(int socket) {
    WEIR_TRY(const PeerCredentials server, peer_credentials(socket));
    if (server.uid != ::geteuid() && server.uid != 0 && ::geteuid() != 0) {
        return fail(ErrorCode::kDenied,
                    "this fabric belongs to another user (uid " + std::to_string(server.uid) + ")");
    }
    return {};
}

bool table_fits(std::uint64_t at, std::uint64_t count, std::uint64_t size, std::uint64_t total) {
    return at <= total && count <= (total - at) / size;
}

Result<void> check_header(const arena::ArenaHeader& header, std::uint64_t bytes) {
    if (header.magic != arena::kMagic || header.version != arena::kLayoutVersion) {
        return fail(ErrorCode::kInvalid, "the fabric was made by a different version of Weir",
                    "take it down and up again with this version");
    }
    const std::uint64_t lanes = std::uint64_t{header.port_count} * header.lane_count;
    const bool fits =
        header.total_bytes == bytes &&
        table_fits(header.nodes_at, header.node_count, sizeof(arena::NodeEntry), bytes) &&
        table_fits(header.ports_at, header.port_count, sizeof(arena::PortEntry), bytes) &&
        table_fits(header.lanes_at, lanes, sizeof(credit::LaneBuffer), bytes) &&
        table_fits(header.lids_at, header.lid_count, sizeof(std::uint32_t), bytes) &&
        table_fits(header.arbiters_at, header.port_count, sizeof(arena::ArbiterEntry), bytes) &&
        table_fits(header.egress_at, header.egress_count * header.lane_count,
                   sizeof(credit::LaneBuffer), bytes) &&
        header.egress_count <= header.port_count &&
        table_fits(header.processes_at, arena::kProcessCount, sizeof(arena::ProcessEntry), bytes) &&
        table_fits(header.qps_at, arena::kQpCount, sizeof(arena::QpEntry), bytes) &&
        table_fits(header.mrs_at, arena::kMrCount, sizeof(arena::MrEntry), bytes) &&
        table_fits(header.groups_at, arena::kGroupCount, sizeof(arena::GroupEntry), bytes) &&
        table_fits(header.packets_at, arena::kPacketCount, sizeof(arena::PacketEntry), bytes) &&
        table_fits(header.bulk_at, std::uint64_t{arena::kProcessCount} * arena::kBulkPerProcess,
                   arena::kSegmentBytes, bytes);
    if (!fits) {
        return fail(ErrorCode::kInvalid, "the fabric's memory is not laid out as expected");
    }
    return {};
}

}  // namespace

Result<UniqueFd> create_window() {
    return create_memory("weir-window", arena::kWindowBytes);
}

Result<AttachClient> AttachClient::connect(const std::string& fabric, int seconds) {
    if (!is_fabric_name(fabric)) {
        return fail(ErrorCode::kInvalid, "\"" + fabric + "\" is no name of a fabric");
    }
    auto runtime = open_runtime_folder();
    if (!runtime) {
        return runtime.error().code == ErrorCode::kNotFound
                   ? no_such_fabric(fabric)
                   : tl::unexpected<Error>(std::move(runtime).error());
    }
    auto folder = open_fabric_folder(*runtime, fabric);
    if (!folder) {
        return folder.error().code == ErrorCode::kNotFound
                   ? no_such_fabric(fabric)
                   : tl::unexpected<Error>(std::move(folder).error());
    }
    auto socket = connect_records(folder->fd.get(), folder->path, kAttachSocketName, seconds);
    if (!socket) {
        const bool alive = FabricLock::held(*folder);
        switch (socket.error().code) {
            case ErrorCode::kNotFound:
                return no_such_fabric(fabric);
            case ErrorCode::kUnreachable:
                return daemon_gone(fabric);
            case ErrorCode::kDenied:
                return tl::unexpected<Error>(std::move(socket).error());
            default:
                break;
        }
        return fail(alive ? ErrorCode::kUnreachable : ErrorCode::kSystem, socket.error().context);
    }
    WEIR_TRY_VOID(check_server(socket->get()));
    return AttachClient(*std::move(socket), fabric);
}

Result<AttachClient::Answer> AttachClient::ask(AttachRequest request, int fd) {
    const std::span<const int> fds(&fd, fd >= 0 ? 1U : 0U);
    int failure =
        send_record(socket_.get(), std::as_bytes(std::span(&request, 1)), fds, Waiting::kAllowed);
    Answer answer;
    Record record;
    if (failure == 0) {
        failure = receive_record(socket_.get(), std::as_writable_bytes(std::span(&answer.reply, 1)),
                                 record, Waiting::kAllowed);
    }
    if (failure == EAGAIN) {
        return fail(ErrorCode::kUnreachable,
                    "the daemon of fabric \"" + fabric_ + "\" does not answer");
    }
    if (failure == EPIPE || failure == ECONNRESET || (failure == 0 && record.bytes == 0)) {
        return daemon_gone(fabric_);
    }
    if (failure != 0) {
        return fail_errno(failure, "cannot talk to the daemon of fabric \"" + fabric_ + "\"");
    }
    if (record.truncated || record.bytes != sizeof(AttachReply) ||
        answer.reply.magic != arena::kAttachMagic) {
        return fail(ErrorCode::kInvalid, "the daemon of fabric \"" + fabric_ +
                                             "\" answered in a way that is not understood");
    }
    if (answer.reply.status != 0) {
        Error error = system_error(answer.reply.status, "");
        if (std::string text = text_of(answer.reply); !text.empty()) {
            error.context = std::move(text);
        }
        return tl::unexpected<Error>(std::move(error));
    }
    answer.fd = std::move(record.fds[0]);
    return answer;
}

Result<void> AttachClient::map_arena(const Answer& answer, MapAccess access) {
    const std::uint64_t bytes = answer.reply.arena_bytes;
    if (!answer.fd.valid() || bytes < sizeof(arena::ArenaHeader) ||
        !is_sealed_memory(answer.fd.get(), bytes)) {
        return fail(ErrorCode::kInvalid,
                    "the daemon of fabric \"" + fabric_ + "\" gave no usable memory");
    }
    WEIR_TRY(Mapping mapping, Mapping::map(answer.fd.get(), bytes, access));
    WEIR_TRY_VOID(check_header(arena::Arena(mapping.data()).header(), bytes));
    mapping_ = std::move(mapping);
    return {};
}

Result<void> AttachClient::observe() {
    WEIR_TRY(const Answer answer, ask(request_of(AttachKind::kObserve), -1));
    return map_arena(answer, MapAccess::kRead);
}

Result<std::uint32_t> AttachClient::attach(std::uint32_t node, int window_fd) {
    AttachRequest request = request_of(AttachKind::kAttach);
    request.node = node;
    WEIR_TRY(const Answer answer, ask(request, window_fd));
    WEIR_TRY_VOID(map_arena(answer, MapAccess::kReadWrite));
    if (arena::slot_of(answer.reply.identity) >= arena::kProcessCount) {
        return fail(ErrorCode::kInvalid,
                    "the daemon of fabric \"" + fabric_ + "\" gave no usable identity");
    }
    return answer.reply.identity;
}

Result<UniqueFd> AttachClient::peer_window(std::uint32_t identity) {
    AttachRequest request = request_of(AttachKind::kPeerWindow);
    request.identity = identity;
    WEIR_TRY(Answer answer, ask(request, -1));
    if (!is_sealed_memory(answer.fd.get(), arena::kWindowBytes)) {
        return fail(ErrorCode::kInvalid, "the peer's window is not usable");
    }
    return std::move(answer.fd);
}

Result<void> AttachClient::ask_of_link(AttachRequest request, std::string_view name) {
    if (name.empty() || name.size() >= arena::kAttachTextBytes) {
        return fail(ErrorCode::kInvalid, "\"" + std::string(name) + "\" is no name of a link");
    }
    std::memcpy(request.text, name.data(), name.size());
    WEIR_TRY(const Answer answer, ask(request, -1));
    return {};
}

Result<void> AttachClient::set_link(std::string_view name, bool up) {
    AttachRequest request = request_of(AttachKind::kSetLink);
    request.argument = up ? 1 : 0;
    return ask_of_link(request, name);
}

Result<void> AttachClient::set_rate(std::string_view name, std::uint64_t bits_per_second) {
    AttachRequest request = request_of(AttachKind::kSetRate);
    request.rate_bits_per_second = bits_per_second;
    return ask_of_link(request, name);
}

Result<void> AttachClient::shutdown() {
    WEIR_TRY(const Answer answer, ask(request_of(AttachKind::kShutdown), -1));
    return {};
}

}  // namespace weir::runtime

// SPDX-License-Identifier: Apache-2.0
#include "lab/attach_protocol.h"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "switching/arbiter.h"

namespace weir::lab {
namespace {

using arena::AttachKind;
using arena::AttachRequest;

Judgement answer(Act act, int status, std::string text) {
    Judgement judgement;
    judgement.act = act;
    judgement.status = status;
    judgement.text = std::move(text);
    return judgement;
}

Judgement refuse(int status, std::string text) {
    return answer(Act::kRefuse, status, std::move(text));
}

Judgement accept(Act act) {
    return answer(act, 0, {});
}

Judgement judge_attach(const AttachRequest& request, const Caller& caller, std::size_t fds,
                       arena::Arena arena) {
    if (caller.attached) {
        return refuse(EEXIST, "this connection is attached already");
    }
    if (request.node >= arena.header().node_count ||
        arena.node(request.node).kind != arena::NodeKind::kHca) {
        return refuse(EINVAL, fmt::format("node {} is no HCA of this fabric", request.node));
    }
    if (fds != 1) {
        return refuse(EINVAL, "attaching needs a window memfd");
    }
    Judgement judgement = accept(Act::kAttach);
    judgement.node = request.node;
    return judgement;
}

/// As `act`, to the link that the request names.
Judgement judge_link(Act act, const AttachRequest& request, arena::Arena arena) {
    const char* end = std::find(std::begin(request.text), std::end(request.text), '\0');
    if (end == std::end(request.text)) return refuse(EINVAL, "malformed request");
    const auto link =
        find_link(arena, {request.text, static_cast<std::size_t>(end - request.text)});
    if (!link) {
        const Error& error = link.error();
        return refuse(error.code == ErrorCode::kNotFound ? ENOENT : EINVAL,
                      error.hint.empty() ? error.context : error.context + "; " + error.hint);
    }
    Judgement judgement = accept(act);
    judgement.link = *link;
    return judgement;
}

Judgement judge_set_link(const AttachRequest& request, arena::Arena arena) {
    if (request.argument > 1) return refuse(EINVAL, "malformed request");
    Judgement judgement = judge_link(Act::kSetLink, request, arena);
    judgement.up = request.argument == 1;
    return judgement;
}

Judgement judge_set_rate(const AttachRequest& request, arena::Arena arena) {
    constexpr std::uint64_t kFastest = 10'000'000'000'000;
    const auto rate = request.rate_bits_per_second;
    if (rate != 0 && (rate < switching::kSlowestRate || rate > kFastest)) {
        return refuse(EINVAL, "a link's rate lies within 10Mbps ... 10Tbps, or is unlimited");
    }
    Judgement judgement = judge_link(Act::kSetRate, request, arena);
    judgement.rate_bits_per_second = rate;
    return judgement;
}

Judgement judge_peer_window(const AttachRequest& request) {
    if (arena::slot_of(request.identity) >= arena::kProcessCount) {
        return refuse(EINVAL, "no such process identity");
    }
    Judgement judgement = accept(Act::kPeerWindow);
    judgement.identity = request.identity;
    return judgement;
}

}  // namespace

Judgement judge(const Message& message, const Caller& caller, uid_t owner, arena::Arena arena) {
    if (caller.uid != owner && caller.uid != 0) {
        return answer(Act::kHangUp, EACCES, "this fabric belongs to another user");
    }
    AttachRequest request{};
    if (message.truncated || message.bytes.size() != sizeof(request)) {
        return answer(Act::kHangUp, EPROTO, "malformed request");
    }
    std::memcpy(&request, message.bytes.data(), sizeof(request));
    if (request.magic != arena::kAttachMagic) {
        return answer(Act::kHangUp, EPROTO, "malformed request");
    }
    if (request.version != arena::kAttachVersion) {
        return answer(Act::kHangUp, EPROTO,
                      "the fabric was brought up by a different version of Weir");
    }
    if (request.kind != AttachKind::kAttach && message.fd_count != 0) {
        return refuse(EINVAL, "this request takes no descriptor");
    }
    switch (request.kind) {
        case AttachKind::kObserve:
            return accept(Act::kGiveArena);
        case AttachKind::kAttach:
            return judge_attach(request, caller, message.fd_count, arena);
        case AttachKind::kPeerWindow:
            return judge_peer_window(request);
        case AttachKind::kSetLink:
            return judge_set_link(request, arena);
        case AttachKind::kSetRate:
            return judge_set_rate(request, arena);
        case AttachKind::kShutdown:
            return accept(Act::kShutdown);
    }
    return refuse(EINVAL, "unknown request");
}

arena::AttachReply make_reply(int status, std::string_view text) {
    arena::AttachReply reply{};
    reply.magic = arena::kAttachMagic;
    reply.status = status;
    std::copy_n(text.data(), std::min(text.size(), arena::kAttachTextBytes - 1), reply.text);
    return reply;
}

}  // namespace weir::lab

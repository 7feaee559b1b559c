// SPDX-License-Identifier: Apache-2.0
// Fuzzes the judgement of attach requests: first byte who sends and with what, the rest the record.
// Whatever arrives, what is accepted names things that exist.
#include <cstdint>
#include <cstring>
#include <span>

#include "base/check.h"
#include "lab/attach_protocol.h"
#include "switching/arbiter.h"
#include "switching/test_fabric.h"

namespace {

constexpr uid_t kOwner = 1000;

weir::arena::Arena fabric() {
    static weir::switching::TestFabric* instance = [] {
        auto* made = new weir::switching::TestFabric(2, 2, 2, 2048);
        for (std::uint32_t n = 0; n < made->arena().header().node_count; ++n) {
            auto& node = made->arena().node(n);
            // A name with a dash, as imported ones have.
            node.name[0] = node.kind == weir::arena::NodeKind::kSwitch ? 's' : 'h';
            node.name[1] = '-';
            node.name[2] = static_cast<char>('0' + n);
        }
        return made;
    }();
    return instance->arena();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using weir::lab::Act;
    if (size == 0) return 0;
    weir::lab::Message message;
    message.bytes = std::as_bytes(std::span(data + 1, size - 1));
    message.fd_count = data[0] & 7U;
    message.truncated = (data[0] & 8U) != 0;
    weir::lab::Caller caller;
    caller.uid = (data[0] & 16U) != 0 ? kOwner + 1 : (data[0] & 32U) != 0 ? 0 : kOwner;
    caller.attached = (data[0] & 64U) != 0;
    const auto arena = fabric();
    const auto judgement = weir::lab::judge(message, caller, kOwner, arena);
    const bool refused = judgement.act == Act::kRefuse || judgement.act == Act::kHangUp;
    WEIR_CHECK(refused == (judgement.status != 0));
    WEIR_CHECK(refused != judgement.text.empty());
    WEIR_CHECK(caller.uid != kOwner + 1 || judgement.act == Act::kHangUp);
    if (judgement.act == Act::kAttach) {
        WEIR_CHECK(!caller.attached && message.fd_count == 1);
        WEIR_CHECK(judgement.node < arena.header().node_count);
        WEIR_CHECK(arena.node(judgement.node).kind == weir::arena::NodeKind::kHca);
    }
    if (judgement.act == Act::kSetRate) {
        const auto rate = judgement.rate_bits_per_second;
        WEIR_CHECK(rate == 0 || rate >= weir::switching::kSlowestRate);
    }
    if (judgement.act == Act::kSetLink || judgement.act == Act::kSetRate) {
        WEIR_CHECK(judgement.link.a < arena.header().port_count);
        WEIR_CHECK(arena.port(judgement.link.a).peer == judgement.link.b);
    }
    if (judgement.act == Act::kPeerWindow) {
        WEIR_CHECK(weir::arena::slot_of(judgement.identity) < weir::arena::kProcessCount);
    }
    const auto reply = weir::lab::make_reply(judgement.status, judgement.text);
    WEIR_CHECK(reply.text[weir::arena::kAttachTextBytes - 1] == '\0');
    return 0;
}

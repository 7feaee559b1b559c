// SPDX-License-Identifier: Apache-2.0
// A connection manager between a user and peers that do whatever the input says: calls in any
// order, messages that mean each other's connections or none, any time between. Whatever comes, its
// actions are well-formed, notices are of connections that the user may know, and once all is quiet
// nothing is left.
//
// Input: steps of 8 bytes: | what | who | which connection | its state's field | value 32 |
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <variant>
#include <vector>

#include "base/check.h"
#include "connection/manager.h"
#include "wire/cm_mad.h"

namespace weir::connection {
namespace {

struct Step {
    std::uint8_t what;
    std::uint8_t who;
    std::uint8_t which;
    std::uint8_t field;
    std::uint32_t value;
};

class World {
  public:
    void take(const Step& step) {
        const Peer peer{0, 1U + step.who % 2U, 100U + step.who % 3U};
        const Id id = known_.empty() ? step.value : known_[step.which % known_.size()];
        if (step.what % 2U == 0)
            call(step, peer, id);
        else
            bring(step, peer, id);
        look();
    }

    /// All that can still happen of itself happens, and the user wants no more of anything.
    void finish() {
        for (const Id id : known_)
            manager_.close(id, now_);
        look();
        for (int i = 0; i < 100 && manager_.size() != 0; ++i) {
            const auto deadline = manager_.deadline();
            WEIR_CHECK(deadline.has_value());
            now_ = std::max(now_, *deadline);
            manager_.on_time(now_);
            for (const Id id : known_)
                manager_.close(id, now_);
            look();
        }
        WEIR_CHECK(manager_.size() == 0);
        WEIR_CHECK(!manager_.deadline().has_value());
    }

  private:
    void call(const Step& step, const Peer& peer, Id id) {
        const std::array<std::uint8_t, 3> data{step.field, 2, 3};
        switch (step.what / 2U % 10U) {
            case 0:
                known_.push_back(manager_.request(peer, request_of(step), step.value, now_));
                break;
            case 1:
                known_.push_back(manager_.request_datagram(peer, {}, now_));
                break;
            case 2:
                manager_.accept(id, reply_of(step, 0), step.value, now_);
                break;
            case 3:
                manager_.answer_datagram(id, {}, now_);
                break;
            case 4:
                manager_.reject(id, step.field, data, now_);
                break;
            case 5:
                manager_.ready(id, now_);
                break;
            case 6:
                manager_.establish(id, now_);
                break;
            case 7:
                manager_.disconnect(id, now_);
                break;
            case 8:
                manager_.on_peer_lost(peer, now_);
                break;
            default:
                now_ += step.value;
                manager_.on_time(now_);
                break;
        }
    }

    static wire::CmRequest request_of(const Step& step) {
        wire::CmRequest m;
        m.local_id = step.field;
        m.qp_number = 1U + step.value % 4U;
        return m;
    }
    static wire::CmReply reply_of(const Step& step, Id to) {
        wire::CmReply m;
        m.local_id = step.field;
        m.remote_id = to;
        m.qp_number = 1U + step.value % 4U;
        return m;
    }

    /// A message from a peer; `id` is which of our connections it means, or not.
    void bring(const Step& step, const Peer& peer, Id id) {
        wire::CmMad mad;
        mad.transaction_id = step.value;
        const std::uint32_t from = step.field;
        const auto answered = static_cast<wire::CmAnswered>(step.value % 3U);
        switch (step.what / 2U % 9U) {
            case 0:
                mad.body = request_of(step);
                break;
            case 1:
                mad.body = wire::CmMessageReceipt{
                    from, id, answered, static_cast<std::uint8_t>(step.value % 32U), {}};
                break;
            case 2:
                mad.body = wire::CmReject{
                    from, id, answered, 0, static_cast<std::uint16_t>(step.value), {}, {}};
                break;
            case 3:
                mad.body = reply_of(step, id);
                break;
            case 4:
                mad.body = wire::CmReadyToUse{from, id, {}};
                break;
            case 5:
                mad.body = wire::CmDisconnectRequest{from, id, step.value % 4U, {}};
                break;
            case 6:
                mad.body = wire::CmDisconnectReply{from, id, {}};
                break;
            case 7: {
                wire::CmDatagramRequest m;
                m.request_id = from;
                mad.body = m;
                break;
            }
            default: {
                wire::CmDatagramReply m;
                m.request_id = id;
                mad.body = m;
                break;
            }
        }
        manager_.on_mad(peer, wire::encode_cm_mad(mad), now_);
    }

    void look() {
        for (const auto& action : manager_.take_actions()) {
            if (const auto* send = std::get_if<SendAction>(&action)) {
                WEIR_CHECK(wire::decode_cm_mad(send->bytes).has_value());
                continue;
            }
            const auto& notice = std::get<Notice>(action);
            WEIR_CHECK(notice.id != 0);
            const bool begins =
                notice.kind == NoticeKind::kRequest || notice.kind == NoticeKind::kDatagramRequest;
            if (begins) known_.push_back(notice.id);
        }
    }

    Manager manager_{1};
    Time now_ = 1;
    std::vector<Id> known_;  ///< Connections that the user has heard of or begun.
};

}  // namespace
}  // namespace weir::connection

// The name is libFuzzer's.
// NOLINTNEXTLINE(readability-identifier-naming)
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    weir::connection::World world;
    for (std::span<const std::uint8_t> rest(data, size); rest.size() >= 8; rest = rest.subspan(8)) {
        weir::connection::Step step{rest[0], rest[1], rest[2], rest[3], 0};
        std::memcpy(&step.value, rest.data() + 4, sizeof step.value);
        world.take(step);
    }
    world.finish();
    return 0;
}

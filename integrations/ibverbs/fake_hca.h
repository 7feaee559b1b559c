// SPDX-License-Identifier: Apache-2.0
// A stand-in for the engine (src/hca), for tests of the adapter alone: it counts objects, hands out
// numbers, refuses when told to, and raises events when told to. It moves no data.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "hca/hca.h"

namespace weir::fake {

/// A request as the engine would have seen it.
struct Posted {
    ibv_send_wr wr;
    std::vector<ibv_sge> sges;
    std::string bytes;  ///< Inline data.
};

struct Fake {
    std::vector<hca::DeviceDescription> devices;
    int list_error = 0;
    int next_error = 0;  ///< What the next creation or destruction answers, once.
    std::uint32_t link_layer = IBV_LINK_LAYER_INFINIBAND;
    int live_count = 0;  ///< Objects of all kinds that the engine holds.
    int polled = 0;      ///< Calls of the data path.
    int posted = 0;
    hca::Hca* last_hca = nullptr;
    std::uint64_t last_iova = 0;
    int last_access = 0;
    std::deque<ibv_wc> completions;   ///< What the extended poll gives.
    std::vector<Posted> posted_list;  ///< Of the last post_send_whole.
    hca::Hca::CqOptions last_cq_options;
    hca::Hca::QpRequest last_request{};
    hca::QueuePair* last_qp = nullptr;
    int last_qp_opens = 0;
};

/// The state that all fakes share. reset() between tests.
Fake& fake();
void reset();

/// The GID of index `index`: only index 0 is set.
ibv_gid gid_of(int index);

void raise_async(hca::Hca& hca, const hca::AsyncEvent& event);

}  // namespace weir::fake

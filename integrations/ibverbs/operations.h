// SPDX-License-Identifier: Apache-2.0
// The data path: what verbs.h calls through ibv_context.ops. One load from the program's struct to
// the engine, no lock and no table of ours.
#pragma once

#include <infiniband/verbs.h>

namespace weir::ibverbs {

int poll_cq(ibv_cq* cq, int count, ibv_wc* completions);
int req_notify_cq(ibv_cq* cq, int solicited_only);
int post_send(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad);
int post_recv(ibv_qp* qp, ibv_recv_wr* list, ibv_recv_wr** bad);
int post_srq_recv(ibv_srq* srq, ibv_recv_wr* list, ibv_recv_wr** bad);

}  // namespace weir::ibverbs

// SPDX-License-Identifier: Apache-2.0
#include "read_completion.h"

#include <cerrno>
#include <ctime>

#include "handles.h"

namespace weir::ibverbs {
namespace {

CompletionQueue& queue_of(ibv_cq_ex* cq) {
    return *reinterpret_cast<CompletionQueue*>(cq);
}

const ibv_wc& current_of(ibv_cq_ex* cq) {
    return queue_of(cq).current;
}

int next_poll(ibv_cq_ex* abi) {
    CompletionQueue& cq = queue_of(abi);
    const int got = cq.engine->poll_stamped(cq.current, cq.stamp_ns);
    if (got <= 0) return got == 0 ? ENOENT : EIO;
    abi->wr_id = cq.current.wr_id;
    abi->status = cq.current.status;
    return 0;
}

int start_poll(ibv_cq_ex* abi, ibv_poll_cq_attr* attr) {
    if (attr != nullptr && attr->comp_mask != 0) return EINVAL;
    CompletionQueue& cq = queue_of(abi);
    if (!cq.single_threaded) cq.reading.lock();
    const int error = next_poll(abi);
    if (error != 0 && !cq.single_threaded) cq.reading.unlock();
    return error;
}

void end_poll(ibv_cq_ex* abi) {
    CompletionQueue& cq = queue_of(abi);
    if (!cq.single_threaded) cq.reading.unlock();
}

std::uint64_t clock_ns(clockid_t clock) {
    timespec now{};
    clock_gettime(clock, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U +
           static_cast<std::uint64_t>(now.tv_nsec);
}

std::uint64_t read_wallclock(ibv_cq_ex* abi) {
    const auto ago = clock_ns(CLOCK_MONOTONIC) - queue_of(abi).stamp_ns;
    return clock_ns(CLOCK_REALTIME) - ago;
}

}  // namespace

void fill_read_operations(ibv_cq_ex& cq, std::uint64_t read_flags) {
    if ((read_flags & kExtended) == 0) return;
    cq.start_poll = start_poll;
    cq.next_poll = next_poll;
    cq.end_poll = end_poll;
    cq.read_opcode = [](ibv_cq_ex* c) { return current_of(c).opcode; };
    cq.read_vendor_err = [](ibv_cq_ex* c) { return current_of(c).vendor_err; };
    cq.read_wc_flags = [](ibv_cq_ex* c) { return current_of(c).wc_flags; };
    const auto asked = [read_flags](std::uint64_t flag) { return (read_flags & flag) != 0; };
    if (asked(IBV_WC_EX_WITH_BYTE_LEN))
        cq.read_byte_len = [](ibv_cq_ex* c) { return current_of(c).byte_len; };
    // A key that was invalidated is read in the same place (ibv_wc_read_invalidated_rkey).
    if (asked(IBV_WC_EX_WITH_IMM))
        cq.read_imm_data = [](ibv_cq_ex* c) -> __be32 { return current_of(c).imm_data; };
    if (asked(IBV_WC_EX_WITH_QP_NUM))
        cq.read_qp_num = [](ibv_cq_ex* c) { return current_of(c).qp_num; };
    if (asked(IBV_WC_EX_WITH_SRC_QP))
        cq.read_src_qp = [](ibv_cq_ex* c) { return current_of(c).src_qp; };
    if (asked(IBV_WC_EX_WITH_SLID))
        cq.read_slid = [](ibv_cq_ex* c) -> std::uint32_t { return current_of(c).slid; };
    if (asked(IBV_WC_EX_WITH_SL)) cq.read_sl = [](ibv_cq_ex* c) { return current_of(c).sl; };
    if (asked(IBV_WC_EX_WITH_DLID_PATH_BITS))
        cq.read_dlid_path_bits = [](ibv_cq_ex* c) { return current_of(c).dlid_path_bits; };
    if (asked(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP))
        cq.read_completion_ts = [](ibv_cq_ex* c) { return queue_of(c).stamp_ns; };
    if (asked(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK))
        cq.read_completion_wallclock_ns = read_wallclock;
}

}  // namespace weir::ibverbs

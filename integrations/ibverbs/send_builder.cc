// SPDX-License-Identifier: Apache-2.0
#include "send_builder.h"

#include <cerrno>
#include <cstring>
#include <new>

#include "handles.h"
#include "hca/newer_verbs.h"

namespace weir::ibverbs {

void SendBuilder::clear() {
    wrs_.clear();
    first_sge_.clear();
    sges_.clear();
    inline_bytes_.clear();
    error_ = 0;
}

void SendBuilder::start() {
    lock_.lock();
    clear();
}

void SendBuilder::abort() {
    clear();
    lock_.unlock();
}

int SendBuilder::complete() {
    int error = error_;
    if (error == 0 && !wrs_.empty()) {
        for (std::size_t i = 0; i < wrs_.size(); ++i) {
            auto& wr = wrs_[i];
            wr.next = i + 1 < wrs_.size() ? &wrs_[i + 1] : nullptr;
            wr.sg_list = wr.num_sge == 0 ? nullptr : &sges_[first_sge_[i]];
            if ((wr.send_flags & IBV_SEND_INLINE) == 0) continue;
            for (int j = 0; j < wr.num_sge; ++j)
                wr.sg_list[j].addr += reinterpret_cast<std::uintptr_t>(inline_bytes_.data());
        }
        error = engine_.post_send_whole(wrs_.data());
    }
    clear();
    lock_.unlock();
    return error;
}

ibv_send_wr& SendBuilder::add(const ibv_qp_ex& qp, ibv_wr_opcode opcode) {
    static thread_local ibv_send_wr overflow;
    if (error_ != 0) return overflow;  // all is lost already
    try {
        first_sge_.push_back(sges_.size());
        wrs_.emplace_back();
    } catch (const std::bad_alloc&) {
        fail(ENOMEM);
        return overflow;
    }
    auto& wr = wrs_.back();
    wr.wr_id = qp.wr_id;
    wr.opcode = opcode;
    wr.send_flags = qp.wr_flags & ~static_cast<unsigned>(IBV_SEND_INLINE);
    if (wrs_.size() > cap_.max_send_wr) fail(ENOMEM);
    return wr;
}

void SendBuilder::set_buffers(std::size_t count, const ibv_sge* sges) {
    auto* wr = last();
    if (error_ != 0) return;
    if (wr == nullptr || count > cap_.max_send_sge || (count > 0 && sges == nullptr)) {
        fail(EINVAL);
        return;
    }
    sges_.resize(first_sge_.back());
    wr->send_flags &= ~static_cast<unsigned>(IBV_SEND_INLINE);
    wr->num_sge = static_cast<int>(count);
    try {
        sges_.insert(sges_.end(), sges, sges + count);
    } catch (const std::bad_alloc&) {
        fail(ENOMEM);
    }
}

void SendBuilder::set_inline(std::size_t count, const ibv_data_buf* buffers) {
    auto* wr = last();
    if (error_ != 0) return;
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < count && bytes <= cap_.max_inline_data; ++i)
        bytes += buffers[i].length;
    if (wr == nullptr || bytes > cap_.max_inline_data) {
        fail(EINVAL);
        return;
    }
    const auto from = inline_bytes_.size();
    try {
        inline_bytes_.resize(from + bytes);
        sges_.resize(first_sge_.back());
        sges_.push_back({from, static_cast<std::uint32_t>(bytes), 0});
    } catch (const std::bad_alloc&) {
        fail(ENOMEM);
        return;
    }
    auto* to = inline_bytes_.data() + from;
    for (std::size_t i = 0; i < count; ++i) {
        if (buffers[i].length == 0) continue;
        std::memcpy(to, buffers[i].addr, buffers[i].length);
        to += buffers[i].length;
    }
    wr->send_flags |= IBV_SEND_INLINE;
    wr->num_sge = 1;
}

namespace {

SendBuilder& builder_of(ibv_qp_ex* qp) {
    return *reinterpret_cast<QueuePair*>(qp)->builder;
}

ibv_send_wr& add_remote(ibv_qp_ex* qp, ibv_wr_opcode opcode, std::uint32_t rkey,
                        std::uint64_t address) {
    auto& wr = builder_of(qp).add(*qp, opcode);
    wr.wr.rdma.rkey = rkey;
    wr.wr.rdma.remote_addr = address;
    return wr;
}

ibv_send_wr& add_atomic(ibv_qp_ex* qp, ibv_wr_opcode opcode, std::uint32_t rkey,
                        std::uint64_t address) {
    auto& wr = builder_of(qp).add(*qp, opcode);
    wr.wr.atomic.rkey = rkey;
    wr.wr.atomic.remote_addr = address;
    return wr;
}

void compare_swap(ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t address, std::uint64_t compare,
                  std::uint64_t swap) {
    auto& wr = add_atomic(qp, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, address);
    wr.wr.atomic.compare_add = compare;
    wr.wr.atomic.swap = swap;
}

void fetch_add(ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t address, std::uint64_t add) {
    add_atomic(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, address).wr.atomic.compare_add = add;
}

void bind_window(ibv_qp_ex* qp, ibv_mw* mw, std::uint32_t rkey, const ibv_mw_bind_info* info) {
    auto& builder = builder_of(qp);
    auto& wr = builder.add(*qp, IBV_WR_BIND_MW);
    if (mw == nullptr || info == nullptr) {
        builder.fail(EINVAL);
        return;
    }
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = rkey;
    wr.bind_mw.bind_info = *info;
}

void send_invalidate(ibv_qp_ex* qp, std::uint32_t rkey) {
    builder_of(qp).add(*qp, IBV_WR_SEND_WITH_INV).invalidate_rkey = rkey;
}

void atomic_write(ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t address, const void* word) {
    add_remote(qp, IBV_WR_ATOMIC_WRITE, rkey, address);
    const ibv_data_buf buffer{const_cast<void*>(word), sizeof(std::uint64_t)};
    builder_of(qp).set_inline(1, &buffer);
}

// NOLINTNEXTLINE(readability-function-size): the ABI's arguments.
void flush(ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t address, std::size_t length,
           std::uint8_t type, std::uint8_t level) {
    auto& wr = builder_of(qp).add(*qp, static_cast<ibv_wr_opcode>(hca::kWrFlush));
    hca::set_flush(wr, {rkey, address, length, type, level});
}

void set_address(ibv_qp_ex* qp, ibv_ah* ah, std::uint32_t number, std::uint32_t qkey) {
    auto* wr = builder_of(qp).last();
    if (wr != nullptr) wr->wr.ud = {ah, number, qkey};
}

void set_srq_number(ibv_qp_ex* qp, std::uint32_t number) {
    auto* wr = builder_of(qp).last();
    if (wr != nullptr) wr->qp_type.xrc.remote_srqn = number;
}

void set_sge(ibv_qp_ex* qp, std::uint32_t lkey, std::uint64_t address, std::uint32_t length) {
    const ibv_sge sge{address, length, lkey};
    builder_of(qp).set_buffers(1, &sge);
}

void set_inline_data(ibv_qp_ex* qp, void* address, std::size_t length) {
    const ibv_data_buf buffer{address, length};
    builder_of(qp).set_inline(1, &buffer);
}

void fill_one_sided(ibv_qp_ex& qp, std::uint64_t flags) {
    if ((flags & IBV_QP_EX_WITH_RDMA_WRITE) != 0)
        qp.wr_rdma_write = [](ibv_qp_ex* q, std::uint32_t rkey, std::uint64_t address) {
            add_remote(q, IBV_WR_RDMA_WRITE, rkey, address);
        };
    if ((flags & IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM) != 0)
        qp.wr_rdma_write_imm = [](ibv_qp_ex* q, std::uint32_t rkey, std::uint64_t address,
                                  __be32 data) {
            add_remote(q, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, address).imm_data = data;
        };
    if ((flags & IBV_QP_EX_WITH_RDMA_READ) != 0)
        qp.wr_rdma_read = [](ibv_qp_ex* q, std::uint32_t rkey, std::uint64_t address) {
            add_remote(q, IBV_WR_RDMA_READ, rkey, address);
        };
    if ((flags & IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP) != 0) qp.wr_atomic_cmp_swp = compare_swap;
    if ((flags & IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD) != 0) qp.wr_atomic_fetch_add = fetch_add;
    if ((flags & IBV_QP_EX_WITH_ATOMIC_WRITE) != 0) qp.wr_atomic_write = atomic_write;
}

void fill_others(ibv_qp_ex& qp, std::uint64_t flags) {
    if ((flags & IBV_QP_EX_WITH_SEND) != 0)
        qp.wr_send = [](ibv_qp_ex* q) { builder_of(q).add(*q, IBV_WR_SEND); };
    if ((flags & IBV_QP_EX_WITH_SEND_WITH_IMM) != 0)
        qp.wr_send_imm = [](ibv_qp_ex* q, __be32 data) {
            builder_of(q).add(*q, IBV_WR_SEND_WITH_IMM).imm_data = data;
        };
    if ((flags & IBV_QP_EX_WITH_SEND_WITH_INV) != 0) qp.wr_send_inv = send_invalidate;
    if ((flags & IBV_QP_EX_WITH_BIND_MW) != 0) qp.wr_bind_mw = bind_window;
    if ((flags & IBV_QP_EX_WITH_LOCAL_INV) != 0)
        qp.wr_local_inv = [](ibv_qp_ex* q, std::uint32_t rkey) {
            builder_of(q).add(*q, IBV_WR_LOCAL_INV).invalidate_rkey = rkey;
        };
}

}  // namespace

std::uint64_t send_operations_of(ibv_qp_type type) {
    constexpr std::uint64_t kSends = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    constexpr std::uint64_t kUnreliable = kSends | IBV_QP_EX_WITH_RDMA_WRITE |
                                          IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                                          IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV;
    switch (type) {
        case IBV_QPT_UD:
            return kSends;
        case IBV_QPT_UC:
            return kUnreliable;
        case IBV_QPT_RC:
        case IBV_QPT_XRC_SEND:
            return kUnreliable | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                   IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_SEND_WITH_INV |
                   IBV_QP_EX_WITH_ATOMIC_WRITE | hca::kQpExWithFlush;
        default:
            return 0;
    }
}

void fill_send_operations(ibv_qp_ex& qp, NewerOperations& newer, ibv_qp_type type,
                          std::uint64_t flags) {
    if ((flags & hca::kQpExWithFlush) != 0) newer.wr_flush = flush;
    fill_one_sided(qp, flags);
    fill_others(qp, flags);
    if (type == IBV_QPT_UD) qp.wr_set_ud_addr = set_address;
    if (type == IBV_QPT_XRC_SEND) qp.wr_set_xrc_srqn = set_srq_number;
    qp.wr_set_sge = set_sge;
    qp.wr_set_sge_list = [](ibv_qp_ex* q, std::size_t count, const ibv_sge* list) {
        builder_of(q).set_buffers(count, list);
    };
    qp.wr_set_inline_data = set_inline_data;
    qp.wr_set_inline_data_list = [](ibv_qp_ex* q, std::size_t count, const ibv_data_buf* list) {
        builder_of(q).set_inline(count, list);
    };
    qp.wr_start = [](ibv_qp_ex* q) { builder_of(q).start(); };
    qp.wr_complete = [](ibv_qp_ex* q) { return builder_of(q).complete(); };
    qp.wr_abort = [](ibv_qp_ex* q) { builder_of(q).abort(); };
}

}  // namespace weir::ibverbs

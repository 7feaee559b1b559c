// SPDX-License-Identifier: Apache-2.0
// Building send requests through ibv_qp_ex: between wr_start and wr_complete the requests are
// gathered here, and then posted all or none. Its storage grows to what the program uses and stays.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <infiniband/verbs.h>

namespace weir::hca {
class QueuePair;
}

namespace weir::ibverbs {

/// Held for as long as a program builds or reads, which may be across calls.
class SpinLock {
  public:
    void lock() {
        for (int tries = 0; held_.test_and_set(std::memory_order_acquire); ++tries)
            if (tries >= 100) sched_yield();
    }
    void unlock() { held_.clear(std::memory_order_release); }

  private:
    std::atomic_flag held_ = ATOMIC_FLAG_INIT;
};

class SendBuilder {
  public:
    SendBuilder(hca::QueuePair& engine, const ibv_qp_cap& cap) : engine_(engine), cap_(cap) {}

    void start();
    int complete();
    void abort();

    /// A new request; what is set next belongs to it. Never null.
    ibv_send_wr& add(const ibv_qp_ex& qp, ibv_wr_opcode opcode);
    /// The request that is being set, null if there is none.
    ibv_send_wr* last() { return wrs_.empty() ? nullptr : &wrs_.back(); }
    void set_buffers(std::size_t count, const ibv_sge* sges);
    void set_inline(std::size_t count, const ibv_data_buf* buffers);
    /// The first error is the one that complete() gives.
    void fail(int error) {
        if (error_ == 0) error_ = error;
    }

  private:
    void clear();

    hca::QueuePair& engine_;
    ibv_qp_cap cap_;
    SpinLock lock_;
    // Lists point to each other by index until all is there, as vectors move when they grow.
    std::vector<ibv_send_wr> wrs_;
    std::vector<std::size_t> first_sge_;
    std::vector<ibv_sge> sges_;
    std::vector<std::uint8_t> inline_bytes_;
    int error_ = 0;
};

/// The operations that a QP of this type can be asked for (IBV_QP_EX_WITH_*).
std::uint64_t send_operations_of(ibv_qp_type type);

/// Where programs of headers after 44 find more operations: what follows ibv_qp_ex.
struct NewerOperations {
    void (*wr_flush)(ibv_qp_ex* qp, std::uint32_t rkey, std::uint64_t address, std::size_t length,
                     std::uint8_t type, std::uint8_t level) = nullptr;
    void* unknown[3] = {};  ///< Of headers still newer. They stay null.
};

/// Sets the operations of `flags` and those that go with them; the others stay null.
void fill_send_operations(ibv_qp_ex& qp, NewerOperations& newer, ibv_qp_type type,
                          std::uint64_t flags);

}  // namespace weir::ibverbs

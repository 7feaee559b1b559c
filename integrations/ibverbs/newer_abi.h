// SPDX-License-Identifier: Apache-2.0
// What the headers of rdma-core 45 to 65 add to the ABI, declared here since Weir is built with
// those of 44: structures as newer programs lay them out, and the functions of the nodes
// IBVERBS_1.15 to IBVERBS_1.18.
#pragma once

#include <cstddef>
#include <cstdint>

#include <infiniband/verbs.h>

/// A buffer that the library allocates (1.17). Programs know its name alone.
struct ibv_buf {
    ibv_context* context;
};

/// A steering hint for PCIe (1.15), which this device has none of.
struct ibv_dmah {
    ibv_context* context;
};

/// What ibv_reg_mr_ex() registers; comp_mask says which fields are meant.
struct ibv_mr_init_attr {
    std::size_t length;
    int access;
    std::uint64_t comp_mask;
    std::uint64_t iova;
    void* addr;
    int fd;
    std::uint64_t fd_offset;
    ibv_dmah* dmah;
    ibv_buf* buf;
};

namespace weir::ibverbs {

enum RegionMask : std::uint64_t {
    kRegionIova = 1U << 0U,
    kRegionAddress = 1U << 1U,
    kRegionFile = 1U << 2U,
    kRegionFileOffset = 1U << 3U,
    kRegionHint = 1U << 4U,
    kRegionBuffer = 1U << 5U,
};

/// ibv_port_attr of 59 and later: the speed in a field that holds all of its codes.
struct NewerPortAttr {
    ibv_port_attr base;
    std::uint32_t active_speed_ex;
};
static_assert(offsetof(NewerPortAttr, active_speed_ex) == sizeof(ibv_port_attr));

}  // namespace weir::ibverbs

struct ibv_comp_cntr;  // Counters of completions (1.18), which this device has none of.

extern "C" {

ibv_dmah* ibv_alloc_dmah(ibv_context* context, void* attr);
int ibv_dealloc_dmah(ibv_dmah* hint);
ibv_mr* ibv_reg_mr_ex(ibv_pd* pd, ibv_mr_init_attr* attr);

int ibv_dm_export_dmabuf_fd(ibv_dm* dm);
/// In units of 100 Mbit/s.
int ibv_query_port_speed(ibv_context* context, std::uint32_t port, std::uint64_t* speed);

void* ibv_alloc_buf(ibv_pd* pd, std::size_t size, ibv_buf** buffer);
void ibv_free_buf(ibv_buf* buffer);
ibv_mr* ibv_reg_buf_mr(ibv_pd* pd, ibv_buf* buffer, void* address, std::size_t length, int access);

int ibv_export_buf_dmabuf_fd(ibv_buf* buffer);
int _ibv_query_comp_cntr_caps(ibv_context* context, void* caps, std::size_t size);
ibv_comp_cntr* ibv_create_comp_cntr(ibv_context* context, void* attr);
int ibv_destroy_comp_cntr(ibv_comp_cntr* counter);
int ibv_set_comp_cntr(ibv_comp_cntr* counter, std::uint64_t value);
int ibv_set_err_comp_cntr(ibv_comp_cntr* counter, std::uint64_t value);
int ibv_inc_comp_cntr(ibv_comp_cntr* counter, std::uint64_t amount);
int ibv_inc_err_comp_cntr(ibv_comp_cntr* counter, std::uint64_t amount);
int ibv_read_comp_cntr(ibv_comp_cntr* counter, std::uint64_t* value);
int ibv_read_err_comp_cntr(ibv_comp_cntr* counter, std::uint64_t* value);
int ibv_qp_attach_comp_cntr(ibv_qp* qp, ibv_comp_cntr* counter, void* attr);

const char* ibv_wr_opcode_str(ibv_wr_opcode opcode);

}  // extern "C"

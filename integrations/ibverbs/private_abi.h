// SPDX-License-Identifier: Apache-2.0
// Exports that no installed header declares: what remains of older ABIs, and what vendor libraries
// and a few tools import. Signatures are those of their callers.
#pragma once

#include <cstddef>
#include <cstdint>

#include <infiniband/verbs.h>

struct ib_uverbs_ah_attr;  // Of the kernel's interface, <rdma/ib_user_verbs.h> and
                           // <rdma/ib_user_sa.h>.
struct ib_uverbs_qp_attr;
struct ib_user_path_rec;
struct ibv_sa_path_rec;

extern "C" {

const char* ibv_get_sysfs_path(void);
int ibv_read_sysfs_file(const char* directory, const char* file, char* buffer, std::size_t size);
int ibv_read_ibdev_sysfs_file(char* buffer, std::size_t size, void* sysfs_device,
                              const char* format, ...);

/// librdmacm's answers from the kernel, in the program's terms.
void ibv_copy_ah_attr_from_kern(ibv_ah_attr* to, ib_uverbs_ah_attr* from);
void ibv_copy_qp_attr_from_kern(ibv_qp_attr* to, ib_uverbs_qp_attr* from);
void ibv_copy_path_rec_from_kern(ibv_sa_path_rec* to, ib_user_path_rec* from);
void ibv_copy_path_rec_to_kern(ib_user_path_rec* to, ibv_sa_path_rec* from);

/// What sysfs says of a GID: 0 for InfiniBand and RoCE v1, 1 for RoCE v2.
int ibv_query_gid_type(ibv_context* context, std::uint8_t port, unsigned int index, int* type);

/// Called by libmlx5 and libefa on either side of registering memory. Ours needs neither.
int ibv_dontfork_range(void* base, std::size_t size);
int ibv_dofork_range(void* base, std::size_t size);

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
// The provider ABI, IBVERBS_PRIVATE_34 to _65. Its real users are drivers of kernel devices, and we
// have none; but perftest, UCX and libfabric are linked with libmlx5 or libefa, and those cannot be
// loaded unless all of this is there. Registering a driver does nothing, and a driver that is never
// asked for a device calls nothing else.
#include "private_abi.h"

#include <cerrno>

#include "abi.h"

// Whatever the arguments: under every C calling convention of Linux they are the caller's to clean
// up.
#define WEIR_UNSUPPORTED(name) \
    int name() {               \
        return EOPNOTSUPP;     \
    }                          \
    WEIR_PRIVATE(name);

extern "C" {

WEIR_UNSUPPORTED(execute_ioctl)
WEIR_UNSUPPORTED(ibv_cmd_advise_mr)
WEIR_UNSUPPORTED(ibv_cmd_alloc_dm)
WEIR_UNSUPPORTED(ibv_cmd_alloc_mw)
WEIR_UNSUPPORTED(ibv_cmd_alloc_pd)
WEIR_UNSUPPORTED(ibv_cmd_attach_mcast)
WEIR_UNSUPPORTED(ibv_cmd_close_xrcd)
WEIR_UNSUPPORTED(ibv_cmd_create_ah)
WEIR_UNSUPPORTED(ibv_cmd_create_counters)
WEIR_UNSUPPORTED(ibv_cmd_create_cq)
WEIR_UNSUPPORTED(ibv_cmd_create_cq_ex)
WEIR_UNSUPPORTED(ibv_cmd_create_flow)
WEIR_UNSUPPORTED(ibv_cmd_create_flow_action_esp)
WEIR_UNSUPPORTED(ibv_cmd_create_qp)
WEIR_UNSUPPORTED(ibv_cmd_create_qp_ex)
WEIR_UNSUPPORTED(ibv_cmd_create_qp_ex2)
WEIR_UNSUPPORTED(ibv_cmd_create_rwq_ind_table)
WEIR_UNSUPPORTED(ibv_cmd_create_srq)
WEIR_UNSUPPORTED(ibv_cmd_create_srq_ex)
WEIR_UNSUPPORTED(ibv_cmd_create_wq)
WEIR_UNSUPPORTED(ibv_cmd_dealloc_mw)
WEIR_UNSUPPORTED(ibv_cmd_dealloc_pd)
WEIR_UNSUPPORTED(ibv_cmd_dereg_mr)
WEIR_UNSUPPORTED(ibv_cmd_destroy_ah)
WEIR_UNSUPPORTED(ibv_cmd_destroy_counters)
WEIR_UNSUPPORTED(ibv_cmd_destroy_cq)
WEIR_UNSUPPORTED(ibv_cmd_destroy_flow)
WEIR_UNSUPPORTED(ibv_cmd_destroy_flow_action)
WEIR_UNSUPPORTED(ibv_cmd_destroy_qp)
WEIR_UNSUPPORTED(ibv_cmd_destroy_rwq_ind_table)
WEIR_UNSUPPORTED(ibv_cmd_destroy_srq)
WEIR_UNSUPPORTED(ibv_cmd_destroy_wq)
WEIR_UNSUPPORTED(ibv_cmd_detach_mcast)
WEIR_UNSUPPORTED(ibv_cmd_free_dm)
WEIR_UNSUPPORTED(ibv_cmd_get_context)
WEIR_UNSUPPORTED(ibv_cmd_modify_cq)
WEIR_UNSUPPORTED(ibv_cmd_modify_flow_action_esp)
WEIR_UNSUPPORTED(ibv_cmd_modify_qp)
WEIR_UNSUPPORTED(ibv_cmd_modify_qp_ex)
WEIR_UNSUPPORTED(ibv_cmd_modify_srq)
WEIR_UNSUPPORTED(ibv_cmd_modify_wq)
WEIR_UNSUPPORTED(ibv_cmd_open_qp)
WEIR_UNSUPPORTED(ibv_cmd_open_xrcd)
WEIR_UNSUPPORTED(ibv_cmd_poll_cq)
WEIR_UNSUPPORTED(ibv_cmd_post_recv)
WEIR_UNSUPPORTED(ibv_cmd_post_send)
WEIR_UNSUPPORTED(ibv_cmd_post_srq_recv)
WEIR_UNSUPPORTED(ibv_cmd_query_context)
WEIR_UNSUPPORTED(ibv_cmd_query_device_any)
WEIR_UNSUPPORTED(ibv_cmd_query_mr)
WEIR_UNSUPPORTED(ibv_cmd_query_port)
WEIR_UNSUPPORTED(ibv_cmd_query_qp)
WEIR_UNSUPPORTED(ibv_cmd_query_srq)
WEIR_UNSUPPORTED(ibv_cmd_read_counters)
WEIR_UNSUPPORTED(ibv_cmd_reg_dm_mr)
WEIR_UNSUPPORTED(ibv_cmd_reg_dmabuf_mr)
WEIR_UNSUPPORTED(ibv_cmd_reg_mr)
WEIR_UNSUPPORTED(ibv_cmd_req_notify_cq)
WEIR_UNSUPPORTED(ibv_cmd_rereg_mr)
WEIR_UNSUPPORTED(ibv_cmd_resize_cq)

// Later functions, from the release on that has them.
#define WEIR_UNSUPPORTED_SINCE(release, name) \
    int name() {                              \
        return EOPNOTSUPP;                    \
    }                                         \
    WEIR_PRIVATE_SINCE_##release(name);

WEIR_UNSUPPORTED(ibv_cmd_create_cq_ex2)
WEIR_UNSUPPORTED_SINCE(59, ibv_cmd_alloc_dmah)
WEIR_UNSUPPORTED_SINCE(59, ibv_cmd_export_dmabuf_fd)
WEIR_UNSUPPORTED_SINCE(59, ibv_cmd_free_dmah)
WEIR_UNSUPPORTED_SINCE(59, ibv_cmd_query_port_speed)
WEIR_UNSUPPORTED_SINCE(59, ibv_cmd_reg_mr_ex)
WEIR_UNSUPPORTED_SINCE(65, ibv_cmd_create_comp_cntr)
WEIR_UNSUPPORTED_SINCE(65, ibv_cmd_destroy_comp_cntr)
WEIR_UNSUPPORTED_SINCE(65, ibv_cmd_inc_comp_cntr)
WEIR_UNSUPPORTED_SINCE(65, ibv_cmd_inc_err_comp_cntr)
WEIR_UNSUPPORTED_SINCE(65, ibv_cmd_qp_attach_comp_cntr)
WEIR_UNSUPPORTED_SINCE(65, ibv_cmd_query_comp_cntr_caps)
WEIR_UNSUPPORTED_SINCE(65, ibv_cmd_read_comp_cntr)
WEIR_UNSUPPORTED_SINCE(65, ibv_cmd_read_err_comp_cntr)
WEIR_UNSUPPORTED_SINCE(65, ibv_cmd_set_comp_cntr)
WEIR_UNSUPPORTED_SINCE(65, ibv_cmd_set_err_comp_cntr)

/// libmlx5 sets it for its own devices. Ours are never taken away from under a program.
bool verbs_allow_disassociate_destroy = false;
WEIR_PRIVATE(verbs_allow_disassociate_destroy);

// Registering has a name of its own for each release of the private ABI.
void verbs_register_driver_34(const void*) {}
void verbs_register_driver_57(const void*) {}
void verbs_register_driver_59(const void*) {}
void verbs_register_driver_64(const void*) {}
void verbs_register_driver_65(const void*) {}

void verbs_set_ops(void*, const void*) {}
WEIR_PRIVATE(verbs_set_ops);
void verbs_uninit_context(void*) {}
WEIR_PRIVATE(verbs_uninit_context);
void verbs_init_cq(void*, void*, void*, void*) {}
WEIR_PRIVATE(verbs_init_cq);
void __verbs_log(void*, std::uint32_t, const char*, ...) {}
WEIR_PRIVATE(__verbs_log);
unsigned int __ioctl_final_num_attrs(unsigned int attribute_count) {
    return attribute_count;
}
WEIR_PRIVATE(__ioctl_final_num_attrs);

void* _verbs_init_and_alloc_context() {
    return weir::ibverbs::fail_null<void>(EOPNOTSUPP);
}
WEIR_PRIVATE(_verbs_init_and_alloc_context);
ibv_context* verbs_open_device() {
    return weir::ibverbs::fail_null<ibv_context>(EOPNOTSUPP);
}
WEIR_PRIVATE(verbs_open_device);

// Memory that a confidential guest shares with its host: there is none to be had.
void* ibv_dmabuf_heap_cc_shared_init() {
    return weir::ibverbs::fail_null<void>(EOPNOTSUPP);
}
WEIR_PRIVATE_SINCE_64(ibv_dmabuf_heap_cc_shared_init);
void* ibv_dmabuf_heap_alloc(void*, std::size_t, int*) {
    return weir::ibverbs::fail_null<void>(EOPNOTSUPP);
}
WEIR_PRIVATE_SINCE_64(ibv_dmabuf_heap_alloc);
void ibv_dmabuf_heap_free(void*, std::size_t, int) {}
WEIR_PRIVATE_SINCE_64(ibv_dmabuf_heap_free);
void ibv_dmabuf_heap_destroy(void*) {}
WEIR_PRIVATE_SINCE_64(ibv_dmabuf_heap_destroy);

}  // extern "C"

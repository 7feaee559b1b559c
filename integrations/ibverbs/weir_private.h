/* SPDX-License-Identifier: Apache-2.0 */
// What Weir's librdmacm.so.1 asks of Weir's libibverbs.so.1 beyond the verbs: who has which IP
// address, which ports are taken, who has died. Exported under the version node WEIR_PRIVATE_1, for
// that one library, which is built from the same tree.
//
// Functions that return int give 0 or an errno value.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#ifdef __cplusplus
extern "C" {
#endif

/// A port of some HCA of the fabric.
struct weir_port {
    uint32_t node;  ///< HCA.
    uint32_t host;  ///< First HCA of the host it is in.
    uint32_t lid;
    uint8_t number;
    uint8_t is_own;  ///< Of this context's HCA.
    uint8_t ipv4[4];
    uint8_t ipv6[16];
    union ibv_gid gid;
    char host_name[64];
};

enum { WEIR_IPV4 = 1, WEIR_IPV6 = 2, WEIR_INFINIBAND = 4 };
enum { WEIR_ANY_NODE = 0xffffffff };

struct weir_service {
    uint64_t service_id;
    uint64_t token;     ///< The same for what one listener takes on several HCAs.
    uint32_t families;  ///< WEIR_IPV4, WEIR_IPV6, WEIR_INFINIBAND.
    uint8_t any_address;
    uint8_t shareable;
};

/// Where a listener is.
struct weir_place {
    uint32_t node;
    uint32_t host;
    uint32_t lid;
    uint32_t qp_number;  ///< Its control QP.
};

/// All HCA ports of the fabric, in the order of the file; `count` becomes their number, of which
/// `count` at first are written.
int weir_ports(struct ibv_context* context, struct weir_port* ports, size_t* count);

/// Takes a port on this context's host, by this context's HCA. EADDRINUSE, ENOSPC.
int weir_service_claim(struct ibv_context* context, const struct weir_service* service,
                       uint32_t* index);
/// Tells that requests are taken by this control QP. EADDRINUSE if somebody else listens there.
int weir_service_listen(struct ibv_context* context, uint32_t index, uint32_t qp_number);
void weir_service_release(struct ibv_context* context, uint32_t index);
/// Finds a listener by an address of `node`; with WEIR_ANY_NODE on this host, or else on any.
/// ENOENT.
int weir_service_find(struct ibv_context* context, uint64_t service_id, uint32_t family,
                      uint32_t node, struct weir_place* place);

/// Who owns this QP: another value, or 0, once its process is gone.
uint32_t weir_process_of_qp(struct ibv_context* context, uint32_t qp_number);
/// Readable after somebody has died; -1 if there is none. Not to be closed.
int weir_alert_fd(struct ibv_context* context);

/// To be called after polling, before a sleep that the next completion is to end.
void weir_park(struct ibv_context* context);

/// The calling library's own thread: see lock_awake() in src/hca/hca.h.
void weir_thread_started(void);
void weir_thread_ended(void);
void weir_awake(int on);

#ifdef __cplusplus
}
#endif

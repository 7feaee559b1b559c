// SPDX-License-Identifier: Apache-2.0
// What a program may change of a queue pair, and when: the state diagram of IBTA 10.3.1 and the
// attribute table of IBTA 11.2.5.2 ("Modify Queue Pair"), for RC, UC, UD and XRC. Pure tables: no
// queue pair is held here.
//
//            +-------+  INIT   +------+  RTR   +-----+  RTS   +-----+   SQD    +-----+
//   create ->| RESET |-------->| INIT |------->| RTR |------->| RTS |<-------->| SQD |
//            +-------+         +------+        +-----+        +-----+   RTS    +-----+
//                                 ^ INIT                   RTS ^  | a send failed (UC, UD only)
//                                                              |  v
//                                                             +-----+
//   Every state leads to RESET and to ERR; ERR to RESET only. | SQE |
//                                                             +-----+
//
// The move to SQE, and any move to ERR for a failed request, is made by the device, never by a
// modify call.
#pragma once

#include <cstdint>

#include <infiniband/verbs.h>

namespace weir::transport {

/// The attributes that a modify call must bring, and those that it may bring besides (IBV_QP_*
/// bits). IBV_QP_STATE itself is in neither.
struct AttributeMasks {
    int required = 0;
    int optional = 0;
};

/// Finds what goes with a transition. Returns false if `type` has no such transition.
[[nodiscard]] bool find_transition(ibv_qp_type type, ibv_qp_state current, ibv_qp_state next,
                                   AttributeMasks& masks);

/// 0 if a queue pair of `type` in state `current` may be modified to `next` with exactly the
/// attributes of `attr_mask`, else EINVAL. A call without IBV_QP_STATE stays where it is: pass
/// `next` == `current`.
[[nodiscard]] int check_modify(ibv_qp_type type, ibv_qp_state current, ibv_qp_state next,
                               int attr_mask);

/// What the device and its port can do, as far as attribute values depend on it.
struct AttributeLimits {
    std::uint8_t port_count = 1;            ///< Ports are numbered from 1.
    std::uint16_t pkey_count = 1;           ///< Entries of a port's P_Key table.
    int gid_count = 1;                      ///< Entries of a port's GID table.
    ibv_mtu path_mtu_max = IBV_MTU_4096;    ///< Of the port, as an enumerator.
    std::uint8_t responder_reads_max = 16;  ///< READs and atomics that a QP answers at a time.
    std::uint8_t initiator_reads_max = 16;  ///< READs and atomics that a QP has outstanding.
};

/// 0 if each value that `attr_mask` selects is within its field and within `limits`, else EINVAL.
/// Values that are not selected are not looked at.
[[nodiscard]] int check_values(const ibv_qp_attr& attr, int attr_mask,
                               const AttributeLimits& limits);

/// The same for an address vector by itself, as in ibv_create_ah.
[[nodiscard]] int check_address(const ibv_ah_attr& address, const AttributeLimits& limits);

}  // namespace weir::transport

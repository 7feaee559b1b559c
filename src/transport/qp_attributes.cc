// SPDX-License-Identifier: Apache-2.0
#include "transport/qp_attributes.h"

#include <array>
#include <cerrno>
#include <optional>

namespace weir::transport {
namespace {

/// Column of the tables below.
enum Service : std::size_t {
    kReliable,
    kUnreliable,
    kDatagram,
    kXrcSend,
    kXrcReceive,
    kServiceCount
};

std::optional<Service> service_of(ibv_qp_type type) {
    switch (type) {
        case IBV_QPT_RC:
            return kReliable;
        case IBV_QPT_UC:
            return kUnreliable;
        case IBV_QPT_UD:
            return kDatagram;
        case IBV_QPT_XRC_SEND:
            return kXrcSend;
        case IBV_QPT_XRC_RECV:
            return kXrcReceive;
        default:
            return std::nullopt;
    }
}

struct Transition {
    ibv_qp_state from;
    ibv_qp_state to;
    std::array<std::optional<AttributeMasks>, kServiceCount> masks;
};

// What connected services may always change with a move into or within RTS. Path migration is a
// matter of connected services only; the RNR timer one of the reliable responder.
constexpr int kWhileConnected =
    IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE;
constexpr int kWhileReliable = kWhileConnected | IBV_QP_MIN_RNR_TIMER;
constexpr int kWhileDatagram = IBV_QP_CUR_STATE | IBV_QP_QKEY;

constexpr int kInitConnected = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kInitDatagram = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
constexpr int kReceiveUnreliable = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
constexpr int kReceiveReliable =
    kReceiveUnreliable | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr int kReceiveOptional = IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX;
constexpr int kSendReliable =
    IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
constexpr int kDrainedUnreliable =
    IBV_QP_AV | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PATH_MIG_STATE;
constexpr int kDrainedReliable = kDrainedUnreliable | IBV_QP_PORT | IBV_QP_TIMEOUT |
                                 IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC |
                                 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;

// XRC splits a reliable QP: its send side has no part in receiving, its receive side none in
// sending, but for the timer of its own path (IBTA A14.5.2).
constexpr int kSendXrc =
    IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
constexpr int kReceiveXrc = IBV_QP_TIMEOUT | IBV_QP_SQ_PSN;
constexpr int kDrainedXrcSend = kDrainedUnreliable | IBV_QP_PORT | IBV_QP_TIMEOUT |
                                IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
constexpr int kDrainedXrcReceive = kDrainedUnreliable | IBV_QP_PORT | IBV_QP_TIMEOUT |
                                   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;

using Masks = AttributeMasks;
constexpr Masks kNotify{0, IBV_QP_EN_SQD_ASYNC_NOTIFY};
constexpr Masks kConnected{0, kWhileConnected};
constexpr Masks kReliably{0, kWhileReliable};
constexpr Masks kDatagrams{0, kWhileDatagram};
constexpr Masks kInit{kInitConnected, 0};
constexpr Masks kInitAgain{0, kInitConnected};

// Rows of the table but those into RESET and ERR, which take nothing and are open to all. Columns:
// RC, UC, UD, XRC's send side, XRC's receive side.
constexpr std::array<Transition, 9> kTransitions = {{
    {IBV_QPS_RESET, IBV_QPS_INIT, {kInit, kInit, Masks{kInitDatagram, 0}, kInit, kInit}},
    {IBV_QPS_INIT,
     IBV_QPS_INIT,
     {kInitAgain, kInitAgain, Masks{0, kInitDatagram}, kInitAgain, kInitAgain}},
    {IBV_QPS_INIT,
     IBV_QPS_RTR,
     {Masks{kReceiveReliable, kReceiveOptional}, Masks{kReceiveUnreliable, kReceiveOptional},
      Masks{0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY}, Masks{kReceiveUnreliable, kReceiveOptional},
      Masks{kReceiveReliable, kReceiveOptional}}},
    {IBV_QPS_RTR,
     IBV_QPS_RTS,
     {Masks{kSendReliable, kWhileReliable}, Masks{IBV_QP_SQ_PSN, kWhileConnected},
      Masks{IBV_QP_SQ_PSN, kWhileDatagram}, Masks{kSendXrc, kWhileConnected},
      Masks{kReceiveXrc, kWhileReliable}}},
    {IBV_QPS_RTS, IBV_QPS_RTS, {kReliably, kConnected, kDatagrams, kConnected, kReliably}},
    {IBV_QPS_RTS, IBV_QPS_SQD, {kNotify, kNotify, kNotify, kNotify, kNotify}},
    {IBV_QPS_SQD, IBV_QPS_RTS, {kReliably, kConnected, kDatagrams, kConnected, kReliably}},
    {IBV_QPS_SQD,
     IBV_QPS_SQD,
     {Masks{0, kDrainedReliable}, Masks{0, kDrainedUnreliable},
      Masks{0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY}, Masks{0, kDrainedXrcSend},
      Masks{0, kDrainedXrcReceive}}},
    // A reliable QP never is in SQE: its send errors lead to ERR.
    {IBV_QPS_SQE,
     IBV_QPS_RTS,
     {std::nullopt, Masks{0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS}, kDatagrams, std::nullopt,
      std::nullopt}},
}};

bool is_state(ibv_qp_state state) {
    return state >= IBV_QPS_RESET && state <= IBV_QPS_ERR;
}

constexpr std::uint32_t kTwentyFourBits = 0xffffff;
constexpr std::uint32_t kFlowLabelMax = 0xfffff;
constexpr std::uint8_t kServiceLevelMax = 15;
constexpr std::uint8_t kTimerCodeMax = 31;
constexpr std::uint8_t kRetryMax = 7;
// Programs pass one set of flags to memory regions and queue pairs alike, so all known flags are
// welcome here.
// Up to flush-global and flush-persistent, which come after IBV_ACCESS_HUGETLB.
constexpr unsigned kKnownAccess = ((IBV_ACCESS_HUGETLB << 3U) - 1U) | IBV_ACCESS_OPTIONAL_RANGE;

bool port_exists(std::uint8_t port, const AttributeLimits& limits) {
    return port >= 1 && port <= limits.port_count;
}

bool mtu_fits(ibv_mtu mtu, const AttributeLimits& limits) {
    return mtu >= IBV_MTU_256 && mtu <= limits.path_mtu_max;
}

bool address_fits(const ibv_ah_attr& address, const AttributeLimits& limits) {
    if (address.sl > kServiceLevelMax || !port_exists(address.port_num, limits)) return false;
    if (address.is_global == 0) return true;
    return address.grh.sgid_index < limits.gid_count && address.grh.flow_label <= kFlowLabelMax;
}

bool states_fit(const ibv_qp_attr& attr, int mask) {
    if ((mask & IBV_QP_STATE) != 0 && !is_state(attr.qp_state)) return false;
    if ((mask & IBV_QP_CUR_STATE) != 0 && !is_state(attr.cur_qp_state)) return false;
    if ((mask & IBV_QP_PATH_MIG_STATE) != 0 &&
        (attr.path_mig_state < IBV_MIG_MIGRATED || attr.path_mig_state > IBV_MIG_ARMED))
        return false;
    return (mask & IBV_QP_ACCESS_FLAGS) == 0 || (attr.qp_access_flags & ~kKnownAccess) == 0;
}

bool path_fits(const ibv_qp_attr& attr, int mask, const AttributeLimits& limits) {
    if ((mask & IBV_QP_PORT) != 0 && !port_exists(attr.port_num, limits)) return false;
    if ((mask & IBV_QP_PKEY_INDEX) != 0 && attr.pkey_index >= limits.pkey_count) return false;
    if ((mask & IBV_QP_PATH_MTU) != 0 && !mtu_fits(attr.path_mtu, limits)) return false;
    if ((mask & IBV_QP_AV) != 0 && !address_fits(attr.ah_attr, limits)) return false;
    if ((mask & IBV_QP_DEST_QPN) != 0 && attr.dest_qp_num > kTwentyFourBits) return false;
    if ((mask & IBV_QP_ALT_PATH) == 0) return true;
    return port_exists(attr.alt_port_num, limits) && attr.alt_pkey_index < limits.pkey_count &&
           attr.alt_timeout <= kTimerCodeMax && address_fits(attr.alt_ah_attr, limits);
}

bool reliability_fits(const ibv_qp_attr& attr, int mask, const AttributeLimits& limits) {
    if ((mask & IBV_QP_TIMEOUT) != 0 && attr.timeout > kTimerCodeMax) return false;
    if ((mask & IBV_QP_MIN_RNR_TIMER) != 0 && attr.min_rnr_timer > kTimerCodeMax) return false;
    if ((mask & IBV_QP_RETRY_CNT) != 0 && attr.retry_cnt > kRetryMax) return false;
    if ((mask & IBV_QP_RNR_RETRY) != 0 && attr.rnr_retry > kRetryMax) return false;
    if ((mask & IBV_QP_RQ_PSN) != 0 && attr.rq_psn > kTwentyFourBits) return false;
    if ((mask & IBV_QP_SQ_PSN) != 0 && attr.sq_psn > kTwentyFourBits) return false;
    if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0 && attr.max_rd_atomic > limits.initiator_reads_max)
        return false;
    return (mask & IBV_QP_MAX_DEST_RD_ATOMIC) == 0 ||
           attr.max_dest_rd_atomic <= limits.responder_reads_max;
}

}  // namespace

bool find_transition(ibv_qp_type type, ibv_qp_state current, ibv_qp_state next,
                     AttributeMasks& masks) {
    const std::optional<Service> service = service_of(type);
    if (!service || !is_state(current)) return false;
    if (next == IBV_QPS_RESET || next == IBV_QPS_ERR) {
        masks = {};
        return true;
    }
    for (const Transition& row : kTransitions) {
        if (row.from != current || row.to != next || !row.masks[*service]) continue;
        masks = *row.masks[*service];
        return true;
    }
    return false;
}

int check_modify(ibv_qp_type type, ibv_qp_state current, ibv_qp_state next, int attr_mask) {
    if ((attr_mask & IBV_QP_STATE) == 0 && current != next) return EINVAL;
    AttributeMasks masks;
    if (!find_transition(type, current, next, masks)) return EINVAL;
    const int brought = attr_mask & ~IBV_QP_STATE;
    if ((masks.required & ~brought) != 0) return EINVAL;
    return (brought & ~(masks.required | masks.optional)) == 0 ? 0 : EINVAL;
}

int check_values(const ibv_qp_attr& attr, int attr_mask, const AttributeLimits& limits) {
    return states_fit(attr, attr_mask) && path_fits(attr, attr_mask, limits) &&
                   reliability_fits(attr, attr_mask, limits)
               ? 0
               : EINVAL;
}

int check_address(const ibv_ah_attr& address, const AttributeLimits& limits) {
    return address_fits(address, limits) ? 0 : EINVAL;
}

}  // namespace weir::transport

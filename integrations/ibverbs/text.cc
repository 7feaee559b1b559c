// SPDX-License-Identifier: Apache-2.0
// Names of enumerators, as programs print and scripts match them, and conversions of static rates.
// Both are facts of the ABI: text_test compares them with the installed libibverbs.
#include <array>
#include <cstddef>

#include <infiniband/verbs.h>

#include "abi.h"
#include "newer_abi.h"

namespace {

template <std::size_t kCount>
const char* name_of(const std::array<const char*, kCount>& names, int value) {
    if (value < 0 || static_cast<std::size_t>(value) >= kCount) return "unknown";
    return names[static_cast<std::size_t>(value)];
}

constexpr std::array kStatusNames = {"success",
                                     "local length error",
                                     "local QP operation error",
                                     "local EE context operation error",
                                     "local protection error",
                                     "Work Request Flushed Error",
                                     "memory management operation error",
                                     "bad response error",
                                     "local access error",
                                     "remote invalid request error",
                                     "remote access error",
                                     "remote operation error",
                                     "transport retry counter exceeded",
                                     "RNR retry counter exceeded",
                                     "local RDD violation error",
                                     "remote invalid RD request",
                                     "aborted error",
                                     "invalid EE context number",
                                     "invalid EE context state",
                                     "fatal error",
                                     "response timeout error",
                                     "general error",
                                     "TM error",
                                     "TM software rendezvous"};
static_assert(kStatusNames.size() == IBV_WC_TM_RNDV_INCOMPLETE + 1);

constexpr std::array kEventNames = {"CQ error",
                                    "local work queue catastrophic error",
                                    "invalid request local work queue error",
                                    "local access violation work queue error",
                                    "communication established",
                                    "send queue drained",
                                    "path migrated",
                                    "path migration request error",
                                    "local catastrophic error",
                                    "port active",
                                    "port error",
                                    "LID change",
                                    "P_Key change",
                                    "SM change",
                                    "SRQ catastrophic error",
                                    "SRQ limit reached",
                                    "last WQE reached",
                                    "client reregistration",
                                    "GID table change",
                                    "WQ fatal"};
static_assert(kEventNames.size() == IBV_EVENT_WQ_FATAL + 1);

constexpr std::array kPortStateNames = {"no state change (NOP)", "down", "init", "armed", "active",
                                        "active defer"};
constexpr std::array kNodeTypeNames = {"unknown",           "InfiniBand channel adapter",
                                       "InfiniBand switch", "InfiniBand router",
                                       "iWARP NIC",         "usNIC",
                                       "usNIC UDP",         "unspecified"};

// By opcode: those of RDMA in the order of the ABI, 12 and 13 being nobody's.
constexpr std::array kOpcodeNames = {"rdma-write",
                                     "rdma-write-with-imm",
                                     "send",
                                     "send-with-imm",
                                     "rdma-read",
                                     "atomic-cmp-and-swp",
                                     "atomic-fetch-and-add",
                                     "local-inv",
                                     "bind-mw",
                                     "send-with-inv",
                                     "tso",
                                     "driver1",
                                     "unknown",
                                     "unknown",
                                     "flush",
                                     "atomic-write"};
static_assert(kOpcodeNames.size() == IBV_WR_ATOMIC_WRITE + 1);

struct Rate {
    ibv_rate code;
    int multiple;  ///< Of 2.5 Gbit/s, or -1 where the ABI has none.
    int mbps;      ///< With the line code's overhead, as the ABI has it.
};

constexpr std::array<Rate, 23> kRates = {{
    {IBV_RATE_2_5_GBPS, 1, 2500},       {IBV_RATE_5_GBPS, 2, 5000},
    {IBV_RATE_10_GBPS, 4, 10000},       {IBV_RATE_20_GBPS, 8, 20000},
    {IBV_RATE_30_GBPS, 12, 30000},      {IBV_RATE_40_GBPS, 16, 40000},
    {IBV_RATE_60_GBPS, 24, 60000},      {IBV_RATE_80_GBPS, 32, 80000},
    {IBV_RATE_120_GBPS, 48, 120000},    {IBV_RATE_14_GBPS, -1, 14062},
    {IBV_RATE_56_GBPS, -1, 56250},      {IBV_RATE_112_GBPS, -1, 112500},
    {IBV_RATE_168_GBPS, -1, 168750},    {IBV_RATE_25_GBPS, -1, 25781},
    {IBV_RATE_100_GBPS, -1, 103125},    {IBV_RATE_200_GBPS, -1, 206250},
    {IBV_RATE_300_GBPS, -1, 309375},    {IBV_RATE_28_GBPS, 11, 28125},
    {IBV_RATE_50_GBPS, 20, 53125},      {IBV_RATE_400_GBPS, 160, 425000},
    {IBV_RATE_600_GBPS, 240, 637500},   {IBV_RATE_800_GBPS, 320, 850000},
    {IBV_RATE_1200_GBPS, 480, 1275000},
}};

const Rate* find_rate(ibv_rate code) {
    for (const Rate& rate : kRates)
        if (rate.code == code) return &rate;
    return nullptr;
}

}  // namespace

extern "C" {

const char* ibv_wc_status_str(ibv_wc_status status) {
    return name_of(kStatusNames, status);
}
const char* ibv_event_type_str(ibv_event_type event) {
    return name_of(kEventNames, event);
}
const char* ibv_port_state_str(ibv_port_state state) {
    return name_of(kPortStateNames, state);
}
const char* ibv_node_type_str(ibv_node_type type) {
    return name_of(kNodeTypeNames, type);
}

const char* ibv_wr_opcode_str(ibv_wr_opcode opcode) {
    return name_of(kOpcodeNames, opcode);
}
WEIR_PRIVATE(ibv_wr_opcode_str);

int ibv_rate_to_mult(ibv_rate code) {
    const Rate* rate = find_rate(code);
    return rate == nullptr ? -1 : rate->multiple;
}

int ibv_rate_to_mbps(ibv_rate code) {
    const Rate* rate = find_rate(code);
    return rate == nullptr ? -1 : rate->mbps;
}

ibv_rate mult_to_ibv_rate(int multiple) {
    for (const Rate& rate : kRates)
        if (rate.multiple == multiple && multiple > 0) return rate.code;
    return IBV_RATE_MAX;
}

ibv_rate mbps_to_ibv_rate(int mbps) {
    for (const Rate& rate : kRates)
        if (rate.mbps == mbps) return rate.code;
    return IBV_RATE_MAX;
}

}  // extern "C"

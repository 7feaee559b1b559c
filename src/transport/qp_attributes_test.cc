// SPDX-License-Identifier: Apache-2.0
// Goal: the tables say what IBTA 10.3.1 and 11.2.5.2 say. Method: the state diagram is written down
// a second time, as text, and compared over all pairs of states; masks are checked bit by bit at
// the edges of each transition; random walks never leave the diagram.
#include "transport/qp_attributes.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <cerrno>
#include <vector>

namespace weir::transport {
namespace {

constexpr std::array<ibv_qp_type, 5> kTypes = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_SEND,
                                               IBV_QPT_XRC_RECV};
constexpr std::array<ibv_qp_state, 7> kStates = {
    IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE, IBV_QPS_ERR};
constexpr int kAttributeBits = 21;  // IBV_QP_STATE to IBV_QP_DEST_QPN.

// The diagram: from the row's state, a move to the column's is legal. Columns as in kStates. A dot
// is illegal, u is legal for UC and UD only.
constexpr std::array<const char*, 7> kDiagram = {
    //                RESET INIT RTR RTS SQD SQE ERR
    /* RESET */
    "x"
    "x"
    "."
    "."
    "."
    "."
    "x",
    /* INIT  */
    "x"
    "x"
    "x"
    "."
    "."
    "."
    "x",
    /* RTR   */
    "x"
    "."
    "."
    "x"
    "."
    "."
    "x",
    /* RTS   */
    "x"
    "."
    "."
    "x"
    "x"
    "."
    "x",
    /* SQD   */
    "x"
    "."
    "."
    "x"
    "x"
    "."
    "x",
    /* SQE   */
    "x"
    "."
    "."
    "u"
    "."
    "."
    "x",
    /* ERR   */
    "x"
    "."
    "."
    "."
    "."
    "."
    "x",
};

bool diagram_allows(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to) {
    const char mark = kDiagram[from][to];
    return mark == 'x' || (mark == 'u' && (type == IBV_QPT_UC || type == IBV_QPT_UD));
}

TEST(FindTransition, AgreesWithTheDiagramOverAllPairsOfStates) {
    for (const ibv_qp_type type : kTypes)
        for (const ibv_qp_state from : kStates)
            for (const ibv_qp_state to : kStates) {
                AttributeMasks masks;
                EXPECT_EQ(find_transition(type, from, to, masks), diagram_allows(type, from, to))
                    << "type " << type << ", " << from << " to " << to;
            }
}

TEST(FindTransition, KnowsNoOtherTypesAndStates) {
    AttributeMasks masks;
    for (const auto type : {IBV_QPT_RAW_PACKET, IBV_QPT_DRIVER})
        EXPECT_FALSE(find_transition(type, IBV_QPS_RESET, IBV_QPS_INIT, masks));
    EXPECT_FALSE(find_transition(IBV_QPT_RC, IBV_QPS_UNKNOWN, IBV_QPS_RESET, masks));
    EXPECT_FALSE(find_transition(IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_UNKNOWN, masks));
}

TEST(FindTransition, XrcSplitsWhatAReliableQpNeeds) {
    AttributeMasks whole;
    AttributeMasks send;
    AttributeMasks receive;
    for (const auto& [from, to] :
         {std::pair{IBV_QPS_RESET, IBV_QPS_INIT}, std::pair{IBV_QPS_INIT, IBV_QPS_RTR},
          std::pair{IBV_QPS_RTR, IBV_QPS_RTS}}) {
        ASSERT_TRUE(find_transition(IBV_QPT_RC, from, to, whole));
        ASSERT_TRUE(find_transition(IBV_QPT_XRC_SEND, from, to, send));
        ASSERT_TRUE(find_transition(IBV_QPT_XRC_RECV, from, to, receive));
        EXPECT_EQ(send.required | receive.required, whole.required);
    }
    ASSERT_TRUE(find_transition(IBV_QPT_XRC_SEND, IBV_QPS_INIT, IBV_QPS_RTR, send));
    EXPECT_EQ(send.required & IBV_QP_MIN_RNR_TIMER, 0) << "it receives nothing";
    ASSERT_TRUE(find_transition(IBV_QPT_XRC_RECV, IBV_QPS_RTR, IBV_QPS_RTS, receive));
    EXPECT_EQ(receive.required, IBV_QP_TIMEOUT | IBV_QP_SQ_PSN) << "it sends no requests";
}

TEST(CheckModify, NeedsEveryRequiredAttributeAndTakesOnlyKnownOnes) {
    for (const ibv_qp_type type : kTypes)
        for (const ibv_qp_state from : kStates)
            for (const ibv_qp_state to : kStates) {
                AttributeMasks masks;
                if (!find_transition(type, from, to, masks)) {
                    EXPECT_EQ(check_modify(type, from, to, IBV_QP_STATE), EINVAL);
                    continue;
                }
                const int least = IBV_QP_STATE | masks.required;
                EXPECT_EQ(check_modify(type, from, to, least), 0);
                EXPECT_EQ(check_modify(type, from, to, least | masks.optional), 0);
                EXPECT_EQ(masks.required & masks.optional, 0);
                for (int bit = 1; bit < kAttributeBits; ++bit) {
                    const int one = 1 << bit;
                    const bool required = (masks.required & one) != 0;
                    const bool known = required || (masks.optional & one) != 0;
                    EXPECT_EQ(check_modify(type, from, to, least & ~one), required ? EINVAL : 0);
                    EXPECT_EQ(check_modify(type, from, to, least | one), known ? 0 : EINVAL)
                        << "type " << type << ", " << from << " to " << to << ", bit " << bit;
                }
            }
}

// The masks that the stock tools pass, read off ibv_rc_pingpong and ib_write_lat.
TEST(CheckModify, TakesTheMasksOfTheStockTools) {
    EXPECT_EQ(check_modify(IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, 0x129181), 0);
    EXPECT_EQ(check_modify(IBV_QPT_RC, IBV_QPS_RTR, IBV_QPS_RTS, 0x12e01), 0);
    constexpr int kInit = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    EXPECT_EQ(check_modify(IBV_QPT_UC, IBV_QPS_RESET, IBV_QPS_INIT, kInit | IBV_QP_ACCESS_FLAGS),
              0);
    EXPECT_EQ(check_modify(IBV_QPT_UD, IBV_QPS_RESET, IBV_QPS_INIT, kInit | IBV_QP_QKEY), 0);
    EXPECT_EQ(check_modify(IBV_QPT_UD, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_STATE), 0);
    EXPECT_EQ(check_modify(IBV_QPT_UD, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
}

TEST(CheckModify, ResetAndErrorTakeTheStateAloneFromAnywhere) {
    for (const ibv_qp_type type : kTypes)
        for (const ibv_qp_state from : kStates)
            for (const ibv_qp_state to : {IBV_QPS_RESET, IBV_QPS_ERR}) {
                EXPECT_EQ(check_modify(type, from, to, IBV_QP_STATE), 0);
                EXPECT_EQ(check_modify(type, from, to, IBV_QP_STATE | IBV_QP_PORT), EINVAL);
            }
}

TEST(CheckModify, WithoutTheStateBitTheStateStays) {
    EXPECT_EQ(check_modify(IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_RTS, IBV_QP_MIN_RNR_TIMER), 0);
    EXPECT_EQ(check_modify(IBV_QPT_UD, IBV_QPS_RTS, IBV_QPS_RTS, IBV_QP_QKEY), 0);
    EXPECT_EQ(check_modify(IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_SQD, 0), EINVAL);
    EXPECT_EQ(check_modify(IBV_QPT_RC, IBV_QPS_RTR, IBV_QPS_RTR, IBV_QP_MIN_RNR_TIMER), EINVAL);
}

RC_GTEST_PROP(CheckModify, RandomWalksStayInTheDiagram, ()) {
    const auto type = *rc::gen::elementOf(kTypes);
    ibv_qp_state state = IBV_QPS_RESET;
    const auto steps = *rc::gen::inRange(1, 64);
    for (int step = 0; step < steps; ++step) {
        const auto next = *rc::gen::elementOf(kStates);
        AttributeMasks masks;
        const bool legal = find_transition(type, state, next, masks);
        const int noise = *rc::gen::weightedOneOf<int>(
            {{3, rc::gen::just(0)}, {1, rc::gen::inRange(0, 1 << kAttributeBits)}});
        const int mask = (IBV_QP_STATE | masks.required) ^ noise;
        if (check_modify(type, state, next, mask) != 0) continue;
        RC_ASSERT(legal);
        RC_ASSERT(diagram_allows(type, state, next));
        RC_ASSERT((mask & masks.required) == masks.required);
        state = next;
        // No modify call leads to SQE; a connected QP has passed through its required attributes.
        RC_ASSERT(state != IBV_QPS_SQE);
    }
}

RC_GTEST_PROP(CheckModify, EveryStateLeadsBackToSending, ()) {
    const auto type = *rc::gen::elementOf(kTypes);
    const auto start = *rc::gen::elementOf(kStates);
    ibv_qp_state state = start;
    for (const ibv_qp_state next : {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
        AttributeMasks masks;
        RC_ASSERT(find_transition(type, state, next, masks));
        RC_ASSERT(check_modify(type, state, next, IBV_QP_STATE | masks.required) == 0);
        state = next;
    }
}

ibv_qp_attr good_attributes() {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTS;
    attr.path_mtu = IBV_MTU_4096;
    attr.port_num = 1;
    attr.ah_attr.port_num = 1;
    attr.alt_ah_attr.port_num = 1;
    attr.alt_port_num = 1;
    return attr;
}

constexpr int kEverything = (1 << kAttributeBits) - 1;

struct Spoiler {
    const char* what;
    int bit;
    void (*spoil)(ibv_qp_attr& attr);
};

const std::vector<Spoiler> kSpoilers = {
    {"state", IBV_QP_STATE, [](auto& a) { a.qp_state = IBV_QPS_UNKNOWN; }},
    {"current state", IBV_QP_CUR_STATE, [](auto& a) { a.cur_qp_state = IBV_QPS_UNKNOWN; }},
    {"access", IBV_QP_ACCESS_FLAGS, [](auto& a) { a.qp_access_flags = 1U << 30U; }},
    {"migration", IBV_QP_PATH_MIG_STATE,
     [](auto& a) { a.path_mig_state = static_cast<ibv_mig_state>(3); }},
    {"port 0", IBV_QP_PORT, [](auto& a) { a.port_num = 0; }},
    {"port 2", IBV_QP_PORT, [](auto& a) { a.port_num = 2; }},
    {"pkey", IBV_QP_PKEY_INDEX, [](auto& a) { a.pkey_index = 1; }},
    {"mtu 0", IBV_QP_PATH_MTU, [](auto& a) { a.path_mtu = static_cast<ibv_mtu>(0); }},
    {"mtu 6", IBV_QP_PATH_MTU, [](auto& a) { a.path_mtu = static_cast<ibv_mtu>(6); }},
    {"dest qpn", IBV_QP_DEST_QPN, [](auto& a) { a.dest_qp_num = 1U << 24U; }},
    {"rq psn", IBV_QP_RQ_PSN, [](auto& a) { a.rq_psn = 1U << 24U; }},
    {"sq psn", IBV_QP_SQ_PSN, [](auto& a) { a.sq_psn = 1U << 24U; }},
    {"timeout", IBV_QP_TIMEOUT, [](auto& a) { a.timeout = 32; }},
    {"rnr timer", IBV_QP_MIN_RNR_TIMER, [](auto& a) { a.min_rnr_timer = 32; }},
    {"retry", IBV_QP_RETRY_CNT, [](auto& a) { a.retry_cnt = 8; }},
    {"rnr retry", IBV_QP_RNR_RETRY, [](auto& a) { a.rnr_retry = 8; }},
    {"initiator", IBV_QP_MAX_QP_RD_ATOMIC, [](auto& a) { a.max_rd_atomic = 17; }},
    {"responder", IBV_QP_MAX_DEST_RD_ATOMIC, [](auto& a) { a.max_dest_rd_atomic = 17; }},
    {"av port", IBV_QP_AV, [](auto& a) { a.ah_attr.port_num = 9; }},
    {"av sl", IBV_QP_AV, [](auto& a) { a.ah_attr.sl = 16; }},
    {"alt port", IBV_QP_ALT_PATH, [](auto& a) { a.alt_port_num = 0; }},
    {"alt pkey", IBV_QP_ALT_PATH, [](auto& a) { a.alt_pkey_index = 1; }},
    {"alt timeout", IBV_QP_ALT_PATH, [](auto& a) { a.alt_timeout = 32; }},
    {"alt av", IBV_QP_ALT_PATH, [](auto& a) { a.alt_ah_attr.port_num = 0; }},
};

TEST(CheckValues, EachFieldIsCheckedIfAndOnlyIfItsBitIsSet) {
    const AttributeLimits limits;
    EXPECT_EQ(check_values(good_attributes(), kEverything, limits), 0);
    for (const Spoiler& spoiler : kSpoilers) {
        ibv_qp_attr attr = good_attributes();
        spoiler.spoil(attr);
        EXPECT_EQ(check_values(attr, spoiler.bit, limits), EINVAL) << spoiler.what;
        EXPECT_EQ(check_values(attr, kEverything & ~spoiler.bit, limits), 0) << spoiler.what;
    }
}

TEST(CheckValues, TheLargestLegalValuesPass) {
    ibv_qp_attr attr = good_attributes();
    attr.dest_qp_num = attr.rq_psn = attr.sq_psn = 0xffffff;
    attr.timeout = attr.min_rnr_timer = attr.alt_timeout = 31;
    attr.retry_cnt = attr.rnr_retry = 7;
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 16;
    attr.qp_access_flags =
        IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_RELAXED_ORDERING;
    EXPECT_EQ(check_values(attr, kEverything, AttributeLimits{}), 0);
}

TEST(CheckValues, LimitsComeFromThePort) {
    AttributeLimits limits;
    limits.path_mtu_max = IBV_MTU_2048;
    ibv_qp_attr attr = good_attributes();
    EXPECT_EQ(check_values(attr, IBV_QP_PATH_MTU, limits), EINVAL);
    attr.path_mtu = IBV_MTU_2048;
    EXPECT_EQ(check_values(attr, IBV_QP_PATH_MTU, limits), 0);
}

TEST(CheckAddress, TheGlobalRouteCountsOnlyIfGlobal) {
    const AttributeLimits limits;
    ibv_ah_attr address{};
    address.port_num = 1;
    address.grh.sgid_index = 1;
    address.grh.flow_label = 1U << 20U;
    EXPECT_EQ(check_address(address, limits), 0);
    address.is_global = 1;
    EXPECT_EQ(check_address(address, limits), EINVAL);
    address.grh.sgid_index = 0;
    EXPECT_EQ(check_address(address, limits), EINVAL);
    address.grh.flow_label = 0xfffff;
    EXPECT_EQ(check_address(address, limits), 0);
}

}  // namespace
}  // namespace weir::transport

// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>

#include <algorithm>

#include <infiniband/sa.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>

#include "private_abi.h"
#include "verbs_fixture.h"

namespace weir::ibverbs {
namespace {

using AddressTest = Verbs;

TEST_F(AddressTest, AHandleKeepsItsDomain) {
    ibv_ah_attr attr{};
    attr.dlid = 9;
    attr.port_num = 1;
    ibv_ah* ah = ibv_create_ah(pd, &attr);
    ASSERT_NE(ah, nullptr);
    EXPECT_EQ(ah->pd, pd);
    EXPECT_EQ(reinterpret_cast<hca::AddressHandle*>(ah)->dlid, 9U);
    EXPECT_EQ(ibv_dealloc_pd(pd), EBUSY);
    EXPECT_EQ(ibv_destroy_ah(ah), 0);
    EXPECT_EQ(ibv_destroy_ah(ah), EINVAL);
    attr.dlid = 0;
    EXPECT_EQ(ibv_create_ah(pd, &attr), nullptr);
    EXPECT_EQ(errno, EINVAL);
}

TEST_F(AddressTest, TheWayBackIsReadOffACompletion) {
    ibv_wc wc{};
    wc.slid = 5;
    wc.sl = 3;
    wc.dlid_path_bits = 1;
    ibv_ah_attr attr{};
    EXPECT_EQ(ibv_init_ah_from_wc(context, 1, &wc, nullptr, &attr), 0);
    EXPECT_EQ(attr.dlid, 5);
    EXPECT_EQ(attr.sl, 3);
    EXPECT_EQ(attr.src_path_bits, 1);
    EXPECT_EQ(attr.is_global, 0);
    EXPECT_EQ(attr.port_num, 1);

    ibv_grh grh{};
    grh.version_tclass_flow = htonl((6U << 28U) | (0xabU << 20U) | 0x12345U);
    grh.hop_limit = 64;
    grh.sgid.raw[15] = 1;
    grh.dgid = fake::gid_of(0);
    wc.wc_flags = IBV_WC_GRH;
    EXPECT_EQ(ibv_init_ah_from_wc(context, 1, &wc, &grh, &attr), 0);
    EXPECT_EQ(attr.is_global, 1);
    EXPECT_EQ(attr.grh.dgid.raw[15], 1);
    EXPECT_EQ(attr.grh.sgid_index, 0);
    EXPECT_EQ(attr.grh.flow_label, 0x12345U);
    EXPECT_EQ(attr.grh.traffic_class, 0xab);
    EXPECT_EQ(attr.grh.hop_limit, 64);
    ibv_ah* ah = ibv_create_ah_from_wc(pd, &wc, &grh, 1);
    ASSERT_NE(ah, nullptr);
    EXPECT_EQ(ibv_destroy_ah(ah), 0);

    grh.dgid.raw[15] ^= 1;
    EXPECT_EQ(ibv_init_ah_from_wc(context, 1, &wc, &grh, &attr), -1) << "it was not for us";
    EXPECT_EQ(ibv_create_ah_from_wc(pd, &wc, &grh, 1), nullptr);
    EXPECT_EQ(ibv_init_ah_from_wc(context, 1, &wc, nullptr, &attr), -1);
}

TEST_F(AddressTest, ALinkLocalGidHoldsAMacAddress) {
    ibv_ah_attr attr{};
    const std::uint8_t gid[16] = {0xfe, 0x80, 0, 0,    0,    0,    0,    0,
                                  2,    0x11, 3, 0xff, 0xfe, 0x44, 0x55, 0x66};
    std::copy(gid, gid + 16, attr.grh.dgid.raw);
    std::uint8_t mac[ETHERNET_LL_SIZE];
    std::uint16_t vlan = 0;
    EXPECT_EQ(ibv_resolve_eth_l2_from_gid(context, &attr, mac, &vlan), 0);
    EXPECT_EQ(mac[0], 0);
    EXPECT_EQ(mac[1], 0x11);
    EXPECT_EQ(mac[3], 0x44);
    EXPECT_EQ(mac[5], 0x66);
    EXPECT_EQ(vlan, 0xffff);
    attr.grh.dgid.raw[11] = 0;
    EXPECT_EQ(ibv_resolve_eth_l2_from_gid(context, &attr, mac, &vlan), -1);
}

TEST(KernelStructs, QueuePairAttributesKeepTheirMeaning) {
    ib_uverbs_qp_attr from{};
    from.qp_state = IBV_QPS_RTR;
    from.path_mtu = IBV_MTU_2048;
    from.dest_qp_num = 0x123;
    from.max_inline_data = 64;
    from.ah_attr.dlid = 17;
    from.ah_attr.grh.dgid[15] = 9;
    from.alt_ah_attr.sl = 2;
    from.timeout = 14;
    ibv_qp_attr to;
    ibv_copy_qp_attr_from_kern(&to, &from);
    EXPECT_EQ(to.qp_state, IBV_QPS_RTR);
    EXPECT_EQ(to.path_mtu, IBV_MTU_2048);
    EXPECT_EQ(to.dest_qp_num, 0x123U);
    EXPECT_EQ(to.cap.max_inline_data, 64U);
    EXPECT_EQ(to.ah_attr.dlid, 17);
    EXPECT_EQ(to.ah_attr.grh.dgid.raw[15], 9);
    EXPECT_EQ(to.alt_ah_attr.sl, 2);
    EXPECT_EQ(to.timeout, 14);
}

TEST(KernelStructs, PathRecordsSurviveTheRoundTrip) {
    ibv_sa_path_rec path{};
    path.dgid.raw[0] = 0xfe;
    path.dlid = 3;
    path.mtu = IBV_MTU_4096;
    path.packet_life_time = 18;
    path.preference = 1;
    ib_user_path_rec kernel;
    ibv_copy_path_rec_to_kern(&kernel, &path);
    ibv_sa_path_rec back;
    ibv_copy_path_rec_from_kern(&back, &kernel);
    EXPECT_EQ(back.dgid.raw[0], 0xfe);
    EXPECT_EQ(back.dlid, 3);
    EXPECT_EQ(back.mtu, IBV_MTU_4096);
    EXPECT_EQ(back.packet_life_time, 18);
    EXPECT_EQ(back.preference, 1);
}

}  // namespace
}  // namespace weir::ibverbs

// SPDX-License-Identifier: Apache-2.0
#include <endian.h>

#include <cstring>
#include <string>

#include "private_abi.h"
#include "verbs_fixture.h"

namespace weir::ibverbs {
namespace {

TEST(DeviceList, IsEmptyNotAnErrorWithoutAFabric) {
    fake::reset();
    for (const int error : {ENOENT, ENXIO}) {
        fake::fake().list_error = error;
        int count = -1;
        ibv_device** list = ibv_get_device_list(&count);
        ASSERT_NE(list, nullptr);
        EXPECT_EQ(count, 0);
        EXPECT_EQ(list[0], nullptr);
        ibv_free_device_list(list);
    }
    fake::fake().list_error = EACCES;
    EXPECT_EQ(ibv_get_device_list(nullptr), nullptr);
    EXPECT_EQ(errno, EACCES);
}

TEST(DeviceList, DevicesKeepTheirAddressAndAreWhatTheFabricSays) {
    fake::reset();
    int count = 0;
    ibv_device** first = ibv_get_device_list(&count);
    ASSERT_EQ(count, 1);
    ibv_device* device = first[0];
    EXPECT_EQ(first[1], nullptr);
    ibv_free_device_list(first);
    EXPECT_STREQ(ibv_get_device_name(device), "weir0");
    EXPECT_EQ(be64toh(ibv_get_device_guid(device)), 0x0002c90300001234U);
    EXPECT_EQ(device->node_type, IBV_NODE_CA);
    EXPECT_EQ(device->transport_type, IBV_TRANSPORT_IB);
    EXPECT_GE(ibv_get_device_index(device), 0);
    ibv_device** second = ibv_get_device_list(nullptr);
    EXPECT_EQ(second[0], device);
    ibv_free_device_list(second);
    // libmlx5 and libefa compare the word behind the struct with marks of their own.
    EXPECT_EQ(*reinterpret_cast<void**>(device + 1), nullptr);
}

TEST(DeviceList, AForeignDeviceCannotBeOpened) {
    ibv_device foreign{};
    EXPECT_EQ(ibv_open_device(&foreign), nullptr);
    EXPECT_EQ(errno, ENODEV);
    EXPECT_EQ(ibv_open_device(nullptr), nullptr);
    EXPECT_EQ(ibv_get_device_name(&foreign), nullptr);
}

using ContextTest = Verbs;

TEST_F(ContextTest, OpeningPassesTheEnginesErrorOn) {
    fake::fake().next_error = EBUSY;
    EXPECT_EQ(ibv_open_device(device), nullptr);
    EXPECT_EQ(errno, EBUSY);
}

TEST_F(ContextTest, LooksExtendedToTheInlineFunctions) {
    ASSERT_NE(verbs_get_ctx(context), nullptr);
    EXPECT_NE(verbs_get_ctx_op(context, query_port), nullptr);
    EXPECT_NE(verbs_get_ctx_op(context, create_qp_ex), nullptr);
    EXPECT_EQ(verbs_get_ctx_op(context, create_wq), nullptr);
}

TEST_F(ContextTest, TheDeviceIsAskedInBothSizes) {
    ibv_device_attr attr{};
    EXPECT_EQ(ibv_query_device(context, &attr), 0);
    EXPECT_EQ(attr.max_qp, 77);
    ibv_device_attr_ex extended{};
    EXPECT_EQ(ibv_query_device_ex(context, nullptr, &extended), 0);
    EXPECT_EQ(extended.orig_attr.max_qp, 77);
    EXPECT_EQ(extended.phys_port_cnt_ex, 1U);
}

TEST_F(ContextTest, ThePortIsAskedInBothSizes) {
    ibv_port_attr attr{};
    EXPECT_EQ(ibv_query_port(context, 1, &attr), 0);
    EXPECT_EQ(attr.lid, 7);
    EXPECT_EQ(attr.port_cap_flags2, 0x1234);
    EXPECT_EQ(ibv_query_port(context, 2, &attr), EINVAL);
    std::memset(&attr, 0xff, sizeof attr);
#pragma push_macro("ibv_query_port")
#undef ibv_query_port
    EXPECT_EQ(ibv_query_port(context, 1, reinterpret_cast<_compat_ibv_port_attr*>(&attr)), 0);
#pragma pop_macro("ibv_query_port")
    EXPECT_EQ(attr.flags, 0x5a);
    EXPECT_EQ(attr.port_cap_flags2, 0xffff) << "the older struct ends before it";
}

TEST_F(ContextTest, GidsByAllFourWays) {
    ibv_gid gid{};
    EXPECT_EQ(ibv_query_gid(context, 1, 0, &gid), 0);
    EXPECT_EQ(be64toh(gid.global.interface_id), 0x0002c90300001234U);
    EXPECT_EQ(ibv_query_gid(context, 1, 2, &gid), -1);
    ibv_gid_entry entry{};
    EXPECT_EQ(ibv_query_gid_ex(context, 1, 0, &entry, 0), 0);
    EXPECT_EQ(entry.gid_type, static_cast<std::uint32_t>(IBV_GID_TYPE_IB));
    EXPECT_EQ(entry.port_num, 1U);
    EXPECT_EQ(ibv_query_gid_ex(context, 1, 1, &entry, 0), ENODATA);
    EXPECT_EQ(ibv_query_gid_ex(context, 1, 0, &entry, 1), EINVAL);
    ibv_gid_entry entries[4];
    EXPECT_EQ(ibv_query_gid_table(context, entries, 4, 0), 1);
    EXPECT_EQ(ibv_query_gid_table(context, entries, 0, 0), -EINVAL) << "no room";
    EXPECT_EQ(ibv_query_gid_table(nullptr, entries, 4, 0), -EINVAL);
    int type = -1;
    EXPECT_EQ(ibv_query_gid_type(context, 1, 0, &type), 0);
    EXPECT_EQ(type, 0);
}

TEST_F(ContextTest, PkeysAreFoundByValue) {
    __be16 pkey = 0;
    EXPECT_EQ(ibv_query_pkey(context, 1, 1, &pkey), 0);
    EXPECT_EQ(be16toh(pkey), 0x8001);
    EXPECT_EQ(ibv_get_pkey_index(context, 1, pkey), 1);
    EXPECT_EQ(ibv_get_pkey_index(context, 1, htobe16(0x1234)), -1);
    EXPECT_EQ(ibv_query_pkey(context, 1, 9, &pkey), -1);
}

TEST_F(ContextTest, SysfsFilesOfTheDeviceAreAnsweredAndOthersRead) {
    char text[64];
    EXPECT_EQ(ibv_read_sysfs_file(device->ibdev_path, "board_id", text, sizeof text), 4);
    EXPECT_STREQ(text, "weir");
    EXPECT_EQ(ibv_read_sysfs_file(device->ibdev_path, "node_guid", text, sizeof text), 19);
    EXPECT_STREQ(text, "0002:c903:0000:1234");
    EXPECT_EQ(ibv_read_sysfs_file(device->ibdev_path, "node_guid", text, 19), -1);
    EXPECT_EQ(ibv_read_sysfs_file(device->ibdev_path, "ports/1/gids/0", text, sizeof text), 39);
    EXPECT_STREQ(text, "fe80:0000:0000:0000:1122:3344:5566:7788");
    EXPECT_EQ(ibv_read_sysfs_file(device->ibdev_path, "ports/2/lid", text, sizeof text), -1);
    EXPECT_EQ(ibv_read_sysfs_file(device->dev_path, "ibdev", text, sizeof text), 5);
    EXPECT_EQ(ibv_read_sysfs_file(device->ibdev_path, "no such file", text, sizeof text), -1);
    EXPECT_GT(ibv_read_sysfs_file("/proc/self", "comm", text, sizeof text), 0);
    EXPECT_EQ(std::string(text).find('\n'), std::string::npos);
}

TEST_F(ContextTest, WhatIsNotThereSaysSo) {
    EXPECT_EQ(ibv_import_device(0), nullptr);
    EXPECT_EQ(ibv_import_pd(context, 1), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
}

}  // namespace
}  // namespace weir::ibverbs

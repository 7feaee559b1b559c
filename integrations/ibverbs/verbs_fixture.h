// SPDX-License-Identifier: Apache-2.0
// A program's usual objects over the fake engine, and the check that everything was given back.
#pragma once

#include <gtest/gtest.h>

#include <cerrno>

#include "fake_hca.h"

namespace weir::ibverbs {

class Verbs : public ::testing::Test {
  protected:
    void SetUp() override {
        fake::reset();
        ibv_device** list = ibv_get_device_list(nullptr);
        ASSERT_NE(list, nullptr);
        device = list[0];
        ibv_free_device_list(list);
        context = ibv_open_device(device);
        ASSERT_NE(context, nullptr);
        pd = ibv_alloc_pd(context);
        ASSERT_NE(pd, nullptr);
        cq = ibv_create_cq(context, 15, this, nullptr, 0);
        ASSERT_NE(cq, nullptr);
    }

    void TearDown() override {
        EXPECT_EQ(ibv_destroy_cq(cq), 0);
        EXPECT_EQ(ibv_dealloc_pd(pd), 0);
        EXPECT_EQ(ibv_close_device(context), 0);
        EXPECT_EQ(fake::fake().live_count, 0);
    }

    ibv_qp* make_qp(ibv_qp_type type = IBV_QPT_RC) {
        ibv_qp_init_attr init{};
        init.send_cq = init.recv_cq = cq;
        init.qp_type = type;
        init.qp_context = this;
        return ibv_create_qp(pd, &init);
    }

    ibv_device* device = nullptr;
    ibv_context* context = nullptr;
    ibv_pd* pd = nullptr;
    ibv_cq* cq = nullptr;
};

}  // namespace weir::ibverbs

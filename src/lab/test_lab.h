// SPDX-License-Identifier: Apache-2.0
// For tests: a runtime folder of the test's own, and a fabric that is up in it. Not part of the
// product.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "lab/lifecycle.h"
#include "topology/builders.h"

namespace weir::lab {

inline FabricSource pair_source() {
    FabricSource source;
    source.text = "a pair";
    auto fabric = topology::build_single_switch({.hosts = 2, .hcas = 1, .ports = 4});
    EXPECT_TRUE(fabric);
    source.fabric = *std::move(fabric);
    return source;
}

/// Everything runs as the test's own user; the daemon is a real one, in its own process.
class LabTest : public ::testing::Test {
  protected:
    void SetUp() override {
        std::string form = "/tmp/weir-test-XXXXXX";
        ASSERT_NE(::mkdtemp(form.data()), nullptr);
        folder_ = form;
        ::setenv("WEIR_RUNTIME_DIR", folder_.c_str(), 1);
    }
    void TearDown() override {
        EXPECT_TRUE(take_down(kName, 5));
        std::filesystem::remove_all(folder_);
        ::unsetenv("WEIR_RUNTIME_DIR");
    }
    static Result<UpOutcome> up(FabricSource source = pair_source()) {
        return bring_up(
            {kName, std::move(source), false}, [](void*) {}, nullptr);
    }

    static constexpr const char* kName = "test";
    std::string folder_;
};

}  // namespace weir::lab

// SPDX-License-Identifier: Apache-2.0
// Goal: names and rates are those of the installed libibverbs. Method: it is loaded into a
// namespace of its own, and both are asked for every value and some beyond.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include <infiniband/verbs.h>

namespace {

void* stock_library() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return nullptr;  // Sanitizers do not follow a second namespace.
#else
    static void* const library = dlmopen(LM_ID_NEWLM, "libibverbs.so.1", RTLD_NOW);
    return library;
#endif
}

template <class Function>
Function* stock(const char* name) {
    return reinterpret_cast<Function*>(dlsym(stock_library(), name));
}

template <class Enum>
void expect_same_names(const char* name, const char* (*ours)(Enum)) {
    auto* theirs = stock<const char*(Enum)>(name);
    ASSERT_NE(theirs, nullptr);
    for (int value = -3; value < 40; ++value)
        EXPECT_STREQ(ours(static_cast<Enum>(value)), theirs(static_cast<Enum>(value)))
            << name << " of " << value;
}

TEST(Text, NamesAreThoseOfTheInstalledLibrary) {
    if (stock_library() == nullptr) GTEST_SKIP() << "no libibverbs.so.1 to compare with";
    expect_same_names("ibv_wc_status_str", ibv_wc_status_str);
    expect_same_names("ibv_event_type_str", ibv_event_type_str);
    expect_same_names("ibv_port_state_str", ibv_port_state_str);
    expect_same_names("ibv_node_type_str", ibv_node_type_str);
}

TEST(Text, RatesAreThoseOfTheInstalledLibrary) {
    if (stock_library() == nullptr) GTEST_SKIP() << "no libibverbs.so.1 to compare with";
    auto* multiple = stock<int(ibv_rate)>("ibv_rate_to_mult");
    auto* mbps = stock<int(ibv_rate)>("ibv_rate_to_mbps");
    auto* of_multiple = stock<ibv_rate(int)>("mult_to_ibv_rate");
    auto* of_mbps = stock<ibv_rate(int)>("mbps_to_ibv_rate");
    for (int value = -3; value < 40; ++value) {
        const auto rate = static_cast<ibv_rate>(value);
        EXPECT_EQ(ibv_rate_to_mult(rate), multiple(rate)) << value;
        EXPECT_EQ(ibv_rate_to_mbps(rate), mbps(rate)) << value;
        EXPECT_EQ(mbps_to_ibv_rate(mbps(rate)), of_mbps(mbps(rate))) << value;
    }
    for (int value = -3; value < 1000; ++value)
        EXPECT_EQ(mult_to_ibv_rate(value), of_multiple(value)) << value;
}

TEST(Text, UnknownValuesHaveAnAnswer) {
    volatile int beyond = 99;  // Not a constant, as it would come from another program.
    EXPECT_STREQ(ibv_wc_status_str(static_cast<ibv_wc_status>(beyond)), "unknown");
    EXPECT_STREQ(ibv_wc_status_str(IBV_WC_RETRY_EXC_ERR), "transport retry counter exceeded");
    EXPECT_EQ(ibv_rate_to_mbps(static_cast<ibv_rate>(beyond)), -1);
    EXPECT_EQ(mbps_to_ibv_rate(1), IBV_RATE_MAX);
}

}  // namespace

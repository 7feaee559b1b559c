// SPDX-License-Identifier: Apache-2.0
#include "lab/host_tree.h"

#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <thread>

#include "lab/test_lab.h"
#include "runtime/real/attach_client.h"

namespace weir::lab {
namespace {

class HostTree : public LabTest {
  protected:
    void SetUp() override {
        LabTest::SetUp();
        ASSERT_TRUE(up());
        auto connected = runtime::AttachClient::connect(kName);
        ASSERT_TRUE(connected);
        client_ = std::make_unique<runtime::AttachClient>(*std::move(connected));
        ASSERT_TRUE(client_->observe());
    }
    Result<std::string> make(std::string_view host) {
        return make_host_tree(folder_ + "/" + kName, client_->arena(), host, "1.2.3");
    }
    static std::string line(const std::string& path) {
        std::ifstream file(path);
        std::string text;
        return std::getline(file, text) ? text : "(none)";
    }

    std::unique_ptr<runtime::AttachClient> client_;
};

TEST_F(HostTree, says_what_the_fabric_says) {
    const auto root = make("h0");
    ASSERT_TRUE(root);
    const std::string device = *root + "/sys/class/infiniband/weir0/";
    EXPECT_EQ(line(device + "fw_ver"), "1.2.3");
    EXPECT_EQ(line(device + "ports/1/state"), "4: ACTIVE");
    EXPECT_EQ(line(device + "device/vendor"), "0x5745");
    EXPECT_EQ(line(device + "device/infiniband/weir0/node_type"), "1: CA");
    EXPECT_EQ(line(*root + "/sys/class/infiniband_verbs/uverbs0/ibdev"), "weir0");
    EXPECT_EQ(line(*root + "/sys/class/infiniband_verbs/uverbs0/device/class"), "0x020700");
    EXPECT_EQ(line(*root + "/sys/bus/pci/devices/5745:00:00.0/numa_node"), "-1");
    EXPECT_EQ(line(*root + "/sys/class/pci_bus/5745:00/../../5745:00:00.0/device"), "0x0001");
    struct stat node {};
    ASSERT_EQ(::stat((*root + "/dev/infiniband/uverbs0").c_str(), &node), 0);
    EXPECT_TRUE(S_ISCHR(node.st_mode));
}

TEST_F(HostTree, follows_a_link) {
    const auto root = make("h1");
    ASSERT_TRUE(root);
    const std::string port = *root + "/sys/class/infiniband/weir0/ports/1/";
    ASSERT_TRUE(client_->set_link("h1:1", false));
    EXPECT_EQ(line(port + "state"), "1: DOWN");
    EXPECT_EQ(line(port + "phys_state"), "3: Disabled");
    ASSERT_TRUE(client_->set_link("h1:1", true));
    EXPECT_EQ(line(port + "state"), "4: ACTIVE");
}

TEST_F(HostTree, many_at_once_make_one) {
    std::vector<std::thread> makers;
    std::atomic<int> made{0};
    for (int i = 0; i < 8; ++i) {
        makers.emplace_back([&] { made += make("h0").has_value() ? 1 : 0; });
    }
    for (auto& maker : makers) {
        maker.join();
    }
    EXPECT_EQ(made, 8);
    int entries = 0;
    for ([[maybe_unused]] const auto& entry :
         std::filesystem::directory_iterator(folder_ + "/" + kName + "/sys")) {
        ++entries;
    }
    EXPECT_EQ(entries, 1);
}

TEST_F(HostTree, goes_with_the_fabric) {
    ASSERT_TRUE(make("h0"));
    ASSERT_TRUE(take_down(kName, 5));
    EXPECT_FALSE(std::filesystem::exists(folder_ + "/" + kName));
}

TEST_F(HostTree, a_host_of_any_name_stays_within) {
    const auto root = make("../x");
    ASSERT_TRUE(root);
    EXPECT_EQ(*root, folder_ + "/" + kName + "/sys/%2e%2e%2fx");
}

}  // namespace
}  // namespace weir::lab

// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "runtime/real/attach_client.h"
#include "runtime/real/record_socket.h"
#include "runtime/real/runtime_folder.h"
#include "runtime/real/shared_memory.h"

namespace weir::runtime {
namespace {

/// A runtime folder of the test's own, removed afterwards.
class RuntimeFolder : public ::testing::Test {
  protected:
    void SetUp() override {
        std::string form = "/tmp/weir-test-XXXXXX";
        ASSERT_NE(::mkdtemp(form.data()), nullptr);
        base_ = form;
        use(base_);
    }
    void TearDown() override {
        std::filesystem::remove_all(base_);
        ::unsetenv("WEIR_RUNTIME_DIR");
    }
    static void use(const std::string& path) { ::setenv("WEIR_RUNTIME_DIR", path.c_str(), 1); }
    std::string base_;
};

struct Pair {
    UniqueFd a;
    UniqueFd b;
};

Pair socket_pair() {
    std::array<int, 2> fds{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds.data()), 0);
    return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

std::span<const std::byte> bytes_of(std::string_view text) {
    return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(UniqueFd, ClosesOnceAndMovesOwnership) {
    UniqueFd first(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const int number = first.get();
    UniqueFd second(std::move(first));
    EXPECT_FALSE(first.valid());  // NOLINT(bugprone-use-after-move): that is the claim.
    EXPECT_EQ(second.get(), number);
    second.reset();
    EXPECT_EQ(::fcntl(number, F_GETFD), -1);
}

TEST(RecordSocket, CarriesARecordAndItsDescriptors) {
    const Pair pair = socket_pair();
    const UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const int number = file.get();
    ASSERT_EQ(send_record(pair.a.get(), bytes_of("hello"), std::span(&number, 1), Waiting::kNever),
              0);
    std::array<std::byte, 16> buffer{};
    Record record;
    ASSERT_EQ(receive_record(pair.b.get(), buffer, record, Waiting::kNever), 0);
    EXPECT_EQ(record.bytes, 5U);
    EXPECT_FALSE(record.truncated);
    ASSERT_EQ(record.fd_count, 1U);
    EXPECT_EQ(::fcntl(record.fds[0].get(), F_GETFD), FD_CLOEXEC);
}

TEST(RecordSocket, MarksWhatIsTooLongOrBringsTooManyDescriptors) {
    const Pair pair = socket_pair();
    std::array<std::byte, 4> buffer{};
    Record record;
    ASSERT_EQ(send_record(pair.a.get(), bytes_of("longer"), {}, Waiting::kNever), 0);
    ASSERT_EQ(receive_record(pair.b.get(), buffer, record, Waiting::kNever), 0);
    EXPECT_TRUE(record.truncated);

    // Sent by hand: our own sender refuses so many.
    constexpr std::size_t kMany = kRecordFdLimit + 6;
    std::array<int, kMany> fds{};
    fds.fill(pair.a.get());
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(fds))> control{};
    char letter = 'x';
    iovec part{&letter, 1};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(fds));
    std::memcpy(CMSG_DATA(head), fds.data(), sizeof(fds));
    ASSERT_EQ(::sendmsg(pair.a.get(), &message, 0), 1);
    ASSERT_EQ(receive_record(pair.b.get(), buffer, record, Waiting::kNever), 0);
    EXPECT_TRUE(record.truncated);
    EXPECT_LE(record.fd_count, kRecordFdLimit);
}

TEST(RecordSocket, TellsEmptyFromClosed) {
    Pair pair = socket_pair();
    std::array<std::byte, 4> buffer{};
    Record record;
    EXPECT_EQ(receive_record(pair.b.get(), buffer, record, Waiting::kNever), EAGAIN);
    pair.a.reset();
    EXPECT_EQ(receive_record(pair.b.get(), buffer, record, Waiting::kNever), 0);
    EXPECT_EQ(record.bytes, 0U);
    EXPECT_EQ(send_record(pair.b.get(), bytes_of("x"), {}, Waiting::kNever), EPIPE);
}

TEST(SharedMemory, IsSparseSealedAndVisible) {
    constexpr std::uint64_t kBytes = 1ULL << 30U;
    const auto fd = create_memory("test", kBytes);
    ASSERT_TRUE(fd) << fd.error().context;
    EXPECT_TRUE(is_sealed_memory(fd->get(), kBytes));
    EXPECT_FALSE(is_sealed_memory(fd->get(), kBytes + 1));
    EXPECT_NE(::ftruncate(fd->get(), 4096), 0);
    const auto mapping = Mapping::map(fd->get(), kBytes, MapAccess::kReadWrite);
    ASSERT_TRUE(mapping);
    static_cast<char*>(mapping->data())[123 * 4096] = 1;
    std::vector<std::uint64_t> seen;
    visit_committed(fd->get(), 0, kBytes, [&](std::uint64_t first, std::uint64_t end) {
        seen.push_back(first);
        seen.push_back(end);
        return true;
    });
    EXPECT_EQ(seen, (std::vector<std::uint64_t>{123 * 4096, 124 * 4096}));
}

TEST(SharedMemory, TooMuchIsAnErrorAndNotDeath) {
    const auto fd = create_memory("test", 1ULL << 50U);
    ASSERT_TRUE(fd);
    const auto committed = commit_memory(fd->get(), 0, 1ULL << 50U);
    ASSERT_FALSE(committed);
    EXPECT_EQ(committed.error().code, ErrorCode::kNoSpace);
}

TEST(FabricName, IsAFileName) {
    EXPECT_TRUE(is_fabric_name("lab-2.b_c"));
    for (const char* bad : {"", ".", "..", "-x", "a/b", "a b", "a\n", ".hidden"}) {
        EXPECT_FALSE(is_fabric_name(bad)) << bad;
    }
    EXPECT_FALSE(is_fabric_name(std::string(64, 'a')));
}

TEST_F(RuntimeFolder, IsMadeForItsOwnerOnly) {
    use(base_ + "/new///");
    EXPECT_EQ(open_runtime_folder().error().code, ErrorCode::kNotFound);
    ASSERT_TRUE(make_runtime_folder());
    struct stat facts {};
    ASSERT_EQ(::stat((base_ + "/new").c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777U, 0700U);
}

TEST_F(RuntimeFolder, ALinkOrAnOpenFolderIsRefused) {
    ASSERT_EQ(::mkdir((base_ + "/real").c_str(), 0700), 0);
    ASSERT_EQ(::symlink("real", (base_ + "/link").c_str()), 0);
    use(base_ + "/link/");
    EXPECT_EQ(make_runtime_folder().error().code, ErrorCode::kDenied);
    ASSERT_EQ(::chmod((base_ + "/real").c_str(), 0755), 0);
    use(base_ + "/real");
    const auto open = open_runtime_folder();
    ASSERT_FALSE(open);
    EXPECT_EQ(open.error().code, ErrorCode::kDenied);
    EXPECT_FALSE(open.error().hint.empty());
}

TEST_F(RuntimeFolder, AnotherUsersIsRefused) {
    if (::geteuid() != 0) {
        GTEST_SKIP() << "needs root, to make a folder of another user";
    }
    // Root may name another user's folder itself, but does not fall for one in its own's place.
    ASSERT_EQ(::mkdir((base_ + "/weir").c_str(), 0700), 0);
    ASSERT_EQ(::chown((base_ + "/weir").c_str(), 65534, 65534), 0);
    ::unsetenv("WEIR_RUNTIME_DIR");
    ::setenv("XDG_RUNTIME_DIR", base_.c_str(), 1);
    EXPECT_EQ(open_runtime_folder().error().code, ErrorCode::kDenied);
    ::unsetenv("XDG_RUNTIME_DIR");
    use(base_ + "/weir");
    EXPECT_TRUE(open_runtime_folder());
}

TEST_F(RuntimeFolder, LockTellsALiveDaemonFromADeadOne) {
    const auto runtime = make_runtime_folder();
    ASSERT_TRUE(runtime);
    const auto fabric = make_fabric_folder(*runtime, "lab");
    ASSERT_TRUE(fabric);
    EXPECT_FALSE(FabricLock::held(*fabric));
    {
        const auto lock = FabricLock::take(*fabric);
        ASSERT_TRUE(lock);
        ASSERT_TRUE(lock->sign());
        EXPECT_TRUE(FabricLock::held(*fabric));
        EXPECT_EQ(FabricLock::holder(*fabric), ::getpid());
        EXPECT_EQ(FabricLock::take(*fabric).error().code, ErrorCode::kBusy);
    }
    EXPECT_FALSE(FabricLock::held(*fabric));
    EXPECT_EQ(list_fabric_folders(*runtime), std::vector<std::string>{"lab"});
    remove_fabric_folder(*runtime, "lab");
    EXPECT_TRUE(list_fabric_folders(*runtime).empty());
}

TEST_F(RuntimeFolder, ClientSaysWhyThereIsNoFabric) {
    EXPECT_EQ(AttachClient::connect("../x").error().code, ErrorCode::kInvalid);
    EXPECT_EQ(AttachClient::connect("lab").error().code, ErrorCode::kNotFound);
    const auto runtime = make_runtime_folder();
    const auto fabric = make_fabric_folder(*runtime, "lab");
    ASSERT_TRUE(fabric);
    EXPECT_EQ(AttachClient::connect("lab").error().code, ErrorCode::kNotFound);
    {
        const auto listener = listen_records(fabric->fd.get(), fabric->path, kAttachSocketName);
        ASSERT_TRUE(listener);
    }
    // The listener is gone but its name is still there: a daemon that was killed.
    const auto client = AttachClient::connect("lab");
    ASSERT_FALSE(client);
    EXPECT_EQ(client.error().code, ErrorCode::kUnreachable);
    EXPECT_NE(client.error().hint.find("weir up"), std::string::npos);
}

TEST_F(RuntimeFolder, ALongPathStillHoldsASocket) {
    use(base_ + "/" + std::string(150, 'x'));
    const auto runtime = make_runtime_folder();
    ASSERT_TRUE(runtime);
    const auto fabric = make_fabric_folder(*runtime, "lab");
    ASSERT_TRUE(fabric);
    const auto listener = listen_records(fabric->fd.get(), fabric->path, kAttachSocketName);
    ASSERT_TRUE(listener) << listener.error().context;
    EXPECT_TRUE(AttachClient::connect("lab"));
}

}  // namespace
}  // namespace weir::runtime

// SPDX-License-Identifier: Apache-2.0
// Run with LD_PRELOAD=libweir-sys.so, as a program that asks for device files in every way that the
// C library has. Built with _FORTIFY_SOURCE, so that the checked functions are called too.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <glob.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

namespace {

constexpr const char* kFile = "/sys/class/infiniband/weir9/fw_ver";
constexpr const char* kNode = "/dev/infiniband/uverbs9";
constexpr const char* kDevice = "/sys/class/infiniband/weir9/device";
constexpr const char* kFunction = "/sys/devices/pci5745:00/5745:00:00.0";

class Preload : public ::testing::Test {
  protected:
    void SetUp() override {
        std::string form = "/tmp/weir-preload-XXXXXX";
        ASSERT_NE(::mkdtemp(form.data()), nullptr);
        tree_ = form;
        namespace fs = std::filesystem;
        fs::create_directories(tree_ + "/dev/infiniband");
        fs::create_directories(tree_ + kFunction);
        fs::create_directories(tree_ + "/sys/class/infiniband/weir9");
        fs::create_directories(tree_ + "/sys/class/infiniband_verbs");
        fs::create_symlink("/dev/null", tree_ + kNode);
        fs::create_symlink("../../../devices/pci5745:00/5745:00:00.0", tree_ + kDevice);
        std::ofstream(tree_ + kFile) << "9.9.9\n";
        ::setenv("WEIR_SYSFS", tree_.c_str(), 1);
    }
    void TearDown() override {
        ::unsetenv("WEIR_SYSFS");
        std::filesystem::remove_all(tree_);
    }
    static std::string read_all(int fd) {
        char text[64] = {};
        const ssize_t length = ::read(fd, text, sizeof text - 1);
        ::close(fd);
        return length < 0 ? "(error)" : text;
    }
    std::string tree_;
};

TEST_F(Preload, open) {
    volatile int flags = O_RDONLY;  // Not known when compiled: the checked form.
    EXPECT_EQ(read_all(::open(kFile, O_RDONLY)), "9.9.9\n");
    EXPECT_EQ(read_all(::open64(kFile, O_RDONLY)), "9.9.9\n");
    EXPECT_EQ(read_all(::open(kFile, flags)), "9.9.9\n");
    EXPECT_EQ(read_all(::openat(AT_FDCWD, kFile, flags)), "9.9.9\n");
    EXPECT_EQ(read_all(::openat64(AT_FDCWD, kFile, O_RDONLY)), "9.9.9\n");
    std::FILE* file = std::fopen(kFile, "r");
    ASSERT_NE(file, nullptr);
    EXPECT_EQ(std::fgetc(file), '9');
    std::fclose(file);
    EXPECT_EQ(::open("/sys/class/infiniband/none", O_RDONLY), -1);
    EXPECT_EQ(errno, ENOENT);
}

TEST_F(Preload, from_a_folder_that_is_open) {
    const int root = ::open("/", O_RDONLY | O_DIRECTORY);
    EXPECT_EQ(read_all(::openat(root, kFile + 1, O_RDONLY)), "9.9.9\n");
    const int folder = ::openat(root, "sys/class/infiniband", O_RDONLY | O_DIRECTORY);
    ASSERT_GE(folder, 0);
    EXPECT_EQ(read_all(::openat(folder, "weir9/fw_ver", O_RDONLY)), "9.9.9\n");
    // The same words from elsewhere are other files.
    const int elsewhere = ::open("/tmp", O_RDONLY | O_DIRECTORY);
    EXPECT_EQ(::openat(elsewhere, kFile + 1, O_RDONLY), -1);
    EXPECT_EQ(::faccessat(root, kFile + 1, R_OK, 0), 0);
    for (const int fd : {root, folder, elsewhere})
        ::close(fd);
}

TEST_F(Preload, a_node_is_a_character_device_however_one_asks) {
    struct stat facts {};
    EXPECT_TRUE(::stat(kNode, &facts) == 0 && S_ISCHR(facts.st_mode));
    facts = {};
    EXPECT_TRUE(::lstat(kNode, &facts) == 0 && S_ISCHR(facts.st_mode));
    facts = {};
    EXPECT_TRUE(::fstatat(AT_FDCWD, kNode, &facts, AT_SYMLINK_NOFOLLOW) == 0 &&
                S_ISCHR(facts.st_mode));
    struct stat64 facts64 {};
    EXPECT_TRUE(::lstat64(kNode, &facts64) == 0 && S_ISCHR(facts64.st_mode));
    facts64 = {};
    EXPECT_TRUE(::stat64(kNode, &facts64) == 0 && S_ISCHR(facts64.st_mode));
    struct statx extended {};
    EXPECT_TRUE(::statx(AT_FDCWD, kNode, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &extended) == 0 &&
                S_ISCHR(extended.stx_mode));
    EXPECT_EQ(::access(kNode, R_OK | W_OK), 0);
    EXPECT_EQ(::eaccess(kNode, R_OK | W_OK), 0);
    const int fd = ::open(kNode, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    EXPECT_GE(fd, 0);
    ::close(fd);
    char text[PATH_MAX];
    EXPECT_EQ(::readlink(kNode, text, sizeof text), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_STREQ(::realpath(kNode, text), kNode);
}

// The names by which programs call stat that were built before glibc 2.33.
TEST_F(Preload, old_stat) {
    using XStat = int (*)(int, const char*, struct stat*);
    constexpr int kVersion = 1;
    for (const char* name : {"__xstat", "__lxstat", "__xstat64", "__lxstat64"}) {
        const auto function = reinterpret_cast<XStat>(::dlsym(RTLD_DEFAULT, name));
        ASSERT_NE(function, nullptr) << name;
        struct stat facts {};
        EXPECT_EQ(function(kVersion, kNode, &facts), 0) << name;
        EXPECT_TRUE(S_ISCHR(facts.st_mode)) << name;
        EXPECT_EQ(function(kVersion, "/etc/passwd", &facts), 0) << name;
        EXPECT_TRUE(S_ISREG(facts.st_mode)) << name;
    }
    using FXStatAt = int (*)(int, int, const char*, struct stat*, int);
    for (const char* name : {"__fxstatat", "__fxstatat64"}) {
        const auto function = reinterpret_cast<FXStatAt>(::dlsym(RTLD_DEFAULT, name));
        ASSERT_NE(function, nullptr) << name;
        struct stat facts {};
        EXPECT_EQ(function(kVersion, AT_FDCWD, kNode, &facts, AT_SYMLINK_NOFOLLOW), 0) << name;
        EXPECT_TRUE(S_ISCHR(facts.st_mode)) << name;
    }
}

TEST_F(Preload, links_and_resolved_paths_are_those_of_the_machine) {
    char text[PATH_MAX] = {};
    EXPECT_GT(::readlink(kDevice, text, sizeof text - 1), 0);
    EXPECT_STREQ(text, "../../../devices/pci5745:00/5745:00:00.0");
    EXPECT_STREQ(::realpath(kDevice, text), kFunction);
    char* own = ::realpath(kDevice, nullptr);
    EXPECT_STREQ(own, kFunction);
    std::free(own);
    own = ::canonicalize_file_name(kDevice);
    EXPECT_STREQ(own, kFunction);
    std::free(own);
    EXPECT_EQ(std::filesystem::canonical(kDevice), kFunction);
    struct stat facts {};
    EXPECT_EQ(::stat(kFunction, &facts), 0);
}

TEST_F(Preload, folders) {
    std::string names;
    for (const auto& entry : std::filesystem::directory_iterator("/sys/class/infiniband"))
        names += entry.path().filename().string() + " ";
    EXPECT_EQ(names, "weir9 ");
    dirent** list = nullptr;
    const int count = ::scandir("/dev/infiniband", &list, nullptr, ::alphasort);
    ASSERT_EQ(count, 3);
    EXPECT_STREQ(list[2]->d_name, "uverbs9");
    for (int i = 0; i < count; ++i)
        std::free(list[i]);
    std::free(list);
    glob_t found{};
    ASSERT_EQ(::glob("/sys/class/infiniband/*", 0, nullptr, &found), 0);
    ASSERT_EQ(found.gl_pathc, 1U);
    EXPECT_STREQ(found.gl_pathv[0], "/sys/class/infiniband/weir9");
    ::globfree(&found);
    char value[8];
    EXPECT_EQ(::getxattr(kFile, "user.none", value, sizeof value), -1);
    EXPECT_NE(errno, ENOENT);
}

TEST_F(Preload, all_else_is_left_alone) {
    for (const char* path : {"/sys/class/infiniband_other", "/sys/class/infinibandx",
                             "/dev/infinibandx", "/dev/infinibandx/y"}) {
        std::filesystem::create_directories(tree_ + path);
        EXPECT_EQ(::access(path, F_OK), -1) << path;
    }
    EXPECT_EQ(read_all(::open("/proc/self/comm", O_RDONLY)), "preload_test\n");
    char text[PATH_MAX];
    EXPECT_STREQ(::realpath("/proc/self/../self/..", text), "/proc");
    const char* volatile nowhere = nullptr;
    EXPECT_EQ(::open(nowhere, O_RDONLY), -1);
    EXPECT_EQ(errno, EFAULT);
    const std::string long_path = "/sys/class/infiniband/" + std::string(PATH_MAX, 'x');
    EXPECT_EQ(::open(long_path.c_str(), O_RDONLY), -1);
    EXPECT_EQ(errno, ENAMETOOLONG);
    const std::string made = tree_ + "/made";
    const int fd = ::open(made.c_str(), O_CREAT | O_WRONLY, 0640);
    ASSERT_GE(fd, 0);
    ::close(fd);
    struct stat facts {};
    ASSERT_EQ(::stat(made.c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777U & ~0027U, 0640U & ~0027U);
}

TEST_F(Preload, without_a_tree_the_machine_is_as_it_is) {
    ::unsetenv("WEIR_SYSFS");
    EXPECT_EQ(::access(kNode, F_OK), -1);
    ::setenv("WEIR_SYSFS", "not/absolute", 1);
    EXPECT_EQ(::access(kNode, F_OK), -1);
    ::setenv("WEIR_SYSFS", "/nonexistent", 1);
    EXPECT_EQ(::access(kNode, F_OK), -1);
    EXPECT_EQ(errno, ENOENT);
}

TEST_F(Preload, children_see_it_too) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(::access(kNode, F_OK) == 0 ? 0 : 1);
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(std::system("grep -q 9.9.9 /sys/class/infiniband/weir9/fw_ver"), 0);
}

}  // namespace

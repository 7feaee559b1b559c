// SPDX-License-Identifier: Apache-2.0
#include "runtime/real/runtime_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>

#include "runtime/real/system_error.h"

namespace weir::runtime {
namespace {

bool set(const char* value) {
    return value != nullptr && value[0] != '\0';
}

/// Root may look into the folder of another user that it names itself; never into one that merely
/// lies where root's own would be.
bool may_be_foreign() {
    return ::geteuid() == 0 && set(std::getenv("WEIR_RUNTIME_DIR"));
}

Result<Folder> check_folder(UniqueFd fd, std::string path) {
    struct stat facts {};
    if (::fstat(fd.get(), &facts) != 0) {
        return fail_errno(errno, "cannot look at " + path);
    }
    if (facts.st_uid != ::geteuid() && !may_be_foreign()) {
        return fail(ErrorCode::kDenied,
                    path + " belongs to another user (uid " + std::to_string(facts.st_uid) + ")",
                    "set WEIR_RUNTIME_DIR to a folder of your own");
    }
    if ((facts.st_mode & 077U) != 0) {
        return fail(ErrorCode::kDenied, path + " is open to other users", "chmod 700 " + path);
    }
    return Folder{std::move(path), std::move(fd)};
}

Result<Folder> open_folder(int parent, const char* name, std::string path) {
    UniqueFd fd(::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (fd.valid()) {
        return check_folder(std::move(fd), std::move(path));
    }
    if (errno == ELOOP || errno == ENOTDIR) {
        return fail(ErrorCode::kDenied, path + " is not a folder, or is a symbolic link to one",
                    "remove it, or set WEIR_RUNTIME_DIR to a folder of your own");
    }
    return fail_errno(errno, "cannot open " + path);
}

Result<Folder> make_folder(int parent, const char* name, std::string path) {
    if (::mkdirat(parent, name, 0700) != 0 && errno != EEXIST) {
        return fail_errno(errno, "cannot make " + path);
    }
    return open_folder(parent, name, std::move(path));
}

UniqueFd open_lock(const Folder& fabric, int flags) {
    return UniqueFd(::openat(fabric.fd.get(), kLockFileName, flags | O_NOFOLLOW | O_CLOEXEC, 0600));
}

}  // namespace

bool is_fabric_name(std::string_view name) {
    const auto good = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '-' || c == '_' || c == '.';
    };
    return !name.empty() && name.size() < 64 && name[0] != '.' && name[0] != '-' &&
           std::all_of(name.begin(), name.end(), good);
}

std::string runtime_folder_path() {
    std::string path;
    if (const char* own = std::getenv("WEIR_RUNTIME_DIR"); set(own)) {
        path = own;
    } else if (const char* session = std::getenv("XDG_RUNTIME_DIR"); set(session)) {
        path = std::string(session) + "/weir";
    } else {
        path = "/tmp/weir-" + std::to_string(::geteuid());
    }
    // A trailing slash would make the last part a followed link.
    while (path.size() > 1 && path.back() == '/') {
        path.pop_back();
    }
    return path;
}

Result<Folder> open_runtime_folder() {
    std::string path = runtime_folder_path();
    return open_folder(AT_FDCWD, path.c_str(), path);
}

Result<Folder> make_runtime_folder() {
    std::string path = runtime_folder_path();
    return make_folder(AT_FDCWD, path.c_str(), path);
}

Result<Folder> open_fabric_folder(const Folder& runtime, const std::string& name) {
    return open_folder(runtime.fd.get(), name.c_str(), runtime.path + "/" + name);
}

Result<Folder> make_fabric_folder(const Folder& runtime, const std::string& name) {
    return make_folder(runtime.fd.get(), name.c_str(), runtime.path + "/" + name);
}

std::vector<std::string> list_fabric_folders(const Folder& runtime) {
    std::vector<std::string> names;
    const int again = ::openat(runtime.fd.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR* entries = again < 0 ? nullptr : ::fdopendir(again);
    if (entries == nullptr) {
        UniqueFd unused(again);
        return names;
    }
    while (const dirent* entry = ::readdir(entries)) {
        if (is_fabric_name(entry->d_name) && open_fabric_folder(runtime, entry->d_name)) {
            names.emplace_back(entry->d_name);
        }
    }
    ::closedir(entries);
    std::sort(names.begin(), names.end());
    return names;
}

Result<FabricLock> FabricLock::take(const Folder& fabric) {
    UniqueFd fd = open_lock(fabric, O_RDWR | O_CREAT);
    if (!fd.valid()) {
        return fail_errno(errno, "cannot open " + fabric.path + "/" + kLockFileName);
    }
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK) {
            return fail(ErrorCode::kBusy, fabric.path + " is in use by a running daemon");
        }
        return fail_errno(errno, "cannot lock " + fabric.path + "/" + kLockFileName);
    }
    // Whoever took it before us may have removed the folder meanwhile: then this lock guards
    // nothing.
    struct stat ours {};
    struct stat named {};
    if (::fstat(fd.get(), &ours) != 0 ||
        ::fstatat(fabric.fd.get(), kLockFileName, &named, AT_SYMLINK_NOFOLLOW) != 0 ||
        ours.st_ino != named.st_ino) {
        return fail(ErrorCode::kBusy, fabric.path + " is just being removed", "try again");
    }
    return FabricLock(std::move(fd));
}

bool FabricLock::held(const Folder& fabric) {
    const UniqueFd fd = open_lock(fabric, O_RDWR);
    return fd.valid() && ::flock(fd.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

int FabricLock::holder(const Folder& fabric) {
    const auto text = read_file(fabric, kLockFileName, 32);
    return text ? std::atoi(text->c_str()) : 0;
}

Result<void> FabricLock::sign() const {
    const std::string text = std::to_string(::getpid()) + "\n";
    if (::ftruncate(fd_.get(), 0) != 0 ||
        ::pwrite(fd_.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
        return fail_errno(errno, "cannot write the lock file");
    }
    return {};
}

Result<std::string> read_file(const Folder& folder, const std::string& name, std::size_t limit) {
    const UniqueFd fd(::openat(folder.fd.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    if (!fd.valid()) {
        return fail_errno(errno, "cannot open " + folder.path + "/" + name);
    }
    std::string text;
    std::array<char, 65536> part;
    while (true) {
        const ssize_t taken = ::read(fd.get(), part.data(), part.size());
        if (taken == 0) {
            return text;
        }
        if (taken < 0 && errno != EINTR) {
            return fail_errno(errno, "cannot read " + folder.path + "/" + name);
        }
        if (taken > 0) {
            text.append(part.data(), static_cast<std::size_t>(taken));
        }
        if (text.size() > limit) {
            return fail(ErrorCode::kInvalid, folder.path + "/" + name + " is too large");
        }
    }
}

Result<void> write_file(const Folder& folder, const std::string& name, std::string_view text) {
    const UniqueFd fd(::openat(folder.fd.get(), name.c_str(),
                               O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!fd.valid()) {
        return fail_errno(errno, "cannot make " + folder.path + "/" + name);
    }
    while (!text.empty()) {
        const ssize_t written = ::write(fd.get(), text.data(), text.size());
        if (written < 0 && errno != EINTR) {
            return fail_errno(errno, "cannot write " + folder.path + "/" + name);
        }
        text.remove_prefix(written > 0 ? static_cast<std::size_t>(written) : 0);
    }
    return {};
}

bool remove_file(const Folder& folder, const std::string& name) {
    return ::unlinkat(folder.fd.get(), name.c_str(), 0) == 0 || errno == ENOENT;
}

namespace {
/// Removes what is in a folder. Links are removed, not followed.
void empty_folder(UniqueFd folder) {
    const int fd = ::dup(folder.get());
    DIR* entries = fd < 0 ? nullptr : ::fdopendir(fd);
    if (entries == nullptr) {
        UniqueFd unused(fd);
        return;
    }
    while (const dirent* entry = ::readdir(entries)) {
        const std::string_view name = entry->d_name;
        if (name == "." || name == ".." || ::unlinkat(folder.get(), entry->d_name, 0) == 0) {
            continue;
        }
        UniqueFd inner(
            ::openat(folder.get(), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
        if (inner.valid()) {
            empty_folder(std::move(inner));
            ::unlinkat(folder.get(), entry->d_name, AT_REMOVEDIR);
        }
    }
    ::closedir(entries);
}
}  // namespace

void remove_trees(const Folder& fabric) {
    UniqueFd fd(
        ::openat(fabric.fd.get(), kTreesName, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!fd.valid()) {
        return;
    }
    empty_folder(std::move(fd));
    ::unlinkat(fabric.fd.get(), kTreesName, AT_REMOVEDIR);
}

void remove_fabric_folder(const Folder& runtime, const std::string& name) {
    const auto fabric = open_fabric_folder(runtime, name);
    if (!fabric) {
        return;
    }
    remove_trees(*fabric);
    // The lock goes last: until then nobody else can begin to fill the folder.
    for (const char* file : {kAttachSocketName, kSourceFileName, kLogFileName, kLockFileName}) {
        remove_file(*fabric, file);
    }
    ::unlinkat(runtime.fd.get(), name.c_str(), AT_REMOVEDIR);
}

}  // namespace weir::runtime

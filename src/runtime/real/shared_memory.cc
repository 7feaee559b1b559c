// SPDX-License-Identifier: Apache-2.0
#include "runtime/real/shared_memory.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <utility>

#include "runtime/real/system_error.h"

namespace weir::runtime {
namespace {

/// Kept free for everybody else when memory is committed.
constexpr std::uint64_t kMemoryReserve = 64ULL << 20U;

/// The number after `key` in a small text file of the kernel's; `otherwise` if there is none.
std::uint64_t number_in(const char* path, const char* key, std::uint64_t otherwise) {
    const UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC));
    std::array<char, 4096> text{};
    if (!fd.valid() || ::read(fd.get(), text.data(), text.size() - 1) <= 0) {
        return otherwise;
    }
    const char* at = std::strstr(text.data(), key);
    unsigned long long number = 0;
    return at != nullptr && std::sscanf(at + std::strlen(key), "%llu", &number) == 1 ? number
                                                                                     : otherwise;
}

}  // namespace

std::uint64_t available_memory() {
    std::uint64_t available = number_in("/proc/meminfo", "MemAvailable:", 0) << 10U;
    constexpr const char* kGroup = "/sys/fs/cgroup/memory.max";
    const std::uint64_t limit = number_in(kGroup, "", UINT64_MAX);
    if (limit != UINT64_MAX) {
        const std::uint64_t used = number_in("/sys/fs/cgroup/memory.current", "", 0);
        available = std::min(available, limit > used ? limit - used : 0);
    }
    return available;
}

Result<UniqueFd> create_memory(const char* name, std::uint64_t bytes) {
    UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd.valid()) {
        return fail_errno(errno, "cannot create shared memory");
    }
    if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
        ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
        return fail_errno(errno,
                          "cannot size shared memory to " + std::to_string(bytes) + " bytes");
    }
    return fd;
}

Result<void> commit_memory(int fd, std::uint64_t offset, std::uint64_t bytes) {
    const std::uint64_t available = available_memory();
    if (available != 0 && bytes + kMemoryReserve > available) {
        return fail(ErrorCode::kNoSpace, "cannot get " + std::to_string(bytes >> 20U) +
                                             " MiB of shared memory: only " +
                                             std::to_string(available >> 20U) + " MiB are free");
    }
    while (::fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0) {
        if (errno != EINTR) {
            return fail_errno(
                errno, "cannot get " + std::to_string(bytes >> 20U) + " MiB of shared memory");
        }
    }
    return {};
}

void visit_committed(int fd, std::uint64_t first, std::uint64_t end,
                     const std::function<bool(std::uint64_t, std::uint64_t)>& visit) {
    std::uint64_t at = first;
    while (at < end) {
        const off_t data = ::lseek(fd, static_cast<off_t>(at), SEEK_DATA);
        if (data < 0 || static_cast<std::uint64_t>(data) >= end) {
            return;
        }
        const off_t hole = ::lseek(fd, data, SEEK_HOLE);
        const std::uint64_t stop = hole < 0 ? end : std::min(end, static_cast<std::uint64_t>(hole));
        if (!visit(static_cast<std::uint64_t>(data), stop)) {
            return;
        }
        at = stop;
    }
}

bool is_sealed_memory(int fd, std::uint64_t bytes) {
    struct stat facts {};
    const int seals = ::fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && ::fstat(fd, &facts) == 0 &&
           static_cast<std::uint64_t>(facts.st_size) == bytes;
}

Result<Mapping> Mapping::map(int fd, std::uint64_t bytes, MapAccess access) {
    const int protection = PROT_READ | (access == MapAccess::kReadWrite ? PROT_WRITE : 0);
    void* data = ::mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (data == MAP_FAILED) {
        return fail_errno(errno, "cannot map " + std::to_string(bytes) + " bytes");
    }
    return Mapping(data, bytes);
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

Mapping::~Mapping() {
    if (data_ != nullptr) {
        ::munmap(data_, bytes_);
    }
}

void wake_futex(const void* word) {
    // Not the private kind: waiters are in other processes.
    ::syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace weir::runtime

// SPDX-License-Identifier: Apache-2.0
// Shared memory between processes: memfds that cannot shrink under those who mapped them, and
// mappings with one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/result.h"
#include "runtime/real/unique_fd.h"

namespace weir::runtime {

/// A sparse memfd of `bytes`, sealed against shrinking and growing, so that nobody who maps it
/// meets SIGBUS because somebody else cut it. A page costs nothing until it is touched.
Result<UniqueFd> create_memory(const char* name, std::uint64_t bytes);

/// Bytes that this machine can still give (MemAvailable, and the memory cgroup's limit where
/// there is one); 0 if unknown.
std::uint64_t available_memory();

/// Allocates the pages of a range now: kNoSpace if there are not enough, instead of death later.
/// Asks available_memory() first: for a memfd the kernel would rather kill somebody than refuse.
Result<void> commit_memory(int fd, std::uint64_t offset, std::uint64_t bytes);

/// Calls `visit(first, end)` for each part of [first, end) that has pages, as byte offsets, until
/// it returns false. Reading a hole through a mapping would allocate it; this does not.
void visit_committed(int fd, std::uint64_t first, std::uint64_t end,
                     const std::function<bool(std::uint64_t, std::uint64_t)>& visit);

/// True if `fd` is such a memfd: of exactly this size and sealed against shrinking.
bool is_sealed_memory(int fd, std::uint64_t bytes);

enum class MapAccess { kRead, kReadWrite };

/// A shared mapping of a whole descriptor. The descriptor may be closed afterwards.
class Mapping {
  public:
    Mapping() = default;
    static Result<Mapping> map(int fd, std::uint64_t bytes, MapAccess access);
    Mapping(Mapping&& other) noexcept;
    Mapping& operator=(Mapping&& other) noexcept;
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    ~Mapping();

    [[nodiscard]] void* data() const { return data_; }
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

  private:
    Mapping(void* data, std::uint64_t bytes) : data_(data), bytes_(bytes) {}
    void* data_ = nullptr;
    std::uint64_t bytes_ = 0;
};

/// Wakes all that sleep on a futex word in shared memory.
void wake_futex(const void* word);

}  // namespace weir::runtime

// SPDX-License-Identifier: Apache-2.0
#include "hca/registered_memory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "arena/attach.h"

namespace weir::hca {

namespace {

constexpr std::uintptr_t kPage = 4096;
constexpr const char* kWindowName = "/memfd:weir-window";

/// A whole file of /proc, which has no size beforehand. Empty on error.
std::vector<char> read_proc(const char* path) {
    std::vector<char> text;
    const runtime::UniqueFd fd(open(path, O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) return text;
    for (;;) {
        const auto used = text.size();
        text.resize(used + 16384);
        const auto got = read(fd.get(), text.data() + used, 16384);
        text.resize(used + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
        if (got <= 0) break;
    }
    text.push_back('\0');
    return text;
}

/// Copies whole pages, whatever lies in them: a sanitizer's view of single objects has no say here.
__attribute__((no_sanitize("address", "thread"), noinline)) void copy_pages(void* to,
                                                                            const void* from,
                                                                            std::size_t bytes) {
    auto* target = static_cast<std::uint64_t*>(to);
    const auto* source = static_cast<const std::uint64_t*>(from);
    for (std::size_t i = 0; i < bytes / sizeof *target; ++i) {
        target[i] = source[i];
        // Else the compiler makes it a memcpy, which the sanitizer watches.
        asm volatile("" : : : "memory");
    }
}

struct Copy {
    void* at;
    std::uintptr_t original;
    std::size_t bytes;
    int protection;
};

/// What this process has moved outlives the attachment that moved it, being the program's memory:
/// so the windows are remembered for good, and copies are made of all that is mapped of them.
/// Guarded by the registry's lock, which is held around a fork. Never destroyed.
struct Moved {
    std::vector<std::uint64_t> windows;  ///< Inodes of the windows of this process.
    std::vector<Copy> copies;
};
Moved& moved() {
    static auto* instance = new Moved;
    return *instance;
}

int thread_count() {
    DIR* tasks = opendir("/proc/self/task");
    if (tasks == nullptr) return 1 << 20;
    int count = 0;
    // NOLINTNEXTLINE(concurrency-mt-unsafe): a stream of our own is safe to read.
    while (const dirent* entry = readdir(tasks))
        if (entry->d_name[0] != '.') ++count;
    closedir(tasks);
    return count;
}

}  // namespace

void RegisteredMemory::start(runtime::UniqueFd window, bool kernel_copy) {
    window_ = std::move(window);
    kernel_copy_ = kernel_copy;
    struct stat status {};
    if (fstat(window_.get(), &status) != 0) return;
    window_inode_ = status.st_ino;
    moved().windows.push_back(window_inode_);
}

std::vector<RegisteredMemory::Area> RegisteredMemory::read_areas(std::uintptr_t begin,
                                                                 std::uintptr_t end) const {
    std::vector<Area> areas;
    const auto text = read_proc("/proc/self/maps");
    for (const char* line = text.empty() ? nullptr : text.data();
         line != nullptr && *line != '\0';) {
        const char* newline = std::strchr(line, '\n');
        char* rest = nullptr;
        Area area{};
        area.begin = std::strtoull(line, &rest, 16);
        area.end = *rest == '-' ? std::strtoull(rest + 1, &rest, 16) : 0;
        if (area.end > begin && area.begin < end && std::strlen(rest) > 5) {
            const char* flags = rest + 1;
            area.readable = flags[0] == 'r';
            area.writable = flags[1] == 'w';
            area.shared = flags[3] == 's';
            area.offset = std::strtoull(flags + 5, &rest, 16);
            // "major:minor inode   path"
            const char* inode = std::strchr(rest + 1, ' ');
            const auto number = inode == nullptr ? 0 : std::strtoull(inode, &rest, 10);
            while (*rest == ' ')
                ++rest;
            area.anonymous =
                number == 0 && (*rest == '\n' || std::strncmp(rest, "[heap]", 6) == 0 ||
                                std::strncmp(rest, "[anon", 5) == 0);
            const bool window =
                area.shared && std::strncmp(rest, kWindowName, std::strlen(kWindowName)) == 0;
            area.inode = window ? number : 0;
            area.window = window && number == window_inode_;
            areas.push_back(area);
        }
        line = newline == nullptr ? nullptr : newline + 1;
    }
    return areas;
}

int RegisteredMemory::place(std::uintptr_t address, std::size_t length, bool writable,
                            int own_threads, Placement& placement) {
    placement = {kernel_copy_ ? arena::MemoryAccess::kKernel : arena::MemoryAccess::kOwner, 0};
    if (length == 0) return 0;
    const std::uintptr_t begin = address / kPage * kPage;
    const std::uintptr_t end = (address + length + kPage - 1) / kPage * kPage;
    if (end <= begin) return EFAULT;
    const auto areas = read_areas(begin, end);
    std::uintptr_t covered = begin;
    bool movable = true;
    bool in_window = true;
    for (const auto& area : areas) {
        if (area.begin > covered || !area.readable || (writable && !area.writable)) return EFAULT;
        movable = movable && area.anonymous && area.writable && !area.shared;
        in_window = in_window && area.window &&
                    area.offset - area.begin == areas.front().offset - areas.front().begin;
        covered = area.end;
    }
    if (covered < end) return EFAULT;
    const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
    const bool own_stack = here >= begin && here < end;
    std::uint64_t offset = 0;
    if (in_window) {
        offset = areas.front().offset + (begin - areas.front().begin);
    } else if (!movable || own_stack || end - begin > kMoveBytesMax ||
               thread_count() - own_threads > 1 || !move(begin, end, offset)) {
        return 0;
    }
    placement = {arena::MemoryAccess::kWindow, offset + (address - begin)};
    return 0;
}

bool RegisteredMemory::move(std::uintptr_t begin, std::uintptr_t end, std::uint64_t& offset) {
    const std::size_t bytes = end - begin;
    offset = take_window(bytes);
    if (offset + bytes > arena::kWindowBytes) return false;
    if (fallocate(window_.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0) {
        return false;
    }
    void* fresh = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                       window_.get(), static_cast<off_t>(offset));
    if (fresh == MAP_FAILED) return false;
    copy_pages(fresh, reinterpret_cast<const void*>(begin), bytes);
    // One call swaps the new pages in over the old: no moment without memory at the address.
    if (mremap(fresh, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
               reinterpret_cast<void*>(begin)) == MAP_FAILED) {
        munmap(fresh, bytes);
        return false;
    }
    return true;
}

std::uint64_t RegisteredMemory::take_window(std::uint64_t bytes) {
    if (window_end_ + bytes > reclaim_at_) reclaim();
    for (auto& range : free_) {
        if (range.bytes < bytes) continue;
        const auto offset = range.offset;
        range.offset += bytes;
        range.bytes -= bytes;
        return offset;
    }
    const auto offset = window_end_;
    window_end_ += bytes;
    return offset;
}

/// Gives back window space that is mapped nowhere in this process any more.
void RegisteredMemory::reclaim() {
    auto areas = read_areas(0, ~std::uintptr_t{0});
    std::erase_if(areas, [](const Area& area) { return !area.window; });
    std::sort(areas.begin(), areas.end(),
              [](const Area& a, const Area& b) { return a.offset < b.offset; });
    free_.clear();
    std::uint64_t used_to = 0;
    const auto give_back = [&](std::uint64_t to) {
        if (to <= used_to) return;
        fallocate(window_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(used_to), static_cast<off_t>(to - used_to));
        free_.push_back({used_to, to - used_to});
    };
    for (const auto& area : areas) {
        give_back(area.offset);
        used_to = std::max(used_to, area.offset + (area.end - area.begin));
    }
    give_back(window_end_);
    reclaim_at_ = window_end_ + (256ULL << 20U);
}

void RegisteredMemory::plan_copies() {
    auto& all = moved();
    if (all.windows.empty()) return;
    for (const auto& area : RegisteredMemory().read_areas(0, ~std::uintptr_t{0})) {
        if (area.inode == 0 || std::count(all.windows.begin(), all.windows.end(), area.inode) == 0)
            continue;
        const std::size_t bytes = area.end - area.begin;
        // A process that is its own peer has the window mapped as a whole, too: nothing of its.
        if (bytes >= arena::kWindowBytes) continue;
        const int protection = (area.readable ? PROT_READ : 0) | (area.writable ? PROT_WRITE : 0);
        void* fresh =
            mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (fresh == MAP_FAILED) continue;
        all.copies.push_back({fresh, area.begin, bytes, protection});
    }
}

void RegisteredMemory::copy_for_child() {
    for (const auto& copy : moved().copies) {
        if ((copy.protection & PROT_READ) == 0) continue;
        copy_pages(copy.at, reinterpret_cast<const void*>(copy.original), copy.bytes);
    }
}

void RegisteredMemory::adopt_copies() {
    for (const auto& copy : moved().copies) {
        mprotect(copy.at, copy.bytes, copy.protection);
        mremap(copy.at, copy.bytes, copy.bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
               reinterpret_cast<void*>(copy.original));
    }
}

void RegisteredMemory::drop_copies() {
    for (const auto& copy : moved().copies)
        munmap(copy.at, copy.bytes);
    moved().copies.clear();
}

void RegisteredMemory::forget_copies() {
    // What a child has is its own: no window of its parent's is mapped in it any more.
    moved().copies.clear();
    moved().windows.clear();
}

}  // namespace weir::hca

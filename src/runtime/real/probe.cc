// SPDX-License-Identifier: Apache-2.0
#include "runtime/real/probe.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "runtime/real/child_process.h"
#include "runtime/real/shared_memory.h"
#include "runtime/real/system_error.h"

namespace weir::runtime {
namespace {

constexpr std::uint64_t kProbeBytes = 1U << 20U;

Probe failed(int number) {
    return {false, errno_text(number)};
}

std::string ptrace_scope() {
    std::ifstream file("/proc/sys/kernel/yama/ptrace_scope");
    std::string scope;
    return file >> scope ? "ptrace_scope " + scope : "no yama";
}

}  // namespace

Probe probe_shared_memory() {
    const auto fd = create_memory("weir-probe", kProbeBytes);
    if (!fd) return {false, fd.error().context};
    if (const auto committed = commit_memory(fd->get(), 0, kProbeBytes); !committed) {
        return {false, committed.error().context};
    }
    const auto mapping = Mapping::map(fd->get(), kProbeBytes, MapAccess::kReadWrite);
    if (!mapping) return {false, mapping.error().context};
    return {true, "sealed memfd, allocated and mapped"};
}

Probe probe_memory_copy() {
    static volatile int secret = 4711;
    const pid_t parent = ::getpid();
    const pid_t child = ::fork();
    if (child < 0) {
        return failed(errno);
    }
    if (child == 0) {
        // Towards the parent: a child may not be traced backwards where only descendants may.
        int seen = 0;
        const iovec here{&seen, sizeof(seen)};
        const iovec there{const_cast<int*>(&secret), sizeof(secret)};
        const bool read = ::process_vm_readv(parent, &here, 1, &there, 1, 0) == sizeof(seen);
        ::_exit(!read ? errno : seen == secret ? 0 : EIO);
    }
    const int code = reap_child(child);
    if (code != 0) return {false, errno_text(code) + ", " + ptrace_scope()};
    return {true, "process_vm_readv between processes, " + ptrace_scope()};
}

Probe probe_futex() {
    std::uint32_t word = 0;
    if (::syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0) < 0) {
        return failed(errno);
    }
    return {true, "shared futex"};
}

Probe probe_eventfd() {
    const UniqueFd fd(::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
    eventfd_t value = 0;
    if (!fd.valid() || ::eventfd_read(fd.get(), &value) != 0 || value != 1) {
        return failed(errno);
    }
    return {true, "counts and wakes"};
}

Probe probe_userfaultfd() {
    const UniqueFd fd(
        static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY)));
    if (!fd.valid()) {
        return failed(errno);
    }
    return {true, "available to this user"};
}

Probe probe_library(const std::string& path, const std::vector<std::string>& symbols) {
    void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        const char* reason = ::dlerror();
        return {false, reason != nullptr ? reason : "cannot be loaded"};
    }
    for (const auto& symbol : symbols) {
        if (::dlsym(library, symbol.c_str()) == nullptr) {
            return {false, path + " does not export " + symbol};
        }
    }
    return {true, path};
}

std::string find_program(const std::string& name) {
    const char* path = std::getenv("PATH");
    std::istringstream folders(path != nullptr ? path : "");
    for (std::string folder; std::getline(folders, folder, ':');) {
        std::string full = folder + "/" + name;
        if (::access(full.c_str(), X_OK) == 0) return full;
    }
    return {};
}

unsigned usable_cpus() {
    cpu_set_t set;
    CPU_ZERO(&set);
    return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? static_cast<unsigned>(CPU_COUNT(&set))
                                                          : 1;
}

}  // namespace weir::runtime

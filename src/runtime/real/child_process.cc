// SPDX-License-Identifier: Apache-2.0
#include "runtime/real/child_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "runtime/real/event_loop.h"
#include "runtime/real/system_error.h"

namespace weir::runtime {
namespace {

struct Pipe {
    UniqueFd reader;
    UniqueFd writer;
};

Result<Pipe> make_pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
        return fail_errno(errno, "cannot create a pipe");
    }
    return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::vector<char*> pointers_to(const std::vector<std::string>& words) {
    std::vector<char*> pointers;
    for (const auto& word : words) {
        pointers.push_back(const_cast<char*>(word.c_str()));
    }
    pointers.push_back(nullptr);
    return pointers;
}

/// Sets the environment and replaces this process; errno if that fails. Only what a forked child of
/// a single-threaded parent may do.
int replace_process(const Program& program) {
    for (const auto& [name, value] : program.environment) {
        ::setenv(name.c_str(), value.c_str(), 1);
    }
    auto words = pointers_to(program.words);
    ::execvp(words[0], words.data());
    return errno;
}

/// In the child, up to its exec. Writes errno to `failure` if it gets no further.
[[noreturn]] void be_child(const Program& program, int output, int errors, int failure,
                           pid_t parent) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) {
        ::_exit(1);
    }
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::dup2(null, STDIN_FILENO);
    ::dup2(output, STDOUT_FILENO);
    ::dup2(errors, STDERR_FILENO);
    const int reason = replace_process(program);
    if (::write(failure, &reason, sizeof(reason)) < 0) {
        // The parent sees our exit code instead.
    }
    ::_exit(reason == ENOENT ? 127 : 126);
}

void add_listening_inodes(pid_t pid, std::set<std::string>& inodes) {
    for (const char* table : {"/net/tcp", "/net/tcp6"}) {
        std::ifstream file("/proc/" + std::to_string(pid) + table);
        std::string line;
        std::getline(file, line);  // The header.
        while (std::getline(file, line)) {
            // sl local remote st tx:rx tr:when retrnsmt uid timeout inode
            std::istringstream words(line);
            std::array<std::string, 10> word;
            for (auto& w : word) {
                words >> w;
            }
            if (word[3] == "0A") {
                inodes.insert("socket:[" + word[9] + "]");
            }
        }
    }
}

bool holds_any(pid_t pid, const std::set<std::string>& inodes) {
    const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
    DIR* entries = ::opendir(folder.c_str());
    if (entries == nullptr) {
        return false;
    }
    bool found = false;
    while (const dirent* entry = found ? nullptr : ::readdir(entries)) {
        std::array<char, 64> target{};
        if (::readlinkat(::dirfd(entries), entry->d_name, target.data(), target.size() - 1) > 0) {
            found = inodes.contains(target.data());
        }
    }
    ::closedir(entries);
    return found;
}

}  // namespace

Result<ChildProcess> start_child(const Program& program) {
    WEIR_TRY(Pipe output, make_pipe());
    WEIR_TRY(Pipe errors, make_pipe());
    WEIR_TRY(Pipe failure, make_pipe());
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) {
        return fail_errno(errno, "cannot fork");
    }
    if (pid == 0) {
        be_child(program, output.writer.get(), errors.writer.get(), failure.writer.get(), parent);
    }
    // In both processes, so that it holds whoever runs first.
    ::setpgid(pid, pid);
    failure.writer.reset();
    int reason = 0;
    ssize_t said = -1;
    do {
        said = ::read(failure.reader.get(), &reason, sizeof(reason));
    } while (said < 0 && errno == EINTR);
    if (said == sizeof(reason)) {
        reap_child(pid);
        return fail_errno(reason, "cannot run " + program.words[0]);
    }
    ChildProcess child;
    child.pid = pid;
    child.ended = watch_process(pid);
    child.output = std::move(output.reader);
    child.errors = std::move(errors.reader);
    for (const int fd : {child.output.get(), child.errors.get()}) {
        ::fcntl(fd, F_SETFL, O_NONBLOCK);
    }
    return child;
}

int reap_child(pid_t pid) {
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR) {
            return 1;
        }
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void signal_group(pid_t pid, int number) {
    if (pid > 1) {
        ::kill(-pid, number);
    }
}

Error become(const Program& program) {
    return system_error(replace_process(program), "cannot run " + program.words[0]);
}

bool group_listens(pid_t group) {
    std::set<std::string> inodes;
    add_listening_inodes(group, inodes);
    DIR* entries = inodes.empty() ? nullptr : ::opendir("/proc");
    if (entries == nullptr) {
        return false;
    }
    bool found = false;
    while (const dirent* entry = found ? nullptr : ::readdir(entries)) {
        const pid_t pid = std::atoi(entry->d_name);
        found = pid > 0 && ::getpgid(pid) == group && holds_any(pid, inodes);
    }
    ::closedir(entries);
    return found;
}

std::string own_executable() {
    std::array<char, 4096> path{};
    const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
    return length > 0 ? std::string(path.data(), static_cast<std::size_t>(length)) : std::string();
}

bool path_exists(const std::string& path) {
    return ::access(path.c_str(), F_OK) == 0;
}

}  // namespace weir::runtime

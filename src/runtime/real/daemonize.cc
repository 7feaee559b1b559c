// SPDX-License-Identifier: Apache-2.0
#include "runtime/real/daemonize.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "runtime/real/system_error.h"

namespace weir::runtime {
namespace {

constexpr char kReadyMark = '.';

/// All that the daemon writes until it closes its end.
std::string read_word(int fd) {
    std::string word;
    std::array<char, 512> part;
    while (true) {
        const ssize_t taken = ::read(fd, part.data(), part.size());
        if (taken > 0) {
            word.append(part.data(), static_cast<std::size_t>(taken));
        } else if (taken == 0 || errno != EINTR) {
            return word;
        }
    }
}

void redirect(const Folder& folder, const std::string& log_name) {
    const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    const UniqueFd log(::openat(folder.fd.get(), log_name.c_str(),
                                O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600));
    const int output = log.valid() ? log.get() : null.get();
    ::dup2(null.get(), STDIN_FILENO);
    ::dup2(output, STDOUT_FILENO);
    ::dup2(output, STDERR_FILENO);
}

/// Closes what came from before our exec: all of our own descriptors are close-on-exec. Otherwise
/// whoever waits for the end of such a file would wait for the daemon.
void close_inherited() {
    DIR* entries = ::opendir("/proc/self/fd");
    if (entries == nullptr) {
        return;
    }
    std::vector<int> inherited;
    while (const dirent* entry = ::readdir(entries)) {
        const int fd = std::atoi(entry->d_name);
        const int flags = ::fcntl(fd, F_GETFD);
        if (fd > STDERR_FILENO && flags >= 0 && (flags & FD_CLOEXEC) == 0) {
            inherited.push_back(fd);
        }
    }
    ::closedir(entries);
    for (const int fd : inherited) {
        ::close(fd);
    }
}

}  // namespace

void ReadySignal::send(const std::string& failure) {
    const std::string word = failure.empty() ? std::string(1, kReadyMark) : failure;
    if (fd_.valid() && ::write(fd_.get(), word.data(), word.size()) < 0) {
        // The parent is gone: nobody waits for the word.
    }
    fd_.reset();
}

Result<Daemonized> daemonize(const Folder& folder, const std::string& log_name) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
        return fail_errno(errno, "cannot create a pipe");
    }
    UniqueFd word(ends[0]);
    UniqueFd ready(ends[1]);
    const pid_t child = ::fork();
    if (child < 0) {
        return fail_errno(errno, "cannot fork");
    }
    if (child > 0) {
        ready.reset();
        while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
        }
        std::string said = read_word(word.get());
        if (said == std::string(1, kReadyMark)) {
            return Daemonized{Side::kParent, {}, {}};
        }
        return Daemonized{Side::kParent,
                          {},
                          said.empty() ? "the daemon ended before it was ready" : std::move(said)};
    }
    ::setsid();
    if (const pid_t grandchild = ::fork(); grandchild != 0) {
        // Without the parent's exit handlers: they are its own.
        ::_exit(grandchild > 0 ? 0 : 1);
    }
    word.reset();
    ::umask(077);
    if (::chdir("/") != 0) {
        // Harmless: it only keeps a directory busy.
    }
    redirect(folder, log_name);
    close_inherited();
    return Daemonized{Side::kDaemon, ReadySignal(std::move(ready)), {}};
}

bool signal_process(pid_t pid, int number) {
    return pid > 1 && ::kill(pid, number) == 0;
}

void sleep_milliseconds(int milliseconds) {
    timespec left{milliseconds / 1000, (milliseconds % 1000) * 1'000'000L};
    while (::nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

}  // namespace weir::runtime

// SPDX-License-Identifier: Apache-2.0
// UniqueFd: a file descriptor with exactly one owner, closed when the owner goes. Every descriptor
// that Weir holds for longer than one function lies in one, so that no error path leaks it.
#pragma once

#include <unistd.h>

#include <utility>

namespace weir::runtime {

class UniqueFd {
  public:
    UniqueFd() = default;
    explicit UniqueFd(int fd) : fd_(fd) {}
    UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
    UniqueFd& operator=(UniqueFd&& other) noexcept {
        reset(other.release());
        return *this;
    }
    UniqueFd(const UniqueFd&) = delete;
    UniqueFd& operator=(const UniqueFd&) = delete;
    ~UniqueFd() { reset(); }

    [[nodiscard]] int get() const { return fd_; }
    [[nodiscard]] bool valid() const { return fd_ >= 0; }
    /// Gives the descriptor away; the caller closes it.
    [[nodiscard]] int release() { return std::exchange(fd_, -1); }
    /// Closes what is held and takes `fd` instead. errno is left alone.
    void reset(int fd = -1);

  private:
    int fd_ = -1;
};

}  // namespace weir::runtime

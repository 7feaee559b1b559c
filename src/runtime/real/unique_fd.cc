// SPDX-License-Identifier: Apache-2.0
#include "runtime/real/unique_fd.h"

#include <cerrno>

namespace weir::runtime {

void UniqueFd::reset(int fd) {
    if (fd_ >= 0 && fd_ != fd) {
        const int before = errno;
        // Not repeated on EINTR: Linux has let go of the number by then.
        ::close(fd_);
        errno = before;
    }
    fd_ = fd;
}

}  // namespace weir::runtime

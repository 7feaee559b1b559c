// SPDX-License-Identifier: Apache-2.0
// epoll for rsockets (RDMACM_1.5), which is not offered: rpoll() and rselect() are.
#include <sys/epoll.h>

#include <cerrno>

extern "C" {

int repoll_create(int) {
    errno = EOPNOTSUPP;
    return -1;
}
int repoll_ctl(int, int, int, epoll_event*) {
    errno = EBADF;
    return -1;
}
int repoll_wait(int, epoll_event*, int, int) {
    errno = EBADF;
    return -1;
}

}  // extern "C"

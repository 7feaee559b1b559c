// SPDX-License-Identifier: Apache-2.0
// What every file of the drop-in needs at its C boundary: errors as the verbs give them, a fence
// that no exception crosses, and the second name of a function that the ABI has in two versions.
#pragma once

#include <pthread.h>

#include <cerrno>
#include <new>

#include <infiniband/verbs.h>

namespace weir::ibverbs {

/// For functions that return NULL and set errno.
template <class T>
T* fail_null(int error) {
    errno = error;
    return nullptr;
}

/// For functions that return -1 and set errno. 0 if there is no error.
inline int minus_one_if(int error) {
    if (error == 0) return 0;
    errno = error;
    return -1;
}

/// Runs `body`, which returns 0 or an errno value, so that nothing escapes into a C program. Thread
/// cancellation is an exception too, one that must not be swallowed; it is held off until `body` is
/// done.
template <class Body>
int fenced(Body&& body) noexcept {
    int cancel_state = 0;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    int error = 0;
    try {
        error = body();
    } catch (const std::bad_alloc&) {
        error = ENOMEM;
    } catch (...) {
        error = EIO;
    }
    pthread_setcancelstate(cancel_state, nullptr);
    return error;
}

/// The same for functions that give back an object: `body` sets its argument.
template <class T, class Body>
T* fenced_object(Body&& body) noexcept {
    T* object = nullptr;
    const int error = fenced([&] { return body(object); });
    return error == 0 ? object : fail_null<T>(error);
}

}  // namespace weir::ibverbs

// Gives `name` two versions: IBVERBS_1.1, the default, and IBVERBS_1.0. Programs of the 1.0 ABI
// (before 2007) cannot hold any object of ours, since their device list is empty (compat.cc): so
// one implementation serves, and its handle checks answer EINVAL. The default is spelt out, as the
// linker drops an unversioned name that has the address of a versioned one.
#define WEIR_ALSO_IN_1_0(name)                                               \
    extern "C" __attribute__((alias(#name))) __typeof__(name) name##_of_1_0; \
    __asm__(".symver " #name ", " #name "@@@IBVERBS_1.1");                   \
    __asm__(".symver " #name "_of_1_0, " #name "@IBVERBS_1.0")

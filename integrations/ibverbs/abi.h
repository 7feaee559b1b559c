// SPDX-License-Identifier: Apache-2.0
// What every file of the drop-in needs at its C boundary: errors as the verbs give them, a fence
// that no exception crosses, and the second name of a function that the ABI has in two versions.
#pragma once

#include <cxxabi.h>
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

/// Holds off the cancellation of the calling thread (pthread_cancel) while it lives.
class CancellationHeldOff {
  public:
    CancellationHeldOff() {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_);
        if (before_ == PTHREAD_CANCEL_ENABLE) here = true;
    }
    ~CancellationHeldOff() {
        if (before_ != PTHREAD_CANCEL_ENABLE) return;
        here = false;
        pthread_setcancelstate(before_, nullptr);
    }
    CancellationHeldOff(const CancellationHeldOff&) = delete;
    CancellationHeldOff& operator=(const CancellationHeldOff&) = delete;

    /// Whether it is this class, and not the program, that holds it off in this thread.
    static inline thread_local bool here = false;

  private:
    int before_ = PTHREAD_CANCEL_DISABLE;
};

/// Lets the thread be cancelled after all, in the midst of fenced(): around a wait that may be
/// long, with no lock held, and with everything to be undone in destructors.
class CancellationAllowed {
  public:
    CancellationAllowed() : held_off_(CancellationHeldOff::here) {
        if (held_off_) pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
    }
    ~CancellationAllowed() {
        if (held_off_) pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
    }
    CancellationAllowed(const CancellationAllowed&) = delete;
    CancellationAllowed& operator=(const CancellationAllowed&) = delete;

  private:
    bool held_off_;
};

/// Runs `body`, which returns 0 or an errno value, so that nothing escapes into a C program. Thread
/// cancellation is an exception too, one that must not be swallowed; it is held off until `body` is
/// done, except where body allows it.
template <class Body>
int fenced(Body&& body) {
    const CancellationHeldOff held_off;
    try {
        return body();
    } catch (const abi::__forced_unwind&) {
        throw;
    } catch (const std::bad_alloc&) {
        return ENOMEM;
    } catch (...) {
        return EIO;
    }
}

/// The same for functions that give back an object: `body` sets its argument.
template <class T, class Body>
T* fenced_object(Body&& body) {
    T* object = nullptr;
    const int error = fenced([&] { return body(object); });
    return error == 0 ? object : fail_null<T>(error);
}

}  // namespace weir::ibverbs

// The version of a name: WEIR_DEFAULT_VERSION that of the name itself, WEIR_SECOND_NAME another
// one, hidden, by which it is known too. The default is spelt out, as the linker drops an
// unversioned name that has the address of a versioned one.
#define WEIR_DEFAULT_VERSION(name, node) __asm__(".symver " #name ", " #name "@@@" node)
#define WEIR_SECOND_NAME(name, second, node)                                \
    extern "C" __attribute__((alias(#name), used)) __typeof__(name) second; \
    __asm__(".symver " #second ", " #name "@" node)

// What vendor libraries import has its version by the release of the private ABI: one for each that
// has it. IBVERBS_PRIVATE_34 is the default (rdma-core 34 to 56), as it is of the headers that we
// are built with; then come 57 and 58, 59 to 63, 64, 65.
#define WEIR_PRIVATE_SINCE_65(name) WEIR_SECOND_NAME(name, name##_of_65, "IBVERBS_PRIVATE_65")
#define WEIR_PRIVATE_SINCE_64(name)                             \
    WEIR_SECOND_NAME(name, name##_of_64, "IBVERBS_PRIVATE_64"); \
    WEIR_PRIVATE_SINCE_65(name)
#define WEIR_PRIVATE_SINCE_59(name)                             \
    WEIR_SECOND_NAME(name, name##_of_59, "IBVERBS_PRIVATE_59"); \
    WEIR_PRIVATE_SINCE_64(name)
#define WEIR_PRIVATE(name)                                      \
    WEIR_DEFAULT_VERSION(name, "IBVERBS_PRIVATE_34");           \
    WEIR_SECOND_NAME(name, name##_of_57, "IBVERBS_PRIVATE_57"); \
    WEIR_PRIVATE_SINCE_59(name)

// Gives `name` two versions: IBVERBS_1.1, the default, and IBVERBS_1.0. Programs of the 1.0 ABI
// (before 2007) cannot hold any object of ours, since their device list is empty (compat.cc): so
// one implementation serves, and its handle checks answer EINVAL.
#define WEIR_ALSO_IN_1_0(name)                 \
    WEIR_DEFAULT_VERSION(name, "IBVERBS_1.1"); \
    WEIR_SECOND_NAME(name, name##_of_1_0, "IBVERBS_1.0")

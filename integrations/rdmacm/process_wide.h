// SPDX-License-Identifier: Apache-2.0
// What the library has once in a process: objects that are made when first asked for, and threads.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <mutex>
#include <thread>
#include <utility>

namespace weir::rdmacm {

/// The one T of this process. Never destroyed: threads of the program may be in it when the process
/// ends.
template <class T>
class ProcessWide {
  public:
    /// Null if nobody has asked for it yet.
    static T* find() { return place.load(std::memory_order_acquire); }

    static T& get() {
        if (T* there = find(); there != nullptr) return *there;
        static std::mutex making;
        const std::lock_guard guard(making);
        if (T* there = find(); there != nullptr) return *there;
        T* made = new T;
        place.store(made, std::memory_order_release);
        return *made;
    }

    /// For the child of a fork, which begins anew. What was there stays in memory, where nobody
    /// finds it: destroying it would end what is the parent's.
    static void forget() { place.store(nullptr); }

  private:
    static inline std::atomic<T*> place{nullptr};
};

/// Starts a thread that nobody joins and no signal interrupts: the program's signals are for its
/// own threads. 0 or EAGAIN.
template <class Body>
int start_thread(Body&& body) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = 0;
    try {
        std::thread(std::forward<Body>(body)).detach();
    } catch (...) {
        error = EAGAIN;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return error;
}

}  // namespace weir::rdmacm

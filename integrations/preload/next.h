// SPDX-License-Identifier: Apache-2.0
// The functions that ours stand in front of: the C library's, or those of another preloaded
// library. Looked up by a constructor, while the program has one thread and holds no lock, or at
// the first call if another library's constructor comes earlier.
#pragma once

#include <dlfcn.h>
#include <errno.h>

namespace weir::preload {

template <class Function>
class Next {
  public:
    explicit constexpr Next(const char* name) : name_(name) {}

    /// Null only if the C library has no such function.
    Function* get() {
        Function* found = __atomic_load_n(&function_, __ATOMIC_ACQUIRE);
        return found != nullptr ? found : find();
    }

    template <class... Arguments>
    auto operator()(Arguments... arguments) -> decltype(auto) {
        return get()(arguments...);
    }

    Function* find() {
        const int error = errno;
        void* symbol = dlsym(RTLD_NEXT, name_);
        // What glibc keeps for old programs alone is found only by its version.
        if (symbol == nullptr) symbol = dlvsym(RTLD_NEXT, name_, "GLIBC_2.2.5");
        if (symbol == nullptr) symbol = dlvsym(RTLD_NEXT, name_, "GLIBC_2.4");
        auto* found = reinterpret_cast<Function*>(symbol);
        __atomic_store_n(&function_, found, __ATOMIC_RELEASE);
        errno = error;
        return found;
    }

  private:
    const char* name_;
    Function* function_ = nullptr;
};

}  // namespace weir::preload

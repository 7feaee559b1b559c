// SPDX-License-Identifier: Apache-2.0
// WEIR_CHECK: broken invariants of our own. Always on, also in release. Never used on outside
// input, which gets an error instead: a file, a packet or a caller can be wrong without Weir being
// wrong.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace weir::detail {

[[noreturn]] inline void check_failed(const char* what, const char* file, int line) {
    std::fprintf(stderr, "weir: internal error: check failed: %s at %s:%d\n", what, file, line);
    std::abort();
}

}  // namespace weir::detail

#define WEIR_CHECK(cond) \
    ((cond) ? static_cast<void>(0) : ::weir::detail::check_failed(#cond, __FILE__, __LINE__))
// For the per-packet path: compiled in debug builds only.
#ifdef NDEBUG
#define WEIR_DCHECK(cond) static_cast<void>(0)
#else
#define WEIR_DCHECK(cond) WEIR_CHECK(cond)
#endif

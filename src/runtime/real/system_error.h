// SPDX-License-Identifier: Apache-2.0
// Errors of the operating system in our own terms: which call, on what, and errno in words.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace weir::runtime {

/// "Permission denied" for EACCES. Thread-safe.
std::string errno_text(int number);

/// An Error whose code follows from errno: EACCES and EPERM are kDenied, ENOENT kNotFound, EEXIST
/// kExists, EBUSY kBusy, what says "used up" kNoSpace, lost peers kUnreachable, the rest kSystem.
Error system_error(int number, std::string_view what);

/// The failing return: `return fail_errno(errno, "cannot create a memfd");`
inline tl::unexpected<Error> fail_errno(int number, std::string_view what) {
    return tl::unexpected<Error>(system_error(number, what));
}

}  // namespace weir::runtime

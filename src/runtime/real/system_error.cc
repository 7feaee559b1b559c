// SPDX-License-Identifier: Apache-2.0
#include "runtime/real/system_error.h"

#include <array>
#include <cerrno>
#include <cstring>

namespace weir::runtime {
namespace {

ErrorCode code_of(int number) {
    switch (number) {
        case EACCES:
        case EPERM:
            return ErrorCode::kDenied;
        case ENOENT:
            return ErrorCode::kNotFound;
        case EEXIST:
            return ErrorCode::kExists;
        case EBUSY:
            return ErrorCode::kBusy;
        case ENOMEM:
        case ENOSPC:
        case EMFILE:
        case ENFILE:
        case EFBIG:
            return ErrorCode::kNoSpace;
        case ECONNREFUSED:
        case ECONNRESET:
        case EPIPE:
            return ErrorCode::kUnreachable;
        case EINVAL:
            return ErrorCode::kInvalid;
        default:
            return ErrorCode::kSystem;
    }
}

}  // namespace

std::string errno_text(int number) {
    std::array<char, 128> buffer{};
    // The GNU variant: returns the text, which need not lie in the buffer.
    return ::strerror_r(number, buffer.data(), buffer.size());
}

Error system_error(int number, std::string_view what) {
    std::string context(what);
    context += ": ";
    context += errno_text(number);
    return Error{code_of(number), std::move(context)};
}

}  // namespace weir::runtime

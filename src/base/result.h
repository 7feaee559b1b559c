// SPDX-License-Identifier: Apache-2.0
// Result<T>: a value, or the reason there is none. Every fallible control-path function returns
// one. The data path does not use it (no strings, no allocation there); it reports status enums
// instead.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <tl/expected.hpp>

namespace weir {

/// What went wrong, for code that reacts to it. A code exists only if some caller can do something
/// different because of it; everything else goes into `context`.
enum class ErrorCode : std::uint8_t {
    kInvalid,      ///< Bad input: a file, a flag, a packet, an argument. CLI exit code 2.
    kNotFound,     ///< The named thing does not exist.
    kExists,       ///< The named thing exists already.
    kUnreachable,  ///< No daemon, or it went away. CLI exit code 3.
    kDenied,       ///< Not permitted for this user. CLI exit code 4.
    kBusy,         ///< In use; refused. CLI exit code 5.
    kNoSpace,      ///< Memory, descriptors or table entries are used up.
    kSystem,       ///< The operating system refused; context names the call and errno text.
};

struct Error {
    ErrorCode code;
    std::string context;  ///< What failed, where (file:line:col or name), why. One line.
    std::string hint{};   ///< What to do next; may be empty.
};

/// A value of type T, or the reason there is none.
///
/// A class and not an alias: `[[nodiscard]]` does not attach to aliases, and a dropped error is the
/// one mistake this type exists to prevent. The price is that `and_then` is not available (it
/// insists on a plain tl::expected); use WEIR_TRY, which reads better.
template <class T>
class [[nodiscard]] Result : public tl::expected<T, Error> {
  public:
    using tl::expected<T, Error>::expected;
    // Implicit, so that `map` and `transform` results convert back.
    // NOLINTNEXTLINE(google-explicit-constructor)
    Result(tl::expected<T, Error> other) : tl::expected<T, Error>(std::move(other)) {}
};

/// Shorthand for the failing return: `return fail(ErrorCode::kNotFound, "no such port");`
inline tl::unexpected<Error> fail(ErrorCode code, std::string context, std::string hint = {}) {
    return tl::unexpected<Error>(Error{code, std::move(context), std::move(hint)});
}

}  // namespace weir

// Bind `decl` to the value of `expr`, or return its error from the enclosing function.
#define WEIR_TRY(decl, expr) WEIR_TRY_IMPL(WEIR_CAT(weir_try_, __LINE__), decl, expr)
#define WEIR_TRY_IMPL(tmp, decl, expr)                                        \
    auto tmp = (expr);                                                        \
    if (!tmp) return ::tl::unexpected<::weir::Error>(std::move(tmp).error()); \
    decl = *std::move(tmp)
// The same for a Result<void>.
#define WEIR_TRY_VOID(expr) WEIR_TRY_VOID_IMPL(WEIR_CAT(weir_try_, __LINE__), expr)
#define WEIR_TRY_VOID_IMPL(tmp, expr) \
    auto tmp = (expr);                \
    if (!tmp) return ::tl::unexpected<::weir::Error>(std::move(tmp).error())
#define WEIR_CAT(a, b) WEIR_CAT2(a, b)
#define WEIR_CAT2(a, b) a##b

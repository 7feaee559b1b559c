// SPDX-License-Identifier: Apache-2.0
// open, stat and their kin, as glibc 2.36 exports them: with and without 64, checked ones that
// _FORTIFY_SOURCE makes of them, and those that programs built before glibc 2.33 use for stat.
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "next.h"
#include "reroute.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using weir::preload::is_node;
using weir::preload::Next;
using weir::preload::PathBuffer;
using weir::preload::reroute;
using weir::preload::reroute_at;

namespace {

/// An open with these flags has a mode.
bool has_mode(int flags) {
    return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
}

mode_t mode_of(int flags, va_list arguments) {
    return has_mode(flags) ? va_arg(arguments, mode_t) : 0;
}

/// Device nodes are links in the tree: who asks for the link means the node.
int flags_for(const char* path, int flags) {
    return is_node(path) ? flags & ~AT_SYMLINK_NOFOLLOW : flags;
}

}  // namespace

// The declarations of the C library, which these names belong to, are kept out: they have
// attributes that ours cannot have, and hide some names behind macros.
#define WEIR_OPEN(name)                                                               \
    static Next<int(const char*, int, mode_t)> next_##name(#name);                    \
    EXPORT int name(const char* path, int flags, ...) {                               \
        va_list arguments;                                                            \
        va_start(arguments, flags);                                                   \
        const mode_t mode = mode_of(flags, arguments);                                \
        va_end(arguments);                                                            \
        PathBuffer buffer;                                                            \
        const char* found = reroute(path, buffer);                                    \
        return next_##name(found, is_node(path) ? flags & ~O_NOFOLLOW : flags, mode); \
    }
WEIR_OPEN(open)
WEIR_OPEN(open64)

#define WEIR_OPENAT(name)                                                                        \
    static Next<int(int, const char*, int, mode_t)> next_##name(#name);                          \
    EXPORT int name(int directory, const char* path, int flags, ...) {                           \
        va_list arguments;                                                                       \
        va_start(arguments, flags);                                                              \
        const mode_t mode = mode_of(flags, arguments);                                           \
        va_end(arguments);                                                                       \
        PathBuffer buffer;                                                                       \
        const char* found = reroute_at(directory, path, buffer);                                 \
        return next_##name(directory, found, is_node(path) ? flags & ~O_NOFOLLOW : flags, mode); \
    }
WEIR_OPENAT(openat)
WEIR_OPENAT(openat64)

#define WEIR_OPEN_2(name)                                  \
    static Next<int(const char*, int)> next_##name(#name); \
    EXPORT int name(const char* path, int flags) {         \
        PathBuffer buffer;                                 \
        return next_##name(reroute(path, buffer), flags);  \
    }
WEIR_OPEN_2(__open_2)
WEIR_OPEN_2(__open64_2)

#define WEIR_OPENAT_2(name)                                                        \
    static Next<int(int, const char*, int)> next_##name(#name);                    \
    EXPORT int name(int directory, const char* path, int flags) {                  \
        PathBuffer buffer;                                                         \
        return next_##name(directory, reroute_at(directory, path, buffer), flags); \
    }
WEIR_OPENAT_2(__openat_2)
WEIR_OPENAT_2(__openat64_2)

#define WEIR_FOPEN(name)                                             \
    static Next<FILE*(const char*, const char*)> next_##name(#name); \
    EXPORT FILE* name(const char* path, const char* mode) {          \
        PathBuffer buffer;                                           \
        return next_##name(reroute(path, buffer), mode);             \
    }
WEIR_FOPEN(fopen)
WEIR_FOPEN(fopen64)

#define WEIR_STAT(name, Stat)                                \
    static Next<int(const char*, Stat*)> next_##name(#name); \
    EXPORT int name(const char* path, Stat* facts) {         \
        PathBuffer buffer;                                   \
        return next_##name(reroute(path, buffer), facts);    \
    }
WEIR_STAT(stat, struct stat)
WEIR_STAT(stat64, struct stat64)

#define WEIR_LSTAT(name, follows, Stat)                         \
    static Next<int(const char*, Stat*)> next_##name(#name);    \
    EXPORT int name(const char* path, Stat* facts) {            \
        PathBuffer buffer;                                      \
        const char* found = reroute(path, buffer);              \
        if (is_node(path)) return next_##follows(found, facts); \
        return next_##name(found, facts);                       \
    }
WEIR_LSTAT(lstat, stat, struct stat)
WEIR_LSTAT(lstat64, stat64, struct stat64)

#define WEIR_FSTATAT(name, Stat)                                               \
    static Next<int(int, const char*, Stat*, int)> next_##name(#name);         \
    EXPORT int name(int directory, const char* path, Stat* facts, int flags) { \
        PathBuffer buffer;                                                     \
        const char* found = reroute_at(directory, path, buffer);               \
        return next_##name(directory, found, facts, flags_for(path, flags));   \
    }
WEIR_FSTATAT(fstatat, struct stat)
WEIR_FSTATAT(fstatat64, struct stat64)

// What the names above were before glibc 2.33: `version` says which struct is meant.
#define WEIR_XSTAT(name, Stat)                                     \
    static Next<int(int, const char*, Stat*)> next_##name(#name);  \
    EXPORT int name(int version, const char* path, Stat* facts) {  \
        PathBuffer buffer;                                         \
        return next_##name(version, reroute(path, buffer), facts); \
    }
WEIR_XSTAT(__xstat, struct stat)
WEIR_XSTAT(__xstat64, struct stat64)

#define WEIR_LXSTAT(name, follows, Stat)                                 \
    static Next<int(int, const char*, Stat*)> next_##name(#name);        \
    EXPORT int name(int version, const char* path, Stat* facts) {        \
        PathBuffer buffer;                                               \
        const char* found = reroute(path, buffer);                       \
        if (is_node(path)) return next_##follows(version, found, facts); \
        return next_##name(version, found, facts);                       \
    }
WEIR_LXSTAT(__lxstat, __xstat, struct stat)
WEIR_LXSTAT(__lxstat64, __xstat64, struct stat64)

#define WEIR_FXSTATAT(name, Stat)                                                           \
    static Next<int(int, int, const char*, Stat*, int)> next_##name(#name);                 \
    EXPORT int name(int version, int directory, const char* path, Stat* facts, int flags) { \
        PathBuffer buffer;                                                                  \
        const char* found = reroute_at(directory, path, buffer);                            \
        return next_##name(version, directory, found, facts, flags_for(path, flags));       \
    }
WEIR_FXSTATAT(__fxstatat, struct stat)
WEIR_FXSTATAT(__fxstatat64, struct stat64)

static Next<int(int, const char*, int, unsigned, struct statx*)> next_statx("statx");
EXPORT int statx(int directory, const char* path, int flags, unsigned mask, struct statx* facts) {
    PathBuffer buffer;
    const char* found = reroute_at(directory, path, buffer);
    return next_statx(directory, found, flags_for(path, flags), mask, facts);
}

#define WEIR_ACCESS(name)                                  \
    static Next<int(const char*, int)> next_##name(#name); \
    EXPORT int name(const char* path, int mode) {          \
        PathBuffer buffer;                                 \
        return next_##name(reroute(path, buffer), mode);   \
    }
WEIR_ACCESS(access)
WEIR_ACCESS(euidaccess)
WEIR_ACCESS(eaccess)

static Next<int(int, const char*, int, int)> next_faccessat("faccessat");
EXPORT int faccessat(int directory, const char* path, int mode, int flags) {
    PathBuffer buffer;
    return next_faccessat(directory, reroute_at(directory, path, buffer), mode, flags);
}

// ls -l asks for access lists. A node's link has none, and following it is what is meant.
#define WEIR_GETXATTR(name)                                                            \
    static Next<ssize_t(const char*, const char*, void*, size_t)> next_##name(#name);  \
    EXPORT ssize_t name(const char* path, const char* key, void* value, size_t size) { \
        PathBuffer buffer;                                                             \
        return next_##name(reroute(path, buffer), key, value, size);                   \
    }
WEIR_GETXATTR(getxattr)
WEIR_GETXATTR(lgetxattr)

#define WEIR_LISTXATTR(name)                                             \
    static Next<ssize_t(const char*, char*, size_t)> next_##name(#name); \
    EXPORT ssize_t name(const char* path, char* list, size_t size) {     \
        PathBuffer buffer;                                               \
        return next_##name(reroute(path, buffer), list, size);           \
    }
WEIR_LISTXATTR(listxattr)
WEIR_LISTXATTR(llistxattr)

namespace {
__attribute__((constructor)) void find_all() {
    next_open.find(), next_open64.find(), next_openat.find(), next_openat64.find();
    next___open_2.find(), next___open64_2.find();
    next___openat_2.find(), next___openat64_2.find();
    next_fopen.find(), next_fopen64.find();
    next_stat.find(), next_stat64.find(), next_lstat.find(), next_lstat64.find();
    next_fstatat.find(), next_fstatat64.find();
    next___xstat.find(), next___xstat64.find(), next___lxstat.find(), next___lxstat64.find();
    next___fxstatat.find(), next___fxstatat64.find(), next_statx.find();
    next_access.find(), next_euidaccess.find(), next_eaccess.find(), next_faccessat.find();
    next_getxattr.find(), next_lgetxattr.find(), next_listxattr.find(), next_llistxattr.find();
}
}  // namespace

// SPDX-License-Identifier: Apache-2.0
// Folders, links, and the paths that the C library works out.
#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "next.h"
#include "reroute.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using weir::preload::is_node;
using weir::preload::Next;
using weir::preload::PathBuffer;
using weir::preload::reroute;
using weir::preload::reroute_at;
using weir::preload::strip_tree;

static Next<DIR*(const char*)> next_opendir("opendir");
EXPORT DIR* opendir(const char* path) {
    PathBuffer buffer;
    return next_opendir(reroute(path, buffer));
}

#define WEIR_SCANDIR(name, Entry)                                                 \
    static Next<int(const char*, Entry***, int (*)(const Entry*),                 \
                    int (*)(const Entry**, const Entry**))>                       \
        next_##name(#name);                                                       \
    EXPORT int name(const char* path, Entry*** list, int (*wanted)(const Entry*), \
                    int (*order)(const Entry**, const Entry**)) {                 \
        PathBuffer buffer;                                                        \
        return next_##name(reroute(path, buffer), list, wanted, order);           \
    }
WEIR_SCANDIR(scandir, struct dirent)
WEIR_SCANDIR(scandir64, struct dirent64)

static Next<int(const char*)> next_chdir("chdir");
EXPORT int chdir(const char* path) {
    PathBuffer buffer;
    return next_chdir(reroute(path, buffer));
}

static Next<ssize_t(int, const char*, char*, size_t)> next_readlinkat("readlinkat");
EXPORT ssize_t readlinkat(int directory, const char* path, char* text, size_t size) {
    if (is_node(path)) {
        errno = EINVAL;
        return -1;
    }
    PathBuffer buffer;
    return next_readlinkat(directory, reroute_at(directory, path, buffer), text, size);
}

static Next<ssize_t(const char*, char*, size_t)> next_readlink("readlink");
EXPORT ssize_t readlink(const char* path, char* text, size_t size) {
    if (is_node(path)) {
        errno = EINVAL;
        return -1;
    }
    PathBuffer buffer;
    return next_readlink(reroute(path, buffer), text, size);
}

// The checked ones: the C library's own end the program if the buffer is smaller than said, and so
// they are called when that is so.
static Next<ssize_t(const char*, char*, size_t, size_t)> next___readlink_chk("__readlink_chk");
EXPORT ssize_t __readlink_chk(const char* path, char* text, size_t size, size_t room) {
    return size > room ? next___readlink_chk(path, text, size, room) : readlink(path, text, size);
}
static Next<ssize_t(int, const char*, char*, size_t, size_t)> next___readlinkat_chk(
    "__readlinkat_chk");
EXPORT ssize_t __readlinkat_chk(int directory, const char* path, char* text, size_t size,
                                size_t room) {
    return size > room ? next___readlinkat_chk(directory, path, text, size, room)
                       : readlinkat(directory, path, text, size);
}

static Next<char*(const char*, char*)> next_realpath("realpath");

namespace {
/// What was resolved is told as the program knows it: outside the tree.
char* resolve(const char* path, char* resolved) {
    PathBuffer buffer;
    const char* found = reroute(path, buffer);
    char* result = next_realpath(found, resolved);
    if (result == nullptr || strip_tree(result) || found == path || !is_node(path)) return result;
    // A node is itself, not what the link in the tree leads to.
    if (resolved == nullptr) {
        free(result);
        return strdup(path);
    }
    return strcpy(resolved, path);
}
}  // namespace

EXPORT char* realpath(const char* path, char* resolved) {
    return resolve(path, resolved);
}

static Next<char*(const char*, char*, size_t)> next___realpath_chk("__realpath_chk");
EXPORT char* __realpath_chk(const char* path, char* resolved, size_t room) {
    return room < PATH_MAX ? next___realpath_chk(path, resolved, room) : resolve(path, resolved);
}

EXPORT char* canonicalize_file_name(const char* path) {
    return resolve(path, nullptr);
}

// glob() looks with functions of its own, so it is given the pattern within the tree.
#define WEIR_GLOB(name, Glob)                                                                \
    static Next<int(const char*, int, int (*)(const char*, int), Glob*)> next_##name(#name); \
    EXPORT int name(const char* pattern, int flags, int (*on_error)(const char*, int),       \
                    Glob* result) {                                                          \
        PathBuffer buffer;                                                                   \
        const char* found = reroute(pattern, buffer);                                        \
        const int code = next_##name(found, flags, on_error, result);                        \
        if (found == pattern || code != 0) return code;                                      \
        const size_t first = (flags & GLOB_DOOFFS) != 0 ? result->gl_offs : 0;               \
        for (size_t i = 0; i < result->gl_pathc; ++i)                                        \
            strip_tree(result->gl_pathv[first + i]);                                         \
        return code;                                                                         \
    }
WEIR_GLOB(glob, glob_t)
WEIR_GLOB(glob64, glob64_t)

namespace {
__attribute__((constructor)) void find_all() {
    next_opendir.find(), next_scandir.find(), next_scandir64.find(), next_chdir.find();
    next_readlink.find(), next_readlinkat.find();
    next___readlink_chk.find(), next___readlinkat_chk.find();
    next_realpath.find(), next___realpath_chk.find(), next_glob.find(), next_glob64.find();
}
}  // namespace

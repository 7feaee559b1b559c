// SPDX-License-Identifier: Apache-2.0
#include "reroute.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace weir::preload {
namespace {

struct Prefix {
    const char* text;
    size_t length;
    bool whole_word;  ///< A longer name is another file.
};

#define PREFIX(text, whole_word) \
    { text, sizeof(text) - 1, whole_word }
constexpr Prefix kPrefixes[] = {
    PREFIX("/dev/infiniband", true),
    PREFIX("/sys/class/infiniband", true),
    PREFIX("/sys/class/infiniband_verbs", true),
    PREFIX("/sys/class/pci_bus/5745:", false),
    PREFIX("/sys/bus/pci/devices/5745:", false),
    PREFIX("/sys/devices/pci5745:", false),
};
#undef PREFIX

constexpr const char* kNodes = "/dev/infiniband/";

bool starts_with(const char* path, const Prefix& prefix) {
    if (strncmp(path, prefix.text, prefix.length) != 0) return false;
    const char next = path[prefix.length];
    return !prefix.whole_word || next == '\0' || next == '/';
}

/// `path` begins with a slash.
bool is_ours(const char* path) {
    // Nearly every path of a program leaves here.
    if (path[1] != 's' && path[1] != 'd') return false;
    for (const Prefix& prefix : kPrefixes)
        if (starts_with(path, prefix)) return true;
    return false;
}

const char* tree() {
    const char* root = getenv(kTreeVariable);
    return root != nullptr && root[0] == '/' ? root : nullptr;
}

const char* within_tree(const char* path, PathBuffer& buffer) {
    const char* root = tree();
    if (root == nullptr) return path;
    const size_t root_length = strlen(root);
    const size_t path_length = strlen(path);
    if (root_length + path_length >= sizeof buffer) return path;
    memcpy(buffer, root, root_length);
    memcpy(buffer + root_length, path, path_length + 1);
    return buffer;
}

bool is_root_folder(int directory) {
    struct stat there;
    struct stat root;
    return syscall(SYS_fstat, directory, &there) == 0 && syscall(SYS_stat, "/", &root) == 0 &&
           there.st_dev == root.st_dev && there.st_ino == root.st_ino;
}

}  // namespace

const char* reroute(const char* path, PathBuffer& buffer) {
    if (path == nullptr || path[0] != '/' || !is_ours(path)) return path;
    return within_tree(path, buffer);
}

const char* reroute_at(int directory, const char* path, PathBuffer& buffer) {
    if (path == nullptr || path[0] == '/' || directory == AT_FDCWD) return reroute(path, buffer);
    if (path[0] != 's' && path[0] != 'd') return path;
    char absolute[PATH_MAX];
    const size_t length = strlen(path);
    if (length + 2 > sizeof absolute) return path;
    absolute[0] = '/';
    memcpy(absolute + 1, path, length + 1);
    if (!is_ours(absolute)) return path;
    const int error = errno;
    const bool from_root = is_root_folder(directory);
    errno = error;
    if (!from_root) return path;
    const char* found = within_tree(absolute, buffer);
    return found == absolute ? path : found;
}

bool is_node(const char* path) {
    const size_t length = strlen(kNodes);
    return path != nullptr && strncmp(path, kNodes, length) == 0 && path[length] != '\0' &&
           strchr(path + length, '/') == nullptr && tree() != nullptr;
}

bool strip_tree(char* path) {
    const char* root = tree();
    if (root == nullptr || path == nullptr) return false;
    const size_t length = strlen(root);
    if (strncmp(path, root, length) != 0 || path[length] != '/') return false;
    memmove(path, path + length, strlen(path + length) + 1);
    return true;
}

}  // namespace weir::preload

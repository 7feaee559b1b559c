// SPDX-License-Identifier: Apache-2.0
// The runtime folder: where fabrics that are up can be found. Path, mode and ownership are told in
// arena/attach.h. One folder per fabric inside it:
//
//   <runtime folder>/<fabric>/lock         held (flock) by the daemon as long as it lives; its pid
//   <runtime folder>/<fabric>/attach.sock  where programs attach
//   <runtime folder>/<fabric>/source       the file that the fabric was made from, word for word
//   <runtime folder>/<fabric>/log          what the daemon had to say
//   <runtime folder>/<fabric>/sys/         device files of its hosts (lab/host_tree.h)
//
// Folders are opened without following a symbolic link in their last part and then checked by
// descriptor, so that what was checked is what is used.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "runtime/real/unique_fd.h"

namespace weir::runtime {

inline constexpr const char* kAttachSocketName = "attach.sock";
inline constexpr const char* kLockFileName = "lock";
inline constexpr const char* kSourceFileName = "source";
inline constexpr const char* kLogFileName = "log";
inline constexpr const char* kTreesName = "sys";

/// Names of fabrics are file names: letters, digits, '-', '_' and '.', not starting with '.' or
/// '-', 1 to 63 characters.
bool is_fabric_name(std::string_view name);

struct Folder {
    std::string path;
    UniqueFd fd;
};

/// Path of the runtime folder by the environment. Nothing is touched.
std::string runtime_folder_path();

/// Opens the runtime folder. kNotFound if it is not there; kDenied if it is a symbolic link,
/// belongs to somebody else, or is open to others. Root may name another user's by
/// WEIR_RUNTIME_DIR.
Result<Folder> open_runtime_folder();
/// The same, but makes it first where it is missing (its parent must exist).
Result<Folder> make_runtime_folder();

/// The folder of one fabric. REQUIRES: is_fabric_name(name).
Result<Folder> open_fabric_folder(const Folder& runtime, const std::string& name);
Result<Folder> make_fabric_folder(const Folder& runtime, const std::string& name);

/// Names of all fabrics that have a folder, sorted. Whether they are up is for FabricLock to say.
std::vector<std::string> list_fabric_folders(const Folder& runtime);

/// The lock of a fabric: who holds it is its daemon. It is an open file description's (flock), so
/// it passes to forked children and goes with the last of them.
class FabricLock {
  public:
    /// Takes the lock. kBusy if somebody has it.
    static Result<FabricLock> take(const Folder& fabric);
    /// True while a daemon holds the lock.
    static bool held(const Folder& fabric);
    /// Pid of the daemon that holds the lock, 0 if unknown.
    static int holder(const Folder& fabric);
    /// Notes our pid in the file, for people and for `holder`.
    Result<void> sign() const;

  private:
    explicit FabricLock(UniqueFd fd) : fd_(std::move(fd)) {}
    UniqueFd fd_;
};

/// Whole files, bounded by `limit` bytes.
Result<std::string> read_file(const Folder& folder, const std::string& name, std::size_t limit);
Result<void> write_file(const Folder& folder, const std::string& name, std::string_view text);
/// Removes a file; true if it is gone now.
bool remove_file(const Folder& folder, const std::string& name);
/// Removes the folder of device files with all that is in it.
void remove_trees(const Folder& fabric);
/// Removes a fabric's folder with all that we put into it.
void remove_fabric_folder(const Folder& runtime, const std::string& name);

}  // namespace weir::runtime

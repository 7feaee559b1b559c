// SPDX-License-Identifier: Apache-2.0
// Up and down: how a fabric begins and ends on this machine. What `weir up` and `weir down` do,
// without the words.
//
// The lock in the fabric's folder is the one truth: who holds it is the fabric. A folder without a
// holder is what a killed daemon left, and is cleaned away by the next bring_up() of that name.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "lab/fabric_source.h"

namespace weir::lab {

enum class UpOutcome {
    kStarted,
    kAlready,  ///< Was up, made from the very same file.
    kEnded,    ///< Foreground only: it was up, and has been taken down again.
};

struct UpRequest {
    std::string name;
    FabricSource source;
    bool foreground = false;
};

/// Builds the fabric, starts its daemon and returns when programs can attach. With `foreground`
/// this process is the daemon: `on_ready` is called, and the return is the fabric's end. kBusy: up
/// already, from a different file. kInvalid, kNoSpace: cannot be built. Otherwise no trace is left
/// of a failure. Forks: REQUIRES a single-threaded caller.
Result<UpOutcome> bring_up(const UpRequest& request, void (*on_ready)(void*), void* context);

enum class DownOutcome {
    kDown,
    kWasNotUp,
};
/// Takes a fabric down and waits for its daemon to end, at most `seconds`. A daemon that does not
/// answer in that time is killed.
Result<DownOutcome> take_down(const std::string& name, int seconds);

struct FabricState {
    std::string name;
    bool up;  ///< False: its daemon was killed and has left its folder behind.
};
/// The fabrics of this user, sorted by name.
Result<std::vector<FabricState>> list_fabrics();

}  // namespace weir::lab

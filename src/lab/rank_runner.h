// SPDX-License-Identifier: Apache-2.0
// Runs programs on hosts of a fabric: several ranks side by side, their output labelled line by
// line, their ends and our signals handled. What `weir run` does, without the words. (A single rank
// needs none of this: it takes our own place.)
//
// Signals: the first SIGINT or SIGTERM goes on to all ranks, the second kills them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "runtime/real/child_process.h"
#include "runtime/real/event_loop.h"

namespace weir::lab {

struct Rank {
    runtime::Program program;
    std::string label;  ///< Before each line, e.g. "[h0] ". May be empty.
};

/// The second rank is a client of the first one: it is started once the first listens on a TCP port
/// (or after kServerPatience), and if one fails the other one is ended.
enum class Together { kIndependent, kServerAndClient };

class RankRunner {
  public:
    static constexpr int kServerPatienceMilliseconds = 3000;
    /// What the survivor of a pair has to end by itself, and then again after SIGTERM.
    static constexpr int kGraceMilliseconds = 3000;

    /// Runs all to their ends. The exit code is that of the rank that failed first, 0 if none did.
    /// The error says which program could not be started. REQUIRES: no other thread.
    static Result<int> run(const std::vector<Rank>& ranks, Together together);

  private:
    struct Stream {
        std::size_t rank;
        std::FILE* to;
        runtime::UniqueFd fd;
        std::string line;  ///< What has come of a line that is not complete.
    };
    struct Running {
        pid_t pid = 0;
        runtime::UniqueFd ended;
        bool alive = false;
    };

    RankRunner(const std::vector<Rank>& ranks, Together together, runtime::Poller poller,
               runtime::UniqueFd signals);
    Result<void> start(std::size_t rank);
    void turn(int milliseconds);
    void wait_for_server();
    void wait_for_all();
    void on_signal();
    void on_end(std::size_t rank);
    void on_output(std::uint64_t token);
    void pass_on(Stream& stream, bool complete);
    void signal_all(int number);
    [[nodiscard]] bool any_alive() const;

    const std::vector<Rank>& ranks_;
    Together together_;
    runtime::Poller poller_;
    runtime::UniqueFd signals_;
    std::vector<Running> running_;
    std::map<std::uint64_t, Stream> streams_;  ///< By token.
    int exit_code_ = 0;
    int signals_seen_ = 0;
    std::int64_t deadline_ = 0;  ///< When survivors are to be ended; 0: not at all.
    int next_signal_ = 0;        ///< What they are then sent.
};

}  // namespace weir::lab

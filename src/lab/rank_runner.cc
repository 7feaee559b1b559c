// SPDX-License-Identifier: Apache-2.0
#include "lab/rank_runner.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>

namespace weir::lab {
namespace {

// Tokens of the poller: the signals, then three for each rank.
constexpr std::uint64_t kSignalToken = 0;
enum : std::uint64_t { kEnded = 1, kOutput = 2, kErrors = 3, kTokensPerRank = 3 };
constexpr std::uint64_t token_of(std::size_t rank, std::uint64_t what) {
    return rank * kTokensPerRank + what;
}

constexpr int kTurnMilliseconds = 20;
/// After the last rank has ended: how long its descendants may still hold our pipes.
constexpr int kDrainMilliseconds = 200;
/// A longer line is passed on in parts.
constexpr std::size_t kLineBytesMax = 64UL << 10U;

}  // namespace

RankRunner::RankRunner(const std::vector<Rank>& ranks, Together together, runtime::Poller poller,
                       runtime::UniqueFd signals)
    : ranks_(ranks),
      together_(together),
      poller_(std::move(poller)),
      signals_(std::move(signals)),
      running_(ranks.size()) {}

Result<int> RankRunner::run(const std::vector<Rank>& ranks, Together together) {
    WEIR_TRY(runtime::Poller poller, runtime::Poller::create());
    WEIR_TRY(runtime::UniqueFd signals, runtime::watch_end_signals());
    WEIR_TRY_VOID(poller.add(signals.get(), kSignalToken));
    RankRunner runner(ranks, together, std::move(poller), std::move(signals));
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        if (rank == 1 && together == Together::kServerAndClient) {
            runner.wait_for_server();
        }
        if (runner.signals_seen_ > 0 || runner.exit_code_ != 0) {
            break;
        }
        if (auto started = runner.start(rank); !started) {
            runner.signal_all(SIGKILL);
            runner.wait_for_all();
            return tl::unexpected<Error>(std::move(started).error());
        }
    }
    runner.wait_for_all();
    return runner.exit_code_;
}

Result<void> RankRunner::start(std::size_t rank) {
    WEIR_TRY(runtime::ChildProcess child, runtime::start_child(ranks_[rank].program));
    running_[rank] = {child.pid, std::move(child.ended), true};
    streams_[token_of(rank, kOutput)] = {rank, stdout, std::move(child.output), {}};
    streams_[token_of(rank, kErrors)] = {rank, stderr, std::move(child.errors), {}};
    WEIR_TRY_VOID(poller_.add(running_[rank].ended.get(), token_of(rank, kEnded)));
    for (const auto what : {kOutput, kErrors}) {
        const auto token = token_of(rank, what);
        WEIR_TRY_VOID(poller_.add(streams_[token].fd.get(), token));
    }
    return {};
}

void RankRunner::turn(int milliseconds) {
    for (const std::uint64_t token : poller_.wait(milliseconds)) {
        if (token == kSignalToken) {
            on_signal();
        } else if ((token - 1) % kTokensPerRank + 1 == kEnded) {
            on_end((token - 1) / kTokensPerRank);
        } else {
            on_output(token);
        }
    }
    if (deadline_ != 0 && runtime::monotonic_milliseconds() >= deadline_) {
        signal_all(next_signal_);
        next_signal_ = SIGKILL;
        deadline_ = runtime::monotonic_milliseconds() + kGraceMilliseconds;
    }
}

void RankRunner::wait_for_server() {
    const auto limit = runtime::monotonic_milliseconds() + kServerPatienceMilliseconds;
    while (any_alive() && signals_seen_ == 0 && runtime::monotonic_milliseconds() < limit &&
           !runtime::group_listens(running_[0].pid)) {
        turn(kTurnMilliseconds);
    }
}

void RankRunner::wait_for_all() {
    while (any_alive()) {
        turn(deadline_ == 0 ? -1 : kTurnMilliseconds);
    }
    const auto limit = runtime::monotonic_milliseconds() + kDrainMilliseconds;
    while (!streams_.empty() && runtime::monotonic_milliseconds() < limit) {
        turn(kTurnMilliseconds);
    }
    for (auto& [token, stream] : streams_) {
        pass_on(stream, true);
    }
    streams_.clear();
}

void RankRunner::on_signal() {
    const int number = runtime::take_signal(signals_.get());
    if (number != 0) {
        signal_all(++signals_seen_ == 1 ? number : SIGKILL);
    }
}

void RankRunner::on_end(std::size_t rank) {
    auto& running = running_[rank];
    if (!running.alive) {
        return;
    }
    running.alive = false;
    poller_.remove(running.ended.get());
    running.ended.reset();
    const int code = runtime::reap_child(running.pid);
    if (code == 0) {
        return;
    }
    exit_code_ = exit_code_ == 0 ? code : exit_code_;
    if (together_ == Together::kServerAndClient && deadline_ == 0) {
        next_signal_ = SIGTERM;
        deadline_ = runtime::monotonic_milliseconds() + kGraceMilliseconds;
    }
}

void RankRunner::on_output(std::uint64_t token) {
    const auto found = streams_.find(token);
    if (found == streams_.end()) {
        return;
    }
    Stream& stream = found->second;
    std::array<char, 16384> part;
    const ssize_t taken = ::read(stream.fd.get(), part.data(), part.size());
    if (taken > 0) {
        stream.line.append(part.data(), static_cast<std::size_t>(taken));
        pass_on(stream, false);
    } else if (taken == 0) {
        pass_on(stream, true);
        poller_.remove(stream.fd.get());
        streams_.erase(found);
    }
}

void RankRunner::pass_on(Stream& stream, bool complete) {
    if (complete && !stream.line.empty() && stream.line.back() != '\n') {
        stream.line += '\n';
    }
    const std::string& label = ranks_[stream.rank].label;
    std::string out;
    std::size_t begin = 0;
    for (auto end = stream.line.find('\n'); end != std::string::npos;
         end = stream.line.find('\n', begin)) {
        out.append(label).append(stream.line, begin, end + 1 - begin);
        begin = end + 1;
    }
    stream.line.erase(0, begin);
    if (stream.line.size() > kLineBytesMax) {
        out.append(label).append(stream.line).append("\n");
        stream.line.clear();
    }
    std::fwrite(out.data(), 1, out.size(), stream.to);
    std::fflush(stream.to);
}

void RankRunner::signal_all(int number) {
    for (const auto& running : running_) {
        if (running.alive) {
            runtime::signal_group(running.pid, number);
        }
    }
}

bool RankRunner::any_alive() const {
    return std::any_of(running_.begin(), running_.end(),
                       [](const Running& running) { return running.alive; });
}

}  // namespace weir::lab

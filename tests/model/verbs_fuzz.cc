// SPDX-License-Identifier: Apache-2.0
// Differential test of the engine against the reference model: random verbs programs over two hosts
// of a live fabric, in one process or in two.
//
//   verbs_fuzz [--first N] [--count N] [--two] [--show] [--keep]
//     --two   each side in a process of its own
//     --show  prints the programs instead of running them
//     --keep  does not cut failing programs down
// Exit code: 0 all as the model has it, 1 not.
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>
#include <string_view>

#include "../engine/fixture.h"
#include "live.h"

namespace weir::model {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(3);
constexpr int kPollsAfter = 30;  ///< For what must not come.

/// Polls all sides until each is as the model has it, or patience ends. The first difference.
std::string settle(const std::vector<LiveSide*>& sides, const Model& model, int first_side) {
    const auto until = Clock::now() + kPatience;
    const auto difference = [&] {
        for (std::size_t i = 0; i < sides.size(); ++i) {
            auto text = sides[i]->differs_from(model.side(first_side + static_cast<int>(i)));
            if (!text.empty()) return text;
        }
        return std::string();
    };
    std::string text;
    do {
        for (auto* side : sides)
            side->poll();
        text = difference();
    } while (!text.empty() && Clock::now() < until);
    if (!text.empty()) return text;
    for (int i = 0; i < kPollsAfter; ++i)
        for (auto* side : sides)
            side->poll();
    return difference();
}

/// Runs the steps; `meet` is called where sides in other processes must have come as far.
std::string run_steps(const Program& program, const std::vector<LiveSide*>& sides, int first_side,
                      const std::function<bool()>& meet) {
    Model model(program);
    int number = 0;
    bool received = false;
    for (const auto& step : program.steps) {
        const int wanted = model.apply(step);
        std::string text;
        // Receives come before the group's messages, on the other side as well.
        const bool receives = step.kind == StepKind::kReceive;
        if (received && !receives && !meet()) return "the other side has failed";
        received = receives;
        for (std::size_t i = 0; i < sides.size() && text.empty(); ++i) {
            const int error = sides[i]->apply(step);
            const bool mine = step.side == first_side + static_cast<int>(i) &&
                              step.kind != StepKind::kSettle && step.kind != StepKind::kReconnect;
            if (mine && error != wanted)
                text = std::string("posting gives ") + std::strerror(error) + " instead of " +
                       std::strerror(wanted);
        }
        if (step.kind == StepKind::kReconnect) {
            if (!meet()) return "the other side has failed";
            for (auto* side : sides)
                side->bring_up(step.pair);
        }
        if (text.empty() && step.kind == StepKind::kSettle) {
            text = settle(sides, model, first_side);
            if (!meet()) return "the other side has failed";
        }
        if (!text.empty()) return "step " + std::to_string(number) + ": " + text;
        ++number;
    }
    return {};
}

std::string run_here(Host& a, Host& b, const Program& program) {
    LiveSide left(a, program, false);
    LiveSide right(b, program, false);
    left.connect(right.address());
    right.connect(left.address());
    return run_steps(program, {&left, &right}, 0, [] { return true; });
}

bool is_defined(const Program& program) {
    Model model(program);
    for (const auto& step : program.steps)
        model.apply(step);
    return model.undefined().empty();
}

/// Takes out what is not needed for the program to fail: first by halves, then step by step.
Program cut_down(Program program, const std::function<std::string(const Program&)>& run) {
    int runs = 0;
    for (std::size_t size = program.steps.size() / 2; size > 0; size /= 2) {
        for (std::size_t at = 0; at < program.steps.size() && runs < 60;) {
            Program less = program;
            const auto from = less.steps.begin() + static_cast<std::ptrdiff_t>(at);
            const auto end = std::min(at + size, program.steps.size());
            less.steps.erase(from, less.steps.begin() + static_cast<std::ptrdiff_t>(end));
            if (less.steps.empty() || less.steps.back().kind != StepKind::kSettle)
                less.steps.emplace_back();
            const bool smaller = less.steps.size() < program.steps.size();
            if (smaller && is_defined(less) && (++runs, !run(less).empty()))
                program = std::move(less);
            else
                at += size;
        }
    }
    return program;
}

void report(const Program& program, const std::string& text) {
    std::printf("FAILED: seed %llu: %s\n%s", static_cast<unsigned long long>(program.seed),
                text.c_str(), text_of(program).c_str());
    std::fflush(stdout);
}

struct Options {
    std::uint64_t first = 1;
    std::uint64_t count = 200;
    bool two = false;
    bool show = false;
    bool keep = false;
};

int run_in_one(const Options& options) {
    Host a("h0", 0);
    Host b("h1", 1);
    const auto run = [&](const Program& program) { return run_here(a, b, program); };
    for (std::uint64_t seed = options.first; seed < options.first + options.count; ++seed) {
        const auto program = generate(seed);
        auto text = run(program);
        if (text.empty()) continue;
        report(program, text);
        if (options.keep) return 1;
        const auto less = cut_down(program, run);
        const auto again = run(less);
        std::printf("cut down:\n");
        report(less, again.empty() ? text : again);
        return 1;
    }
    return 0;
}

/// The other process. Both draw the same programs and do their side of them.
class Peer {
  public:
    explicit Peer(int fd) : fd_(fd) {}
    template <class T>
    T exchange(const T& mine) {
        T theirs{};
        if (send(fd_, &mine, sizeof mine, MSG_NOSIGNAL) != sizeof mine ||
            recv(fd_, &theirs, sizeof theirs, MSG_WAITALL) != sizeof theirs)
            std::_Exit(3);
        return theirs;
    }
    /// Both are here and all was well. Polls until the other is, too.
    bool meet(LiveSide& side, bool good) {
        const char word = good ? 1 : 0;
        if (send(fd_, &word, 1, MSG_NOSIGNAL) != 1) return false;
        pollfd readable{fd_, POLLIN, 0};
        while (::poll(&readable, 1, 0) == 0)
            side.poll();
        char theirs = 0;
        return recv(fd_, &theirs, 1, 0) == 1 && theirs == 1;
    }

  private:
    int fd_;
};

int run_side(const Options& options, int index, int fd) {
    Host host(index == 0 ? "h0" : "h1", index);
    Peer peer(fd);
    for (std::uint64_t seed = options.first; seed < options.first + options.count; ++seed) {
        const auto program = generate(seed);
        LiveSide side(host, program, true);
        side.connect(peer.exchange(side.address()));
        peer.exchange(0);
        const auto text = run_steps(program, {&side}, index, [&] { return peer.meet(side, true); });
        if (!text.empty()) {
            report(program, text);
            return 1;
        }
        peer.exchange(0);
    }
    return 0;
}

int run_in_two(const Options& options) {
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) return 2;
    std::fflush(stdout);
    const pid_t child = fork();
    if (child < 0) return 2;
    if (child == 0) {
        close(fds[0]);
        std::_Exit(run_side(options, 1, fds[1]));
    }
    close(fds[1]);
    const int mine = run_side(options, 0, fds[0]);
    close(fds[0]);
    int status = 0;
    waitpid(child, &status, 0);
    return mine != 0 ? mine : WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

std::optional<Options> parse(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; ++i) {
        const std::string_view word = argv[i];
        const bool number = (word == "--first" || word == "--count") && i + 1 < argc;
        if (number)
            (word == "--first" ? options.first : options.count) = std::stoull(argv[++i]);
        else if (word == "--two")
            options.two = true;
        else if (word == "--show")
            options.show = true;
        else if (word == "--keep")
            options.keep = true;
        else
            return std::nullopt;
    }
    return options;
}

int run(const Options& options) {
    if (options.show) {
        for (auto seed = options.first; seed < options.first + options.count; ++seed)
            std::printf("%s\n", text_of(generate(seed)).c_str());
        return 0;
    }
    hca::LiveFabric::ensure();
    const int failed = options.two ? run_in_two(options) : run_in_one(options);
    if (failed == 0)
        std::printf("%llu programs from seed %llu on: as the model has them\n",
                    static_cast<unsigned long long>(options.count),
                    static_cast<unsigned long long>(options.first));
    return failed;
}

}  // namespace
}  // namespace weir::model

int main(int argc, char** argv) {
    const auto options = weir::model::parse(argc, argv);
    if (!options) {
        std::fprintf(stderr,
                     "usage: verbs_fuzz [--first N] [--count N] [--two] [--show] [--keep]\n");
        return 2;
    }
    return weir::model::run(*options);
}

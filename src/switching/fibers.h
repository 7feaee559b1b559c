// SPDX-License-Identifier: Apache-2.0
// Fibers for tests of lock-free code: many flows of control on one thread, interleaved at named
// points by a seeded generator, each of which may be stopped for good at any point. One seed, one
// history.
#pragma once

#include <ucontext.h>

#include <functional>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/rng.h"

namespace weir::switching {

class Fibers {
  public:
    explicit Fibers(std::uint64_t seed) : rng_(seed) {}

    void spawn(std::function<void()> body) {
        auto fiber = std::make_unique<Fiber>();
        fiber->body = std::move(body);
        fiber->stack.resize(kStackBytes);
        WEIR_CHECK(getcontext(&fiber->context) == 0);
        fiber->context.uc_stack.ss_sp = fiber->stack.data();
        fiber->context.uc_stack.ss_size = fiber->stack.size();
        fiber->context.uc_link = &scheduler_;
        makecontext(&fiber->context, &Fibers::enter, 0);
        fibers_.push_back(std::move(fiber));
    }

    /// Runs until every fiber has ended or been killed. At each point the running fiber is killed
    /// once in `kill_one_in` (0: never), else suspended once in `switch_one_in`.
    void run(std::uint64_t switch_one_in, std::uint64_t kill_one_in) {
        switch_one_in_ = switch_one_in;
        kill_one_in_ = kill_one_in;
        current_ = this;
        std::vector<Fiber*> live;
        for (auto& fiber : fibers_)
            live.push_back(fiber.get());
        while (!live.empty()) {
            const auto pick = rng_.below(live.size());
            running_ = live[pick];
            WEIR_CHECK(swapcontext(&scheduler_, &running_->context) == 0);
            if (running_->done) live.erase(live.begin() + static_cast<std::ptrdiff_t>(pick));
        }
        current_ = nullptr;
    }

    [[nodiscard]] std::size_t killed() const { return killed_; }

    /// The probe that the code under test calls. Outside run() it does nothing.
    static void point() {
        if (current_ != nullptr) current_->on_point();
    }

  private:
    static constexpr std::size_t kStackBytes = 64UL * 1024;
    struct Fiber {
        std::function<void()> body;
        std::vector<std::byte> stack;
        ucontext_t context{};
        bool done = false;
    };

    static void enter() {
        Fiber* self = current_->running_;
        self->body();
        self->done = true;
    }
    void on_point() {
        Fiber* self = running_;
        if (kill_one_in_ != 0 && rng_.one_in(kill_one_in_)) {
            ++killed_;
            self->done = true;
        } else if (!rng_.one_in(switch_one_in_)) {
            return;
        }
        WEIR_CHECK(swapcontext(&self->context, &scheduler_) == 0);
    }

    static inline Fibers* current_ = nullptr;
    Rng rng_;
    std::vector<std::unique_ptr<Fiber>> fibers_;
    ucontext_t scheduler_{};
    Fiber* running_ = nullptr;
    std::uint64_t switch_one_in_ = 1;
    std::uint64_t kill_one_in_ = 0;
    std::size_t killed_ = 0;
};

struct FiberProbe {
    static void point() { Fibers::point(); }
};

}  // namespace weir::switching

// SPDX-License-Identifier: Apache-2.0
// One side of a program, done by the engine (src/hca) on a host of a live fabric.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hca/hca.h"
#include "model.h"
#include "program.h"

namespace weir::model {

/// What one side has to know of the other.
struct Address {
    std::uint16_t lid;
    std::uint64_t buffer;
    std::uint32_t keys[kRegions];
    std::uint32_t qps[kPairsMax];
};

/// A device of a host, kept from program to program.
class Host {
  public:
    Host(const char* name, int side);
    Host(const Host&) = delete;
    Host& operator=(const Host&) = delete;
    ~Host();

    std::unique_ptr<hca::Hca> hca;
    std::uint8_t* buffer = nullptr;
    int side;
    std::uint16_t lid = 0;
};

class LiveSide {
  public:
    /// `patient`: with more retries, and so later to tell that a peer is gone.
    LiveSide(Host& host, const Program& program, bool patient);
    LiveSide(const LiveSide&) = delete;
    LiveSide& operator=(const LiveSide&) = delete;
    ~LiveSide();

    [[nodiscard]] Address address() const;
    void connect(const Address& peer);
    /// From RESET to RTS.
    void bring_up(int pair);
    /// The errno value of the step, or 0. Reconnecting ends in RESET, until both sides are there.
    int apply(const Step& step);
    void poll();
    /// What is not yet, or not any more, as the model has it. Empty: all of it is.
    [[nodiscard]] std::string differs_from(const SideView& view) const;

  private:
    struct Queue {
        std::vector<ibv_wc> completions[2];
        int errors = 0;
        int last = 0;
    };
    void make_pair(int pair);
    int post_send(const Step& step);
    int post_receive(const Step& step);
    std::vector<ibv_sge> pieces_of(const Step& step) const;
    void note(const ibv_wc& wc);
    void take_events();
    std::string differs(int pair, const QueuePairView& view) const;

    Host& host_;
    const Program& program_;
    bool patient_;
    std::uint32_t domains_[2] = {};
    hca::CompletionQueue* cqs_[2] = {};
    hca::SharedReceiveQueue* shared_ = nullptr;
    std::uint32_t lkeys_[kRegions] = {};
    hca::QueuePair* qps_[kPairsMax] = {};
    Address peer_{};
    hca::AddressHandle handle_{};
    int epochs_[kPairsMax] = {};
    Queue seen_[kPairsMax];
    std::map<std::uint64_t, model::Queue> queue_of_;
    std::string trouble_;
};

}  // namespace weir::model

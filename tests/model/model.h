// SPDX-License-Identifier: Apache-2.0
// What the specification says of a program: a plain sequential model of two sides, written from
// IBTA chapters 9 to 11 and the verbs' manuals and from nothing of src/. It executes a request as
// soon as it can be, in order, and knows no packets, time or threads.
//
// Where the specification leaves freedom, bytes are marked as open and results are sets. Programs
// whose outcome hangs on a race beyond that are undefined, and the generator makes none.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "program.h"

namespace weir::model {

struct Completion {
    std::uint64_t wr_id = 0;
    ibv_wc_status status = IBV_WC_SUCCESS;
    // Of successes:
    ibv_wc_opcode opcode = IBV_WC_SEND;
    std::uint32_t byte_len = 0;
    bool has_byte_len = false;
    bool has_immediate = false;
    std::uint32_t immediate = 0;
};

enum Queue : std::uint8_t { kSends, kReceives };

/// What a queue pair has to show by now.
struct QueuePairView {
    std::vector<Completion> completions[2];  ///< By Queue.
    ibv_qp_state state = IBV_QPS_RTS;
    /// Events of the access-error kind, and of the last receive of a shared queue: least and most.
    int errors_least = 0, errors_most = 0;
    int last_least = 0, last_most = 0;
};

struct SideView {
    QueuePairView qps[kPairsMax];
    std::vector<std::uint8_t> memory;
    std::vector<std::uint8_t> open;  ///< Bytes that may be anything.
};

class Model {
  public:
    explicit Model(const Program& program);
    /// The errno value of posting it, or 0.
    int apply(const Step& step);
    [[nodiscard]] const SideView& side(int index) const { return views_[index]; }
    /// Not empty: the outcome hangs on more than the specification says.
    [[nodiscard]] const std::string& undefined() const { return undefined_; }
    [[nodiscard]] ibv_qp_state state(int pair, int side) const { return qp(pair, side).state; }
    /// Receives that wait for messages to this side.
    [[nodiscard]] std::size_t receives(int pair, int side) {
        return receives_of(pair, side).size();
    }
    [[nodiscard]] bool waits(int pair, int side) const { return !qp(pair, side).sends.empty(); }

  private:
    struct Posted {
        Step step;
        std::vector<std::uint8_t> inlined;
    };
    struct QueuePair {
        ibv_qp_state state = IBV_QPS_RTS;
        [[nodiscard]] bool receives_packets() const { return state != IBV_QPS_ERR; }
        std::deque<Posted> sends;
        std::deque<Step> receives;
    };
    enum class Outcome : std::uint8_t { kDone, kWaits, kFailed };

    [[nodiscard]] const QueuePair& qp(int pair, int side) const { return qps_[pair][side]; }
    QueuePair& qp(int pair, int side) { return qps_[pair][side]; }
    QueuePairView& view(int pair, int side) { return views_[side].qps[pair]; }
    std::deque<Step>& receives_of(int pair, int side);
    int check_send(const Step& step) const;
    [[nodiscard]] static bool key_covers(Region key, std::uint32_t offset, std::uint32_t length,
                                         int access);
    void run(int pair, int side);
    Outcome execute(int pair, int side, const Posted& posted);
    Outcome execute_send(int pair, int side, const Posted& posted);
    Outcome execute_write(int pair, int side, const Posted& posted);
    Outcome execute_read(int pair, int side, const Posted& posted);
    Outcome execute_word(int pair, int side, const Posted& posted);
    Outcome no_receive(int pair, int side, const Posted& posted);
    Outcome refuse(int pair, int side, const Posted& posted, ibv_wc_status status);
    Outcome receive_failed(int pair, int side, const Posted& posted, const Step& receive,
                           ibv_wc_status status);
    Outcome fail(int pair, int side, const Posted& posted, ibv_wc_status status);
    void complete(int pair, int side, const Posted& posted, std::uint32_t bytes);
    void complete_receive(int pair, int side, const Step& receive, std::uint32_t bytes,
                          const Step& send);
    void add(int pair, int side, Queue queue, std::uint64_t wr_id, ibv_wc_status status);
    void break_qp(int pair, int side);
    std::vector<std::uint8_t> gather(int side, const Posted& posted) const;
    bool scatter(int side, const std::vector<Piece>& pieces, std::uint32_t skip,
                 const std::vector<std::uint8_t>& data);
    void put_results(int pair, int side, const Step& step, const std::vector<std::uint8_t>& data);
    void store(int side, std::uint32_t offset, const std::vector<std::uint8_t>& data);
    void leave_open(int side, std::uint32_t offset, std::uint32_t length);
    void note_change(int pair, int side, std::uint32_t offset, std::uint32_t length);
    Step take_receive(int pair, int side);
    void note_shared(int pair, int side);
    void settle();
    void reconnect(int pair);
    int recover(const Step& step);
    [[nodiscard]] bool local_keys_hold(const Posted& posted) const;
    void say_undefined(const char* why) {
        if (undefined_.empty()) undefined_ = why;
    }

    int pairs_;
    PairSetup setup_[kPairsMax];
    QueuePair qps_[kPairsMax][2];
    std::deque<Step> shared_[2];
    SideView views_[2];
    /// Reads of this group, whose data a later request without a fence may change under them.
    struct OpenRead {
        int pair, side;
        std::uint32_t offset, length;
        std::vector<Piece> results;
    };
    std::vector<OpenRead> reads_;
    bool sent_[kPairsMax][2] = {};     ///< Requests were posted in this group.
    bool resumed_[kPairsMax][2] = {};  ///< Some were tried in this group.
    [[nodiscard]] bool active(int pair, int side) const {
        return sent_[pair][side] || resumed_[pair][side];
    }
    int failed_[kPairsMax] = {-1, -1, -1};  ///< Whose request ended the connection, in this group.
    bool changed_[kPairsMax] = {};          ///< By the program, in this group.
    int shared_user_[2] = {-1, -1};
    std::string undefined_;
};

}  // namespace weir::model

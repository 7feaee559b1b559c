// SPDX-License-Identifier: Apache-2.0
// Random verbs programs over two sides: what objects there are, and what is posted. A program is
// plain data, so that it can be printed, cut down and run by the model and by the engine alike.
//
// Memory: each side has one buffer, cut into lanes: one for each pair of queue pairs and direction.
// A lane has four areas, so that nothing is at once read and written by requests whose order the
// specification leaves open:  | source | results | remote | receive |
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <infiniband/verbs.h>

namespace weir::model {

inline constexpr std::uint32_t kArea = 8192;
inline constexpr std::uint32_t kLane = 4 * kArea;
inline constexpr int kPairsMax = 3;
inline constexpr std::uint32_t kMemory = kLane * 2 * kPairsMax;
enum Area : std::uint32_t {
    kSource = 0,
    kResults = kArea,
    kRemote = 2 * kArea,
    kReceive = 3 * kArea
};

/// Where a lane begins: `from` is the side that sends on it.
constexpr std::uint32_t lane(int pair, int from) {
    return static_cast<std::uint32_t>(pair * 2 + from) * kLane;
}

/// The regions that each side has over its buffer. kNoKey is a key that nobody has.
enum Region : std::uint8_t {
    kAll,
    kLocalOnly,
    kReadOnly,
    kOtherDomain,
    kWriteOnly,
    kPart,  ///< All rights, but for a part of the buffer alone.
    kRegions,
    kNoKey = kRegions,
};
struct RegionFacts {
    std::uint32_t begin;
    std::uint32_t length;
    int access;
    bool other_domain;
};
RegionFacts facts_of(Region region);
inline constexpr std::uint32_t kPartLength = 1000;  ///< Of each area the part has, from pair 0 on.

struct Piece {
    std::uint32_t offset;  ///< In the side's buffer.
    std::uint32_t length;
    Region key;
};

struct PairSetup {
    ibv_qp_type type = IBV_QPT_RC;
    bool signal_all = false;
    bool shared_receives[2] = {};
    int access[2] = {};  ///< The queue pairs' rights of peers.
    std::uint8_t rnr_retry = 7;
};

enum class StepKind : std::uint8_t { kReceive, kSend, kToError, kRecover, kReconnect, kSettle };

struct Step {
    StepKind kind = StepKind::kSettle;
    int pair = 0;
    int side = 0;
    std::uint64_t wr_id = 0;
    ibv_wr_opcode opcode = IBV_WR_SEND;
    unsigned flags = 0;  ///< ibv_send_flags
    std::vector<Piece> pieces;
    Region remote_key = kAll;
    std::uint32_t remote_offset = 0;
    std::uint32_t immediate = 0;
    std::uint64_t compare_add = 0;
    std::uint64_t swap = 0;
    bool wrong_qkey = false;
};

struct Program {
    std::uint64_t seed = 0;
    int pairs = 1;
    PairSetup setup[kPairsMax];
    bool one_cq = false;  ///< A side's queues all complete into one queue.
    std::vector<Step> steps;
};

inline constexpr std::uint32_t kInlineMost = 64;
inline constexpr std::uint32_t kPiecesMost = 4;
inline constexpr std::uint32_t kQueueDepth = 64;

std::uint32_t bytes_of(const Step& step);
Program generate(std::uint64_t seed);
std::string text_of(const Program& program);
std::string text_of(const Step& step);
/// What the buffer of a side holds at the beginning.
std::uint8_t initial_byte(std::uint64_t seed, int side, std::uint32_t offset);

}  // namespace weir::model

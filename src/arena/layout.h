// SPDX-License-Identifier: Apache-2.0
// The live fabric in shared memory: what lies where. One arena (a memfd) holds every switch, cable,
// HCA port, queue-pair context and packet of this machine's part of a fabric. Position-independent:
// indices and offsets, no pointers. Made by the daemon, mapped by every program that attaches.
//
//   ArenaHeader | nodes | ports | lane buffers | LFTs | LID table | arbiters | egress lanes
//   | processes | QPs | MRs | groups | packets | services | bulk
//
// The tables up to the egress lanes are sized by the fabric and committed when it is made. The rest
// is sparse: a page costs nothing until somebody uses it.
//
// Trust: every attached process belongs to the fabric's owner (the daemon checks), so the layout
// guards against processes that stop, die or lag at any instruction, not against one that scribbles
// on purpose.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "credit/lane_buffer.h"
#include "transport/responder_state.h"
#include "wire/headers.h"

namespace weir::arena {

inline constexpr std::uint64_t kMagic = 0x5745495241524e41ULL;  // "WEIRARNA"

inline constexpr std::uint32_t kNameBytes = 64;
inline constexpr std::uint32_t kNone = 0xffffffffU;
inline constexpr std::uint32_t kLftNoRoute = 255;

inline constexpr std::uint32_t kProcessCount = 256;
inline constexpr std::uint32_t kQpCount = 1U << 16U;
inline constexpr std::uint32_t kMrCount = 1U << 18U;
inline constexpr std::uint32_t kGroupCount = 4096;  ///< Memberships of multicast groups.
/// QP 0 and 1 belong to management, and a number is a table index, so the first few are never given
/// out.
inline constexpr std::uint32_t kFirstQp = 16;
inline constexpr std::uint32_t kPacketsPerProcess = 1024;
inline constexpr std::uint32_t kPacketCount = kProcessCount * kPacketsPerProcess;
static_assert(kPacketCount - 1 <= credit::kPacketMask, "a slot names a packet in 21 bits");
/// Largest payload of one packet inside the machine: a large segment, standing for a run of
/// MTU-sized packets and as many PSNs (docs/protocol/wire.md).
inline constexpr std::uint32_t kSegmentBytes = 64 * 1024;
/// The same in a fabric whose links have rates, so that no lane holds a link for longer: the
/// largest MTU.
inline constexpr std::uint32_t kRatedSegmentBytes = 4096;
inline constexpr std::uint32_t kBulkPerProcess = 64;
/// Payload that fits into the packet descriptor itself.
inline constexpr std::uint32_t kInlineBytes = 152;
/// Requests that may stand in a QP's ring executed and not yet popped (QpEntry::taken).
inline constexpr std::uint32_t kQpLag = 4;
/// Outstanding requests of one QP, in packets; below the ring's size so that no packet finds it
/// full, even beside kQpLag others.
inline constexpr std::uint32_t kQpWindow = 20;
inline constexpr std::uint32_t kReadyWords = 63;
/// Ports of the connection manager that are taken, on all hosts together.
inline constexpr std::uint32_t kServiceCount = 1U << 15U;

struct ArenaHeader {
    std::uint64_t magic;
    std::uint32_t version;
    std::uint32_t node_count;
    std::uint32_t port_count;
    std::uint32_t lane_count;  ///< Data virtual lanes per port.
    std::uint32_t lid_count;   ///< One more than the highest LID in use.
    std::uint32_t mtu_bytes;
    std::uint32_t link_layer;  ///< IBV_LINK_LAYER_INFINIBAND (1) or _ETHERNET (2).
    std::uint32_t daemon_pid;
    /// Set once, when the first link of the fabric gets a rate (ArbiterEntry), and never taken
    /// back: from then on packets leave an HCA through its egress lanes. In the line that movers
    /// read anyway.
    std::atomic<std::uint32_t> rated;
    std::uint64_t total_bytes;
    std::uint64_t nodes_at, ports_at, lanes_at, lfts_at, lids_at;
    std::uint64_t arbiters_at, egress_at;
    std::uint64_t egress_count;  ///< Ports of HCAs: each has lane_count egress lanes.
    std::uint64_t processes_at, qps_at, mrs_at, groups_at, packets_at, services_at, bulk_at;
    char name[kNameBytes];
    /// Set once, when the fabric is being taken down: programs give errors instead of waiting.
    std::atomic<std::uint32_t> closing;
    std::atomic<std::uint32_t> epoch;  ///< Counts changes of link state and of tables.
    /// One more than the highest service entry that was ever taken: how far to look.
    std::atomic<std::uint32_t> services_used;
    /// One more than the highest index of `groups` that was ever in use.
    std::atomic<std::uint32_t> groups_end;
};

enum class NodeKind : std::uint32_t { kSwitch = 0, kHca = 1 };

struct NodeEntry {
    char name[kNameBytes];
    char host[kNameBytes];  ///< HCAs: name of the host it sits in. Switches: empty.
    NodeKind kind;
    std::uint32_t first_port;  ///< Index into the ports; port number n is first_port + n - 1.
    std::uint32_t port_count;
    std::uint32_t lid;  ///< Switches: LID of port 0. HCAs: LID of port 1.
    std::uint64_t guid;
    std::uint64_t lft_at;  ///< Switches: offset of lid_count bytes, output port by LID, 255 none.
};

struct alignas(64) PortEntry {
    std::uint32_t node;
    std::uint32_t number;
    std::uint32_t peer;  ///< Index of the port at the cable's other end, or kNone.
    std::uint32_t lid;
    std::uint64_t guid;
    std::uint64_t speed_bits_per_second;
    std::uint32_t width;            ///< Lanes of the cable: 1, 2, 4, 8, 12.
    std::atomic<std::uint32_t> up;  ///< 1 while the cable carries traffic. Same value at both ends.
    std::atomic<std::uint64_t> link_downed;
    std::atomic<std::uint64_t> transmit_discards;
    std::uint32_t egress;  ///< HCAs: its number among the egress ports. Switches: kNone.
    /// IP addresses by which the connection manager knows an HCA's port, in network order; zeros at
    /// switches.
    std::uint8_t ipv4[4];
    std::uint8_t ipv6[16];
};
static_assert(sizeof(PortEntry) == 128);

inline constexpr std::uint32_t kLanesMax = 8;
/// ArbitrationTables::high_limit: high-priority packets never make way.
inline constexpr std::uint32_t kHighLimitNone = 255;

/// One line of a VL arbitration table (IBTA 14.2.5.9). The weight is in units of 64 bytes.
struct ArbitrationLine {
    std::uint8_t vl;
    std::uint8_t weight;
};

/// Who may use a link next (IBTA 7.6.9). Fixed when the fabric is made; every data lane stands in
/// one line of one table.
struct ArbitrationTables {
    std::uint8_t high_limit;  ///< Units of 4 KiB; 0 one packet, kHighLimitNone no limit.
    std::uint8_t high_count;
    std::uint8_t low_count;
    std::uint8_t unused;
    ArbitrationLine high[kLanesMax];
    ArbitrationLine low[kLanesMax];
};

/// The sending side of a port: its link's rate, whose turn it is, and who waits.
/// switching/arbiter.h says what the words mean.
struct alignas(64) ArbiterEntry {
    /// Whose turn it is and until when the link is busy, in one word: changed by compare-and-swap.
    std::atomic<std::uint64_t> turns;
    std::atomic<std::uint64_t> rate_bits_per_second;  ///< 0: unlimited.
    ArbitrationTables tables;
    /// Input port (mod 64) of the packet that last won, by lane. Only fairness hangs on it.
    std::atomic<std::uint8_t> last_input[kLanesMax];
    /// When a turn was last taken, in 2^20 ns. `turns` holds the time to 2^32 ns only: this tells a
    /// busy link from one whose last packet was that long ago.
    std::atomic<std::uint32_t> last_turn;
    /// By lane: input ports (bit number mod 64; 0 for an HCA's egress) at which a packet for this
    /// link was seen to wait. A hint: who finds a bit without a packet clears it.
    alignas(64) std::atomic<std::uint64_t> waiting[kLanesMax];
    /// By lane: packets that found the link busy or given to another lane. Part of PortXmitWait.
    alignas(64) std::atomic<std::uint64_t> waits[kLanesMax];
};
static_assert(sizeof(ArbiterEntry) == 192);

/// A process that is attached. `identity` is {generation, slot + 1}: what owner fields elsewhere
/// hold.
struct alignas(64) ProcessEntry {
    std::atomic<std::uint32_t>
        identity;  ///< 0 while the slot is free. Written by the daemon alone.
    std::uint32_t pid;
    std::uint32_t node;  ///< HCA node it uses; more HCAs mean more attachments.
    std::atomic<std::uint32_t> dead;
    /// Odd while this process moves packets; grows by one at each start and end. If it stays odd
    /// and the same for long, the process is stopped or dead and somebody else must move on
    /// (Mover::sweep).
    std::atomic<std::uint64_t> moving;
    /// Handle (slot word, sequence and source zero) of a packet that this process is dropping, plus
    /// one.
    std::atomic<std::uint64_t> releasing;
    std::uint64_t unused[3];

    /// Which of its QPs have packets waiting: bit w of the summary says that ready[w] is not zero.
    /// Bit 63 says that the owner sleeps on `doorbell` and must be woken.
    alignas(64) std::atomic<std::uint64_t> summary;
    std::atomic<std::uint32_t> doorbell;  ///< Futex word; grows by one at each call.
    std::atomic<std::uint32_t>
        rescan;  ///< Non-zero: look at every QP, somebody may have died half-way.
    alignas(64) std::atomic<std::uint64_t> ready[64];
};
inline constexpr std::uint64_t kParked = 1ULL << 63U;
inline constexpr std::uint32_t kIdentitySlotBits = 12;

constexpr std::uint32_t slot_of(std::uint32_t identity) {
    return (identity & ((1U << kIdentitySlotBits) - 1)) - 1;
}

enum class PayloadKind : std::uint32_t {
    kInline = 0,     ///< In the descriptor.
    kBulk = 1,       ///< In a bulk buffer of the arena; `address` is the arena offset.
    kReference = 2,  ///< Where it was: `address` in the process `memory_owner`.
    kWindow = 3,     ///< Where it was: `address` is an offset in the window of `memory_owner`.
};

/// A packet on its way. Written by its sender before it enters the fabric, and not again before it
/// is free.
struct alignas(256) PacketEntry {
    /// {generation 31 bits, in flight 1 bit}. Freed by whoever consumes or drops it, by
    /// compare-and-swap, so that freeing twice does nothing.
    std::atomic<std::uint32_t> state;
    PayloadKind payload_kind;
    /// All that a switch needs, see Route.
    std::atomic<std::uint64_t> route;
    std::uint64_t address;
    std::uint32_t memory_owner;  ///< Process identity, for kReference and kWindow.
    std::uint32_t withdrawals;   ///< The sending QP's, when it was sent.
    wire::PacketHeader header;
    /// Sends over a reliable connection: an acknowledgement of the other direction that goes the
    /// same way, as in LaneBuffer::acknowledged; 0 if none.
    std::uint64_t acknowledged;
    std::uint8_t payload[kInlineBytes];
};
static_assert(sizeof(wire::PacketHeader) == 64);
static_assert(sizeof(PacketEntry) == 256);

/// What movers know of a packet, in one word, so that they read it whole at any moment.
/// | dlid 20 | service level 4 | response 1 | quiet 1 | words 15 | destination QP 22 |
struct Route {
    std::uint32_t dlid;
    std::uint32_t service_level;
    bool response;        ///< Goes to the requester half of the QP.
    bool quiet;           ///< The sender will see to the packet itself: its arrival wakes nobody.
    std::uint32_t words;  ///< Size on the wire in 4-byte words, at most 128 KiB.
    std::uint32_t dest_qp;

    static constexpr Route decode(std::uint64_t word) {
        return {static_cast<std::uint32_t>(word >> 44U),
                static_cast<std::uint32_t>((word >> 40U) & 0xfU),
                ((word >> 39U) & 1U) != 0,
                ((word >> 38U) & 1U) != 0,
                static_cast<std::uint32_t>((word >> 23U) & 0x7fffU),
                static_cast<std::uint32_t>(word & 0x3fffffU)};
    }
    [[nodiscard]] constexpr std::uint64_t encode() const {
        return (static_cast<std::uint64_t>(dlid & 0xfffffU) << 44U) |
               (static_cast<std::uint64_t>(service_level & 0xfU) << 40U) |
               (static_cast<std::uint64_t>(response ? 1U : 0U) << 39U) |
               (static_cast<std::uint64_t>(quiet ? 1U : 0U) << 38U) |
               (static_cast<std::uint64_t>(words & 0x7fffU) << 23U) | (dest_qp & 0x3fffffU);
    }
    /// Flow-control blocks that the packet takes in a lane buffer.
    [[nodiscard]] constexpr std::uint32_t blocks() const {
        return (words * 4 + credit::kBlockBytes - 1) / credit::kBlockBytes;
    }
};
static_assert(kQpCount <= 1U << 22U);

/// How the memory behind an MR can be reached by a process that is not its owner.
enum class MemoryAccess : std::uint32_t {
    kWindow = 0,  ///< Pages lie in the owner's window memfd: map it and use loads and stores.
    kKernel = 1,  ///< By process_vm_readv and process_vm_writev.
    kOwner = 2,   ///< Not at all: the owner itself must move the bytes.
};

struct alignas(64) MrEntry {
    std::atomic<std::uint32_t> owner;  ///< Process identity, 0 while free.
    std::atomic<std::uint32_t> key;    ///< Valid rkey/lkey, 0 while invalid: index << 8 | salt.
    std::uint64_t iova;                ///< First address that remote peers use.
    std::uint64_t length;
    std::uint64_t address;  ///< The same byte in the owner's address space.
    std::uint64_t window_offset;
    std::uint32_t access_flags;  ///< IBV_ACCESS_*, and kMrWindow or kMrNull.
    std::uint32_t pd;
    MemoryAccess memory_access;
    std::uint32_t
        salt;  ///< Low byte of the last key, so that a stale key of this entry is not the next.
    std::uint32_t bound_qp;  ///< Type 2 windows: the one QP whose requests they admit. Else 0.
    std::uint32_t unused;
};
static_assert(sizeof(MrEntry) == 64);
/// The entry is a memory window's: its key admits peers and never the owner. It holds what its
/// region held when it was bound; a region is not given up while a window is bound to it.
inline constexpr std::uint32_t kMrWindow = 1U << 30U;
/// There is no memory behind the key: what is written is dropped, what is read is zeros.
inline constexpr std::uint32_t kMrNull = 1U << 31U;

/// One queue pair's membership of a multicast group. Written by the process that attaches it,
/// before `qp` is set; the daemon frees what a dead process leaves.
struct alignas(64) GroupEntry {
    std::atomic<std::uint32_t> owner;  ///< Process identity, 0 while free.
    std::atomic<std::uint32_t> qp;     ///< 0 while not valid.
    std::uint8_t gid[16];
    std::uint32_t lid;  ///< The group's, 0 if the program named none.
    std::uint32_t port_lid;
    std::uint32_t refuses_own;  ///< 1: the QP's own messages are not given back to it.
};

struct QpEntry {
    std::atomic<std::uint32_t> owner;  ///< Process identity, 0 while free.
    /// HCA node. Set when the entry is first used and never changed: a mover that slept in the
    /// middle of a delivery must still find the port that the packet came by.
    std::uint32_t node;
    std::uint32_t type;         ///< IBV_QPT_RC, UC or UD.
    std::uint32_t local_index;  ///< Number of the QP within its owner; picks the ready bit.
    std::atomic<std::uint32_t>
        receiving;  ///< 1 from RTR on, 0 in RESET, INIT, ERR: packets are parked.
    std::uint32_t peer_qp;
    std::uint32_t peer_lid;
    std::uint32_t own_lid;
    std::uint32_t pd;
    std::uint32_t access_flags;  ///< What remote peers may do: IBV_ACCESS_REMOTE_*.
    std::uint32_t mtu_bytes;
    std::uint32_t service_level;
    std::uint32_t min_rnr_timer;
    std::uint32_t max_reads;  ///< Outstanding RDMA reads and atomics accepted, max_dest_rd_atomic.
    std::uint32_t pkey;
    /// 1 once the rings have been reset for the first time. They are never reset again, only
    /// drained, so that a mover that slept through the QP's end does no harm to the next.
    std::atomic<std::uint32_t> initialised;
    /// 1 for RC: what finds no room is sent again by its sender. Else it waits at the port for
    /// room.
    std::uint32_t reliable;
    /// 1 after packets for this QP have waited a head-of-queue lifetime in vain: until its owner
    /// reads again, they are dropped at once (IBTA 18.2.5.4, VLStallCount).
    std::atomic<std::uint32_t> choked;
    /// 1 from the moment the QP or its process ends until the entry is given out again: nothing is
    /// delivered.
    std::atomic<std::uint32_t> closing;
    /// Grows when requests on their way are given up, so that their memory is the program's again.
    /// Whoever has copied a send's payload from where it lies looks at it last: if it has grown
    /// since the packet was sent, what was copied means nothing.
    std::atomic<std::uint32_t> withdrawals;
    /// Identity of the process that executes requests here, or 0.
    alignas(64) std::atomic<std::uint32_t> lock;
    /// Index of the next request to be executed, as in credit::Head. The head of `requests` follows
    /// it, by up to kQpLag later, so that not every message costs the line of head and tail.
    /// Changed by the holder of `lock`; for UD, by the owner.
    std::atomic<std::uint32_t> taken;
    transport::ResponderState responder;
    credit::LaneBuffer requests;   ///< Requests that have arrived; the responder's input.
    credit::LaneBuffer responses;  ///< Acknowledgements and read data; the requester's input.
};

/// A port of the connection manager that somebody has taken. See service_table.h.
struct alignas(64) ServiceEntry {
    std::atomic<std::uint32_t> owner;  ///< Process identity, 0 while free.
    std::atomic<std::uint32_t> stage;  ///< ServiceStage.
    std::uint64_t service_id;          ///< Port space and port.
    std::uint64_t token;               ///< Same for the entries of one listener, on several HCAs.
    std::uint32_t host;                ///< First HCA node of the host.
    std::uint32_t node;                ///< HCA node that it is reached by.
    std::uint32_t families;            ///< Bit 0: IPv4, 1: IPv6, 2: InfiniBand.
    std::uint32_t any_address;         ///< 1: taken for all addresses of the host.
    std::uint32_t shareable;           ///< 1: others may take it as well, while nobody listens.
    std::atomic<std::uint32_t> listener;  ///< Control QP of who listens, 0 while nobody does.
};

/// Changes with the layout: programs and daemon must have been built from the same one.
inline constexpr std::uint32_t kLayoutVersion = [] {
    std::uint32_t version = 1;  // to be raised when a meaning changes but no size
    for (const std::size_t part : {sizeof(ArenaHeader),
                                   sizeof(NodeEntry),
                                   sizeof(PortEntry),
                                   sizeof(ProcessEntry),
                                   sizeof(PacketEntry),
                                   sizeof(MrEntry),
                                   sizeof(ServiceEntry),
                                   sizeof(QpEntry),
                                   offsetof(QpEntry, lock),
                                   offsetof(QpEntry, responder),
                                   offsetof(QpEntry, closing),
                                   sizeof(credit::LaneBuffer),
                                   offsetof(credit::LaneBuffer, watched),
                                   offsetof(ProcessEntry, summary),
                                   sizeof(ArbiterEntry),
                                   offsetof(ArbiterEntry, tables),
                                   offsetof(ArenaHeader, rated),
                                   offsetof(MrEntry, memory_access),
                                   sizeof(GroupEntry),
                                   offsetof(MrEntry, bound_qp)}) {
        version = version * 31 + static_cast<std::uint32_t>(part);
    }
    return version;
}();

/// A mapped arena: base address and typed access to its tables. Cheap to copy. No bounds checks on
/// the hot path: callers pass indices that came from the arena's own tables or were checked.
/// Where the tables lie is read once, when this is made from memory whose header is written.
class Arena {
  public:
    Arena() = default;
    explicit Arena(void* base) : base_(static_cast<std::byte*>(base)) {
        const auto& h = header();
        nodes_ = at<NodeEntry>(h.nodes_at);
        ports_ = at<PortEntry>(h.ports_at);
        lanes_ = at<credit::LaneBuffer>(h.lanes_at);
        lids_ = at<std::uint32_t>(h.lids_at);
        processes_ = at<ProcessEntry>(h.processes_at);
        qps_ = at<QpEntry>(h.qps_at);
        mrs_ = at<MrEntry>(h.mrs_at);
        packets_ = at<PacketEntry>(h.packets_at);
        groups_ = at<GroupEntry>(h.groups_at);
        services_ = at<ServiceEntry>(h.services_at);
        lane_count_ = h.lane_count;
    }

    [[nodiscard]] bool mapped() const { return base_ != nullptr; }
    [[nodiscard]] ArenaHeader& header() const { return *at<ArenaHeader>(0); }
    [[nodiscard]] NodeEntry& node(std::uint32_t i) const { return nodes_[i]; }
    [[nodiscard]] PortEntry& port(std::uint32_t i) const { return ports_[i]; }
    [[nodiscard]] credit::LaneBuffer& lane(std::uint32_t port, std::uint32_t vl) const {
        return lanes_[port * lane_count_ + vl];
    }
    [[nodiscard]] ArbiterEntry& arbiter(std::uint32_t port) const {
        return at<ArbiterEntry>(header().arbiters_at)[port];
    }
    /// Where packets of an HCA wait for their link; `egress` is PortEntry::egress.
    [[nodiscard]] credit::LaneBuffer& egress(std::uint32_t egress, std::uint32_t vl) const {
        return at<credit::LaneBuffer>(header().egress_at)[egress * header().lane_count + vl];
    }
    [[nodiscard]] std::uint8_t* lft(const NodeEntry& node) const {
        return at<std::uint8_t>(node.lft_at);
    }
    /// Port index by LID, kNone where unassigned.
    [[nodiscard]] std::uint32_t* lids() const { return lids_; }
    [[nodiscard]] ProcessEntry& process(std::uint32_t i) const { return processes_[i]; }
    [[nodiscard]] QpEntry& qp(std::uint32_t i) const { return qps_[i]; }
    [[nodiscard]] MrEntry& mr(std::uint32_t i) const { return mrs_[i]; }
    [[nodiscard]] GroupEntry& group(std::uint32_t i) const { return groups_[i]; }
    [[nodiscard]] PacketEntry& packet(std::uint32_t i) const { return packets_[i]; }
    [[nodiscard]] ServiceEntry& service(std::uint32_t i) const { return services_[i]; }
    [[nodiscard]] std::uint64_t bulk_offset(std::uint32_t process, std::uint32_t i) const {
        return header().bulk_at +
               (static_cast<std::uint64_t>(process) * kBulkPerProcess + i) * kSegmentBytes;
    }
    [[nodiscard]] std::byte* bytes(std::uint64_t offset) const { return base_ + offset; }

  private:
    template <class T>
    [[nodiscard]] T* at(std::uint64_t offset) const {
        return reinterpret_cast<T*>(base_ + offset);
    }
    std::byte* base_ = nullptr;
    NodeEntry* nodes_ = nullptr;
    PortEntry* ports_ = nullptr;
    credit::LaneBuffer* lanes_ = nullptr;
    std::uint32_t* lids_ = nullptr;
    ProcessEntry* processes_ = nullptr;
    QpEntry* qps_ = nullptr;
    MrEntry* mrs_ = nullptr;
    PacketEntry* packets_ = nullptr;
    GroupEntry* groups_ = nullptr;
    ServiceEntry* services_ = nullptr;
    std::uint32_t lane_count_ = 0;
};

}  // namespace weir::arena

// SPDX-License-Identifier: Apache-2.0
// Inside the HCA: the attachment of this process to a fabric and the state of its verbs objects.
// Private to src/hca. Everything here is guarded by Attachment::lock unless it says otherwise.
//
//   post_send → Requester → packet → Mover → peer's ring ─┬─ one-sided: executed here, as the
//   peer's agent
//                                                          └─ two-sided: the peer executes (poll or
//                                                          thread)
//   own rings ← Mover ← …   responses → Requester → completions;  requests → Responder →
//   completions
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "arena/layout.h"
#include "hca/hca.h"
#include "hca/lock.h"
#include "hca/newer_verbs.h"
#include "hca/packet_pool.h"
#include "hca/reach.h"
#include "hca/registered_memory.h"
#include "switching/forwarding.h"
#include "transport/requester.h"
#include "transport/responder.h"

namespace weir::hca {

inline constexpr int kSgeMax = 16;
inline constexpr std::uint32_t kInlineMax = 512;
inline constexpr std::uint32_t kInlineLeast = 64;
inline constexpr std::uint32_t kQueueMax = 16384;   ///< Work requests per queue.
inline constexpr std::uint32_t kCqMax = 1U << 22U;  ///< Completions per CQ.
inline constexpr std::uint32_t kMessageMax = 1U << 30U;
inline constexpr std::uint32_t kGrhBytes = 40;
/// Address of a local buffer that has no memory (ibv_alloc_null_mr).
inline constexpr std::uint64_t kNoMemory = 0;

/// Monotonic time in nanoseconds, exact.
std::uint64_t now_ns();
/// The same, cheaply, rounded up to the kernel's tick: timers stamped with it never run short.
std::uint64_t coarse_now_ns();

/// A list of local buffers, as posted.
struct Buffers {
    std::uint32_t count = 0;
    std::uint32_t bytes = 0;
    ibv_sge sges[kSgeMax];
};

/// What a posted bind or invalidation does when its turn comes.
struct LocalWork {
    std::uint32_t key = 0;     ///< Bind: of the window from now on. Invalidation: what ends.
    std::uint32_t window = 0;  ///< Bind: any key that the window has had.
    std::uint32_t region = 0;  ///< Bind: lkey of the memory region; 0 unbinds.
    std::uint32_t access = 0;
    std::uint64_t address = 0;
    std::uint64_t length = 0;
};

/// A memory window of this process. Its key is in the arena while it is bound.
struct Window {
    Hca::State* hca = nullptr;
    std::uint32_t pd = 0;
    ibv_mw_type type = IBV_MW_TYPE_1;
    std::uint32_t region = 0;  ///< lkey of the region that it is bound to; 0 none.
};

struct SendSlot {
    std::uint64_t wr_id = 0;
    ibv_wc_opcode wc_opcode = IBV_WC_SEND;
    bool signaled = false;
    bool inlined = false;
    std::uint32_t bytes = 0;
    std::uint32_t sge_count = 0;
    ibv_wc_status local_error = IBV_WC_SUCCESS;
};

struct ReceiveSlot {
    std::uint64_t wr_id = 0;
    std::uint32_t sge_count = 0;
    std::uint32_t bytes = 0;
};

/// A ring of posted receives with their scatter lists.
class ReceiveRing {
  public:
    void resize(std::uint32_t capacity, std::uint32_t sges) {
        capacity_ = capacity;
        sge_max_ = sges;
        slots_.resize(capacity);
        sges_.resize(static_cast<std::size_t>(capacity) * sges);
    }
    [[nodiscard]] bool full() const { return count_ == capacity_; }
    [[nodiscard]] bool empty() const { return count_ == 0; }
    [[nodiscard]] std::uint32_t count() const { return count_; }
    [[nodiscard]] std::uint32_t capacity() const { return capacity_; }
    [[nodiscard]] std::uint32_t sge_max() const { return sge_max_; }
    void push(const ibv_recv_wr& wr);
    /// REQUIRES: !empty().
    void pop(std::uint64_t& wr_id, Buffers& buffers);
    void clear() { first_ = count_ = 0; }
    /// Changes the capacity and keeps what is posted. REQUIRES: count() <= capacity.
    void grow(std::uint32_t capacity);

  private:
    std::uint32_t capacity_ = 0;
    std::uint32_t sge_max_ = 0;
    std::uint32_t first_ = 0;
    std::uint32_t count_ = 0;
    std::vector<ReceiveSlot> slots_;
    std::vector<ibv_sge> sges_;
};

struct Attachment;

struct CompletionQueue::State {
    std::shared_ptr<Attachment> attachment;
    CompletionChannel* channel = nullptr;
    CompletionQueue* self = nullptr;
    std::vector<ibv_wc> ring;
    std::vector<std::uint64_t> stamps;  ///< When each came, if that was asked for; else empty.
    bool ignore_overrun = false;
    std::uint32_t capacity = 0;
    std::uint32_t first = 0;
    std::uint32_t count = 0;
    std::uint32_t users = 0;  ///< QPs that complete here.
    bool overrun = false;
    enum class Armed : std::uint8_t { kNo, kSolicited, kAny } armed = Armed::kNo;
    /// The strongest of the completions that came while nobody had asked, and that may not have
    /// been polled: who asks now is told of them at once, as adapters do. A program that polls
    /// nothing and then asks would else sleep beside what came in between, which here is often:
    /// polling one CQ fills the others too.
    enum class Untold : std::uint8_t { kNone, kPlain, kSolicited } untold = Untold::kNone;
    Hca::State* hca = nullptr;

    void push(const ibv_wc& wc, bool solicited);
    [[nodiscard]] std::uint64_t first_stamp() const { return stamps.empty() ? 0 : stamps[first]; }
    /// Drops the completions of a QP that is reset or destroyed.
    void forget(std::uint32_t qp_number);
    std::uint32_t take(std::uint32_t count_max, ibv_wc* out);
};

struct SharedReceiveQueue::State {
    std::shared_ptr<Attachment> attachment;
    SharedReceiveQueue* self = nullptr;
    Hca::State* hca = nullptr;
    std::uint32_t pd = 0;
    ReceiveRing ring;
    std::uint32_t limit = 0;
    std::uint32_t users = 0;
    std::uint32_t number = 0;              ///< XRC: what peers call it; else 0.
    std::uint32_t domain = 0;              ///< XRC: whose QPs may feed it.
    CompletionQueue::State* cq = nullptr;  ///< XRC: where its receives complete.
    bool starved = false;  ///< Packets wait for receives, in the ring of some QP of it.
};

struct QueuePair::State {
    State(std::shared_ptr<Attachment> owner, std::uint32_t index, std::uint32_t slots);

    std::shared_ptr<Attachment> attachment;
    QueuePair* self = nullptr;
    Hca::State* hca = nullptr;
    std::uint32_t number;
    arena::QpEntry* fabric_entry;  ///< What the fabric sees of it.
    std::uint32_t local_index = 0;
    ibv_qp_type type = IBV_QPT_RC;
    std::atomic<ibv_qp_state> state{IBV_QPS_RESET};
    std::uint32_t pd = 0;
    ibv_qp_cap cap{};
    bool signal_all = false;
    CompletionQueue::State* send_cq = nullptr;
    CompletionQueue::State* receive_cq = nullptr;
    SharedReceiveQueue::State* srq = nullptr;
    ibv_qp_attr attr{};        ///< What was set by modify.
    std::uint32_t domain = 0;  ///< XRC receive side: its domain.
    std::uint32_t opens = 1;   ///< XRC receive side: handles that the program holds.
    bool refuses_own = false;  ///< Its own multicast messages do not come back to it.
    std::uint32_t groups = 0;  ///< Multicast groups that it is attached to.

    // Requester side.
    transport::Requester requester;
    std::vector<SendSlot> sends;
    std::vector<ibv_sge> send_sges;             ///< cap.max_send_sge per slot.
    std::vector<std::uint8_t> inline_data;      ///< cap.max_inline_data per slot.
    std::vector<wire::PacketHeader> datagrams;  ///< UD: header of each posted request.
    std::vector<LocalWork> local_work;          ///< By slot; empty until the first is posted.
    std::uint32_t group_at = 0;  ///< Multicast: members that the datagram at hand has passed.
    std::uint32_t datagram_psn = 0;
    bool pumping = false;  ///< Has requests that could not be sent yet.
    bool drain_event = false;
    std::uint64_t seen_acknowledged = 0;    ///< LaneBuffer::acknowledged when last taken in.
    std::uint64_t carried_acknowledge = 0;  ///< Came with a send, and not yet taken in wholly.
    std::uint32_t sent_packets = 0;  ///< Guess at the tail of the peer's ring, for prefetching.
    bool acting = false;             ///< In Attachment::actors.
    bool again = false;              ///< In Attachment::again.

    // Responder side.
    transport::ResponderRules rules{};
    ReceiveRing receives;
    bool receive_open = false;  ///< A message is being received into `open`.
    std::uint64_t open_wr_id = 0;
    Buffers open;
    std::uint32_t open_bytes = 0;
    bool last_wqe_told = false;
    bool starved = false;  ///< Packets wait in the ring for receives to be posted.
    /// Where the next request is looked for: QpEntry::taken when it was last read.
    std::uint32_t next_request = 0;
    std::uint32_t lag = 0;  ///< Requests executed by us that may not have been popped.

    [[nodiscard]] arena::QpEntry& entry() const { return *fabric_entry; }
    /// What is on its way is given up; its memory is about to be the program's again.
    void withdraw() const { entry().withdrawals.fetch_add(1, std::memory_order_seq_cst); }
    [[nodiscard]] bool is_xrc() const {
        return type == IBV_QPT_XRC_SEND || type == IBV_QPT_XRC_RECV;
    }
    [[nodiscard]] bool reliable() const { return type == IBV_QPT_RC || is_xrc(); }
    [[nodiscard]] ReceiveRing& receive_ring() { return srq != nullptr ? srq->ring : receives; }
};

/// Carries asynchronous events to the front end.
struct Hca::State {
    std::shared_ptr<Attachment> attachment;
    DeviceDescription device;
    int async_fd = -1;
    std::mutex async_lock;
    std::deque<AsyncEvent> async_events;
    std::unordered_map<std::uint32_t, std::uint32_t>
        pds;  ///< PD → number of users. Under attachment lock.
    std::unordered_map<std::uint32_t, std::uint32_t> mrs;  ///< lkey → PD. Under attachment lock.

    void raise(const AsyncEvent& event);
    /// Drops waiting events of an object that is being destroyed.
    void forget(const void* object);
    ~State();
};

/// An XRC domain. Those with a file are one domain, whoever of this process opens it.
struct XrcDomain {
    std::uint32_t opens = 0;  ///< 0: free.
    std::uint32_t users = 0;  ///< Queue pairs and receive queues of it.
    std::uint64_t device = 0;
    std::uint64_t inode = 0;  ///< 0: no file.
};

/// This process's place at one HCA of the fabric.
struct Attachment {
    Attachment(runtime::AttachClient joined, std::uint32_t process_identity);
    ~Attachment();
    static int join(const DeviceDescription& device, std::shared_ptr<Attachment>& out);
    /// In pages of its own: threads wait for `lock` while the pages of a program's heap are moved.
    static void* operator new(std::size_t bytes);
    static void operator delete(void* place, std::size_t bytes);

    runtime::AttachClient client;
    arena::Arena arena;
    std::uint32_t identity;
    std::uint32_t process_slot;
    std::uint32_t node = 0;
    Lock lock;
    switching::Mover<> mover;
    PacketPool pool;
    Reach reach;
    RegisteredMemory memory;
    std::vector<QueuePair::State*> qps;  ///< By local index; null where free.
    std::vector<Hca::State*> hcas;
    /// QPs with one-sided requests that have been sent and that nobody is known to have executed:
    /// another mover may hold them on their way, or the peer's lock was taken. Looked after at
    /// every poll.
    std::vector<QueuePair::State*> actors;
    bool watching = false;  ///< The hot QP's rings say so (LaneBuffer::watched).
    /// Its acknowledgement waits until the program was served.
    QueuePair::State* owes = nullptr;
    /// The one QP whose `lag` is not zero. So at most kQpLag packets are kept from their senders,
    /// and not for long: a few looks that found nothing end it, and so does the thread's going to
    /// sleep.
    QueuePair::State* lagging = nullptr;
    std::uint32_t idle_looks = 0;     ///< In a row, with a QP lagging.
    QueuePair::State* hot = nullptr;  ///< The QP that last had something.
    std::uint32_t next_qp_hint = 0;
    std::uint32_t first_free = 0;  ///< No index below it is free in `qps`.
    std::uint32_t next_mr_hint = 0;
    std::uint32_t next_pd = 1;
    std::unordered_map<std::uint32_t, Window> windows;  ///< By index of the entry.
    std::unordered_map<std::uint32_t, SharedReceiveQueue::State*> xrc_srqs;  ///< By number.
    std::vector<XrcDomain> xrc_domains;  ///< A domain's number is its index plus one.
    std::uint32_t next_srq = 0;
    bool unfinished = false;             ///< Some packet waits for credit: look at its lane again.
    std::uint64_t unfinished_since = 0;  ///< Since when without a break; 0 while not.
    /// QPs that were not served to the end: looked at at every poll until they are.
    std::vector<QueuePair::State*> again;
    std::vector<QueuePair::State*> again_now;  ///< While they are being looked at.
    bool retry = false;                        ///< The same of QPs that are not known: look at all.
    bool retry_in_time = false;                ///< The same, but not before Mover::next_time().
    std::uint64_t next_deadline = 0;           ///< Earliest of the requesters' timers; 0 none.
    std::uint32_t polls = 0;
    std::uint32_t polls_hot = 0;     ///< Looks that found the hot QP busy.
    std::uint32_t polls_parked = 0;  ///< Since the thread last parked.

    // The progress thread. Not under the lock.
    std::atomic<std::uint32_t> app_polls{0};
    /// The same, when the thread last looked, or the program went to sleep for an event.
    std::atomic<std::uint32_t> seen_polls{0};
    std::atomic<bool> stopping{false};
    /// When the thread will look of itself: 0 soon (or it is at work), kForever not at all.
    static constexpr std::uint64_t kForever = ~0ULL;
    std::atomic<std::uint64_t> sleeps_until{0};
    std::atomic<bool> orphaned{false};  ///< The fabric is gone: objects can only be destroyed.
    std::atomic<bool> foreign{false};   ///< Inherited over fork: not this process's; nothing works.
    std::thread thread;
    std::atomic<int> alert_fd{-1};  ///< See Hca::alert_fd.

    [[nodiscard]] arena::ProcessEntry& process() const { return arena.process(process_slot); }
    [[nodiscard]] bool usable() const {
        return !orphaned.load(std::memory_order_relaxed) && !inherited();
    }
    [[nodiscard]] bool inherited() const { return foreign.load(std::memory_order_relaxed); }

    /// Does all that there is to do. Called by polls and by the thread.
    void progress();
    void check_timers(bool force);
    void service(QueuePair::State& qp);
    void service_actors();
    void look_again(QueuePair::State& qp);
    void service_again();
    void forget(QueuePair::State& qp);
    void add_actor(QueuePair::State& qp);
    void remove_actor(QueuePair::State& qp);
    /// True if the hot QP had something.
    bool service_hot();
    void service_ready();
    /// Makes `qp` the one that is looked at first, without being told.
    void watch(QueuePair::State& qp);
    void unwatch();
    void pay();
    /// For a QP that is about to end: the program has seen what its peer is still to hear of.
    void pay_last_ack(const QueuePair::State& qp);
    /// Pops what has been executed. REQUIRES: for RC and UC, we hold its lock.
    void settle(QueuePair::State& qp);
    /// Notes that requests of this QP were executed, and settles another's.
    void lag_behind(QueuePair::State& qp);
    /// Settles whoever lags, if nobody holds its lock: then they do it.
    void catch_up();
    void forget_debts(const QueuePair::State& qp);
    /// True if a request stands where the next is looked for, or that place is out of date.
    [[nodiscard]] bool request_in_sight(QueuePair::State& qp, credit::Slot& slot) const;
    /// True if there were any.
    bool service_responses(QueuePair::State& qp);
    bool take_acknowledged(QueuePair::State& qp);
    bool take_acknowledge(QueuePair::State& qp, std::uint64_t word);
    /// Takes the acknowledgement that is owed for `qp`, to go with a send: its word, or 0.
    std::uint64_t take_owed(QueuePair::State& qp);
    void give_back_owed(QueuePair::State& qp);
    void service_requests(QueuePair::State& qp);
    void service_datagrams(QueuePair::State& qp);
    /// Sends what the requester may send, executes it at the peer where possible, collects
    /// completions.
    void pump(QueuePair::State& qp);
    /// The peer's ring was last touched by the peer: has its lines come while something else is
    /// done.
    void fetch_peer_ring(const QueuePair::State& qp) const;
    bool pump_one(QueuePair::State& qp, std::uint64_t now, bool& one_sided_out);
    void collect(QueuePair::State& qp);
    void stop_sends(QueuePair::State& qp);
    static void store_original(QueuePair::State& qp, std::uint32_t slot);
    bool place_read(QueuePair::State& qp, const arena::PacketEntry& packet, std::uint32_t slot,
                    std::uint32_t offset);
    void act_as_peer(QueuePair::State& qp);
    void note_deadline(std::uint64_t deadline) {
        if (deadline != 0 && (next_deadline == 0 || deadline < next_deadline))
            next_deadline = deadline;
    }

    /// Fills network addresses, injects and drives. False: no credit or no packet; nothing was
    /// sent.
    bool send_packet(std::uint32_t packet, std::uint32_t generation, std::uint32_t port,
                     const arena::Route& route);
    void wake(const std::array<std::uint64_t, 4>& set);
    void flush_wakes() {
        if (mover.has_wakes()) wake(mover.take_wakes());
    }
    void progress_rest();
    void try_later(QueuePair::State& qp);
    /// Tells the mover the time, if the fabric has links with rates. True if so.
    bool tell_time() {
        if (arena.header().rated.load(std::memory_order_relaxed) == 0) return false;
        mover.set_now(now_ns());
        return true;
    }
    /// Moves on what has waited for a link, if it is time.
    void move_waiting();
    void run_thread();
    [[nodiscard]] std::uint64_t patience() const;
    void close_down();
    void park_for_wait();

    /// The QP goes to the error state: everything outstanding ends as flushed.
    void break_qp(QueuePair::State& qp, bool tell);
    void flush_receives(QueuePair::State& qp);

    /// A key for the memory region, or 0 if the table is full.
    std::uint32_t publish_mr(std::uint64_t address, std::uint64_t length, std::uint64_t iova,
                             std::uint32_t access, std::uint32_t pd, const Placement& placement);
    void drop_mr(std::uint32_t key);
    /// Makes the key void and waits until no peer works by it. The entry stays ours.
    void void_key(arena::MrEntry& mr);
    /// True if some window is bound to the region.
    [[nodiscard]] bool has_window(std::uint32_t lkey) const;
    /// A free entry of the MR table, made ours, or 0.
    std::uint32_t claim_mr();
    /// Binds a window, or ends a type 2 window's key, on behalf of `qp`.
    ibv_wc_status bind_window(const QueuePair::State& qp, const LocalWork& work);
    ibv_wc_status invalidate(const QueuePair::State& qp, std::uint32_t key);
    void unbind(Window& window, std::uint32_t index);
    /// Does the local work whose turn has come. False if it failed.
    bool work_locally(QueuePair::State& qp, std::uint32_t slot);
    /// Sends copies of a datagram to the members of its group. False: not to all yet.
    bool send_to_group(QueuePair::State& qp, const transport::Emission& out);
    bool send_copy(QueuePair::State& qp, const transport::Emission& out);
    /// The XRC receive queue is about to go: nothing finds it any more.
    void forget_xrc_srq(SharedReceiveQueue::State& srq);
    /// Counts a poll that found the queue short: a program that polls much does the progress
    /// thread's work.
    void note_poll() {
        if ((process().summary.load(std::memory_order_relaxed) & arena::kParked) == 0) return;
        if (++polls_parked < 64) return;
        polls_parked = 0;
        process().summary.fetch_and(~arena::kParked, std::memory_order_acq_rel);
        ring_own_bell();
    }
    void ring_own_bell();
    /// Called when the program leaves the engine: wakes the thread if there is something to be done
    /// before it means to wake up.
    void leave_to_thread();

    /// Finds the MR behind a key; null if it does not grant this. `at` is the QP that a peer's
    /// request came to, null for the owner's own accesses.
    [[nodiscard]] const arena::MrEntry* find_mr(std::uint32_t owner, std::uint32_t pd,
                                                std::uint32_t key, std::uint64_t address,
                                                std::uint64_t length, int access,
                                                const arena::QpEntry* at) const;
};

/// Copies `length` bytes of a packet's payload into buffers, `at` bytes after their start.
/// IBV_WC_SUCCESS, _LOC_LEN_ERR, _LOC_PROT_ERR or _LOC_ACCESS_ERR (payload out of reach).
ibv_wc_status scatter(Attachment& a, std::uint32_t pd, const Buffers& buffers, std::uint32_t at,
                      const arena::PacketEntry& packet, std::uint32_t length);
/// LaneBuffer::acknowledged: where the connection's PSNs began, so that a word meant for a former
/// connection is not taken for one of this, and the last PSN executed. | valid 1 | unused 15 |
/// first PSN 24 | PSN 24 |
constexpr std::uint64_t acknowledged_word(std::uint32_t first_psn, std::uint32_t psn) {
    return 1ULL << 63U | static_cast<std::uint64_t>(first_psn & wire::kMask24) << 24U |
           (psn & wire::kMask24);
}
/// The same for a datagram: the first 40 bytes of the buffers are the GRH's, written if the packet
/// has one.
ibv_wc_status scatter_datagram(Attachment& a, const arena::QpEntry& qp, const Buffers& buffers,
                               const arena::PacketEntry& packet);
/// Wire size in 4-byte words of a packet with this header.
std::uint32_t wire_words(const wire::PacketHeader& header);
/// Sends an acknowledgement of the QP `from` to its peer. Used by owner and agent alike.
void send_reply(Attachment& a, const arena::QpEntry& from, wire::PacketHeader header, bool quiet);
/// Sends a read response whose payload is found as said. False: try later.
bool send_read_response(Attachment& a, const arena::QpEntry& from,
                        const wire::PacketHeader& request, arena::PayloadKind kind,
                        std::uint32_t memory_owner, std::uint64_t address, bool quiet);

/// Holds off all threads of ours in this process, at whichever HCA, and the front end's: while
/// memory moves nobody may write to it, not even to the word of a mutex that he waits for. Holds
/// `here`'s lock too. So those mutexes, in Attachment and in the registry, lie where nothing moves.
class StillGuard {
  public:
    explicit StillGuard(const std::shared_ptr<Attachment>& here);
    ~StillGuard();
    StillGuard(const StillGuard&) = delete;
    StillGuard& operator=(const StillGuard&) = delete;

  private:
    std::vector<std::shared_ptr<Attachment>> held_;
};
/// Threads of this process that are Weir's own.
int own_thread_count();
/// Finds the LID an address leads to. EINVAL if it leads nowhere.
int resolve_address(const Attachment& a, AddressHandle& handle);
ibv_mtu mtu_of(std::uint32_t bytes);
/// What a QP allows its peer now.
transport::ResponderRules rules_of(const arena::QpEntry& qp);
/// Datagrams to this QP number go to a group (IBTA 9.6.1.2.1).
inline constexpr std::uint32_t kGroupQp = 0xffffff;
/// LIDs from here on are groups'.
inline constexpr std::uint32_t kFirstGroupLid = 0xc000;
/// The port's GID: link-local prefix and port GUID.
void gid_of_lid(arena::Arena arena, std::uint32_t lid, ibv_gid& gid);
}  // namespace weir::hca

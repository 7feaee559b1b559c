// SPDX-License-Identifier: Apache-2.0
// Joining and leaving a fabric, and the progress that polls and the progress thread share.
#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <map>
#include <new>
#include <utility>

#include "hca/engine.h"
#include "runtime/real/event_counter.h"

namespace weir::hca {

namespace {

/// While the program polls by itself, the thread looks up this seldom.
constexpr std::uint64_t kLookEveryNs = 2'000'000;
/// After a busy peer or a full lane, the thread tries again this soon.
constexpr std::uint64_t kRetryNs = 200'000;
/// Polls in one stretch from which on the program is taken to be polling.
constexpr std::uint32_t kPollsOfAPoller = 64;
constexpr std::uint32_t kTimerEveryPolls = 64;
/// However busy one QP is, the others are looked at this often.
constexpr std::uint32_t kOthersEvery = 16;
/// So many looks that found nothing end the lag of a ring: more than the pause between two messages
/// of a conversation.
constexpr std::uint32_t kSettleAfterLooks = 256;
/// How long the head of a queue waits for a program that does not read: what OpenSM sets at leaf
/// ports.
constexpr std::uint64_t kQueueLifetimeNs = 268'000'000;

std::uint64_t clock_ns(clockid_t clock) {
    timespec t{};
    clock_gettime(clock, &t);
    return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000ULL +
           static_cast<std::uint64_t>(t.tv_nsec);
}

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen, std::uint64_t ns) {
    const timespec limit{static_cast<time_t>(ns / 1'000'000'000ULL),
                         static_cast<long>(ns % 1'000'000'000ULL)};
    syscall(SYS_futex, &word, FUTEX_WAIT, seen, ns == 0 ? nullptr : &limit, nullptr, 0);
}

void futex_wake(const std::atomic<std::uint32_t>& word) {
    syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

/// All attachments of this process, for sharing and for fork. Never destroyed: threads may outlive
/// statics.
struct Registry {
    std::mutex lock;
    std::map<std::pair<std::string, std::uint32_t>, std::weak_ptr<Attachment>> joined;
    std::vector<std::shared_ptr<Attachment>>
        forking;  ///< Between fork's handlers: held and locked.
    std::atomic<int> threads{0};
    std::mutex awake;  ///< See lock_awake().
};
Registry& registry() {
    // In the library's own pages, which nobody registers, for the reason that Attachment is in its
    // own.
    alignas(Registry) static std::byte place[sizeof(Registry)];
    static auto* instance = new (place) Registry;
    return *instance;
}

void before_fork() {
    auto& r = registry();
    r.awake.lock();
    r.lock.lock();
    for (auto& [key, weak] : r.joined) {
        auto attachment = weak.lock();
        if (attachment == nullptr) continue;
        attachment->lock.lock();
        r.forking.push_back(std::move(attachment));
    }
    RegisteredMemory::plan_copies();
    RegisteredMemory::copy_for_child();
}

void after_fork_in_parent() {
    auto& r = registry();
    RegisteredMemory::drop_copies();
    for (auto& attachment : r.forking)
        attachment->lock.unlock();
    const auto released = std::exchange(r.forking, {});
    r.lock.unlock();
    r.awake.unlock();
}

/// A child has its parent's objects but not its place in the fabric: they answer with errors, and
/// memory that was shared with peers is the child's own again.
void after_fork_in_child() {
    auto& r = registry();
    RegisteredMemory::adopt_copies();
    RegisteredMemory::forget_copies();
    for (auto& attachment : r.forking) {
        attachment->foreign.store(true);
        // The child must be able to drop its reference without joining a thread that it does not
        // have.
        new (&attachment->thread) std::thread();
        new (&attachment->lock) Lock();
    }
    r.forking.clear();
    r.joined.clear();
    new (&r.lock) std::mutex();
    new (&r.awake) std::mutex();
    r.threads.store(0);
}

bool kernel_copy_works() {
    std::uint32_t from = 7;
    std::uint32_t to = 0;
    const iovec local{&to, sizeof to};
    const iovec remote{&from, sizeof from};
    return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == sizeof to;
}

int errno_of(const Error& error) {
    switch (error.code) {
        case ErrorCode::kNotFound:
        case ErrorCode::kUnreachable:
            return ENOENT;
        case ErrorCode::kDenied:
            return EACCES;
        case ErrorCode::kBusy:
            return EBUSY;
        case ErrorCode::kNoSpace:
            return ENOMEM;
        default:
            return EIO;
    }
}

}  // namespace

std::uint64_t now_ns() {
    return clock_ns(CLOCK_MONOTONIC);
}

std::uint64_t coarse_now_ns() {
    constexpr std::uint64_t kTickNs = 4'000'000;  // at least one tick of the kernel's clock
    return clock_ns(CLOCK_MONOTONIC_COARSE) + kTickNs;
}

void register_fork_handlers() {
    static std::once_flag once;
    std::call_once(once,
                   [] { pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child); });
}

int Attachment::join(const DeviceDescription& device, std::shared_ptr<Attachment>& out) {
    auto& r = registry();
    register_fork_handlers();
    const std::lock_guard guard(r.lock);
    auto& place = r.joined[{device.fabric, device.node_index}];
    out = place.lock();
    if (out != nullptr && out->usable() && out->arena.header().closing.load() == 0) return 0;
    auto client = runtime::AttachClient::connect(device.fabric);
    if (!client) return errno_of(client.error());
    auto window = runtime::create_window();
    if (!window) return errno_of(window.error());
    const auto joined = client->attach(device.node_index, window->get());
    if (!joined) return errno_of(joined.error());
    out = std::shared_ptr<Attachment>(new Attachment(*std::move(client), *joined));
    out->memory.start(*std::move(window), out->reach.kernel_copy_allowed());
    out->node = device.node_index;
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // the program's signals are for its own threads
    r.threads.fetch_add(1);
    out->thread = std::thread([raw = out.get()] { raw->run_thread(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    place = out;
    return 0;
}

int own_thread_count() {
    return registry().threads.load();
}

void own_thread_started() {
    registry().threads.fetch_add(1);
}

void own_thread_ended() {
    registry().threads.fetch_sub(1);
}

StillGuard::StillGuard(const std::shared_ptr<Attachment>& here) {
    auto& r = registry();
    r.awake.lock();
    r.lock.lock();
    held_.reserve(r.joined.size() + 1);
    for (auto& [key, weak] : r.joined)
        if (auto place = weak.lock(); place != nullptr) held_.push_back(std::move(place));
    // One that has lost its fabric is not in the list any more.
    if (std::find(held_.begin(), held_.end(), here) == held_.end()) held_.push_back(here);
    for (const auto& place : held_)
        place->lock.lock();
}

StillGuard::~StillGuard() {
    for (const auto& place : held_)
        place->lock.unlock();
    registry().lock.unlock();
    registry().awake.unlock();
}

void* Attachment::operator new(std::size_t bytes) {
    void* place = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED) throw std::bad_alloc();
    return place;
}

void Attachment::operator delete(void* place, std::size_t bytes) {
    munmap(place, bytes);
}

void lock_awake() {
    registry().awake.lock();
}

void unlock_awake() {
    registry().awake.unlock();
}

Attachment::Attachment(runtime::AttachClient joined, std::uint32_t process_identity)
    : client(std::move(joined)),
      arena(client.arena()),
      identity(process_identity),
      process_slot(arena::slot_of(process_identity)),
      mover(arena),
      pool(arena, process_slot),
      next_qp_hint(process_slot * 251),
      next_mr_hint(process_slot * 1021) {
    reach.start(arena, &client, identity);
    reach.set_kernel_copy(kernel_copy_works());
    mover.set_self(&process());
}

Attachment::~Attachment() {
    if (!thread.joinable()) return;
    stopping.store(true);
    process().doorbell.fetch_add(1);
    futex_wake(process().doorbell);
    thread.join();
    registry().threads.fetch_sub(1);
    if (const int fd = alert_fd.load(); fd >= 0) close(fd);
}

void Attachment::wake(const std::array<std::uint64_t, 4>& set) {
    for (std::uint32_t word = 0; word < set.size(); ++word) {
        for (auto bits = set[word]; bits != 0; bits &= bits - 1) {
            const auto index = word * 64 + static_cast<std::uint32_t>(__builtin_ctzll(bits));
            if (index == process_slot && std::this_thread::get_id() == thread.get_id()) continue;
            auto& other = arena.process(index);
            other.doorbell.fetch_add(1, std::memory_order_release);
            futex_wake(other.doorbell);
        }
    }
}

void Attachment::service(QueuePair::State& qp) {
    if (service_responses(qp) || qp.pumping) pump(qp);
    service_requests(qp);
}

void Attachment::add_actor(QueuePair::State& qp) {
    if (qp.acting) return;
    qp.acting = true;
    actors.push_back(&qp);
}

void Attachment::remove_actor(QueuePair::State& qp) {
    if (!qp.acting) return;
    qp.acting = false;
    std::erase(actors, &qp);
}

void Attachment::service_actors() {
    for (std::size_t i = 0; i < actors.size();) {
        auto& qp = *actors[i];
        act_as_peer(qp);
        service_responses(qp);
        pump(qp);
        // pump() has removed it if there is nothing left to look after.
        if (i < actors.size() && actors[i] == &qp) ++i;
    }
}

bool Attachment::service_hot() {
    if (hot == nullptr) return false;
    auto& qp = *hot;
    credit::Slot head{};
    bool found = false;
    if (request_in_sight(qp, head)) {
        // What came quietly, its sender is about to execute; looking on would only be in its way.
        const auto route = arena.packet(head.packet).route.load(std::memory_order_relaxed);
        if (!arena::Route::decode(route).quiet) {
            service_requests(qp);
            found = true;
        }
    }
    const auto acknowledged = qp.entry().responses.acknowledged.load(std::memory_order_acquire);
    if (acknowledged != qp.seen_acknowledged || mover.peek(mover.response_ring(qp.number), head)) {
        service_responses(qp);
        pump(qp);
        found = true;
    }
    if (found) watch(qp);
    return found;
}

void Attachment::service_ready() {
    auto& me = process();
    auto summary = me.summary.load(std::memory_order_acquire) & ~arena::kParked;
    if (summary == 0) return;
    me.summary.fetch_and(~summary, std::memory_order_acq_rel);
    for (; summary != 0; summary &= summary - 1) {
        const auto word = static_cast<std::uint32_t>(__builtin_ctzll(summary));
        auto bits = me.ready[word].exchange(0, std::memory_order_acq_rel);
        for (; bits != 0; bits &= bits - 1) {
            const auto bit = static_cast<std::uint32_t>(__builtin_ctzll(bits));
            for (auto index = word * 64 + bit; index < qps.size();
                 index += 64 * arena::kReadyWords) {
                if (qps[index] == nullptr) continue;
                auto& qp = *qps[index];
                service(qp);
                if (qps[index] == &qp) watch(qp);
            }
        }
    }
}

void Attachment::watch(QueuePair::State& qp) {
    const bool may = (process().summary.load(std::memory_order_relaxed) & arena::kParked) == 0;
    if (hot == &qp && watching == may) return;
    unwatch();
    hot = &qp;
    if (!may) return;
    watching = true;
    qp.entry().requests.watched.store(1, std::memory_order_relaxed);
    qp.entry().responses.watched.store(1, std::memory_order_relaxed);
    look_again(qp);  // what came just before is not missed
}

void Attachment::unwatch() {
    if (!watching) return;
    watching = false;
    auto& entry = hot->entry();
    // Exchanges, being full barriers, come before the looks below: see Mover::finish.
    entry.requests.watched.exchange(0, std::memory_order_seq_cst);
    entry.responses.watched.exchange(0, std::memory_order_seq_cst);
    const bool answered =
        entry.responses.acknowledged.load(std::memory_order_acquire) != hot->seen_acknowledged;
    if (answered || entry.requests.occupancy() != 0 || entry.responses.occupancy() != 0) {
        look_again(*hot);
    }
}

void Attachment::progress() {
    const bool busy = service_hot();
    if (busy) idle_looks = 0;
    if (!busy || ++polls_hot % kOthersEvery == 0) {
        pay();
        if (!busy && lagging != nullptr && ++idle_looks >= kSettleAfterLooks) catch_up();
        if (mover.next_time() != 0) move_waiting();
        service_actors();
        service_ready();
        const bool asked = process().rescan.load(std::memory_order_relaxed) != 0;
        if (retry || unfinished || asked || !again.empty()) progress_rest();
        if (++polls % kTimerEveryPolls == 0) check_timers(false);
    }
    flush_wakes();
}

/// The slow way round: after something could not be finished, or somebody died half-way.
void Attachment::progress_rest() {
    if (process().rescan.exchange(0, std::memory_order_relaxed) != 0) {
        retry = true;
        runtime::raise_event(alert_fd.load(std::memory_order_acquire));
    }
    if (unfinished) {
        const auto now = now_ns();
        tell_time();
        mover.begin();
        unfinished = !mover.retry_stuck();
        if (unfinished_since == 0) {
            unfinished_since = now;
            mover.remember_stuck();
        } else if (unfinished && now - unfinished_since > kQueueLifetimeNs) {
            mover.choke_noted();
            mover.remember_stuck();
            unfinished_since = now;
        }
        mover.end();
        if (!unfinished) unfinished_since = 0;
    }
    if (!std::exchange(retry, false)) {
        service_again();
        return;
    }
    for (std::size_t i = 0; i < qps.size(); ++i)
        if (qps[i] != nullptr) service(*qps[i]);
}

void Attachment::look_again(QueuePair::State& qp) {
    if (qp.again) return;
    qp.again = true;
    again.push_back(&qp);
}

void Attachment::service_again() {
    // Those that are still not served to the end come in anew.
    again_now.swap(again);
    for (auto* qp : again_now) {
        qp->again = false;
        service(*qp);
    }
    again_now.clear();
}

/// The QP is about to be destroyed.
void Attachment::forget(QueuePair::State& qp) {
    remove_actor(qp);
    if (std::exchange(qp.again, false)) std::erase(again, &qp);
    qps[qp.local_index] = nullptr;
    first_free = std::min(first_free, qp.local_index);
}

void Attachment::move_waiting() {
    const auto now = now_ns();
    if (now < mover.next_time()) return;
    mover.set_now(now);
    mover.begin();
    unfinished = !mover.retry_waiting() || unfinished;
    mover.end();
    retry = std::exchange(retry_in_time, false) || retry;
}

/// How long the progress thread may sleep, when all is done that can be; 0 for ever.
std::uint64_t Attachment::patience() const {
    std::uint64_t wait = 0;
    const bool soon = retry || unfinished || !again.empty() || !actors.empty();
    if (next_deadline == 0 && mover.next_time() == 0) return soon ? kRetryNs : 0;
    const auto now = now_ns();
    const auto until = [&](std::uint64_t when) {
        const auto left = when > now ? when - now : 1000;
        if (when != 0 && (wait == 0 || left < wait)) wait = left;
    };
    until(next_deadline);
    until(mover.next_time());
    return soon ? std::min(wait, kRetryNs) : wait;
}

void Attachment::run_thread() {
    auto& me = process();
    seen_polls.store(app_polls.load(std::memory_order_relaxed), std::memory_order_relaxed);
    for (;;) {
        // The bell is read first: whoever rings it after this look is not slept through.
        const auto bell = me.doorbell.load(std::memory_order_acquire);
        if (stopping.load(std::memory_order_acquire)) return;
        const auto polls_now = app_polls.load(std::memory_order_relaxed);
        const auto polls_before = seen_polls.exchange(polls_now, std::memory_order_relaxed);
        const bool polling = polls_now - polls_before >= kPollsOfAPoller;
        if (polling) {
            // The program does it all by itself; look again later whether it still does.
            sleeps_until.store(0, std::memory_order_release);
            futex_wait(me.doorbell, bell, kLookEveryNs);
            continue;
        }
        std::uint64_t wait = 0;
        {
            const std::lock_guard guard(lock);
            // Marked first, so that what comes from now on rings the bell; what came before is seen
            // now.
            me.summary.fetch_or(arena::kParked, std::memory_order_acq_rel);
            polls_parked = 0;
            unwatch();
            progress();
            pay();
            catch_up();
            check_timers(false);
            wait = patience();
            sleeps_until.store(wait == 0             ? kForever
                               : wait > kLookEveryNs ? now_ns() + wait
                                                     : 0,
                               std::memory_order_release);
            flush_wakes();
        }
        if (arena.header().closing.load(std::memory_order_relaxed) != 0) close_down();
        futex_wait(me.doorbell, bell, wait);
    }
}

/// The fabric is going away: the program learns of it as of a device that was pulled.
void Attachment::close_down() {
    const std::lock_guard guard(lock);
    if (orphaned.exchange(true)) return;
    for (auto* hca : hcas)
        hca->raise({IBV_EVENT_DEVICE_FATAL, nullptr, nullptr, nullptr, 0});
    for (auto* qp : qps)
        if (qp != nullptr) break_qp(*qp, false);
}

/// The program stops polling to wait for an event: from now on the bell must be rung at once.
void Attachment::park_for_wait() {
    const std::lock_guard guard(lock);
    process().summary.fetch_or(arena::kParked, std::memory_order_acq_rel);
    // However much it has polled: the thread does not stay out of the way when the bell rings.
    seen_polls.store(app_polls.load(std::memory_order_relaxed), std::memory_order_relaxed);
    unwatch();
    progress();
    pay();
    flush_wakes();
}

void Attachment::flush_receives(QueuePair::State& qp) {
    if (qp.receive_open) {
        ibv_wc wc{};
        wc.wr_id = qp.open_wr_id;
        wc.status = IBV_WC_WR_FLUSH_ERR;
        wc.opcode = IBV_WC_RECV;
        wc.qp_num = qp.number;
        qp.receive_open = false;
        qp.receive_cq->push(wc, true);
    }
    if (qp.type == IBV_QPT_XRC_RECV) return;
    if (qp.srq != nullptr) {
        if (!qp.last_wqe_told) {
            qp.last_wqe_told = true;
            qp.hca->raise({IBV_EVENT_QP_LAST_WQE_REACHED, nullptr, qp.self, nullptr, 0});
        }
        return;
    }
    while (!qp.receives.empty()) {
        Buffers buffers;
        ibv_wc wc{};
        qp.receives.pop(wc.wr_id, buffers);
        wc.status = IBV_WC_WR_FLUSH_ERR;
        wc.opcode = IBV_WC_RECV;
        wc.qp_num = qp.number;
        qp.receive_cq->push(wc, true);
    }
}

void Attachment::break_qp(QueuePair::State& qp, bool tell) {
    pay_last_ack(qp);
    remove_actor(qp);
    qp.withdraw();
    qp.state.store(IBV_QPS_ERR, std::memory_order_relaxed);
    qp.entry().receiving.store(0, std::memory_order_release);
    qp.requester.flush();
    collect(qp);
    flush_receives(qp);
    if (tell) qp.hca->raise({IBV_EVENT_QP_FATAL, nullptr, qp.self, nullptr, 0});
}

void Attachment::leave_to_thread() {
    const auto until = sleeps_until.load(std::memory_order_acquire);
    if (until == 0) return;
    const bool soon = retry || unfinished || !again.empty() || !actors.empty() || owes != nullptr;
    const auto early = [until](std::uint64_t when) { return when != 0 && when < until; };
    if (!soon && !early(next_deadline) && !early(mover.next_time())) return;
    sleeps_until.store(0, std::memory_order_relaxed);
    ring_own_bell();
}

void Attachment::ring_own_bell() {
    process().doorbell.fetch_add(1, std::memory_order_release);
    futex_wake(process().doorbell);
}

// NOLINTNEXTLINE(readability-function-size): what a key is checked against (IBTA 10.6.3).
const arena::MrEntry* Attachment::find_mr(std::uint32_t owner, std::uint32_t pd, std::uint32_t key,
                                          std::uint64_t address, std::uint64_t length, int access,
                                          const arena::QpEntry* at) const {
    const auto index = key >> 8U;
    if (index >= arena::kMrCount) return nullptr;
    const auto& mr = arena.mr(index);
    if (mr.key.load(std::memory_order_acquire) != key || key == 0) return nullptr;
    if (mr.owner.load(std::memory_order_relaxed) != owner || mr.pd != pd) return nullptr;
    if ((mr.access_flags & arena::kMrWindow) != 0 &&
        (at == nullptr || (mr.bound_qp != 0 && &arena.qp(mr.bound_qp) != at))) {
        return nullptr;
    }
    if ((mr.access_flags & static_cast<std::uint32_t>(access)) !=
        static_cast<std::uint32_t>(access)) {
        return nullptr;
    }
    if (address < mr.iova || address - mr.iova > mr.length ||
        length > mr.length - (address - mr.iova)) {
        return nullptr;
    }
    return &mr;
}

ibv_wc_status scatter(Attachment& a, std::uint32_t pd, const Buffers& buffers, std::uint32_t at,
                      const arena::PacketEntry& packet, std::uint32_t length) {
    std::uint32_t taken = 0;
    for (std::uint32_t i = 0; i < buffers.count && taken < length; ++i) {
        const ibv_sge& sge = buffers.sges[i];
        if (at >= sge.length) {
            at -= sge.length;
            continue;
        }
        const auto part = std::min(length - taken, sge.length - at);
        const auto* mr = a.find_mr(a.identity, pd, sge.lkey, sge.addr + at, part,
                                   IBV_ACCESS_LOCAL_WRITE, nullptr);
        if (mr == nullptr) return IBV_WC_LOC_PROT_ERR;
        auto* to = reinterpret_cast<void*>(mr->address + (sge.addr + at - mr->iova));
        const bool void_memory = (mr->access_flags & arena::kMrNull) != 0;
        if (!void_memory && !a.reach.fetch(packet, taken, to, part)) return IBV_WC_LOC_ACCESS_ERR;
        taken += part;
        at = 0;
    }
    return taken == length ? IBV_WC_SUCCESS : IBV_WC_LOC_LEN_ERR;
}

ibv_wc_status scatter_datagram(Attachment& a, const arena::QpEntry& qp, const Buffers& buffers,
                               const arena::PacketEntry& packet) {
    const auto& header = packet.header;
    if (header.payload_length + kGrhBytes > buffers.bytes) return IBV_WC_LOC_LEN_ERR;
    if (header.has(wire::kFlagGrh)) {
        ibv_grh grh{};
        grh.version_tclass_flow = __builtin_bswap32(6U << 28U);
        grh.paylen = __builtin_bswap16(static_cast<std::uint16_t>(
            wire::transport_header_bytes(header.opcode) + header.payload_length + 4));
        grh.next_hdr = 0x1b;
        grh.hop_limit = 64;
        gid_of_lid(a.arena, header.slid, grh.sgid);
        gid_of_lid(a.arena, qp.own_lid, grh.dgid);
        if (header.has(wire::kFlagMulticast)) {
            static_assert(offsetof(wire::PacketHeader, compare) ==
                          offsetof(wire::PacketHeader, swap_or_add) + 8);
            std::memcpy(grh.dgid.raw, &header.swap_or_add, 8);
            std::memcpy(grh.dgid.raw + 8, &header.compare, 8);
        }
        arena::PacketEntry carrier{};
        std::memcpy(carrier.payload, &grh, sizeof grh);
        const auto status = scatter(a, qp.pd, buffers, 0, carrier, kGrhBytes);
        if (status != IBV_WC_SUCCESS) return status;
    }
    return scatter(a, qp.pd, buffers, kGrhBytes, packet, header.payload_length);
}

void gid_of_lid(arena::Arena arena, std::uint32_t lid, ibv_gid& gid) {
    gid.global.subnet_prefix = __builtin_bswap64(0xfe80000000000000ULL);
    gid.global.interface_id = 0;
    if (lid >= arena.header().lid_count) return;
    const auto port = arena.lids()[lid];
    if (port < arena.header().port_count) {
        gid.global.interface_id = __builtin_bswap64(arena.port(port).guid);
    }
}

}  // namespace weir::hca

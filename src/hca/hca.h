// SPDX-License-Identifier: Apache-2.0
// The HCA: a verbs device inside the program's process, over a live fabric's arena. What the
// libibverbs drop-in, and later other front ends, are built on. It speaks the verbs' own types
// (<infiniband/verbs.h> of the installed headers), so nothing is translated twice, but knows
// nothing of ABI layouts or symbols.
//
// Errors: 0 or an errno value, as the verbs have it. No exception leaves this interface. Bad
// arguments are answered with EINVAL, unknown objects never reach here (the front end checks its
// handles).
//
// Threads: every call may come from any thread; one lock per Hca, held for microseconds. Each Hca
// owns one progress thread that sleeps whenever the program polls by itself or there is nothing to
// do.
//
// Lifetime: objects are destroyed through their Hca; destroying one that others still use is EBUSY.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <infiniband/verbs.h>

#include "arena/layout.h"
#include "sysfs/attributes.h"

namespace weir::hca {

class Hca;
class CompletionQueue;
class SharedReceiveQueue;
class QueuePair;
struct Attachment;  // src/hca/engine.h

/// For a front end with a thread of its own beside the engine's. Memory is moved (see
/// registered_memory.h) only while no thread but the engine's may write to it. Such a thread counts
/// as the engine's if it holds awake_lock() whenever it may touch memory that is not its stack.
/// Order of locks: the front end's own, awake_lock(), then calls into here.
void own_thread_started();
void own_thread_ended();
void lock_awake();
void unlock_awake();
/// Bytes of device memory that a program may have (ibv_alloc_dm): ordinary memory of its process.
inline constexpr std::uint64_t kDeviceMemoryMax = 16ULL << 20U;

/// A device that this process may open: one HCA of the host that the process was put on.
struct DeviceDescription {
    std::string name;          ///< "weir0", "weir1", … within the host.
    std::string fabric;        ///< Name of the fabric.
    std::string node;          ///< Node name in the fabric, e.g. "h0".
    std::uint64_t node_guid;   ///< Host byte order.
    std::uint32_t node_index;  ///< In the arena.
    std::uint32_t link_layer;  ///< IBV_LINK_LAYER_*.
};

/// Lists the devices of this process: environment WEIR_FABRIC names the fabric ("default" if
/// unset), WEIR_HOST the host (its only host if it has one). ENOENT if there is no such fabric,
/// ENXIO if no such host, EACCES if it belongs to another user. Never prints.
int list_devices(std::vector<DeviceDescription>& devices);

/// Handlers for fork() are registered at the first open, if not before by this. A front end that
/// has its own calls this first, since the engine's must be the last before a fork and the first
/// after it: registered memory may lie on the heap, which nobody may touch in between
/// (registered_memory.h).
void register_fork_handlers();

/// What sysfs would say of a device now, whether or not it is open. Errors as for list_devices().
int device_facts(const DeviceDescription& device, sysfs::DeviceFacts& facts);

/// A completion channel: `fd` is readable while events wait. Events are counted in the kernel, so
/// that poll, epoll and O_NONBLOCK on the fd work as with a kernel device.
class CompletionChannel {
  public:
    static int create(std::unique_ptr<CompletionChannel>& out);
    ~CompletionChannel();
    CompletionChannel(const CompletionChannel&) = delete;
    CompletionChannel& operator=(const CompletionChannel&) = delete;

    [[nodiscard]] int fd() const { return fd_; }
    /// Takes one event, waiting for it unless the fd is non-blocking (then EAGAIN). EINTR is passed
    /// on.
    int take(CompletionQueue*& cq);
    /// Queues an event of `cq`. Called by the engine.
    void raise(CompletionQueue* cq);
    /// Sleepers on this channel depend on the progress of `attachment`. Called by the engine.
    void depend_on(const std::shared_ptr<Attachment>& attachment);
    /// Forgets waiting events of `cq`, which is being destroyed.
    void forget(CompletionQueue* cq);

  private:
    CompletionChannel() = default;
    void before_sleep();
    struct State;
    std::unique_ptr<State> state_;
    int fd_ = -1;
};

/// What an address handle resolves to. The front end embeds it in its ibv_ah, first member first.
struct AddressHandle {
    ibv_ah base;
    ibv_ah_attr attr;
    std::uint32_t dlid;
};

class CompletionQueue {
  public:
    /// Takes up to `count` completions and moves the fabric along. Returns how many, or -1 if it
    /// overran.
    int poll(int count, ibv_wc* completions);
    /// The same for one completion, with the time at which it came (CLOCK_MONOTONIC), if the CQ was
    /// made to know it.
    int poll_stamped(ibv_wc& completion, std::uint64_t& stamp_ns);
    /// Asks for one event at the next completion (solicited ones only, if so said).
    int arm(bool solicited_only);
    int resize(int entries);
    [[nodiscard]] int entries() const;
    /// For the front end: its own object, given back in events.
    void* user = nullptr;

    struct State;
    explicit CompletionQueue(std::unique_ptr<State> state);
    ~CompletionQueue();
    State& state() { return *state_; }

  private:
    std::unique_ptr<State> state_;
};

class SharedReceiveQueue {
  public:
    int post(ibv_recv_wr* list, ibv_recv_wr** bad);
    int modify(const ibv_srq_attr& attr, int mask);
    int query(ibv_srq_attr& attr) const;
    /// XRC: the number that senders name it by; else 0.
    [[nodiscard]] std::uint32_t number() const;
    void* user = nullptr;

    struct State;
    explicit SharedReceiveQueue(std::unique_ptr<State> state);
    ~SharedReceiveQueue();
    State& state() { return *state_; }

  private:
    std::unique_ptr<State> state_;
};

class QueuePair {
  public:
    [[nodiscard]] std::uint32_t number() const;
    [[nodiscard]] ibv_qp_state current_state() const;
    /// Full check of state, transition and mask (IBTA 10.3, 11.2.5.2): EINVAL names nothing,
    /// changes nothing.
    int modify(const ibv_qp_attr& attr, int mask);
    int query(ibv_qp_attr& attr, int mask, ibv_qp_init_attr& init) const;
    /// Posts in order; at the first bad one stops, sets *bad to it and returns EINVAL, ENOMEM or
    /// EFAULT-like errno. Those before it are posted.
    int post_send(ibv_send_wr* list, ibv_send_wr** bad);
    /// The same, but either all are posted or none.
    int post_send_whole(ibv_send_wr* list);
    int post_receive(ibv_recv_wr* list, ibv_recv_wr** bad);
    /// Joins or leaves a multicast group. Joining twice is once; leaving what was not joined is
    /// EINVAL.
    int attach(const ibv_gid& group, std::uint16_t lid);
    int detach(const ibv_gid& group, std::uint16_t lid);
    void* user = nullptr;

    struct State;
    explicit QueuePair(std::unique_ptr<State> state);
    ~QueuePair();
    State& state() { return *state_; }

  private:
    std::unique_ptr<State> state_;
};

/// An asynchronous event for the front end: which object it concerns is said by the pointer that is
/// set.
struct AsyncEvent {
    ibv_event_type type;
    CompletionQueue* cq = nullptr;
    QueuePair* qp = nullptr;
    SharedReceiveQueue* srq = nullptr;
    int port = 0;
};

class Hca {
  public:
    /// Attaches to the fabric. EACCES, ENOENT, ENOMEM or EBUSY (all process slots taken).
    static int open(const DeviceDescription& device, std::unique_ptr<Hca>& out);
    ~Hca();
    Hca(const Hca&) = delete;
    Hca& operator=(const Hca&) = delete;

    int query_device(ibv_device_attr_ex& attr) const;
    int query_port(int port, ibv_port_attr& attr) const;  ///< EINVAL for a port that is not there.
    int query_gid(int port, int index, ibv_gid& gid) const;
    int query_pkey(int port, int index, __be16& pkey) const;
    /// LID of the port with this GID in the fabric; ENOENT if none.
    int resolve_gid(const ibv_gid& gid, std::uint32_t& lid) const;

    std::uint32_t alloc_pd();
    int dealloc_pd(std::uint32_t pd);  ///< EBUSY while something uses it.

    /// Registers memory. On success sets the keys. `iova` is what remote peers call the first byte.
    int reg_mr(std::uint32_t pd, void* address, std::size_t length, std::uint64_t iova, int access,
               std::uint32_t& lkey, std::uint32_t& rkey);
    int dereg_mr(std::uint32_t lkey);  ///< EBUSY while a window is bound to it.
    struct MrChange {
        int flags;  ///< IBV_REREG_MR_CHANGE_*: which of these are meant.
        std::uint32_t pd;
        void* address;
        std::size_t length;
        std::uint64_t iova;
        int access;
    };
    /// Changes a region, which keeps its key. On an error it is as it was. EBUSY while a window is
    /// bound to it.
    int rereg_mr(std::uint32_t lkey, const MrChange& change);
    /// A key for local buffers that need not exist: writes are dropped, reads give zeros.
    int alloc_null_mr(std::uint32_t pd, std::uint32_t& lkey);
    /// Makes pages of regions present. EINVAL, EFAULT as ibv_advise_mr has it.
    int advise_mr(std::uint32_t pd, bool writes, bool checked, const ibv_sge* sges,
                  std::uint32_t count);

    /// A memory window, unbound. It is bound by posting IBV_WR_BIND_MW.
    int alloc_mw(std::uint32_t pd, ibv_mw_type type, std::uint32_t& rkey);
    int dealloc_mw(std::uint32_t rkey);  ///< Any key that it has had.

    struct CqOptions {
        bool stamped = false;         ///< Keeps the time of each completion.
        bool ignore_overrun = false;  ///< When full, the oldest makes room.
    };
    int create_cq(int entries, CompletionChannel* channel, CompletionQueue*& out) {
        return create_cq(entries, channel, {}, out);
    }
    int create_cq(int entries, CompletionChannel* channel, CqOptions options,
                  CompletionQueue*& out);
    int destroy_cq(CompletionQueue* cq);  ///< EBUSY while a QP uses it.
    int create_srq(std::uint32_t pd, ibv_srq_attr& attr, SharedReceiveQueue*& out);
    int destroy_srq(SharedReceiveQueue* srq);
    /// XRC. A domain with a file (fd >= 0) is shared by all of this process that open that file.
    int open_xrcd(int fd, int flags, std::uint32_t& domain);
    int close_xrcd(std::uint32_t domain);
    int create_xrc_srq(std::uint32_t pd, std::uint32_t domain, CompletionQueue* cq,
                       ibv_srq_attr& attr, SharedReceiveQueue*& out);
    /// Another handle on an XRC receive QP of this process: each is destroyed by itself.
    int open_qp(std::uint32_t domain, std::uint32_t number, QueuePair*& out);
    struct QpRequest {
        std::uint32_t pd;
        ibv_qp_type type;
        CompletionQueue* send_cq;
        CompletionQueue* receive_cq;
        SharedReceiveQueue* srq;  ///< May be null.
        ibv_qp_cap cap;           ///< Raised to what was given.
        bool signal_all;
        std::uint32_t xrc_domain = 0;  ///< IBV_QPT_XRC_RECV, which has no PD and no CQs.
        bool refuses_own = false;      ///< IBV_QP_CREATE_BLOCK_SELF_MCAST_LB.
    };
    int create_qp(QpRequest& request, QueuePair*& out);
    int destroy_qp(QueuePair* qp);
    /// Fills the LID that the handle leads to. EINVAL if nothing in the fabric has that address.
    int resolve_ah(AddressHandle& handle) const;

    /// Readable while asynchronous events wait.
    [[nodiscard]] int async_fd() const;
    /// Takes one; waits unless the fd is non-blocking.
    int take_async(AsyncEvent& event);

    // What the connection manager needs to know beyond the verbs.
    [[nodiscard]] arena::Arena arena() const;
    [[nodiscard]] std::uint32_t node_index() const;
    /// The process, as the arena's owner fields have it.
    [[nodiscard]] std::uint32_t identity() const;
    /// An eventfd that is written to when somebody at the fabric has died, -1 if there is none to
    /// be had. It lives as long as the attachment.
    int alert_fd();
    /// The caller has polled and is about to sleep: what comes from now on wakes the engine's
    /// thread.
    void park();

    struct State;
    State& state() { return *state_; }

  private:
    explicit Hca(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace weir::hca

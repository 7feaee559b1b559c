// SPDX-License-Identifier: Apache-2.0
// The process's connection manager: what lies between the functions of rdma_cma.h and the state
// machine of src/connection. Objects that programs see begin with the struct of the ABI, so a
// pointer to one is a pointer to the other; whether it is alive, a table knows.
//
//   program ── rdma_*() ──▶ Cm ──▶ connection::Manager ──MADs──▶ Device (control QP) ──▶ fabric
//   program ◀─ channel fd ─ Cm ◀── notices ◀──────────────MADs─── Device, by the thread
//
// Threads: one lock guards everything here, held for microseconds and never while waiting. One
// thread takes MADs and keeps the timers; it starts with the first listener or connection. A
// program that waits for an event takes MADs itself for a moment first, since waking costs more;
// as long as it does so again and again, the thread is not woken by MADs, and only looks now and
// then whether that is still so.
//
// fork: a child begins with nothing of its parent's; what it inherits is unknown there (EINVAL).
#pragma once

#include <poll.h>
#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <rdma/rdma_cma.h>

#include "addresses.h"
#include "connection/manager.h"
#include "device.h"

namespace weir::rdmacm {

template <class T>
class ProcessWide;

struct Identifier;

/// A sync identifier waits for its events inside the call, on a channel of its own.
struct Channel {
    rdma_event_channel abi{};
    std::deque<struct Event*> waiting;
    bool readable = false;  ///< Its descriptor says that there are events.
    /// Threads of the program that look into `waiting` by themselves at present: they need no
    /// descriptor to tell them.
    std::uint32_t lookers = 0;
};

/// An identifier's membership in a group, from rdma_join_multicast() on. Its queue pair is attached
/// when the program takes the event of the join.
struct Membership {
    Endpoint address;  ///< As it was given.
    ibv_gid gid{};
    std::uint16_t lid = 0;
    void* context = nullptr;
    bool sends_only = false;
    bool attached = false;
    std::uint32_t events_taken = 0;
    std::uint32_t events_acknowledged = 0;
};

struct Event {
    rdma_cm_event abi{};
    std::shared_ptr<Membership> group;  ///< Of a join.
    Identifier* counted_at = nullptr;   ///< Whose destruction waits for the acknowledgement.
    Channel* channel = nullptr;         ///< While it waits there.
    std::array<std::uint8_t, 256> private_data{};
};

/// Where an identifier stands; the names are those of the calls that lead there.
enum class Step : std::uint8_t {
    kIdle,
    kBound,
    kAddressResolved,
    kRouteResolved,
    kListening,
    kConnecting,  ///< Both sides, from connect() or the request on.
    kConnected,
    kDisconnected,
};

/// What a connection was agreed to be, for moving its QP along.
struct Agreement {
    std::uint32_t local_qp = 0;
    std::uint32_t remote_qp = 0;
    std::uint32_t send_psn = 0;
    std::uint32_t receive_psn = 0;
    std::uint8_t responder_resources = 0;
    std::uint8_t initiator_depth = 0;
    std::uint8_t retry_count = 7;
    std::uint8_t rnr_retry_count = 7;
    std::uint8_t ack_timeout = 0;
    std::uint8_t service_level = 0;
    ibv_mtu mtu = IBV_MTU_4096;
    bool shared_receives = false;
};

struct Identifier {
    rdma_cm_id abi{};
    Channel* channel = nullptr;  ///< Null once the program has destroyed it.
    bool sync = false;
    Step step = Step::kIdle;
    bool passive = false;  ///< Came by a request.
    Device* device = nullptr;
    Endpoint source;
    Endpoint destination;
    const weir_port* target = nullptr;  ///< Of the destination; null if that is a group.
    /// The destination is an address of this machine, so that any host may be meant.
    bool by_machine = false;
    ibv_sa_path_rec path{};

    // Ports of the host that are taken for it; each at the device it was taken by.
    struct Claim {
        Device* device;
        std::uint32_t index;
    };
    std::vector<Claim> claims;
    std::uint64_t token = 0;
    bool any_address = false;
    int backlog_left = 0;

    // Options.
    std::uint8_t type_of_service = 0;
    bool reuse_address = false;
    std::optional<bool> ipv6_only;
    std::optional<std::uint8_t> ack_timeout;
    ibv_ece local_ece{};
    ibv_ece remote_ece{};

    /// A request that waits for somebody to listen, and until when it does.
    std::optional<wire::CmBody> pending;
    connection::Time pending_until = 0;
    connection::Id connection = 0;
    bool datagram_asked = false;  ///< The connection is a SIDR exchange.
    Agreement agreement;

    // For rdma_get_request: what requests' QPs are made with.
    std::optional<ibv_qp_init_attr> request_qp;
    /// For rdma_create_ep: private data from the address information.
    std::vector<std::uint8_t> connect_data;

    std::vector<std::shared_ptr<Membership>> groups;
    /// Of rdma_resolve_addrinfo(), until the program takes it.
    struct FreeNames {
        void operator()(rdma_addrinfo* names) const { rdma_freeaddrinfo(names); }
    };
    std::unique_ptr<rdma_addrinfo, FreeNames> names;
    bool names_asked = false;

    std::uint32_t events_taken = 0;
    std::uint32_t events_acknowledged = 0;
    bool ending = false;  ///< Is being destroyed: no more events.

    [[nodiscard]] bool is_datagram() const {
        return abi.ps == RDMA_PS_UDP || abi.ps == RDMA_PS_IPOIB || abi.qp_type == IBV_QPT_UD;
    }
    void show_addresses();
};

class Cm {
  public:
    /// This process's. Never destroyed: programs destroy objects from exit handlers.
    static Cm& instance();

    std::mutex lock;
    std::condition_variable acknowledged;  ///< Some event was.

    // All below with the lock held, unless they say otherwise.

    /// Opens the devices. 0, ENODEV if there are none, or another errno value.
    int open_devices();
    [[nodiscard]] const std::vector<std::unique_ptr<Device>>& devices() const { return devices_; }
    [[nodiscard]] const Neighbourhood& neighbourhood() const { return neighbourhood_; }
    /// Control QPs and the thread. 0 or an errno value.
    int start();
    /// Puts the identifier on a device.
    void attach(Identifier& id, Device& device, std::uint8_t port);
    [[nodiscard]] Device* device_of_node(std::uint32_t node) const;

    Channel* make_channel();  ///< Null with errno set.
    Channel* find_channel(rdma_event_channel* channel);
    /// Drops its events and closes it. The program has destroyed its identifiers.
    void drop_channel(Channel& channel);
    Identifier& make_identifier(Channel& channel, void* context, rdma_port_space ps,
                                ibv_qp_type type);
    Identifier* find(rdma_cm_id* id);
    /// Ends all that it has going, and forgets it. Does not wait.
    void retire(Identifier& id);

    /// Queues an event for an identifier. The caller fills what belongs to its type.
    Event* raise(Identifier& id, rdma_cm_event_type type, int status);
    void drop_events_of(Identifier& id);
    void drop_events_of(Identifier& id, const Membership& group);
    void move_events(Identifier& id, Channel& to);
    /// The next event of a channel; null if there is none.
    Event* take(Channel& channel);
    Event* find(rdma_cm_event* event);
    /// True if it was a taken event, which is gone now.
    bool acknowledge(rdma_cm_event* event);

    connection::Manager& manager() { return manager_; }
    /// After calls to the manager: sends and notices.
    void act();
    /// Takes what has come, and does what is due. True if there was anything.
    bool progress();
    /// The same, by a thread of the program that waits for an event.
    void look();
    /// Before a sleep: what comes from now on wakes the thread.
    void park();
    /// After a change of what waits, or of who looks: has the descriptor say whether there are
    /// events.
    static void signal(Channel& channel);
    void bind_connection(Identifier& id, connection::Id connection);
    void drop_connection(Identifier& id);
    std::vector<Identifier*>& listeners() { return listeners_; }
    /// Sends the identifier's request to who listens, now or as soon as there is somebody. Refused
    /// after a while if there is nobody.
    void send_request(Identifier& id, wire::CmBody message);
    [[nodiscard]] std::uint64_t next_token() { return next_token_++; }
    std::uint32_t random();

    static connection::Time now();

  private:
    friend class ProcessWide<Cm>;
    Cm();
    static void before_fork();
    static void after_fork_in_parent();
    static void after_fork_in_child();
    static constexpr int kDevicesMax = 16;
    /// What the thread sleeps on.
    struct Watch {
        pollfd fds[2 * kDevicesMax + 1];
        nfds_t count;
        int wait_ms;
    };
    void run_thread();
    int take_turn(Watch& watch);
    int wait_time(connection::Time now);
    void watch_fork();
    void send_to(Identifier& id, const connection::Peer& peer);
    void look_for_listeners(connection::Time now);
    void wake_thread();
    void on_notice(const connection::Notice& notice);
    void on_request(const connection::Notice& notice, const wire::CmRequest& message);
    void on_datagram_request(const connection::Notice& notice,
                             const wire::CmDatagramRequest& message);
    /// What a request says of its ends.
    struct Asked {
        Identifier* listener;  ///< Null if nobody listens.
        Endpoint local;
        Endpoint remote;
        std::size_t header_bytes = 0;  ///< Of its private data, before the program's.
    };
    Asked find_asked(std::uint64_t service_id, const connection::Notice& notice,
                     std::span<const std::uint8_t> private_data);
    Identifier* child_of(const Asked& asked, const connection::Notice& notice, Event*& event);
    Identifier* find_listener(std::uint64_t service_id, const Endpoint& local,
                              std::uint32_t device);
    void note_peer(const connection::Peer& peer);
    void look_for_lost_peers();
    std::size_t index_of(const Device& device) const;

    std::vector<std::unique_ptr<Device>> devices_;
    bool opened_ = false;
    Neighbourhood neighbourhood_;
    std::unordered_map<rdma_event_channel*, std::unique_ptr<Channel>> channels_;
    std::unordered_map<rdma_cm_id*, std::unique_ptr<Identifier>> identifiers_;
    std::unordered_map<rdma_cm_event*, std::unique_ptr<Event>> events_;
    std::unordered_map<connection::Id, Identifier*> by_connection_;
    std::vector<Identifier*> listeners_;
    std::vector<Identifier*> waiting_;  ///< With a pending request.
    connection::Manager manager_;
    struct KnownPeer {
        connection::Peer peer;
        std::uint32_t process;
    };
    std::vector<KnownPeer> peers_;
    std::uint64_t next_token_;
    std::uint64_t random_state_;
    bool thread_runs_ = false;
    std::uint32_t looks_ = 0;  ///< Calls of look().
    /// The same, when the thread last had its turn, or a thread of the program went to sleep.
    std::uint32_t looks_seen_ = 0;
    int kick_fd_ = -1;
    /// When the thread looks again by itself; 0 while it is awake.
    std::atomic<connection::Time> sleeps_until_{0};
};

/// Room of the private data in events: what the MADs have (IBTA 12.6).
inline constexpr std::uint8_t kReplyData = 196;
inline constexpr std::uint8_t kRejectData = 148;
inline constexpr std::uint8_t kDatagramReplyData = 136;

/// The control QP of who listens at the identifier's destination; false if nobody does.
bool find_peer(Cm& cm, Identifier& id, connection::Peer& peer);
/// Nobody takes the request. A host's own connection manager would say so; here there may be no
/// process to.
void refuse(Cm& cm, Identifier& id);
/// The service ID of an identifier at this address, its own or its peer's.
std::uint64_t service_of(const Identifier& id, const Endpoint& endpoint);
/// The Q_Key of an identifier's datagrams, by its port space.
std::uint32_t qkey_of(const Identifier& id);
/// The group that this address means to the identifier.
ibv_gid group_gid(const Identifier& id, const Endpoint& group);
/// Attaches the queue pair of the identifier that has joined the event's group, when its program
/// takes the event.
void finish_join(Identifier& id, Event& event);
/// Its queue pair is to be destroyed: it leaves the groups that it was attached to by joining.
void detach_groups(Identifier& id);
/// The one path that the fabric's tables have.
void describe_path(Identifier& id, const weir_port& own);

/// Where datagrams to, or requests of, this port go.
void fill_path(const Identifier& id, const weir_port& port, ibv_ah_attr& attr);

/// Fills `attr` for the move to attr.qp_state. 0 or EINVAL.
int fill_qp_attributes(const Identifier& id, ibv_qp_attr& attr, int& mask);
/// The moves of a connected QP. 0 or an errno value.
int move_to_init(Identifier& id, ibv_qp* qp);
int move_to_ready(Identifier& id);
int move_to_error(Identifier& id);

/// For sync identifiers: waits for the next event, keeps it in id.event, and gives its status as
/// an errno value. Others: 0 at once. Called without the lock.
int complete(rdma_cm_id* id, bool sync);
/// As rdma_get_cm_event, and gives an errno value.
int wait_for_event(rdma_event_channel* channel, rdma_cm_event** event);

}  // namespace weir::rdmacm

// SPDX-License-Identifier: Apache-2.0
// The device: listing, opening, attributes, protection domains, memory regions, CQs and SRQs.
#include "hca/hca.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "hca/engine.h"
#include "runtime/real/event_counter.h"

namespace weir::hca {

namespace {

std::string environment(const char* name, const char* otherwise) {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): read once at start, like every library does.
    const char* value = std::getenv(name);
    return value == nullptr || *value == '\0' ? otherwise : value;
}

std::string text_of(const char (&field)[arena::kNameBytes]) {
    return {field, strnlen(field, sizeof field)};
}

int errno_of_connect(ErrorCode code) {
    if (code == ErrorCode::kDenied) return EACCES;
    return code == ErrorCode::kInvalid ? EINVAL : ENOENT;
}

/// InfiniBand's code for a speed per lane, and for a width.
std::uint8_t speed_code(std::uint64_t bits_per_lane) {
    struct Rate {
        std::uint64_t bits;
        std::uint8_t code;
    };
    // SDR, DDR, QDR, FDR, EDR, HDR, NDR, XDR as ibv_port_attr has them.
    static constexpr Rate kRates[] = {{100'000'000'000ULL, 128}, {50'000'000'000ULL, 64},
                                      {25'000'000'000ULL, 32},   {14'000'000'000ULL, 16},
                                      {10'000'000'000ULL, 4},    {5'000'000'000ULL, 2}};
    for (const auto& rate : kRates)
        if (bits_per_lane >= rate.bits) return rate.code;
    return 1;
}

std::uint8_t width_code(std::uint32_t lanes) {
    switch (lanes) {
        case 1:
            return 1;
        case 2:
            return 16;
        case 8:
            return 4;
        case 12:
            return 8;
        default:
            return 2;  // 4 lanes
    }
}

}  // namespace

int list_devices(std::vector<DeviceDescription>& devices) {
    devices.clear();
    const auto fabric = environment("WEIR_FABRIC", "default");
    auto host = environment("WEIR_HOST", "");
    auto client = runtime::AttachClient::connect(fabric);
    if (!client) return errno_of_connect(client.error().code);
    const auto observed = client->observe();
    if (!observed) return errno_of_connect(observed.error().code);
    const auto arena = client->arena();
    const auto& header = arena.header();
    bool several = false;
    for (std::uint32_t i = 0; i < header.node_count; ++i) {
        const auto& node = arena.node(i);
        if (node.kind != arena::NodeKind::kHca) continue;
        const auto name = text_of(node.host);
        if (host.empty()) host = name;
        if (name != host) {
            several = true;
            continue;
        }
        devices.push_back({"weir" + std::to_string(devices.size()), fabric, text_of(node.name),
                           node.guid, i, header.link_layer});
    }
    if (several && environment("WEIR_HOST", "").empty()) devices.clear();
    return devices.empty() ? ENXIO : 0;
}

int device_facts(const DeviceDescription& device, sysfs::DeviceFacts& facts) {
    auto client = runtime::AttachClient::connect(device.fabric);
    if (!client) return errno_of_connect(client.error().code);
    const auto observed = client->observe();
    if (!observed) return errno_of_connect(observed.error().code);
    const auto arena = client->arena();
    // The fabric may have been built anew since the device was listed.
    if (device.node_index >= arena.header().node_count) return ENXIO;
    const auto& node = arena.node(device.node_index);
    if (node.kind != arena::NodeKind::kHca || text_of(node.name) != device.node) return ENXIO;
    const auto before = sysfs::hcas_of_host(arena, text_of(node.host));
    const auto index = std::find(before.begin(), before.end(), device.node_index) - before.begin();
    facts = sysfs::facts_of(arena, device.node_index, static_cast<std::uint32_t>(index));
    return 0;
}

Hca::Hca(std::unique_ptr<State> state) : state_(std::move(state)) {}

int Hca::open(const DeviceDescription& device, std::unique_ptr<Hca>& out) {
    auto state = std::make_unique<State>();
    state->device = device;
    state->async_fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
    if (state->async_fd < 0) return errno;
    const int error = Attachment::join(device, state->attachment);
    if (error != 0) return error;
    const std::lock_guard guard(state->attachment->lock);
    state->attachment->hcas.push_back(state.get());
    out.reset(new Hca(std::move(state)));
    return 0;
}

Hca::~Hca() {
    if (state_->attachment->inherited()) return;
    auto attachment = state_->attachment;
    const std::lock_guard guard(attachment->lock);
    // What the program left behind goes with the device.
    for (auto it = attachment->windows.begin(); it != attachment->windows.end();) {
        if (it->second.hca != state_.get()) {
            ++it;
            continue;
        }
        attachment->unbind(it->second, it->first);
        attachment->arena.mr(it->first).owner.store(0, std::memory_order_release);
        it = attachment->windows.erase(it);
    }
    for (const auto& [lkey, pd] : state_->mrs)
        attachment->drop_mr(lkey);
    std::erase(attachment->hcas, state_.get());
}

Hca::State::~State() {
    if (async_fd >= 0) close(async_fd);
}

void Hca::State::raise(const AsyncEvent& event) {
    const std::lock_guard guard(async_lock);
    async_events.push_back(event);
    runtime::raise_event(async_fd);
}

void Hca::State::forget(const void* object) {
    const std::lock_guard guard(async_lock);
    const auto erased = std::erase_if(async_events, [object](const AsyncEvent& event) {
        return event.cq == object || event.qp == object || event.srq == object;
    });
    for (std::size_t i = 0; i < erased; ++i) {
        pollfd entry{async_fd, POLLIN, 0};
        if (poll(&entry, 1, 0) == 1) runtime::take_event(async_fd);
    }
}

int Hca::async_fd() const {
    return state_->async_fd;
}

int Hca::take_async(AsyncEvent& event) {
    for (;;) {
        if (!runtime::take_event(state_->async_fd)) return errno;
        const std::lock_guard guard(state_->async_lock);
        if (state_->async_events.empty()) continue;
        event = state_->async_events.front();
        state_->async_events.pop_front();
        return 0;
    }
}

int Hca::query_device(ibv_device_attr_ex& attr) const {
    std::memset(&attr, 0, sizeof attr);
    const auto& a = *state_->attachment;
    auto& o = attr.orig_attr;
    std::strncpy(o.fw_ver, "0.1.0", sizeof o.fw_ver - 1);
    o.node_guid = __builtin_bswap64(state_->device.node_guid);
    o.sys_image_guid = o.node_guid;
    o.max_mr_size = ~0ULL;
    o.page_size_cap = 0xfffff000;
    o.vendor_id = 0x5745;  // "WE": not a registered OUI, and no client's table knows it
    o.vendor_part_id = 1;
    o.hw_ver = 1;
    o.max_qp = static_cast<int>(arena::kQpCount - arena::kFirstQp);
    o.max_qp_wr = static_cast<int>(kQueueMax);
    o.device_cap_flags = IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_RC_RNR_NAK_GEN |
                         IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_PORT_ACTIVE_EVENT |
                         IBV_DEVICE_SRQ_RESIZE | IBV_DEVICE_MEM_WINDOW |
                         IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_XRC;
    o.max_sge = o.max_sge_rd = o.max_srq_sge = kSgeMax;
    o.max_cq = 1 << 16;
    o.max_cqe = static_cast<int>(kCqMax);
    o.max_mr = static_cast<int>(arena::kMrCount - 1);
    o.max_mw = o.max_mr;
    o.max_pd = 1 << 16;
    o.max_mcast_grp = static_cast<int>(arena::kGroupCount);
    o.max_mcast_qp_attach = static_cast<int>(arena::kGroupCount);
    o.max_total_mcast_qp_attach = static_cast<int>(arena::kGroupCount);
    o.max_qp_rd_atom = o.max_qp_init_rd_atom = static_cast<int>(transport::kAtomicReplies);
    o.max_res_rd_atom = o.max_qp * o.max_qp_rd_atom;
    // The processor's atomics would agree with ours too (ATOMIC_GLOB), but UCX takes no adapter's
    // atomics unless they are said to be like those of real ones.
    o.atomic_cap = IBV_ATOMIC_HCA;
    o.max_ah = 1 << 20;
    o.max_srq = 1 << 16;
    o.max_srq_wr = static_cast<int>(kQueueMax);
    o.max_pkeys = 1;
    o.local_ca_ack_delay = 10;
    o.phys_port_cnt = static_cast<std::uint8_t>(a.arena.node(a.node).port_count);
    attr.phys_port_cnt_ex = a.arena.node(a.node).port_count;
    attr.device_cap_flags_ex =
        static_cast<std::uint32_t>(o.device_cap_flags) | kDeviceFlushGlobal | kDeviceAtomicWrite;
    // Completions are stamped by CLOCK_MONOTONIC, in nanoseconds: a clock of a million kHz.
    attr.completion_timestamp_mask = ~0ULL;
    attr.hca_core_clock = 1'000'000;
    attr.max_dm_size = kDeviceMemoryMax;
    // Registered memory is not pinned: the kernel brings pages in when they are touched.
    constexpr std::uint32_t kTwoSided = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV;
    constexpr std::uint32_t kReliable = kTwoSided | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ |
                                        IBV_ODP_SUPPORT_ATOMIC | IBV_ODP_SUPPORT_SRQ_RECV |
                                        kOdpFlush | kOdpAtomicWrite;
    attr.odp_caps.general_caps = IBV_ODP_SUPPORT;
    attr.odp_caps.per_transport_caps.rc_odp_caps = kReliable;
    attr.odp_caps.per_transport_caps.uc_odp_caps = kTwoSided | IBV_ODP_SUPPORT_WRITE;
    attr.odp_caps.per_transport_caps.ud_odp_caps = kTwoSided;
    attr.xrc_odp_caps = kReliable;
    return 0;
}

int Hca::query_port(int port, ibv_port_attr& attr) const {
    const auto& a = *state_->attachment;
    const auto& node = a.arena.node(a.node);
    if (port < 1 || static_cast<std::uint32_t>(port) > node.port_count) return EINVAL;
    const auto& p = a.arena.port(node.first_port + static_cast<std::uint32_t>(port) - 1);
    std::memset(&attr, 0, sizeof attr);
    const bool up = p.up.load() != 0 && p.peer != arena::kNone;
    attr.state = up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
    attr.phys_state = up ? 5 : 3;  // LinkUp, Disabled (IBTA 14.2.5.6)
    attr.max_mtu = attr.active_mtu = mtu_of(a.arena.header().mtu_bytes);
    attr.gid_tbl_len = 1;
    attr.max_msg_sz = kMessageMax;
    attr.pkey_tbl_len = 1;
    attr.lid = static_cast<std::uint16_t>(p.lid);
    attr.sm_lid = 1;
    attr.max_vl_num = static_cast<std::uint8_t>(a.arena.header().lane_count >= 8   ? 4
                                                : a.arena.header().lane_count >= 4 ? 3
                                                : a.arena.header().lane_count >= 2 ? 2
                                                                                   : 1);
    attr.active_width = width_code(p.width);
    attr.active_speed = speed_code(p.speed_bits_per_second / std::max(p.width, 1U));
    attr.link_layer = static_cast<std::uint8_t>(a.arena.header().link_layer);
    return 0;
}

int Hca::query_gid(int port, int index, ibv_gid& gid) const {
    const auto& a = *state_->attachment;
    const auto& node = a.arena.node(a.node);
    if (port < 1 || static_cast<std::uint32_t>(port) > node.port_count || index != 0) return EINVAL;
    gid_of_lid(a.arena, a.arena.port(node.first_port + static_cast<std::uint32_t>(port) - 1).lid,
               gid);
    return 0;
}

int Hca::query_pkey(int port, int index, __be16& pkey) const {
    const auto& a = *state_->attachment;
    if (port < 1 || static_cast<std::uint32_t>(port) > a.arena.node(a.node).port_count)
        return EINVAL;
    if (index != 0) return EINVAL;
    pkey = wire::kDefaultPkey;  // all ones: the same in either byte order
    return 0;
}

int Hca::resolve_gid(const ibv_gid& gid, std::uint32_t& lid) const {
    AddressHandle handle{};
    handle.attr.is_global = 1;
    handle.attr.grh.dgid = gid;
    if (resolve_address(*state_->attachment, handle) != 0) return ENOENT;
    lid = handle.dlid;
    return 0;
}

int Hca::resolve_ah(AddressHandle& handle) const {
    const auto& a = *state_->attachment;
    const std::uint32_t ports = a.arena.node(a.node).port_count;
    if (handle.attr.port_num < 1 || handle.attr.port_num > ports) return EINVAL;
    return resolve_address(*state_->attachment, handle);
}

arena::Arena Hca::arena() const {
    return state_->attachment->arena;
}

std::uint32_t Hca::node_index() const {
    return state_->attachment->node;
}

std::uint32_t Hca::identity() const {
    return state_->attachment->identity;
}

int Hca::alert_fd() {
    auto& a = *state_->attachment;
    if (a.inherited()) return -1;
    const std::lock_guard guard(a.lock);
    if (a.alert_fd.load() < 0) a.alert_fd.store(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    return a.alert_fd.load();
}

void Hca::park() {
    auto& a = *state_->attachment;
    if (a.usable()) a.park_for_wait();
}

std::uint32_t Hca::alloc_pd() {
    auto& a = *state_->attachment;
    const std::lock_guard guard(a.lock);
    const auto pd = a.next_pd++;
    state_->pds[pd] = 0;
    return pd;
}

int Hca::dealloc_pd(std::uint32_t pd) {
    if (state_->attachment->inherited()) return EIO;
    const std::lock_guard guard(state_->attachment->lock);
    const auto it = state_->pds.find(pd);
    if (it == state_->pds.end()) return EINVAL;
    if (it->second != 0) return EBUSY;
    state_->pds.erase(it);
    return 0;
}

int Hca::create_cq(int entries, CompletionChannel* channel, CqOptions options,
                   CompletionQueue*& out) {
    if (entries <= 0 || static_cast<std::uint32_t>(entries) > kCqMax) return EINVAL;
    if (state_->attachment->inherited()) return EIO;
    auto state = std::make_unique<CompletionQueue::State>();
    state->attachment = state_->attachment;
    state->hca = state_.get();
    state->channel = channel;
    state->capacity = static_cast<std::uint32_t>(entries);
    state->ring.resize(state->capacity);
    if (options.stamped) state->stamps.resize(state->capacity);
    state->ignore_overrun = options.ignore_overrun;
    if (channel != nullptr) channel->depend_on(state_->attachment);
    out = new CompletionQueue(std::move(state));
    return 0;
}

int Hca::destroy_cq(CompletionQueue* cq) {
    auto& state = cq->state();
    if (state_->attachment->inherited()) return EIO;
    {
        const std::lock_guard guard(state.attachment->lock);
        if (state.users != 0) return EBUSY;
    }
    if (state.channel != nullptr) state.channel->forget(cq);
    state_->forget(cq);
    delete cq;
    return 0;
}

int Hca::create_srq(std::uint32_t pd, ibv_srq_attr& attr, SharedReceiveQueue*& out) {
    if (attr.max_wr == 0 || attr.max_wr > kQueueMax || attr.max_sge > kSgeMax) return EINVAL;
    if (state_->attachment->inherited()) return EIO;
    const std::lock_guard guard(state_->attachment->lock);
    const auto it = state_->pds.find(pd);
    if (it == state_->pds.end()) return EINVAL;
    attr.max_sge = std::max(attr.max_sge, 1U);
    auto state = std::make_unique<SharedReceiveQueue::State>();
    state->attachment = state_->attachment;
    state->hca = state_.get();
    state->pd = pd;
    state->ring.resize(attr.max_wr, attr.max_sge);
    ++it->second;
    out = new SharedReceiveQueue(std::move(state));
    return 0;
}

int Hca::destroy_srq(SharedReceiveQueue* srq) {
    auto& state = srq->state();
    if (state_->attachment->inherited()) return EIO;
    {
        const std::lock_guard guard(state.attachment->lock);
        if (state.users != 0) return EBUSY;
        state.attachment->forget_xrc_srq(state);
        const auto it = state_->pds.find(state.pd);
        if (it != state_->pds.end()) --it->second;
    }
    state_->forget(srq);
    delete srq;
    return 0;
}

}  // namespace weir::hca

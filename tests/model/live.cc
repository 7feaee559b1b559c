// SPDX-License-Identifier: Apache-2.0
#include "live.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace weir::model {
namespace {

constexpr std::uint32_t kQkey = 0x1111;
constexpr std::uint32_t kGrh = 40;

/// What the test itself needs and does not get ends it.
void need(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "verbs_fuzz: %s failed\n", what);
    std::exit(2);
}

std::string format(const char* form, auto... values) {
    char text[300];
    std::snprintf(text, sizeof text, form, values...);
    return text;
}

}  // namespace

Host::Host(const char* name, int index) : side(index) {
    setenv("WEIR_HOST", name, 1);
    std::vector<hca::DeviceDescription> devices;
    need(hca::list_devices(devices) == 0 && !devices.empty(), "listing devices");
    need(hca::Hca::open(devices[0], hca) == 0, "opening the device");
    void* memory =
        mmap(nullptr, kMemory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    need(memory != MAP_FAILED, "mmap");
    buffer = static_cast<std::uint8_t*>(memory);
    ibv_port_attr port{};
    need(hca->query_port(1, port) == 0, "querying the port");
    lid = port.lid;
    fcntl(hca->async_fd(), F_SETFL, fcntl(hca->async_fd(), F_GETFL) | O_NONBLOCK);
}

Host::~Host() {
    hca.reset();
    munmap(buffer, kMemory);
}

LiveSide::LiveSide(Host& host, const Program& program, bool patient)
    : host_(host),
      program_(program),
      patient_(patient) {
    auto& hca = *host.hca;
    for (std::uint32_t i = 0; i < kMemory; ++i)
        host.buffer[i] = initial_byte(program.seed, host.side, i);
    for (auto& domain : domains_)
        domain = hca.alloc_pd();
    need(hca.create_cq(1024, nullptr, cqs_[0]) == 0, "creating a CQ");
    cqs_[1] = cqs_[0];
    if (!program.one_cq) need(hca.create_cq(1024, nullptr, cqs_[1]) == 0, "creating a CQ");
    ibv_srq_attr attr{kQueueDepth * kPairsMax, kPiecesMost, 0};
    need(hca.create_srq(domains_[0], attr, shared_) == 0, "creating an SRQ");
    for (int i = 0; i < kRegions; ++i) {
        const auto facts = facts_of(static_cast<Region>(i));
        auto* begin = host.buffer + facts.begin;
        std::uint32_t rkey = 0;
        need(
            hca.reg_mr(domains_[facts.other_domain ? 1 : 0], begin, facts.length,
                       reinterpret_cast<std::uintptr_t>(begin), facts.access, lkeys_[i], rkey) == 0,
            "registering memory");
    }
    for (int pair = 0; pair < program.pairs; ++pair)
        make_pair(pair);
}

LiveSide::~LiveSide() {
    auto& hca = *host_.hca;
    for (auto* qp : qps_)
        if (qp != nullptr) need(hca.destroy_qp(qp) == 0, "destroying a QP");
    need(hca.destroy_srq(shared_) == 0, "destroying an SRQ");
    for (const auto lkey : lkeys_)
        need(hca.dereg_mr(lkey) == 0, "deregistering memory");
    need(hca.destroy_cq(cqs_[0]) == 0, "destroying a CQ");
    if (cqs_[1] != cqs_[0]) need(hca.destroy_cq(cqs_[1]) == 0, "destroying a CQ");
    for (const auto domain : domains_)
        need(hca.dealloc_pd(domain) == 0, "ending a PD");
}

void LiveSide::make_pair(int pair) {
    const auto& setup = program_.setup[pair];
    hca::Hca::QpRequest request{domains_[0],
                                setup.type,
                                cqs_[0],
                                cqs_[1],
                                setup.shared_receives[host_.side] ? shared_ : nullptr,
                                {kQueueDepth, kQueueDepth, kPiecesMost, kPiecesMost, kInlineMost},
                                setup.signal_all};
    need(host_.hca->create_qp(request, qps_[pair]) == 0, "creating a QP");
}

Address LiveSide::address() const {
    Address address{};
    address.lid = host_.lid;
    address.buffer = reinterpret_cast<std::uintptr_t>(host_.buffer);
    std::memcpy(address.keys, lkeys_, sizeof lkeys_);
    for (int pair = 0; pair < program_.pairs; ++pair)
        address.qps[pair] = qps_[pair]->number();
    return address;
}

void LiveSide::connect(const Address& peer) {
    peer_ = peer;
    handle_.attr.dlid = peer.lid;
    handle_.attr.port_num = 1;
    need(host_.hca->resolve_ah(handle_) == 0, "resolving an address");
    for (int pair = 0; pair < program_.pairs; ++pair)
        bring_up(pair);
}

void LiveSide::bring_up(int pair) {
    const auto& setup = program_.setup[pair];
    auto& qp = *qps_[pair];
    const bool datagrams = setup.type == IBV_QPT_UD;
    const bool reliable = setup.type == IBV_QPT_RC;
    const auto psn = static_cast<std::uint32_t>(1000 * ++epochs_[pair]);
    ibv_qp_attr attr{};
    attr.port_num = 1;
    attr.qkey = kQkey;
    attr.qp_access_flags = static_cast<unsigned>(setup.access[host_.side]);
    attr.path_mtu = IBV_MTU_4096;
    attr.dest_qp_num = peer_.qps[pair];
    attr.rq_psn = attr.sq_psn = psn;
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 4;
    attr.min_rnr_timer = 1;
    attr.ah_attr.dlid = peer_.lid;
    attr.ah_attr.port_num = 1;
    // A peer in another process may have to wait for a processor.
    attr.timeout = 14;
    attr.retry_cnt = patient_ ? 7 : 2;
    attr.rnr_retry = setup.rnr_retry;
    ibv_send_wr wr{};
    ibv_send_wr* bad = nullptr;
    const auto refused = [&] { return qp.post_send(&wr, &bad) == EINVAL && bad == &wr; };
    if (!refused()) trouble_ = "a request was taken in RESET";
    attr.qp_state = IBV_QPS_INIT;
    need(qp.modify(attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                             (datagrams ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)) == 0,
         "the move to INIT");
    if (!refused()) trouble_ = "a request was taken in INIT";
    attr.qp_state = IBV_QPS_RTR;
    int mask = IBV_QP_STATE;
    if (!datagrams) mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (reliable) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    need(qp.modify(attr, mask) == 0, "the move to RTR");
    if (!refused()) trouble_ = "a request was taken in RTR";
    attr.qp_state = IBV_QPS_RTS;
    mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (reliable)
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    need(qp.modify(attr, mask) == 0, "the move to RTS");
}

int LiveSide::apply(const Step& step) {
    if (step.kind == StepKind::kReconnect) {
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_RESET;
        need(qps_[step.pair]->modify(attr, IBV_QP_STATE) == 0, "the move to RESET");
        return 0;
    }
    if (step.kind == StepKind::kSettle || step.side != host_.side) return 0;
    if (step.kind == StepKind::kToError || step.kind == StepKind::kRecover) {
        ibv_qp_attr attr{};
        attr.qp_state = step.kind == StepKind::kToError ? IBV_QPS_ERR : IBV_QPS_RTS;
        return qps_[step.pair]->modify(attr, IBV_QP_STATE);
    }
    queue_of_[step.wr_id] = step.kind == StepKind::kSend ? kSends : kReceives;
    return step.kind == StepKind::kSend ? post_send(step) : post_receive(step);
}

std::vector<ibv_sge> LiveSide::pieces_of(const Step& step) const {
    std::vector<ibv_sge> sges;
    for (const auto& piece : step.pieces) {
        const auto key = piece.key == kNoKey ? lkeys_[kAll] ^ 0x80U : lkeys_[piece.key];
        sges.push_back(
            {reinterpret_cast<std::uintptr_t>(host_.buffer) + piece.offset, piece.length, key});
    }
    return sges;
}

int LiveSide::post_receive(const Step& step) {
    auto sges = pieces_of(step);
    ibv_recv_wr wr{step.wr_id, nullptr, sges.data(), static_cast<int>(sges.size())};
    ibv_recv_wr* bad = nullptr;
    if (program_.setup[step.pair].shared_receives[host_.side]) return shared_->post(&wr, &bad);
    return qps_[step.pair]->post_receive(&wr, &bad);
}

int LiveSide::post_send(const Step& step) {
    auto sges = pieces_of(step);
    ibv_send_wr wr{};
    wr.wr_id = step.wr_id;
    wr.opcode = step.opcode;
    wr.send_flags = step.flags;
    wr.sg_list = sges.data();
    wr.num_sge = static_cast<int>(sges.size());
    wr.imm_data = __builtin_bswap32(step.immediate);
    const auto remote = peer_.buffer + step.remote_offset;
    const auto key =
        step.remote_key == kNoKey ? peer_.keys[kAll] ^ 0x80U : peer_.keys[step.remote_key];
    if (program_.setup[step.pair].type == IBV_QPT_UD) {
        wr.wr.ud = {&handle_.base, peer_.qps[step.pair], step.wrong_qkey ? kQkey + 1 : kQkey};
    } else if (step.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
               step.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic = {remote, step.compare_add, step.swap, key};
    } else {
        wr.wr.rdma = {remote, key};
    }
    ibv_send_wr* bad = nullptr;
    const int error = qps_[step.pair]->post_send(&wr, &bad);
    // The program may use its inline buffers again at once.
    if (error == 0 && (step.flags & IBV_SEND_INLINE) != 0)
        for (auto& sge : sges)
            sge = {};
    return error;
}

void LiveSide::poll() {
    ibv_wc wcs[16];
    for (int i = 0; i < (program_.one_cq ? 1 : 2); ++i) {
        const int count = cqs_[i]->poll(16, wcs);
        need(count >= 0, "polling");
        for (int j = 0; j < count; ++j)
            note(wcs[j]);
    }
    take_events();
}

void LiveSide::note(const ibv_wc& wc) {
    for (int pair = 0; pair < program_.pairs; ++pair) {
        if (qps_[pair]->number() != wc.qp_num) continue;
        const auto queue = queue_of_.find(wc.wr_id);
        if (queue == queue_of_.end()) break;
        seen_[pair].completions[queue->second].push_back(wc);
        return;
    }
    trouble_ = format("a completion of nobody: QP %u, wr_id %llu", wc.qp_num,
                      static_cast<unsigned long long>(wc.wr_id));
}

void LiveSide::take_events() {
    hca::AsyncEvent event{};
    while (host_.hca->take_async(event) == 0) {
        for (int pair = 0; pair < program_.pairs; ++pair) {
            if (qps_[pair] != event.qp) continue;
            const bool last = event.type == IBV_EVENT_QP_LAST_WQE_REACHED;
            const bool error =
                event.type == IBV_EVENT_QP_ACCESS_ERR || event.type == IBV_EVENT_QP_REQ_ERR;
            if (last) ++seen_[pair].last;
            if (error) ++seen_[pair].errors;
            if (!last && !error) trouble_ = format("event %d", static_cast<int>(event.type));
        }
    }
}

namespace {

std::string differs(const ibv_wc& seen, const Completion& wanted, ibv_qp_type type,
                    model::Queue queue, const Address& peer, int pair) {
    if (seen.wr_id != wanted.wr_id || seen.status != wanted.status) {
        return format("wr_id %llu status %d instead of wr_id %llu status %d",
                      static_cast<unsigned long long>(seen.wr_id), static_cast<int>(seen.status),
                      static_cast<unsigned long long>(wanted.wr_id),
                      static_cast<int>(wanted.status));
    }
    if (wanted.status != IBV_WC_SUCCESS) return {};
    const auto id = static_cast<unsigned long long>(wanted.wr_id);
    if (seen.opcode != wanted.opcode)
        return format("wr_id %llu: opcode %d instead of %d", id, static_cast<int>(seen.opcode),
                      static_cast<int>(wanted.opcode));
    if (wanted.has_byte_len && seen.byte_len != wanted.byte_len)
        return format("wr_id %llu: byte_len %u instead of %u", id, seen.byte_len, wanted.byte_len);
    if (queue == kSends) return {};
    const bool immediate = (seen.wc_flags & IBV_WC_WITH_IMM) != 0;
    if (immediate != wanted.has_immediate)
        return format("wr_id %llu: flags %#x", id, static_cast<unsigned>(seen.wc_flags));
    if (immediate && seen.imm_data != __builtin_bswap32(wanted.immediate))
        return format("wr_id %llu: immediate data %#x", id, seen.imm_data);
    if (type == IBV_QPT_UD && (seen.src_qp != peer.qps[pair] || seen.slid != peer.lid))
        return format("wr_id %llu: from QP %u at LID %u", id, seen.src_qp, unsigned{seen.slid});
    return {};
}

}  // namespace

std::string LiveSide::differs(int pair, const QueuePairView& view) const {
    const auto& seen = seen_[pair];
    const auto type = program_.setup[pair].type;
    for (const auto queue : {kSends, kReceives}) {
        const auto& got = seen.completions[queue];
        const auto& wanted = view.completions[queue];
        const char* name = queue == kSends ? "send" : "receive";
        for (std::size_t i = 0; i < std::min(got.size(), wanted.size()); ++i) {
            const auto text = model::differs(got[i], wanted[i], type, queue, peer_, pair);
            if (!text.empty()) return format("%s completion %zu: ", name, i) + text;
        }
        if (got.size() != wanted.size()) {
            const bool more = got.size() > wanted.size();
            const auto id = more ? got[wanted.size()].wr_id : wanted[got.size()].wr_id;
            const int status = more ? got[wanted.size()].status : wanted[got.size()].status;
            return format("%zu %s completions instead of %zu; %s wr_id %llu status %d", got.size(),
                          name, wanted.size(),
                          more ? "the first too many has" : "the first missing has",
                          static_cast<unsigned long long>(id), status);
        }
    }
    const auto state = qps_[pair]->current_state();
    if (state != view.state)
        return format("state %d instead of %d", static_cast<int>(state),
                      static_cast<int>(view.state));
    if (seen.errors < view.errors_least || seen.errors > view.errors_most)
        return format("%d error events instead of %d to %d", seen.errors, view.errors_least,
                      view.errors_most);
    if (seen.last < view.last_least || seen.last > view.last_most)
        return format("%d events of the last receive instead of %d to %d", seen.last,
                      view.last_least, view.last_most);
    return {};
}

std::string LiveSide::differs_from(const SideView& view) const {
    const auto here = format("side %d: ", host_.side);
    if (!trouble_.empty()) return here + trouble_;
    for (int pair = 0; pair < program_.pairs; ++pair)
        if (auto text = differs(pair, view.qps[pair]); !text.empty())
            return here + format("pair %d: ", pair) + text;
    for (std::uint32_t i = 0; i < kMemory; ++i) {
        // Mostly all of a lane is right.
        if (i % kLane == 0 && std::memcmp(host_.buffer + i, &view.memory[i], kLane) == 0) {
            i += kLane - 1;
            continue;
        }
        if (view.open[i] != 0 || host_.buffer[i] == view.memory[i]) continue;
        return here + format("byte %u (lane %u area %u at %u) is %u instead of %u", i, i / kLane,
                             i % kLane / kArea, i % kArea, unsigned{host_.buffer[i]},
                             unsigned{view.memory[i]});
    }
    return {};
}

}  // namespace weir::model

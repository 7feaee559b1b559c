// SPDX-License-Identifier: Apache-2.0
// verbs_scale: what many QPs, many messages and much memory cost a program that uses verbs. Knows
// nothing of Weir. One of two processes, as perftest has it: the one that is given an address
// connects to the other and measures.
//   weir run --pair -- verbs_scale rate PORT QPS LIST write|send
//       8-byte messages on QPS pairs by turns, LIST work requests to each call of ibv_post_send
//   weir run --pair -- verbs_scale connect PORT QPS
//       time to create and connect QPS pairs, and memory for each
//   weir run --hosts h0 -- verbs_scale register
//       1 GiB that has been touched; 1,000,000 registrations of 4 KiB one after the other
// PORT: of the TCP connection by which the two exchange QP numbers. Prints a `key value` a line.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include <infiniband/verbs.h>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMessageBytes = 8;
constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
constexpr std::uint32_t kReceives = 256;  ///< Posted on each QP of a receiver.
constexpr std::chrono::seconds kSpan{2};  ///< That a rate is taken over.

[[noreturn]] void die(const char* what) {
    std::perror(what);
    std::exit(1);
}
void check(bool good, const char* what) {
    if (!good) die(what);
}

double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Resident memory of this process by /proc/self/status, in KiB; what it shares with others
/// included.
std::uint64_t resident_kib() {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;) {
        if (word != "VmRSS:") continue;
        std::uint64_t kib = 0;
        status >> kib;
        return kib;
    }
    return 0;
}

/// `server`: its address, or null for the server itself.
int tcp_pair(const char* server, std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = server != nullptr ? inet_addr(server) : htonl(INADDR_LOOPBACK);
    const auto* raw = reinterpret_cast<const sockaddr*>(&address);
    for (int tries = 0; tries < 500; ++tries) {
        const int fd = socket(AF_INET, SOCK_STREAM, 0);
        const int on = 1;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (server == nullptr) {
            check(bind(fd, raw, sizeof address) == 0 && listen(fd, 1) == 0, "listen");
            return accept(fd, nullptr, nullptr);
        }
        if (connect(fd, raw, sizeof address) == 0) return fd;
        close(fd);
        usleep(10'000);
    }
    die("connect");
}

void send_all(int fd, const void* what, std::size_t bytes) {
    check(send(fd, what, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes), "send");
}
void receive_all(int fd, void* what, std::size_t bytes) {
    check(recv(fd, what, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes), "recv");
}

/// What each side tells the other.
struct Hello {
    std::uint64_t address;
    std::uint32_t rkey;
    std::uint16_t lid;
};

struct Side {
    bool serves = false;
    int peer = -1;
    ibv_context* context = nullptr;
    ibv_pd* pd = nullptr;
    ibv_cq* cq = nullptr;
    std::vector<std::byte> buffer = std::vector<std::byte>(1U << 16U);
    ibv_mr* mr = nullptr;
    Hello there{};
    std::vector<ibv_qp*> qps;
    std::vector<std::uint32_t> numbers;  ///< Of the peer's QPs.

    void open() {
        ibv_device** list = ibv_get_device_list(nullptr);
        check(list != nullptr && list[0] != nullptr, "no device: is it run by weir run?");
        context = ibv_open_device(list[0]);
        check(context != nullptr, "ibv_open_device");
        ibv_free_device_list(list);
        pd = ibv_alloc_pd(context);
        mr = ibv_reg_mr(pd, buffer.data(), buffer.size(), kAccess);
        check(mr != nullptr, "ibv_reg_mr");
    }
    void meet(const char* server, std::uint16_t port) {
        serves = server == nullptr;
        peer = tcp_pair(server, port);
        ibv_port_attr attr{};
        check(ibv_query_port(context, 1, &attr) == 0, "ibv_query_port");
        const Hello mine{reinterpret_cast<std::uintptr_t>(buffer.data()), mr->rkey, attr.lid};
        send_all(peer, &mine, sizeof mine);
        receive_all(peer, &there, sizeof there);
    }
    /// Waits for the other side to come this far too.
    void together() const {
        char byte = 1;
        send_all(peer, &byte, 1);
        receive_all(peer, &byte, 1);
    }
    void create(std::uint32_t count, std::uint32_t sends, std::uint32_t receives) {
        ibv_qp_init_attr init{};
        init.send_cq = cq;
        init.recv_cq = cq;
        init.cap = {sends, receives, 1, 1, kMessageBytes};
        init.qp_type = IBV_QPT_RC;
        for (std::uint32_t i = 0; i < count; ++i) {
            qps.push_back(ibv_create_qp(pd, &init));
            check(qps.back() != nullptr, "ibv_create_qp");
        }
    }
    void exchange() {
        std::vector<std::uint32_t> mine;
        for (const auto* qp : qps)
            mine.push_back(qp->qp_num);
        numbers.resize(mine.size());
        const auto bytes = mine.size() * sizeof mine[0];
        send_all(peer, mine.data(), bytes);
        receive_all(peer, numbers.data(), bytes);
    }
    void connect_all() const {
        for (std::size_t i = 0; i < qps.size(); ++i) {
            ibv_qp_attr attr{};
            attr.qp_state = IBV_QPS_INIT;
            attr.port_num = 1;
            attr.qp_access_flags = kAccess;
            check(ibv_modify_qp(
                      qps[i], &attr,
                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0,
                  "to INIT");
            attr.qp_state = IBV_QPS_RTR;
            attr.path_mtu = IBV_MTU_4096;
            attr.dest_qp_num = numbers[i];
            attr.max_dest_rd_atomic = 1;
            attr.min_rnr_timer = 12;
            attr.ah_attr.dlid = there.lid;
            attr.ah_attr.port_num = 1;
            check(ibv_modify_qp(qps[i], &attr,
                                IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                    IBV_QP_MIN_RNR_TIMER) == 0,
                  "to RTR");
            attr.qp_state = IBV_QPS_RTS;
            attr.timeout = 14;
            attr.retry_cnt = 7;
            attr.rnr_retry = 7;
            attr.max_rd_atomic = 1;
            check(
                ibv_modify_qp(qps[i], &attr,
                              IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                  IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0,
                "to RTS");
        }
    }
};

ibv_wc g_completions[64];

int poll(ibv_cq* cq) {
    const int count = ibv_poll_cq(cq, 64, g_completions);
    check(count >= 0, "ibv_poll_cq");
    for (int i = 0; i < count; ++i) {
        if (g_completions[i].status == IBV_WC_SUCCESS) continue;
        std::fprintf(stderr, "completion: %s\n", ibv_wc_status_str(g_completions[i].status));
        std::exit(1);
    }
    return count;
}

/// Keeps receives posted until the peer hangs up.
void receive_until_closed(const Side& side) {
    ibv_sge sge{reinterpret_cast<std::uintptr_t>(side.buffer.data()), kMessageBytes, side.mr->lkey};
    ibv_recv_wr* bad = nullptr;
    const auto post = [&](std::uint64_t at) {
        ibv_recv_wr wr{at, nullptr, &sge, 1};
        check(ibv_post_recv(side.qps[at], &wr, &bad) == 0, "ibv_post_recv");
    };
    for (std::size_t i = 0; i < side.qps.size(); ++i) {
        for (std::uint32_t n = 0; n < kReceives; ++n)
            post(i);
    }
    side.together();
    for (std::uint32_t turn = 0;; ++turn) {
        const int count = poll(side.cq);
        for (int i = 0; i < count; ++i)
            post(g_completions[i].wr_id);
        char byte = 0;
        if (turn % 4096 == 0 && recv(side.peer, &byte, 1, MSG_DONTWAIT) == 0) return;
    }
}

/// Lists of `list` messages on all QPs by turns, two lists open on each at most.
void send_for_a_while(const Side& side, std::uint32_t list, bool write) {
    ibv_sge sge{reinterpret_cast<std::uintptr_t>(side.buffer.data()), kMessageBytes, side.mr->lkey};
    std::vector<ibv_send_wr> wrs(list);
    for (std::uint32_t i = 0; i < list; ++i) {
        auto& wr = wrs[i];
        wr.next = i + 1 < list ? &wrs[i + 1] : nullptr;
        wr.sg_list = &sge;
        wr.num_sge = 1;
        wr.opcode = write ? IBV_WR_RDMA_WRITE : IBV_WR_SEND;
        wr.send_flags = IBV_SEND_INLINE;
        wr.wr.rdma.remote_addr = side.there.address;
        wr.wr.rdma.rkey = side.there.rkey;
    }
    wrs.back().send_flags |= IBV_SEND_SIGNALED;
    std::vector<int> open(side.qps.size());
    side.together();
    std::uint64_t messages = 0;
    const auto begin = Clock::now();
    double took = 0;
    do {
        for (std::size_t at = 0; at < side.qps.size(); ++at) {
            while (open[at] >= 2) {
                const int count = poll(side.cq);
                for (int i = 0; i < count; ++i)
                    --open[g_completions[i].wr_id];
            }
            wrs.back().wr_id = at;
            ibv_send_wr* bad = nullptr;
            check(ibv_post_send(side.qps[at], wrs.data(), &bad) == 0, "ibv_post_send");
            ++open[at];
            messages += list;
        }
        took = seconds_since(begin);
    } while (took < std::chrono::duration<double>(kSpan).count());
    std::printf("million_per_second %.3f\n", static_cast<double>(messages) / took / 1e6);
}

void rate(Side& side, std::uint32_t count, std::uint32_t list, bool write) {
    side.cq = ibv_create_cq(side.context, 1 << 18, nullptr, nullptr, 0);
    check(side.cq != nullptr, "ibv_create_cq");
    side.create(count, 2 * list + 1, kReceives);
    side.exchange();
    side.connect_all();
    side.together();
    if (!side.serves) {
        send_for_a_while(side, list, write);
    } else if (!write) {
        receive_until_closed(side);
    } else {
        side.together();
        char byte = 0;
        while (recv(side.peer, &byte, 1, MSG_DONTWAIT) != 0)
            poll(side.cq);
    }
}

void connect_many(Side& side, std::uint32_t count) {
    side.cq = ibv_create_cq(side.context, 16, nullptr, nullptr, 0);
    check(side.cq != nullptr, "ibv_create_cq");
    side.together();
    const auto before = resident_kib();
    const auto begin = Clock::now();
    side.create(count, 16, 16);
    const double created = seconds_since(begin);
    side.exchange();
    const auto again = Clock::now();
    side.connect_all();
    const double connected = seconds_since(again);
    const auto after = resident_kib();
    side.together();
    const auto destroying = Clock::now();
    for (auto* qp : side.qps)
        check(ibv_destroy_qp(qp) == 0, "ibv_destroy_qp");
    if (side.serves) return;
    std::printf("create_seconds %.3f\nconnect_seconds %.3f\ndestroy_seconds %.3f\n", created,
                connected, seconds_since(destroying));
    std::printf("bytes_each %.0f\n", static_cast<double>(after - before) * 1024 / count);
}

void register_memory(Side& side) {
    constexpr std::size_t kBig = 1UL << 30U;
    constexpr int kCycles = 1'000'000;
    void* big = mmap(nullptr, kBig, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    check(big != MAP_FAILED, "mmap");
    std::memset(big, 1, kBig);
    const auto begin = Clock::now();
    ibv_mr* mr = ibv_reg_mr(side.pd, big, kBig, kAccess);
    const double took = seconds_since(begin);
    check(mr != nullptr && ibv_dereg_mr(mr) == 0, "ibv_reg_mr");
    std::printf("register_gib_us %.1f\n", took * 1e6);
    std::uint64_t before = 0;
    const auto cycles = Clock::now();
    for (int i = 0; i < kCycles; ++i) {
        if (i == kCycles / 2) before = resident_kib();
        mr = ibv_reg_mr(side.pd, side.buffer.data(), 4096, kAccess);
        check(mr != nullptr && ibv_dereg_mr(mr) == 0, "ibv_reg_mr");
    }
    std::printf("register_cycle_us %.3f\n", seconds_since(cycles) * 1e6 / kCycles);
    std::printf("growth_kib %lld\n", static_cast<long long>(resident_kib() - before));
}

}  // namespace

int main(int argc, char** argv) {
    const std::string what = argc > 1 ? argv[1] : "";
    const auto number = [&](int at) {
        return static_cast<std::uint32_t>(std::strtoul(argv[at], nullptr, 10));
    };
    const int needed = what == "register" ? 2 : what == "connect" ? 4 : 6;
    bool good = argc >= needed && argc <= needed + 1;
    good = good && (needed == 2 || (number(2) != 0 && number(3) != 0));
    good = good && (needed != 6 || (what == "rate" && number(4) != 0));
    if (!good) {
        std::fprintf(stderr,
                     "usage: verbs_scale rate PORT QPS LIST write|send [SERVER]\n"
                     "       verbs_scale connect PORT QPS [SERVER]\n"
                     "       verbs_scale register\n");
        return 2;
    }
    Side side;
    side.open();
    if (what == "register") {
        register_memory(side);
        return 0;
    }
    side.meet(argc > needed ? argv[needed] : nullptr, static_cast<std::uint16_t>(number(2)));
    if (what == "connect") {
        connect_many(side, number(3));
    } else {
        rate(side, number(3), number(4), std::string(argv[5]) == "write");
    }
    return 0;
}

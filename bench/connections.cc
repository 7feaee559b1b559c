// SPDX-License-Identifier: Apache-2.0
// connections: how many connections a second two programs make and end, one after the other. On two
// hosts of a fabric by rdma_cm, and beside it the same over TCP on the loopback interface: connect,
// shut down, wait for the other end's shutdown, close. Linked with the system's librdmacm, so the
// drop-in is taken by LD_LIBRARY_PATH, which `weir run` sets:
//
//   weir run --hosts h0 -- connections [count [server's host [client's host]]]
//
// Rounds take each side by turns; medians are printed, one `key value` per line: connections a
// second, their ratio, and the microseconds of each step of rdma_cm's client. Exit code 1 below
// 5000 a second.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <rdma/rdma_cma.h>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 5;
constexpr double kGoal = 5000;
constexpr std::uint16_t kPort = 7474;
constexpr std::array kStepNames = {"create_id", "resolve_addr", "resolve_route", "create_qp",
                                   "connect",   "disconnect",   "destroy"};
constexpr std::size_t kStepCount = kStepNames.size();

struct Result {
    double per_second = 0;
    std::array<double, kStepCount> steps_us{};
};

[[noreturn]] void die(const char* what) {
    std::perror(what);
    std::exit(1);
}

void check(int result, const char* what) {
    if (result != 0) die(what);
}

double median_of(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

/// A pipe that carries one thing from the child that writes to who reads.
template <class Thing>
class Channel {
  public:
    Channel() { check(pipe(ends_), "pipe"); }
    ~Channel() {
        close(ends_[0]);
        close(ends_[1]);
    }
    Channel(const Channel&) = delete;
    Channel& operator=(const Channel&) = delete;
    void send(const Thing& thing) {
        if (write(ends_[1], &thing, sizeof thing) != sizeof thing) die("write");
    }
    Thing receive() {
        close(ends_[1]);  // a sender that died ends the wait
        ends_[1] = -1;
        Thing thing;
        if (read(ends_[0], &thing, sizeof thing) != sizeof thing) die("the other side has ended");
        return thing;
    }

  private:
    int ends_[2];
};

sockaddr_in address(std::uint32_t ip) {
    sockaddr_in out{};
    out.sin_family = AF_INET;
    out.sin_port = htons(kPort);
    out.sin_addr.s_addr = htonl(ip);
    return out;
}

// ---------------------------------------------------------------- TCP

class TcpServer {
  public:
    explicit TcpServer(const char*) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
        const int on = 1;
        check(setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), "setsockopt");
        const auto at = address(INADDR_LOOPBACK);
        check(bind(socket_, reinterpret_cast<const sockaddr*>(&at), sizeof at), "bind");
        check(listen(socket_, SOMAXCONN), "listen");
    }
    void serve() const {
        const int peer = accept(socket_, nullptr, nullptr);
        char byte = 0;
        if (peer < 0 || read(peer, &byte, 1) != 0) die("accept");
        close(peer);
    }

  private:
    int socket_;
};

class TcpClient {
  public:
    explicit TcpClient(const char*) {}
    static void connect_once(Result&) {
        const int peer = socket(AF_INET, SOCK_STREAM, 0);
        const auto to = address(INADDR_LOOPBACK);
        check(connect(peer, reinterpret_cast<const sockaddr*>(&to), sizeof to), "connect");
        check(shutdown(peer, SHUT_WR), "shutdown");
        char byte = 0;
        if (read(peer, &byte, 1) != 0) die("read");
        close(peer);
    }
};

// ---------------------------------------------------------------- rdma_cm

class RdmaSide {
  public:
    explicit RdmaSide(const char* host) {
        check(setenv("WEIR_HOST", host, 1), "setenv");
        channel_ = rdma_create_event_channel();
        if (channel_ == nullptr) die("rdma_create_event_channel");
    }

  protected:
    /// The identifier of the next event, which must be of this type.
    rdma_cm_id* take(rdma_cm_event_type type) {
        for (;;) {
            rdma_cm_event* event = nullptr;
            check(rdma_get_cm_event(channel_, &event), "rdma_get_cm_event");
            const auto came = event->event;
            auto* id = event->id;
            check(rdma_ack_cm_event(event), "rdma_ack_cm_event");
            if (came == RDMA_CM_EVENT_TIMEWAIT_EXIT) continue;
            if (came == type) return id;
            std::fprintf(stderr, "connections: %s in place of %s\n", rdma_event_str(came),
                         rdma_event_str(type));
            std::exit(1);
        }
    }
    static void create_qp(rdma_cm_id* id) {
        ibv_qp_init_attr init{};
        init.cap = {1, 1, 1, 1, 0};
        init.qp_type = IBV_QPT_RC;
        check(rdma_create_qp(id, nullptr, &init), "rdma_create_qp");
    }
    static void destroy(rdma_cm_id* id) {
        rdma_destroy_qp(id);
        check(rdma_destroy_id(id), "rdma_destroy_id");
    }

    rdma_event_channel* channel_ = nullptr;
    rdma_conn_param wishes_ = [] {
        rdma_conn_param param{};
        param.responder_resources = param.initiator_depth = 1;
        return param;
    }();
};

class RdmaServer : RdmaSide {
  public:
    explicit RdmaServer(const char* host) : RdmaSide(host) {
        rdma_cm_id* listener = nullptr;
        check(rdma_create_id(channel_, &listener, nullptr, RDMA_PS_TCP), "rdma_create_id");
        auto at = address(INADDR_ANY);
        check(rdma_bind_addr(listener, reinterpret_cast<sockaddr*>(&at)), "rdma_bind_addr");
        check(rdma_listen(listener, 0), "rdma_listen");
    }
    void serve() {
        auto* id = take(RDMA_CM_EVENT_CONNECT_REQUEST);
        create_qp(id);
        check(rdma_accept(id, &wishes_), "rdma_accept");
        take(RDMA_CM_EVENT_ESTABLISHED);
        take(RDMA_CM_EVENT_DISCONNECTED);
        check(rdma_disconnect(id), "rdma_disconnect");
        destroy(id);
    }
};

class RdmaClient : RdmaSide {
  public:
    using RdmaSide::RdmaSide;

    void connect_once(Result& result) {
        auto before = Clock::now();
        std::size_t step = 0;
        const auto done = [&] {
            const auto now = Clock::now();
            result.steps_us[step++] +=
                std::chrono::duration<double, std::micro>(now - before).count();
            before = now;
        };
        rdma_cm_id* id = nullptr;
        check(rdma_create_id(channel_, &id, nullptr, RDMA_PS_TCP), "rdma_create_id");
        done();
        // The only listener at this port of all hosts.
        auto to = address(INADDR_LOOPBACK);
        check(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&to), 1000),
              "rdma_resolve_addr");
        take(RDMA_CM_EVENT_ADDR_RESOLVED);
        done();
        check(rdma_resolve_route(id, 1000), "rdma_resolve_route");
        take(RDMA_CM_EVENT_ROUTE_RESOLVED);
        done();
        create_qp(id);
        done();
        check(rdma_connect(id, &wishes_), "rdma_connect");
        take(RDMA_CM_EVENT_ESTABLISHED);
        done();
        check(rdma_disconnect(id), "rdma_disconnect");
        take(RDMA_CM_EVENT_DISCONNECTED);
        done();
        destroy(id);
        done();
    }
};

// ---------------------------------------------------------------- rounds

pid_t child(auto body) {
    const pid_t pid = fork();
    if (pid < 0) die("fork");
    if (pid != 0) return pid;
    body();
    std::_Exit(0);
}

/// A server and a client, each a process, and `count` connections between them.
template <class Server, class Client>
Result measure(int count, const char* server_host, const char* client_host) {
    Channel<char> listens;
    Channel<Result> answer;
    const pid_t server = child([&] {
        Server side(server_host);
        listens.send(0);
        for (int i = 0; i < count; ++i)
            side.serve();
    });
    const pid_t client = child([&] {
        listens.receive();
        Client side(client_host);
        Result result;
        for (int i = 0; i < count / 10; ++i)
            side.connect_once(result);
        result = {};
        const int measured = count - count / 10;
        const auto begin = Clock::now();
        for (int i = 0; i < measured; ++i)
            side.connect_once(result);
        result.per_second = measured / std::chrono::duration<double>(Clock::now() - begin).count();
        for (auto& step : result.steps_us)
            step /= measured;
        answer.send(result);
    });
    const auto result = answer.receive();
    for (const pid_t pid : {server, client}) {
        int status = 0;
        if (waitpid(pid, &status, 0) != pid || status != 0) die("a side failed");
    }
    return result;
}

template <class Value>
double median_over(const std::vector<Result>& rounds, Value value) {
    std::vector<double> values;
    for (const auto& round : rounds)
        values.push_back(value(round));
    return median_of(values);
}

}  // namespace

int main(int argc, char** argv) {
    const int count = argc > 1 ? std::atoi(argv[1]) : 5000;
    const char* server_host = argc > 2 ? argv[2] : "h0";
    const char* client_host = argc > 3 ? argv[3] : "h1";
    if (count < 10) {
        std::fprintf(stderr,
                     "usage: connections [count, at least 10 [server's host [client's]]]\n");
        return 2;
    }
    std::vector<Result> tcp;
    std::vector<Result> weir;
    for (int i = 0; i < kRounds; ++i) {
        tcp.push_back(measure<TcpServer, TcpClient>(count, server_host, client_host));
        weir.push_back(measure<RdmaServer, RdmaClient>(count, server_host, client_host));
    }
    const auto rate = [](const Result& result) { return result.per_second; };
    const double ours = median_over(weir, rate);
    const double other = median_over(tcp, rate);
    std::printf("rdma_per_second %.0f\ntcp_per_second %.0f\nratio %.2f\n", ours, other,
                ours / other);
    for (std::size_t step = 0; step < kStepCount; ++step)
        std::printf("%s_us %.2f\n", kStepNames[step], median_over(weir, [step](const auto& result) {
                        return result.steps_us[step];
                    }));
    return ours < kGoal ? 1 : 0;
}

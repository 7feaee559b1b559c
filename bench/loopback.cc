// SPDX-License-Identifier: Apache-2.0
// loopback: what the machine does without a fabric, as a yardstick for one. Two processes, each
// spinning, never sleeping:
//   flag   a word in shared memory goes to and fro: the floor for anything between two processes
//   tcp    the same over TCP on the loopback interface, TCP_NODELAY, non-blocking sockets
//   bulk   TCP one way, in writes of the given size
//   memcpy one core copying a buffer of that size to another, both in place
// Prints one `key value` per line. Latencies are half round trips, median, in microseconds;
// bandwidth is in GB/s (10^9 bytes).
//
// Usage: loopback [bulk write size in bytes, default 65536; 0 for latencies alone]
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWarmUpRounds = 1000;
constexpr int kRounds = 20000;
constexpr std::size_t kBulkBytes = 256UL << 20U;
constexpr std::size_t kBulkWritesMax = 1U << 18U;  // small writes: a second's worth
/// A busy machine must not make this endless: fewer rounds then.
constexpr std::chrono::seconds kPatience{3};

[[noreturn]] void die(const char* what) {
    std::perror(what);
    std::exit(1);
}

double median_of(std::vector<double>& values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

/// Runs `round` until there is enough to tell a median.
template <class Round>
double measure(Round round) {
    for (int i = 0; i < kWarmUpRounds; ++i)
        round();
    std::vector<double> rounds_us;
    rounds_us.reserve(kRounds);
    const auto begin = Clock::now();
    auto before = begin;
    for (int i = 0; i < kRounds && before - begin < kPatience; ++i) {
        round();
        const auto now = Clock::now();
        rounds_us.push_back(std::chrono::duration<double, std::micro>(now - before).count());
        before = now;
    }
    return median_of(rounds_us) / 2;
}

struct Lines {
    alignas(128) std::atomic<std::uint32_t> ping;
    alignas(128) std::atomic<std::uint32_t> pong;
};
constexpr std::uint32_t kEnd = 0xffffffffU;

void wait_for_child() {
    int status = 0;
    if (wait(&status) < 0 || status != 0) die("the other process failed");
}

double flag_us() {
    void* memory =
        mmap(nullptr, sizeof(Lines), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) die("mmap");
    auto& lines = *static_cast<Lines*>(memory);  // zero pages: both words start at 0
    const pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
        for (std::uint32_t seen = 0;;) {
            const auto now = lines.ping.load(std::memory_order_acquire);
            if (now == kEnd) _exit(0);
            if (now != seen) lines.pong.store(seen = now, std::memory_order_release);
        }
    }
    std::uint32_t count = 0;
    const double us = measure([&] {
        lines.ping.store(++count, std::memory_order_release);
        while (lines.pong.load(std::memory_order_acquire) != count) {
        }
    });
    lines.ping.store(kEnd, std::memory_order_release);
    wait_for_child();
    return us;
}

/// Moves exactly `bytes`, spinning. False at the end of the stream.
template <class Call, class Byte>
bool move_all(Call call, int socket, Byte* buffer, std::size_t bytes) {
    while (bytes > 0) {
        const ssize_t got = call(socket, buffer, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (got > 0) {
            buffer += got;
            bytes -= static_cast<std::size_t>(got);
        } else if (got == 0) {
            return false;
        } else if (errno != EAGAIN && errno != EINTR) {
            die("socket");
        }
    }
    return true;
}

bool send_all(int socket, const char* buffer, std::size_t bytes) {
    return move_all(send, socket, buffer, bytes);
}
bool receive_all(int socket, char* buffer, std::size_t bytes) {
    return move_all(recv, socket, buffer, bytes);
}

struct Pair {
    int client;
    int server;
};

Pair connect_over_loopback() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* where = reinterpret_cast<sockaddr*>(&address);
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, where, length) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, where, &length) != 0) {
        die("listen");
    }
    Pair pair{socket(AF_INET, SOCK_STREAM, 0), -1};
    if (pair.client < 0 || connect(pair.client, where, length) != 0) die("connect");
    pair.server = accept(listener, nullptr, nullptr);
    if (pair.server < 0) die("accept");
    close(listener);
    const int on = 1;
    for (const int end : {pair.client, pair.server}) {
        if (setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) die("TCP_NODELAY");
    }
    return pair;
}

/// Runs `server` in a child and `client` here, over one connection.
template <class Server, class Client>
double over_tcp(Server server, Client client) {
    const Pair pair = connect_over_loopback();
    const pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
        close(pair.client);
        server(pair.server);
        _exit(0);
    }
    close(pair.server);
    const double result = client(pair.client);
    close(pair.client);
    wait_for_child();
    return result;
}

double tcp_us() {
    return over_tcp(
        [](int socket) {
            char message[8];
            while (receive_all(socket, message, sizeof message))
                send_all(socket, message, sizeof message);
        },
        [](int socket) {
            char message[8] = {};
            return measure([&] {
                send_all(socket, message, sizeof message);
                receive_all(socket, message, sizeof message);
            });
        });
}

double tcp_gb_per_second(std::size_t write_bytes) {
    const auto rounds = std::clamp<std::size_t>(kBulkBytes / write_bytes, 1, kBulkWritesMax);
    return over_tcp(
        [&](int socket) {
            std::vector<char> buffer(write_bytes);
            for (std::size_t i = 0; i < rounds; ++i)
                receive_all(socket, buffer.data(), buffer.size());
            send_all(socket, buffer.data(), 1);
        },
        [&](int socket) {
            std::vector<char> buffer(write_bytes);
            const auto begin = Clock::now();
            for (std::size_t i = 0; i < rounds; ++i)
                send_all(socket, buffer.data(), buffer.size());
            receive_all(socket, buffer.data(), 1);  // until the last byte has been taken
            const std::chrono::duration<double> took = Clock::now() - begin;
            return static_cast<double>(rounds * write_bytes) / took.count() / 1e9;
        });
}

double memcpy_gb_per_second(std::size_t bytes) {
    std::vector<char> from(bytes, 1);
    std::vector<char> to(bytes, 2);
    const std::size_t copies = std::max<std::size_t>(kBulkBytes / bytes / 16, 1);
    std::vector<double> batches;
    for (int batch = 0; batch < 41; ++batch) {
        const auto begin = Clock::now();
        for (std::size_t i = 0; i < copies; ++i) {
            std::memcpy(to.data(), from.data(), bytes);
            // Keeps the compiler from leaving out copies that nobody reads.
            asm volatile("" : : "r"(to.data()) : "memory");
        }
        const std::chrono::duration<double> took = Clock::now() - begin;
        batches.push_back(static_cast<double>(copies * bytes) / took.count() / 1e9);
    }
    return median_of(batches);
}

}  // namespace

int main(int argc, char** argv) {
    const auto write_bytes = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 65536;
    if (write_bytes > kBulkBytes || argc > 2) {
        std::fprintf(stderr, "usage: loopback [bulk write size in bytes; 0 for latencies alone]\n");
        return 2;
    }
    std::printf("flag_us %.3f\n", flag_us());
    std::printf("tcp_us %.3f\n", tcp_us());
    if (write_bytes == 0) return 0;
    std::printf("tcp_gb_per_second %.3f\n", tcp_gb_per_second(write_bytes));
    std::printf("memcpy_gb_per_second %.3f\n", memcpy_gb_per_second(write_bytes));
    return 0;
}

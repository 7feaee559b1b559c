// SPDX-License-Identifier: Apache-2.0
// Programs that attach, misbehave and die, against a real daemon. The programs are forked children;
// the test process is a program too.
#include "lab/process_table.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <functional>
#include <vector>

#include "lab/arena_view.h"
#include "lab/test_lab.h"
#include "runtime/real/attach_client.h"
#include "runtime/real/daemonize.h"
#include "runtime/real/event_loop.h"
#include "runtime/real/record_socket.h"
#include "runtime/real/runtime_folder.h"

namespace weir::lab {
namespace {

constexpr std::uint32_t kOwnQp = 20;
constexpr std::uint32_t kChildQp = 21;
constexpr std::uint32_t kChildMr = 5;

struct Program {
    runtime::AttachClient client;
    runtime::UniqueFd window;
    std::uint32_t identity;
    [[nodiscard]] arena::ProcessEntry& entry() const {
        return client.arena().process(arena::slot_of(identity));
    }
};

Program attach(const char* node) {
    auto client = runtime::AttachClient::connect("test");
    WEIR_CHECK(client && client->observe());
    auto window = runtime::create_window();
    WEIR_CHECK(window.has_value());
    const auto identity = client->attach(*find_node(client->arena(), node), window->get());
    WEIR_CHECK(identity.has_value());
    return {*std::move(client), *std::move(window), *identity};
}

void open_qp(const Program& program, std::uint32_t number, const char* node) {
    auto& qp = program.client.arena().qp(number);
    qp.node = *find_node(program.client.arena(), node);
    qp.requests.reset(1U << 20U);
    qp.responses.reset(1U << 20U);
    qp.initialised.store(1);
    qp.receiving.store(1);
    qp.owner.store(program.identity);
}

/// Puts a packet of this program's on its way to kOwnQp on h0, one lane and no further.
std::uint32_t inject_packet(const Program& program, std::uint32_t number = 0) {
    const auto arena = program.client.arena();
    const std::uint32_t index =
        arena::slot_of(program.identity) * arena::kPacketsPerProcess + number;
    auto& packet = arena.packet(index);
    arena::Route route{};
    route.dlid = arena.port(*find_port(arena, "h0:1")).lid;
    route.words = 64;
    route.dest_qp = kOwnQp;
    packet.route.store(route.encode());
    const std::uint32_t generation = 7;
    packet.state.store((generation << 1U) | 1U);
    switching::Mover<> mover(arena);
    const std::uint32_t entry = arena.port(*find_port(arena, "h1:1")).peer;
    WEIR_CHECK(mover.inject(mover.port_lane(entry, 0), index, generation));
    return index;
}

/// A child that does something and then waits to be killed.
class Child {
  public:
    explicit Child(const std::function<void()>& body) {
        std::array<int, 2> ends{};
        WEIR_CHECK(::pipe(ends.data()) == 0);
        pid_ = ::fork();
        if (pid_ == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            ::close(ends[0]);
            body();
            WEIR_CHECK(::write(ends[1], ".", 1) == 1);
            while (true)
                ::pause();
        }
        ::close(ends[1]);
        char done = 0;
        ready_ = ::read(ends[0], &done, 1) == 1;
        ::close(ends[0]);
    }
    ~Child() { kill(); }
    void kill() {
        if (pid_ > 0) {
            ::kill(pid_, SIGKILL);
            ::waitpid(pid_, nullptr, 0);
            pid_ = 0;
        }
    }
    void stop() const { ::kill(pid_, SIGSTOP); }
    [[nodiscard]] bool ready() const { return ready_; }

  private:
    pid_t pid_;
    bool ready_ = false;
};

bool eventually(const std::function<bool()>& holds) {
    for (int i = 0; i < 3000; ++i) {
        if (holds()) return true;
        runtime::sleep_milliseconds(1);
    }
    return false;
}

/// A 4 KiB packet of this program's into the egress of h1, and as far as the link's rate lets it.
void send_by_egress(const Program& program, std::uint32_t number) {
    const auto arena = program.client.arena();
    const std::uint32_t index =
        arena::slot_of(program.identity) * arena::kPacketsPerProcess + number;
    auto& packet = arena.packet(index);
    arena::Route route{};
    route.dlid = arena.port(*find_port(arena, "h0:1")).lid;
    route.words = 1024;
    route.dest_qp = kOwnQp;
    packet.route.store(route.encode());
    packet.state.store((7U << 1U) | 1U);
    switching::Mover<> mover(arena);
    mover.set_now(runtime::monotonic_nanoseconds());
    const auto lane = mover.egress_lane(*find_port(arena, "h1:1"), 0);
    WEIR_CHECK(mover.inject(lane, index, 7));
    WEIR_CHECK(mover.drive(lane));
}

std::uint32_t other_identity(const Program& self) {
    for (const auto& process : list_processes(self.client.arena())) {
        if (process.identity != self.identity) return process.identity;
    }
    return 0;
}

TEST_F(LabTest, PacketsThatWaitForALinkArriveThoughTheirSenderIsDead) {
    ASSERT_TRUE(up());
    const Program self = attach("h0");
    ASSERT_TRUE(self.client.arena().mapped());
    auto tool = runtime::AttachClient::connect("test");
    ASSERT_TRUE(tool);
    ASSERT_TRUE(tool->set_rate("h1:1", 10'000'000));
    open_qp(self, kOwnQp, "h0");
    Child child([] {
        static const Program program = attach("h1");
        for (std::uint32_t i = 0; i < 5; ++i)
            send_by_egress(program, i);
    });
    const auto& ring = self.client.arena().qp(kOwnQp).requests;
    ASSERT_TRUE(eventually([&] { return ring.occupancy() >= 1; }));
    child.kill();
    EXPECT_TRUE(eventually([&] { return ring.occupancy() == 5; }));
}

TEST_F(LabTest, IdentitiesAreNeverZeroAndNeverTheSameAgain) {
    ASSERT_TRUE(up());
    std::uint32_t before = 0;
    const Program watcher = attach("h0");
    for (int i = 0; i < 3; ++i) {
        const std::uint32_t identity = attach("h1").identity;
        EXPECT_NE(identity, 0U);
        EXPECT_NE(identity, before);
        before = identity;
        EXPECT_TRUE(eventually([&] { return other_identity(watcher) == 0; }));
    }
    EXPECT_NE(watcher.identity, 0U);
}

TEST_F(LabTest, PeersReachEachOthersWindows) {
    ASSERT_TRUE(up());
    Program a = attach("h0");
    const Program b = attach("h1");
    const auto window = a.client.peer_window(b.identity);
    ASSERT_TRUE(window);
    struct stat theirs {};
    struct stat seen {};
    ASSERT_EQ(::fstat(b.window.get(), &theirs), 0);
    ASSERT_EQ(::fstat(window->get(), &seen), 0);
    EXPECT_EQ(seen.st_ino, theirs.st_ino);
    EXPECT_EQ(a.client.peer_window(b.identity + (1U << arena::kIdentitySlotBits)).error().code,
              ErrorCode::kNotFound);
}

TEST_F(LabTest, AWindowThatCouldShrinkIsRefused) {
    ASSERT_TRUE(up());
    auto client = runtime::AttachClient::connect(kName);
    ASSERT_TRUE(client && client->observe());
    const auto small = runtime::create_memory("small", 4096);
    ASSERT_TRUE(small);
    EXPECT_EQ(client->attach(*find_node(client->arena(), "h0"), small->get()).error().code,
              ErrorCode::kInvalid);
}

// What a killed program held, at the worst moment, is taken back; what it had sent arrives.
TEST_F(LabTest, AKilledProgramLeavesNothingBehind) {
    ASSERT_TRUE(up());
    const Program self = attach("h0");
    const auto arena = self.client.arena();
    open_qp(self, kOwnQp, "h0");
    Child child([] {
        // Never destroyed: it is to be alive when the kill comes.
        static Program* program = new Program(attach("h1"));
        open_qp(*program, kChildQp, "h1");
        auto& mr = program->client.arena().mr(kChildMr);
        mr.owner.store(program->identity);
        mr.key.store(kChildMr << 8U);
        program->client.arena().qp(kOwnQp).lock.store(program->identity);
        inject_packet(*program);
        program->entry().moving.store(1);
    });
    ASSERT_TRUE(child.ready());
    const std::uint32_t dead = arena.qp(kChildQp).owner.load();
    ASSERT_NE(dead, 0U);
    child.kill();
    EXPECT_TRUE(eventually([&] { return arena.qp(kChildQp).owner.load() == 0; }));
    EXPECT_EQ(arena.mr(kChildMr).key.load(), 0U);
    EXPECT_EQ(arena.mr(kChildMr).owner.load(), 0U);
    EXPECT_EQ(arena.qp(kOwnQp).lock.load(), 0U);
    EXPECT_EQ(self.entry().dead.load(), 0U);
    EXPECT_TRUE(eventually([&] { return self.entry().rescan.load() != 0; }));

    // Its packet has come to us. As long as we have it, the slot is not given away.
    switching::Mover<> mover(arena);
    credit::Slot slot{};
    ASSERT_TRUE(eventually([&] { return mover.peek(mover.request_ring(kOwnQp), slot); }));
    runtime::sleep_milliseconds(4 * ProcessTable::kTickMilliseconds);
    EXPECT_EQ(arena.process(arena::slot_of(dead)).identity.load(), dead);
    EXPECT_EQ(arena.process(arena::slot_of(dead)).dead.load(), 1U);
    mover.pop(mover.request_ring(kOwnQp));
    mover.release(slot);
    EXPECT_TRUE(
        eventually([&] { return arena.process(arena::slot_of(dead)).identity.load() == 0; }));
}

TEST_F(LabTest, PacketsThatADeadProgramNeverSentAreTakenBack) {
    ASSERT_TRUE(up());
    const Program self = attach("h0");
    const auto arena = self.client.arena();
    Child child([] {
        static Program* program = new Program(attach("h1"));
        open_qp(*program, kChildQp, "h1");
        // Taken from the pool, and then the kill came.
        const auto first = arena::slot_of(program->identity) * arena::kPacketsPerProcess;
        program->client.arena().packet(first + 3).state.store((9U << 1U) | 1U);
    });
    ASSERT_TRUE(child.ready());
    const std::uint32_t dead = arena.qp(kChildQp).owner.load();
    child.kill();
    const auto gone = [&] { return arena.process(arena::slot_of(dead)).identity.load() == 0; };
    EXPECT_TRUE(eventually(gone) || eventually(gone) || eventually(gone));
}

TEST_F(LabTest, AStoppedProgramsPacketIsMovedOnByTheDaemon) {
    ASSERT_TRUE(up());
    const Program self = attach("h0");
    open_qp(self, kOwnQp, "h0");
    const Child child([] {
        static Program* program = new Program(attach("h1"));
        program->entry().moving.store(1);
        inject_packet(*program);
    });
    ASSERT_TRUE(child.ready());
    child.stop();
    switching::Mover<> mover(self.client.arena());
    credit::Slot slot{};
    EXPECT_TRUE(eventually([&] { return mover.peek(mover.request_ring(kOwnQp), slot); }));
    EXPECT_TRUE(eventually([&] { return self.entry().rescan.load() != 0; }));
}

// Datagrams wait at the port of a program that does not read. Once their sender is dead nobody but
// the daemon can give up on them.
TEST_F(LabTest, DatagramsOfTheDeadDoNotBlockAPortForever) {
    ASSERT_TRUE(up());
    const Program self = attach("h0");
    const auto arena = self.client.arena();
    open_qp(self, kOwnQp, "h0");
    Child child([] {
        static Program* program = new Program(attach("h1"));
        switching::Mover<> mover(program->client.arena());
        for (std::uint32_t i = 0; i < credit::kSlotCount; ++i) {
            inject_packet(*program, i);
            mover.sweep();
        }
    });
    ASSERT_TRUE(child.ready());
    const auto& lane = arena.lane(*find_port(arena, "h0:1"), 0);
    EXPECT_GT(lane.occupancy(), 0U);
    const std::uint32_t dead = other_identity(self);
    child.kill();
    EXPECT_TRUE(eventually([&] { return lane.occupancy() == 0; }));
    switching::Mover<>(arena).drain(switching::Mover<>(arena).request_ring(kOwnQp));
    EXPECT_TRUE(
        eventually([&] { return arena.process(arena::slot_of(dead)).identity.load() == 0; }));
}

TEST_F(LabTest, ALetGoConnectionIsADepartureToo) {
    ASSERT_TRUE(up());
    const Program watcher = attach("h0");
    {
        const Program program = attach("h1");
        open_qp(program, kChildQp, "h1");
    }
    EXPECT_TRUE(eventually([&] { return watcher.client.arena().qp(kChildQp).owner.load() == 0; }));
}

/// A client that speaks by hand.
runtime::UniqueFd raw_client() {
    const auto runtime_folder = runtime::open_runtime_folder();
    const auto folder = runtime::open_fabric_folder(*runtime_folder, "test");
    auto socket =
        runtime::connect_records(folder->fd.get(), folder->path, runtime::kAttachSocketName, 5);
    EXPECT_TRUE(socket);
    return *std::move(socket);
}

arena::AttachRequest observe_request() {
    arena::AttachRequest request{};
    request.magic = arena::kAttachMagic;
    request.version = arena::kAttachVersion;
    request.kind = arena::AttachKind::kObserve;
    return request;
}

/// Sends bytes and gives the status of the answer, or -1 if there was none.
int answer_to(int socket, std::span<const std::byte> bytes, std::span<const int> fds = {}) {
    arena::AttachReply reply{};
    runtime::Record record;
    if (runtime::send_record(socket, bytes, fds, runtime::Waiting::kAllowed) != 0 ||
        runtime::receive_record(socket, std::as_writable_bytes(std::span(&reply, 1)), record,
                                runtime::Waiting::kAllowed) != 0 ||
        record.bytes != sizeof(reply)) {
        return -1;
    }
    return reply.status;
}

TEST_F(LabTest, GarbageCostsOnlyItsSenderTheConnection) {
    ASSERT_TRUE(up());
    const auto request = observe_request();
    const auto whole = std::as_bytes(std::span(&request, 1));
    const std::vector<std::byte> large(100'000);
    for (const auto bytes : {whole.first(7), std::span<const std::byte>(large)}) {
        const auto socket = raw_client();
        EXPECT_EQ(answer_to(socket.get(), bytes), EPROTO);
        EXPECT_EQ(answer_to(socket.get(), whole), -1);
    }
    const auto socket = raw_client();
    const std::array<int, 4> many{socket.get(), socket.get(), socket.get(), socket.get()};
    EXPECT_EQ(answer_to(socket.get(), whole, many), EINVAL);
    EXPECT_EQ(answer_to(socket.get(), whole), 0);
}

TEST_F(LabTest, AClientThatDoesNotReadIsCutOffAndOthersAreServed) {
    ASSERT_TRUE(up());
    const auto request = observe_request();
    const auto slow = raw_client();
    const int window = slow.get();
    int failure = 0;
    for (int i = 0; i < 100'000 && failure != EPIPE; ++i) {
        const bool with_fd = i % 2 == 0;
        failure =
            runtime::send_record(slow.get(), std::as_bytes(std::span(&request, 1)),
                                 std::span(&window, with_fd ? 1U : 0U), runtime::Waiting::kNever);
    }
    EXPECT_EQ(failure, EPIPE);
    const auto good = raw_client();
    EXPECT_EQ(answer_to(good.get(), std::as_bytes(std::span(&request, 1))), 0);
}

TEST_F(LabTest, ManySilentConnectionsDoNotKeepAnybodyOut) {
    ASSERT_TRUE(up());
    std::vector<runtime::UniqueFd> idle;
    idle.reserve(200);
    for (int i = 0; i < 200; ++i)
        idle.push_back(raw_client());
    const auto request = observe_request();
    EXPECT_EQ(answer_to(raw_client().get(), std::as_bytes(std::span(&request, 1))), 0);
}

TEST_F(LabTest, AnotherUserCannotAttachWhateverTheModesAre) {
    if (::geteuid() != 0) {
        GTEST_SKIP() << "needs root, to become another user";
    }
    ASSERT_TRUE(up());
    const std::string folder = folder_ + "/" + kName;
    const std::string path = folder + "/" + runtime::kAttachSocketName;
    ASSERT_EQ(::chmod(folder_.c_str(), 0711), 0);
    ASSERT_EQ(::chmod(folder.c_str(), 0711), 0);
    ASSERT_EQ(::chmod(path.c_str(), 0666), 0);
    const pid_t child = ::fork();
    if (child == 0) {
        if (::setgid(65534) != 0 || ::setuid(65534) != 0) ::_exit(101);
        if (runtime::AttachClient::connect(kName).error().code != ErrorCode::kDenied) ::_exit(102);
        auto socket = runtime::connect_records(-1, folder, runtime::kAttachSocketName, 5);
        if (!socket) ::_exit(103);
        const auto request = observe_request();
        ::_exit(answer_to(socket->get(), std::as_bytes(std::span(&request, 1))));
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), EACCES);
    ASSERT_EQ(::chmod(folder.c_str(), 0700), 0);
    ASSERT_EQ(::chmod(folder_.c_str(), 0700), 0);
}

}  // namespace
}  // namespace weir::lab

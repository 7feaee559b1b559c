// SPDX-License-Identifier: Apache-2.0
// Building an arena, reading it, judging requests, up and down.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "lab/arena_builder.h"
#include "lab/arena_view.h"
#include "lab/attach_protocol.h"
#include "lab/test_lab.h"
#include "runtime/real/attach_client.h"
#include "runtime/real/daemonize.h"
#include "runtime/real/runtime_folder.h"
#include "switching/forwarding.h"

namespace weir::lab {
namespace {

FabricMemory build(const topology::Fabric& fabric) {
    const auto tables = routing::route(fabric);
    EXPECT_TRUE(tables);
    auto memory = build_arena(fabric, *tables, "test");
    EXPECT_TRUE(memory) << memory.error().context;
    return *std::move(memory);
}

TEST(ArenaBuilder, PairIsLaidOutAsTheFabricSays) {
    const auto source = pair_source();
    const auto memory = build(source.fabric);
    const auto arena = memory.arena();
    EXPECT_EQ(arena.header().magic, arena::kMagic);
    EXPECT_STREQ(arena.header().name, "test");
    EXPECT_EQ(arena.header().node_count, 3U);
    EXPECT_EQ(list_hosts(arena), (std::vector<std::string>{"h0", "h1"}));
    for (const auto& link : list_links(arena)) {
        EXPECT_EQ(arena.port(link.a).peer, link.b);
        EXPECT_EQ(arena.port(link.b).peer, link.a);
        EXPECT_EQ(arena.port(link.a).up.load(), 1U);
        EXPECT_EQ(arena.port(link.a).speed_bits_per_second, 400'000'000'000U);
    }
    const auto h1 = *find_port(arena, "h1:1");
    EXPECT_EQ(arena.lids()[arena.port(h1).lid], h1);
    const auto& s0 = arena.node(*find_node(arena, "s0"));
    const std::uint32_t out = arena.lft(s0)[arena.port(h1).lid];
    EXPECT_EQ(arena.port(s0.first_port + out - 1).peer, h1);
}

TEST(ArenaBuilder, EveryLaneIsEmptyAndTakesASegment) {
    auto source = pair_source();
    source.fabric.options.buffer = {1};
    const auto memory = build(source.fabric);
    const auto arena = memory.arena();
    for (std::uint32_t p = 0; p < arena.header().port_count; ++p) {
        for (std::uint32_t vl = 0; vl < arena.header().lane_count; ++vl) {
            EXPECT_EQ(arena.lane(p, vl).occupancy(), 0U);
            EXPECT_GT(arena.lane(p, vl).capacity_blocks,
                      arena::kSegmentBytes / credit::kBlockBytes);
        }
    }
    EXPECT_TRUE(switching::Mover<>(arena).sweep());
}

TEST(ArenaBuilder, OnlyTheFixedPartHasPages) {
    const auto memory = build(pair_source().fabric);
    std::uint64_t committed = 0;
    runtime::visit_committed(memory.fd.get(), 0, memory.mapping.bytes(),
                             [&](std::uint64_t first, std::uint64_t end) {
                                 committed += end - first;
                                 return true;
                             });
    // Pages that were got but never written do not count as data.
    EXPECT_GT(committed, 0U);
    EXPECT_LE(committed, memory.arena().header().qps_at);
    EXPECT_LT(committed, 1U << 20U);
}

TEST(ArenaBuilder, ANameThatDoesNotFitIsAnError) {
    auto source = pair_source();
    source.fabric.nodes[0].name = std::string(arena::kNameBytes, 'x');
    const auto tables = routing::route(source.fabric);
    ASSERT_TRUE(tables);
    const auto memory = build_arena(source.fabric, *tables, "test");
    ASSERT_FALSE(memory);
    EXPECT_EQ(memory.error().code, ErrorCode::kInvalid);
}

TEST(ArenaView, LinksAreFoundByEitherNameOrEnd) {
    const auto memory = build(pair_source().fabric);
    const auto arena = memory.arena();
    const auto h0 = *find_port(arena, "h0:1");
    const std::string full = link_name(arena, *find_link(arena, "h0:1"));
    for (const std::string_view name : {std::string_view("h0:1"), std::string_view(full)}) {
        const auto link = find_link(arena, name);
        ASSERT_TRUE(link) << name;
        EXPECT_EQ(link->a, h0);
        const std::string back = port_name(arena, link->b) + "-" + port_name(arena, link->a);
        EXPECT_EQ(find_link(arena, back)->a, h0);
    }
    for (const char* bad : {"", ":", "-", "h0", "h0:", "h0:0", "h0:2", "h0:1-h1:1", "h0:x",
                            "h0:99999999999", "s0:4", "---------"}) {
        EXPECT_FALSE(find_link(arena, bad)) << bad;
    }
    EXPECT_THAT(find_link(arena, "h:1").error().hint, ::testing::HasSubstr("h0"));
}

class Protocol : public ::testing::Test {
  protected:
    static arena::AttachRequest request(arena::AttachKind kind) {
        arena::AttachRequest made{};
        made.magic = arena::kAttachMagic;
        made.version = arena::kAttachVersion;
        made.kind = kind;
        return made;
    }
    Judgement ask(const arena::AttachRequest& request, std::size_t fds = 0,
                  Caller caller = {1000, false}) {
        return judge({std::as_bytes(std::span(&request, 1)), fds, false}, caller, 1000,
                     memory_.arena());
    }
    FabricMemory memory_ = build(pair_source().fabric);
};

TEST_F(Protocol, StrangersAreTurnedAwayAndRootIsNot) {
    const auto observe = request(arena::AttachKind::kObserve);
    EXPECT_EQ(ask(observe, 0, {1001, false}).act, Act::kHangUp);
    EXPECT_EQ(ask(observe, 0, {1001, false}).status, EACCES);
    EXPECT_EQ(ask(observe, 0, {0, false}).act, Act::kGiveArena);
    EXPECT_EQ(ask(observe).act, Act::kGiveArena);
}

TEST_F(Protocol, WhatIsNoRequestEndsTheConnection) {
    auto bad = request(arena::AttachKind::kObserve);
    bad.magic = 0;
    EXPECT_EQ(ask(bad).act, Act::kHangUp);
    bad = request(arena::AttachKind::kObserve);
    bad.version = 99;
    EXPECT_EQ(ask(bad).act, Act::kHangUp);
    const std::byte byte{};
    EXPECT_EQ(judge({std::span(&byte, 1), 0, false}, {1000, false}, 1000, memory_.arena()).act,
              Act::kHangUp);
    EXPECT_EQ(ask(request(static_cast<arena::AttachKind>(77))).act, Act::kRefuse);
    EXPECT_EQ(ask(request(arena::AttachKind::kObserve), 1).act, Act::kRefuse);
}

TEST_F(Protocol, AttachingNeedsAnHcaAWindowAndAFreshConnection) {
    auto attach = request(arena::AttachKind::kAttach);
    attach.node = *find_node(memory_.arena(), "h0");
    EXPECT_EQ(ask(attach, 1).act, Act::kAttach);
    EXPECT_EQ(ask(attach, 0).act, Act::kRefuse);
    EXPECT_EQ(ask(attach, 2).act, Act::kRefuse);
    EXPECT_EQ(ask(attach, 1, {1000, true}).status, EEXIST);
    attach.node = *find_node(memory_.arena(), "s0");
    EXPECT_EQ(ask(attach, 1).act, Act::kRefuse);
    attach.node = 12345;
    EXPECT_EQ(ask(attach, 1).act, Act::kRefuse);
}

TEST_F(Protocol, LinksAreNamedAndSetToOneOfTwoStates) {
    auto set = request(arena::AttachKind::kSetLink);
    std::strcpy(set.text, "h0:1");
    EXPECT_EQ(ask(set).act, Act::kSetLink);
    EXPECT_FALSE(ask(set).up);
    set.argument = 2;
    EXPECT_EQ(ask(set).act, Act::kRefuse);
    set.argument = 1;
    std::strcpy(set.text, "h7:1");
    EXPECT_EQ(ask(set).status, ENOENT);
    std::memset(set.text, 'a', sizeof(set.text));
    EXPECT_EQ(ask(set).status, EINVAL);
}

TEST_F(Protocol, RatesLieWithinBounds) {
    auto set = request(arena::AttachKind::kSetRate);
    std::strcpy(set.text, "h0:1");
    EXPECT_EQ(ask(set).act, Act::kSetRate);
    set.rate_bits_per_second = 10'000'000;
    EXPECT_EQ(ask(set).rate_bits_per_second, 10'000'000U);
    set.rate_bits_per_second = 9'999'999;
    EXPECT_EQ(ask(set).status, EINVAL);
    set.rate_bits_per_second = ~0ULL;
    EXPECT_EQ(ask(set).status, EINVAL);
    set.rate_bits_per_second = 0;
    std::strcpy(set.text, "h7:1");
    EXPECT_EQ(ask(set).status, ENOENT);
}

TEST_F(LabTest, UpTwiceIsOnceAndADifferentFileIsRefused) {
    ASSERT_EQ(*up(), UpOutcome::kStarted);
    EXPECT_EQ(*up(), UpOutcome::kAlready);
    auto other = pair_source();
    other.text = "another pair";
    const auto refused = up(other);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kBusy);
    EXPECT_EQ(*take_down(kName, 5), DownOutcome::kDown);
    EXPECT_EQ(*take_down(kName, 5), DownOutcome::kWasNotUp);
    EXPECT_FALSE(std::filesystem::exists(folder_ + "/" + kName));
}

TEST_F(LabTest, AKilledDaemonLeavesErrorsAndThenNothing) {
    ASSERT_TRUE(up());
    auto client = runtime::AttachClient::connect(kName);
    ASSERT_TRUE(client);
    ASSERT_TRUE(client->observe());
    const auto pid = static_cast<pid_t>(client->arena().header().daemon_pid);
    ASSERT_TRUE(runtime::signal_process(pid, SIGKILL));
    const auto runtime_folder = runtime::open_runtime_folder();
    const auto folder = runtime::open_fabric_folder(*runtime_folder, kName);
    while (runtime::FabricLock::held(*folder))
        runtime::sleep_milliseconds(1);
    EXPECT_EQ(client->set_link("h0:1", false).error().code, ErrorCode::kUnreachable);
    const auto again = runtime::AttachClient::connect(kName);
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().code, ErrorCode::kUnreachable);
    // The arena outlives its daemon for those who have it.
    EXPECT_EQ(client->arena().header().magic, arena::kMagic);
    EXPECT_EQ(*up(), UpOutcome::kStarted);
}

TEST_F(LabTest, DownTellsThePrograms) {
    ASSERT_TRUE(up());
    auto client = runtime::AttachClient::connect(kName);
    ASSERT_TRUE(client);
    ASSERT_TRUE(client->observe());
    EXPECT_EQ(client->arena().header().closing.load(), 0U);
    EXPECT_EQ(*take_down(kName, 5), DownOutcome::kDown);
    EXPECT_EQ(client->arena().header().closing.load(), 1U);
    EXPECT_EQ(client->peer_window(0x1001).error().code, ErrorCode::kUnreachable);
}

TEST_F(LabTest, ALinkGoesDownAtBothEndsAndTheEpochMoves) {
    ASSERT_TRUE(up());
    auto client = runtime::AttachClient::connect(kName);
    ASSERT_TRUE(client && client->observe());
    const auto arena = client->arena();
    const auto link = *find_link(arena, "h1:1");
    const auto epoch = arena.header().epoch.load();
    ASSERT_TRUE(client->set_link("h1:1", false));
    EXPECT_EQ(arena.port(link.a).up.load() + arena.port(link.b).up.load(), 0U);
    EXPECT_EQ(arena.port(link.b).link_downed.load(), 1U);
    EXPECT_EQ(arena.header().epoch.load(), epoch + 1);
    ASSERT_TRUE(client->set_link("h1:1", false));
    EXPECT_EQ(arena.header().epoch.load(), epoch + 1);
    ASSERT_TRUE(client->set_link(link_name(arena, link), true));
    EXPECT_EQ(arena.port(link.a).up.load() + arena.port(link.b).up.load(), 2U);
    EXPECT_EQ(client->set_link("nowhere:1", true).error().code, ErrorCode::kNotFound);
}

TEST_F(LabTest, ARateHoldsForBothDirectionsOfItsLinkOnly) {
    ASSERT_TRUE(up());
    auto client = runtime::AttachClient::connect(kName);
    ASSERT_TRUE(client && client->observe());
    const auto arena = client->arena();
    const auto link = *find_link(arena, "h1:1");
    const auto other = *find_link(arena, "h0:1");
    const auto rate_at = [&](std::uint32_t end) {
        return arena.arbiter(end).rate_bits_per_second.load();
    };
    EXPECT_EQ(arena.header().rated.load(), 0U);
    EXPECT_EQ(rate_at(link.a) + rate_at(link.b), 0U);
    ASSERT_TRUE(client->set_rate("h1:1", 1'000'000'000));
    EXPECT_EQ(arena.header().rated.load(), 1U);
    EXPECT_EQ(rate_at(link.a), 1'000'000'000U);
    EXPECT_EQ(rate_at(link.b), 1'000'000'000U);
    EXPECT_EQ(rate_at(other.a) + rate_at(other.b), 0U);
    ASSERT_TRUE(client->set_rate("h1:1", 0));
    EXPECT_EQ(rate_at(link.a) + rate_at(link.b), 0U);
    // The way by the egress lanes stays, so that no packet overtakes one that still waits there.
    EXPECT_EQ(arena.header().rated.load(), 1U);
    EXPECT_EQ(client->set_rate("h1:1", 5).error().code, ErrorCode::kInvalid);
}

TEST_F(LabTest, ABadNameIsRefusedBeforeAnythingIsMade) {
    const auto outcome = bring_up(
        {"../x", pair_source(), false}, [](void*) {}, nullptr);
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().code, ErrorCode::kInvalid);
    EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST(FabricSource, FormsAreToldApartByWhatIsInThem) {
    EXPECT_TRUE(looks_like_netlist("#\n# Topology file\n\nvendid=0x2c9\nSwitch\t41 \"S-1\"\n"));
    EXPECT_TRUE(looks_like_netlist("Switch 8 \"S-1\"\n"));
    EXPECT_FALSE(looks_like_netlist("name: lab\nfabric: {shape: fat-tree}\n"));
    EXPECT_FALSE(looks_like_netlist("Switch: 8\n"));
    EXPECT_FALSE(looks_like_netlist(""));
}

}  // namespace
}  // namespace weir::lab

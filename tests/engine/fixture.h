// SPDX-License-Identifier: Apache-2.0
// Two hosts at one switch, both attached from this process, with queue pairs between them. The
// daemon is a forked child that ends with the test program.
#pragma once

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "hca/hca.h"
#include "lab/fabric_source.h"
#include "lab/lifecycle.h"

namespace weir::hca {

/// The fabric of this test program: brought up at first use, gone with the program.
class LiveFabric {
  public:
    static void ensure() {
        static LiveFabric fabric;
        ASSERT_TRUE(fabric.up_) << "the fabric did not come up";
    }
    ~LiveFabric() {
        if (daemon_ > 0) {
            kill(daemon_, SIGTERM);
            waitpid(daemon_, nullptr, 0);
        }
        const std::string command = "rm -rf '" + folder_ + "'";
        if (!folder_.empty() && std::system(command.c_str()) != 0) std::perror("rm");
    }

  private:
    LiveFabric() {
        char folder[] = "/tmp/weir-engine-XXXXXX";
        if (mkdtemp(folder) == nullptr) return;
        folder_ = folder;
        setenv("WEIR_RUNTIME_DIR", folder, 1);
        setenv("WEIR_FABRIC", "engine", 1);
        int ready[2];
        if (pipe(ready) != 0) return;
        daemon_ = fork();
        if (daemon_ == 0) {
            prctl(PR_SET_PDEATHSIG, SIGTERM);
            close(ready[0]);
            const char* source_folder = std::getenv("WEIR_SOURCE_DIR");
            const std::string path =
                std::string(source_folder == nullptr ? "." : source_folder) + "/examples/pair.yaml";
            auto source = lab::read_fabric_source(path);
            if (!source) _exit(1);
            const auto say = [](void* context) {
                const char byte = 1;
                (void)!write(*static_cast<int*>(context), &byte, 1);
            };
            const auto outcome =
                lab::bring_up({"engine", *std::move(source), true}, say, &ready[1]);
            _exit(outcome ? 0 : 1);
        }
        close(ready[1]);
        char byte = 0;
        up_ = read(ready[0], &byte, 1) == 1;
        close(ready[0]);
    }
    pid_t daemon_ = -1;
    std::string folder_;
    bool up_ = false;
};

/// One host's end: device, PD, CQs, and a buffer that is registered.
struct End {
    std::unique_ptr<Hca> hca;
    std::uint32_t pd = 0;
    CompletionQueue* send_cq = nullptr;
    CompletionQueue* receive_cq = nullptr;
    std::vector<std::uint8_t> memory;
    std::uint32_t lkey = 0;
    std::uint32_t rkey = 0;
    QueuePair* qp = nullptr;
    std::uint16_t lid = 0;

    static constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                   IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

    void open(const char* host, std::size_t bytes = 1U << 20U) {
        setenv("WEIR_HOST", host, 1);
        std::vector<DeviceDescription> devices;
        ASSERT_EQ(list_devices(devices), 0);
        ASSERT_EQ(Hca::open(devices.at(0), hca), 0);
        pd = hca->alloc_pd();
        ASSERT_EQ(hca->create_cq(4096, nullptr, send_cq), 0);
        ASSERT_EQ(hca->create_cq(4096, nullptr, receive_cq), 0);
        memory.resize(bytes);
        ASSERT_EQ(hca->reg_mr(pd, memory.data(), bytes,
                              reinterpret_cast<std::uintptr_t>(memory.data()), kAccess, lkey, rkey),
                  0);
        ibv_port_attr port{};
        ASSERT_EQ(hca->query_port(1, port), 0);
        lid = port.lid;
    }
    void create(ibv_qp_type type, SharedReceiveQueue* srq = nullptr, std::uint32_t depth = 64) {
        Hca::QpRequest request{pd, type, send_cq, receive_cq, srq, {depth, depth, 8, 8, 64}, false};
        ASSERT_EQ(hca->create_qp(request, qp), 0);
    }
    void to_init() const {
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_INIT;
        attr.port_num = 1;
        attr.qp_access_flags = kAccess;
        attr.qkey = 0x1111;
        const ibv_qp_type type = type_of();
        ASSERT_EQ(qp->modify(attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                                       (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)),
                  0);
    }
    void to_rtr(const End& peer) const {
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_RTR;
        attr.path_mtu = IBV_MTU_4096;
        attr.dest_qp_num = peer.qp->number();
        attr.rq_psn = 7;
        attr.max_dest_rd_atomic = 4;
        attr.min_rnr_timer = 1;
        attr.ah_attr.dlid = peer.lid;
        attr.ah_attr.port_num = 1;
        int mask = IBV_QP_STATE;
        const ibv_qp_type type = type_of();
        if (type != IBV_QPT_UD)
            mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        if (type == IBV_QPT_RC) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        ASSERT_EQ(qp->modify(attr, mask), 0);
    }
    void to_rts(std::uint8_t rnr_retry = 7, std::uint8_t timeout = 18) const {
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_RTS;
        attr.sq_psn = 7;
        attr.timeout = timeout;
        attr.retry_cnt = 1;
        attr.rnr_retry = rnr_retry;
        attr.max_rd_atomic = 4;
        int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
        if (type_of() == IBV_QPT_RC) {
            mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        }
        ASSERT_EQ(qp->modify(attr, mask), 0);
    }
    [[nodiscard]] ibv_qp_type type_of() const {
        ibv_qp_attr attr{};
        ibv_qp_init_attr init{};
        EXPECT_EQ(qp->query(attr, 0, init), 0);
        return init.qp_type;
    }

    [[nodiscard]] ibv_sge piece(std::size_t offset, std::uint32_t length) const {
        return {reinterpret_cast<std::uintptr_t>(memory.data()) + offset, length, lkey};
    }
    /// Posts one request; `tweak` may change it.
    template <class Tweak>
    int send(ibv_wr_opcode opcode, std::vector<ibv_sge> sges, Tweak tweak) const {
        ibv_send_wr wr{};
        wr.wr_id = 42;
        wr.opcode = opcode;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.sg_list = sges.data();
        wr.num_sge = static_cast<int>(sges.size());
        tweak(wr);
        ibv_send_wr* bad = nullptr;
        return qp->post_send(&wr, &bad);
    }
    int receive(std::vector<ibv_sge> sges, std::uint64_t id = 1) const {
        ibv_recv_wr wr{};
        wr.wr_id = id;
        wr.sg_list = sges.data();
        wr.num_sge = static_cast<int>(sges.size());
        ibv_recv_wr* bad = nullptr;
        return qp->post_receive(&wr, &bad);
    }
    void close() {
        if (qp != nullptr) {
            EXPECT_EQ(hca->destroy_qp(qp), 0);
        }
        qp = nullptr;
        EXPECT_EQ(hca->destroy_cq(send_cq), 0);
        EXPECT_EQ(hca->destroy_cq(receive_cq), 0);
        EXPECT_EQ(hca->dereg_mr(lkey), 0);
        EXPECT_EQ(hca->dealloc_pd(pd), 0);
        hca.reset();
    }
};

/// Both ends of a connection, in RTS.
class EngineTest : public ::testing::Test {
  protected:
    void SetUp() override {
        LiveFabric::ensure();
        ASSERT_NO_FATAL_FAILURE(a.open("h0"));
        ASSERT_NO_FATAL_FAILURE(b.open("h1"));
    }
    /// `timeout`: 0 is for ever, where packets that are sent again would spoil the count.
    void connect(ibv_qp_type type, std::uint8_t rnr_retry = 7, std::uint8_t timeout = 18) {
        ASSERT_NO_FATAL_FAILURE(a.create(type));
        ASSERT_NO_FATAL_FAILURE(b.create(type));
        for (End* end : {&a, &b})
            ASSERT_NO_FATAL_FAILURE(end->to_init());
        ASSERT_NO_FATAL_FAILURE(a.to_rtr(b));
        ASSERT_NO_FATAL_FAILURE(b.to_rtr(a));
        for (End* end : {&a, &b})
            ASSERT_NO_FATAL_FAILURE(end->to_rts(rnr_retry, timeout));
    }
    void TearDown() override {
        a.close();
        b.close();
    }
    /// Polls both sides until `cq` has a completion; gives up after a long while.
    ibv_wc wait(CompletionQueue* cq) {
        ibv_wc wc{};
        const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        for (std::uint32_t i = 1;; ++i) {
            if (i % 1024 == 0 && std::chrono::steady_clock::now() > patience) break;
            const int got = cq->poll(1, &wc);
            if (got == 1) return wc;
            if (got < 0) break;
        }
        ADD_FAILURE() << "no completion came";
        wc.status = IBV_WC_GENERAL_ERR;
        return wc;
    }
    static auto to(const End& peer, std::size_t offset) {
        return [&peer, offset](ibv_send_wr& wr) {
            wr.wr.rdma.remote_addr = reinterpret_cast<std::uintptr_t>(peer.memory.data()) + offset;
            wr.wr.rdma.rkey = peer.rkey;
        };
    }
    End a;
    End b;
};

}  // namespace weir::hca

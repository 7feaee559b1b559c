// SPDX-License-Identifier: Apache-2.0
// What the programs of this folder share. They know verbs and nothing of Weir except that the
// environment variable WEIR_HOST puts a process on a host: run_sides() forks one process per side
// before any verbs call and joins them by a socket, over which they tell each other where their
// memory and queue pairs are, and meet.
#pragma once

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <infiniband/verbs.h>

/// Ends the process with a line that says where, if the condition does not hold.
#define CHECK(condition) \
    ((condition) ? (void)0 : give_up(__FILE__, __LINE__, #condition, (long)errno))
/// The same for two numbers, which it prints.
#define CHECK_EQ(found, expected) \
    check_equal(__FILE__, __LINE__, #found, (long)(found), #expected, (long)(expected))

_Noreturn void give_up(const char* file, int line, const char* what, long error);
void check_equal(const char* file, int line, const char* found_text, long found,
                 const char* expected_text, long expected);

/// One side's objects. Zero is a good beginning for all of it.
struct side {
    int index;    ///< 0 or 1.
    int channel;  ///< To the other side.
    struct ibv_context* context;
    struct ibv_pd* pd;
    struct ibv_comp_channel* events;
    struct ibv_cq* cq;
    struct ibv_srq* srq;
    struct ibv_port_attr port;
    struct ibv_device_attr device;
};

/// What one side tells the other about a queue pair and a buffer.
struct address {
    uint64_t buffer;
    uint32_t rkey;
    uint32_t qp;
    uint32_t lid;
};

/// How a queue pair is made and connected. Zero means the default named here.
struct qp_options {
    enum ibv_qp_type type;  ///< RC.
    uint32_t depth;         ///< 64.
    uint32_t sges;          ///< 4.
    uint32_t inline_bytes;  ///< 0.
    bool unsignaled;        ///< Only what asks for a completion has one.
    uint8_t retries;        ///< 7. Use kNone for 0.
    uint8_t rnr_retries;    ///< 7, for ever. Use kNone for 0.
    uint8_t timeout;        ///< 14, 67 ms.
    enum ibv_mtu mtu;       ///< 4096.
    int access;             ///< All of it. Use kLocalOnly for none.
};
enum { kNone = 255, kLocalOnly = -1 };
enum {
    kAllAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                 IBV_ACCESS_REMOTE_ATOMIC
};

/// Runs body(side) in two processes, on the two hosts; 0 if both return. Ends them after `seconds`.
int run_sides(const char* host0, const char* host1, unsigned seconds, void (*body)(struct side*));

/// Opens the first device and makes a PD and a CQ of this size, with a channel for its events.
void open_side(struct side* side, int cqe);
struct ibv_qp* make_qp(struct side* side, const struct qp_options* options);
/// Steps of a queue pair's life. Each ends the process if refused.
void to_init(struct side* side, struct ibv_qp* qp, const struct qp_options* options);
void to_rtr(struct side* side, struct ibv_qp* qp, const struct qp_options* options,
            const struct address* peer);
void to_rts(struct ibv_qp* qp, const struct qp_options* options);
void to_error(struct ibv_qp* qp);
enum ibv_qp_state state_of(struct ibv_qp* qp);

/// Sends `mine` and gets the other side's.
void exchange(struct side* side, const void* mine, void* theirs, size_t bytes);
/// Both sides are here.
void meet(struct side* side);
/// Makes and connects a queue pair to the other side's. `mr` may be null.
struct ibv_qp* connect_sides(struct side* side, const struct qp_options* options, struct ibv_mr* mr,
                             struct address* peer);
/// Makes two queue pairs of this process and connects them to each other.
void connect_loop(struct side* side, const struct qp_options* options, struct ibv_qp* qps[2]);

/// Memory on pages of its own, registered.
struct ibv_mr* make_memory(struct side* side, size_t bytes, int access);
struct ibv_sge sge_of(const struct ibv_mr* mr, size_t at, size_t bytes);

/// Posts one request, signaled, of one buffer; for one-sided ones to `remote`.
int post(struct ibv_qp* qp, enum ibv_wr_opcode opcode, uint64_t wr_id, struct ibv_sge sge,
         uint64_t remote, uint32_t rkey);
int post_receive(struct ibv_qp* qp, uint64_t wr_id, struct ibv_sge sge);
/// Waits for one completion, by polling, for at most 20 s.
struct ibv_wc await_completion(struct ibv_cq* cq);
/// The same, and it is a success.
struct ibv_wc await_success(struct ibv_cq* cq);

/// Fills with, and looks for, bytes that depend on a seed and on the place.
void fill(void* memory, size_t bytes, uint64_t seed);
bool filled(const void* memory, size_t bytes, uint64_t seed);

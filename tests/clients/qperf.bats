#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154 # helper.bash sets code, port and rolled.
# qperf's tests of verbs, without the connection manager.

load helper

setup_file() {
    need qperf qperf
    fabric_up "$WEIR_EXAMPLES_DIR/pair.yaml"
}

teardown_file() {
    fabric_down
}

setup() {
    free_port
    start server h0 qperf -lp "$port"
    await_listener server "$port"
}

teardown() {
    stop_all
}

# measured UNIT TEST...: qperf prints a line with a number for each.
measured() {
    local unit=$1 test output
    shift
    for test in "$@"; do
        output=$(on h1 timeout 40 qperf -lp "$port" -cm 0 -t 1 127.0.0.1 "$test" 2>&1) ||
            { fail "$test:" "$output"; return 1; }
        grep -qE "$unit *= *[0-9.]+" <<<"$output" || { fail "$test prints:" "$output"; return 1; }
    done
}

@test "latency over RC" {
    measured latency rc_lat rc_rdma_write_lat rc_rdma_read_lat rc_rdma_write_poll_lat
}

@test "bandwidth over RC" {
    measured bw rc_bw rc_bi_bw rc_rdma_read_bw rc_rdma_write_bw
}

@test "atomics" {
    measured msg_rate rc_compare_swap_mr rc_fetch_add_mr
}

@test "UC" {
    measured latency uc_lat
    measured bw uc_bw
}

@test "UD" {
    measured latency ud_lat
    measured bw ud_bw
}

@test "several in one go" {
    run on h1 timeout 60 qperf -lp "$port" -cm 0 -t 1 127.0.0.1 rc_lat rc_bw ud_lat
    [ "$status" -eq 0 ]
    [ "$(grep -cE '= *[0-9.]+' <<<"$output")" -ge 3 ]
}

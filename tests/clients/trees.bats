#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Many pairs at once over larger fabrics.

load helper

setup_file() {
    need perftest ib_write_bw ib_send_bw ib_read_bw ib_send_lat
    need ibverbs-utils ibv_rc_pingpong
}

teardown() {
    stop_all
    fabric_down
}

@test "eight pairs over a fat tree of sixteen hosts, each across the spines" {
    local pair programs=("ib_write_bw -n 500" "ib_send_bw -n 500" "ib_read_bw -n 500"
        "ibv_rc_pingpong -c -n 1000") words
    fabric_up "$WEIR_EXAMPLES_DIR/fat-tree-16.yaml"
    for ((pair = 0; pair < 8; ++pair)); do
        read -ra words <<<"${programs[$((pair % ${#programs[@]}))]}"
        start_pair "pair$pair" "h$pair" "h$((pair + 8))" "${words[@]}"
    done
    for ((pair = 0; pair < 8; ++pair)); do
        finish_pair "pair$pair" 60
    done
    drained
}

@test "all to one" {
    local pair
    fabric_up "$WEIR_EXAMPLES_DIR/fat-tree-16.yaml"
    for ((pair = 1; pair < 8; ++pair)); do
        start_pair "pair$pair" h0 "h$((pair * 2))" ib_send_bw -n 300
    done
    for ((pair = 1; pair < 8; ++pair)); do
        finish_pair "pair$pair" 60
    done
    drained
}

@test "sixteen pairs over thirty-two hosts" {
    local pair
    fabric_up "$BATS_TEST_DIRNAME/fabrics/thirty-two-hosts.yaml"
    for ((pair = 0; pair < 16; ++pair)); do
        start_pair "pair$pair" "h$pair" "h$((31 - pair))" ibv_rc_pingpong -c -n 500
    done
    for ((pair = 0; pair < 16; ++pair)); do
        finish_pair "pair$pair" 90
    done
    drained
}

@test "hosts with four rails have four devices, and each carries traffic" {
    local rail
    fabric_up "$WEIR_EXAMPLES_DIR/rail-32.yaml"
    [ "$(on h0 ibv_devices | grep -c weir)" = 4 ]
    for rail in 0 1 2 3; do
        start_pair "rail$rail" h0 h5 ib_write_bw -d "weir$rail" -n 300
    done
    for rail in 0 1 2 3; do
        finish_pair "rail$rail" 60
    done
    drained
}

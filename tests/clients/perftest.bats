#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# perftest: every test over every transport that it has, and the options that change how queues are
# used. What is measured is not judged, only that it ends well on both sides and reports a result.

load helper

setup_file() {
    need perftest ib_send_bw ib_send_lat ib_write_bw ib_write_lat ib_read_bw ib_read_lat \
        ib_atomic_bw ib_atomic_lat
    fabric_up "$WEIR_EXAMPLES_DIR/pair.yaml"
}

teardown_file() {
    fabric_down
}

teardown() {
    stop_all
}

# measure SIZE PROGRAM...: a pair, and the client's row of results for this size.
measure() {
    local size=$1
    shift
    pair "$@"
    data_row pair-client "$size"
}

@test "bandwidth over RC: send, write, read, atomics" {
    local program
    for program in ib_send_bw ib_write_bw ib_read_bw; do
        measure 65536 "$program" -n 500
        measure 1 "$program" -n 500 -s 1
    done
    measure 8 ib_atomic_bw -n 500 -A FETCH_AND_ADD
    measure 8 ib_atomic_bw -n 500 -A CMP_AND_SWAP
}

@test "latency over RC: send, write, read, atomics" {
    local program
    for program in ib_send_lat ib_write_lat ib_read_lat; do
        measure 2 "$program" -n 200
        measure 65537 "$program" -n 200 -s 65537
    done
    measure 8 ib_atomic_lat -n 1000 -A FETCH_AND_ADD
    measure 8 ib_atomic_lat -n 1000 -A CMP_AND_SWAP
}

@test "sleeping on completion events" {
    measure 65536 ib_send_bw -e -n 500
    measure 2 ib_send_lat -e -n 500
    measure 65536 ib_send_bw -e -b -n 500
}

@test "a shared receive queue, and a short one" {
    measure 65536 ib_send_bw -r 64 --use-srq -n 500
    measure 65536 ib_send_bw -r 64 --use-srq -q 8 -n 500
    measure 65536 ib_send_bw -r 8 -n 500
}

@test "eight queue pairs" {
    measure 65536 ib_send_bw -q 8 -n 200
    measure 65536 ib_write_bw -q 8 -n 200
    measure 65536 ib_read_bw -q 8 -n 200
    measure 8 ib_atomic_bw -q 8 -n 200
}

@test "both directions at once" {
    measure 65536 ib_send_bw -b -n 500
    measure 65536 ib_write_bw -b -n 500
    measure 65536 ib_read_bw -b -n 500
    measure 65536 ib_send_bw -b -q 4 -n 200
}

@test "all sizes up to 8 MiB" {
    local program
    for program in ib_send_bw ib_write_bw ib_read_bw; do
        measure 8388608 "$program" -a -n 5
        data_row pair-client 2
        data_row pair-client 4096
    done
    measure 8388608 ib_write_lat -s 8388608 -n 5
    measure 8388608 ib_read_lat -s 8388608 -n 5
}

@test "inline data" {
    measure 64 ib_send_bw -I 64 -s 64 -n 500
    measure 64 ib_write_bw -I 64 -s 64 -n 500
    measure 2 ib_write_lat -I 0 -n 100
    measure 128 ib_send_lat -I 128 -s 128 -n 500
}

@test "lists of work requests" {
    measure 8 ib_write_bw -s 8 -l 16 -n 1600
    measure 8 ib_send_bw -s 8 -l 16 -n 1600
    measure 8 ib_send_bw -s 8 -l 16 --recv_post_list=16 -n 1600
    measure 8 ib_read_bw -s 8 -l 16 -n 1600
}

@test "one completion in many, and one for each" {
    measure 8 ib_write_bw -s 8 -Q 1 -n 1000
    measure 8 ib_write_bw -s 8 -Q 100 -n 1000
    measure 8 ib_send_bw -s 8 -Q 1 -t 1 -r 1 -n 200
}

@test "for a second instead of a number" {
    measure 65536 ib_write_bw -D 1 -f 0
    measure 65536 ib_send_bw -D 1 -f 0
    measure 65536 ib_read_bw -D 1 -f 0
}

@test "small MTU, service level, with GIDs" {
    measure 65536 ib_write_bw -m 256 -n 200
    measure 65536 ib_send_bw -m 512 -S 1 -n 200
    measure 65536 ib_read_bw -m 1024 -x 0 -n 200
}

@test "a memory region for each queue pair, results as JSON" {
    measure 65536 ib_write_bw --mr_per_qp -q 4 -n 200
    pair ib_write_bw -n 200 --out_json --out_json_file="$BATS_TEST_TMPDIR/report.json"
    [ -s "$BATS_TEST_TMPDIR/report.json" ]
}

@test "the server sends" {
    measure 65536 ib_send_bw --reversed -n 200
    measure 65536 ib_write_bw --reversed -n 200
}

@test "the fabric is left as it was" {
    drained
}

#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# perftest over UC and UD. Neither repeats what is lost, and these programs count what arrives: they
# end only on a fabric that loses nothing while its links are up.

load helper

setup_file() {
    need perftest ib_send_bw ib_send_lat ib_write_bw ib_write_lat
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
    start_pair pair h0 h1 "$@"
    finish_pair pair 20 || { fail "failed: $*"; return 1; }
    data_row pair-client "$size"
}

@test "UC: send, write, latency" {
    measure 65536 ib_write_bw -c UC -n 500
    measure 2 ib_send_lat -c UC -n 500
    measure 2 ib_write_lat -c UC -n 500
    measure 65536 ib_write_bw -q 8 -c UC -n 200
    measure 65536 ib_send_bw -c UC -n 500
}

@test "UC: more sent than fits on the way, with a short receive queue" {
    measure 8 ib_send_bw -c UC -n 5000 -s 8
    measure 1048576 ib_send_bw -c UC -n 50 -s 1048576
    measure 4096 ib_send_bw -c UC -q 8 -n 500 -s 4096
}

@test "UD: latency" {
    measure 2 ib_send_lat -c UD -n 500
    measure 2 ib_send_lat -c UD -e -n 500
}

@test "UD: send, large and small" {
    measure 4096 ib_send_bw -c UD -n 500 -s 4096
    measure 64 ib_send_bw -c UD -n 5000 -s 64
}

@test "UD: with events, with GIDs, eight queue pairs" {
    measure 2048 ib_send_bw -c UD -e -n 500 -s 2048
    measure 1024 ib_send_bw -c UD -x 0 -s 1024 -n 500
    measure 1024 ib_send_bw -c UD -q 8 -s 1024 -n 500
}

@test "UD: both directions at once" {
    measure 2048 ib_send_bw -b -c UD -n 500 -s 2048
}

@test "UD: for a second" {
    measure 2048 ib_send_bw -c UD -s 2048 -D 1 -f 0
}

@test "the fabric is left as it was" {
    drained
}

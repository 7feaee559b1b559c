#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154 # helper.bash sets code, port and rolled.
# Programs that stand still: SIGSTOP takes one off the processor between any two instructions. What
# it holds up is its own traffic, and of that only what needs it.

load helper

setup_file() {
    need perftest ib_write_bw ib_send_bw ib_read_bw ib_atomic_bw
    need ibverbs-utils ibv_rc_pingpong
    fabric_up "$BATS_TEST_DIRNAME/fabrics/four-hosts.yaml"
}

teardown_file() {
    fabric_down
}

teardown() {
    stop_all
}

# halt NAME, go NAME
halt() {
    kill -STOP "$(pid_of "$1")" 2>/dev/null || true
}
go() {
    kill -CONT "$(pid_of "$1")" 2>/dev/null || true
}

@test "a short stop of either side, at any moment, is survived by all" {
    local round side words
    local programs=("ibv_rc_pingpong -c -n 5000" "ib_send_bw -n 2000" "ib_write_bw -n 2000"
        "ib_read_bw -n 2000" "ib_send_bw -e -n 2000")
    seed "${WEIR_SEED:-5}"
    for ((round = 0; round < ${WEIR_STOP_ROUNDS:-10}; ++round)); do
        roll 0 1
        side=server
        [ "$rolled" = 0 ] || side=client
        roll 0 400
        read -ra words <<<"${programs[$((round % ${#programs[@]}))]}"
        echo "# round $round: ${words[*]}, stop of the $side after $rolled ms"
        start_pair stopped h0 h1 "${words[@]}"
        start_pair other h2 h3 ibv_rc_pingpong -c -n 5000
        sleep "$(printf '0.%03d' "$rolled")"
        halt "stopped-$side"
        sleep 0.2
        go "stopped-$side"
        finish_pair other 30
        finish_pair stopped 30
    done
    drained
}

@test "one-sided requests do not need their target: it may stand still for seconds" {
    local program
    for program in ib_write_bw ib_read_bw ib_atomic_bw; do
        # Without -D: the client counts, and only at the end does it wait for the server's word.
        start_pair still h0 h1 "$program" -n 20000
        sleep 0.5
        halt still-server
        sleep 3
        go still-server
        finish_pair still 30
    done
    drained
}

@test "a receiver that never reads holds up nobody else, not even on its own host" {
    start_pair deaf h0 h1 ib_send_bw -D 30 -s 65536
    sleep 1
    halt deaf-server
    # Through the same switch; to the same host; from the same host.
    start_pair other h2 h3 ibv_rc_pingpong -c -n 3000
    start_pair same h0 h2 ib_send_bw -n 1000
    start_pair from h3 h0 ib_write_bw -n 1000
    start_pair small h0 h1 ibv_rc_pingpong -c -n 1000
    finish_pair other 30
    finish_pair same 30
    finish_pair from 30
    finish_pair small 30
    running deaf-server || fail "the stopped server ended"
    stop_all
    drained
}

@test "several that never read" {
    local number
    for number in 1 2 3; do
        start_pair "deaf$number" h0 "h$number" ib_send_bw -D 30 -s 4096
    done
    start_pair datagrams h0 h2 ib_send_bw -c UD -D 30 -s 2048
    sleep 1
    for number in 1 2 3; do
        halt "deaf$number-server"
    done
    halt datagrams-server
    start_pair other h0 h1 ib_send_bw -n 1000
    finish_pair other 30
    stop_all
    drained
}

@test "a sender that stands still in the middle of it" {
    start_pair mute h0 h1 ib_write_bw -D 30 -s 65536
    sleep 1
    halt mute-client
    start_pair other h0 h1 ib_write_bw -n 1000
    finish_pair other 30
    start_pair same h2 h1 ibv_rc_pingpong -c -n 1000
    finish_pair same 30
    stop_all
    drained
}

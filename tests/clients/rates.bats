#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154 # helper.bash sets code and port.
# Links whose rate is enforced: no program gets more out of them, all work over them, and the rate
# changes while they do.

load helper

setup_file() {
    need perftest ib_write_bw ib_send_bw ib_read_bw ib_send_lat
    need ibverbs-utils ibv_rc_pingpong ibv_ud_pingpong
    fabric_up "$BATS_TEST_DIRNAME/fabrics/two-gigabits.yaml"
}

teardown_file() {
    fabric_down
}

teardown() {
    stop_all
}

# average NAME SIZE: MiB/s on average, from perftest's line for this size, rounded down.
average() {
    awk -v size="$2" '$1 == size { print int($4) }' "$(log_of "$1")"
}

# within LOW HIGH NAME SIZE: what the client measured lies between.
within() {
    local found
    found=$(average "$3" "$4")
    echo "# $found MiB/s"
    [ "$found" -ge "$1" ] && [ "$found" -le "$2" ] ||
        { show_logs; fail "$found MiB/s, not $1 to $2"; }
}

# rate WHAT: of both links.
rate() {
    timeout 20 "$WEIR" link rate --name "$WEIR_FABRIC" h0:1 "$1" 3>&-
    timeout 20 "$WEIR" link rate --name "$WEIR_FABRIC" h1:1 "$1" 3>&-
}

@test "no transport gets more than the rate, and the counters say what went" {
    # 2 Gbps are 238 MiB/s, headers included. The floor only tells that it is not something else.
    local before after program
    before=$(link_counter h1:1-s0:2 forward_bytes)
    pair ib_write_bw -s 65536 -n 1000
    within 1 250 pair-client 65536
    after=$(link_counter h1:1-s0:2 forward_bytes)
    [ $((after - before)) -ge $((65536 * 1000)) ]
    [ $((after - before)) -le $((65536 * 1000 * 105 / 100)) ]
    [ "$(link_counter h1:1-s0:2 forward_waits)" -gt 0 ]
    for program in ib_send_bw ib_read_bw; do
        pair "$program" -s 65536 -n 500
        within 1 250 pair-client 65536
    done
    pair ib_send_bw -s 65536 -n 500 -e
    within 1 250 pair-client 65536
    drained
}

@test "datagrams, small packets and small MTUs" {
    pair ib_write_bw -s 64 -n 2000
    pair ib_write_bw -s 65536 -m 256 -n 50
    pair ibv_ud_pingpong -n 200
    pair ibv_rc_pingpong -c -n 500
    drained
}

@test "two lanes at once, and one of high priority beside them" {
    start_pair bulk h0 h1 ib_write_bw -S 0 -D 3 -s 65536
    start_pair more h0 h1 ib_write_bw -S 2 -D 3 -s 65536
    start_pair first h0 h1 ib_send_lat -S 1 -n 500
    finish_pair first 60
    finish_pair bulk 60
    finish_pair more 60
    within 1 250 bulk-client 65536
    within 1 250 more-client 65536
    drained
}

@test "the rate changes while traffic flows, to and fro" {
    start_pair flow h0 h1 ib_write_bw -D 4 -s 65536
    sleep 0.5
    rate 500Mbps
    sleep 0.5
    rate unlimited
    sleep 0.5
    rate 1Gbps
    finish_pair flow 60
    [ "$(link_counter h0:1-s0:1 rate)" = '"1Gbps"' ]
    rate 200Mbps
    pair ib_write_bw -s 65536 -n 200
    within 1 25 pair-client 65536
    rate unlimited
    pair ib_write_bw -s 65536 -n 1000
    rate 2Gbps
    drained
}

@test "what waits for a link when its sender dies or stops holds up nobody" {
    local round
    rate 50Mbps
    for round in 1 2 3; do
        start_pair "gone$round" h1 h0 ib_write_bw -D 20 -s 65536
        sleep 0.3
        kill -KILL "$(pid_of "gone$round-client")" 2>/dev/null || true
        kill -KILL "$(pid_of "gone$round-server")" 2>/dev/null || true
    done
    start_pair still h1 h0 ib_write_bw -D 20 -s 65536
    sleep 0.5
    kill -STOP "$(pid_of still-client)"
    pair ibv_rc_pingpong -c -n 100
    stop_all
    rate 2Gbps
    drained
}

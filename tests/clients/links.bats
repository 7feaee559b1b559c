#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154 # helper.bash sets code, port and rolled.
# Cables that are pulled while traffic runs over them, with no other path to take.

load helper

setup_file() {
    need perftest ib_write_bw ib_send_bw ib_read_bw
    need ibverbs-utils ibv_rc_pingpong
    fabric_up "$WEIR_EXAMPLES_DIR/three-switches.yaml"
}

teardown_file() {
    fabric_down
}

teardown() {
    timeout 20 "$WEIR" link up --name "$WEIR_FABRIC" s0:2 3>&- || true
    stop_all
}

cable=s0:2-s1:1
pull() {
    timeout 20 "$WEIR" link down --name "$WEIR_FABRIC" "$cable" 3>&-
}
plug() {
    timeout 20 "$WEIR" link up --name "$WEIR_FABRIC" "$cable" 3>&-
}

discards() {
    timeout 20 "$WEIR" link list --name "$WEIR_FABRIC" -o json 3>&- |
        jq '[.links[] | .forward_discards + .backward_discards] | add'
}

@test "across three switches" {
    pair ibv_rc_pingpong -c -n 1000
    pair ibv_ud_pingpong -c -n 500
    pair ib_write_bw -n 500
    pair ib_read_lat -n 200
    [ "$(link_counter "$cable" forward_packets)" -gt 1000 ]
    [ "$(link_counter "$cable" backward_packets)" -gt 1000 ]
}

@test "a link that comes back within the retry budget costs nothing but time" {
    local program before
    before=$(link_counter "$cable" downed)
    for program in ib_send_bw ib_write_bw ib_read_bw; do
        # 4.096 us * 2^18 is a second, and seven tries.
        start_pair flap h0 h1 "$program" -u 18 -n 20000
        sleep 0.5
        pull
        sleep 0.5
        plug
        finish_pair flap 60
    done
    [ "$(link_counter "$cable" downed)" -ge $((before + 3)) ]
    drained
}

@test "a link that stays down is IBV_WC_RETRY_EXC_ERR" {
    local program
    for program in ib_send_bw ib_write_bw ib_read_bw; do
        start_pair cut h0 h1 "$program" -u 12 -D 30
        sleep 1
        pull
        finish cut-client 30
        [ "$code" != 0 ]
        logged cut-client 'Failed status 12'
        plug
        kill -KILL "$(pid_of cut-server)" 2>/dev/null || true
        finish cut-server 5
        drained
        pair ibv_rc_pingpong -c -n 100
    done
    # Counted where the packets stood when they could not go on.
    [ "$(discards)" -gt 0 ]
}

@test "what is sent over a link that is down from the start fails too" {
    pull
    start_pair cut h0 h1 ibv_rc_pingpong -n 10
    finish cut-client 30
    [ "$code" != 0 ]
    logged cut-client 'transport retry counter exceeded'
    plug
    pair ibv_rc_pingpong -c -n 100
}

@test "a port whose cable is out is down, and is told" {
    timeout 20 "$WEIR" link down --name "$WEIR_FABRIC" h0:1 3>&-
    run on h0 ibv_devinfo
    [[ "$output" == *PORT_DOWN* ]]
    timeout 20 "$WEIR" link up --name "$WEIR_FABRIC" h0:1 3>&-
    run on h0 ibv_devinfo
    [[ "$output" == *PORT_ACTIVE* ]]
}

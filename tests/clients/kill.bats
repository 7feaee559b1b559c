#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154 # helper.bash sets code, port and rolled.
# Programs that die at any moment. Their peer ends or can be ended, nothing of them stays behind, and
# nobody else notices. WEIR_KILL_ROUNDS says how often, WEIR_SEED how the dice fall.

load helper

setup_file() {
    need perftest ib_write_bw ib_send_lat ib_send_bw ib_read_bw ib_atomic_bw
    need ibverbs-utils ibv_rc_pingpong
    fabric_up "$BATS_TEST_DIRNAME/fabrics/four-hosts.yaml"
}

teardown_file() {
    fabric_down
}

teardown() {
    stop_all
}

# strike NAME: ends it as the kernel would, without a last word.
strike() {
    kill -KILL "$(pid_of "$1")" 2>/dev/null || true
}

# bury NAME SECONDS: it ends within that time, however; if not it is ended. Sets code.
bury() {
    local until=$((SECONDS + $2))
    while running "$1" && [ "$SECONDS" -lt "$until" ]; do
        sleep 0.05
    done
    strike "$1"
    code=0
    wait "$(pid_of "$1")" || code=$?
}

# kill_round NUMBER PROGRAM...: a pair of which one side or both are killed at some moment.
kill_round() {
    local number=$1 victim moment
    shift
    roll 0 2
    victim=$rolled
    # From before the first verbs call to after the last.
    roll 0 500
    moment=$rolled
    echo "# round $number: $* victim $victim after $moment ms"
    start_pair "round$number" h0 h1 "$@"
    sleep "$(printf '0.%03d' "$moment")"
    [ "$victim" = 1 ] || strike "round$number-server"
    [ "$victim" = 0 ] || strike "round$number-client"
    bury "round$number-client" 5
    bury "round$number-server" 2
}

# unharmed: the fabric is empty, and works.
unharmed() {
    drained
    pair ibv_rc_pingpong -c -n 100
}

# programs: the runs that the dice choose from.
programs=(
    "ib_write_bw -n 1000"
    "ib_send_lat -n 1000"
    "ib_send_bw -n 1000"
    "ib_read_bw -n 1000"
    "ib_atomic_bw -n 1000"
    "ib_send_bw -b -e -n 1000"
    "ib_write_bw -n 1000 -s 1 -q 8"
    "ib_send_bw -c UD -n 1000 -s 2048"
    "ibv_srq_pingpong -c -n 1000"
    "ibv_rc_pingpong -e -s 1048576 -n 200"
)

@test "either side or both are killed at any moment" {
    local round words
    seed "${WEIR_SEED:-7}"
    for ((round = 1; round <= ${WEIR_KILL_ROUNDS:-20}; ++round)); do
        roll 0 $((${#programs[@]} - 1))
        read -ra words <<<"${programs[$rolled]}"
        kill_round "$round" "${words[@]}"
        unharmed
        rm -f "$BATS_TEST_TMPDIR"/round*
    done
}

@test "a requester whose target died is told, and does not wait for ever" {
    local program
    for program in ib_write_bw ib_read_bw ib_send_bw ib_atomic_bw; do
        start_pair orphan h0 h1 "$program" -D 20
        sleep 1
        strike orphan-server
        finish orphan-client 30
        [ "$code" != 0 ] || fail "$program: the client ends well without its server"
        bury orphan-server 1
        unharmed
    done
}

@test "traffic between other hosts, and through the same host, goes on" {
    local round rounds=5
    seed "${WEIR_SEED:-11}"
    start_pair others h2 h3 ibv_rc_pingpong -c -n 30000
    start_pair same h1 h2 ibv_rc_pingpong -c -n 30000
    for ((round = 1; round <= rounds; ++round)); do
        kill_round "$round" ib_write_bw -n 1000
        kill_round "$round" ib_send_bw -n 1000
    done
    finish_pair others 60
    finish_pair same 60
    unharmed
}

@test "many at once" {
    local round number
    seed "${WEIR_SEED:-13}"
    for round in 1 2; do
        for number in 1 2 3 4; do
            start_pair "many$number" h0 h$((number % 3 + 1)) ib_write_bw -D 10 -s 4096
        done
        roll 0 400
        sleep "$(printf '0.%03d' "$rolled")"
        for number in 1 2 3 4; do
            strike "many$number-server"
            strike "many$number-client"
        done
        for number in 1 2 3 4; do
            bury "many$number-server" 1
            bury "many$number-client" 1
        done
        unharmed
    done
}

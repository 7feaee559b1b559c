#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The connection manager: rdmacm-utils, perftest -R, qperf -cm, libfabric, across a fabric; what
# happens to connections whose other end is not there, or dies; and programs of ours that check
# every event and every refusal.

load helper

setup_file() {
    need rdmacm-utils rping ucmatose udaddy rdma_server rdma_client rdma_xserver rdma_xclient cmtime
    need perftest ib_send_bw ib_write_lat
    need qperf qperf
    need libfabric-bin fi_pingpong
    fabric_up "$WEIR_EXAMPLES_DIR/pair.yaml"
}

teardown_file() {
    fabric_down
}

teardown() {
    stop_all
}

# serve PROGRAM...: on h0, in the background, and given a moment: a request waits half a second for
# a listener, so this is not what the test depends on.
serve() {
    start server h0 "$@"
    sleep 0.3
}

# both SERVER CLIENT: each a command line; both end well.
both() {
    # shellcheck disable=SC2086 # Words are what is wanted.
    serve $1
    # shellcheck disable=SC2086
    start client h1 $2
    succeed client 60 && succeed server 30
}

@test "rping: IPv4, IPv6, addresses of the fabric and of the machine" {
    both "rping -s -C 10 -v" "rping -c -a 127.0.0.1 -C 10 -v"
    logged client "ping data: rdma-ping-9:"
    logged server "server ping data: rdma-ping-9:"
    both "rping -s -C 10 -v" "rping -c -a 100.64.0.1 -C 10 -v"
    logged client "ping data: rdma-ping-9:"
    both "rping -s -a :: -C 10 -v" "rping -c -a ::1 -C 10 -v"
    logged client "ping data: rdma-ping-9:"
    both "rping -s -a fd57:6569:72::1 -C 10 -v" "rping -c -a fd57:6569:72::1 -C 10 -v"
    logged client "ping data: rdma-ping-9:"
    both "rping -s -S 60000 -C 20 -V" "rping -c -S 60000 -a 127.0.0.1 -C 20 -V"
    both "rping -s -q -C 3 -v" "rping -c -q -a 127.0.0.1 -C 3 -v"
}

@test "rping: a server for one client after another" {
    local i
    serve rping -s -P
    # Not at once: it keeps only the last of several requests.
    for i in 1 2 3 4; do
        start client h1 rping -c -a 127.0.0.1 -C 5
        succeed client 60
    done
    running server
}

@test "the kinds of host that a host can be called" {
    both "ucmatose" "ucmatose -s h0"
    both "rdma_server" "rdma_client -s h0"
    both "rdma_server" "rdma_client -s 127.0.0.1"
    both "rdma_server -s 100.64.0.1" "rdma_client -s 100.64.0.1"
}

@test "many connections at once" {
    both "ucmatose -c 100" "ucmatose -c 100 -s 100.64.0.1"
    logged client "return status 0"
    logged server "return status 0"
    both "ucmatose -c 10 -C 20 -S 4000" "ucmatose -c 10 -C 20 -S 4000 -s 100.64.0.1"
    serve cmtime
    start client h1 cmtime -s 100.64.0.1 -c 500
    succeed client 60
    logged client "^destroy "
}

@test "datagrams: udaddy" {
    both "udaddy" "udaddy -s 100.64.0.1"
    logged client "return status 0"
    logged server "return status 0"
    both "udaddy -c 20" "udaddy -c 20 -s 100.64.0.1"
}

@test "endpoints: rdma_xserver and rdma_xclient over RC" {
    serve rdma_xserver -c r
    start client h1 rdma_xclient -s 127.0.0.1 -c r
    succeed client 30
    logged client "end 0"
}

@test "perftest: connections by the connection manager" {
    pair_by_cm ib_send_bw -n 200
    pair_by_cm ib_write_bw -n 200 -q 4
    pair_by_cm ib_write_lat -n 200
    pair_by_cm ib_read_lat -n 200
    pair_by_cm ib_send_lat -n 200 -c UD
}

# pair_by_cm PROGRAM...
pair_by_cm() {
    free_port
    start server h0 "$@" -R -p "$port"
    sleep 0.3
    start client h1 "$@" -R -p "$port" 127.0.0.1
    succeed client 60 && succeed server 30
    logged client "rdma_cm QPs.*: ON"
}

@test "qperf: connections by the connection manager" {
    free_port
    start server h0 qperf -lp "$port"
    await_listener server "$port"
    start client h1 qperf -cm 1 -lp "$port" -t 1 127.0.0.1 rc_lat rc_bw rc_rdma_write_bw ud_lat
    succeed client 60
    logged client "rc_rdma_write_bw:"
}

@test "libfabric: messages over the verbs provider" {
    start server h0 fi_pingpong -p verbs -e msg -I 50 -B 47600
    # Its first words go over TCP, and nobody waits for a listener there.
    local tries
    for ((tries = 0; tries < 200; ++tries)); do
        grep -qi ":$(printf %04x 47600) .* 0A " /proc/net/tcp /proc/net/tcp6 && break
        sleep 0.1
    done
    start client h1 fi_pingpong -p verbs -e msg -I 50 -P 47600 127.0.0.1
    succeed client 60 && succeed server 30
}

@test "nobody listens: refused" {
    start client h1 rping -c -a 100.64.0.1 -C 1 -d
    finish client 30
    [ "$code" != 0 ]
    logged client "RDMA_CM_EVENT_REJECTED"
}

@test "an address that nobody has" {
    start client h1 rping -c -a 192.0.2.1 -C 1 -d
    finish client 30
    [ "$code" != 0 ]
    logged client "RDMA_CM_EVENT_ADDR_ERROR"
}

@test "a port that somebody has" {
    serve rping -s -P
    start second h0 rping -s -P
    finish second 20
    [ "$code" != 0 ]
    logged second "Address already in use"
    # Each host has its own.
    start other h1 rping -s -C 1
    sleep 0.3
    running other
}

@test "a pulled cable: unreachable; put back, it works again" {
    serve rping -s -P
    timeout 20 "$WEIR" link down h0:1-s0:1 --name "$WEIR_FABRIC" 3>&-
    start client h1 rping -c -a 100.64.0.1 -C 1 -d
    finish client 60 || { timeout 20 "$WEIR" link up h0:1-s0:1 --name "$WEIR_FABRIC" 3>&-; return 1; }
    timeout 20 "$WEIR" link up h0:1-s0:1 --name "$WEIR_FABRIC" 3>&-
    [ "$code" != 0 ]
    logged client "RDMA_CM_EVENT_UNREACHABLE"
    start again h1 rping -c -a 100.64.0.1 -C 3
    succeed again 30
}

@test "the server is killed: its client hears of it" {
    serve rping -s -C 100000000
    start client h1 rping -c -a 127.0.0.1 -C 100000000 -d
    sleep 1
    running client
    kill -KILL "$(pid_of server)"
    finish client 30
    logged client "RDMA_CM_EVENT_DISCONNECTED"
}

@test "the client is killed: its server hears of it, and serves the next" {
    serve rping -s -P
    start client h1 rping -c -a 127.0.0.1 -C 100000000
    sleep 1
    kill -KILL "$(pid_of client)"
    start next h1 rping -c -a 127.0.0.1 -C 3
    succeed next 30
    logged server "server DISCONNECT EVENT"
}

@test "misuse is refused with the errno value of the manual" {
    on h0 "$WEIR_PROGRAM_DIR/cm_misuse"
}

@test "what later releases add: names behind an identifier, events of the program's own" {
    on h0 "$WEIR_PROGRAM_DIR/cm_newer"
}

@test "events come in order and carry what they should" {
    on h0 "$WEIR_PROGRAM_DIR/cm_events"
}

@test "thousands of connections, one after the other, leave nothing behind" {
    on h0 "$WEIR_PROGRAM_DIR/cm_churn" "${WEIR_CONNECTIONS:-5000}"
}

@test "the fabric is left as it was" {
    drained
}

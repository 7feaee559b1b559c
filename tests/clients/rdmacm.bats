#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The connection manager: rdmacm-utils, perftest -R, qperf -cm, libfabric, across a fabric; what
# happens to connections whose other end is not there, or dies; and programs of ours that check
# every event and every refusal.

load helper

setup_file() {
    need rdmacm-utils rping ucmatose udaddy rdma_server rdma_client rdma_xserver rdma_xclient cmtime mckey
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

@test "InfiniBand addresses: GIDs and port spaces" {
    local gid
    gid=$(on h0 ibv_devinfo -v | sed -n 's/.*GID\[ *0\]:[[:space:]]*\([0-9a-f:]*\).*/\1/p')
    [ -n "$gid" ]
    both "ucmatose -f gid -P ib -b $gid" "ucmatose -f gid -P ib -s $gid"
    logged client "return status 0"
    logged server "return status 0"
    both "ucmatose -f gid -c 10 -C 5" "ucmatose -f gid -c 10 -C 5 -s $gid"
    both "ucmatose -f gid -P ib" "ucmatose -f gid -P ib -s ::1"
    both "ucmatose -P ib" "ucmatose -P ib -s 100.64.0.1"
    both "udaddy -f gid" "udaddy -f gid -s $gid"
    logged client "return status 0"
    both "udaddy -P ipoib" "udaddy -P ipoib -s 100.64.0.1"
    both "rdma_server" "rdma_client -s 100.64.0.1"
    on h0 "$WEIR_PROGRAM_DIR/cm_infiniband"
}

# member HOST ARGUMENTS...: mckey as a member of a group, joined.
member() {
    local host=$1 until=$((SECONDS + 30))
    shift
    start "$host" "$host" stdbuf -oL mckey "$@"
    while ! grep -q "joined dgid" "$(log_of "$host")"; do
        [ "$SECONDS" -le "$until" ] || { show_logs; fail "$host does not join"; return 1; }
        sleep 0.05
    done
}

# multicast "ARGUMENTS" SENDER MEMBER...: what mckey sends to a group from the sender's host, each of
# its members gets. The sender pauses for 3 s by itself.
multicast() {
    local words sender=$2 host
    read -ra words <<<"$1"
    shift 2
    for host in "$@"; do
        member "$host" "${words[@]}"
    done
    start sender "$sender" mckey "${words[@]}" -s
    succeed sender 60
    for host in "$@"; do
        succeed "$host" 30
        logged "$host" "return status 0"
    done
}

@test "groups: mckey, by IPv4, IPv6, an MGID, and as IP over InfiniBand" {
    multicast "-m 239.1.2.3 -b 127.0.0.1 -C 20" h1 h0
    logged sender "joined dgid: ff12:4001:ffff::f01:203"
    multicast "-m ff0e::77 -b ::1" h1 h0
    logged sender "joined dgid: ff12:6001:ffff::77"
    multicast "-M ff12:a01b:ffff::5 -b 127.0.0.1 -c 3" h1 h0
    logged sender "joined dgid: ff12:a01b:ffff::5"
    multicast "-m 239.1.2.3 -p 0x2" h1 h0
    logged sender "joined dgid: ff12:401b:ffff::f01:203"
}

@test "groups: a sender that is no member" {
    member h0 -m 239.1.2.4 -b 127.0.0.1
    start sender h1 mckey -m 239.1.2.4 -b 127.0.0.1 -s -o
    succeed sender 60 && succeed h0 30
}

@test "groups: members on many hosts of a tree" {
    fabric_up "$WEIR_EXAMPLES_DIR/fat-tree-16.yaml" tree
    multicast "-m 239.9.9.9 -C 50" h0 h1 h4 h9 h15
    drained
}

@test "groups: what joining tells, and what ends it" {
    on h0 "$WEIR_PROGRAM_DIR/cm_multicast"
    timeout 20 "$WEIR" link down h0:1-s0:1 --name "$WEIR_FABRIC" 3>&-
    code=0
    on h0 "$WEIR_PROGRAM_DIR/cm_multicast" down || code=$?
    timeout 20 "$WEIR" link up h0:1-s0:1 --name "$WEIR_FABRIC" 3>&-
    [ "$code" = 0 ]
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

@test "threads that wait are cancelled" {
    on h0 "$WEIR_PROGRAM_DIR/cancel"
}

@test "thousands of connections, one after the other, leave nothing behind" {
    on h0 "$WEIR_PROGRAM_DIR/cm_churn" "${WEIR_CONNECTIONS:-5000}"
}

@test "the fabric is left as it was" {
    drained
}

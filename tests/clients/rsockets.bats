#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154 # helper.bash sets code.
# rsockets: Debian's rstream, rcopy, riostream and udpong between two hosts; a server that dies; a
# program of ours that checks what sockets promise; TCP programs that know nothing of all this, by
# librspreload.so.

load helper

setup_file() {
    need rdmacm-utils rstream rcopy riostream udpong
    need iperf3 iperf3
    need curl curl
    fabric_up "$WEIR_EXAMPLES_DIR/pair.yaml"
}

teardown_file() {
    fabric_down
}

teardown() {
    stop_all
}

# both SERVER CLIENT: each a command line; both end well. A request waits half a second for a
# listener, so the moment that the server is given is not what the test depends on.
both() {
    # shellcheck disable=SC2086 # Words are what is wanted.
    start server h0 $1
    sleep 0.3
    # shellcheck disable=SC2086
    start client h1 $2
    succeed client 120 && succeed server 30
}

# streamed OPTIONS...: rstream with verification.
streamed() {
    both "rstream -T v $*" "rstream -s 100.64.0.1 -T v $*"
    logged client "custom +[0-9.]+[kmg]? +[0-9.]+k? +[0-9.]+k? "
}

@test "what sockets promise" {
    on h0 "$WEIR_PROGRAM_DIR/rsockets"
}

@test "rstream: blocking, non-blocking, by poll" {
    streamed -S 1000 -C 50 -I 50 -T b
    streamed -S 1000 -C 50 -I 50 -T n
    streamed -S 1000 -C 50 -I 50 -T a
}

@test "rstream: one byte, and far more than the buffers hold" {
    streamed -S 1 -C 100 -I 10
    streamed -S 5000000 -C 4 -I 2
    streamed -S 5000000 -C 4 -I 2 -T n
    streamed -S 3000000 -C 4 -I 2 -T a
}

@test "rstream: small buffers, no inline data" {
    streamed -S 100000 -C 10 -I 5 -B 4096 -i 0
    streamed -S 100000 -C 10 -I 5 -B 300 -T a
}

@test "rstream: addresses of the machine, of IPv6, and resolved by the connection manager" {
    both "rstream -S 500 -C 10 -I 10" "rstream -s 127.0.0.1 -S 500 -C 10 -I 10"
    both "rstream -b ::1 -f ipv6 -S 500 -C 10 -I 10" "rstream -s ::1 -f ipv6 -S 500 -C 10 -I 10"
    both "rstream -b fd57:6569:72::1 -f ipv6 -S 500 -C 10 -I 10" \
        "rstream -s fd57:6569:72::1 -f ipv6 -S 500 -C 10 -I 10"
    both "rstream -T r -S 500 -C 10 -I 10" "rstream -s 100.64.0.1 -T r -S 500 -C 10 -I 10"
}

@test "rcopy: a file arrives byte for byte" {
    local size
    for size in 1 65537 20000003; do
        head -c "$size" /dev/urandom >"$BATS_TEST_TMPDIR/source"
        start server h0 rcopy
        sleep 0.3
        start client h1 rcopy "$BATS_TEST_TMPDIR/source" "100.64.0.1:$BATS_TEST_TMPDIR/copy"
        succeed client 60
        until cmp "$BATS_TEST_TMPDIR/source" "$BATS_TEST_TMPDIR/copy"; do
            running server || fail "the server has ended"
            sleep 0.1
        done
        kill -KILL "$(pid_of server)"
        rm "$BATS_TEST_TMPDIR/copy"
    done
}

@test "riostream: straight into the peer's memory" {
    both "riostream -T v -S 1000 -C 50 -I 50" "riostream -s 100.64.0.1 -T v -S 1000 -C 50 -I 50"
    both "riostream -T a -S 1000000 -C 2 -I 20" "riostream -s 100.64.0.1 -T a -S 1000000 -C 2 -I 20"
    both "riostream -T n -S 5000 -C 5 -I 20 -B 4096" \
        "riostream -s 100.64.0.1 -T n -S 5000 -C 5 -I 20 -B 4096"
}

@test "udpong: datagrams there and back" {
    local mode
    for mode in b n a e; do
        start server h0 udpong -b 0.0.0.0 -T "$mode"
        sleep 0.3
        start client h1 udpong -s 100.64.0.1 -T "$mode" -S 1000 -C 500
        succeed client 60
        logged client "custom +1000 +"
        kill -KILL "$(pid_of server)"
    done
    start server h0 udpong -b ::1
    sleep 0.3
    start client h1 udpong -s ::1 -S 1000 -C 100
    succeed client 60
}

@test "nobody listens: refused" {
    start client h1 rcopy /etc/passwd 100.64.0.1:/dev/null
    finish client 30
    [ "$code" != 0 ]
    logged client "Connection refused"
}

@test "a port that somebody has" {
    start server h0 rstream
    sleep 0.3
    start second h0 rstream
    finish second 20
    [ "$code" != 0 ]
    logged second "Address already in use"
    # Each host has its own.
    start other h1 rstream
    sleep 0.3
    running other
}

@test "the server is killed while the client sends, receives, or waits: it ends with an error" {
    local mode
    for mode in b n a; do
        start server h0 rstream -T "$mode" -S 100000 -C 1000 -I 10000
        sleep 0.3
        start client h1 rstream -s 100.64.0.1 -T "$mode" -S 100000 -C 1000 -I 10000
        sleep 0.7
        running client
        kill -KILL "$(pid_of server)"
        finish client 30
        [ "$code" != 0 ]
    done
}

@test "the client is killed: its server hears of it" {
    start server h0 rstream -S 100000 -C 1000 -I 10000
    sleep 0.3
    start client h1 rstream -s 100.64.0.1 -S 100000 -C 1000 -I 10000
    sleep 0.7
    running server
    kill -KILL "$(pid_of client)"
    finish server 30
    [ "$code" != 0 ]
}

@test "a pulled cable: who sends is told in the end; put back, it works again" {
    start server h0 rstream -S 100000 -C 1000 -I 10000
    sleep 0.3
    start client h1 rstream -s 100.64.0.1 -S 100000 -C 1000 -I 10000
    sleep 0.5
    running client
    timeout 20 "$WEIR" link down h0:1-s0:1 --name "$WEIR_FABRIC" 3>&-
    finish client 60 || { timeout 20 "$WEIR" link up h0:1-s0:1 --name "$WEIR_FABRIC" 3>&-; return 1; }
    timeout 20 "$WEIR" link up h0:1-s0:1 --name "$WEIR_FABRIC" 3>&-
    [ "$code" != 0 ]
    finish server 60
    both "rstream -S 1000 -C 10 -I 10" "rstream -s 100.64.0.1 -S 1000 -C 10 -I 10"
}

# preloaded NAME HOST PROGRAM...: started with the library $preload.
preloaded() {
    local name=$1 host=$2
    shift 2
    start "$name" "$host" env LD_PRELOAD="$preload" "$@"
}

# measured PORT OPTIONS...: iperf3 from h1 to h0. The fabric's addresses are on no interface of the
# machine, so what arrives has come by rsockets.
measured() {
    local port=$1
    shift
    preloaded server h0 iperf3 -s -1 -p "$port" -B 100.64.0.1
    sleep 0.5
    preloaded client h1 iperf3 -c 100.64.0.1 -p "$port" "$@"
    succeed client 60 && succeed server 30
    logged client "bits/sec +receiver"
}

@test "librspreload.so: iperf3, which knows TCP alone" {
    preload=$WEIR_LIB_DIR/librspreload.so
    measured 5201 -n 50M
    measured 5202 -n 20M -P 3 -R
}

@test "Debian's librspreload.so works as well" {
    preload=$(dpkg -L librdmacm1 | grep 'librspreload.so$')
    measured 5203 -n 50M
}

@test "librspreload.so: Python's web server and curl, many files, at once" {
    local i
    preload=$WEIR_LIB_DIR/librspreload.so
    mkdir "$BATS_TEST_TMPDIR/www"
    for i in 1 2 3 4; do
        head -c $((i * 1234567)) /dev/urandom >"$BATS_TEST_TMPDIR/www/file$i"
    done
    preloaded server h0 "$PYTHON" -m http.server -b 100.64.0.1 -d "$BATS_TEST_TMPDIR/www" 8080
    for i in 1 2 3 4; do
        preloaded "client$i" h1 curl -s --fail --retry 20 --retry-connrefused --retry-delay 1 \
            -o "$BATS_TEST_TMPDIR/got$i" "http://100.64.0.1:8080/file$i"
    done
    for i in 1 2 3 4; do
        succeed "client$i" 60
        cmp "$BATS_TEST_TMPDIR/got$i" "$BATS_TEST_TMPDIR/www/file$i"
    done
}

@test "librspreload.so: copies of descriptors, and addresses that the fabric has not" {
    preload=$WEIR_LIB_DIR/librspreload.so
    preloaded program h0 "$PYTHON" -c '
import os, socket

def kind(sock):
    return os.readlink(f"/proc/self/fd/{sock.fileno()}").split(":")[0]

listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
assert kind(client) == kind(server) == kind(listener) == "anon_inode", "these are rsockets"
copy = client.dup()
client.close()
server.sendall(b"still there")
assert copy.recv(100) == b"still there"
copy.close()
assert server.recv(100) == b"", "the last copy ends it"

# To connect a datagram socket sends nothing.
other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
other.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
assert kind(other) == "anon_inode"
try:
    other.connect(("198.51.100.1", 9))
except OSError:
    pass  # the kernel may have no route
assert kind(other) == "socket", "the kernel has it now"
assert other.getsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST) == 1

left, right = socket.socketpair()
left.send(b"hello")
assert right.recv(5) == b"hello"
'
    succeed program 20
}

@test "the fabric is left as it was" {
    drained
}

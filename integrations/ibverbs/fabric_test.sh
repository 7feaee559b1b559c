#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# fabric_test.sh WEIR FOLDER FABRIC_FILE: brings up a fabric of two hosts, h0 and h1, and lets stock
# programs, unchanged, talk across it through the library in FOLDER. ibv_rc_pingpong -c checks the
# bytes that it gets. Programs that are not installed are left out.
set -eu
weir=$1 folder=$2 fabric_file=$3
name=ibverbs-test-$$
work=$(mktemp -d)
status=0
next_port=$((20000 + $$ % 20000))

"$weir" up "$fabric_file" --name "$name"
trap '"$weir" down --name "$name"; rm -rf "$work"' EXIT
export WEIR_FABRIC="$name"

# on HOST COMMAND...: runs a program as one of that host's.
on() {
    host=$1
    shift
    WEIR_HOST=$host LD_LIBRARY_PATH=$folder timeout 30 "$@"
}

# pair COMMAND...: server on h0, client on h1; both must succeed.
pair() {
    command -v "$1" >/dev/null || { echo "left out: $1"; return; }
    next_port=$((next_port + 1))
    on h0 "$@" -p "$next_port" >"$work/server" 2>&1 &
    server=$!
    client_code=1
    # The server says nothing when it listens, so the client asks until it is heard.
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        sleep 0.3
        client_code=0
        on h1 "$@" -p "$next_port" localhost >"$work/client" 2>&1 || client_code=$?
        grep -q -i -E "couldn't connect|unable to init|connection refused" "$work/client" || break
    done
    [ "$client_code" = 0 ] || kill "$server" 2>/dev/null || true
    server_code=0
    wait "$server" || server_code=$?
    if [ "$client_code" = 0 ] && [ "$server_code" = 0 ]; then
        echo "ok: $*"
        return
    fi
    echo "FAIL: $*: client exits $client_code, server $server_code"
    cat "$work/client" "$work/server"
    status=1
}

on h0 ibv_devinfo | grep -q 'PORT_ACTIVE' || { echo "FAIL: no active port"; status=1; }
pair ibv_rc_pingpong -g 0 -c -n 200
pair ibv_rc_pingpong -g 0 -e -n 200
pair ibv_uc_pingpong -g 0 -n 200
pair ibv_ud_pingpong -g 0 -n 200
pair ibv_srq_pingpong -g 0 -n 200
pair ib_write_lat -x 0 -n 100
pair ib_write_bw -x 0 -n 100
pair ib_read_bw -x 0 -n 100
pair ib_send_bw -x 0 -e -n 100
pair ib_atomic_bw -x 0 -n 100
exit $status

#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154 # helper.bash sets code, port and rolled.
# Debian's UCX over our verbs. It takes a device only if it finds its device files, which `weir run`
# shows it, so programs are started by that here.

load helper

setup_file() {
    need ucx-utils ucx_info ucx_perftest
    fabric_up "$WEIR_EXAMPLES_DIR/pair.yaml"
}

teardown_file() {
    fabric_down
}

teardown() {
    stop_all
}

# ucx_pair TRANSPORTS ARGUMENTS...: a server on h0 and a client on h1, over nothing but these.
ucx_pair() {
    export UCX_TLS=$1 UCX_NET_DEVICES=weir0:1 UCX_WARN_UNUSED_ENV_VARS=n
    shift
    free_port
    start ucx-server h0 "$WEIR" run --hosts h0 -- ucx_perftest -p "$port"
    await_listener ucx-server "$port" || return 1
    start ucx-client h1 "$WEIR" run --hosts h1 -- ucx_perftest 127.0.0.1 -p "$port" -f -w 50 "$@"
    finish_pair ucx 60 || { fail "failed: UCX_TLS=$UCX_TLS ucx_perftest $*"; return 1; }
    # The last line has the number of iterations first, and no error came before it.
    tail -n 1 "$(log_of ucx-client)" | grep -qE '^ +[0-9]+ +[0-9.]+' ||
        { show_logs; fail "no figures: ucx_perftest $*"; return 1; }
    ! grep -E 'ERROR|WARN' "$(log_of ucx-client)" "$(log_of ucx-server)" ||
        fail "complaints: UCX_TLS=$UCX_TLS ucx_perftest $*"
}

@test "ucx_info finds our transports" {
    run timeout 60 "$WEIR" run --hosts h0 -- ucx_info -d
    echo "$output"
    [ "$status" -eq 0 ]
    [[ "$output" == *"Transport: rc_verbs"*"Device: weir0:1"* ]]
    [[ "$output" == *"Transport: ud_verbs"*"Device: weir0:1"* ]]
    [[ "$output" == *"atomic_fadd: 64 bit"* ]]
    run timeout 60 "$WEIR" run --hosts h0 --no-device-files -- ucx_info -d
    [ "$status" -eq 0 ]
    [[ "$output" != *weir0* ]]
}

@test "tagged messages over RC, short and long" {
    ucx_pair rc,self -t tag_lat -s 8 -n 500
    ucx_pair rc,self -t tag_lat -s 65536 -n 500
    ucx_pair rc,self -t tag_bw -s 8 -n 300
    ucx_pair rc,self -t tag_bw -s 1048576 -n 50
    ucx_pair rc,self -t tag_sync_lat -s 100000 -n 50
}

@test "writes and reads over RC" {
    ucx_pair rc,self -t ucp_put_lat -s 8 -n 500
    ucx_pair rc,self -t ucp_put_bw -s 1048576 -n 50
    ucx_pair rc,self -t ucp_get -s 8 -n 500
    ucx_pair rc,self -t ucp_get -s 1048576 -n 50
}

@test "atomics over RC" {
    local name
    for name in ucp_add ucp_fadd ucp_swap ucp_cswap; do
        ucx_pair rc,self -t "$name" -s 8 -n 500
    done
    ucx_pair rc,self -t ucp_fadd -s 4 -n 500
}

@test "active messages and streams over RC" {
    ucx_pair rc,self -t ucp_am_lat -s 8 -n 500
    ucx_pair rc,self -t ucp_am_bw -s 100000 -n 50
    ucx_pair rc,self -t stream_bw -s 100000 -n 50
}

@test "all of it over datagrams" {
    ucx_pair ud_verbs,self -t tag_lat -s 8 -n 500
    ucx_pair ud_verbs,self -t tag_bw -s 100000 -n 50
    ucx_pair ud_verbs,self -t ucp_put_lat -s 8 -n 300
    ucx_pair ud_verbs,self -t ucp_get -s 10000 -n 500
    ucx_pair ud_verbs,self -t ucp_fadd -s 8 -n 500
    ucx_pair ud_verbs,self -t ucp_am_bw -s 8 -n 500
}

@test "the transports themselves" {
    local name
    for name in am_lat put_lat add_lat fadd cswap am_bw put_bw; do
        ucx_pair all -x rc_verbs -d weir0:1 -t "$name" -s 8 -n 300
    done
    ucx_pair all -x rc_verbs -d weir0:1 -D bcopy -t get -s 8 -n 300
    ucx_pair all -x rc_verbs -d weir0:1 -D zcopy -t put_bw -s 65536 -n 500
    ucx_pair all -x ud_verbs -d weir0:1 -t am_lat -s 8 -n 300
    ucx_pair all -x ud_verbs -d weir0:1 -t am_bw -s 8 -n 300
}

@test "sleeping instead of polling" {
    ucx_pair rc,self -t tag_lat -s 8 -n 500 -E sleep
}

@test "the fabric is left as it was" {
    drained
}

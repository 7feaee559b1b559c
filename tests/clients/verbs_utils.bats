#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# ibverbs-utils: what they print about the device, and every pingpong.

load helper

setup_file() {
    need ibverbs-utils ibv_devices ibv_devinfo ibv_rc_pingpong
    fabric_up "$WEIR_EXAMPLES_DIR/pair.yaml"
}

teardown_file() {
    fabric_down
}

teardown() {
    stop_all
}

# has PATTERN: a line of $output matches.
has() {
    grep -qE "$1" <<<"$output" || fail "no line matches \"$1\" in:" "$output"
}

@test "each host has its device, with its own GUID" {
    run on h0 ibv_devices
    [ "$status" -eq 0 ]
    local first
    first=$(awk '$1 == "weir0" { print $2 }' <<<"$output")
    [[ "$first" =~ ^[0-9a-f]{16}$ ]]
    run on h1 ibv_devices
    [[ "$(awk '$1 == "weir0" { print $2 }' <<<"$output")" =~ ^[0-9a-f]{16}$ ]]
    [[ "$output" != *"$first"* ]]
}

@test "ibv_devinfo -v describes an active port" {
    run on h0 ibv_devinfo -v
    [ "$status" -eq 0 ]
    has 'transport:.*InfiniBand \(0\)'
    has 'state:.*PORT_ACTIVE \(4\)'
    has 'phys_state:.*LINK_UP \(5\)'
    has 'max_mtu:.*4096 \(5\)'
    has 'active_mtu:.*(256|512|1024|2048|4096) '
    has 'port_lid:.*[1-9][0-9]*$'
    has 'sm_lid:.*[1-9][0-9]*$'
    has 'link_layer:.*InfiniBand'
    has 'node_guid:.*[0-9a-f]{4}:[0-9a-f]{4}:[0-9a-f]{4}:[0-9a-f]{4}'
    has 'GID\[ *0\]:.*fe80:0000:0000:0000:'
    has 'active_width:.*4X \(2\)'
    has 'active_speed:.*100.0 Gbps'
    has 'max_qp:.*[1-9][0-9]{3}'
    has 'max_sge:.*[1-9]'
    has 'atomic_cap:.*ATOMIC_(HCA|GLOB)'
    [[ "$output" != *unknown* && "$output" != *invalid* ]]
}

@test "hosts have different LIDs" {
    [ "$(on h0 ibv_devinfo | awk '/port_lid/ { print $2 }')" != \
      "$(on h1 ibv_devinfo | awk '/port_lid/ { print $2 }')" ]
}

@test "ibv_devinfo: -l, -d, -i and devices and ports that are not there" {
    run on h0 ibv_devinfo -l
    has 'weir0'
    run on h0 ibv_devinfo -d weir0 -i 1
    echo "$output"
    [ "$status" -eq 0 ]
    run on h0 ibv_devinfo -d mlx5_0
    [ "$status" -ne 0 ]
    run on h0 ibv_devinfo -d weir0 -i 2
    [ "$status" -ne 0 ]
}

@test "rc_pingpong: polling, checked, all sizes around the MTU and the segment" {
    local size
    for size in 1 63 64 65 1024 4095 4096 4097 65535 65536 65537 1048577; do
        pair ibv_rc_pingpong -c -n 20 -s "$size"
    done
}

@test "rc_pingpong: every MTU, few and many receives" {
    local mtu
    for mtu in 256 512 1024 2048 4096; do
        pair ibv_rc_pingpong -c -n 50 -m "$mtu" -s 10000
    done
    pair ibv_rc_pingpong -c -n 100 -r 2
    pair ibv_rc_pingpong -c -n 2000 -r 1000
    pair ibv_rc_pingpong -g 0 -c -n 100
}

@test "rc_pingpong: events" {
    pair ibv_rc_pingpong -e -c -n 1000
    pair ibv_rc_pingpong -e -n 200 -s 262144
}

@test "uc_pingpong: polling, checked, events, sizes, MTUs" {
    pair ibv_uc_pingpong -c -n 1000
    pair ibv_uc_pingpong -e -n 1000
    pair ibv_uc_pingpong -c -n 50 -s 65537 -m 4096 -r 10
    pair ibv_uc_pingpong -c -n 50 -s 1 -m 256
}

@test "ud_pingpong: polling, checked, events, sizes" {
    pair ibv_ud_pingpong -c -n 1000
    pair ibv_ud_pingpong -e -n 1000
    pair ibv_ud_pingpong -c -n 200 -s 1 -r 10
    pair ibv_ud_pingpong -c -n 200 -s 2048
}

@test "srq_pingpong: polling, checked, events, many QPs" {
    pair ibv_srq_pingpong -c -n 1000
    pair ibv_srq_pingpong -e -n 1000
    pair ibv_srq_pingpong -c -q 1 -n 200
    pair ibv_srq_pingpong -c -q 64 -n 2000 -s 8192
}

@test "xsrq_pingpong: polling, events, many clients" {
    pair ibv_xsrq_pingpong -n 1000
    pair ibv_xsrq_pingpong -e -n 1000
    pair ibv_xsrq_pingpong -n 200 -s 8192
    pair ibv_xsrq_pingpong -n 200 -s 200000
}

@test "rc_pingpong: requests built piece by piece, stamps, on-demand memory, device memory" {
    pair ibv_rc_pingpong -N -c -n 1000
    pair ibv_rc_pingpong -t -c -n 1000
    # Not -t with -e: it takes an event whose completion it has read already for an error.
    pair ibv_rc_pingpong -N -e -n 200
    pair ibv_rc_pingpong -o -c -n 1000
    pair ibv_rc_pingpong -j -n 1000 -s 4096
    pair ibv_rc_pingpong -j -N -n 1000 -s 4096
}

@test "the fabric is left as it was" {
    drained
}

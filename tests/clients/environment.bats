#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2030,SC2031 # helper.bash sets code, port and rolled.
# The machine around the programs: no space for shared memory, several fabrics, other users.

load helper

setup_file() {
    need ibverbs-utils ibv_devices ibv_devinfo ibv_rc_pingpong
    need perftest ib_write_bw ib_send_bw
    need util-linux setpriv unshare
    need bubblewrap bwrap
    need hwloc-nox lstopo-no-graphics
}

teardown() {
    stop_all
    fabric_down
    rm -rf "${library:-}"
}

@test "up twice is one fabric, and it works" {
    fabric_up "$WEIR_EXAMPLES_DIR/pair.yaml"
    run timeout 60 "$WEIR" up "$WEIR_EXAMPLES_DIR/pair.yaml" --name "$WEIR_FABRIC" 3>&-
    [ "$status" -eq 0 ]
    [[ "$output" == *"already up"* ]]
    [ "$("$WEIR" status -o json 3>&- | jq '.fabrics | length')" = 1 ]
    pair ibv_rc_pingpong -c -n 100
}

@test "two fabrics side by side, with traffic in both" {
    fabric_up "$WEIR_EXAMPLES_DIR/pair.yaml" left
    fabric_up "$WEIR_EXAMPLES_DIR/three-switches.yaml" right
    WEIR_FABRIC=left
    start_pair in-left h0 h1 ibv_rc_pingpong -c -n 3000
    WEIR_FABRIC=right
    start_pair in-right h0 h1 ibv_rc_pingpong -c -n 3000
    finish_pair in-left 60
    finish_pair in-right 60
    drained
    WEIR_FABRIC=left
    drained
    # What happens to one is nothing to the other.
    start_pair in-left h0 h1 ib_write_bw -D 3
    timeout 60 "$WEIR" down --name right 3>&-
    finish_pair in-left 60
    WEIR_FABRIC=right
    run on h0 ibv_devinfo
    [ "$status" -ne 0 ]
}

@test "a fabric that is taken down under its programs ends them, and comes up again" {
    fabric_up "$WEIR_EXAMPLES_DIR/pair.yaml"
    start_pair under h0 h1 ib_write_bw -D 60
    sleep 1
    timeout 60 "$WEIR" down --name "$WEIR_FABRIC" 3>&-
    finish under-client 30
    [ "$code" != 0 ]
    kill -KILL "$(pid_of under-server)" 2>/dev/null || true
    fabric_up "$WEIR_EXAMPLES_DIR/pair.yaml" "$WEIR_FABRIC"
    pair ibv_rc_pingpong -c -n 100
}

@test "another user sees no device and cannot open the fabric" {
    [ "$(id -u)" = 0 ] || skip "only root can become another user"
    fabric_up "$WEIR_EXAMPLES_DIR/pair.yaml"
    local nobody
    nobody=$(id -u nobody)
    library=$(mktemp -d /tmp/weir-clients-library.XXXXXX)
    # Where the other user can read it, lest it be the file system that refuses.
    cp -L "$WEIR_LIB_DIR"/* "$library"
    chmod -R a+rX "$library"
    run env WEIR_HOST=h0 LD_LIBRARY_PATH="$library" \
        timeout 30 setpriv --reuid "$nobody" --regid "$nobody" --clear-groups ibv_devices
    echo "$output"
    [[ "$output" != *weir0* ]]
    # Even where the fabric's folder is open to all.
    chmod 0755 "$CLIENTS_RUNTIME"
    chmod -R a+rwX "$CLIENTS_RUNTIME"
    run env WEIR_HOST=h0 LD_LIBRARY_PATH="$library" \
        timeout 30 setpriv --reuid "$nobody" --regid "$nobody" --clear-groups ibv_devinfo
    chmod -R go-rwx "$CLIENTS_RUNTIME"
    [ "$status" -ne 0 ]
    [[ "$output" != *PORT_ACTIVE* ]]
    pair ibv_rc_pingpong -c -n 100
}

@test "a full /dev/shm is nothing to us" {
    [ "$(id -u)" = 0 ] || skip "only root can mount"
    unshare -m true || skip "no mount namespaces here"
    cat >"$BATS_TEST_TMPDIR/full.sh" <<'SCRIPT'
set -eu
mount -t tmpfs -o size=1m none /dev/shm
dd if=/dev/zero of=/dev/shm/filler bs=4096 2>/dev/null || true
"$WEIR" up "$WEIR_EXAMPLES_DIR/pair.yaml" --name full
trap '"$WEIR" down --name full' EXIT
export WEIR_FABRIC=full LD_LIBRARY_PATH=$WEIR_LIB_DIR
WEIR_HOST=h0 timeout 30 ibv_rc_pingpong -c -n 100 -p "$1" &
server=$!
sleep 2
WEIR_HOST=h1 timeout 30 ibv_rc_pingpong -c -n 100 -p "$1" 127.0.0.1
wait "$server"
SCRIPT
    CLIENTS_RUNTIME=$(mktemp -d /tmp/weir-clients.XXXXXX)
    free_port
    WEIR=$WEIR WEIR_RUNTIME_DIR=$CLIENTS_RUNTIME timeout 120 \
        unshare -m bash "$BATS_TEST_TMPDIR/full.sh" "$port" 3>&-
}

@test "no fabric, no such host, no folder: no devices and no noise" {
    fabric_up "$WEIR_EXAMPLES_DIR/pair.yaml"
    run on h99 ibv_devices
    [ "$status" -eq 0 ]
    [[ "$output" != *weir0* ]]
    WEIR_FABRIC=no-such run on h0 ibv_devices
    [ "$status" -eq 0 ]
    [[ "$output" != *weir0* ]]
    WEIR_RUNTIME_DIR=/nonexistent run on h0 ibv_devices
    [ "$status" -eq 0 ]
    [[ "$output" != *weir0* ]]
}

@test "device files: seen under weir run alone, gone with the fabric" {
    fabric_up "$WEIR_EXAMPLES_DIR/pair.yaml"
    run timeout 30 "$WEIR" run --hosts h1 -- cat /sys/class/infiniband/weir0/ports/1/{state,lid,link_layer}
    [ "$status" -eq 0 ]
    [ "$output" = $'4: ACTIVE\n0x2\nInfiniBand' ]
    "$WEIR" link down h1:1-s0:2 3>&-
    run timeout 30 "$WEIR" run --hosts h1 -- cat /sys/class/infiniband/weir0/ports/1/state
    [ "$output" = "1: DOWN" ]
    run timeout 30 "$WEIR" run --hosts h0 -- ls -l /dev/infiniband/uverbs0
    [[ "$output" == c* ]]
    run timeout 30 "$WEIR" run --hosts h0 -- realpath /sys/class/infiniband/weir0/device
    [ "$output" = /sys/devices/pci5745:00/5745:00:00.0 ]
    run timeout 30 "$WEIR" run --hosts h0 -- lstopo-no-graphics
    [[ "$output" == *'OpenFabrics "weir0"'* ]]
    [ -d "$CLIENTS_RUNTIME/$WEIR_FABRIC/sys/h0" ]
    timeout 60 "$WEIR" down --name "$WEIR_FABRIC" 3>&-
    [ ! -e "$CLIENTS_RUNTIME/$WEIR_FABRIC" ]
}

@test "in a container without rights, with the fabric's folder bound" {
    fabric_up "$WEIR_EXAMPLES_DIR/pair.yaml"
    local box=(bwrap --unshare-user --unshare-ipc --unshare-uts --ro-bind / / --dev /dev
        --tmpfs /tmp --proc /proc --bind "$CLIENTS_RUNTIME" "$CLIENTS_RUNTIME")
    # Where the build lies under /tmp, which the container has its own of.
    box+=(--ro-bind "$WEIR_BIN_DIR/.." "$WEIR_BIN_DIR/..")
    "${box[@]}" true || skip "no user namespaces here"
    free_port
    start boxed-server h0 "${box[@]}" "$WEIR" run --hosts h0 -- ibv_rc_pingpong -c -n 200 -p "$port"
    await_listener boxed-server "$port"
    start boxed-client h1 "${box[@]}" "$WEIR" run --hosts h1 -- ibv_rc_pingpong -c -n 200 -p "$port" 127.0.0.1
    finish_pair boxed 60
    run timeout 60 "${box[@]}" "$WEIR" run --hosts h0 -- ucx_info -d
    [[ "$output" == *rc_verbs*weir0:1* ]]
    drained
}

@test "32 processes of 8 threads each" {
    local number
    fabric_up "$WEIR_EXAMPLES_DIR/pair.yaml"
    for ((number = 0; number < 16; ++number)); do
        start "crowd$number" h0 "$WEIR_PROGRAM_DIR/threads" h0 h1 8 50
    done
    for ((number = 0; number < 16; ++number)); do
        succeed "crowd$number" 130
    done
    drained
}

@test "many programs on one host" {
    local number
    fabric_up "$WEIR_EXAMPLES_DIR/pair.yaml"
    for ((number = 0; number < 16; ++number)); do
        start_pair "many$number" h0 h1 ibv_rc_pingpong -e -c -n 200
    done
    for ((number = 0; number < 16; ++number)); do
        finish_pair "many$number" 60
    done
    drained
}

#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154 # helper.bash sets code, port and rolled.
# Debian's pyverbs, which goes through another part of the interface than C programs do.

load helper

setup_file() {
    "$PYTHON" -c 'import pyverbs.device' ||
        fail "pyverbs is not there: install python3-pyverbs"
    fabric_up "$WEIR_EXAMPLES_DIR/pair.yaml"
}

teardown_file() {
    fabric_down
}

teardown() {
    stop_all
}

@test "devices, ports, GIDs, memory" {
    run on h0 "$PYTHON" "$BATS_TEST_DIRNAME/pyverbs_traffic.py" describe
    echo "$output"
    [ "$status" -eq 0 ]
    [[ "$output" == *weir0* ]]
}

@test "RC between two contexts of one process" {
    run on h0 "$PYTHON" "$BATS_TEST_DIRNAME/pyverbs_traffic.py" loop
    echo "$output"
    [ "$status" -eq 0 ]
}

@test "RC between two processes on two hosts" {
    free_port
    start server h0 "$PYTHON" "$BATS_TEST_DIRNAME/pyverbs_traffic.py" server "$port"
    await_listener server "$port"
    start client h1 "$PYTHON" "$BATS_TEST_DIRNAME/pyverbs_traffic.py" client "$port"
    succeed client 30
    succeed server 10
}

@test "wrong calls raise PyverbsRDMAError" {
    run on h0 "$PYTHON" "$BATS_TEST_DIRNAME/pyverbs_traffic.py" wrong
    echo "$output"
    [ "$status" -eq 0 ]
}

@test "children of multiprocessing, and one that becomes another program" {
    run on h0 "$PYTHON" "$BATS_TEST_DIRNAME/pyverbs_traffic.py" spawn
    echo "$output"
    [ "$status" -eq 0 ]
    run on h0 "$PYTHON" "$BATS_TEST_DIRNAME/pyverbs_traffic.py" fork_exec
    echo "$output"
    [ "$status" -eq 0 ]
}

@test "the fabric is left as it was" {
    drained
}

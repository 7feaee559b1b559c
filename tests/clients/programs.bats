#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The programs of programs/: what stock clients never do. Each says in its first lines what it is
# about, and stops with file and line at the first thing that is not so.

load helper

setup_file() {
    fabric_up "$WEIR_EXAMPLES_DIR/pair.yaml"
}

teardown_file() {
    fabric_down
}

teardown() {
    stop_all
}

# program NAME ARGUMENTS...: runs one, on h0 and h1 as it likes; it succeeds, and leaves nothing.
program() {
    [ -x "$WEIR_PROGRAM_DIR/$1" ] || fail "$1 is not built: install libibverbs-dev"
    start program h0 "$WEIR_PROGRAM_DIR/$1" "${@:2}"
    succeed program 130
    drained
}

@test "the wrong request: its completion status, at the right side" {
    program error_completions h0 h1
}

@test "the same within one host" {
    program error_completions h0 h0
}

@test "the wrong call: EINVAL, EBUSY, ENOMEM, and nothing changes" {
    program misuse
}

@test "data of all sizes and pieces, atomics, the order of bytes" {
    program integrity h0 h1
}

@test "data within one host" {
    program integrity h1 h1
}

@test "a thousand queue pairs between two processes" {
    program many_queue_pairs h0 h1 1000
}

@test "a thousand queue pairs, again and again" {
    local round
    for ((round = 0; round < ${WEIR_QUEUE_PAIR_ROUNDS:-5}; ++round)); do
        program many_queue_pairs h0 h1 600
    done
}

@test "asynchronous events, solicited events, shared receive queue limit" {
    program events h0 h1
}

@test "a forked child lives, and its parent's traffic goes on" {
    program forking h0 h1 inherit
}

@test "a forked child opens a device of its own" {
    program forking h0 h1 own
}

@test "a fork after the device was closed" {
    program fork_after_close
}

@test "threads with queue pairs of their own, while memory is registered" {
    program threads h0 h1
}

@test "targets that sleep, spin, or wait in the kernel" {
    program targets h0 h1
}

@test "every kind of memory" {
    program memory_kinds h0 h1 "$BATS_TEST_TMPDIR"
}

@test "with hardly any memory that may be locked" {
    start program h0 bash -c "ulimit -l 64 && exec '$WEIR_PROGRAM_DIR/memory_kinds' h0 h1 '$BATS_TEST_TMPDIR'"
    succeed program 60
    drained
}

@test "both sides end without destroying anything" {
    local round
    for round in 1 2 3 4 5; do
        program abandon h0 h1
    done
}

#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154 # helper.bash sets code, port and rolled.
# Debian's Open MPI and MPICH over our verbs, each rank on a host of its own. The program knows what
# every byte must be.

load helper

setup_file() {
    need openmpi-bin mpirun.openmpi
    need mpich mpirun.mpich
    fabric_up "$WEIR_EXAMPLES_DIR/fat-tree-16.yaml"
}

teardown_file() {
    fabric_down
}

teardown() {
    stop_all
}

# mpirun_open COUNT OPTIONS... -- ARGUMENTS...: those of weir run. As root, on fewer cores than ranks.
mpirun_open() {
    local count=$1 options=()
    shift
    while [ "$1" != -- ]; do
        options+=("$1")
        shift
    done
    shift
    timeout 100 mpirun.openmpi --allow-run-as-root --oversubscribe -n "$count" "${options[@]}" \
        "$WEIR" run "$@" 3>&-
}

# sent RANK: bytes that its host has sent so far.
sent() {
    link_counter "h$1:1-leaf$(($1 / 4)):$(($1 % 4 + 1))" forward_bytes
}

note_sent() {
    local rank
    before=()
    for ((rank = 0; rank < 8; ++rank)); do
        before+=("$(sent "$rank")")
    done
}

# all_right COUNT: every rank says so, each on its host, and sent as much as it had to.
all_right() {
    local rank
    echo "$output"
    [ "$status" -eq 0 ]
    for ((rank = 0; rank < $1; ++rank)); do
        [[ "$output" == *"rank $rank of $1 on h$rank: all bytes right"* ]] ||
            fail "rank $rank of $1 is not on h$rank"
        [ "$(sent "$rank")" -gt $((before[rank] + 5000000)) ] ||
            fail "rank $rank sent nothing over its cable"
    done
}

@test "Open MPI over UCX, 2 ranks" {
    note_sent
    run mpirun_open 2 --mca pml ucx -x UCX_TLS=rc,self -x UCX_NET_DEVICES=weir0:1 -- -- \
        "$WEIR_PROGRAM_DIR/mpi_check_openmpi" 2
    all_right 2
}

@test "Open MPI over UCX, 8 ranks" {
    note_sent
    run mpirun_open 8 --mca pml ucx -x UCX_TLS=rc,self -x UCX_NET_DEVICES=weir0:1 -- -- \
        "$WEIR_PROGRAM_DIR/mpi_check_openmpi"
    all_right 8
}

@test "Open MPI over UCX's datagrams" {
    note_sent
    run mpirun_open 2 --mca pml ucx -x UCX_TLS=ud,self -x UCX_NET_DEVICES=weir0:1 -- -- \
        "$WEIR_PROGRAM_DIR/mpi_check_openmpi"
    all_right 2
}

@test "MPICH, 2 and 8 ranks" {
    export UCX_TLS=rc,self UCX_NET_DEVICES=weir0:1
    note_sent
    run timeout 100 mpirun.mpich -n 2 "$WEIR" run -- "$WEIR_PROGRAM_DIR/mpi_check_mpich" 3>&-
    all_right 2
    note_sent
    run timeout 100 mpirun.mpich -n 8 "$WEIR" run -- "$WEIR_PROGRAM_DIR/mpi_check_mpich" 3>&-
    all_right 8
}

@test "Open MPI's own verbs transport, on a link that it knows the speed of" {
    sed 's/400Gbps/100Gbps/' "$WEIR_EXAMPLES_DIR/pair.yaml" >"$BATS_TEST_TMPDIR/edr.yaml"
    "$WEIR" up "$BATS_TEST_TMPDIR/edr.yaml" --name edr 3>&-
    run mpirun_open 2 --mca pml ob1 --mca btl openib,self --mca btl_openib_allow_ib 1 \
        --mca btl_openib_warn_no_device_params_found 0 -- --name edr -- \
        "$WEIR_PROGRAM_DIR/mpi_check_openmpi"
    echo "$output"
    [ "$status" -eq 0 ]
    [[ "$output" == *"rank 1 of 2 on h1: all bytes right"* ]]
    timeout 60 "$WEIR" down --name edr 3>&-
}

@test "the fabric is left as it was" {
    drained
}

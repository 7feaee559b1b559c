#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0

bats_require_minimum_version 1.5.0
load fixture

@test "one rank takes our place: its output and its exit code are its own" {
    "$WEIR" up "$PAIR"
    run "$WEIR" run -- /bin/echo hello
    expect_code 0
    expect_text "hello"
    [[ "$output" != *"[h0]"* ]]
    run "$WEIR" run -- sh -c 'exit 3'
    expect_code 3
    run "$WEIR" run --hosts h1 -- sh -c 'echo $WEIR_FABRIC $WEIR_HOST $WEIR_RANK'
    expect_text "default h1 0"
    run bash -c "echo piped | '$WEIR' run -- cat"
    expect_text "piped"
    run "$WEIR" run /bin/echo -n no dashes needed
    expect_code 0
    expect_text "no dashes needed"
}

@test "several ranks are labelled line by line" {
    "$WEIR" up "$PAIR"
    run "$WEIR" run --hosts h0,h1 -- sh -c 'echo rank $WEIR_RANK; printf unfinished'
    expect_code 0
    expect_text "[h0] rank 0"
    expect_text "[h1] rank 1"
    expect_text "[h1] unfinished"
    run "$WEIR" run -n 3 -- sh -c 'echo rank $WEIR_RANK on $WEIR_HOST'
    expect_text "[h0 2] rank 2 on h0"
    run "$WEIR" run -n 2 --quiet-labels -- echo plain
    [[ "$output" != *"[h0]"* ]]
}

@test "the exit code is that of who failed" {
    "$WEIR" up "$PAIR"
    run "$WEIR" run -n 2 -- sh -c 'exit $((WEIR_RANK * 7))'
    expect_code 7
    run "$WEIR" run -n 2 -- sh -c 'kill -TERM $$'
    expect_code 143
    run -127 "$WEIR" run -n 2 -- "$WEIR_RUNTIME_DIR/no-such-program"
    expect_code 127
    run "$WEIR" run -- "$PAIR"
    expect_code 126
}

@test "a launcher's rank picks the host" {
    "$WEIR" up "$PAIR"
    local place='echo $WEIR_HOST $WEIR_RANK'
    run env OMPI_COMM_WORLD_RANK=1 "$WEIR" run -- sh -c "$place"
    expect_text "h1 1"
    run env PMI_RANK=2 "$WEIR" run -- sh -c "$place"
    expect_text "h0 2"
    # What says more wins.
    run env PMI_RANK=1 "$WEIR" run --hosts h0 -- sh -c "$place"
    expect_text "h0 0"
    run env MY_RANK=1 PMI_RANK=0 "$WEIR" run --rank-env MY_RANK --hosts h1,h0 -- sh -c "$place"
    expect_text "h0 1"
    run "$WEIR" run --rank-env MY_RANK -- true
    expect_code 2
    expect_text "MY_RANK is not set"
    run env MY_RANK=x "$WEIR" run --rank-env MY_RANK -- true
    expect_code 2
    run env PMI_RANK=1 "$WEIR" run --rank-env PMI_RANK -n 2 -- true
    expect_code 2
}

@test "device files: by a preloaded library before the user's own" {
    "$WEIR" up "$PAIR"
    [ -e "$(dirname "$WEIR")/../lib/weir/libweir-sys.so" ] || skip "the library is not built"
    run env LD_PRELOAD=libm.so.6 "$WEIR" run -- sh -c 'echo $LD_PRELOAD $WEIR_SYSFS'
    [[ "$output" == *libweir-sys.so:libm.so.6\ /*/sys/h0 ]]
    # Once, however deep.
    run "$WEIR" run -- "$WEIR" run --hosts h1 -- sh -c 'echo $LD_PRELOAD; cat $WEIR_SYSFS/dev/infiniband/uverbs0'
    [[ "$output" != *libweir-sys*libweir-sys* ]]
    run "$WEIR" run --no-device-files -- sh -c 'echo "<$LD_PRELOAD$WEIR_SYSFS>"'
    expect_text "<>"
}

@test "unknown hosts and no program are usage errors" {
    "$WEIR" up "$TREE"
    run "$WEIR" run --hosts h0,h99 -- true
    expect_code 2
    expect_text "did you mean"
    run "$WEIR" run
    expect_code 2
    run "$WEIR" run --pair -n 2 -- true
    expect_code 2
}

@test "a pair is a server and then a client" {
    "$WEIR" up "$PAIR"
    cat >"$WEIR_RUNTIME_DIR/talk.py" <<'PY'
import socket, sys, time
path = sys.argv[1]
if len(sys.argv) == 2:
    time.sleep(0.3)
    server = socket.create_server(("127.0.0.1", 0))
    open(path, "w").write(str(server.getsockname()[1]))
    print("served", server.accept()[0].recv(10).decode())
else:
    client = socket.create_connection((sys.argv[2], int(open(path).read())))
    client.send(b"greeting")
PY
    run timeout 30 "$WEIR" run --pair -- python3 "$WEIR_RUNTIME_DIR/talk.py" "$WEIR_RUNTIME_DIR/port"
    expect_code 0
    expect_text "[h0] served greeting"
}

@test "when one of a pair fails the other is ended" {
    "$WEIR" up "$PAIR"
    run timeout 30 "$WEIR" run --pair -- sh -c '[ $WEIR_RANK = 1 ] && exit 4; exec sleep 60'
    expect_code 4
}

@test "a signal goes on to the ranks" {
    "$WEIR" up "$PAIR"
    "$WEIR" run -n 2 -- sh -c 'trap "echo got it; exit 9" TERM; echo ready; while :; do sleep 0.1; done' \
        >"$WEIR_RUNTIME_DIR/out" 2>&1 3>&- &
    local runner=$!
    for _ in $(seq 100); do
        [ "$(grep -c ready "$WEIR_RUNTIME_DIR/out")" = 2 ] && break
        sleep 0.05
    done
    kill -TERM "$runner"
    local code=0
    wait "$runner" || code=$?
    [ "$code" = 9 ]
    [ "$(grep -c 'got it' "$WEIR_RUNTIME_DIR/out")" = 2 ]
}

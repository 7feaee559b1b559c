#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0

load fixture

@test "up, status and down" {
    run "$WEIR" up "$PAIR"
    expect_code 0
    expect_text "default is up: 2 hosts, 1 switch, 2 links in"
    run "$WEIR" status
    expect_code 0
    expect_text "default  up"
    run "$WEIR" status -o json
    expect_text '"schema": "weir.status/v1"'
    expect_text '"hosts": 2'
    run "$WEIR" down
    expect_code 0
    expect_text "default is down"
    run "$WEIR" down
    expect_code 0
    expect_text "default is not up"
    run ls "$WEIR_RUNTIME_DIR"
    [[ "$output" != *default* ]]
}

@test "up twice is once, from a different file is refused" {
    "$WEIR" up "$PAIR"
    run "$WEIR" up "$PAIR"
    expect_code 0
    expect_text "already up"
    run "$WEIR" up "$TREE"
    expect_code 5
    expect_text "weir down --name default"
}

@test "two at the same moment: one fabric, two successes" {
    "$WEIR" up "$PAIR" >"$WEIR_RUNTIME_DIR/a" &
    local first=$!
    run "$WEIR" up "$PAIR"
    expect_code 0
    wait "$first"
    run bash -c "echo '$output' | cat - '$WEIR_RUNTIME_DIR/a'"
    expect_text "already up"
    expect_text "default is up:"
}

@test "several fabrics side by side under their names" {
    "$WEIR" up "$PAIR" --name one
    WEIR_NAME=two "$WEIR" up "$TREE"
    run "$WEIR" status
    expect_text "one"
    expect_text "two"
    run "$WEIR" host list --name two
    expect_text "h15"
    run "$WEIR" down --name one
    expect_text "one is down"
    # The only one left needs no name.
    run "$WEIR" switch list
    expect_code 0
    expect_text "leaf0"
    run "$WEIR" down --all
    expect_text "two is down"
}

@test "names that are no file names are refused" {
    for name in ../x .hidden "a b" -x; do
        run "$WEIR" up "$PAIR" "--name=$name"
        expect_code 2
    done
}

@test "a killed daemon is noticed, and the next up cleans up behind it" {
    "$WEIR" up "$PAIR"
    kill -9 "$(daemon_of default)"
    run "$WEIR" link list
    expect_code 3
    expect_text "has ended"
    run "$WEIR" status
    expect_text "ended"
    run "$WEIR" up "$PAIR"
    expect_code 0
    expect_text "is up"
    run "$WEIR" link list
    expect_code 0
}

@test "down after a kill, and a stale socket by itself, are cleaned away" {
    "$WEIR" up "$PAIR"
    kill -9 "$(daemon_of default)"
    run "$WEIR" down
    expect_code 0
    expect_text "not up"
    [ ! -e "$WEIR_RUNTIME_DIR/default" ]
    mkdir -m 700 "$WEIR_RUNTIME_DIR/default"
    echo garbage >"$WEIR_RUNTIME_DIR/default/attach.sock"
    run "$WEIR" up "$PAIR"
    expect_code 0
}

@test "a daemon that is stopped is killed by down" {
    "$WEIR" up "$PAIR"
    kill -STOP "$(daemon_of default)"
    run timeout 30 "$WEIR" down
    expect_code 0
    expect_text "default is down"
}

@test "foreground stays until it is told to end" {
    "$WEIR" up "$PAIR" --foreground >"$WEIR_RUNTIME_DIR/out" 2>&1 3>&- &
    local fabric=$!
    for _ in $(seq 100); do
        "$WEIR" link list >/dev/null 2>&1 && break
        sleep 0.05
    done
    kill -0 "$fabric"
    kill -TERM "$fabric"
    wait "$fabric"
    run cat "$WEIR_RUNTIME_DIR/out"
    expect_text "is down"
}

@test "links get a rate and lose it" {
    "$WEIR" up "$PAIR"
    run "$WEIR" link list
    expect_text "unlimited"
    run "$WEIR" link rate s0:1 2.5Gbps
    expect_code 0
    expect_text "h0:1-s0:1 has rate 2500Mbps"
    run "$WEIR" link list -o json
    expect_text '"rate_bits_per_second": 2500000000'
    run "$WEIR" lane list
    expect_text "WEIGHT"
    expect_text "out"
    run "$WEIR" link rate h0:1-s0:1 unlimited
    expect_code 0
    run "$WEIR" link list -o json
    [[ "$output" != *2500000000* ]]
    run "$WEIR" link rate s0:1 25
    expect_code 2
    expect_text "has no unit"
    run "$WEIR" link rate s0:1 0Gbps
    expect_code 2
    run "$WEIR" link rate s0:1 1Mbps
    expect_code 2
    expect_text "10Mbps"
    run "$WEIR" link rate s1:1 1Gbps
    expect_code 2
    expect_text 'did you mean "s0"?'
}

@test "links go down and up again" {
    "$WEIR" up "$PAIR"
    run "$WEIR" link down s0:1
    expect_code 0
    expect_text "h0:1-s0:1 is down"
    run "$WEIR" link list
    expect_text "down"
    run "$WEIR" status -o json
    expect_text '"links_down": 1'
    run "$WEIR" link up h0:1-s0:1
    expect_code 0
    run "$WEIR" link list -o json
    [[ "$output" != *'"down"'* ]]
    run "$WEIR" link down s1:1
    expect_code 2
    expect_text 'did you mean "s0"?'
    run "$WEIR" link down s0:4
    expect_code 2
    expect_text "nothing is plugged"
}

@test "lists are tables, and JSON with a schema" {
    "$WEIR" up "$PAIR"
    for noun in link host switch lane; do
        run "$WEIR" "$noun" list
        expect_code 0
        run bash -c "'$WEIR' $noun list -o json | python3 -m json.tool"
        expect_code 0
        expect_text "\"schema\": \"weir.$noun.list/v1\""
        run "$WEIR" "$noun" list -o wide
        expect_code 0
    done
}

@test "doctor tries a fabric that is up" {
    "$WEIR" up "$PAIR"
    run "$WEIR" doctor
    expect_text "PASS  attach"
    run bash -c "'$WEIR' doctor -o json | python3 -m json.tool"
    expect_text '"verdict"'
}

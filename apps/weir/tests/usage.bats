#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0

load fixture

@test "every command has help, and it goes to stdout" {
    for command in "" up down status run link "link list" "link down" host switch lane topology \
        "topology check" doctor completion version; do
        # shellcheck disable=SC2086
        run "$WEIR" $command --help
        expect_code 0
        expect_text "Usage: weir"
    done
}

@test "an unknown command is a usage error with a suggestion" {
    run "$WEIR" statsu
    expect_code 2
    expect_text 'did you mean "status"?'
    run "$WEIR" link lst
    expect_code 2
    expect_text 'did you mean "list"?'
    run "$WEIR" up --nme x
    expect_code 2
    expect_text 'did you mean "--name"?'
}

@test "missing and superfluous words are usage errors" {
    run "$WEIR"
    expect_code 2
    run "$WEIR" up
    expect_code 2
    run "$WEIR" version extra
    expect_code 2
    run "$WEIR" status -o yaml
    expect_code 2
}

@test "a broken file is an error with its place" {
    echo 'fabric: {shape: fat-tre}' >"$WEIR_RUNTIME_DIR/bad.yaml"
    run "$WEIR" up "$WEIR_RUNTIME_DIR/bad.yaml"
    expect_code 2
    expect_text "bad.yaml:1:"
    run "$WEIR" up "$WEIR_RUNTIME_DIR/missing.yaml"
    expect_code 2
    expect_text "No such file"
}

@test "what needs a fabric says that there is none, and what to do" {
    for command in "run -- true" "link list" "host list" "switch list" "lane list" \
        "link down s0:1" "status --name x"; do
        # shellcheck disable=SC2086
        run "$WEIR" $command
        expect_code 3
        expect_text "weir up FILE"
    done
}

@test "an open runtime folder is refused" {
    chmod 755 "$WEIR_RUNTIME_DIR"
    run "$WEIR" up "$PAIR"
    expect_code 4
    expect_text "chmod 700"
    chmod 700 "$WEIR_RUNTIME_DIR"
}

@test "completion scripts know the commands" {
    "$WEIR" completion bash >"$WEIR_RUNTIME_DIR/c.bash"
    bash -n "$WEIR_RUNTIME_DIR/c.bash"
    run bash -c "source '$WEIR_RUNTIME_DIR/c.bash'; COMP_WORDS=(weir link ''); COMP_CWORD=2; _weir; echo \"\${COMPREPLY[@]}\""
    expect_text "list"
    run "$WEIR" completion zsh
    expect_code 0
    run "$WEIR" completion fish
    expect_text "complete -c weir"
    run "$WEIR" completion tcsh
    expect_code 2
}

@test "topology check and convert work without a fabric" {
    run "$WEIR" topology check "$TREE"
    expect_code 0
    expect_text "nothing can deadlock"
    run "$WEIR" topology show "$TREE" -o json
    expect_text '"schema": "weir.topology.show/v1"'
    "$WEIR" topology convert "$TREE" >"$WEIR_RUNTIME_DIR/tree.net"
    run "$WEIR" topology check "$WEIR_RUNTIME_DIR/tree.net"
    expect_code 0
}

# SPDX-License-Identifier: Apache-2.0
# Each test has a runtime folder of its own, and takes down what it brought up. $WEIR is the program
# under test, set by ctest.

setup() {
    WEIR="${WEIR:?path of the weir program}"
    WEIR_RUNTIME_DIR="$(mktemp -d)"
    export WEIR_RUNTIME_DIR
    unset WEIR_NAME WEIR_FABRIC WEIR_HOST
    PAIR="$WEIR_RUNTIME_DIR/pair.yaml"
    cat >"$PAIR" <<'YAML'
topology:
  nodes:
    s0: {kind: weir_switch, ports: 4}
    h0: {kind: weir_host}
    h1: {kind: weir_host}
  links:
    - endpoints: ["s0:1", "h0:1"]
    - endpoints: ["s0:2", "h1:1"]
YAML
    TREE="$WEIR_RUNTIME_DIR/tree.yaml"
    echo 'fabric: {shape: fat-tree, levels: 2, radix: 8, hosts: 16}' >"$TREE"
}

teardown() {
    "$WEIR" down --all >/dev/null 2>&1
    rm -rf "$WEIR_RUNTIME_DIR"
}

# Pid of the daemon of the fabric named $1.
daemon_of() {
    cat "$WEIR_RUNTIME_DIR/$1/lock"
}

# The exit code is $1; prints the output if it is not.
expect_code() {
    if [ "$status" -ne "$1" ]; then
        echo "exit code $status, expected $1: $output"
        return 1
    fi
}

# The output holds $1.
expect_text() {
    if [[ "$output" != *"$1"* ]]; then
        echo "not found: $1"
        echo "in: $output"
        return 1
    fi
}

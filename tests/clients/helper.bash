# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Shared by the tests of this folder: a fabric per test file, and stock programs started on its hosts
# with nothing of ours but the library path. From the environment: WEIR_BIN_DIR, WEIR_LIB_DIR,
# WEIR_PROGRAM_DIR (the programs of programs/, compiled) and WEIR_EXAMPLES_DIR.
#
# Programs run in the background under a name; finish waits for one, never longer than it is told.

bats_require_minimum_version 1.5.0
WEIR=$WEIR_BIN_DIR/weir
# shellcheck disable=SC2034 # Used by the tests.
PYTHON=/usr/bin/python3  # Debian's, which Debian's pyverbs belongs to.

# fail WORDS...: says why, and is false.
fail() {
    printf '%s\n' "$*" >&2
    return 1
}

# need PACKAGE PROGRAM...: a client that is missing is a failure, lest a test be green for nothing.
need() {
    local package=$1 program
    shift
    for program in "$@"; do
        command -v "$program" >/dev/null || fail "$program is not there: install $package" || return 1
    done
}

# fabric_up FILE [NAME]: for setup_file. Gives this test file its own place for fabrics.
fabric_up() {
    need jq jq
    if [ -z "${CLIENTS_RUNTIME:-}" ]; then
        CLIENTS_RUNTIME=$(mktemp -d /tmp/weir-clients.XXXXXX)
        export CLIENTS_RUNTIME WEIR_RUNTIME_DIR=$CLIENTS_RUNTIME
    fi
    export WEIR_FABRIC=${2:-clients-$$}
    timeout 60 "$WEIR" up "$1" --name "$WEIR_FABRIC" 3>&-
}

# fabric_down: for teardown_file. Takes down every fabric of this test file.
fabric_down() {
    [ -n "${CLIENTS_RUNTIME:-}" ] || return 0
    timeout 60 "$WEIR" down --all 3>&- || true
    rm -rf "$CLIENTS_RUNTIME"
}

# free_port: sets port to a TCP port that nobody has.
free_port() {
    local hex
    while true; do
        port=$((20000 + RANDOM % 12000))
        hex=$(printf '%04X' "$port")
        grep -qE ":$hex [0-9A-F]+:[0-9A-F]{4} " /proc/net/tcp /proc/net/tcp6 || return 0
    done
}

# start NAME HOST PROGRAM...: in the background, as one of that host's programs.
start() {
    local name=$1 host=$2
    shift 2
    (
        export WEIR_HOST=$host LD_LIBRARY_PATH=$WEIR_LIB_DIR
        exec "$@"
    ) >"$BATS_TEST_TMPDIR/$name.log" 2>&1 </dev/null 3>&- &
    echo $! >"$BATS_TEST_TMPDIR/$name.pid"
}

# stacks PID: of all its threads, to tell why it does not end.
stacks() {
    if command -v gdb >/dev/null; then
        timeout 30 gdb -p "$1" -batch -ex 'thread apply all bt 12' >&2 2>/dev/null || true
    fi
}

# on HOST PROGRAM...: in the foreground, for at most 60 s; 124 if it took longer.
on() {
    local host=$1 pid until=$((SECONDS + 60))
    shift
    WEIR_HOST=$host LD_LIBRARY_PATH=$WEIR_LIB_DIR "$@" </dev/null 3>&- &
    pid=$!
    while [ -e "/proc/$pid" ] && [ "$SECONDS" -le "$until" ]; do
        sleep 0.02
    done
    if [ -e "/proc/$pid" ]; then
        echo "$* still runs after 60 s" >&2
        stacks "$pid"
        kill -KILL "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
        return 124
    fi
    wait "$pid"
}

pid_of() {
    cat "$BATS_TEST_TMPDIR/$1.pid"
}

log_of() {
    printf '%s\n' "$BATS_TEST_TMPDIR/$1.log"
}

# running NAME: it has not ended yet.
running() {
    [ -e "/proc/$(pid_of "$1")" ]
}

show_logs() {
    local log
    for log in "$BATS_TEST_TMPDIR"/*.log; do
        [ ! -s "$log" ] || { echo "--- $(basename "$log")"; tail -n 40 "$log"; }
    done >&2
}

# finish NAME SECONDS: waits for its end and sets code. False if it had to be killed, and then its
# threads' stacks are shown.
finish() {
    local name=$1 pid until=$((SECONDS + $2))
    pid=$(pid_of "$name")
    while [ -e "/proc/$pid" ] && [ "$SECONDS" -le "$until" ]; do
        sleep 0.05
    done
    if [ -e "/proc/$pid" ]; then
        echo "$name (pid $pid) still runs after $2 s" >&2
        stacks "$pid"
        kill -KILL "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
        show_logs
        code=hung
        return 1
    fi
    code=0
    wait "$pid" || code=$?
}

# succeed NAME SECONDS: it ends in time, with exit code 0.
succeed() {
    finish "$1" "$2" || return 1
    [ "$code" = 0 ] || { show_logs; fail "$1 exits $code"; }
}

# stop_all: ends what the test left behind.
stop_all() {
    local file pid
    for file in "$BATS_TEST_TMPDIR"/*.pid; do
        [ -e "$file" ] || continue
        pid=$(cat "$file")
        kill -KILL "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
}

# await_listener NAME PORT: the server `name` listens on the port.
await_listener() {
    local hex until=$((SECONDS + 30))
    hex=$(printf '%04X' "$2")
    while ! grep -qE ":$hex [0-9A-F]+:0000 0A" /proc/net/tcp /proc/net/tcp6; do
        running "$1" || { show_logs; fail "$1 ended before it listened"; return 1; }
        [ "$SECONDS" -le "$until" ] || { show_logs; fail "$1 never listened on port $2"; return 1; }
        sleep 0.05
    done
}

# start_pair NAME SERVER_HOST CLIENT_HOST PROGRAM...: NAME-server and NAME-client of a program that
# takes a port with -p and the server's address as its last word.
start_pair() {
    local name=$1 server_host=$2 client_host=$3
    shift 3
    free_port
    start "$name-server" "$server_host" "$@" -p "$port"
    await_listener "$name-server" "$port" || return 1
    start "$name-client" "$client_host" "$@" -p "$port" 127.0.0.1
}

# finish_pair NAME SECONDS: both sides succeed.
finish_pair() {
    succeed "$1-client" "$2" && succeed "$1-server" 20
}

# pair PROGRAM...: server on h0, client on h1, both succeed within 60 s.
pair() {
    start_pair pair h0 h1 "$@" || return 1
    finish_pair pair 60 || { fail "failed: $*"; return 1; }
}

# logged NAME PATTERN: a line of its output matches.
logged() {
    grep -qE "$2" "$(log_of "$1")" || { show_logs; fail "$1 does not print \"$2\""; }
}

# data_row NAME SIZE: perftest's line of results for this size.
data_row() {
    logged "$1" "^ *$2 +[0-9]+ +[0-9.]+ +[0-9.]+"
}

program_count() {
    timeout 20 "$WEIR" status --name "$WEIR_FABRIC" -o json 3>&- | jq '[.fabrics[].program_count] | add'
}

queued_packets() {
    timeout 20 "$WEIR" lane list --name "$WEIR_FABRIC" -o json 3>&- | jq '[.lanes[].queued_packets] | add'
}

# drained: within 10 s nobody is attached and nothing is left in any buffer.
drained() {
    local until=$((SECONDS + 10)) programs='?' queued='?'
    while [ "$SECONDS" -le "$until" ]; do
        programs=$(program_count)
        queued=$(queued_packets)
        [ "$programs" != 0 ] || [ "$queued" != 0 ] || return 0
        sleep 0.1
    done
    "$WEIR" status --name "$WEIR_FABRIC" -o json >&2
    fail "$programs programs are attached and $queued packets queued, when there is nobody left"
}

# link_counter LINK FIELD: one number of `weir link list`.
link_counter() {
    timeout 20 "$WEIR" link list --name "$WEIR_FABRIC" -o json 3>&- |
        jq --arg link "$1" ".links[] | select(.name == \$link) | .$2"
}

# roll LOW HIGH: sets rolled to a number within, from the sequence that `seed` began.
roll() {
    rolls=$(((rolls * 1103515245 + 12345) & 0x7fffffff))
    # shellcheck disable=SC2034 # Used by the tests.
    rolled=$(($1 + (rolls >> 8) % ($2 - $1 + 1)))
}

seed() {
    rolls=$1
    echo "# seed $1"
}

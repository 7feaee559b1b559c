#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tools_test.sh FOLDER: stock programs, unchanged, load the library in FOLDER and find that there is
# no fabric, as they would find that there is no device. Programs not installed are left out.
set -eu
export LD_LIBRARY_PATH="$1" LD_BIND_NOW=1
export WEIR_FABRIC="none-of-this-name-$$"
unset WEIR_HOST
status=0

# expect WHAT EXIT_CODE PATTERN COMMAND...: the command exits so and its output matches.
expect() {
    what=$1 code=$2 pattern=$3
    shift 3
    command -v "$1" >/dev/null || { echo "left out: $1"; return; }
    found=0
    output=$("$@" 2>&1) || found=$?
    if [ "$found" = "$code" ] && printf '%s\n' "$output" | grep -q "$pattern"; then
        echo "ok: $what"
    else
        printf 'FAIL: %s: exit code %s, expected %s and "%s":\n%s\n' "$what" "$found" "$code" \
            "$pattern" "$output"
        status=1
    fi
}

expect "ibv_devices lists nothing" 0 'node GUID' ibv_devices
expect "ibv_devinfo finds nothing" 255 'No IB devices found' ibv_devinfo
# perftest needs libmlx5 and libefa, and they the provider ABI.
for tool in ib_write_lat ib_send_bw ib_atomic_bw; do
    expect "$tool loads" 1 'Version' "$tool" --version
done
expect "ucx_info loads" 0 'Memory domain' ucx_info -d
loaded=$(LD_DEBUG=libs ibv_devices 2>&1 | grep -c "calling init: $1/libibverbs.so.1" || true)
[ "$loaded" = 1 ] || { echo "FAIL: the library in $1 is not the one that was loaded"; status=1; }
exit $status

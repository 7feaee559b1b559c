#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# abi_test.sh LIBRARY: LIBRARY exports exactly what the installed libibverbs.so.1 does, name by name
# and version by version, default versions (@@) told from others (@), besides the node for our own
# librdmacm, and needs nothing but the C library. Skipped (77) where the installed one is missing or of another release than 44.0.
set -eu
library=$1
stock=${WEIR_STOCK_IBVERBS:-/usr/lib/x86_64-linux-gnu/libibverbs.so.1}
[ -e "$library" ] || { echo "FAIL: no $library"; exit 1; }
[ -e "$stock" ] || { echo "skipped: no $stock"; exit 77; }

exports() {
    objdump -T "$1" | awk '/\*UND\*/{next} / WEIR_PRIVATE_1/{next} /IBVERBS_/{
        version = $(NF - 1); mark = "@@"
        if (sub(/^\(/, "", version)) { sub(/\)$/, "", version); mark = "@" }
        print $NF mark version }' | LC_ALL=C sort -u
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
exports "$stock" >"$work/stock"
exports "$library" >"$work/ours"
if ! grep -q '@IBVERBS_PRIVATE_34$' "$work/stock"; then
    echo "skipped: $stock is not of release 44"
    exit 77
fi
if ! diff -u "$work/stock" "$work/ours"; then
    echo "FAIL: exports differ (-: missing, +: too much)"
    exit 1
fi
stray=$(objdump -T "$library" | awk '/\*UND\*/{next} / g | w /{if ($0 !~ /IBVERBS_|WEIR_PRIVATE_1/) print $NF}')
if [ -n "$stray" ]; then
    echo "FAIL: exported without a version: $stray"
    exit 1
fi
soname=$(objdump -p "$library" | awk '/SONAME/{print $2}')
[ "$soname" = libibverbs.so.1 ] || { echo "FAIL: SONAME is $soname"; exit 1; }
needed=$(objdump -p "$library" | awk '/NEEDED/{print $2}' |
    grep -v -E '^(libc\.so\.6|libm\.so\.6|ld-linux.*)$' || true)
[ -z "$needed" ] || { echo "FAIL: needs $needed"; exit 1; }
echo "$(wc -l <"$work/ours") exports agree"

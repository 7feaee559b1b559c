#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# abi_test.sh LIBRARY NODES NEWEST [-a FILE] [-p NODE] [-n LIBRARY]: LIBRARY exports exactly what the
# installed one of its name does, name by name and version by version, default versions (@@) told from others
# (@), and needs nothing but the C library and libgcc, which that loads to cancel threads. NODES is
# how its version nodes begin; NEWEST is the last one of the release that we follow: skipped (77) if
# the installed one is missing or has not got it.
#   -a FILE     adds what later releases export: lines of node and name
#   -p NODE     a version node of ours besides
#   -n LIBRARY  may be needed too
set -eu
library=$1
nodes=$2
newest=$3
shift 3
private=none
later=/dev/null
needs='libc\.so\.6|libm\.so\.6|libgcc_s\.so\.1|ld-linux.*'
while [ $# -ge 2 ]; do
    case $1 in
        -a) later=$2 ;;
        -p) private=$2 ;;
        -n) needs="$needs|$2" ;;
        *) echo "abi_test.sh: unknown option $1"; exit 2 ;;
    esac
    shift 2
done
name=$(basename "$library")
stock=${WEIR_STOCK:-/usr/lib/x86_64-linux-gnu}/$name
[ -e "$library" ] || { echo "FAIL: no $library"; exit 1; }
[ -e "$stock" ] || { echo "skipped: no $stock"; exit 77; }

exports() {
    objdump -T "$1" | awk -v nodes="$nodes" -v private=" $private" '/\*UND\*/ { next }
        index($0, private) { next }
        index($0, nodes) {
            version = $(NF - 1); mark = "@@"
            if (sub(/^\(/, "", version)) { sub(/\)$/, "", version); mark = "@" }
            print $NF mark version }' | LC_ALL=C sort -u
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
exports "$stock" >"$work/stock"
exports "$library" >"$work/all"
# By name and node alone: which version of a later name is the default matters to nobody.
awk '/^#/ { next } { print $2 "@" $1; print $1 "@" $1 }' "$later" | LC_ALL=C sort -u >"$work/later"
sed 's/@@/@/' "$work/stock" | LC_ALL=C sort -u >"$work/known"
LC_ALL=C comm -23 "$work/later" "$work/known" >"$work/new"
awk 'NR == FNR { new[$0]; next } { plain = $0; sub(/@@/, "@", plain) } !(plain in new)' \
    "$work/new" "$work/all" >"$work/ours"
missing=$(sed 's/@@/@/' "$work/all" | LC_ALL=C sort -u | LC_ALL=C comm -23 "$work/new" -)
[ -z "$missing" ] || { echo "FAIL: missing of later releases: $missing"; exit 1; }
if ! grep -q "@$newest\$" "$work/stock"; then
    echo "skipped: $stock has no $newest: it is of another release"
    exit 77
fi
if ! diff -u "$work/stock" "$work/ours"; then
    echo "FAIL: exports differ (-: missing, +: too much)"
    exit 1
fi
stray=$(objdump -T "$library" | awk -v nodes="$nodes" -v private=" $private" '/\*UND\*/ { next }
    / g | w / { if (!index($0, nodes) && !index($0, private)) print $NF }')
[ -z "$stray" ] || { echo "FAIL: exported without a version: $stray"; exit 1; }
soname=$(objdump -p "$library" | awk '/SONAME/ { print $2 }')
[ "$soname" = "$name" ] || { echo "FAIL: SONAME is $soname"; exit 1; }
needed=$(objdump -p "$library" | awk '/NEEDED/ { print $2 }' | grep -v -E "^($needs)\$" || true)
[ -z "$needed" ] || { echo "FAIL: needs $needed"; exit 1; }
echo "$(wc -l <"$work/ours") exports agree, and $(wc -l <"$work/new") of later releases are there"

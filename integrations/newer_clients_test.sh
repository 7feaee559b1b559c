#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# newer_clients_test.sh FOLDER LIBRARY EXPORTS...: programs that were linked against later releases
# load with the libraries of FOLDER. For each version node of an EXPORTS file a library is made that
# has that node's names and is called LIBRARY, and a program that is linked with it and uses every
# one of them. It is then run with ours, all names bound at the start. Those that register a driver,
# as vendor libraries do when they are loaded, do so.
set -eu
folder=$1
library=$2
shift 2
command -v cc >/dev/null || { echo "skipped: no C compiler"; exit 77; }
[ -e "$folder/$library" ] || { echo "FAIL: no $folder/$library"; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Writes the sources of a node: what the library has, its version script, and the program.
write_sources() { # NODE < names
    awk -v node="$1" -v to="$work" '
        { names[++count] = $1 }
        END {
            print node " { global:" >(to "/stub.map")
            for (i = 1; i <= count; ++i) {
                print "void " names[i] "(void); void " names[i] "(void) {}" >(to "/stub.c")
                print names[i] ";" >(to "/stub.map")
                print "extern void " names[i] "(const void *);" >(to "/client.c")
            }
            print "local: *; };" >(to "/stub.map")
            print "void (*volatile const used[])(const void *) = {" >(to "/client.c")
            for (i = 1; i <= count; ++i) print names[i] "," >(to "/client.c")
            print "}; int main(void) {" >(to "/client.c")
            for (i = 1; i <= count; ++i)
                if (names[i] ~ /^verbs_register_driver_/) print names[i] "(0);" >(to "/client.c")
            print "return used[0] == 0; }" >(to "/client.c")
        }'
}

failed=0
awk '!/^#/ { print $1 }' "$@" | LC_ALL=C sort -u >"$work/nodes"
while read -r node; do
    awk -v node="$node" '$1 == node { print $2 }' "$@" | write_sources "$node"
    mkdir -p "$work/stub"
    cc -w -shared -fPIC -o "$work/stub/$library" "$work/stub.c" \
        -Wl,-soname="$library" -Wl,--version-script="$work/stub.map"
    cc -w -fPIE -pie -o "$work/client" "$work/client.c" "$work/stub/$library"
    count=$(objdump -T "$work/client" | grep -c "$node")
    if LD_LIBRARY_PATH=$folder LD_BIND_NOW=1 "$work/client"; then
        echo "ok: $count names of $node"
    else
        echo "FAIL: a program that uses $node"
        failed=1
    fi
    rm -rf "$work"/stub "$work"/stub.* "$work"/client*
done <"$work/nodes"
exit $failed

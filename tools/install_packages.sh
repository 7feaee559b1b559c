#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# install_packages.sh run|test: makes sure that the Debian packages are there which ./run or ./test
# needs. Installs what is missing if it may (root), else says what is missing and fails.
set -euo pipefail

# To build the CLI and the verbs drop-in, and to show them with stock programs.
run_packages=(
    g++ cmake ninja-build
    libexpected-dev libfmt-dev libcli11-dev libyaml-cpp-dev nlohmann-json3-dev libibverbs-dev
    librdmacm-dev
    ibverbs-utils perftest
)
# Besides, to build and run all tests and checks.
test_packages=(
    libgtest-dev libgmock-dev libbenchmark-dev librapidcheck-dev libibumad-dev
    bats scdoc python3 python3-yaml python3-jsonschema python3-pyverbs ucx-utils qperf iperf3 curl
    rdmacm-utils libfabric-bin
    openmpi-bin libopenmpi-dev mpich libmpich-dev hwloc-nox bubblewrap
    clang-format-14 shellcheck procps jq gdb git util-linux binutils
)

case "${1:-}" in
    run) wanted=("${run_packages[@]}") ;;
    test) wanted=("${run_packages[@]}" "${test_packages[@]}") ;;
    *)
        echo "usage: tools/install_packages.sh run|test" >&2
        exit 2
        ;;
esac

if ! command -v dpkg-query >/dev/null; then
    echo "warning: this is not a Debian: packages are not checked. Needed: ${wanted[*]}" >&2
    exit 0
fi

missing=()
for package in "${wanted[@]}"; do
    # Several architectures may answer, one line each.
    state=$(dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null || true)
    grep -qx installed <<<"$state" || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi

if [ "$(id -u)" -ne 0 ]; then
    echo "error: packages are missing, and only root may install them" >&2
    echo "hint: sudo apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
fi

echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
# Output is shown only if something goes wrong.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { apt-get -q update && apt-get -q -y install --no-install-recommends "${missing[@]}"; } \
    >"$log" 2>&1 </dev/null; then
    cat "$log" >&2
    echo "error: apt-get could not install the packages" >&2
    exit 1
fi

# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the scripts share. Sourced, with `set -euo pipefail` in force.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck disable=SC2034 # for those that source this
venv=$root/.venv
export PIP_DISABLE_PIP_VERSION_CHECK=1
# Whoever sets it has a working tree without __pycache__, which others have: nothing may depend on that.
unset PYTHONDONTWRITEBYTECODE

say () { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die () { say "$*"; exit 1; }

# Where a prerequisite that is missing is an error, not a skip
in_ci () { [[ -n ${CI:-} && ${CI:-} != false && ${CI:-} != 0 ]]; }

recent () { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

# The system's own Python first: one in a home folder cannot be read by the unprivileged users that some tests become.
find_python () {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} /usr/bin/python3 python3; do
        if recent "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    die 'no Python 3.10 or newer found: install one, or name it with PYTHON=...'
}

# Builds the fuzz targets and says where; fails without a clang that has libFuzzer.
build_fuzz () {
    local build=$root/builddir/fuzz
    command -v clang >/dev/null || return 1
    if [[ ! -e $build/build.ninja ]]; then
        CC=clang meson setup "$build" "$root" -Dpython=false -Dtests=true >/dev/null ||
            { cat "$build/meson-logs/meson-log.txt" >&2; return 1; }
    fi
    ninja -C "$build" --quiet build.ninja >/dev/null || return 1
    ninja -C "$build" -t query tests/native/fuzz/fuzz-frame >/dev/null 2>&1 || return 1
    ninja -C "$build" --quiet tests/native/fuzz/fuzz-{frame,handles,reply} >&2 || return 1
    echo "$build"
}

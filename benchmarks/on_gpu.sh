#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What can only be tried on a machine with a GPU and its driver, which may reach no package index:
#
#     benchmarks/on_gpu.sh --prepare FOLDER             here: wheels of all that is needed, and the compiled C parts
#     benchmarks/on_gpu.sh FOLDER RESULTS               there: installs them, compares every getter, runs tests, suite
#     benchmarks/on_gpu.sh --simulate FOLDER RESULTS    the same with simulated GPUs
#
# FOLDER fits the processor that prepared it, and the releases of Python that --prepare names at its end. The whole
# takes at most 8 minutes: each step has a limit, and one that fails does not stop the others. RESULTS gets summary.txt,
# log.txt and bench/ (charts are drawn afterwards: benchmarks/bench.py --redraw RESULTS/bench.json --out ...).
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}

releases=(3.10 3.11 3.12 3.13 3.14)
wanted='pytest pytest-timeout hypothesis'

# shellcheck disable=SC2086 # words
prepare () { # FOLDER
    set -e
    mkdir -p "$1"
    # No matplotlib: it is large, and draws as well from the results.
    "$python" -m pip wheel --quiet --wheel-dir "$1" "$root" 'pyperf>=2.6' 'rpyc>=6' $wanted pip
    # The extension is built for the stable ABI of 3.10, but the backend names the wheel after the Python it ran on.
    local tools release wheel names=()
    tools=$(mktemp -d)
    "$python" -m pip install --quiet --target "$tools" wheel
    PYTHONPATH=$tools "$python" -m wheel tags --remove --python-tag cp310 "$1"/nvsandbox-*.whl >/dev/null
    rm -rf "$tools"
    # What there is for this release alone is needed for the others too.
    for wheel in "$1"/*-cp3*-cp3*-*.whl; do
        wheel=${wheel##*/}
        names+=("${wheel%%-*}")
    done
    # pip asks by the Python that runs it what is needed for which, so that it would not miss these below.
    if ! "$python" -m pip download --quiet --dest "$1" --only-binary :all: --python-version 3.10 exceptiongroup tomli
    then
        echo "not for Python 3.10: wheels are missing"
        releases=("${releases[@]:1}")
    fi
    for release in "${releases[@]}"; do
        for wheel in "${names[@]}"; do
            "$python" -m pip download --quiet --dest "$1" --only-binary :all: --no-deps --python-version "$release" \
                "$wheel" 2>/dev/null || true
        done
        if "$python" -m pip install --quiet --dry-run --ignore-installed --target "$1" --no-index --find-links "$1" \
            --only-binary :all: --python-version "$release" nvsandbox $wanted 2>/dev/null; then
            echo "good for Python $release"
        else
            echo "not for Python $release: wheels are missing"
        fi
    done
    PYTHONPATH=$root/benchmarks "$python" - "$1/built" <<'END'
import pathlib, sys
import bench
sys.exit(0 if bench.compile_all(pathlib.Path(sys.argv[1])) else "no C compiler")
END
    du -sh "$1"
}

simulate=
case ${1:-} in
    --prepare) prepare "${2:?FOLDER}"; exit ;;
    --simulate) simulate=h100x2,frozen=1; shift ;;
esac
folder=$(realpath "${1:?FOLDER}")
mkdir -p "${2:?RESULTS}"
results=$(realpath "$2")
: >"$results/summary.txt"
: >"$results/log.txt"
failed=0

note () { echo "$*" | tee -a "$results/summary.txt"; }
step () { # SECONDS NAME COMMAND...
    local limit=$1 name=$2 start=$SECONDS status=0
    shift 2
    printf '\n== %s\n' "$name" >>"$results/log.txt"
    timeout --kill-after=5 "$limit" "$@" >"$results/step.txt" 2>&1 || status=$?
    cat "$results/step.txt" >>"$results/log.txt"
    if ((status == 0)); then
        note "ok       $name ($((SECONDS - start)) s): $(tail -n 1 "$results/step.txt")"
    else
        failed=1
        note "FAILED   $name ($((SECONDS - start)) s, status $status)"
        tail -n 12 "$results/step.txt" | sed 's/^/            /' | tee -a "$results/summary.txt"
    fi
    return "$status"
}
nodes () { # the nodes of the driver, and links to them
    find /dev -name '*nvidia*' -printf '%p %y %m %i %l\n' 2>/dev/null
    find /dev/char -lname '*nvidia*' -printf '%p %i %l\n' 2>/dev/null
}

environment=$(mktemp -d)
trap 'rm -rf "$environment"' EXIT
# shellcheck disable=SC2086,SC2317 # words; called by name
install_all () {
    "$python" -m venv --without-pip "$environment" || return
    local pip wheels=() name
    pip=$(compgen -G "$folder/pip-*.whl" | head -n 1)
    [[ -n $pip ]] || { echo "no pip in $folder"; return 1; }
    for name in pyperf rpyc; do # can be done without
        [[ -n $(compgen -G "$folder/$name-*.whl") ]] && wheels+=("$name")
    done
    "$environment/bin/python" "$pip/pip" install --quiet --no-index --find-links "$folder" \
        nvsandbox $wanted "${wheels[@]}" &&
        (cd / && "$environment/bin/python" -c 'import nvsandbox; print("nvsandbox", nvsandbox.__version__)')
}
export -f install_all
export environment folder python wanted

start=$SECONDS
step 60 install bash -c install_all || exit 1
export PATH=$environment/bin:$PATH
export PYTHONDONTWRITEBYTECODE=1
cd / # where no source tree is in the way of the installed package
nodes >"$results/nodes-before.txt"

if [[ -z $simulate ]]; then
    step 20 driver cat /proc/driver/nvidia/version || note 'this machine has no NVIDIA driver; try --simulate'
fi
export NVSANDBOX_SIMULATE=$simulate
[[ -n $simulate ]] || unset NVSANDBOX_SIMULATE
nvsandbox doctor --help >/dev/null 2>&1 && step 20 doctor nvsandbox doctor
step 20 query nvsandbox query
unset NVSANDBOX_SIMULATE
if [[ -n $simulate ]]; then
    step 60 'every getter' python "$root/benchmarks/gpu_surface.py" --simulate "$simulate"
else
    step 60 'every getter' python "$root/benchmarks/gpu_surface.py"
fi
nodes >"$results/nodes-after.txt"
step 5 'nodes as before' diff "$results/nodes-before.txt" "$results/nodes-after.txt"
step 100 tests pytest --rootdir "$root" -c "$root/pyproject.toml" -p no:cacheprovider -q \
    "$root/tests/real" "$root/tests/surface/test_simulated.py" "$root/tests/benchmarks"

left=$((470 - (SECONDS - start)))
bench=(python "$root/benchmarks/bench.py" --out "$results/bench" --rounds 20)
[[ -d $folder/built ]] && bench+=(--built "$folder/built")
for part in calls-null threads delays startup single memory idle; do bench+=(--part "$part"); done
if [[ -z $simulate ]]; then
    bench+=(--real --part calls-real --part scrape-real)
else
    bench+=(--part calls-sim --part scrape)
fi
step "$left" suite "${bench[@]}"
rm -f "$results/step.txt"
note "took $((SECONDS - start)) s"
exit "$failed"

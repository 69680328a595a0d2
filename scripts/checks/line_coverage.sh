#!/bin/sh
# Which lines and branches of ref/ the tests reach: a table per folder, and pages in BUILD/html.
# usage: line_coverage.sh BUILD      TESTS: names, such as 'test_json'; FAULTS: commands of tests/faults, or none
#
# With -O1, for speed: gcc places its counters before it joins branches. Tests in one process each, where they permit it:
# gcov writes hundreds of files at the end of every process. Warnings are no errors here: beside counters gcc takes sizes
# for negative that are not.
set -u
build=$1
. "$(dirname "$0")/../needs.sh"
needs gcc:gcc gcovr:gcovr
export BUILD="$build" OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive CK_TIMEOUT_MULTIPLIER=20
make -s -j"$(nproc)" BUILD="$build" CC=gcc OPT=-O1 SANITIZE='--coverage -DM3_COVERAGE -Wno-error' all test-programs fault-server ||
    exit 1
find "$build" -name '*.gcda' -exec rm {} +

failed=0
for test in "$build"/tests/test_*; do
    name=${test##*/}
    case $name in
    *.* | *_cuda | test_cuda_*) continue ;;
    esac
    [ -z "${TESTS:-}" ] || echo " $TESTS " | grep -q " $name " || continue
    CK_FORK=no "$test" >"$build/out" 2>&1 || "$test" >"$build/out" 2>&1 || {
        failed=$((failed + 1))
        echo "$name:" && tail -n 3 "$build/out"
    }
done

# A fault finds what it finds; here only what it reaches is counted.
[ "${FAULTS:-}" = none ] || tests/faults/run.sh "$build" "${FAULTS:-}" >"$build/faults.log" 2>&1

mkdir -p "$build/html"
gcovr --root . --filter 'ref/' --exclude 'ref/cuda/' --object-directory "$build" --json "$build/trace.json" \
    --html-details "$build/html/index.html" "$build" >"$build/gcovr.log" 2>&1 || { tail -n 5 "$build/gcovr.log" >&2; exit 1; }
python3 scripts/checks/coverage_table.py "$build/trace.json" tests/coverage_exceptions.tsv || failed=$((failed + 1))
[ "$failed" -eq 0 ] || echo "$failed failed: tests, or folders below their target" >&2
[ "$failed" -eq 0 ]

#!/bin/sh
# Runs the test programs that it is given, as many at once as there are processors, prints what each of them prints when
# it ends, and at last "N passed, N failed" for all of them. A program that crashes, or does not say how many tests it
# ran, or runs none, counts as one failure.
# usage: run.sh PROGRAM ...
#        run.sh --one FOLDER PROGRAM     runs one of them, and adds a line "PASSED FAILED" to FOLDER/counts
set -u

# Prints a whole report at a time, unless another takes longer than 10 s.
print_alone() {
    tries=0
    while ! mkdir "$1/lock" 2>/dev/null && [ $((tries += 1)) -lt 200 ]; do sleep 0.05; done
    cat "$2"
    rmdir "$1/lock" 2>/dev/null
}

run_one() {
    folder=$1
    program=$2
    report=$(mktemp "$folder/report.XXXXXX")
    echo "== ${program##*/}" >"$report"
    "$program" >>"$report" 2>&1
    status=$?
    last=$(tail -n 1 "$report")
    if printf '%s\n' "$last" | grep -Eqx '[0-9]+ passed, [0-9]+ failed'; then
        good=${last%% passed*}
        bad=${last##* passed, }
        bad=${bad%% failed}
        [ "$status" -eq 0 ] && [ "$good" -gt 0 ] || [ "$bad" -gt 0 ] || bad=1
    else
        good=0
        bad=1
        echo "${program##*/}: ended with status $status and without its count" >>"$report"
    fi
    print_alone "$folder" "$report"
    echo "$good $bad" >>"$folder/counts"
}

if [ "${1:-}" = --one ]; then
    run_one "$2" "$3"
    exit 0
fi
folder=$(mktemp -d "${TMPDIR:-/tmp}/m3ref-tests.XXXXXX")
trap 'rm -rf "$folder"' EXIT
# The programs are ended together, with all that they have started: setsid gives them a process group.
trap '[ -z "${programs:-}" ] || kill -- "-$programs"; wait; exit 1' INT TERM
: >"$folder/counts"
# Threads that spin while they wait would take the processor from the other programs.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
printf '%s\0' "$@" >"$folder/programs"
if [ $# -gt 0 ]; then
    setsid xargs -0 -n 1 -P "$(nproc)" sh "$0" --one "$folder" <"$folder/programs" &
    programs=$!
    wait "$programs"
fi
awk -v programs="$#" '{ good += $1; bad += $2 } END { bad += programs - NR
    printf "%d passed, %d failed\n", good, bad; exit bad > 0 || good == 0 }' "$folder/counts"

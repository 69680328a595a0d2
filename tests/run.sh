#!/bin/sh
# Runs the test programs that it is given, one more at once than there are processors, because some of them wait. Prints
# what each of them prints when it ends, with its seconds, and at last "N passed, N failed" for all of them. A program
# that crashes, or does not say how many tests it ran, or runs none, counts as one failure. A test that cannot run here
# prints a line "skipped: NAME: REASON"; these are printed again at the end, and counted: "N passed, N failed, N skipped".
# With TIMES=1 a table says which programs took how long. On a terminal a line says how far the tests are. INT and TERM
# end the running programs at once, with all that they started.
# usage: run.sh PROGRAM ...
#        run.sh --one FOLDER PROGRAM     runs one of them, and adds a line "PASSED FAILED SECONDS NAME" to FOLDER/counts
set -u

# Check ends a test after 4 seconds by the clock, which other programs may use up.
export CK_TIMEOUT_MULTIPLIER=10

# Prints a whole report at a time, unless another takes longer than 10 s; on a terminal the line of progress after it.
print_alone() {
    tries=0
    while ! mkdir "$1/lock" 2>/dev/null && [ $((tries += 1)) -lt 200 ]; do sleep 0.05; done
    [ ! -e "$1/terminal" ] || printf '\r\033[K' >&2
    cat "$2"
    echo "$3" >>"$1/counts"
    [ ! -e "$1/terminal" ] || printf '%d of %d programs, %d s ' "$(wc -l <"$1/counts")" "$(cat "$1/terminal")" \
        $(($(date +%s) - $(cat "$1/began"))) >&2
    rmdir "$1/lock" 2>/dev/null
}

run_one() {
    folder=$1
    program=$2
    report=$(mktemp "$folder/report.XXXXXX")
    began=$(date +%s%N)
    "$program" >>"$report" 2>&1
    status=$?
    seconds=$((($(date +%s%N) - began) / 100000000))
    seconds=$((seconds / 10)).$((seconds % 10))
    sed -n "s/^skipped: /&${program##*/}: /p" "$report" | sort -u >"$report.skipped"
    last=$(tail -n 1 "$report")
    if printf '%s\n' "$last" | grep -Eqx '[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?'; then
        good=${last%% passed*}
        bad=${last##* passed, }
        bad=${bad%% failed*}
        [ "$status" -eq 0 ] && [ "$good" -gt 0 ] || [ "$bad" -gt 0 ] || bad=1
    else
        good=0
        bad=1
        echo "${program##*/}: ended with status $status and without its count" >>"$report"
    fi
    sed "1i == ${program##*/}, ${seconds%.*} s" "$report" >"$report.whole"
    print_alone "$folder" "$report.whole" "$good $bad $seconds ${program##*/}"
}

if [ "${1:-}" = --one ]; then
    run_one "$2" "$3"
    exit 0
fi

# The programs run in a session of their own. Some make process groups in it, as timeout and the tests of Check do.
end_session() {
    for signal in TERM KILL; do
        cat /proc/[0-9]*/stat 2>/dev/null | awk -v session="$programs" '{ id = $1; sub(/^.*[)] /, ""); if ($4 == session) print id }' |
            xargs -r kill -s "$signal" 2>/dev/null
        [ "$signal" = KILL ] || sleep 0.5
    done
    exit 1
}

# In memory, where there is room for the files of all tests: those that write wait for a disk otherwise.
if [ -z "${TMPDIR:-}" ] && [ "$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print $4 }')" -gt 4000000 ]; then
    export TMPDIR=/dev/shm
fi
folder=$(mktemp -d "${TMPDIR:-/tmp}/m3ref-tests.XXXXXX") || exit 1
programs=""
trap 'rm -rf "$folder"' EXIT
trap '[ -z "$programs" ] || end_session; exit 1' INT TERM
: >"$folder/counts"
date +%s >"$folder/began"
[ ! -t 2 ] || echo $# >"$folder/terminal"
# What ref/cli/start.c sets for the program, for the tests that are programs of their own.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}" GOMP_SPINCOUNT="${GOMP_SPINCOUNT:-1000}"
export OPENBLAS_NUM_THREADS="${OPENBLAS_NUM_THREADS:-1}"
at_once=$(($(nproc) + 1))
# The programs keep the processors busy, so that a second thread of one of them would only cost. Tests of threads ask for
# their own number. nproc obeys this setting too.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
if [ $# -gt 0 ]; then
    printf '%s\0' "$@" >"$folder/programs"
    # A shell lets what it starts in the background ignore INT, and so would every program.
    env --default-signal=INT,QUIT setsid xargs -0 -n 1 -P $at_once sh "$0" --one "$folder" <"$folder/programs" &
    programs=$!
    wait "$programs"
fi
[ ! -t 2 ] || printf '\r\033[K' >&2
if [ -n "${TIMES:-}" ]; then
    echo 'seconds  program'
    sort -k 3 -rn "$folder/counts" | awk '{ sum += $3; if (NR <= 40) printf "%7.1f  %s\n", $3, $4 }
        END { printf "%7.1f  all %d\n", sum, NR }'
fi
cat "$folder"/report.*.skipped 2>/dev/null
awk -v programs="$#" -v skipped="$(cat "$folder"/report.*.skipped 2>/dev/null | wc -l)" '
    { good += $1; bad += $2 } END { bad += programs - NR
    printf "%d passed, %d failed%s\n", good, bad, skipped ? ", " skipped " skipped" : ""; exit bad > 0 || good == 0 }' \
    "$folder/counts"

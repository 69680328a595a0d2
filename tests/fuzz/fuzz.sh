#!/bin/bash
# Fuzzes targets that `make fuzz` has built, and prints a table of them. Exit status 1 if anything was found.
# usage: fuzz.sh BUILD PLAIN SECONDS TARGET ...    seconds for each target; as many run at once as there are processors.
#                                                  PLAIN: a build without sanitizers, which tells how slow an input is
#                                                  0 seconds: only the kept inputs; status 1 also if they reach less
#                                                  than 90 % of the lines of a reader
#
# What is found lies minimised in BUILD/found; inputs that reach new code lie in BUILD/inputs and are used again. With
# FUZZ_SEED=N they are not: libFuzzer then tries the same inputs in the same order every time.
set -u
build=$1
plain=$2
seconds=$3
shift 3
library=$build/libm3ref_tests.so
found=$build/found
processors=$(nproc)                     # asked before OMP_NUM_THREADS, which it heeds
# Ceilings. Time is that of the process, not of the clock, because other programs may be running.
slow=1
options="-timeout=30 -report_slow_units=1 -malloc_limit_mb=1024 -rss_limit_mb=2560 -max_len=32768 -close_fd_mask=1"
options="$options -artifact_prefix=$build/logs/"
# Every input is as likely to be changed: libFuzzer's weights cost a tenth of the time of the quickest targets.
options="$options -entropic=0"
inputs=$build/inputs
least=90                                # per cent of the lines of each reader that the kept inputs reach
if [ "$seconds" -eq 0 ]; then
    inputs=$build/none
elif [ -n "${FUZZ_SEED:-}" ]; then
    # Neither words of paths, which hold a random name, nor files that are read again after a second.
    options="$options -seed=$FUZZ_SEED -use_memcmp=0 -reload=0"
    inputs=$build/seeded
    rm -rf "$inputs"
fi
# Less memory and no long stacks of allocations, for speed: the program run alone shows them.
export ASAN_OPTIONS=quarantine_size_mb=16:max_malloc_fill_size=0:malloc_context_size=1
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive LLVM_PROFILE_FILE=/dev/null

# What a target that crashes leaves there goes at the end.
TMPDIR=$(mktemp -d "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")/m3ref-fuzz.XXXXXX") || exit 1
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
trap 'exit 1' INT TERM

# The time that a command takes from a processor, in seconds; what it prints goes to a log.
processor_time() {
    local TIMEFORMAT='%U %S' log=$1
    shift
    { time "$@" >>"$log" 2>&1; } 2>&1 | awk '{ printf "%.2f\n", $1 + $2 }'
}

# Keeps one input for each thing that is wrong: sanitizers name its kind and place in a line.
keep() {
    local input=$1 name=$2 log=$3 kind place
    kind=$(basename "$input")
    place=$(grep -m 1 '^SUMMARY: ' "$log" | cksum | cut -d ' ' -f 1)
    [ -e "$found/$name.${kind%%-*}-$place" ] && return
    cp "$input" "$found/$name.${kind%%-*}-$place"
    cp "$log" "$found/$name.${kind%%-*}-$place.log"
    case $kind in
    crash-*) "$build/fuzzer_$name" $options -minimize_crash=1 -max_total_time=10 \
        -exact_artifact_path="$found/$name.${kind%%-*}-$place" "$input" >/dev/null 2>&1 ;;
    esac
}

# A slow input counts if the program itself is slow, without the clock, or cannot be run with it.
is_slow() {
    local inputs log taken slow_or_not
    inputs=$(mktemp -d) || exit 1
    log=$(mktemp) || exit 1
    cp "$2" "$inputs"
    taken=$(FUZZ_INPUTS=$inputs processor_time "$log" "$plain/tests/fuzz_$1")
    ! grep -qx '1 passed, 0 failed' "$log" || awk -v most="$slow" -v taken="$taken" 'BEGIN { exit !(taken > most) }'
    slow_or_not=$?
    rm -r "$inputs" "$log"
    return "$slow_or_not"
}

lines_reached() {
    local name=$1 raw=$build/logs/$1.raw files others
    files=$(awk -F '\t' -v name="$name" '$1 == name { print $2 }' tests/fuzz/readers.tsv)
    others=$(awk -F '\t' -v name="$name" '$1 == name { print $3 }' tests/fuzz/readers.tsv)
    rm -f "$raw".*
    LLVM_PROFILE_FILE=$raw.%m "$build/fuzzer_$name" $options -runs=0 "$inputs/$name" "tests/fuzz/corpus/$name" \
        >/dev/null 2>&1
    llvm-profdata merge -o "$raw.all" "$raw".[0-9]* 2>/dev/null &&
        llvm-cov report "$library" -instr-profile="$raw.all" -show-functions $files 2>/dev/null |
        awk -v others=" $others " '{ sub(/.*:/, "", $1) }
            NF >= 7 && $5 + 0 > 0 && $1 != "TOTAL" && !index(others, " " $1 " ") { lines += $5; missed += $6 }
            END { if (lines) printf "%d of %d, %.1f%%", lines - missed, lines, 100 * (lines - missed) / lines }'
    rm -f "$raw".*
}

fuzz_one() {
    local name=$1 work=$build/logs/$1 end log taken=0 runs=0 more input
    rm -rf "$work"
    mkdir -p "$work" "$inputs/$name" "$found" "tests/fuzz/corpus/$name"
    end=$((SECONDS + seconds))
    while [ "$SECONDS" -lt "$end" ]; do     # libFuzzer ends at each find
        log=$work/log
        : >"$log"
        more=$(processor_time "$log" "$build/fuzzer_$name" $options -print_final_stats=1 \
            -max_total_time=$((end - SECONDS)) -artifact_prefix="$work/" \
            "$inputs/$name" "tests/fuzz/corpus/$name")
        taken=$(awk "BEGIN { print $taken + $more }")
        runs=$((runs + $(awk '/number_of_executed_units/ { n = $2 } END { print n + 0 }' "$log")))
        for input in "$work"/crash-* "$work"/leak-* "$work"/oom-* "$work"/timeout-*; do
            [ -e "$input" ] && keep "$input" "$name" "$log" && mv "$input" "$work/kept.${input##*/}"
        done
        for input in "$work"/slow-unit-*; do
            [ -e "$input" ] && is_slow "$name" "$input" && keep "$input" "$name" "$log"
            rm -f "$input"
        done
    done
    awk -v name="$name" -v runs="$runs" -v taken="$taken" -v lines="$(lines_reached "$name")" \
        -v crashes="$(count "$name.crash" "$name.leak")" -v late="$(count "$name.slow" "$name.timeout")" \
        -v memory="$(count "$name.oom")" 'BEGIN { printf "%-14s %11d %9.0f  %-20s %7d %5d %7d\n", name, runs,
        runs / (taken > 0 ? taken : 1), lines, crashes, late, memory }' >"$build/logs/$name.row"
}

count() {
    local prefix
    for prefix in "$@"; do find "$found" -name "$prefix-*" ! -name '*.log'; done | wc -l
}

rm -rf "$found" "$build/logs"
mkdir -p "$found" "$build/logs"
for name in "$@"; do
    fuzz_one "$name" &
    [ "$(jobs -r | wc -l)" -lt "$processors" ] || wait -n
done
wait
echo 'target          executions  a second  lines of its reader  crashes  slow  memory'
for name in "$@"; do cat "$build/logs/$name.row"; done
if [ "$seconds" -eq 0 ]; then
    for name in "$@"; do cat "$build/logs/$name.row"; done | awk -v least="$least" '
        !($5 == "of" && $4 >= least / 100 * $6) { few++; print $1 ": expected " least " % of the lines" }
        END { exit few > 0 }'
else
    echo "$(count '*') found$([ -n "$(ls "$found")" ] && echo ", in $found")"
    [ -z "$(ls "$found")" ]
fi

#!/bin/sh
# Looks for data races in the program and in tests that use several threads: ThreadSanitizer of clang, with Archer, which
# knows the order that OpenMP gives (gcc's libgomp tells nobody, so races are reported that are none).
# usage: tsan.sh BUILD
set -u
build=$1
programs=$build/m3ref
for test in context weight fingerprint forward experts_f32 rows judge; do
    programs="$programs $build/tests/test_$test"
done
. "$(dirname "$0")/../needs.sh"
needs clang:clang
make -s -j"$(nproc)" BUILD="$build" CC=clang SANITIZE=-fsanitize=thread $programs || exit 1
. tests/support/verdict.sh

# OpenBLAS and OpenMP's own library are not compiled for it; what they synchronise is nevertheless seen.
export TSAN_OPTIONS='ignore_noninstrumented_modules=1 exitcode=99' OMP_NUM_THREADS=4 OMP_WAIT_POLICY=passive BUILD="$build"
export CK_TIMEOUT_MULTIPLIER=20

# ---- the tool: it must see a race, and must not see one where there is none
clang -O1 -g -fopenmp -fsanitize=thread -o "$folder/race" tests/sanitizers/race.c || exit 1
"$folder/race" racy >"$folder/out" 2>&1
grep -q 'SUMMARY: ThreadSanitizer: data race .*race\.c' "$folder/out" ||
    { echo 'make tsan: the tool sees nothing: no report for the race in tests/sanitizers/race.c' >&2; exit 1; }
"$folder/race" ordered >"$folder/out" 2>&1 ||
    { echo 'make tsan: the tool reports a race in a reduction: is libomp.so without libarcher.so?' >&2; exit 1; }

# look NAME STATUSES COMMAND...: what the command reports; another status is a finding too
look() {
    name=$1 statuses=$2
    shift 2
    "$@" >"$folder/out" 2>&1
    status=$?
    { grep -A 25 'WARNING: ThreadSanitizer' "$folder/out"; echo " $statuses " | grep -q " $status " || {
        echo "status $status"; tail -n 5 "$folder/out"; }; } >"$folder/findings"
    verdict "$name" "$folder/findings"
}

m3ref=$build/m3ref tiny=golden/tiny/model case=golden/tiny/case.safetensors block=golden/block128
for linear in blas ordered; do
    look "run $linear" 0 "$m3ref" run $tiny --case $case --threads 4 --linear $linear --dump "$folder/dump"
done
look 'run block128' 0 "$m3ref" run $block/model --case $block/case.safetensors --threads 4 --dump "$folder/block"
look 'run f64' 0 "$m3ref" run $tiny --case $case --threads 4 --precision f64 --bounds --profile bf16 --dump "$folder/truth"
look 'run plain' 0 "$m3ref" run $tiny --case $case --threads 4 --ops plain
look 'generate' 0 "$m3ref" generate golden/mtp/model --ids 1,2,3 --max-new 8 --speculative --threads 4
look 'compare' 0 "$m3ref" compare golden/tiny/golden.safetensors.gz "$folder/dump"
look 'compare, large' 0 "$m3ref" compare $block/golden.safetensors.gz "$folder/block"
look 'compare, companions' '0 2' "$m3ref" compare "$folder/truth" "$folder/dump" --profile bf16 --html "$folder/html"
look 'blame' '0 2' "$m3ref" blame $tiny "$folder/dump" --case $case --profile bf16 --threads 4
look 'check' '0 2' "$m3ref" check $tiny "$folder/dump" --case $case --profile bf16 --threads 4 --row-runs 8
look 'check, answer' 0 "$m3ref" check $tiny tests/candidates/answer_vllm.json --profile bf16 --threads 4 --row-runs 4
look 'envelope' 0 "$m3ref" envelope $tiny --case $case --profile bf16 --runs 4 --threads 4 --out "$folder/envelope"
look 'synth' 0 "$m3ref" synth golden/tiny/model/config.json "$folder/model"
for op in linear attend_full attend_blocks block_scores experts swiglu_oai rms_norm layer_norm rope moe_block; do
    for step in "--make $folder/cases --sizes small" "--run $folder/cases $folder/results --threads 4" \
        "--check $folder/cases $folder/results --threads 4"; do
        look "op $op ${step%% *}" 0 "$m3ref" op $op $step
    done
done
for program in ${programs#* }; do
    look "${program##*/}" 0 "$program"
done
end

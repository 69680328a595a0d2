#!/bin/sh
# The program's commands under valgrind's memcheck: no invalid access, no use of undefined values, no leak.
# usage: valgrind.sh BUILD
#
# valgrind reports no AVX-512 to the program, so another body of the kernels runs than under the other sanitizers.
set -u
build=$1
. "$(dirname "$0")/../needs.sh"
needs valgrind:valgrind
. tests/support/verdict.sh
# All that ref/cli/start.c would set: valgrind does not follow a program that is started again.
export OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

memcheck() {
    valgrind -q --error-exitcode=99 --leak-check=full --show-leak-kinds=definite,indirect \
        --errors-for-leak-kinds=definite,indirect "$@"
}

# ---- the tool: it must see a read of memory that was freed
cat >"$folder/seen.c" <<'C'
#include <stdlib.h>
int main(void)
{
    volatile char *byte = malloc(1);
    *byte = 1;
    free((void *)byte);
    return *byte == 2;
}
C
gcc -g -O0 -w -o "$folder/seen" "$folder/seen.c" || exit 1
memcheck "$folder/seen" >"$folder/out" 2>&1
grep -q 'Invalid read' "$folder/out" || { echo 'make valgrind: the tool sees nothing' >&2; exit 1; }

# look NAME STATUSES ARGUMENTS...: a command of the program
look() {
    name=$1 statuses=$2
    shift 2
    memcheck "$build/m3ref" "$@" >"$folder/out" 2>&1
    status=$?
    { grep '^==' "$folder/out"; echo " $statuses " | grep -q " $status " || {
        echo "status $status"; tail -n 5 "$folder/out"; }; } >"$folder/findings"
    verdict "$name" "$folder/findings"
}

tiny=golden/tiny/model case=golden/tiny/case.safetensors c=tests/candidates
look 'run' 0 run $tiny --case $case --dump "$folder/dump"
look 'run --bounds' 0 run $tiny --ids 1,2,3 --precision f64 --bounds --profile bf16 --dump "$folder/truth"
look 'run --ops' 0 run $tiny --ids 1,2,3 --ops "./$build/tests/plain_table.so"
look 'run, MXFP8' 0 run golden/mxfp8/model --case golden/mxfp8/case.safetensors
look 'run --cache-out' 0 run golden/mtp/model --ids 1,2,3 --cache-out "$folder/cache"
look 'run --cache-in' 0 run golden/mtp/model --ids 33 --cache-in "$folder/cache"
look 'generate' 0 generate golden/mtp/model --ids 1,2,3 --max-new 4 --speculative
look 'compare' 0 compare golden/tiny/golden.safetensors.gz "$folder/dump" --html "$folder/html" --junit "$folder/xml"
look 'compare, not comparable' 3 compare golden/tiny/golden.safetensors.gz $c/bf16_without_plus_one.safetensors.gz \
    --map transformers --profile bf16 --json --force
look 'blame' 0 blame $tiny "$folder/dump" --case $case --html "$folder/html"
look 'check' '0 2' check $tiny "$folder/dump" --case $case --row-runs 2
look 'check, answer' 0 check $tiny $c/answer_vllm.json --profile bf16 --row-runs 2 --no-causes
look 'envelope' 0 envelope $tiny --ids 1,2,3 --profile bf16 --runs 2 --out "$folder/envelope"
look 'synth' 0 synth golden/tiny/model/config.json "$folder/model"
look 'synth --dtype' 0 synth golden/fourbit/model/config.json "$folder/coded" --dtype nvfp4
look 'inspect' 0 inspect $tiny
look 'estimate' 0 estimate golden/configs/minimax-m3.json --context 4K,128K --batch 1,8 --json
look 'prompt' 0 prompt $tiny --tokens 16 --draws 1 --out "$folder/prompt.json"
for op in rms_norm linear experts; do
    look "op $op --make" 0 op $op --make "$folder/cases" --cases 1
    look "op $op --run" 0 op $op --run "$folder/cases" "$folder/results"
    look "op $op --check" 0 op $op --check "$folder/cases" "$folder/results"
done
look 'op --ops' 0 op rms_norm --cases 1 --ops "./$build/tests/plain_table.so"

# ---- files that are wrong
head -c 1000 $tiny/model.safetensors >"$folder/cut.safetensors"
look 'inspect of a cut file' 65 inspect "$folder/cut.safetensors"
look 'compare with a cut file' 65 compare golden/tiny/golden.safetensors.gz "$folder/cut.safetensors"
printf '{"choices": [' >"$folder/answer.json"
look 'check with a broken answer' 65 check $tiny "$folder/answer.json" --profile bf16
end

#!/bin/sh
# Puts mistakes into the kernels, one at a time, and demands that tests/cuda/test_kernels.cc fails on a CPU.
# Last line: N caught, N survived. About three minutes. usage: mutations.sh [BUILD]      after `make test-programs`
set -u
build=${1:-build}
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
flags='-std=gnu++17 -O2 -g -ffp-contract=off -fno-strict-aliasing -fPIC -Wno-unknown-pragmas -Itests/cuda/on_cpu -Itests/support -Iref'
flags="$flags $(grep -owq -m 1 fma /proc/cpuinfo && echo -mfma)"
caught=0
survived=0

# mutant FILE CASE WHAT EXPRESSION
mutant() {
    sed "$4" "ref/cuda/$1.cu" >"$folder/$1.cu"
    if cmp -s "ref/cuda/$1.cu" "$folder/$1.cu"; then
        echo "SURVIVED  $1: $3: nothing was changed"
        survived=$((survived + 1))
        return
    fi
    # shellcheck disable=SC2086
    g++ $flags -x c++ -c -o "$folder/mutant.o" "$folder/$1.cu" || exit 1
    set -- "$@" "$folder/mutant.o" "$build/tests/cuda/launcher.o" "$build/tests/cuda/on_cpu.o"
    for source in ref/cuda/*.cu; do
        other=$(basename "$source" .cu)
        case $other in "$1" | table | memory) ;; *) set -- "$@" "$build/tests/cuda/$other.o" ;; esac
    done
    case=$2 what=$3 file=$1
    shift 4
    # shellcheck disable=SC2046
    g++ -o "$folder/test" "$folder/test.o" "$build/tests/harness.o" "$@" $(pkg-config --libs check) || exit 1
    if CK_RUN_CASE=$case CK_TIMEOUT_MULTIPLIER=10 "$folder/test" >"$folder/said" 2>&1; then
        echo "SURVIVED  $file: $what"
        survived=$((survived + 1))
    else
        echo "caught    $file: $what: $(grep -m 1 ':[FE]:' "$folder/said" | sed 's/.*kernels.cc[^ ]*:[FE]://')"
        caught=$((caught + 1))
    fi
}

# shellcheck disable=SC2046,SC2086
g++ $flags $(pkg-config --cflags check) -c -o "$folder/test.o" tests/cuda/test_kernels.cc || exit 1

mutant scores scores 'negated score' 's/s = fmaf(q\[x\], k\[x\], s)/s = fmaf(-q[x], k[x], s)/'
mutant scores scores 'constant output' 's/most \* a.scale);$/1);/'
mutant scores scores 'lost keys' 's/key += M3_WARP)/key += 2 * M3_WARP)/'
mutant scores_few scores 'negated score' 's/max_nan(most\[e % 2\], d\[e\])/max_nan(most[e % 2], -d[e])/'
mutant scores_few scores 'constant output' 's/blockIdx.x, most \* a->scale/blockIdx.x, 1/'
mutant scores_few scores 'lost tile' 's/for (int i = 0; i < TILES; i++)/for (int i = 1; i < TILES; i++)/'
mutant scores_few scores 'hidden keys seen' 's/ && !m3_score_hidden(&a, j, end))/)/'
mutant scores_bf16 scores 'negated score' 's/max_nan(most\[2 \* i + e \/ 2\], s\[i\]\[j\]\[e\])/max_nan(most[2 * i + e \/ 2], -s[i][j][e])/'
mutant scores_bf16 scores 'constant output' 's/b, most\[n\] \* a->scale/b, 1/'
mutant scores_bf16 scores 'lost tile' 's/for (int key = 0; key < n/for (int key = 16; key < n/'
mutant scores_bf16 scores 'no mask' 's/if (masked) mask/if (0) mask/'
mutant select selection 'lower scores first' 's/    bits = bits >> 31 ? ~bits : bits | 0x80000000u;/    bits = bits >> 31 ? bits : ~bits;/'
mutant select selection 'higher id of a tie' 's/(0xffffffffu - (unsigned)b)/(unsigned)b/;s/(int32_t)(0xffffffffu - (unsigned)top)/(int32_t)(unsigned)top/'
mutant select selection 'a lane that does not look again' 's/if (key < top) next = larger(next, key);/next = 0;/'
mutant attend_plain attention 'negated score' 's/sees ? scale \* dot/sees ? -scale * dot/'
mutant attend_plain attention 'constant output' 's/any ? o_row\[e\] \/ sum : 0/0.25f/'
mutant attend_plain attention 'lost keys' 's/first += M3_WARP) {/first += 2 * M3_WARP) {/'
mutant attend_plain attention 'sums that do not shrink' 's/o_row\[e\] \*= shrink;//'
mutant attend_few attention 'negated score' 's/-INFINITY : \*logit \* scale/-INFINITY : -*logit * scale/'
mutant attend_few attention 'constant output' 's/o\[i \/ 4\]\[i % 4\]);/1);/'
mutant attend_few attention 'lost tile' 's/for (int j = 0; j < M3_ATTEND_KEYS; j += 16)/for (int j = 16; j < M3_ATTEND_KEYS; j += 16)/'
mutant attend_bf16 attention 'negated score' 's/? s\[n\]\[e\] \* scale : -INFINITY/? -s[n][e] * scale : -INFINITY/'
mutant attend_bf16 attention 'constant output' 's/put_pair(o + i, rows->o\[n\]\[2 \* r\]/put_pair(o + i, 1/'
mutant attend_bf16 attention 'lost tile' 's/for (int step = 0; step < KEYS \/ 16; step++)/for (int step = 1; step < KEYS \/ 16; step++)/'
mutant attend_bf16 attention 'next rows not loaded' 's/load_queries(a, q, piece, members, tile, chunk, row0 + WARPS \* ROWS);/;/'
mutant attend_combine attention 'parts without their maxima' 's/expf(sums.x - m3_attend_base(max))/1/'
mutant attend_combine attention 'lost part' 's/for (int64_t i = 0; i < parts; i++)/for (int64_t i = 1; i < parts; i++)/'
mutant members attention 'a member twice' 's/\& ((1u << row % 32) - 1)/\& ((1u << row % 32) - 2)/'
mutant linear_few matrices 'negated product' 's/fmaf(ws\[c\]\[i\], xs/fmaf(-ws[c][i], xs/'
mutant linear_few matrices 'constant output' 's/n, mine, next);/n, 1, 1);/'
mutant linear_few matrices 'lost load' 's/for (int i = 0; i < AHEAD \* N; i += PART)/for (int i = PART; i < AHEAD * N; i += PART)/'
mutant linear_few matrices 'a scale of the step before' 's/m3_load_run(w\[c\], col + a \* M3_WARP \* N/m3_load_run(w[c], col + (a ? a - 1 : 0) * M3_WARP * N/'
mutant linear_few mlps 'a row of another token' 's/\*of_x = (int32_t)((!p.few ? p.members.list\[found\] : found) \/ p.K)/*of_x = 0/'
mutant linear_bf16 matrices 'negated product' 's/y\[1\] = sums\[i \/ 2\]/y[1] = -sums[i \/ 2]/'
mutant linear_bf16 matrices 'constant output' 's/n, y\[0\], y\[1\]);/n, 1, 1);/'
mutant linear_bf16 matrices 'lost tile' 's/for (int k = 0; k < DEPTH; k += 16)/for (int k = 16; k < DEPTH; k += 16)/'
mutant linear_bf16 mlps 'a scale of the step before' 's/scale_bits(w, (int64_t)(step + 1) \* DEPTH/scale_bits(w, (int64_t)step * DEPTH/'
mutant experts mlps 'no factor' 's/factor \* sum;/sum;/'
mutant experts mlps 'lost expert' 's/for (int64_t i = 0; i < K; i++) {/for (int64_t i = 1; i < K; i++) {/'

echo "$caught caught, $survived survived"
[ "$survived" -eq 0 ] && [ "$caught" -gt 0 ]

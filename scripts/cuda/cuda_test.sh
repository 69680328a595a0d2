#!/bin/sh
# The CUDA kernels on a device, in parts that take less than five minutes each and set nothing up:
#   operators  the tests of the operators, and of the kernels at released sizes
#   models     goldens in fp32 and on tensor cores, against the public code's values and by the bounds of each operator;
#              the same bits in two runs; refusals
#   decode     generated tokens; the kernels for few rows; no device
#   bench      speeds, one JSON line each, into $BUILD/cuda_bench.jsonl
#   sanitizer  compute-sanitizer, if it is installed
# Last line: N passed, N failed. Without a device: the reason, and exit status 69.
# usage: [BUILD=build] scripts/cuda/cuda_test.sh PART ...        from a checkout after `make cuda-tests`, or from an archive
#                                                           of `make cuda-pack`
# OPS=BUILD/tests/cuda_on_cpu.so does the same on a CPU, to see that it works.
set -u
cd "$(dirname "$0")/../.." || exit 70
build=${BUILD:-build}
parts=${*:-operators models decode bench sanitizer}
ops=${OPS:-cuda}
m3ref=$build/m3ref
if [ "$ops" = cuda ]; then
    tests=device none=cuda bench=$build/cuda_bench kernels=test_kernels_device
else
    tests=cuda none=$build/tests/cuda_no_device.so bench="$build/tests/cuda_bench --small" kernels=test_kernels
fi
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
passed=0
failed=0

# verdict STATUS WHAT: status 0 is a pass, any other is not: of compare, 2 (suspect or partial) too
verdict() {
    if [ "$1" -eq 0 ]; then
        passed=$((passed + 1))
        echo "pass  $2"
    else
        failed=$((failed + 1))
        echo "FAIL  $2"
    fi
}

# run MODEL DUMP WORDS [OPTIONS]: the case of a golden through the kernels
run() {
    "$m3ref" run "golden/$1/model" --case "golden/$1/case.safetensors" --ops "$ops$3" --dump "$2" ${4-} \
        >"$folder/run.txt" 2>&1
    status=$?
    [ "$status" -eq 0 ] || tail -n 3 "$folder/run.txt"
    return "$status"
}

# compare WHAT REFERENCE DUMP PROFILE: all stages pass; choices that differ may be admissible ones. A dump of a run
# holds every tap, so that each must be judged: partial is a failure here, as suspect is.
compare() {
    "$m3ref" compare "$2" "$3" --profile "$4" >"$folder/compare.txt" 2>&1
    status=$?
    case $status in
    0) ;;
    2) grep -m 4 '^suspect \|^not judged' "$folder/compare.txt" ;;
    *) grep -m 4 '^fail\|^not comparable\|^note' "$folder/compare.txt" || tail -n 4 "$folder/compare.txt" ;;
    esac
    verdict "$status" "$1: $(tail -n 1 "$folder/compare.txt")"
}

# refused WHAT STATUS TEXT COMMAND ...: must end with the status and name the reason
refused() {
    what=$1 expected=$2 text=$3
    shift 3
    "$@" >"$folder/refused.txt" 2>&1
    status=$?
    [ "$status" -eq "$expected" ] && grep -q "$text" "$folder/refused.txt"
    verdict $? "$what: status $status: $(tail -n 1 "$folder/refused.txt")"
}

# twice WHAT MODEL WORDS OPTIONS: two runs give the same bytes, under one name, because a dump contains its command
twice() {
    what=$1 words=$3
    run "$2" "$folder/dump" "$words" "$4"
    verdict $? "$what: runs"
    mv "$folder/dump" "$folder/first"
    run "$2" "$folder/dump" "$words" "$4" && cmp "$folder/first" "$folder/dump"
    verdict $? "$what: the same bytes in two runs"
}

# golden MODEL [OPTIONS]: fp32 and bf16; against the public code's values, and by the bounds of every operator on its
# own inputs: profile cuda_bf16 says what the kernels round.
golden() {
    "$m3ref" run "golden/$1/model" --case "golden/$1/case.safetensors" --precision f64 --bounds \
        --dump "$folder/truth" ${2-} >"$folder/run.txt" 2>&1 || tail -n 3 "$folder/run.txt"
    for type in fp32 bf16; do
        if [ $type = fp32 ]; then exact=fp32; else exact=cuda_bf16; fi
        twice "$1, $type" "$1" ",$type" "${2-}"
        case $1,$type in
        block128,bf16 | f8block,bf16) ;;    # profile bf16 is too wide to judge all of their taps; the bounds are not
        *) compare "$1, $type, golden" "golden/$1/golden.safetensors.gz" "$folder/dump" $type ;;
        esac
        compare "$1, $type, bounds" "$folder/truth" "$folder/dump" $exact
        rm -f "$folder/first" "$folder/dump"
    done
    rm -f "$folder/truth"
}

# checked TOOL WORDS: compute-sanitizer finds nothing in a short run
checked() {
    compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 3 "$m3ref" run golden/tiny/model \
        --case golden/tiny/case.safetensors --ops "$ops$2" >"$folder/checked.txt" 2>&1
    status=$?
    if grep -q 'Device not supported' "$folder/checked.txt"; then
        echo "skipped: compute-sanitizer $1: $(grep -m 1 'Device not supported' "$folder/checked.txt")"
        return
    fi
    [ "$status" -eq 0 ] || head -n 12 "$folder/checked.txt"
    verdict "$status" "compute-sanitizer $1$2: $(grep 'SUMMARY' "$folder/checked.txt" | tail -n 1)"
}

"$m3ref" run golden/mtp/model --ids 1 --ops "$ops" >"$folder/run.txt" 2>&1
if [ $? -eq 69 ]; then
    tail -n 1 "$folder/run.txt"
    exit 69
fi

# tested PROGRAM ...: every test is a process that opens the device again, which may take seconds.
tested() {
    CK_TIMEOUT_MULTIPLIER=${CK_TIMEOUT_MULTIPLIER:-20}
    export CK_TIMEOUT_MULTIPLIER
    tests/run.sh "$@" >"$folder/operators.txt" 2>&1
    sed '$d' "$folder/operators.txt"
    counts=$(tail -n 1 "$folder/operators.txt")
    good=${counts%% passed*} bad=${counts##* passed, }
    passed=$((passed + good))
    failed=$((failed + ${bad%% failed}))
}

operators() {
    set --
    for operator in linear block_scores select_blocks attend_blocks route experts; do
        set -- "$@" "$build/tests/test_${operator}_$tests"
    done
    tested "$@"
}

# Two models have index heads wider than any kernel supports: their first layer, which has none, and a refusal.
models() {
    golden mtp
    golden tiny
    golden block128
    for model in mxfp8 f8block; do
        golden "$model" '--layers 0:1'
        refused "$model, whole" 69 'no kernel computes an index head of more than 128 channels' "$m3ref" run \
            "golden/$model/model" --case "golden/$model/case.safetensors" --ops "$ops"
    done
    refused 'an unknown word' 64 'expected fp32 or bf16' "$m3ref" run golden/mtp/model --ids 1 --ops "$ops,fp8"
    refused 'ordered sums' 69 'not ordered' "$m3ref" run golden/mtp/model --ids 1 --ops "$ops" --linear ordered
    refused 'double' 69 'expected ABI [0-9]* with 8 bytes' "$m3ref" run golden/mtp/model --ids 1 --ops "$ops" \
        --precision f64
    for reading in pool=lse selection=union; do
        refused "$reading" 69 "no kernel computes $reading" "$m3ref" run golden/tiny/model \
            --case golden/tiny/case.safetensors --set "$reading" --ops "$ops"
    done
}

decode() {
    tested "$build/tests/$kernels"
    expected=$(tr -d ' \n' <golden/mtp/generate.json | sed 's/.*"tokens":\[\([0-9,]*\)\].*/\1/')
    for how in '' --speculative; do
        "$m3ref" generate golden/mtp/model --ids 1,2,3 --max-new 32 $how --ops "$ops" >"$folder/generate.txt" 2>&1 &&
            grep -qx "tokens: $expected" "$folder/generate.txt"
        verdict $? "mtp, generate $how: the public code's 32 tokens"
    done
    refused 'no device' 69 'no device' env CUDA_VISIBLE_DEVICES= "$m3ref" run golden/mtp/model --ids 1 --ops "$none"
}

bench() {
    $bench >"$build/cuda_bench.jsonl"
    verdict $? "bench: $(wc -l <"$build/cuda_bench.jsonl") lines in $build/cuda_bench.jsonl"
}

sanitizer() {
    if [ "$ops" != cuda ]; then
        echo 'skipped: compute-sanitizer: no device (make asan checks the kernels on a CPU)'
    elif ! command -v compute-sanitizer >/dev/null; then
        echo 'skipped: compute-sanitizer is not there'
    else
        for tool in memcheck racecheck initcheck synccheck; do
            checked "$tool" ,fp32
            checked "$tool" ,bf16
        done
    fi
}

for part in $parts; do
    case $part in
    operators | models | decode | bench | sanitizer) "$part" ;;
    *) echo "cuda_test.sh: got $part, expected operators, models, decode, bench or sanitizer" >&2; exit 64 ;;
    esac
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]

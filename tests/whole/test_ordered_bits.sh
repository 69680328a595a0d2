#!/bin/sh
# Float dumps and gradients with ordered sums have the recorded bits, tap by tap and parameter by parameter, on every
# machine, compiler and number of threads. The hashes in tests/whole/ordered_*.sha256 were recorded when every tap agreed
# with its golden (tests/model/test_forward.c), and every gradient with its (tests/train/test_grad.sh).
# Seen to fail with -ffp-contract=fast -mfma; with the rows of a key summed from the last to the first.
build=${BUILD:-build}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
passed=0
failed=0

# judge NAME: the dump, against the record
judge() {
    "$build/m3ref" inspect --sha256 "$folder/d.safetensors" | grep -v '\.experts\.bias$' | sort -k 2 >"$folder/sums"
    if diff "tests/whole/ordered_$1.sha256" "$folder/sums" >"$folder/diff"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        first=$(sed -n 's/^> [0-9a-f]*  //p' "$folder/diff" | head -n 1)
        echo "ordered $1: other bits than recorded: $(grep -c '^>' "$folder/diff"), first $first"
    fi
    rm -f "$folder"/*
}

# check NAME MODEL CASE
check() {
    "$build/m3ref" run "$2" --case "$3" --linear ordered --threads 3 --dump "$folder/d.safetensors" >/dev/null
    judge "$1"
}

# check_gradient NAME MODEL CASE LOSSES OPTION...
check_gradient() {
    name=$1 model=$2 case=$3 losses=$4
    shift 4
    "$build/m3ref" grad "golden/$model/model" --case "golden/train/$case.safetensors" --loss "$losses" --linear ordered \
        --dump "$folder/d.safetensors" "$@" >/dev/null
    judge "$name"
}

for case in tiny block128 mxfp8 f8block; do
    check $case golden/$case/model golden/$case/case.safetensors
done
check video golden/tiny/model golden/vision/video_case.safetensors
for threads in 1 3; do
    check_gradient grad_tiny tiny case lm,aux,kl --threads $threads
    check_gradient grad_picture tiny picture_case lm --threads $threads
    check_gradient grad_mtp mtp all_case lm,mtp,aux,kl --threads $threads
    check_gradient grad_double mtp all_case lm,mtp,aux,kl --threads $threads --precision f64
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]

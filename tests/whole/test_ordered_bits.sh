#!/bin/sh
# Float dumps and gradients with ordered sums have the recorded bits, tap by tap and parameter by parameter, on every
# machine, compiler and number of threads. The hashes in tests/whole/ordered_*.sha256 were recorded when every tap agreed
# with its golden (tests/model/forward/test_forward.c), and every gradient with its (tests/train/test_grad.sh). Of the models,
# cases and readings of ordered.tsv one hash is kept, of that list.
# Seen to fail with -ffp-contract=fast -mfma; with the rows of a key summed from the last to the first.
build=${BUILD:-build}
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
passed=0
failed=0

# check NAME MODEL CASE [THREADS LOSSES PRECISION]: the taps, or the gradients, against the record
check() {
    name=$1 model=$2 case=$3 threads=${4:-3}
    shift "$(($# < 4 ? $# : 4))"
    "$build/tests/ordered_bits" "$folder/dump" "$threads" "$model" "$case" "$@" >"$folder/all"
    grep -v '\.experts\.bias$' "$folder/all" | sort -k 2 >"$folder/sums"
    if diff "tests/whole/ordered_$name.sha256" "$folder/sums" >"$folder/diff"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        first=$(sed -n 's/^> [0-9a-f]*  //p' "$folder/diff" | head -n 1)
        echo "ordered $name: other bits than recorded: $(grep -c '^>' "$folder/diff"), first $first"
    fi
    rm -f "$folder"/*
}

for case in tiny block128 mxfp8 f8block; do
    check $case golden/$case/model golden/$case/case.safetensors
done
check video golden/tiny/model golden/vision/video_case.safetensors
for threads in 1 3; do
    check grad_tiny golden/tiny/model golden/train/case.safetensors $threads lm,aux,kl f32
    check grad_picture golden/tiny/model golden/train/picture_case.safetensors $threads lm f32
    check grad_mtp golden/mtp/model golden/train/all_case.safetensors $threads lm,mtp,aux,kl f32
    check grad_double golden/mtp/model golden/train/all_case.safetensors $threads lm,mtp,aux,kl f64
done

# What differs is found by `ordered_bits` of this program beside that of the last one.
tail -n +2 tests/whole/ordered.tsv >"$folder/rows"
while read -r recorded name model case reading; do
    # shellcheck disable=SC2086
    "$build/tests/ordered_bits" "$folder/dump" 2 "$model" "$case" $reading >"$folder/all"
    got=$(grep -v '\.experts\.bias$' "$folder/all" | sort -k 2 | sha256sum | cut -d ' ' -f 1)
    if [ "$got" = "$recorded" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "ordered $name: other bits than recorded"
    fi
done <"$folder/rows"

# Other records belong to another number of the arithmetic, so that what an earlier program kept is made again.
number=$(sed -n 's/^#define M3_ARITHMETIC "\([0-9]*\)"$/\1/p' ref/base/version.h)
recorded=$(cat tests/whole/ordered_*.sha256 tests/whole/ordered.tsv | sha256sum | cut -d ' ' -f 1)
if [ "$number $recorded" = "$(cat tests/whole/arithmetic)" ]; then
    passed=$((passed + 1))
else
    failed=$((failed + 1))
    echo "M3_ARITHMETIC: got $number with the records $recorded, tests/whole/arithmetic states $(cat tests/whole/arithmetic)"
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]

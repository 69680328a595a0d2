#!/bin/sh
# Float dumps with ordered sums have the recorded bits, tap by tap, on every machine, compiler and number of threads.
# The hashes in tests/whole/ordered_*.sha256 were recorded when every tap agreed with its golden (tests/model/test_forward.c).
# Seen to fail with -ffp-contract=fast -mfma.
build=${BUILD:-build}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
passed=0
failed=0

# check NAME MODEL CASE
check() {
    "$build/m3ref" run "$2" --case "$3" --linear ordered --threads 3 --dump "$folder/d.safetensors" >/dev/null &&
        "$build/m3ref" inspect --sha256 "$folder/d.safetensors" | grep -v '\.bias$' | sort -k 2 >"$folder/sums"
    if diff "tests/whole/ordered_$1.sha256" "$folder/sums" >"$folder/diff"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        first=$(sed -n 's/^> [0-9a-f]*  //p' "$folder/diff" | head -n 1)
        echo "ordered $1: taps with other bits than recorded: $(grep -c '^>' "$folder/diff"), first $first"
    fi
    rm -f "$folder"/*
}

for case in tiny block128 mxfp8 f8block; do
    check $case golden/$case/model golden/$case/case.safetensors
done
check video golden/tiny/model golden/vision/video_case.safetensors
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]

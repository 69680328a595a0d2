#!/bin/sh
# Float dumps with ordered sums have the recorded bits, tap by tap, on every machine, compiler and number of threads.
# The hashes in tests/ordered_*.sha256 were recorded when every tap agreed with its golden (tests/test_forward.c).
# Seen to fail with -ffp-contract=fast -mfma.
build=${BUILD:-build}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
passed=0
failed=0
for case in tiny block128 mxfp8 f8block; do
    "$build/m3ref" run golden/$case/model --case golden/$case/case.safetensors --linear ordered --threads 3 \
        --dump "$folder/d.safetensors" >/dev/null && "$build/m3ref" inspect --sha256 "$folder/d.safetensors" | sort -k 2 >"$folder/sums"
    if diff tests/ordered_$case.sha256 "$folder/sums" >"$folder/diff"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "ordered $case: taps with other bits than recorded: $(grep -c '^>' "$folder/diff"), first $(sed -n 's/^> [0-9a-f]*  //p' "$folder/diff" | head -n 1)"
    fi
    rm -f "$folder"/*
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]

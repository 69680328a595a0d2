#!/bin/sh
# The bench of the CUDA kernels runs on a CPU at tiny sizes, its checks of outputs included, and says what it should.
# Seen to fail with a kernel that leaves an output unwritten, and with a measurement left out.
build=${BUILD:-build}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
passed=0
failed=0

# verdict STATUS WHAT
verdict() {
    if [ "$1" -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "cuda_bench: $2"
    fi
}

"$build/tests/cuda_bench" --small >"$folder/lines" 2>"$folder/errors"
verdict $? "ends with status $?: $(cat "$folder/errors")"
# The device, a copy; for 3 sizes in bf16 and 2 in float: 3 parts of prefill, 4 of decoding, linear, experts.
[ "$(grep -c '^{"what": ".*}$' "$folder/lines")" -eq 47 ]
verdict $? "got $(wc -l <"$folder/lines") lines, expected 47"
! grep -qi 'nan\|inf' "$folder/lines"
verdict $? "$(grep -i 'nan\|inf' "$folder/lines")"
"$build/tests/cuda_bench" --smal >"$folder/lines" 2>"$folder/errors"
[ $? -eq 64 ] && grep -q '^usage: cuda_bench' "$folder/errors"
verdict $? "an unknown option: $(cat "$folder/errors")"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]

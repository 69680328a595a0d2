#!/bin/sh
# The bench of the CUDA kernels runs on a CPU at tiny sizes, its checks of outputs included, and says what it should.
# Seen to fail with a kernel that leaves an output unwritten, with wrong outputs, and with a measurement left out.
build=${BUILD:-build}
folder=$(mktemp -d) || exit 1
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
# The device, a copy; in bf16 for 2 sizes 3 parts of prefill and 4 of decoding, for 4 numbers of tokens linear and
# experts in BF16 and MXFP8; in float 9.
[ "$(grep -c '^{"what": ".*}$' "$folder/lines")" -eq 37 ]
verdict $? "got $(wc -l <"$folder/lines") lines, expected 37"
! grep -qi 'nan\|inf' "$folder/lines"
verdict $? "$(grep -i 'nan\|inf' "$folder/lines")"
"$build/tests/cuda_bench" --smal >"$folder/lines" 2>"$folder/errors"
[ $? -eq 64 ] && grep -q '^usage: cuda_bench' "$folder/errors"
verdict $? "an unknown option: $(cat "$folder/errors")"

# Without PyTorch, which this interpreter does not look for: our rows, and the requirements that need no other.
python3 -S scripts/cuda/cuda_bench.py "$build/tests/cuda_bench" --small --json "$folder/rows.json" >"$folder/table" 2>&1
verdict $? "without PyTorch: $(tail -n 1 "$folder/table")"
[ "$(grep -c '"what": "ours: ' "$folder/rows.json")" -ge 36 ]
verdict $? 'without PyTorch: rows are missing'
# A program that takes too long: the rows that it has printed are kept.
cat >"$folder/slow" <<PROGRAM
#!/bin/sh
head -n 5 "$folder/kept"
exec sleep 60
PROGRAM
chmod +x "$folder/slow"
"$build/tests/cuda_bench" --small >"$folder/kept"
python3 -S scripts/cuda/cuda_bench.py "$folder/slow" --small --limit 2 --json "$folder/rows.json" >"$folder/table" 2>&1
[ $? -eq 1 ] && [ "$(grep -c '"what": "ours: ' "$folder/rows.json")" -ge 4 ] && grep -q 'took longer than 2 s' "$folder/table"
verdict $? "a program that takes too long: $(tail -n 1 "$folder/table")"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]

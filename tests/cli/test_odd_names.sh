#!/bin/sh
# Files whose names are not UTF-8, and steer a terminal: every command reads and writes them, and what it prints, as text,
# JSON, HTML or XML, is UTF-8 without those characters.
# Seen to fail with: the sentence of check put into JSON as it is (70, "no memory for 0 bytes"), and printed as it is; the
# path of estimate's config printed as it is.
m3ref=${BUILD:-build}/m3ref
. tests/support/verdict.sh
odd() { printf '%s/%s\377\033[31m' "$folder" "$1"; }
model=$(odd model) case=$(odd case) dump=$(odd dump) truth=$(odd truth) cases=$(odd cases) results=$(odd results)
answer=$(odd answer).json profile=$(odd profile).json map=$(odd map).json config=$(odd config).json report=$(odd report)
cp -r golden/tiny/model "$model"
cp golden/tiny/case.safetensors "$case"
cp tests/candidates/answer_vllm.json "$answer"
cp ref/oracle/error/profiles/bf16.json "$profile"
cp ref/oracle/map/maps/vllm.json "$map"
cp golden/configs/minimax-m3.json "$config"

# prints NAME STATUS ARGUMENTS..: that status, and UTF-8 that steers nothing, here and in the report's files.
prints() {
    name=$1 expected=$2
    shift 2
    "$m3ref" "$@" >"$folder/out" 2>"$folder/errors"
    status=$?
    {
        [ $status -eq "$expected" ] || { echo "got status $status, expected $expected" && head -n 2 "$folder/errors"; }
        for file in "$folder/out" "$folder/errors" "$report"*; do
            [ ! -e "$file" ] || iconv -f UTF-8 -t UTF-8 "$file" >/dev/null 2>&1 || echo 'not UTF-8'
            [ ! -e "$file" ] || ! grep -q "$(printf '\033')" "$file" || echo 'steers a terminal'
        done
    } >"$folder/findings"
    verdict "$name" "$folder/findings"
    rm -f "$report"*
}
prints run 0 run "$model" --case "$case" --bounds --precision f64 --dump "$truth" --cache-out "$(odd cache)"
prints 'a float run' 0 run "$model" --case "$case" --dump "$dump" --resume "$(odd state)"
prints inspect 0 inspect "$dump"
prints 'inspect, JSON' 0 inspect "$model" --json
for format in '' --json; do
    prints "compare $format" 0 compare "$truth" "$dump" $format --html "$report.html" --junit "$report.xml" --ledger "$report.jsonl"
    prints "blame $format" 0 blame "$model" "$dump" --case "$case" --profile "$profile" $format
    prints "check $format" 0 check "$model" "$dump" --case "$case" --row-runs 0 --html "$report.html" --junit "$report.xml" $format
    prints "check an answer $format" 1 check "$model" "$answer" $format
    prints "a map that finds nothing $format" 3 compare "$truth" "$dump" --map "$map" $format
    prints "estimate $format" 0 estimate "$config" $format
    prints "generate $format" 0 generate "$model" --ids 1,2 --max-new 2 $format
done
prints 'op --make' 0 op rms_norm --make "$cases"
prints 'op --run' 0 op rms_norm --run "$cases" "$results"
prints 'op --check' 0 op rms_norm --check "$cases" "$results" --json --junit "$report.xml"
prints 'no such file' 66 inspect "$(odd absent)"
prints 'an output onto an input' 64 run "$model" --case "$case" --dump "$case"
end

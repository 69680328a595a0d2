#!/bin/sh
# `m3ref bench`: every item of the help text is an item and the other way round; --baseline compares by the share of the
# limit, leaves out what needs a model, and refuses files that are none; README's tables are those of scripts/bench/bench.json.
#
# Seen to fail with: an item removed from the help text; a baseline whose ratio is taken for a rate; a figure changed in
# README; a ratio changed in scripts/bench/bench.json.
build=${BUILD:-build}
. tests/support/verdict.sh
m3ref="$build/m3ref"

# ---- the figures of README
python3 scripts/bench/bench.py "$build" --readme scripts/bench/bench.json --check 2>"$folder/findings"
verdict 'README' "$folder/findings"
: >"$folder/findings"
sed 's/"ratio": 0\.\([0-9]\)/"ratio": 0.9\1/' scripts/bench/bench.json >"$folder/other.json"
python3 scripts/bench/bench.py "$build" --readme "$folder/other.json" --check 2>/dev/null && echo 'other figures pass' >"$folder/findings"
verdict 'other figures' "$folder/findings"

# ---- items: those of the program, of its help text and of the script
: >"$folder/findings"
sed -n 's/^    { "\([a-z0-9-]*\)", .*/\1/p' ref/cli/bench/items.c | sort >"$folder/items"
"$m3ref" bench --help | sed -n '/^  sgemm/,/^  --threads/p' | grep -oE '^  [a-z][a-z0-9, -]*' | sed 's/   .*//' | tr -d ' ' |
    tr ',' '\n' | sort >"$folder/help"
sed -n 's/^    ("\([a-z0-9-]*\)".*/\1/p' scripts/bench/bench.py | sort >"$folder/measured"
[ "$(wc -l <"$folder/items")" -ge 30 ] || echo 'too few items' >>"$folder/findings"
diff "$folder/items" "$folder/help" >>"$folder/findings"
comm -13 "$folder/items" "$folder/measured" >>"$folder/findings"
verdict 'items' "$folder/findings"

# ---- --baseline: a share that no machine reaches, and one that every machine does
cat >"$folder/base.json" <<'JSON'
{"items": [{"what": "decode-index", "gb_per_s": 1e9, "ratio": 1e-9, "limit": "read", "keys": 1024},
           {"what": "decode-index", "gb_per_s": 1e-9, "ratio": 1e9, "limit": "read", "keys": 2048},
           {"what": "vision", "gflops": 1, "ratio": 0.5}, {"what": "unknown", "gflops": 1}]}
JSON
: >"$folder/findings"
"$m3ref" bench --baseline "$folder/base.json" --runs 1 --threads 1 >"$folder/out" 2>&1 || echo "status $?" >>"$folder/findings"
grep -q '^decode-index, 1024 keys .* of read .*%$' "$folder/out" || echo 'the faster one' >>"$folder/findings"
grep -q '^decode-index, 2048 keys .* of read .*  slower$' "$folder/out" || echo 'the slower one' >>"$folder/findings"
grep -q '^vision  *left out: no --model$' "$folder/out" || echo 'vision' >>"$folder/findings"
grep -q '^2 items, 1 slower by more than 10 %$' "$folder/out" || echo 'the last line' >>"$folder/findings"
[ -s "$folder/findings" ] && cat "$folder/out" >>"$folder/findings"
verdict '--baseline' "$folder/findings"

# refused STATUS ARGUMENTS...
refused() {
    expected=$1
    shift
    "$m3ref" bench "$@" >"$folder/out" 2>"$folder/err"
    status=$?
    { [ $status -eq "$expected" ] && [ "$(wc -l <"$folder/err")" -eq 1 ] && [ ! -s "$folder/out" ]; } ||
        echo "bench $*: status $status, expected $expected: $(cat "$folder/err")" >>"$folder/findings"
}
echo '{"items": 3}' >"$folder/none.json"
echo '{"items": [{"what": "linear-1", "gb_per_s": 0}]}' >"$folder/zero.json"
: >"$folder/findings"
refused 66 --baseline "$folder/missing.json"
refused 65 --baseline "$folder/none.json"
refused 65 --baseline "$folder/zero.json"
refused 65 --baseline scripts/bench/bench.py
refused 64 linear-1 --baseline "$folder/base.json"
refused 64 linear-1 linear-4
refused 64 linear-3
refused 64
verdict 'refused' "$folder/findings"
end

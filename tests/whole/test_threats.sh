#!/bin/sh
# What ref/io/THREATS.md promises of hostile files: names in them reach no terminal, page or report as anything but text,
# and a model's folder leads to no file outside it.
#
# Seen to fail with: markup.c that lets < or control characters through; printable.c that lets everything through;
# json.c without its ASCII; checkpoint.c that follows every name of a shard.
build=${BUILD:-build}
m3ref=$build/m3ref
. tests/support/verdict.sh
tiny=golden/tiny/model
case=golden/tiny/case.safetensors
export OMP_NUM_THREADS=2

# look NAME KIND FILE: what is wrong with an output.
look() {
    python3 tests/support/hostile.py "$2" "$3" >"$folder/findings" 2>&1
    verdict "$1" "$folder/findings"
}

"$m3ref" run $tiny --case $case --dump "$folder/dump" >"$folder/out" || exit 1
name="$folder/$(printf 'a<b>&"\033[31m\n\302\233')'.st"
python3 tests/support/hostile.py dump "$folder/dump" "$name" || exit 1

# ---- reports
for command in "compare golden/tiny/golden.safetensors.gz" "blame $tiny --case $case"; do
    word=${command%% *}
    "$m3ref" $command "$name" --all --html "$folder/html" --junit "$folder/xml" >"$folder/out" 2>"$folder/err"
    status=$?
    [ $status -eq 0 ] || echo "status $status" >"$folder/status"
    cat "$folder/err" >>"$folder/out"
    look "$word" text "$folder/out"
    look "$word --html" html "$folder/html"
    look "$word --junit" xml "$folder/xml"
    "$m3ref" $command "$name" --json >"$folder/json"
    look "$word --json" json "$folder/json"
done
touch "$folder/status"
verdict 'statuses' "$folder/status"
"$m3ref" inspect "$name" >"$folder/out"
look 'inspect' text "$folder/out"
"$m3ref" inspect "$name" --sha256 >"$folder/out"
look 'inspect --sha256' text "$folder/out"
"$m3ref" inspect "$name" --json >"$folder/json"
look 'inspect --json' json "$folder/json"

# ---- links
: >"$folder/findings"
for link in 'javascript:alert(1)' 'JavaScript:alert(1)' ' javascript:alert(1)' "$(printf 'java\nscript:alert(1)')" \
    'data:text/html,x' 'vbscript:x' 'file:///etc/passwd'; do
    "$m3ref" compare golden/tiny/golden.safetensors.gz "$folder/dump" --html "$folder/linked" --spec "$link" >"$folder/out" 2>&1
    status=$?
    [ $status -eq 64 ] && [ ! -e "$folder/linked" ] || echo "--spec '$link': status $status" >>"$folder/findings"
done
verdict '--spec' "$folder/findings"

# ---- messages about a file with such a name and such contents
mkdir "$folder/model"
python3 tests/support/hostile.py config $tiny/config.json "$folder/model/config.json"
cp "$name" "$folder/model/model.safetensors"
"$m3ref" inspect "$folder/model" >"$folder/out" 2>&1
look 'inspect MODEL' text "$folder/out"
"$m3ref" estimate "$folder/model/config.json" >"$folder/out" 2>&1
look 'estimate' text "$folder/out"
head -c 100 "$name" >"$name.cut"
"$m3ref" inspect "$name.cut" >"$folder/out" 2>&1
look 'inspect of a cut file' text "$folder/out"

# ---- a model's folder leads to no file outside it
mkdir "$folder/shards" "$folder/shards/in"
cp $tiny/config.json "$folder/shards/"
cp $tiny/model.safetensors "$folder/outside.safetensors"
cp $tiny/model.safetensors "$folder/shards/in/"
: >"$folder/findings"
for shard in ../outside.safetensors "$folder/outside.safetensors" in/../../outside.safetensors ./../outside.safetensors \
    in/model.safetensors . .. /dev/zero ''; do
    python3 -c 'import json, sys
header = open(sys.argv[2], "rb").read()
names = json.loads(header[8:8 + int.from_bytes(header[:8], "little")])
json.dump({"weight_map": {n: sys.argv[1] for n in names if n != "__metadata__"}}, open(sys.argv[3], "w"))' \
        "$shard" $tiny/model.safetensors "$folder/shards/model.safetensors.index.json"
    timeout 20 "$m3ref" inspect "$folder/shards" >"$folder/out" 2>&1
    status=$?
    [ $status -eq 65 ] && [ "$(wc -l <"$folder/out")" -ge 1 ] || echo "shard '$shard': status $status" >>"$folder/findings"
done
verdict 'shards outside' "$folder/findings"
end

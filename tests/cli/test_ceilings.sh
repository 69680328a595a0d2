#!/bin/sh
# A file that asks for much more memory than its size is refused by its format's own ceiling (status 65, ref/io/README.md):
# --max-memory here is far above the ceilings and far below what the files ask for. What needs more than --max-memory
# allows is refused with status 70. Files just below a ceiling are read. A model runs in less memory than its weights
# take.
#
# Seen to fail with each ceiling removed (gzip.c, png.c, json.c, checkpoint.c), with a limit that is not set, with
# --perf taken for a command that does not fork, and with weights in memory of the process (mapped with MAP_PRIVATE, to
# write).
m3ref=${BUILD:-build}/m3ref
model=golden/tiny/model
. tests/support/verdict.sh

# refused NAME STATUS WORDS ARGUMENTS..: that status, one line, which holds the words.
refused() {
    name=$1 expected=$2 words=$3
    shift 3
    "$m3ref" "$@" >/dev/null 2>"$folder/errors"
    status=$?
    {
        [ "$status" -eq "$expected" ] || echo "got status $status, expected $expected"
        [ "$(wc -l <"$folder/errors")" -eq 1 ] || echo "got $(wc -l <"$folder/errors") lines, expected one"
        grep -q "$words" "$folder/errors" || { echo "no \"$words\" in:"; head -n 3 "$folder/errors"; }
    } >"$folder/findings"
    verdict "$name" "$folder/findings"
}

# accepted NAME ARGUMENTS..
accepted() {
    name=$1
    shift
    if "$m3ref" "$@" >/dev/null 2>"$folder/findings"; then : >"$folder/findings"; else echo failed >>"$folder/findings"; fi
    verdict "$name" "$folder/findings"
}

# header JSON: the length bytes and the JSON of a safetensors file, 256 bytes.
header() { printf '\370\0\0\0\0\0\0\0%-248s' "$1"; }

# zeros COUNT: a gzipped safetensors file of one tensor of zeros.
zeros() {
    header "{\"x\":{\"dtype\":\"U8\",\"shape\":[$1],\"data_offsets\":[0,$1]}}" >"$folder/header"
    { cat "$folder/header"; head -c "$1" /dev/zero; } | gzip -1 >"$folder/zeros.safetensors.gz"
}

# picture WIDTH HEIGHT, each as four octal bytes: the first 26 bytes of a PNG file of 8-bit colours.
picture() { printf '\211PNG\r\n\032\n\0\0\0\rIHDR%b%b\010\002' "$1" "$2" >"$folder/picture.png"; }

zeros 60000000
refused 'gzip' 65 'inflates to more than' inspect "$folder/zeros.safetensors.gz" --max-memory 1G
zeros 16000000
accepted 'gzip below its ceiling' inspect "$folder/zeros.safetensors.gz"
refused 'gzip that memory does not hold' 70 'bytes of memory' inspect "$folder/zeros.safetensors.gz" --max-memory 8M

picture '\0\0\0\01' '\012\252\252\252'          # 1 x 178956970
refused 'a tall picture' 65 'samples, in 26 bytes' run $model --ids '1,<image>' --image "$folder/picture.png" --max-memory 1G
picture '\0\0\62\310' '\0\0\62\310'             # 13000 x 13000
refused 'a large picture' 65 'samples, in 26 bytes' run $model --ids '1,<image>' --image "$folder/picture.png"
picture '\0\0\010\0' '\0\0\010\0'               # 2048 x 2048
head -c 20000 /dev/zero >>"$folder/picture.png"
refused 'a picture below its ceiling' 65 'damaged' run $model --ids '1,<image>' --image "$folder/picture.png"
refused 'a picture that memory does not hold' 70 'picture.png: needs' run $model --ids '1,<image>' \
    --image "$folder/picture.png" --max-memory 10M

cp tests/fuzz/corpus/png/fixed_long_chunk "$folder/picture.png"     # 69 bytes; a chunk that claims 1.5 GB
refused 'a long chunk' 65 'damaged' run $model --ids '1,<image>' --image "$folder/picture.png" --max-memory 1G

# repeat COUNT TEXT
repeat() { yes "$2" | head -n "$1" | tr -d '\n'; }

{ printf '{"a":['; repeat 1000000 '{},'; printf '{}]}'; } >"$folder/many.json"
for option in --map --profile; do
    refused "JSON: $option" 65 'whose values would take' compare golden/tiny/golden.safetensors.gz \
        golden/tiny/golden.safetensors.gz $option "$folder/many.json" --max-memory 100M
done
refused 'JSON: an answer' 65 'whose values would take' check $model "$folder/many.json" --max-memory 100M
mkdir "$folder/model"
cp "$folder/many.json" "$folder/model/config.json"
refused 'JSON: a config' 65 'whose values would take' estimate "$folder/model" --max-memory 100M
truncate -s 100000001 "$folder/model/config.json"
refused 'a long config' 65 'got 100000001 bytes, expected at most 100000000' estimate "$folder/model" --max-memory 50M

{ printf '\300\306\055\0\0\0\0\0'; printf '{"x":['; repeat 999998 '{},'; printf '%-2994s' '{}]}'; } | head -c 3000008 >"$folder/h.safetensors"
refused 'a header' 65 'whose values would take' inspect "$folder/h.safetensors" --max-memory 100M
awk 'BEGIN {
    printf "{\"t\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}"
    for (i = 10000; i < 30000; i++) printf ",\"t%d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}", i
    printf "}"
}' >"$folder/json"
length=$(wc -c <"$folder/json")
{ printf "\\$(printf %o $((length % 256)))\\$(printf %o $((length / 256 % 256)))\\$(printf %o $((length / 65536)))\\0\\0\\0\\0\\0"
    cat "$folder/json"; } >"$folder/h.safetensors"
accepted 'a header of 20,001 tensors' inspect "$folder/h.safetensors"

cp $model/config.json "$folder/model/"
awk 'BEGIN { printf "{\"weight_map\":{\"t\":\"f\""; for (i = 0; i < 10000; i++) printf ",\"t%d\":\"f%d\"", i, i; printf "}}" }' \
    >"$folder/model/model.safetensors.index.json"
refused 'an index' 65 'got 10001 files' run "$folder/model" --ids 1

refused 'memory: no number' 64 'a size such as' inspect $model --max-memory none
refused 'memory: nothing' 64 'got nothing' inspect $model --max-memory
refused 'memory: too little' 70 'memory' run $model --case golden/tiny/case.safetensors --max-memory 100K
accepted 'memory: enough' run --max-memory=64M $model --case golden/tiny/case.safetensors
# A child of a process with threads would wait for them for ever.
timeout 100 $m3ref op rms_norm --perf --sizes T=5,H=64 --cases 1 --max-memory 4G >/dev/null 2>"$folder/findings" ||
    echo "status $?" >>"$folder/findings"
verdict 'memory: --perf' "$folder/findings"
accepted 'memory: after --' inspect --max-memory 64M -- $model
# Weights stay in their mapped file, of 146 MB here, and one layer runs at a time.
sed 's/6144/1024/; s/3072/1024/g; s/12288/1024/' scripts/bench/bench_layer.json >"$folder/layer.json"
"$m3ref" synth "$folder/layer.json" "$folder/layer" >/dev/null
accepted 'memory: weights' run "$folder/layer" --ids 1,2,3,4,5,6,7,8 --max-memory 16M

end

#!/bin/sh
# The inputs of commands.txt: a model so small that a run takes milliseconds, in several forms, and what is made from it.
# usage: prepare.sh PROGRAM FOLDER
set -eu
m3ref=$1
in=$2
here=$(dirname "$0")
ids=1,2,3,4,5,6,7,8,9,10,11,12
rm -rf "$in"
mkdir -p "$in/frames" "$in/ranks"
{
    "$m3ref" synth "$here/small.json" "$in/model" --dtype f32
    for form in mxfp8 f8_block nvfp4 mxfp4 w4a16; do
        "$m3ref" synth "$here/small.json" "$in/$form" --dtype $form
    done
    "$m3ref" synth "$here/small.json" "$in/mtp" --mtp 1
    cp golden/photo.png "$in/frames/a.png"
    cp golden/photo.png "$in/frames/b.png"
    cp "$(dirname "$m3ref")/tests/plain_table.so" "$in/"

    run="$m3ref run $in/model --threads 1"
    $run --ids $ids --dump "$in/dump" --cache-out "$in/cache"
    $run --ids $ids --dump "$in/dump.gz"
    $run --ids $ids --precision f64 --bounds --profile bf16 --runs 2 --dump "$in/truth"
    $run --ids $ids --precision f64 --companions "$in/companions" --dump "$in/bare"
    $run --ids $ids --set gate_clamp=both --set selection=union --set index_scale=rsqrt --dump "$in/other"
    $m3ref run "$in/mtp" --threads 1 --ids $ids --dump "$in/mtp.dump"
    $m3ref prompt "$in/model" --tokens 16 --draws 1 --out "$in/case.safetensors" --threads 1
    $run --case "$in/case.safetensors" --dump "$in/case.dump"
    $m3ref check "$in/model" "$in/dump" --ids $ids --threads 1 --truth "$in/kept"
    $m3ref compare "$in/truth" "$in/other" --profile bf16 --json >"$in/baseline" || [ $? -eq 1 ]
    $m3ref envelope "$in/model" --ids $ids --profile bf16 --runs 2 --row-runs 1 --out "$in/envelope" --threads 1
    $m3ref op rms_norm --make "$in/cases" --cases 1
    $m3ref op rms_norm --run "$in/cases" "$in/results"
    $m3ref op attend_blocks --make "$in/attend.cases" --cases 1
    $m3ref op attend_blocks --run "$in/attend.cases" "$in/attend.results"
    $m3ref op experts_backward --make "$in/back.cases" --cases 1
    $m3ref op experts_backward --run "$in/back.cases" "$in/back.results"
    $m3ref op rms_norm --make "$in/wrong.cases" --cases 1 --seed 2
    # They do not say of which cases they are, and so are wrong ones, not those of others.
    $m3ref op rms_norm --run "$in/wrong.cases" "$in/wrong.results"
    LC_ALL=C sed -i s/cases_sha256/other_sha256/ "$in/wrong.results"

    # Files of two ranks; a model with the words of its ids; cases that say how to draw an operand.
    $run --ids $ids --taps "layers.*.out,layers.*.attn,final_norm,logits" --dump "$in/ranks/0.safetensors"
    cp "$in/ranks/0.safetensors" "$in/ranks/1.safetensors"
    echo '{"files": "ranks", "rules": {"*": "equal"}}' >"$in/ranks.json"
    cp -r "$in/model" "$in/words"
    cp "$here/../fuzz/corpus/vocabulary/seed_bytes" "$in/words/tokenizer.json"
    drawn=$here/../fuzz/corpus/op_check/seed_with_drawn
    tail -c +5 "$drawn" | head -c "$(od -An -tu4 -N4 "$drawn")" >"$in/drawn.cases"
    echo 1,2,3 >"$in/ids"
    echo '[{"role": "user", "content": "Hello"}]' >"$in/chat.json"

    # The same under names that are not UTF-8: {odd} of commands.txt.
    for name in model case.safetensors truth other dump ranks ranks.json baseline chat.json; do
        ln -s "$name" "$in/$name$(printf '\377\033[31m')"
    done
} >"$in/log" 2>&1 || { cat "$in/log" >&2; exit 1; }

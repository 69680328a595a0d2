#!/bin/sh
# What is kept is used again only where it would be made again (SPEC 7.13): the truth of `check --truth`.
#
# Goal:  a truth of another config, of other weights, of other arithmetic, or that has changed on the disk, is made again,
#        with a note; and a file that another program has put in its place meanwhile does not judge.
# Given: a tiny model in one file for each layer, of which the first is absent, and a dump that names no model, so that
#        nothing but the truth can tell; a library that replaces the truth just after it got its name.
# Seen to fail with: config.json in no hash where a file is absent; the truth opened again by its path; no seal.
m3ref=${BUILD:-build}/m3ref
. tests/support/verdict.sh

python3 - golden/tiny/model "$folder/model" <<'PY'
import json, os, re, shutil, struct, sys
source, target = sys.argv[1:]
os.mkdir(target)
shutil.copy(source + "/config.json", target)
data = open(source + "/model.safetensors", "rb").read()
length = struct.unpack("<Q", data[:8])[0]
header, data = json.loads(data[8:8 + length]), data[8 + length:]
files, index = {}, {}
for name, tensor in header.items():
    if name != "__metadata__":
        layer = re.search(r"language_model\.(?:model\.)?layers\.(\d+)\.", name)
        index[name] = f"layer{layer[1]}.safetensors" if layer else "rest.safetensors"
        files.setdefault(index[name], {})[name] = tensor
for file, tensors in files.items():
    text, body = {}, b""
    for name, tensor in tensors.items():
        begin, end = tensor["data_offsets"]
        text[name] = {**tensor, "data_offsets": [len(body), len(body) + end - begin]}
        body += data[begin:end]
    text = json.dumps(text).encode()
    text += b" " * (-len(text) % 8)
    open(f"{target}/{file}", "wb").write(struct.pack("<Q", len(text)) + text + body)
json.dump({"weight_map": index}, open(target + "/model.safetensors.index.json", "w"))
PY
[ -e "$folder/model/layer0.safetensors" ] || { echo 'the model has no file for layer 0'; exit 1; }
cp -r "$folder/model" "$folder/other"
sed -i 's/"routed_scaling_factor": *[0-9.]*/"routed_scaling_factor": 1.0/' "$folder/other/config.json"
cmp -s "$folder/model/config.json" "$folder/other/config.json" && { echo 'the config has no routed_scaling_factor'; exit 1; }
# Both dumps have the input of layer 3 that the first model gives it, and what each model makes of it.
run="--ids 1,2,3,4,5,6 --taps layers.2.out,layers.3.moe.routed --dump"
dumped() {
    PYTHONPATH=scripts/python "${BUILD:-build}/python/bin/python" - "$folder/$1.named" "$folder/model.named" "$folder/$1.dump" <<'PY'
import sys, m3ref
own, first = m3ref.load(sys.argv[1]), m3ref.load(sys.argv[2])
m3ref.save(sys.argv[3], {"layers.2.out": first["layers.2.out"], "layers.3.moe.routed": own["layers.3.moe.routed"]}, {})
PY
}
"$m3ref" run "$folder/model" $run "$folder/model.named" >/dev/null
dumped model
"$m3ref" run "$folder/other" --layers 3:4 --hidden "$folder/model.dump" $run "$folder/other.named" >/dev/null 2>&1
dumped other
rm "$folder/model/layer0.safetensors" "$folder/other/layer0.safetensors"

# check MODEL DUMP STATUS REUSED
check() {
    "$m3ref" check "$folder/$1" "$folder/$2.dump" --ids 1,2,3,4,5,6 --layers 3:4 --row-runs 0 --truth "$folder/truth" --json \
        >"$folder/out" 2>"$folder/errors"
    status=$?
    [ $status -eq "$3" ] || echo "check of $2 by $1: got status $status, expected $3: $(tail -n 1 "$folder/out" "$folder/errors")"
    tail -n 1 "$folder/out" | grep -q "\"truth_reused\":$4" || echo "check of $2 by $1: expected truth_reused $4"
    "$m3ref" check "$folder/$1" "$folder/$2.dump" --ids 1,2,3,4,5,6 --layers 3:4 --row-runs 0 >/dev/null 2>&1
    [ $? -eq "$3" ] || echo "check of $2 by $1 without --truth: another status"
}

{
    check model model 0 false
    check model model 0 true
    check model other 1 true
    check other other 0 false
    check other model 1 true
} >"$folder/findings"
verdict 'another config' "$folder/findings"

{
    for reused in false true; do
        "$m3ref" check "$folder/model" "$folder/model.dump" --ids 1,2,3,4,5,6 --layers 3:4 --truth "$folder/truth.gz" --json |
            tail -n 1 | grep -q "\"truth_reused\":$reused" || echo "packed: expected truth_reused $reused"
    done
    gzip -t "$folder/truth.gz" || echo 'not packed'
} >"$folder/findings" 2>&1
verdict 'a packed truth' "$folder/findings"

{
    check model model 0 false
    sed -i 's/"arithmetic":"1"/"arithmetic":"0"/' "$folder/truth"
    check model model 0 false
    printf '\377' | dd of="$folder/truth" bs=1 seek=$(($(wc -c <"$folder/truth") - 6)) conv=notrunc 2>/dev/null
    check model model 0 false
    grep -q 'seal_sha256: got' "$folder/errors" "$folder/out" || echo 'no note of a file that has changed'
    printf '\1' | dd of="$folder/model/layer3.safetensors" bs=1 seek=$(($(wc -c <"$folder/model/layer3.safetensors") - 2)) \
        conv=notrunc 2>/dev/null
    "$m3ref" check "$folder/model" "$folder/model.dump" --ids 1,2,3,4,5,6 --layers 3:4 --truth "$folder/truth" --json |
        tail -n 1 | grep -q '"truth_reused":false' || echo 'weights: the old truth is used'
} >"$folder/findings"
verdict 'arithmetic, damage, weights' "$folder/findings"

# ---- another program writes the same path

cat >"$folder/race.c" <<'C'
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
int rename(const char *from, const char *to)
{
    const int failed = (int)syscall(SYS_renameat2, -100, from, -100, to, 0);
    if (!failed && strcmp(to, getenv("TRUTH")) == 0 && system("cp \"$OTHER\" \"$TRUTH.new\"") == 0)
        syscall(SYS_renameat2, -100, getenv("TRUTH_NEW"), -100, to, 0);
    return failed;
}
C
${CC:-cc} -shared -fPIC -o "$folder/race.so" "$folder/race.c"
rm -f "$folder/truth"
echo 'not a truth' >"$folder/theirs"
TRUTH=$folder/truth TRUTH_NEW=$folder/truth.new OTHER=$folder/theirs LD_PRELOAD=$folder/race.so \
    "$m3ref" check "$folder/model" "$folder/other.dump" --ids 1,2,3,4,5,6 --layers 3:4 --row-runs 0 --truth "$folder/truth" \
    >"$folder/out" 2>&1
[ $? -eq 1 ] || echo "got $(tail -n 1 "$folder/out"), expected a failure by the truth that was made" >"$folder/findings"
grep -q 'replaced by another program' "$folder/out" || echo 'no note of the other program' >>"$folder/findings"
cmp -s "$folder/truth" "$folder/theirs" || echo 'the truth was not replaced' >>"$folder/findings"
verdict 'two programs, one path' "$folder/findings"
end

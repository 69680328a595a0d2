#!/bin/sh
# What the rooms say of additions (ref/ops, ref/model, ref/oracle/variants, ref/oracle/error, ref/oracle/map): in a scratch
# copy an operator with its derivative, a reading, a tap, a known mistake, a word of profiles and a map are added, in no
# more files than they say, and the judges use them.
#
# Seen to fail with: a page that leaves out a file of the patch; a bound of 0; a judge that takes the kernel's values for
# the right ones; graphs that are only recorded again for the readings that changed edges when they were written.
build=${BUILD:-build}
. tests/support/verdict.sh
here=tests/whole/additions

# ---- an operator touches what its page names
sed -n '/^## To add an operator/,$s/^| `/`/p' ref/ops/README.md | sed 's/|.*//' | grep -o '`[A-Za-z_/]*\.[a-z]*`' | tr -d '`' |
    sed 's/NAME/softcap/' | sort -u >"$folder/page"
sed -n 's,^+++ b/,,p' $here/operator.patch | sort >"$folder/touched"
grep -vxFf "$folder/page" "$folder/touched" >"$folder/unnamed"
verdict 'files of the operator that the page does not name' "$folder/unnamed"
while read -r what most count; do
    [ "$count" -gt 0 ] && [ "$count" -le "$most" ] || echo "$what: $count files, expected at most $most"
done >"$folder/many" <<EOF
page 12 $(wc -l <"$folder/page")
reading 3 $(grep -c '^+++ ' $here/reading.patch)
tap 2 $(grep -c '^+++ ' $here/tap.patch)
mistake 1 $(grep -c '^+++ ' $here/mistake.patch)
EOF
verdict 'files of an addition' "$folder/many"

# ---- a scratch copy
cp -a --parents Makefile SPEC.md ref scripts golden/documents tests/fuzz/fuzz.mk "$folder"
for what in operator reading tap mistake; do
    patch -s -p1 -d "$folder" <$here/$what.patch 2>&1 || echo "$what does not apply"
done >"$folder/patched"
verdict 'the patches' "$folder/patched"
cp $here/toy_word.json "$folder/ref/oracle/error/profiles/words"
cp $here/toy_engine.json "$folder/ref/oracle/map/maps"
make -s -j2 -C "$folder" OPT=-O0 BUILD=made made/m3ref >"$folder/built" 2>&1 && : >"$folder/built"
verdict 'the build' "$folder/built"
m3ref=$folder/made/m3ref

for kind in right wrong; do
    ${CC:-cc} -O2 -shared -fPIC -I"$folder/ref" $([ $kind = right ] || echo -DWRONG) -o "$folder/$kind.so" \
        $here/plugin.c -lm || exit 1
    "$m3ref" op softcap --ops "$folder/$kind.so" >"$folder/out" 2>&1
    status=$?
    [ $status -eq $([ $kind = right ] && echo 0 || echo 1) ] && : >"$folder/out"
    verdict "a $kind kernel, status $status" "$folder/out"
done
for op in softcap softcap_backward; do
    "$m3ref" op $op --make "$folder/cases" >"$folder/out" 2>&1 &&
        "$m3ref" op $op --run "$folder/cases" "$folder/results" >>"$folder/out" 2>&1 &&
        "$m3ref" op $op --check "$folder/cases" "$folder/results" >>"$folder/out" 2>&1 && : >"$folder/out"
    verdict $op "$folder/out"
done

# ---- a reading is found in both directions; a tap is judged; a mistake is known; a word and a map are names
model=golden/tiny/model
case=golden/tiny/case.safetensors
"$m3ref" run $model --case $case --dump "$folder/own" >/dev/null
"$m3ref" run $model --case $case --set index_input=hidden --dump "$folder/other" >/dev/null
"$m3ref" check $model "$folder/own" --case $case >"$folder/out" 2>&1 && : >"$folder/out" || echo "status not 0" >>"$folder/out"
verdict 'a dump with the tap' "$folder/out"
"$m3ref" check $model "$folder/other" --case $case --json | tail -n 1 | grep -q '"reading": *"index_input=hidden"' ||
    echo "not named" >"$folder/out"
verdict 'the reading' "$folder/out"
"$m3ref" check $model "$folder/own" --case $case --set index_input=hidden --json | tail -n 1 |
    grep -q '"reading": *"index_input=normed"' || echo "not named" >"$folder/out"
verdict 'the reading that is not the released one' "$folder/out"
python3 - "$folder" <<'PY'
import json, struct, sys
folder = sys.argv[1]
data = bytearray(open(folder + "/own", "rb").read())
length = struct.unpack("<Q", data[:8])[0]
header, body = json.loads(data[8:8 + length]), data[8 + length:]
def write(name, header, body):
    text = json.dumps(header).encode()
    open(folder + name, "wb").write(struct.pack("<Q", len(text)) + text + body)
renamed, parts = {}, bytearray()
for name in ("embed", "final_norm", "logits"):
    begin, end = header[name]["data_offsets"]
    renamed["engine." + name] = {**header[name], "data_offsets": [len(parts), len(parts) + end - begin]}
    parts += body[begin:end]
write("/engine", renamed, parts)
at = header["layers.2.attn_twice"]["data_offsets"][0] + 400
struct.pack_into("<f", body, at, 1.01 * struct.unpack_from("<f", body, at)[0])
write("/off", header, body)
PY
"$m3ref" check $model "$folder/off" --case $case --json | tail -n 1 | grep -q '"culprit": *"layers.2.attn_twice"' ||
    echo "not named" >"$folder/out"
verdict 'a tap that is off' "$folder/out"
"$m3ref" mistakes --show act.plus_two | grep -q 'op cases of .*swiglu_oai' || echo "not known" >"$folder/out"
verdict 'the mistake' "$folder/out"
"$m3ref" check $model "$folder/own" --case $case --profile fp32+toy_word >"$folder/out" 2>&1 && : >"$folder/out" ||
    echo "status not 0" >>"$folder/out"
verdict 'the word' "$folder/out"
"$m3ref" compare "$folder/own" "$folder/engine" --map toy_engine >"$folder/out" 2>&1
grep -q '^pass  3 of 3 stages' "$folder/out" && : >"$folder/out" || echo "not all of it" >>"$folder/out"
verdict 'the map' "$folder/out"
end

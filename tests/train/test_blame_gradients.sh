#!/bin/sh
# m3ref blame on a file that holds the taps of a pass and its gradients: every gradient is recomputed from the file's own
# values, and a wrong one is named with its derivative. The gradients are those of m3ref grad, which test_grad.sh compares
# with autograd of the public code.
# Seen to fail with: a reader left out of a sum; the angles of another theta; the experts' factor left out; the gradients
# of an expert's rows of all experts.
build=${BUILD:-build}
. tests/support/verdict.sh
m3ref=$build/m3ref
case=golden/train/case.safetensors
"$m3ref" run golden/tiny/model --case $case --dump "$folder/pass" >/dev/null
"$m3ref" grad golden/tiny/model --case $case --dump "$folder/gradients" >/dev/null
"$m3ref" run golden/mtp/model --case golden/train/all_case.safetensors --dump "$folder/mtp.pass" >/dev/null
"$m3ref" grad golden/mtp/model --case golden/train/all_case.safetensors --loss lm,mtp,aux,kl \
    --dump "$folder/mtp.gradients" >/dev/null

cat >"$folder/join.py" <<'P'
"""join.py OUT FILE FILE [NAME=FACTOR | NAME=left_out | NAME=COUNTx1e-9 ..]: one file of both, with changes."""
import array, json, struct, sys
tensors, metadata, changes = {}, {}, dict(word.split("=") for word in sys.argv[4:])
for path in sys.argv[2:4]:
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    metadata.update(header.pop("__metadata__", {}))
    for name, t in header.items():
        first, end = t["data_offsets"]
        tensors[name] = (t["dtype"], t["shape"], data[8 + size + first:8 + size + end])
for name, change in changes.items():
    if change == "left_out":
        del tensors[name]
    elif "x" in change:
        n, value = change.split("x")
        tensors[name] = ("F32", [int(n)], array.array("f", [float(value)] * int(n)).tobytes())
    else:
        dtype, shape, raw = tensors[name]
        values = array.array("f", raw)
        tensors[name] = (dtype, shape, array.array("f", [x * float(change) for x in values]).tobytes())
header, at = {"__metadata__": metadata}, 0
for name, (dtype, shape, raw) in tensors.items():
    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
    at += len(raw)
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(sys.argv[1], "wb") as out:
    out.write(struct.pack("<Q", len(text)) + text)
    for _, _, raw in tensors.values():
        out.write(raw)
P

# judged NAME STATUS WORDS MODEL CASE PASS CHANGE...: the lines of blame hold the words
judged() {
    name=$1 status=$2 words=$3 model=$4 case=$5 pass=$6
    shift 6
    python3 "$folder/join.py" "$folder/j" "$folder/$pass" "$folder/$(echo "$pass" | sed 's/pass/gradients/')" "$@"
    "$m3ref" blame "golden/$model/model" "$folder/j" --case "$case" >"$folder/out" 2>&1
    got=$?
    : >"$folder/findings"
    [ $got -eq "$status" ] || echo "status $got, expected $status" >>"$folder/findings"
    grep -q -e "$words" "$folder/out" || head -n 5 "$folder/out" >>"$folder/findings"
    verdict "$name" "$folder/findings"
}
tiny() {
    name=$1 status=$2 words=$3
    shift 3
    judged "$name" "$status" "$words" tiny $case pass "$@"
}
param=d.param.language_model.model.layers
tiny 'right gradients' 0 '^pass  384 of 384 taps judged'
tiny 'a rotation' 1 '^culprit  d.layers.2.q_norm  derivative of rope, SPEC 19.5' d.layers.2.q_norm=1.0001
tiny 'attention' 1 '^culprit  d.layers.3.v_proj  derivative of attention, SPEC 19.6' d.layers.3.v_proj=1.0001
tiny 'the experts' 1 '^culprit  d.layers.4.moe.weights  derivative of experts, SPEC 19.10' d.layers.4.moe.weights=0.5
tiny 'a sum' 1 '^culprit  d.layers.3.mlp_norm  sum of gradients' d.layers.3.mlp_norm=1.01
tiny 'a norm' 1 "^culprit  $param.1.self_attn.k_norm.weight  derivative of rms_norm" \
    $param.1.self_attn.k_norm.weight=1.001
tiny 'one expert' 1 "^culprit  $param.4.block_sparse_moe.experts.2.w2.weight  derivative of experts" \
    $param.4.block_sparse_moe.experts.2.w2.weight=1.001
tiny "the router's bias" 1 "^culprit  $param.3.block_sparse_moe.e_score_correction_bias  derivative of route" \
    $param.3.block_sparse_moe.e_score_correction_bias=11x1e-9
tiny 'NaN' 1 '^culprit  d.layers.2.attn  derivative of linear' d.layers.2.attn=nan
tiny 'a tap that is missing' 2 'missing: layers.2.k_rope' layers.2.k_rope=left_out
tiny 'a gradient that is missing' 2 'missing: d.layers.2.q_rope' d.layers.2.q_rope=left_out
judged 'modules, other losses' 2 '^partial  196 of 196 taps judged, 126 not in the model' mtp \
    golden/train/all_case.safetensors mtp.pass
end

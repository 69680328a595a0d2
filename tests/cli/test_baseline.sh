#!/bin/sh
# `compare --baseline`: what changed since an earlier report, and the exit status of --fail-if-worse.
# Given: a report of a right dump, in which lines are then changed by hand, and a dump that is wrong from layers.0.mlp.act
# on. Expected are the changes that were made.
# Seen to fail with: not judged taken for a pass; suspect and fail exchanged; the next tokens taken for the logits; a
# missing stage not counted; the status of the verdict under --fail-if-worse; an unknown verdict accepted; a report of
# another profile taken.
build=${BUILD:-build}
. tests/support/verdict.sh
candidates=tests/candidates
golden=golden/tiny/golden.safetensors.gz

compare() { # compare CANDIDATE OPTIONS: prints the report into out; the exit status into status
    candidate=$1
    shift
    "$build/m3ref" compare "$folder/truth.safetensors" "$candidate" --map transformers --profile bf16 "$@" >"$folder/out" 2>"$folder/err"
    status=$?
}
expect() { [ "$status" -eq "$1" ] || echo "$2: got status $status, expected $1: $(head -n 1 "$folder/err")"; }

"$build/m3ref" run golden/tiny/model --case $candidates/case.safetensors --precision f64 --bounds \
    --dump "$folder/truth.safetensors" >/dev/null || echo 'no truth' >"$folder/findings"
right=$candidates/bf16.safetensors.gz
wrong=$candidates/bf16_without_plus_one.safetensors.gz
compare "$right" --json
mv "$folder/out" "$folder/before.jsonl"
plain=$status

# ---- nothing changed
compare "$right" --baseline "$folder/before.jsonl"
{
    expect "$plain" 'the same'
    stages=$(grep -c '"type":"\(stage\|selection\)"' "$folder/before.jsonl")
    [ "$stages" -gt 100 ] || echo "got $stages stages"
    head -n 1 "$folder/out" | grep -qxF "since $folder/before.jsonl: 0 worse, 0 missing, 0 better, 0 new, $stages with the same verdict" ||
        head -n 1 "$folder/out"
    sed -n 2p "$folder/out" | grep -q '^pass ' || echo 'the report does not follow'
} >"$folder/findings"
verdict 'no change' "$folder/findings"

# ---- changes made by hand
python3 - "$folder" >"$folder/findings" <<'END'
import json, sys
folder = sys.argv[1]
lines = [json.loads(line) for line in open(f"{folder}/before.jsonl")]
by = {(line["type"], line.get("tap")): line for line in lines}
def change(tap, verdict, kind="stage"):
    by[kind, tap]["verdict"] = verdict
change("layers.0.q_proj", "fail")                                    # better
change("layers.0.k_proj", "not_judged")                              # better
change("layers.1.q_proj", "suspect")                                 # better
change("layers.3.index.blocks", "inadmissible", "selection")    # better
change("layers.3.moe.experts", "tie", "selection")              # the same: allowed then and now
change("logits", "inadmissible", "selection")                   # the next tokens; the logits themselves stay
lines.remove(by["stage", "layers.1.v_proj"])                         # new
lines.insert(3, {"type": "stage", "tap": "layers.9.\x1b[31mred", "verdict": "pass", "headroom": 0.5})      # missing
open(f"{folder}/changed.jsonl", "w").writelines(json.dumps(line) + "\n" for line in lines)
END
compare "$right" --baseline "$folder/changed.jsonl"
{
    expect "$plain" 'changed'
    head -n 1 "$folder/out" | grep -q ': 0 worse, 1 missing, 5 better, 1 new, ' || head -n 1 "$folder/out"
    sed -n '2,8p' "$folder/out" | sed 's/ [0-9.e+-]*%//g; s/  */ /g' >"$folder/lines"
    cat >"$folder/want" <<'END'
missing layers.9.?[31mred pass
better layers.0.q_proj fail -> pass
better layers.0.k_proj not_judged -> pass
better layers.1.q_proj suspect -> pass
better layers.3.index.blocks inadmissible -> admissible
better next token inadmissible -> identical
new layers.1.v_proj pass
END
    diff "$folder/want" "$folder/lines"
} >>"$folder/findings"
compare "$right" --baseline "$folder/changed.jsonl" --fail-if-worse
expect 1 'a missing stage' >>"$folder/findings"
verdict 'changes' "$folder/findings"

# ---- a dump that has become wrong
compare "$wrong" --baseline "$folder/before.jsonl" --fail-if-worse --json
{
    expect 1 'worse'
    python3 - "$folder/out" <<'END'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
first, worse = lines[0], [line for line in lines if line["type"] == "change" and line["change"] == "worse"]
if first["type"] != "baseline" or first["worse"] != len(worse) or lines[-1]["type"] != "summary":
    print(first, len(worse), lines[-1]["type"])
act = [line for line in worse if line["tap"] == "layers.0.mlp.act"]
if len(act) != 1 or (act[0]["was"], act[0]["is"]) != ("pass", "fail") or not act[0]["headroom_was"] <= 1 < act[0]["headroom_is"]:
    print("layers.0.mlp.act:", act)
END
    cp "$folder/out" "$folder/wrong.jsonl"
    compare "$wrong" --baseline "$folder/wrong.jsonl" --fail-if-worse
    expect 0 'wrong as before'
    compare "$wrong" --baseline "$folder/wrong.jsonl"
    expect 1 'wrong as before, without --fail-if-worse'
    compare "$right" --baseline "$folder/wrong.jsonl" --fail-if-worse
    expect 0 'right again'
    grep -q '^better    layers.0.mlp.act  fail ' "$folder/out" || echo 'layers.0.mlp.act did not become better'
} >"$folder/findings"
verdict 'worse' "$folder/findings"

# ---- reports of something else; one that does not say of what
{
    for field in model case profile; do
        sed "s/\"${field}_sha256\":\"[0-9a-f]*\"/\"${field}_sha256\":\"0123\"/" "$folder/before.jsonl" >"$folder/$field.jsonl"
        compare "$right" --baseline "$folder/$field.jsonl" --fail-if-worse
        expect 3 "another $field"
        grep -q "^m3ref: $folder/$field.jsonl: ${field}_sha256: got 0123, expected [0-9a-f]*: the report is of another $field" \
            "$folder/err" || cat "$folder/err"
        [ ! -s "$folder/out" ] || echo "another $field: something is printed"
    done
    "$build/m3ref" compare "$folder/truth.safetensors" "$right" --map transformers --profile bf16+fused_norm \
        --baseline "$folder/before.jsonl" >/dev/null 2>&1
    status=$?
    expect 3 'one more word'
    grep -v '"type":"summary"' "$folder/before.jsonl" >"$folder/old.jsonl"
    compare "$right" --baseline "$folder/old.jsonl"
    expect "$plain" 'no summary'
} >"$folder/findings"
verdict 'of something else' "$folder/findings"

# ---- files that are no reports
{
    echo 'text' >"$folder/text"
    echo '{"type":"summary"}' >"$folder/summary"
    echo '{"type":"stage","verdict":"pass"}' >"$folder/no_tap"
    echo '{"type":"stage","tap":"embed","verdict":"fine"}' >"$folder/no_verdict"
    : >"$folder/empty"
    for file in text summary no_tap no_verdict empty; do
        compare "$right" --baseline "$folder/$file"
        expect 65 "$file"
        [ ! -s "$folder/out" ] && [ "$(grep -c "^m3ref: $folder/$file: " "$folder/err")" -eq 1 ] || cat "$folder/err"
    done
    compare "$right" --baseline "$folder/absent"
    expect 66 absent
    compare "$right" --fail-if-worse
    expect 64 'no baseline'
    compare "$right" --baseline "$folder/before.jsonl" --html "$folder/before.jsonl"
    expect 64 'an output that is the baseline'
    "$build/m3ref" compare $golden "$right" --baseline "$folder/before.jsonl" --fail-if-worse >"$folder/out" 2>/dev/null
    status=$?
    expect 3 'not comparable'
} >"$folder/findings"
verdict 'refused' "$folder/findings"
end

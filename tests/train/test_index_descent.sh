#!/bin/sh
# The alignment loss under gradient descent: the first three steps give the losses that are committed with the picture;
# the picture is that of these losses; they fall by more than half, and rise nowhere by more than a hundredth.
# Seen to fail with: a gradient of the wrong sign, half the rate, a loss changed in the file, a point moved in the picture.
build=${BUILD:-build}
. tests/support/verdict.sh
figures=ref/train/index_descent

: >"$folder/findings"
python3 scripts/index_descent.py "$build/m3ref" --steps 3 --json "$folder/few.json" >"$folder/out" 2>&1 ||
    cat "$folder/out" >>"$folder/findings"
python3 - "$folder/few.json" "$figures.json" >>"$folder/findings" 2>&1 <<'P'
import json, sys
few, whole = (json.load(open(path))["losses"] for path in sys.argv[1:])
if (len(few), len(whole)) != (4, 51):
    print(f"{len(few)} and {len(whole)} losses, expected 4 and 51")
for step, (got, want) in enumerate(zip(few, whole)):
    if not abs(got - want) <= 1e-6 * want:
        print(f"step {step}: got {got}, expected {want}")
P
verdict 'first steps' "$folder/findings"

python3 - "$figures.json" "$figures.svg" >"$folder/findings" 2>&1 <<'P'
import json, sys
sys.path.insert(0, "scripts")
sys.dont_write_bytecode = True
import index_descent
losses = json.load(open(sys.argv[1]))["losses"]
if open(sys.argv[2], encoding="utf-8").read() != index_descent.picture(losses):
    print("the picture is another one")
if not losses[-1] < losses[0] / 2:
    print(f"{losses[0]} to {losses[-1]}")
for step, (before, after) in enumerate(zip(losses, losses[1:])):
    if not after <= 1.01 * before:
        print(f"step {step}: {before} to {after}")
P
verdict 'picture' "$folder/findings"
end

#!/bin/sh
# The coverage map of golden/op: every formula, branch, clamp, tie rule and edge that SPEC.md states about an operator
# has a row, the committed cases cover every row, and golden/op/coverage.tsv is what `make kill-matrix` writes. A map
# that is not complete, or asks for what no case has, is refused with the row and the reason.
#
# Seen to fail with: a plan removed from plans.c; the clamp of up below removed from coverage.json; a line removed from
# coverage.tsv; a sentence added to "Edges" in SPEC 5.11; the name of a test that is not there; each finding below left
# out of scripts/coverage.
build=${BUILD:-build}
python=${PYTHON_ENVIRONMENT:-build/python}/bin/python
tables=${TABLES:-golden/op}
. tests/support/verdict.sh
export PYTHONDONTWRITEBYTECODE=1

"$python" scripts/coverage/map.py "$build/m3ref" "$tables" --check >"$folder/findings" 2>&1 &&
    sed -i '/ 0 uncovered; /d' "$folder/findings"
verdict 'coverage map' "$folder/findings"

# One faulty map with all faults. Every finding must be there, and no other row may be named.
mkdir "$folder/faulty"
"$python" - "$tables/coverage.json" "$folder/faulty/coverage.json" <<'END'
import json, sys
rows = {row["id"]: row for row in json.load(open(sys.argv[1]))}
rows["5.11.gate_above"]["when"] = "any(gat > limit)"
rows["5.11.gate_at"]["when"] = "any(gate == limit) or any(no_such_name > 0)"
rows["5.11.up_above"]["when"] = "any(up > 1000 * limit)"
rows["5.11.up_at"]["when"] = "up == limit"
rows["5.11.up_inside"]["when"] = "[u for u in up]"
rows["5.11.gate_zero"]["of"] = ["swiglu_oai", "swiglu_oia"]
rows["5.9.nan"]["test"] = "tests/ops/test_select_blocks.c:no_such_test"
rows["5.9.infinity"]["kind"] = "border"
rows["5.7.softmax"]["spec"][1] = "z_j = (q . k_j) / D"
rows["6.1.mask"]["taps"] = "any(tap('layers.0.no_such_tap') > 0)"
del rows["5.9.tie_edge"], rows["5.13.underflow"]
for name in [name for name in rows if name.startswith("5.16.")]:
    del rows[name]
json.dump(list(rows.values()), open(sys.argv[2], "w"))
END
"$python" scripts/coverage/map.py "$build/m3ref" "$folder/faulty" >"$folder/found" 2>&1
[ $? -eq 1 ] || echo 'a faulty map is not refused' >"$folder/not_refused"
touch "$folder/not_refused"
verdict 'exit status' "$folder/not_refused"

cat >"$folder/expected" <<'END'
5.11.gate_above: swiglu_oai.0: got the name gat, expected
5.11.gate_at: swiglu_oai.0: got the name no_such_name, expected
5.11.up_above: no case of swiglu_oai covers it
5.11.up_at: swiglu_oai.0: got a value of type ndarray, expected true or false
5.11.up_inside: swiglu_oai.0: got ListComp, expected an expression
5.11.gate_zero: got the operator swiglu_oia, expected
5.9.nan: nothing covers it
5.9.infinity: got the kind border, expected
6.1.mask: no golden holds the taps of this predicate
add: no row is about this operator
SPEC.md 5.16: no row of the map is about it
SPEC.md 5.7: got the quotation "z_j = (q . k_j) / D", expected
SPEC.md 5.7: no row quotes "z_j = (q . k_j) / sqrt(D) over keys
SPEC.md 5.9: no row quotes lowest id in "the candidate of the greatest score, of these
SPEC.md 5.9: no row quotes "Of equal scores the lower id wins."
SPEC.md 5.13: no row quotes overflows in "In float y is 0 below -103.97
END
while read -r line; do
    grep -qF -- "$line" "$folder/found" && continue
    echo "not found: $line"
done <"$folder/expected" >"$folder/missed"
verdict 'faulty map' "$folder/missed"
grep -vE '^(5\.11\.(gate|up)_|5\.9\.(nan|infinity):|6\.1\.mask:|add:|SPEC\.md 5\.(7|9|13|16):|[0-9]+ rows of)' \
    "$folder/found" >"$folder/others"
verdict 'other findings' "$folder/others"
end

#!/bin/sh
# golden/op is what `make kill-matrix` writes, and every known mistake is caught by a case or by a golden.
#
# Seen to fail with: a line removed from kills.tsv; another seed in planned.c; a plan removed.
build=${BUILD:-build}
tables=${TABLES:-golden/op}
. tests/support/verdict.sh
python3 scripts/kill_matrix.py "$build/m3ref" "$tables" --check >"$folder/findings" 2>&1
grep -q ' 0 missed; ' "$folder/findings" && sed -i '/ 0 missed; /d' "$folder/findings"
verdict 'kill matrix' "$folder/findings"
end

#!/bin/sh
# One regression of an engine: runs it, judges its dump, and says what changed since the last run. For any system of
# continuous integration; README.md beside it shows some.
#
# environment: MODEL      the model directory
#              CASE       the case, a safetensors file
#              ENGINE     the shell command that runs the engine on them and writes its tensors to the file $DUMP
#              PROFILE    where the engine may round; default fp32
#              MAP        whose names the tensors have; default m3ref's
#              REPORT     the folder of the results; default m3ref-report
#              BASELINE   the stages of the last run; default $REPORT/baseline.jsonl. Keep this file between runs
#              GATE       verdict (default): fails unless everything was judged and passes
#                         worse: fails only if a stage is worse than in the baseline or missing; the baseline stays then
# Exit status: as of m3ref check, or with GATE=worse of m3ref compare --fail-if-worse; that of the engine if it fails.
set -eu
: "${MODEL:?expected the model directory}" "${CASE:?expected a case file}" "${ENGINE:?expected a command}"
profile=${PROFILE:-fp32}
report=${REPORT:-m3ref-report}
baseline=${BASELINE:-$report/baseline.jsonl}
gate=${GATE:-verdict}
case $gate in
verdict | worse) ;;
*) echo "regression: GATE: got $gate, expected verdict or worse" >&2 && exit 64 ;;
esac
mkdir -p "$report"
DUMP=$report/dump.safetensors
export MODEL CASE DUMP
# What an earlier run left must not stand for this one.
for name in changes.txt check.txt junit.xml report.html stages.jsonl; do rm -f "$report/$name"; done
rm -f "$DUMP"

sh -c "$ENGINE"

# The truth stays in the folder: it is computed again only for another model, case or profile.
truth=$report/truth.safetensors
status=0
m3ref check "$MODEL" "$DUMP" --case "$CASE" --profile "$profile" ${MAP:+--map "$MAP"} --truth "$truth" \
    --html "$report/report.html" --junit "$report/junit.xml" >"$report/check.txt" || status=$?
[ "$status" -le 3 ] || exit "$status"
tail -n 1 "$report/check.txt"

# compare_stages OPTIONS: the comparison of all stages, which has an exit status of its own.
compare_stages() { m3ref compare "$truth" "$DUMP" --profile "$profile" ${MAP:+--map "$MAP"} "$@"; }
compare_stages --json >"$report/stages.jsonl" || [ $? -le 3 ]
worse=0
if [ -e "$baseline" ]; then
    compare_stages --all --baseline "$baseline" --fail-if-worse >"$report/changes.all" || worse=$?
    [ "$worse" -le 3 ] || exit "$worse"
    sed -n '1p; /^\(worse\|missing\|better\|new\)  /p' "$report/changes.all" | tee "$report/changes.txt"
    rm "$report/changes.all"
fi
if [ "$gate" = verdict ]; then
    cp "$report/stages.jsonl" "$baseline"
    exit "$status"
fi
[ "$worse" -ne 0 ] || cp "$report/stages.jsonl" "$baseline"
exit "$worse"

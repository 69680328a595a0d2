#!/bin/sh
# Runs the test programs that it is given, prints what they print, and at last "N passed, N failed" for all of them.
# A program that crashes, or does not say how many tests it ran, counts as one failure. Nothing run is a failure.
passed=0
failed=0
for program in "$@"; do
    echo "== ${program##*/}"
    lines=$("$program" 2>&1)
    status=$?
    printf '%s\n' "$lines"
    last=$(printf '%s\n' "$lines" | tail -n 1)
    if printf '%s\n' "$last" | grep -Eqx '[0-9]+ passed, [0-9]+ failed'; then
        good=${last%% passed*}
        bad=${last##* passed, }
        bad=${bad%% failed}
        [ "$status" -eq 0 ] || [ "$bad" -gt 0 ] || bad=1
    else
        good=0
        bad=1
        echo "${program##*/}: ended with status $status and without its count"
    fi
    passed=$((passed + good))
    failed=$((failed + bad))
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]

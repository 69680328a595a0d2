#!/bin/sh
# tests/run.sh: what counts as a failure, and that a signal ends the programs at once and leaves nothing.
#
# Seen to fail with: run.sh that waits for its programs before it heeds a signal; that takes a program without its last
# line, or with none of its tests run, for a good one.
. tests/support/verdict.sh
export TMPDIR="$folder/tmp"
mkdir "$TMPDIR"

# program NAME TEXT: a test program.
program() { printf '#!/bin/sh\n%s\n' "$2" >"$folder/$1" && chmod +x "$folder/$1"; }
program good 'echo "2 passed, 0 failed"'
program bad 'echo "1 passed, 2 failed"; exit 1'
program dishonest 'echo "1 passed, 0 failed"; exit 1'
program none 'echo "0 passed, 0 failed"'
program silent 'true'
program crashing 'kill -9 $$'
program slow "touch '$folder/begun'; sleep 20; touch '$folder/ended'"

# counts EXPECTED PROGRAM ..
counts() {
    expected=$1
    shift
    tests/run.sh "$@" >"$folder/out" 2>&1
    status=$?
    {
        [ "$(tail -n 1 "$folder/out")" = "$expected" ] || tail -n 1 "$folder/out"
        case $expected in
        *' 0 failed') [ $status -eq 0 ] ;;
        *) [ $status -eq 1 ] ;;
        esac || echo "status $status"
        find "$TMPDIR" -mindepth 1
    } >"$folder/findings"
    verdict "$*" "$folder/findings"
}
counts '2 passed, 0 failed' "$folder/good"
counts '5 passed, 2 failed' "$folder/good" "$folder/bad" "$folder/good"
counts '3 passed, 1 failed' "$folder/good" "$folder/dishonest"
for program in none silent crashing missing; do counts '2 passed, 1 failed' "$folder/good" "$folder/$program"; done

tests/run.sh "$folder/slow" >"$folder/out" 2>&1 &
run=$!
while [ ! -e "$folder/begun" ]; do sleep 0.05; done
kill -TERM $run
wait $run
status=$?
{
    [ $status -eq 1 ] || echo "status $status"
    [ ! -e "$folder/ended" ] || echo 'a program went on to its end'
    find "$TMPDIR" -mindepth 1
} >"$folder/findings"
verdict 'TERM' "$folder/findings"
end

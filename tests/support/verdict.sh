# Source this in a test script: a folder that is removed at the end, the counts, and verdicts on files of findings.
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
passed=0
failed=0

# verdict NAME FILE: an empty file is a pass; otherwise its first lines are printed.
verdict() {
    if [ -s "$2" ]; then
        failed=$((failed + 1))
        head -n 30 "$2" | sed "s/^/$1: /"
    else
        passed=$((passed + 1))
    fi
}

# slice_of A B ..: one of the words, in the next slice the next one; in slice `all` all of them (slice.h).
slice_of() {
    [ "${M3_SLICE:-0}" != all ] || { echo "$@" && return; }
    shift $((${M3_SLICE:-0} % $#))
    echo "$1"
}

# end: the last line of the test, and its exit status.
end() {
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
}

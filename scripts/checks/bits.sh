#!/bin/sh
# Builds with gcc and clang at -O1, -O2, -O3 what ordered sums depend on, and checks that they have the recorded bits in
# each.
# usage: bits.sh FOLDER [SLICE]      SLICE 0 to 9: one of the six builds; ten slices in turn are all
set -u
folder=$1
slice=${2:-}
number=0
failed=0
for compiler in gcc clang; do
    for level in -O1 -O2 -O3; do
        number=$((number + 1))
        [ -z "$slice" ] || [ $((slice % 6 + 1)) -eq "$number" ] || continue
        build=$folder/$compiler$level
        mkdir -p "$build"
        if ! make -s BUILD="$build" CC=$compiler OPT=$level -j"$(nproc)" "$build/tests/ordered_bits" >"$build/log" 2>&1; then
            echo "NO BUILD    $compiler $level"
            cat "$build/log"
            failed=1
        elif ! BUILD=$build tests/whole/test_ordered_bits.sh; then
            echo "OTHER BITS  $compiler $level"
            failed=1
        else
            echo "same bits   $compiler $level"
        fi
    done
done
exit $failed

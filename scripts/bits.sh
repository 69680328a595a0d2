#!/bin/sh
# Builds with gcc and clang at -O1, -O2, -O3 and checks that ordered sums have the recorded bits in each.
# usage: bits.sh FOLDER
set -u
folder=$1
failed=0
for compiler in gcc clang; do
    for level in -O1 -O2 -O3; do
        build=$folder/$compiler$level
        mkdir -p "$build"
        if ! make -s BUILD="$build" CC=$compiler OPT=$level -j"$(nproc)" all >"$build/log" 2>&1; then
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

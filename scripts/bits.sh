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
        if make --no-print-directory BUILD="$build" CC=$compiler OPT=$level -j"$(nproc)" all >"$build/log" 2>&1 &&
            BUILD=$build tests/test_ordered_bits.sh >"$build/result" 2>&1; then
            echo "same bits   $compiler $level"
        else
            echo "OTHER BITS  $compiler $level (see $build)"
            failed=1
        fi
    done
done
exit $failed

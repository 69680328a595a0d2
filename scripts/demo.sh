#!/bin/sh
# The tiny model against its goldens, stage by stage. Last line: verdict and next tokens.
# usage: demo.sh PROGRAM FOLDER
set -u
program=$1
folder=$2
dump=$folder/tiny.safetensors

"$program" run golden/tiny/model --case golden/tiny/case.safetensors --dump "$dump" >"$folder/tiny.txt" || exit
cat "$folder/tiny.txt"
"$program" compare golden/tiny/golden.safetensors.gz "$dump" >"$folder/tiny.compare.txt"
status=$?
sed '$d' "$folder/tiny.compare.txt"
echo "$(tail -n 1 "$folder/tiny.compare.txt"); $(grep '^next tokens' "$folder/tiny.txt")"
exit $status

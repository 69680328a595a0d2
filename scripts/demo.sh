#!/bin/sh
# A photograph among token ids through the tiny model, against its goldens, stage by stage. Last line: verdict and next
# tokens.
# usage: demo.sh PROGRAM FOLDER
set -u
program=$1
folder=$2
dump=$folder/photo.safetensors

"$program" run golden/tiny/model --ids 198,68,74,12,125,87,200,119,165,195,199,203 --image golden/photo.png \
    --dump "$dump" >"$folder/photo.txt" || exit
cat "$folder/photo.txt"
"$program" compare golden/vision/photo.safetensors.gz "$dump" --all >"$folder/photo.compare.txt"
status=$?
sed '$d' "$folder/photo.compare.txt"
echo "$(tail -n 1 "$folder/photo.compare.txt"); $(grep '^next tokens' "$folder/photo.txt")"
exit $status

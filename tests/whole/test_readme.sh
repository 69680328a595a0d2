#!/bin/sh
# What README prints of the program is what the program prints: each command that needs nothing but the program,
# files of the repository and NumPy, run again. The commands without outputs, at the top and under *Use*, end with 0
# where files stand in the places of MODEL, F and so on.
# Seen to fail with: a digit of README changed; a line removed from an output; a use with an option of another command,
# or with a layer that the model does not have; synth of tiny with --dtype nvfp4.
. tests/support/verdict.sh
. tests/support/page.sh
page "${PAGE:-README.md}" 23

# ---- the uses
: >"$folder/findings"
model=$root/golden/tiny/model
mkdir "$folder/uses" "$folder/uses/frames"
cp golden/photo.png "$folder/uses/photo.png"
cp golden/photo.png "$folder/uses/frames/1.png"
cp golden/photo.png "$folder/uses/frames/2.png"
cp tests/candidates/padded_case.safetensors "$folder/uses/batch.safetensors"
cp golden/tiny/case.safetensors "$folder/uses/case.safetensors"
cp tests/candidates/answer_vllm.json "$folder/uses/ANSWER.json"
echo 1,2,3 >"$folder/uses/ids"
# The lines that begin with the program, without what they do, which follows after several blanks; and some of that.
# Words need a library.
sed -n '/^The most common uses/,/^`compare`, `blame`/p' "${PAGE:-README.md}" | sed -n 's/^    build\/m3ref //p' |
    sed 's/  .*//' | grep -v -- '--prompt' >"$folder/uses/lines"
[ "$(wc -l <"$folder/uses/lines")" -ge 25 ] || echo 'hardly any use' >"$folder/findings"
cat >>"$folder/uses/lines" <<'END'
run MODEL --ids '1,<video>,2' --video FOLDER
run MODEL --ids 4 --cache-in c.safetensors
run MODEL --ids - <ids
generate MODEL --case F --max-new 2 --plan
check MODEL CANDIDATE --case F --plan
generate MODEL --ids 1,2,3 --max-new 3 --temperature 1
compare REFERENCE CANDIDATE --profile bf16 --html h --junit j --ledger l
compare REFERENCE CANDIDATE --profile bf16 --envelope E
synth golden/tiny/model/config.json packed --dtype mxfp8
synth golden/tiny/model/config.json modules --mtp 2
END
(
    cd "$folder/uses" || exit
    ln -s "$root/golden" golden
    "$build/m3ref" run "$model" --case case.safetensors --dump candidate >/dev/null
    "$build/m3ref" run "$model" --case case.safetensors --precision f64 --bounds --dump truth.safetensors >/dev/null
    "$build/m3ref" compare truth.safetensors candidate --json >before.jsonl
    while read -r line; do
        case $line in *--speculative*) with=$root/golden/mtp/model ;; *) with=$model ;; esac
        arguments=$(echo "$line" | sed "s,MODEL_OR_CONFIG\|MODEL,$with,; s/--case F/--case case.safetensors/
            s/ --map vllm//; s/YOUR_DUMP\|CANDIDATE/candidate/; s/REFERENCE/truth.safetensors/; s/@FILE/@ids/
            s/--video FOLDER/--video frames/")
        eval "\"$build/m3ref\" $arguments" >out 2>err </dev/null || { echo "status $?: $line"; cat err; }
    done <lines
) >>"$folder/findings"
verdict 'uses' "$folder/findings"
end

#!/bin/sh
# Another program shortens, overwrites or replaces the weights during a run: status 74, one line that names the file, no
# dump and no temporary file; a replaced file goes unnoticed, because its old bytes stay. The same in a plug-in's process.
#
# Seen to fail without the handler (io/mapped.c), with the plug-ins' guard in its place, without the check before a commit
# and without the one at the end, and with replaced files taken for changed ones.
build=${BUILD:-build}
. tests/support/verdict.sh
weights=$folder/model/model.safetensors

# A case long enough for the weights to be changed while they are needed.
T=2000
printf '\200\0\0\0\0\0\0\0%-128s' "{\"input_ids\":{\"dtype\":\"I32\",\"shape\":[$T],\"data_offsets\":[0,$((4 * T))]}}" \
    >"$folder/case.safetensors"
head -c $((4 * T)) /dev/zero >>"$folder/case.safetensors"

# changed NAME STATUS CHANGE ARGUMENTS..: runs the model, does `CHANGE weights` once they are mapped and a layer is done.
changed() {
    name=$1 expected=$2 change=$3
    shift 3
    rm -rf "$folder/model"
    cp -r golden/tiny/model "$folder/model"
    echo old >"$folder/dump.safetensors"
    "$build/m3ref" run "$folder/model" --case "$folder/case.safetensors" "$@" >"$folder/out" 2>"$folder/errors" &
    run=$!
    while kill -0 $run 2>/dev/null; do
        for process in $run $(cat "/proc/$run/task/$run/children" 2>/dev/null); do
            grep -q model.safetensors "/proc/$process/maps" 2>/dev/null && break 2
        done
    done
    sleep 0.1
    $change
    wait $run
    status=$?
    {
        [ $status -eq "$expected" ] || echo "got status $status, expected $expected"
        if [ "$expected" -ne 0 ]; then
            [ "$(wc -l <"$folder/errors")" -eq 1 ] || cat "$folder/errors"
            grep -q "$weights: .*while it was read" "$folder/errors" || cat "$folder/errors"
            [ "$(cat "$folder/dump.safetensors")" = old ] || echo 'a dump was written'
        fi
        find "$folder" -name '.m3ref*'
    } >"$folder/findings"
    verdict "$name" "$folder/findings"
}

shorten() { : >"$weights"; }
overwrite() { dd if=golden/tiny/model/model.safetensors of="$weights" conv=notrunc 2>/dev/null; }
replace() { cp "$weights" "$folder/new" && mv "$folder/new" "$weights"; }

changed 'shortened' 74 shorten --dump "$folder/dump.safetensors"
changed 'shortened, one thread' 74 shorten --threads 1
changed 'shortened, in a plug-in' 74 shorten --ops "$build/tests/counting_embed.so,$folder/calls"
changed 'overwritten' 74 overwrite --dump "$folder/dump.safetensors"
changed 'overwritten, without a dump' 74 overwrite
changed 'replaced' 0 replace --dump "$folder/dump.safetensors"

end

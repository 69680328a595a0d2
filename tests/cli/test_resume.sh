#!/bin/sh
# `m3ref run --resume`: a run that is killed, at any of its writes or in the middle of one, goes on when it is repeated, and
# ends with the bytes of a run that was not: dump, cache, next tokens. A folder of another run, or with other files in it, is
# refused with one line, and stays as it is.
#
# Seen to fail with: the layer's number in the state one too high; keys of a layer not kept; the input of layer 0 not
# kept; what the dump has not skipped; the dump renamed, not given a second name; the labels not compared; the hash of the
# numbers not compared; the lock left out; the files left after the run.
build=${BUILD:-build}
. tests/support/verdict.sh
work=$folder/work
mkdir "$work" "$work/other"

# A library in front of the C library kills the program at its call number $KILL_AT that changes a file; a write is done
# by half.
cat >"$folder/kill.c" <<'END'
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
static int is_last(void)
{
    static long left = -1;
    if (left < 0) left = getenv("KILL_AT") ? atol(getenv("KILL_AT")) : 0;
    return left > 0 && --left == 0;
}
static long end(void) { return syscall(SYS_kill, syscall(SYS_getpid), SIGKILL); }
ssize_t write(int fd, const void *bytes, size_t count)
{
    if (fd <= 2 || !is_last()) return syscall(SYS_write, fd, bytes, count);
    syscall(SYS_write, fd, bytes, count / 2);
    return end();
}
int fsync(int fd) { return (int)(is_last() ? end() : syscall(SYS_fsync, fd)); }
int rename(const char *from, const char *to)
{
    return (int)(is_last() ? end() : syscall(SYS_renameat2, -100, from, -100, to, 0));
}
int unlink(const char *name) { return (int)(is_last() ? end() : syscall(SYS_unlinkat, -100, name, 0)); }
int unlinkat(int folder, const char *name, int flags)
{
    return (int)(is_last() ? end() : syscall(SYS_unlinkat, folder, name, flags));
}
END
${CC:-cc} -shared -fPIC -O1 -o "$folder/kill.so" "$folder/kill.c" || exit
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0
export ASAN_OPTIONS

# run_until CALL: the command; its last line, which has the next tokens, goes to work/out.
run_until() {
    LD_PRELOAD=$folder/kill.so KILL_AT=$1 "$build/m3ref" $command >"$folder/log" 2>"$folder/errors"
    status=$?
    tail -n 1 "$folder/log" >"$work/out"
}

# same_outputs: work/ holds the outputs of the run that was not killed, and no other file.
same_outputs() {
    [ "$status" -eq 0 ] || { echo "status $status" && cat "$folder/errors"; }
    diff -r "$folder/whole" "$work" || diff -r "$folder/whole" "$work" | head -n 3
}

# interrupted NAME STEP ARGUMENTS..: killed at every STEP-th call, again 20 calls later, then not.
interrupted() {
    name=$1 step=$2 call=1 kills=0
    shift 2
    command="run $* --threads 1 --resume $work/state"
    rm -rf "$folder/whole" "$work"/*
    run_until 0
    cp -r "$work" "$folder/whole"
    same_outputs >"$folder/findings"
    [ -z "$(ls "$work/state")" ] || ls -A "$work/state" >>"$folder/findings"
    while rm -rf "$work"/*; run_until $call; [ $status -eq 137 ]; do
        kills=$((kills + 1))
        run_until 20
        run_until 0
        same_outputs | sed "s/^/killed at call $call: /" >>"$folder/findings"
        grep -q '^resume: ' "$folder/log" && resumed=$((resumed + 1))
        call=$((call + step))
    done
    [ $kills -ge 10 ] || echo "killed only $kills times" >>"$folder/findings"
    verdict "$name" "$folder/findings"
}

resumed=0
tiny=golden/tiny/model
case=golden/tiny/case.safetensors
interrupted 'pictures' 7 $tiny --case golden/vision/two_case.safetensors --dump "$work/d"
interrupted 'packed in double' 9 golden/mtp/model --case golden/mtp/picture_case.safetensors --precision f64 \
    --set mtp_embed=fused --dump "$work/d.gz" --cache-out "$work/c"
interrupted 'one tap' 1 $tiny --ids 1,2,3,4 --dump "$work/d" --taps logits --linear ordered
"$build/m3ref" run $tiny --ids 1,2,3 --cache-out "$folder/cache" --dump "$folder/hidden" >/dev/null
interrupted 'after a cache' 9 $tiny --ids 4,5 --cache-in "$folder/cache" --cache-out "$work/c" --dump "$work/d"
interrupted 'some layers' 7 $tiny --ids 1,2,3 --layers 2:4 --hidden "$folder/hidden" --dump "$work/d"
[ "$resumed" -gt 40 ] || echo "only $resumed runs went on" >"$folder/findings"
verdict 'runs that went on' "$folder/findings"

# The tensors are those of a run without the option.
command="run $tiny --case $case --dump $work/d --resume $work/state"
rm -rf "$work"/*
run_until 120
run_until 0
"$build/m3ref" run $tiny --case $case --dump "$folder/plain" >/dev/null
"$build/m3ref" inspect "$folder/plain" --sha256 >"$folder/want"
"$build/m3ref" inspect "$work/d" --sha256 | diff "$folder/want" - >"$folder/findings"
verdict 'the same as without --resume' "$folder/findings"

# ---- what is refused

# refused NAME STATUS WORDS ARGUMENTS..: one line that holds the words; the folder stays.
refused() {
    name=$1 expected=$2 words=$3
    shift 3
    rm -rf "$folder/before"
    cp -r "$work" "$folder/before"
    "$build/m3ref" run "$@" --resume "$work/state" >"$folder/log" 2>"$folder/errors"
    status=$?
    {
        [ $status -eq "$expected" ] || echo "got status $status, expected $expected"
        [ "$(wc -l <"$folder/errors")" -eq 1 ] || cat "$folder/errors"
        grep -q -e "$words" "$folder/errors" || { echo "no \"$words\" in:" && cat "$folder/errors"; }
        diff -r "$folder/before" "$work"
    } >"$folder/findings"
    verdict "$name" "$folder/findings"
}

# begun CALL ARGUMENTS..: a run is killed there, after a layer or more; its state is in work/state.
begun() {
    rm -rf "$work"/*
    call=$1
    shift
    command="run $* --resume $work/state"
    run_until "$call"
}

cp -r $tiny "$folder/model"
printf ' ' >>"$folder/model/config.json"
cp -r $tiny "$folder/weights"
printf '\1' | dd of="$folder/weights/model.safetensors" bs=1 seek=$(($(wc -c <$tiny/model.safetensors) - 2)) conv=notrunc 2>/dev/null
"$build/m3ref" run $tiny --ids 7,8,9 --cache-out "$folder/cache2" >/dev/null
"$build/m3ref" run $tiny --ids 1,2,3 --dump "$folder/hidden2" --precision f64 >/dev/null
ids='--ids 1,2,3'
dump="--dump $work/d --linear ordered"
cache="--cache-in $folder/cache"
begun 120 $tiny $ids $dump $cache
refused 'another model' 65 'model_sha256: got' "$folder/model" $ids $dump
refused 'other weights' 65 'weights_sha256: got' "$folder/weights" $ids $dump
refused 'other ids' 65 'case_sha256: got' $tiny --ids 1,2,4 $dump $cache
refused 'no cache' 65 'cache_sha256: got' $tiny $ids $dump
refused 'another cache' 65 'cache_sha256: got' $tiny $ids $dump --cache-in "$folder/cache2"
refused 'another precision' 65 'precision: got f32' $tiny $ids $dump --precision f64
refused 'other sums' 65 'linear: got ordered' $tiny $ids $cache --dump "$work/d"
refused 'other operators' 65 'ops: got default' $tiny $ids $dump $cache --ops plain
refused 'another reading' 65 'semantics: got' $tiny $ids $dump --set selection=union
refused 'other layers' 65 'layers: got 0:5' $tiny $ids $dump --layers 0:4
refused 'other taps' 65 'taps: got' $tiny $ids $dump $cache --taps logits
refused 'no dump' 65 'dump: got yes' $tiny $ids --linear ordered $cache
for option in --bounds "--companions $work/c" "--decisions $folder/hidden" "--ops $build/tests/plain_table.so"; do
    refused "with ${option%% *}" 64 "--resume: got it with ${option%% *}" $tiny $ids $dump $option
done
refused 'several sequences' 64 '--resume: got it with a case' $tiny --case tests/candidates/packed_case.safetensors
refused 'an output in the folder' 64 'in the folder of --resume' $tiny $ids --dump "$work/state/d" $cache
if flock -V >/dev/null 2>&1; then
    exec 9<"$work/state"
    flock 9
    refused 'in use' 64 'another run is using' $tiny $ids $dump $cache
    exec 9<&-
fi
cp -r "$work/state" "$folder/good"

begun 120 $tiny --ids '1,<image>,2' --image golden/pictures/rgb8.png --dump "$work/d"
refused 'another picture' 65 'pixels_sha256: got' $tiny --ids '1,<image>,2' --image golden/pictures/rgb8_gamma.png \
    --dump "$work/d"
begun 40 $tiny $ids --layers 2:4 --hidden "$folder/hidden" --dump "$work/d"
refused 'another input' 65 'hidden_sha256: got' $tiny $ids --layers 2:4 --hidden "$folder/hidden2" --dump "$work/d"

# damaged NAME FILE CHANGE WORDS: changes a copy of the file.
damaged() {
    rm -rf "$work/state"
    cp -r "$folder/good" "$work/state"
    file=$work/state/$2
    $3
    refused "$1" "${5:-65}" "$4" $tiny $ids $dump $cache
}
flip() { printf '\377' | dd of="$file" bs=1 seek=$(($(wc -c <"$file") - 2)) conv=notrunc 2>/dev/null; }
shorten() { truncate -s -1 "$file"; }
remove() { rm "$file"; }
add() { echo mine >"$file"; }
damaged 'a changed number' m3ref-state.safetensors flip 'data_sha256: got'
damaged 'a changed key' m3ref-keys.0.safetensors flip 'data_sha256: got'
damaged 'a short state' m3ref-state.safetensors shorten 'm3ref-state.safetensors: '
damaged 'no keys' m3ref-keys.1.safetensors remove 'm3ref-keys.1.safetensors: ' 66
damaged 'a short dump' m3ref-dump.part shorten 'got a shorter file'
damaged 'no dump' m3ref-dump.part remove 'got no such file'
damaged 'a file of the user' notes.txt add 'with notes.txt in it' 64
end

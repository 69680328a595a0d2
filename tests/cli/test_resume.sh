#!/bin/sh
# `--resume` of run and check: a run that is killed, at any of its writes or in the middle of one, goes on when it is repeated, and
# ends with the bytes of a run that was not: dump, companions, cache, next tokens. A folder of another run, build or model is
# refused with one line, and everything stays as it is.
#
# Seen to fail with: the layer's number in the state one too high; cache rows of a layer not kept; the input of layer 0 not
# kept; what the files have not written again; the embeddings not given to the companions; a longer cache not cut back; the
# state removed before the outputs; a label not compared; the hash of the numbers, of the outputs, not compared; the lock
# left out; the state left after the run; any file of the folder removed; findings of check kept without their verdict.
build=${BUILD:-build}
. tests/support/verdict.sh
work=$folder/work
mkdir "$work" "$work/other"

# A library in front of the C library kills the program at its call number $KILL_AT that changes a file; a write is done
# by half. With $FAIL_AT such a call fails with the error $FAIL_WITH. With $NAMED no file can be without a name.
cat >"$folder/kill.c" <<'END'
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
static int is_call(const char *name, long *left)
{
    if (*left < 0) *left = getenv(name) ? atol(getenv(name)) : 0;
    return *left > 0 && --*left == 0;
}
/* 0: do it; 1: fail; ends the program */
static int meets(int fd, const void *bytes, size_t half)
{
    static long kills = -1, fails = -1;
    if (is_call("KILL_AT", &kills)) {
        if (half) syscall(SYS_write, fd, bytes, half);
        syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
    }
    if (!is_call("FAIL_AT", &fails)) return 0;
    errno = atoi(getenv("FAIL_WITH"));
    return 1;
}
ssize_t write(int fd, const void *bytes, size_t count)
{
    if (fd > 2 && meets(fd, bytes, count / 2)) return -1;
    return syscall(SYS_write, fd, bytes, count);
}
int fsync(int fd) { return meets(fd, 0, 0) ? -1 : 0; } /* what a killed program has written stays without it */
int ftruncate(int fd, off_t size) { return meets(0, 0, 0) ? -1 : (int)syscall(SYS_ftruncate, fd, size); }
int rename(const char *from, const char *to)
{
    return meets(0, 0, 0) ? -1 : (int)syscall(SYS_renameat2, -100, from, -100, to, 0);
}
int unlink(const char *name) { return meets(0, 0, 0) ? -1 : (int)syscall(SYS_unlinkat, -100, name, 0); }
int open(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    const int mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, int) : 0;
    va_end(rest);
    if ((flags & O_TMPFILE) == O_TMPFILE && getenv("NAMED")) return errno = EOPNOTSUPP, -1;
    if ((flags & O_CREAT) && meets(0, 0, 0)) return -1;
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
END
${CC:-cc} -shared -fPIC -O1 -w -o "$folder/kill.so" "$folder/kill.c" || exit
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0
export ASAN_OPTIONS

# fresh: the folder of outputs as it is before a run.
fresh() {
    rm -rf "$work"
    mkdir "$work" "$work/state"
    echo mine >"$work/state/m3ref-notes"
    [ -z "$cache" ] || cp "$cache" "$work/c"
}

# run_until CALL: the command; its last line, which has the next tokens, goes to work/out.
run_until() {
    LD_PRELOAD=$folder/kill.so KILL_AT=$1 "$build/m3ref" $command >"$folder/log" 2>"$folder/errors"
    status=$?
    sed -n 's/.*next tokens/next tokens/p' "$folder/log" >"$work/out"
}

# same_outputs: work/ holds the outputs of the run that was not killed, and no other file.
same_outputs() {
    [ "$status" -eq 0 ] || { echo "status $status" && cat "$folder/errors"; }
    diff -r "$folder/whole" "$work" | head -n 3
}

# interrupted NAME STEP ARGUMENTS..: killed at every STEP-th call, again 20 calls later, then not. Where that is every call,
# a slice has a fifth of them.
interrupted() {
    name=$1 step=$2 call=1 kills=0
    shift 2
    if [ "$step" -eq 1 ] && [ "${M3_SLICE:-0}" != all ]; then
        step=5
        call=$((1 + ${M3_SLICE:-0} % 5))
    fi
    command="run $* --threads 1 --resume $work/state"
    rm -rf "$folder/whole"
    fresh
    run_until 0
    cp -r "$work" "$folder/whole"
    same_outputs >"$folder/findings"
    [ "$(ls -A "$work/state")" = m3ref-notes ] || echo "in the folder: $(ls -A "$work/state")" >>"$folder/findings"
    while fresh; run_until $call; [ $status -eq 137 ]; do
        kills=$((kills + 1))
        run_until 20
        run_until 0
        same_outputs | sed "s/^/killed at call $call: /" >>"$folder/findings"
        grep -q '^resume: ' "$folder/log" && resumed=$((resumed + 1))
        call=$((call + step))
        if [ $((kills % 2)) -eq 0 ]; then unset NAMED; else export NAMED=1; fi
    done
    unset NAMED
    [ $kills -ge 5 ] || echo "killed only $kills times" >>"$folder/findings"
    verdict "$name, $kills kills" "$folder/findings"
}

resumed=0 cache=
tiny=golden/tiny/model
case=golden/tiny/case.safetensors
interrupted 'pictures' 37 $tiny --case golden/vision/two_case.safetensors --dump "$work/d"
interrupted 'packed in double' 61 golden/mtp/model --case golden/mtp/picture_case.safetensors --precision f64 \
    --set mtp_embed=fused --dump "$work/d.gz" --cache-out "$work/c"
interrupted 'one tap' 1 $tiny --ids 1,2,3,4 --dump "$work/d" --taps logits --linear ordered
interrupted 'no file' 1 $tiny --ids 1,2,3,4
"$build/m3ref" run $tiny --ids 1,2,3 --cache-out "$folder/cache" --dump "$folder/hidden" >/dev/null
interrupted 'after a cache' 29 $tiny --ids 4,5 --cache-in "$folder/cache" --cache-out "$work/c" --dump "$work/d"
cache=$folder/cache
interrupted 'a cache that is replaced' 1 $tiny --ids 4,5 --cache-in "$work/c" --cache-out "$work/c" --dump "$work/d" \
    --taps 'layers.?.out'
cache=
interrupted 'some layers' 23 $tiny --ids 1,2,3 --layers 2:4 --hidden "$folder/hidden" --dump "$work/d"
interrupted 'companions' 131 golden/mtp/model --ids 1,2,3,4 --dump "$work/d" --companions "$work/b"
interrupted 'companions, fused' 211 golden/mtp/model --case golden/mtp/picture_case.safetensors --set mtp_embed=fused \
    --dump "$work/d" --bounds --taps 'fused,layers.1.*,mtp.*,logits'
interrupted 'several sequences' 97 $tiny --case tests/candidates/packed_case.safetensors --dump "$work/d"
interrupted 'decisions' 53 $tiny --ids 1,2,3 --decisions "$folder/hidden" --dump "$work/d"
{ [ "$resumed" -gt 60 ] || echo "only $resumed runs went on"; } >"$folder/findings"
verdict 'runs that went on' "$folder/findings"

# The tensors are those of a run without the option.
fresh
command="run $tiny --case $case --dump $work/d --resume $work/state"
run_until 120
run_until 0
"$build/m3ref" run $tiny --case $case --dump "$folder/plain" >/dev/null
"$build/m3ref" inspect "$folder/plain" --sha256 >"$folder/want"
"$build/m3ref" inspect "$work/d" --sha256 | diff "$folder/want" - >"$folder/findings"
verdict 'the same as without --resume' "$folder/findings"

# ---- check: what was found is kept after every tap

# checked NAME STEP STATUS ARGUMENTS..: the verdict and its report, killed as above.
checked() {
    name=$1 step=$2 wanted=$3 call=1 kills=0 resumed=0
    shift 3
    command="check $* --threads 1 --junit $work/junit.xml --resume $work/state"
    rm -rf "$folder/whole"
    fresh
    run_until 0
    cp "$folder/log" "$folder/verdict"
    cp -r "$work" "$folder/whole"
    : >"$folder/findings"
    [ "$(ls -A "$work/state")" = m3ref-notes ] || echo "in the folder: $(ls -A "$work/state")" >>"$folder/findings"
    while fresh; run_until $call; [ $status -eq 137 ]; do
        kills=$((kills + 1)) call=$((call + step))
        run_until 0
        [ $status -eq "$wanted" ] || echo "status $status, expected $wanted" >>"$folder/findings"
        grep -q 'taps had been judged before' "$folder/errors" && resumed=$((resumed + 1))
        diff "$folder/verdict" "$folder/log" | head -n 3 >>"$folder/findings"
        diff -r "$folder/whole" "$work" | head -n 3 >>"$folder/findings"
    done
    [ $kills -ge 5 ] && [ $resumed -ge 4 ] || echo "killed $kills times, went on $resumed times" >>"$folder/findings"
    verdict "$name, $kills kills" "$folder/findings"
}

"$build/m3ref" run $tiny --case $case --dump "$folder/right" >/dev/null
"$build/m3ref" run $tiny --case $case --dump "$folder/wrong" --set gate_clamp=both >/dev/null
checked 'check of a right dump' 97 0 $tiny "$folder/right" --case $case --json
checked 'check of a wrong dump' 149 1 $tiny "$folder/wrong" --case $case --all
"$build/m3ref" run $tiny --case tests/candidates/packed_case.safetensors --dump "$folder/packed" >/dev/null
checked 'check of several sequences' 251 0 $tiny "$folder/packed" --case tests/candidates/packed_case.safetensors

# ---- calls that fail: one line, the right status, and the next run goes on

command="run $tiny --ids 1,2,3 --cache-out $work/c --dump $work/d --taps layers.?.out,logits --threads 1 --resume $work/state"
rm -rf "$folder/whole"
fresh
run_until 0
cp -r "$work" "$folder/whole"
for error in 28 5; do
    call=$((error / 28 + 1))
    while fresh; FAIL_AT=$call FAIL_WITH=$error run_until 0; [ $call -lt 80 ]; do
        [ $status -eq 0 ] || [ $status -eq 74 ] || echo "call $call, error $error: status $status"
        [ $status -eq 0 ] || [ "$(wc -l <"$folder/errors")" -eq 1 ] || cat "$folder/errors"
        run_until 0
        same_outputs | sed "s/^/call $call, error $error: /"
        call=$((call + 2))
    done
done >"$folder/findings"
verdict 'no room, and an error of the disk' "$folder/findings"

# An upgrade of the program that changes no bit goes on with a state; one with other arithmetic does not.
mkdir "$folder/other"
cp "$build/m3ref" "$folder/other"
printf ' ' >>"$folder/other/m3ref"
fresh
run_until 60
{
    ls "$work"/state/*.state.safetensors >/dev/null
    build=$folder/other run_until 0
    same_outputs
} >"$folder/findings" 2>&1
verdict 'another build of the same arithmetic' "$folder/findings"

# ---- what is refused

# refused NAME STATUS WORDS ARGUMENTS..: one line that holds the words; everything stays.
refused() {
    name=$1 expected=$2 words=$3
    shift 3
    rm -rf "$folder/before"
    cp -r "$work" "$folder/before"
    "$build/m3ref" $verb "$@" --resume "$work/state" >"$folder/log" 2>"$folder/errors"
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
    fresh
    call=$1
    shift
    command="run $* --resume $work/state"
    run_until "$call"
    ls "$work"/state/*.state.safetensors >/dev/null
}

fresh
command="check $tiny $folder/right --case $case --resume $work/state"
run_until 300
verb=check
refused 'another candidate' 65 'candidate_sha256: got' $tiny "$folder/wrong" --case $case
refused 'another profile' 65 'profile_sha256: got' $tiny "$folder/right" --case $case --profile bf16
refused 'a report in the folder' 64 'in the folder of --resume' $tiny "$folder/right" --case $case --html "$work/state/h"
verb=run

cp -r $tiny "$folder/model"
printf ' ' >>"$folder/model/config.json"
cp -r $tiny "$folder/weights"
printf '\1' | dd of="$folder/weights/model.safetensors" bs=1 seek=$(($(wc -c <$tiny/model.safetensors) - 2)) conv=notrunc 2>/dev/null
"$build/m3ref" run $tiny --ids 7,8,9 --cache-out "$folder/cache2" >/dev/null
"$build/m3ref" run $tiny --ids 1,2,3 --dump "$folder/hidden2" --precision f64 >/dev/null
cp "$build/tests/plain_table.so" "$folder/plugin.so"
ids='--ids 1,2,3'
dump="--dump $work/d --linear ordered"
cache_in="--cache-in $folder/cache"
begun 220 $tiny $ids $dump $cache_in
refused 'another model' 65 'model_sha256: got' "$folder/model" $ids $dump $cache_in
refused 'other weights' 65 'weights_sha256: ' "$folder/weights" $ids $dump $cache_in
refused 'other ids' 65 'case_sha256: got' $tiny --ids 1,2,4 $dump $cache_in
refused 'no cache' 65 'cache: got yes' $tiny $ids $dump --allow-long
refused 'another cache' 65 'cache_sha256: got' $tiny $ids $dump --cache-in "$folder/cache2"
refused 'another precision' 65 'precision: got f32' $tiny $ids $dump --precision f64
refused 'other sums' 65 'linear: got ordered' $tiny $ids $cache_in --dump "$work/d"
refused 'other operators' 65 'ops: got none' $tiny $ids $dump $cache_in --ops plain
refused 'a plug-in' 65 'ops: got none' $tiny $ids $dump $cache_in --ops "$folder/plugin.so"
refused 'decisions' 65 'decisions_sha256: got none' $tiny $ids $dump $cache_in --decisions "$folder/hidden"
refused 'another reading' 65 'semantics: got' $tiny $ids $dump $cache_in --set selection=union
refused 'other layers' 65 'end_layer: got 5' $tiny $ids $dump --layers 0:4
refused 'other taps' 65 'taps: got' $tiny $ids $dump $cache_in --taps logits
refused 'companions' 65 'companions: got none' $tiny $ids $dump $cache_in --bounds
refused 'no dump' 65 'dump: got yes' $tiny $ids --linear ordered $cache_in
refused 'several sequences' 65 'case_sha256: got' $tiny --case tests/candidates/packed_case.safetensors $dump
refused 'a profile' 64 'got --resume with --profile' $tiny $ids $dump --bounds --profile bf16
refused 'an output in the folder' 64 'in the folder of --resume' $tiny $ids --dump "$work/state/d" $cache_in
refused 'a cache in the folder' 64 'in the folder of --resume' $tiny $ids --cache-out "$work/state/m3ref-notes"
if flock -V >/dev/null 2>&1; then
    exec 9<"$work/state"
    flock 9
    refused 'in use' 64 'another run is using' $tiny $ids $dump $cache_in
    exec 9<&-
fi
cp -r "$work/state" "$folder/good"

begun 120 $tiny --ids '1,<image>,2' --image golden/pictures/rgb8.png --dump "$work/d"
refused 'another picture' 65 'pixels_sha256: got' $tiny --ids '1,<image>,2' --image golden/pictures/rgb8_gamma.png \
    --dump "$work/d"
begun 60 $tiny $ids --layers 2:4 --hidden "$folder/hidden" --dump "$work/d"
refused 'another input' 65 'hidden_sha256: got' $tiny $ids --layers 2:4 --hidden "$folder/hidden2" --dump "$work/d"
begun 60 $tiny $ids --dump "$work/d" --ops "$folder/plugin.so"
printf ' ' >>"$folder/plugin.so"
refused 'a changed plug-in' 65 'ops_sha256: got' $tiny $ids --dump "$work/d" --ops "$folder/plugin.so"
begun 60 $tiny $ids --dump "$work/d" --decisions "$folder/hidden"
refused 'other decisions' 65 'decisions_sha256: got' $tiny $ids --dump "$work/d" --decisions "$folder/hidden2"
fresh
echo mine >"$work/state/0.outputs"
refused 'a file of the name' 64 '0.outputs: got a file without' $tiny $ids $dump
rm -rf "$work/state"
refused 'an output in a folder that is made' 64 'in the folder of --resume' $tiny $ids --dump "$work/state/d"
echo mine >"$work/state"
refused 'a file in place of the folder' 74 'cannot be opened' $tiny $ids $dump

# damaged NAME FILE CHANGE WORDS STATUS: changes a copy of the file.
damaged() {
    fresh
    rm -rf "$work/state"
    cp -r "$folder/good" "$work/state"
    file=$work/state/$2
    $3
    refused "$1" "${5:-65}" "$4" $tiny $ids $dump $cache_in
}
flip() { printf '\377' | dd of="$file" bs=1 seek=$(($(wc -c <"$file") - 2)) conv=notrunc 2>/dev/null; }
other_command() { sed -i 's/run golden/run Golden/' "$file"; }
other_arithmetic() { sed -i 's/"arithmetic":"1"/"arithmetic":"2"/' "$file"; }
flip_first() { printf '\377' | dd of="$file" bs=1 seek=17 conv=notrunc 2>/dev/null; }
shorten() { truncate -s -1 "$file"; }
cut_outputs() { truncate -s 100 "$file"; }
remove() { rm "$file"; }
empty() { : >"$file"; }
damaged 'a changed number' 0.state.safetensors flip 'seal_sha256: got'
damaged 'a changed letter' 0.state.safetensors other_command 'seal_sha256: got'
damaged 'other arithmetic' 0.state.safetensors other_arithmetic 'arithmetic: got 2, expected 1'
damaged 'a short state' 0.state.safetensors shorten '0.state.safetensors: '
damaged 'an empty state' 0.state.safetensors empty '0.state.safetensors: '
damaged 'no state' 0.state.safetensors remove 'got a file without 0.state.safetensors' 64
damaged 'a changed head of a record' 0.outputs flip_first '0.outputs: '
damaged 'short outputs' 0.outputs cut_outputs '0.outputs: got .* bytes, expected more'
damaged 'no outputs' 0.outputs remove 'got no such file'
flip_middle() { printf '\377\376' | dd of="$file" bs=1 seek=300 conv=notrunc 2>/dev/null; }
damaged 'a changed output' 0.outputs flip_middle '0.outputs: '
end

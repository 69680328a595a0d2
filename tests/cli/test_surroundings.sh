#!/bin/sh
# Commands in bad surroundings: few descriptors, little memory, small files, no standard streams, full devices, FIFOs and
# folders that cannot be written. Each ends with the status that its help text names and one line, and leaves nothing.
#
# Seen to fail with: SIGXFSZ not ignored; the room for threads not checked (never ends);
# files of any kind opened; FIFOs replaced; standard output not flushed at the end; /proc/self/fd/4 in a message.
m3ref=${BUILD:-build}/m3ref
golden=golden/tiny/golden.safetensors.gz
model=golden/tiny/model
. tests/support/verdict.sh
mkdir "$folder/work"
work=$folder/work
export OMP_NUM_THREADS=2        # there has to be room for the second one's stack

# ends NAME STATUS WORDS COMMAND: what the shell does with the command, whose words hold no spaces. It writes errors there.
ends() {
    timeout 20 sh -c "$4" >/dev/null 2>"$folder/errors"
    status=$?
    {
        [ "$status" -eq "$2" ] || echo "got status $status, expected $2"
        [ -z "$3" ] || [ "$(wc -l <"$folder/errors")" -eq 1 ] || head -n 3 "$folder/errors"
        grep -q "$3" "$folder/errors" || [ -z "$3" ] || { echo "no \"$3\" in:"; head -n 3 "$folder/errors"; }
        find "$work" -mindepth 1
    } >"$folder/findings"
    verdict "$1" "$folder/findings"
}

run="$m3ref run $model --ids 1,2,3"
page="$m3ref compare $golden $golden"
ends 'four descriptors' 74 'Too many open files' "ulimit -n 4; exec $run --dump $work/d"
ends 'four descriptors, synth' 74 'Too many open files' "ulimit -n 4; exec $m3ref synth $model/config.json $work/m"
ends 'four descriptors, reports' 74 'Too many open files' "ulimit -n 4; exec $page --html $work/h --junit $work/j"
ends 'small files' 74 'File too large' "ulimit -f 8; exec $run --dump $work/d"
ends 'small files, packed' 74 'File too large' "ulimit -f 8; exec $run --dump $work/d.gz"
ends 'small files, page' 74 'File too large' "ulimit -f 8; exec $page --html $work/h"
ends 'small files, temporary' 74 '^m3ref: .*: a temporary file there: cannot write: File too large' \
    "ulimit -f 8; exec $m3ref envelope $model --ids 1,2,3 --profile bf16 --runs 32 --out $work/e"
ends 'few addresses' 70 'the threads: needs' "ulimit -v 500000; exec $run --dump $work/d"
ends 'little memory' 70 'the threads: needs' "ulimit -d 200000; exec $run --dump $work/d"
ends 'no output' 74 'standard output' "exec $run >&-"
ends 'no input' 0 '' "exec $run <&-"
ends 'no errors' 64 '' "exec $m3ref run $model --ids 1,999 2>&-"
ends 'a full device' 74 'standard output' "exec $run >/dev/full"
ends 'a full device, JSON' 74 'No space left' "exec $m3ref inspect $model --json >/dev/full"
mkfifo "$folder/fifo"
ends 'a FIFO as output' 74 'not a regular file' "exec $run --dump $folder/fifo"
ends 'a FIFO as case' 65 'a FIFO' "exec $m3ref run $model --case $folder/fifo"
ends 'a FIFO as dump' 65 'a FIFO' "exec $m3ref compare $golden $folder/fifo"
ends 'no such folder' 74 'No such file' "exec $run --dump $work/none/d"
ends '/proc' 74 '/proc' "exec $run --dump /proc/d"

end

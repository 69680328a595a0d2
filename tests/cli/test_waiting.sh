#!/bin/sh
# The program's threads sleep while they wait: what OpenMP's runtime and OpenBLAS read when they are loaded says so, and
# what the user has set stays. The runtime prints its settings (OMP_DISPLAY_ENV) each time that it is loaded; the last
# time counts.
#
# Seen to fail with: the program not started again; OMP_WAIT_POLICY set over the user's; GOMP_SPINCOUNT set beside it.
m3ref=${BUILD:-build}/m3ref
. tests/support/verdict.sh
unset OMP_WAIT_POLICY GOMP_SPINCOUNT KMP_BLOCKTIME OPENBLAS_NUM_THREADS OMP_NUM_THREADS

# settings NAME=VALUE...: the last value of each setting of the wait, when the program is started with these
settings() {
    env OMP_DISPLAY_ENV=verbose "$@" "$m3ref" --version 2>&1 | awk -F "'" '
        /OMP_WAIT_POLICY/ { policy = $2 } /GOMP_SPINCOUNT/ { count = $2 } END { print policy, count }'
}

# waits NAME PATTERN NAME=VALUE...
waits() {
    name=$1 expected=$2
    shift 2
    got=$(settings "$@")
    : >"$folder/findings"
    case $got in $expected) ;; *) echo "got $got, expected $expected" >"$folder/findings" ;; esac
    verdict "$name" "$folder/findings"
}

waits 'the default: sleep after a short look' 'PASSIVE 1000'
waits 'asked to spin' 'ACTIVE ??????*' OMP_WAIT_POLICY=active
waits 'asked to sleep at once' 'PASSIVE 0' OMP_WAIT_POLICY=passive
waits 'asked for a count' 'PASSIVE 77' GOMP_SPINCOUNT=77

# What the program is started again with, and as what: the same process, name and arguments.
mkfifo "$folder/case"
sh -c 'echo $$ >"$1"; exec "$2" run golden/tiny/model --ids -' - "$folder/pid" "$m3ref" <"$folder/case" >/dev/null 2>&1 &
exec 3>"$folder/case"
tries=0
until [ -s "$folder/pid" ] && tr '\0' '\n' <"/proc/$(cat "$folder/pid")/environ" | grep -q '^OPENBLAS_NUM_THREADS=1$'; do
    [ $((tries += 1)) -lt 1000 ] || break
    sleep 0.01
done
{
    process=/proc/$(cat "$folder/pid")
    tr '\0' '\n' <"$process/environ" | grep -qx 'OPENBLAS_NUM_THREADS=1' || echo 'OpenBLAS has threads of its own'
    [ "$(cat "$process/comm")" = m3ref ] || cat "$process/comm"
    [ "$(tr '\0' ' ' <"$process/cmdline")" = "$m3ref run golden/tiny/model --ids - " ] || cat "$process/cmdline"
    echo 1,2 >&3
} >"$folder/findings" 2>&1
exec 3>&-
wait $! || echo "status $?" >>"$folder/findings"
verdict 'the same process' "$folder/findings"
end

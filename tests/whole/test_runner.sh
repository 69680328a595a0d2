#!/bin/sh
# tests/run.sh: what it counts, what it says on a terminal and only there, and that INT and TERM end what runs.
# Seen to fail with: a crash not counted; a program not counted that ends with 1 but reports no failure; the programs
# left running; only the group of xargs ended, which leaves what `timeout` started; the line of progress in a pipe; a
# report without its seconds; skips not counted; INT ignored by what is run.
. tests/support/verdict.sh
unset TIMES

# program NAME LINES: a test program.
program() {
    printf '#!/bin/sh\n%s\n' "$2" >"$folder/$1"
    chmod +x "$folder/$1"
}
program good 'echo "3 passed, 0 failed"'
program bad 'echo "1 passed, 2 failed"; exit 1'
program silent ':'
program crash 'echo "5 passed, 0 failed"; kill -9 $$'
program dishonest 'echo "1 passed, 0 failed"; exit 1'
program none 'echo "0 passed, 0 failed"'
# Its own INT ends it: the runner has not let it ignore that.
program interrupted 'kill -INT $$; echo "1 passed, 0 failed"'
program partly 'echo "skipped: half: no half here"; echo "2 passed, 0 failed, 1 skipped"'
program long "timeout 300 sleep 271 & echo \$! >$folder/started; wait"

tests/run.sh "$folder/good" "$folder/bad" "$folder/silent" "$folder/crash" "$folder/none" \
    "$folder/dishonest" "$folder/missing" "$folder/interrupted" >"$folder/out" 2>"$folder/errors"
status=$?
{
    [ "$status" -eq 1 ] || echo "got status $status, expected 1"
    [ "$(tail -n 1 "$folder/out")" = '5 passed, 8 failed' ] || tail -n 1 "$folder/out"
    [ "$(grep -cE '^== [a-z]+, [0-9]+ s$' "$folder/out")" -eq 8 ] || { echo 'a report without its seconds'; grep '^==' "$folder/out"; }
    cat "$folder/errors"
} >"$folder/findings"
verdict 'counts' "$folder/findings"

: >"$folder/findings"
tests/run.sh "$folder/good" >"$folder/out" 2>&1 && tests/run.sh >>"$folder/out" 2>&1 && echo 'no program: status 0' >"$folder/findings"
[ "$(tail -n 2 "$folder/out" | tr '\n' ';')" = '3 passed, 0 failed;0 passed, 0 failed;' ] || cat "$folder/out" >>"$folder/findings"
verdict 'status' "$folder/findings"

{
    TIMES=1 tests/run.sh "$folder/partly" "$folder/good" >"$folder/out" 2>&1 || echo 'skipped is not failed: got another status than 0'
    [ "$(tail -n 2 "$folder/out" | tr '\n' ';')" = 'skipped: partly: half: no half here;5 passed, 0 failed, 1 skipped;' ] || cat "$folder/out"
    grep -qE '^ +[0-9]+\.[0-9]  good$' "$folder/out" && grep -qE '^ +[0-9]+\.[0-9]  all 2$' "$folder/out" || echo 'no table of seconds'
} >"$folder/findings"
verdict 'skipped, and seconds' "$folder/findings"

for signal in INT TERM; do
    rm -f "$folder/started"
    mkdir -p "$folder/tmp"
    TMPDIR=$folder/tmp python3 - "$signal" "$folder/long" "$folder/good" >"$folder/findings" 2>&1 <<'END'
import os, signal, subprocess, sys, time
# This test may itself have been started by a shell that ignores INT.
runner = subprocess.Popen(["tests/run.sh", *sys.argv[2:]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
started = os.path.join(os.path.dirname(sys.argv[2]), "started")
while not os.path.exists(started) or not open(started).read().strip():
    time.sleep(0.05)
pid = int(open(started).read())
runner.send_signal(getattr(signal, "SIG" + sys.argv[1]))
try:
    if runner.wait(60) != 1:
        print("got status", runner.returncode)
except subprocess.TimeoutExpired:
    print("did not end")
    runner.kill()
if os.path.exists(f"/proc/{pid}") and "Z" not in open(f"/proc/{pid}/stat").read().split(")")[1].split()[0]:
    print("still runs:", open(f"/proc/{pid}/cmdline").read())
    os.kill(pid, signal.SIGKILL)
END
    ls "$folder/tmp" >>"$folder/findings"
    verdict "$signal" "$folder/findings"
done

# Without a folder a script would work in, and remove, folders of the root.
printf '%s\n' '. tests/support/verdict.sh' 'echo "in $folder"' 'end' >"$folder/sourced"
{
    TMPDIR=$folder/none sh "$folder/sourced" && echo 'got status 0 without a folder'
    TMPDIR=$folder/none tests/run.sh "$folder/good" && echo 'the runner: got status 0 without a folder'
} 2>&1 | grep -v '^mktemp: ' >"$folder/findings"
verdict 'no temporary folder' "$folder/findings"

python3 - "$folder/good" "$folder/bad" >"$folder/terminal" <<'END'
import os, pty, sys
pid, fd = pty.fork()
if pid == 0:
    os.execv("tests/run.sh", ["tests/run.sh", *sys.argv[1:]])
try:
    while text := os.read(fd, 1000):
        os.write(1, text)
except OSError:
    pass
END
{
    grep -qE '1 of 2 programs, [0-9]+ s' "$folder/terminal" || echo 'no line of progress'
    grep -qE '2 of 2 programs, [0-9]+ s' "$folder/terminal" || echo 'no last line of progress'
} >"$folder/findings"
verdict 'progress' "$folder/findings"
end

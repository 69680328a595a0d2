#!/bin/sh
# Goal:  a failed allocation, and a system call that fails or does only a part, end with the right status, one line and
#        nothing left, or change nothing; tests/faults/README.md. All commands: `make faults`.
# Given: two of four quick commands, the others in the next slice, at every place of them; without the sanitizer, so that
#        leaks are not seen here.
# Seen to fail with m3_look that takes every failure for absence (66, or a success), with the line dropped that memory
# is short for (no message), with a text in memory that goes on after a failed allocation (another chart), and with a kept
# truth that is replaced when memory is short for the comparison with it (two lines).
. tests/support/verdict.sh
build=${BUILD:-build}
for name in $(slice_of run-gz inspect-sha) $(slice_of estimate-gpu check-kept); do
    tests/faults/run.sh "$build" "$name" >"$folder/$name" 2>&1 && : >"$folder/$name"
    verdict "$name" "$folder/$name"
done
end

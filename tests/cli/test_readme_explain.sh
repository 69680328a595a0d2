#!/bin/sh
# What README prints of `m3ref explain` and `m3ref picture` is what the program prints: each command, run again.
# Seen to fail with: a digit of README changed; a line removed from an output; a step with another name.
build=${BUILD:-build}
page=${PAGE:-README.md}
. tests/support/verdict.sh

# The lines of commands, with the settings before them, and the lines that README says they print.
sed -n '/^## Why is this number what it is/,/^## Install/s/^    //p' "$page" >"$folder/lines"
grep -v '^#' "$folder/lines" | sed "s,build/,$build/,g" >"$folder/commands"
sed -n 's/^#$//p; s/^# //p' "$folder/lines" >"$folder/expected"

[ "$(grep -c 'm3ref explain' "$folder/commands")" -ge 2 ] || echo 'fewer than two commands' >"$folder/findings"
[ "$(wc -l <"$folder/expected")" -ge 10 ] || echo 'hardly any output' >>"$folder/findings"
touch "$folder/findings"
verdict 'the section' "$folder/findings"

sh "$folder/commands" 2>&1 | sed "s,$build/,build/,g" | diff "$folder/expected" - >"$folder/findings"
verdict 'its output' "$folder/findings"

end

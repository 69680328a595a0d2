#!/bin/sh
# What README prints of the program is what the program prints: each command that needs nothing but the program and
# files of the repository, run again.
# Seen to fail with: a digit of README changed; a line removed from an output; a line added to one.
. tests/support/verdict.sh
. tests/support/page.sh
page "${PAGE:-README.md}" 18
end

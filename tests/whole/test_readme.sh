#!/bin/sh
# What README prints of the program is what the program prints: each command that needs nothing but the program,
# files of the repository and NumPy, run again.
# Seen to fail with: a digit of README changed; a line removed from an output.
. tests/support/verdict.sh
. tests/support/page.sh
page "${PAGE:-README.md}" 23
end

#!/bin/sh
# What the tutorial prints of the program is what the program prints: every command run again, page by page.
# Seen to fail with: a digit changed; a line removed from an output; a command that fails; a chapter without commands.
. tests/support/verdict.sh
. tests/support/page.sh
for page in "${PAGES:-ref/tutorial}"/*.md; do
    case $page in
        */README.md) page "$page" 1 ;;
        */questions.md) page "$page" 10 ;;
        *) page "$page" 4 ;;
    esac
done
end

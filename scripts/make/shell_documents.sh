#!/bin/sh
# Manual pages, one for the program and one for each command, and completions for shells.
# usage: shell_documents.sh PROGRAM FOLDER
set -eu
program=$1
folder=$2
mkdir -p "$folder"
rm -f "$folder"/*
"$program" --help >"$folder/help"
version=$("$program" --version | sed -n '1s/m3ref //p')

page() { awk -v name="$1" -v what="$2" -v version="$version" -f scripts/make/man_page.awk >"$folder/$1.1"; }
page m3ref "$(sed -n '1s/m3ref: //p' "$folder/help")" <"$folder/help"

# "  run MODEL (--case F | ..   computes ..": the name, and what stands after three spaces or more.
sed -n 's/^  \([a-z]*\) [A-Z[].*[^ ]   *\([a-z].*\)$/command \1 \2/p' "$folder/help" >"$folder/lists"
while read -r _ command what; do
    [ -e "$folder/m3ref-$command.1" ] || "$program" "$command" --help </dev/null | page "m3ref-$command" "$what"
done <"$folder/lists"
{
    echo "values op $("$program" op --list | sed -n 's/^\([a-z][a-z0-9_]*\) .*/\1/p' | tr '\n' ' ')"
    echo "values --profile help $("$program" compare --profile help | sed -n '/^Words/q; s/^  \([a-z][a-z0-9_]*\) .*/\1/p' | tr '\n' ' ')"
    echo "values --map $(ls ref/oracle/map/maps | sed -n 's/[.]json$//p' | tr '\n' ' ')"
} >>"$folder/lists"
for shell in bash zsh fish; do
    awk -v shell="$shell" -f scripts/make/completion.awk "$folder/lists" ref/cli/README.md >"$folder/m3ref.$shell"
done
rm "$folder/help" "$folder/lists"

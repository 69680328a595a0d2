#!/bin/sh
# ref/cli/README.md against the help texts: every option that `m3ref COMMAND --help` names is in the table with that
# command, and the other way round; the same for every exit status; the program accepts every option of the table.
#
# Seen to fail with: an option removed from the page; an option added to it; a command removed from a row and added to
# one; a status changed in the page; a status removed from a help text; an option that no command accepts.
build=${BUILD:-build}
page=${PAGE:-ref/cli/README.md}
. tests/support/verdict.sh

# rows HEADING: "FIRST_CELL COMMAND" for each command of each row of the table under the heading.
rows() {
    sed -n "/^## $1\$/,/^## /p" "$page" | grep '^| ' | sed '1d' | awk -F ' [|] ' '{
        sub(/^[|] /, "", $1)
        gsub(/`/, "", $1)
        split($1, name, " ")
        gsub(/[ |]/, "", $3)
        count = split($3, commands, ",")
        for (i = 1; i <= count; i++) print name[1], commands[i]
    }'
}

commands=$("$build/m3ref" --help | sed -n 's/^  \([a-z]*\) [A-Z[].*/\1/p')
others=$(printf '%s\n' $commands | tr '\n' '|' | sed 's/|$//')

# ---- what the help texts say; an option after another command's name ("compare --envelope") is that command's
for command in $commands; do
    "$build/m3ref" "$command" --help >"$folder/help" || echo "$command: --help failed" >>"$folder/broken"
    sed "1d; s/\\b\\($(printf '%s' "$others" | sed 's/|/\\|/g')\\) --[a-z-]*//g" "$folder/help" |
        grep -oE '(^|[^a-z-])--[a-z][a-z0-9-]*' | grep -oE -e '--.*' | sort -u | sed "s/\$/ $command/"
done | sort -u >"$folder/options"
for command in $commands; do
    "$build/m3ref" "$command" --help | sed -n '/^Exit status: /,$p' | tr '\n' ' ' |
        grep -oE '(: |; )[0-9]+ ' | tr -d ':; ' | sed "s/\$/ $command/"
done | sort -u >"$folder/statuses"
"$build/m3ref" --help | sed -n '/^Exit status: /,$p' | tr '\n' ' ' | grep -oE '(: |; )[0-9]+ ' | tr -d ':; ' |
    sort -u >"$folder/all_statuses"

# ---- what the page says
rows 'Options' | sort -u >"$folder/page_options"
rows 'Exit status' | sort -u >"$folder/page_statuses"

touch "$folder/broken"
[ "$(printf '%s\n' $commands | wc -l)" -ge 11 ] || echo "got the commands $commands, expected 11" >>"$folder/broken"
for what in options page_options statuses page_statuses; do
    [ -s "$folder/$what" ] || echo "no $what" >>"$folder/broken"
done
verdict 'texts' "$folder/broken"

comm -23 "$folder/options" "$folder/page_options" >"$folder/findings"
verdict 'option missing from the page' "$folder/findings"
comm -13 "$folder/options" "$folder/page_options" >"$folder/findings"
verdict 'option missing from the help text' "$folder/findings"
comm -23 "$folder/statuses" "$folder/page_statuses" >"$folder/findings"
verdict 'status missing from the page' "$folder/findings"
comm -13 "$folder/statuses" "$folder/page_statuses" >"$folder/findings"
verdict 'status missing from the help text' "$folder/findings"
cut -d ' ' -f 1 "$folder/page_statuses" | sort -u | diff "$folder/all_statuses" - >"$folder/findings"
verdict 'statuses of m3ref --help' "$folder/findings"

rows 'Options' | cut -d ' ' -f 1 | uniq | sort | uniq -d >"$folder/findings"
verdict 'option in two rows' "$folder/findings"

while read -r option command; do
    case $option in --help) continue ;; esac
    "$build/m3ref" "$command" "$option" </dev/null 2>&1 | grep "is not an option"
done <"$folder/page_options" >"$folder/findings"
verdict 'the program' "$folder/findings"

end

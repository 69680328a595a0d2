#!/bin/sh
# What README.md and the pages of the rooms name is there: files and folders, options of a command, targets of make,
# figures. A room of ref/oracle has a page, a short one, and every source file of a room with a page is on it. Folders
# include each other as README.md and ref/oracle/README.md say.
#
# Seen to fail with: a file of a page, a folder of a row and a link that do not exist; a room without its page; a page
# of 61 lines; a source that its page does not name; an include of a later level, down the table of the rooms, and of
# another room's private/; an option that the command does not have, in a command and in a sentence; a target that
# the Makefile or `make help` lacks; a known mistake more; a composite less; another number of the library; a chapter
# more; a function and a section that do not exist; another version of gguf and of Pillow; another logit in the output
# of `make run`.
build=${BUILD:-build}
page=${PAGE:-README.md}
. tests/support/verdict.sh
m3ref=$build/m3ref
tr '\n' ' ' <"$page" >"$folder/page"

# ---- files
find LICENSE NOTICE Makefile ./*.md .ci golden ref scripts tests -type f | sed 's,^\./,,' >"$folder/files"
awk -f tests/support/names.awk "$folder/files" "$page" SPEC.md tests/README.md scripts/README.md \
    scripts/engines/README.md $(find tests -mindepth 2 -name README.md) $(find ref -name '*.md') >"$folder/findings"
verdict 'names' "$folder/findings"

find ref/oracle -name '*.c' | sed 's,/[^/]*$,,' | sort -u | while read -r room; do
    [ -e "$room/README.md" ] || echo "$room has no page"
done >"$folder/findings"
find ref/oracle -name README.md | xargs wc -l |
    awk '$1 > 60 && $2 != "total" { print $2 " has " $1 " lines, expected at most 60" }' >>"$folder/findings"
verdict 'pages' "$folder/findings"

# A header is named by its source, or by itself; files of operators in error/ by what they are.
for rooms in $(find ref -name README.md | sort); do
    room=${rooms%/README.md}
    for path in "$room"/*.c "$room"/*.h "$room"/*.cu "$room"/*.cuh "$room"/*.def "$room"/*/; do
        [ -e "$path" ] || continue
        name=$(basename "$path")
        case $name in private* | m3ref.h) continue ;; esac
        grep -q 'struct m3_error_operator m3_' "$path" 2>/dev/null && continue
        grep -q "[\`/]${name%.*}\(\.[a-z]*\|/.*\)\`" "$rooms" || echo "$rooms does not name $name"
    done
done >"$folder/findings"
verdict 'files of a room' "$folder/findings"

# ---- arrows
grep -rn '^ *# *include "[a-z_]*/' ref --include='*.[ch]' --include='*.cu' --include='*.cuh' --include='*.def' |
    sed "s,^ref/\([^:]*\):[0-9]*:[^\"]*\"\([^\"]*\)\".*,\1 \2," >"$folder/includes"
levels=$(sed -n 's,.*folders of `ref/` form levels: \([^.]*\)\..*,\1,p' "$folder/page" | sed 's/ and /, /g')
awk -v levels="$levels" 'BEGIN {
        count = split(levels, level, "; ")
        for (i = 1; i <= count; i++) for (k = split(level[i], names, ", "); k; k--) of[names[k]] = i
        if (count < 6) print "README.md states " count " levels"
    }
    { split($1, from, "/"); split($2, to, "/") }
    from[1] in of && from[1] != to[1] && of[to[1]] <= of[from[1]] { print $1 " includes " $2 }' "$folder/includes" \
    >"$folder/findings"
verdict 'levels' "$folder/findings"

sed -n 's/^| `\(.*\)` | .*/\1/p' ref/oracle/README.md | tr -d '`/,' >"$folder/rooms"
down=$(sed -n 's/.*point down: \([a-z]*\) -> \([a-z, ]*\)\..*/\1 \2/p' ref/oracle/README.md)
awk -v down="$down" 'BEGIN { n = split(down, words, "[ ,]+"); for (i = 2; i <= n; i++) known[words[1], words[i]] }
    NR == FNR { for (i = 1; i <= NF; i++) of[$i] = NR; next }
    { split($1, from, "/"); split($2, to, "/") }
    from[1] != "oracle" { next }
    !(from[2] in of) { print from[2] " is not in the table" }
    to[1] == "oracle" && of[to[2]] > of[from[2]] && !((from[2], to[2]) in known) { print $1 " includes " $2 }
    ' "$folder/rooms" "$folder/includes" >"$folder/findings"
awk '$2 ~ /\/private\// && $1 !~ /^oracle\/(cause|judge\/server)\// {
    room = $2
    sub(/private\/.*/, "", room)
    if (index($1, room) != 1) print $1 " includes " $2
}' "$folder/includes" >>"$folder/findings"
verdict 'rooms of the oracle' "$folder/findings"

# ---- options: the table of ref/cli/README.md, which test_options_page.sh compares with the program
sed -n '/^## Options$/,/^## /p' ref/cli/README.md | grep '^| `--' | awk -F ' [|] ' '{
    sub(/^[|] `/, "", $1)
    sub(/[ `].*/, "", $1)
    gsub(/[ |]/, "", $3)
    count = split($3, commands, ",")
    for (i = 1; i <= count; i++) print commands[i], $1
}' | sort -u >"$folder/options"
commands=$(cut -d ' ' -f 1 "$folder/options" | sort -u | tr '\n' '|' | sed 's/|$//')
{
    # Commands, with the lines that continue them; then what stands in backquotes and begins with a command.
    sed -n 's/^    //p' "$page" | sed -e ':a' -e '/\\$/N; s/\\\n//; ta' | grep -o 'm3ref [a-z]* [^|]*' |
        sed "s/'[^']*'//g; s/   .*//; s/^m3ref //"
    grep -oE "\`(m3ref )?($commands) [^\`]*\`" "$folder/page" | tr -d '`' | sed 's/^m3ref //'
} | awk '{ for (i = 2; i <= NF; i++) if ($i ~ /^--[a-z]/) { sub(/[^a-z0-9-].*/, "", $i); print $1, $i } }' |
    sort -u >"$folder/used"
grep -v -- '--help$' "$folder/used" | comm -23 - "$folder/options" >"$folder/findings"
grep -oE '`--[a-z][a-z0-9-]*' "$folder/page" | tr -d '`' | sort -u | while read -r option; do
    grep -q -- " $option\$" "$folder/options" || echo "no command has $option"
done >>"$folder/findings"
[ "$(wc -l <"$folder/used")" -ge 60 ] || echo "only $(wc -l <"$folder/used") options are used" >>"$folder/findings"
verdict 'options' "$folder/findings"

# ---- targets of make
make -s help >"$folder/help"
{
    grep -oE '`make [a-z0-9-]+' "$folder/page" | tr -d '`'
    grep -oE '^    make [a-z0-9-]+' "$page"
} | awk '{ print $2 }' | sort -u | while read -r target; do
    grep -qE "^([a-z-]+ )*$target( [a-z-]+)*:" Makefile tests/fuzz/fuzz.mk || echo "no target $target"
    grep -q "make $target\b" "$folder/help" || [ "$target" = help ] || echo "make help lacks $target"
done >"$folder/findings"
verdict 'targets' "$folder/findings"

# ---- figures
expected="$("$m3ref" mistakes | grep -vc '^grad\.') known mistakes of the forward pass and "
expected="$expected$("$m3ref" mistakes | grep -c '^grad\.') of derivatives"
grep -q "defines $expected" "$folder/page" && : >"$folder/findings" || echo "expected $expected" >"$folder/findings"
sed -n '/M3_COMPOSITES(X)/,/^$/s/^ *X(\([a-z0-9_]*\),.*/\1/p' ref/oracle/operators/composites.def | sort \
    >"$folder/composites"
sed -n 's/.*The composites are \([^.]*\)\..*/\1/p' "$folder/page" | grep -o '`[a-z0-9_]*`' | tr -d '`' | sort |
    diff - "$folder/composites" >>"$folder/findings"
abi=$(sed -n 's/.*M3_LIBRARY_ABI = \([0-9]*\).*/\1/p' ref/library/library.h)
grep -q "\`libm3ref.so.$abi\`" "$page" || echo "the library is libm3ref.so.$abi" >>"$folder/findings"
[ "$(ls ref/tutorial/[0-9]_*.md | wc -l) $(grep -c '^[0-9]*\. ' ref/tutorial/questions.md)" = '8 10' ] &&
    grep -q 'eight short chapters .* and ten questions' "$page" || echo 'chapters and questions' >>"$folder/findings"
verdict 'figures' "$folder/findings"

# ---- functions and types
find ref -name '*.md' | xargs cat "$page" SPEC.md tests/README.md | grep -oE '`((struct|enum) )?[mM]3_[a-zA-Z0-9_]+' |
    sed 's/`//; s/.* //' | sort -u >"$folder/named"
grep -rhoE '\<[mM]3_[a-zA-Z0-9_]+' ref Makefile --include='*.[ch]' --include='*.def' --include='*.cu*' \
    --include=Makefile | sort -u | comm -13 - "$folder/named" | sed 's/^/there is no /' >"$folder/findings"
[ "$(wc -l <"$folder/named")" -ge 30 ] || echo "only $(wc -l <"$folder/named") names" >>"$folder/findings"
verdict 'functions and types' "$folder/findings"

# ---- sections of the specification, in pages and in comments
sed -n 's/^##* \([0-9][0-9.]*\)[. ].*/\1/p' SPEC.md ref/*/*.md | sed 's/\.$//' | sort -u >"$folder/sections"
grep -rhoE '(SPEC|TRAINING|REFERENCE|VERDICTS|ESTIMATES|KERNELS)(\.md)?,? [0-9]+(\.[0-9]+)*' "$page" SPEC.md ref tests \
    scripts golden --include='*.md' --include='*.[ch]' --include='*.cu' --include='*.cuh' --include='*.def' \
    --include='*.py' --include='*.sh' | sed 's/.* //' | sort -u >"$folder/cited"
comm -13 "$folder/sections" "$folder/cited" | sed 's/^/there is no section /' >"$folder/findings"
[ "$(wc -l <"$folder/cited")" -ge 90 ] || echo "only $(wc -l <"$folder/cited") sections" >>"$folder/findings"
verdict 'sections' "$folder/findings"

# ---- versions: those of the requirements
{
    sed -n '/^## Depends on/,/^## Limits/p' "$page" | grep '^| ' | cut -d '|' -f 2 | tr ',' '\n' | sed 's/(.*)//' |
        awk 'NF == 2 && $2 ~ /^[0-9]+[.][0-9]+[.]/ { print tolower($1), $2 }' | sed 's/pytorch/torch/; s/jinja/jinja2/'
    grep -o '[a-z]*==[0-9.]*[0-9]' "$page" | sed 's/==/ /'
} >"$folder/versions"
while read -r package version; do
    cat scripts/requirements-*.txt | grep -qix -- "$package==$version" || echo "no requirement is $package $version"
done <"$folder/versions" >"$folder/findings"
[ "$(wc -l <"$folder/versions")" -ge 12 ] || echo "only $(wc -l <"$folder/versions") versions" >>"$folder/findings"
verdict 'versions' "$folder/findings"

# ---- make run: its last line, but for the worst stage, which depends on the processor
sed -n 's/^    # \(pass .*; next tokens: .*\), \.\.\.$/\1/p' "$page" |
    sed 's/; the worst.*allowed//' >"$folder/stated"
scripts/demo.sh "$m3ref" "$folder" >"$folder/demo" 2>&1
tail -n 1 "$folder/demo" | sed 's/; the worst.*allowed//; s/), .*/)/' | diff "$folder/stated" - >"$folder/findings"
verdict 'make run' "$folder/findings"

end

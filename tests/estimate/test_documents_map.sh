#!/bin/sh
# The appendices, golden/documents/README.md, against the tree. Appendix A: the function of each row is defined under ref/, in one file or
# in the one that is named ("flops:count"), or the key of a figure begins so ("m3_figures:kv_bytes"), the test is there, the errata are in appendix B; a row without function ends
# with its reason in parentheses. Appendix B: every erratum is in A, in C, or says that it
# stands alone; those that golden/documents/figures.tsv names are there. Appendix C is what the program prints.
#
# Seen to fail with: another function, test or case; an erratum without entry, or an entry twice, or unused; a
# row with a cell too few; a map without rows; a figure of appendix C changed; an entry without its right value; a name
# of two functions; a key that no figure has; a reason before the end.
build=${BUILD:-build}
spec=${SPEC:-golden/documents/README.md}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
passed=0
failed=0

# verdict NAME FILE: an empty file is a pass; else its lines are printed.
verdict() {
    if [ -s "$2" ]; then
        failed=$((failed + 1))
        head -n 30 "$2" | sed "s/^/$1: /"
    else
        passed=$((passed + 1))
    fi
}

# appendix LETTER: its lines.
appendix() {
    sed -n "/^## Appendix $1/,/^## /p" "$spec" | sed '1d; /^## /d'
}

appendix A >"$folder/a"
appendix B >"$folder/b"
appendix C >"$folder/c"

# ---- every function and every table at the left margin of ref/, as lines of "name<TAB>file"
find ref -name '*.c' | sort | xargs awk '
    /^[a-z]/ && !/^typedef|^extern|^struct [a-z0-9_]+ \{|^enum/ {
        sub(/ = .*/, "")
        sub(/\(.*/, "")
        sub(/\[.*/, "")
        if (match($0, /[A-Za-z_0-9]+$/)) print substr($0, RSTART) "\t" FILENAME
    }
' | sort -u >"$folder/functions"
find tests -name 'test_*.c' >"$folder/tests"

sed -n 's/^\*\*\(E[0-4]-[0-9][0-9]\)\*\*.*/\1/p' "$folder/b" >"$folder/entries"

# ---- appendix A, document by document
for document in 000 001 002 003 004; do
    sed -n "/^### $document/,/^### /p" "$folder/a" | grep '^| ' | grep -v '^| place |' >"$folder/rows"
    awk -F ' [|] ' -v document="$document" -v functions="$folder/functions" -v tests="$folder/tests" -v entries="$folder/entries" '
        function plain(cell) { gsub(/^[| ]+|[| ]+$/, "", cell); return cell }
        function code(cell) { cell = plain(cell); gsub(/^`|`$/, "", cell); return cell }
        function wrong(what) { print NR ": " what ": " $0 }
        # "count", or "flops:count" where more files define one: the file. It says what is wrong, and gives "".
        function file_of(cell,    part, count, list, ending, found, i) {
            ending = split(cell, part, ":") > 1 ? "/" part[1] ".c" : ".c"
            name = part[2] != "" ? part[2] : cell
            count = split(files[name], list, " ")
            for (i = 1; i <= count; i++)
                if (substr(list[i], length(list[i]) - length(ending) + 1) == ending) found = found " " list[i]
            count = split(found, list, " ")
            if (count != 1) wrong(count ? "functions in" found : "no such function")
            return count == 1 ? list[1] : ""
        }
        BEGIN {
            while ((getline line < functions) > 0) {
                split(line, part, "\t")
                files[part[1]] = files[part[1]] " " part[2]
            }
            while ((getline line < tests) > 0) {
                count = split(line, part, "/")
                test_file[substr(part[count], 1, length(part[count]) - 2)] = line
            }
            while ((getline line < entries) > 0) entry[line] = 1
        }
        {
            if (NF != 5) { wrong("got " NF " cells, expected 5"); next }
            name = cell = code($3); test = code($4); errata = plain($5)
            if (plain($1) == "" || plain($2) == "") wrong("empty cell")
            if ((name == "-") != (test == "-")) wrong("function and test go together")
            if (name == "-" && plain($2) !~ / \([^()]+\)$/) wrong("no function, and no reason at the end")
            if (cell ~ /^m3_figures:/) {
                if (system("grep -qF \"{ \\\"" substr(cell, 12) "\" ref/estimate/figures.c")) wrong("no such figure")
            } else if (name != "-") file_of(cell)
            if (test != "-") {
                split(test, part, ":")
                file = test_file[part[1]]
                if (file == "") wrong("no such test")
                else if (part[2] != "" && system("grep -q \"^START_TEST(" part[2] ")\" " file)) wrong("no such case")
            }
            count = errata == "-" ? 0 : split(errata, list, ", ")
            for (i = 1; i <= count; i++) if (!(list[i] in entry)) wrong("no entry of " list[i])
        }
        END { if (NR == 0) print "no rows" }
    ' "$folder/rows" >"$folder/findings"
    verdict "map of $document" "$folder/findings"
    cat "$folder/rows" >>"$folder/all_rows"
done

# ---- appendix B
sort "$folder/entries" | uniq -d | sed 's/$/: entered twice/' >"$folder/findings"
[ -s "$folder/entries" ] || echo 'no errata' >>"$folder/findings"
verdict 'errata, once' "$folder/findings"

awk 'BEGIN { RS = "" }
     /^\*\*E/ && !(/\*Right:\*/ && /\*Here:\*/) { print substr($0, 1, 60) ": lacks what is right, or what is here" }
' "$folder/b" >"$folder/findings"
verdict 'errata, form' "$folder/findings"

awk 'BEGIN { RS = "" } /^\*\*E/ && /\(stands alone: / { print $1 }' "$folder/b" >"$folder/alone"
cat "$folder/all_rows" "$folder/c" "$folder/alone" | grep -o 'E[0-4]-[0-9][0-9]' | sort -u >"$folder/used"
sort -u "$folder/entries" | comm -23 - "$folder/used" | sed 's/$/: in no row of A or C/' >"$folder/findings"
verdict 'errata, used' "$folder/findings"

cut -f 7 golden/documents/figures.tsv | grep '^E' | sort -u >"$folder/named"
sort -u "$folder/entries" | comm -13 - "$folder/named" | sed 's/$/: named by a figure, no entry/' >"$folder/findings"
[ -s "$folder/named" ] || echo 'no figure names an erratum' >>"$folder/findings"
verdict 'errata of figures' "$folder/findings"

# ---- appendix C: the tables that the program prints, after a heading "### m3: golden/configs/minimax-m3.json"
models=0
for heading in $(sed -n 's/^### \([a-z0-9.-]*\): \(.*\)/\1=\2/p' "$folder/c"); do
    models=$((models + 1))
    "$build/m3ref" estimate "${heading#*=}" --documents >"$folder/printed" || echo failed >>"$folder/printed"
    sed -n "/^### ${heading%%=*}: /,/^### /p" "$folder/c" | grep '^|' | diff - "$folder/printed" >"$folder/findings"
    verdict "figures of ${heading%%=*}" "$folder/findings"
done
[ $models -ge 2 ] || echo "got $models models, expected 2 or more" >"$folder/few"
touch "$folder/few"
verdict 'models of appendix C' "$folder/few"

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]

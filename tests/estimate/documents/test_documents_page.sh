#!/bin/sh
# The tables of golden/documents: golden/documents/README.md is what they give; every SPEC section, operator, tap and
# figure that they name exists; errata are complete and used.
#
# Seen to fail with: a line of the page changed; a figure of figures.tsv changed; a document without rows; a cell too few
# and an empty one; a section, operator, tap or figure that does not exist, in map.tsv and in errata.tsv; another kind of
# reference; a row without reference and reason, and a reason before the end; an erratum without entry, entered twice,
# without its right value, of no row; a figure whose erratum has no entry; a function named in an entry.
build=${BUILD:-build}
tables=golden/documents
export LC_ALL=C
. tests/support/verdict.sh

program=$(cd "$build" && pwd)/m3ref
scripts/make/documents_page.sh "$program" >"$folder/page" 2>&1
cmp -s $tables/README.md "$folder/page" || {
    echo '`make documents` writes it, with these lines:'
    diff $tables/README.md "$folder/page"
} >"$folder/findings"
verdict 'README.md' "$folder/findings"

# ---- what can be referred to, as lines of "kind name"
{
    sed -n 's/^###* \([0-9][0-9.]*\)\.* .*/\1/p' SPEC.md ref/oracle/VERDICTS.md ref/estimate/ESTIMATES.md |
        sed 's/\.$//; s/^/SPEC /'
    sed -n 's/^### 5\.[0-9]* \([a-z0-9_]*\)$/operator \1/p' SPEC.md
    for golden in tiny/golden mtp/golden vision/two; do
        "$program" inspect "golden/$golden.safetensors.gz" |
            awk '{ gsub(/\.[0-9]+\./, ".*.", $1); print "tap " $1 }'
    done
    "$program" estimate golden/configs/minimax-m3.json --gpu h200 --gpus 8 --mtp 1 --image 672x672 --format csv |
        sed -n 1p | tr ',' '\n' | awk '{ print "figure " $1; while (sub(/\.[^.]*$/, "", $1)) print "figure " $1 }'
} | sort -u >"$folder/known"
# A word of an entry may also be a field, reading, option or file.
"$program" estimate --help >"$folder/help"
cat SPEC.md ref/estimate/ESTIMATES.md "$folder/help" "$folder/known" $tables/models.tsv $tables/figures.tsv >"$folder/text"

for table in map errata titles figures; do
    awk -F '\t' '
        FNR == 1 { columns = NF }
        NF != columns { print FILENAME ":" FNR ": got " NF " cells, expected " columns }
        { for (i = 1; i <= NF; i++) if ($i == "" || $i ~ /^ | $|[|]/) print FILENAME ":" FNR ": cell " i ": \"" $i "\"" }
        END { if (FNR < 2) print FILENAME ": no rows" }
    ' $tables/$table.tsv
done >"$folder/findings"
verdict 'cells' "$folder/findings"

awk -F '\t' '
    function wrong(what) { print FILENAME ":" FNR ": " what }
    FILENAME == ARGV[1] { known[$0] = 1; next }
    FNR == 1 { next }
    FILENAME == ARGV[2] { entry[$1] = 1; next }
    FILENAME == ARGV[3] { title[$1] = 1; next }
    {
        rows[$1]++
        if (!($1 in title)) wrong("no document " $1)
        if ($4 == "-" && $3 !~ / \([^()]+\)$/) wrong("no reference, and no reason at the end: " $3)
        count = $4 == "-" ? 0 : split($4, list, ", ")
        for (i = 1; i <= count; i++) if (!(list[i] in known)) wrong("there is no " list[i])
        count = $5 == "-" ? 0 : split($5, list, ", ")
        for (i = 1; i <= count; i++) if (!(list[i] in entry)) wrong("no entry of " list[i])
    }
    END { for (d in title) if (!rows[d]) print "no row of document " d }
' "$folder/known" $tables/errata.tsv $tables/titles.tsv $tables/map.tsv >"$folder/findings"
verdict 'map' "$folder/findings"

# ---- errata
awk -F '\t' '
    FNR == 1 { next }
    FILENAME == ARGV[1] { count = split($5, list, ", "); for (i = 1; i <= count; i++) used[list[i]] = 1; next }
    FILENAME == ARGV[2] { used[$7] = named[$7] = 1; next }
    {
        if ($1 !~ /^E[0-4]-[0-9][0-9]$/ || entry[$1]++) print $1 ": no id, or entered twice"
        if ($3 == "-" || $4 == "-" || $6 == "-") print $1 ": what is said, what is right or what is here is missing"
        if (!($1 in used)) print $1 ": in no row of map.tsv and figures.tsv"
    }
    END { for (id in named) if (id != "-" && !(id in entry)) print id ": named by a figure, no entry" }
' $tables/map.tsv $tables/figures.tsv $tables/errata.tsv >"$folder/findings"
verdict 'errata' "$folder/findings"

# References in what is here: sections, operators and taps are known; every other word in backticks stands in some text.
tail -n +2 $tables/errata.tsv | cut -f 6 >"$folder/here"
grep -oE 'SPEC [0-9.]*[0-9]|(operator|tap|figure) `[^`]*`' "$folder/here" | tr -d '`' | sort -u |
    comm -23 - "$folder/known" | sed 's/^/there is no /' >"$folder/findings"
grep -o '`[^`]*`' "$folder/here" | tr '` =' '\n' | grep -v '^/*$' | sort -u | while read -r word; do
    [ -e "$word" ] || grep -qF -- "$word" "$folder/text" || echo "nothing has the name $word"
done >>"$folder/findings"
grep -oE '`m3_[a-z0-9_]*`|`[a-z0-9_]*\(\)`' "$folder/here" | sed 's/^/a function: /' >>"$folder/findings"
verdict 'what is here' "$folder/findings"

end

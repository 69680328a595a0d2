# The index of SPEC.md, from spec_index.tsv and the headings of the documents:
#   awk -f scripts/make/spec_index.awk scripts/make/spec_index.tsv SPEC.md ref/oracle/VERDICTS.md
# A word whose section does not exist, or does not contain the text that it must, is an error.

function anchor(heading) {
    heading = tolower(heading)
    gsub(/[^a-z0-9 _-]/, "", heading)
    gsub(/ /, "-", heading)
    return heading
}

function complain(what) {
    print "spec_index: " what >"/dev/stderr"
    failed = 1
}

FILENAME == ARGV[1] {
    if ($0 ~ /^#/) next
    if (split($0, column, "\t") != 3) complain("expected three columns: " $0)
    words[++count] = column[1]
    sections[count] = column[2]
    needs[count] = column[3]
    next
}

/^##+ [0-9]+(\.[0-9]+)?[. ]/ {
    heading = substr($0, index($0, " ") + 1)
    id = heading
    sub(/\.? .*/, "", id)
    target[id] = (FILENAME == "SPEC.md" ? "" : FILENAME) "#" anchor(heading)
    current = id
    if (id ~ /\./) { chapter = id; sub(/\..*/, "", chapter) } else chapter = id
}

{
    text[current] = text[current] "\n" tolower($0)
    if (chapter != current) text[chapter] = text[chapter] "\n" tolower($0)
}

END {
    for (i = 1; i <= count; i++) {
        n = split(sections[i], list, ", ")
        links = ""
        for (k = 1; k <= n; k++) {
            if (!(list[k] in target)) complain(words[i] ": no section " list[k])
            else if (!index(text[list[k]], tolower(needs[i]))) complain(words[i] ": section " list[k] " does not say " needs[i])
            links = links (k > 1 ? ", " : "") "[" list[k] "](" target[list[k]] ")"
        }
        cell[i] = words[i] " | " links
    }
    rows = int((count + 2) / 3)
    print "| words | section | words | section | words | section |\n|---|---|---|---|---|---|"
    for (r = 1; r <= rows; r++) {
        line = "|"
        for (k = 0; k < 3; k++) line = line " " (r + k * rows <= count ? cell[r + k * rows] : "|") " |"
        print line
    }
    exit failed
}

# Compares what a page says that its commands print with what they print (page.awk). In the page, "..." at the end of a
# line stands for the rest of the line, and a line "..." for any number of lines; blanks at the end of a line do not count.
# Prints the first difference of each command, with the line of the page where the command is.
# usage: awk -f page_differs.awk EXPECTED ACTUAL

function fits(want, got) {
    sub(/ +$/, "", want)
    sub(/ +$/, "", got)
    if (want ~ /\.\.\.$/) return index(got, substr(want, 1, length(want) - 3)) == 1
    return want == got
}

function differs(at,   i, j, skip) {
    j = 1
    for (i = 1; i <= wants[at]; i++) {
        if (want[at, i] == "...") { skip = 1; continue }
        while (skip && j < gots[at] && !fits(want[at, i], got[at, j])) j++
        if (j > gots[at] || !fits(want[at, i], got[at, j])) {
            print "line " at ": the page says: " want[at, i]
            print "line " at ": it prints:     " (j > gots[at] ? "(nothing more)" : got[at, j])
            return
        }
        j++
        skip = 0
    }
    if (!skip && j <= gots[at]) print "line " at ": the page does not have: " got[at, j]
}

/^@@ [0-9]+$/ { at = $2; if (FNR == NR) order[++count] = at; next }
FNR == NR { want[at, ++wants[at]] = $0; next }
{ got[at, ++gots[at]] = $0 }
END { for (c = 1; c <= count; c++) differs(order[c]) }

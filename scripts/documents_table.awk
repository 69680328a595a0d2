# The figures that documents print, golden/documents/figures.tsv, as the C table of ref/estimate/documents.h.
# A line is: document, place, what, setting, printed, formula or -, erratum or -; the lines of a document follow
# one another.
function text(cell) { return cell == "-" ? "NULL" : "\"" cell "\"" }
BEGIN { FS = "\t"; print "#include \"estimate/documents.h\"\n" }
NR == 1 { next }
NF != 7 || /["\\]/ { print FILENAME ":" NR ": got " NF " cells, expected 7, without quotes and backslashes" >"/dev/stderr"; exit bad = 1 }
$1 "" != last "" {
    if (last != "") print "};"
    print "static const struct m3_printed rows_" $1 "[] = {"
    names[++n] = last = $1
}
{ printf "    { %s, %s, %s, %s, %s, %s },\n", text($2), text($3), text($4), text($5), text($6), text($7) }
END {
    if (bad) exit 1
    print "};\n\nconst struct m3_document m3_documents[M3_DOCUMENTS] = {"
    for (i = 1; i <= n; i++)
        printf "    { \"%s\", rows_%s, sizeof rows_%s / sizeof rows_%s[0] },\n", names[i], names[i], names[i], names[i]
    print "};"
}

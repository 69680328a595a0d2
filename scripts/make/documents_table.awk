# The data of golden/documents that the program has built in, figures.tsv and models.tsv, as the C tables of
# ref/estimate/documents/documents.h and private/models.h. In both files the first line names the columns, `-` is an
# empty cell, and the figures of a document follow one another.
function text(cell) { return cell == "-" ? "NULL" : "\"" cell "\"" }
function number(cell) { return cell == "-" ? 0 : cell }
function wrong(what) { print FILENAME ":" FNR ": " what >"/dev/stderr"; exit bad = 1 }
BEGIN {
    FS = "\t"
    print "#include \"estimate/documents/documents.h\"\n#include \"estimate/documents/private/models.h\"\n"
}
FNR == 1 { models = $1 == "model"; columns = NF; next }
NF != columns || /["\\]/ { wrong("got " NF " cells, expected " columns ", without quotes and backslashes") }
models {
    if ($11 != "-" && $11 != "mxfp8") wrong("got " $11 ", expected mxfp8 or -")
    $11 = $11 == "mxfp8"
    row = "    { " text($1) ", " text($3)
    for (i = 4; i <= 14; i++) row = row ", " number($i)
    row = row ", {"
    for (i = 15; i <= NF; i++) row = row " " number($i) ","
    model[++m] = row " } },"
    next
}
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
    print "};\n\nconst struct m3_documented_model m3_documented_models[] = {"
    for (i = 1; i <= m; i++) print model[i]
    print "};\n\nconst int m3_documented_model_count = " m ";"
}

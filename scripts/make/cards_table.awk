# ref/estimate/cards.tsv, the data of GPUs, as the C table of ref/estimate/private/cards.h. `-` is what is not known, or
# does not exist.
function number(cell, unit)
{
    if (cell == "-") return "0"
    if (cell !~ /^[0-9]+([.][0-9]+)?$/) { print FILENAME ":" FNR ": got " cell ", expected a number" >"/dev/stderr"; exit bad = 1 }
    return sprintf("INT64_C(%.0f)", cell * unit)
}
BEGIN { FS = "\t"; print "#include \"estimate/private/cards.h\"\n\nconst struct m3_gpu m3_gpus[] = {" }
NF != 7 { print FILENAME ":" FNR ": got " NF " cells, expected 7" >"/dev/stderr"; exit bad = 1 }
FNR > 1 {
    printf "    { \"%s\", %s, %s, %s, %s, %s },\n", $1, number($2, 1e12), number($3, 1e12), number($4, 1e9), number($5, 1e9),
        number($6, 1048576)
    cards++
}
END { if (!bad) print "};\n\nconst int m3_gpu_count = " cards ";" ; exit bad }

#!/bin/sh
# Turns the commands of `make -n`, on standard input, into the JSON compilation database that editors read.
# A command belongs in it if one of its words is a C or C++ source of this project.
exec awk -v folder="$(pwd)" '
    {
        file = ""
        for (i = 1; i <= NF; i++) if ($i ~ /^(ref|tests)\/.*\.(c|cc|cu)$/) file = $i
        if (file == "") next
        gsub(/["\\]/, "\\\\&")
        printf "%s\n  { \"directory\": \"%s\", \"file\": \"%s\", \"command\": \"%s\" }", n++ ? "," : "[", folder, file, $0
    }
    END { print n ? "\n]" : "[]" }
'

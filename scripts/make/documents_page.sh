#!/bin/sh
# documents_page.sh PROGRAM: the page golden/documents/README.md, from the tables beside it and, for appendix C, from
# what `PROGRAM estimate CONFIG --documents` prints. `make documents` writes the page.
program=$1
cd "$(dirname "$0")/../../golden/documents" || exit 1
set -e

cat <<'END'
# Five documents about the model family

This project started from five documents about MiniMax-M3 and its family. They are not part of this repository. This
page says what became of them: where each of their statements is specified (appendix A), where they are wrong
(appendix B), and how the figures that they print compare with ours (appendix C). Nobody needs the documents to use or
to understand the project.

`make documents` generates this page from the tables in this folder; edit the tables, not the page.

| table | a row is | columns |
|---|---|---|
| `titles.tsv` | a document | its number and what it is about |
| `map.tsv` | an equation, table or step of a document | document, place in it, what it says, where it is specified, errata |
| `errata.tsv` | a mistake of a document | id, place, what the document says, what is right, other sources, what m3ref does |
| `figures.tsv` | a printed figure | document, place, what it is, what it depends on, as printed, formula of ours, erratum |
| `models.tsv` | a model with printed figures | name, config, and the sizes by which `estimate` recognises it |

`figures.tsv` and `models.tsv` are built into `m3ref`. `tests/estimate/documents` checks all of it.

## Appendix A. The documents, line by line

A place such as `0 (1)` or `6.1 table` is a section of the document, with the number of an equation or a table in it.
The column *where* names what implements the statement:

- `SPEC 5.9` is a section of SPEC.md, sections 7.x are in ref/oracle/VERDICTS.md and 14.x in ref/estimate/ESTIMATES.md;
- an operator is a section of SPEC 5;
- a tap is a tensor of SPEC 6, which the goldens hold (`*` is the number of a layer or module);
- a figure is a key of `m3ref estimate --json`, or a group of keys; `--explain` prints its formula.

A statement that nothing implements has the reason in parentheses. The last column names the errata of appendix B.
END

awk -F '\t' '
    FILENAME == "titles.tsv" { title[$1] = $2; next }
    FNR == 1 { next }
    $1 "" != last "" {
        print "\n### " $1 ". " title[$1] "\n\n| place | says | where | erratum |\n|---|---|---|---|"
        last = $1
    }
    {
        where = ""
        count = split($4, list, ", ")
        for (i = 1; i <= count; i++) {
            if (split(list[i], part, " ") == 2 && part[1] != "SPEC") list[i] = part[1] " `" part[2] "`"
            where = where (i > 1 ? ", " : "") list[i]
        }
        print "| " $2 " | " $3 " | " where " | " $5 " |"
    }
' titles.tsv map.tsv

cat <<'END'

## Appendix B. Errata of the documents

Each entry is a place where a document contradicts itself, another document, the released model or the public code.
First comes what the document says. *Right* is what holds, with its computation or source. *Also* names other sources
that agree with what is right; after "none", sources with another wrong value. *Here* is what m3ref does, in the terms
of appendix A. GB is 10^9 bytes, GiB is 2^30 bytes.
END

awk -F '\t' '
    FNR == 1 { next }
    {
        text = "**" $1 "** (" $2 ") " $3 " *Right:* " $4 ($5 == "-" ? "" : " *Also:* " $5) " *Here:* " $6
        count = split(text, word, " ")
        line = ""
        for (i = 1; i <= count; i++) {
            # A line that begins so would be a list.
            if (length(line) + length(word[i]) + 1 > 115 && word[i] !~ /^([-+*=]|[0-9]+[.)])$/) {
                print line
                line = ""
            }
            if (i == 1) print ""
            line = line (line == "" ? "" : " ") word[i]
        }
        print line
    }
' errata.tsv

cat <<'END'

## Appendix C. Printed figures

`m3ref estimate CONFIG --documents` prints these tables: every figure of the documents that follows from a config. The
column *printed* has the figure as the document prints it; parentheses after *what* say what it depends on
(`T` context, `B` batch, `w`, `kv` and `ikv` formats, `gpu`, `gpus`, `card` memory, `act` activations, `mtp` modules).
The column *ours* has the same figure computed here, in the same unit, with two digits more than printed, unless it is a
whole number. A figure has an erratum if ours differs by more than half a unit of the last printed digit; `-` is a
figure that nothing here computes.
END

tail -n +2 models.tsv | while IFS="$(printf '\t')" read -r model config rest; do
    printf '\n### %s: %s\n\n' "$model" "$config"
    (cd ../.. && "$program" estimate "$config" --documents)
done

# A manual page from a help text: what follows "usage:" is the synopsis, "  --option VALUE  text" a list, and
# "Exit status:" a section. help2man takes a synopsis of several lines for a description, and an option as long
# as its column for a paragraph.
# usage: m3ref COMMAND --help | awk -v name=m3ref-run -v what='computes ..' -v version=0.1 -f man_page.awk
function escaped(text) {
    gsub(/\\/, "\\e", text)
    gsub(/-/, "\\-", text)
    if (text ~ /^[.']/) text = "\\&" text
    return text
}
function indent(text) {
    match(text, /^ */)
    return RLENGTH
}
{ line[NR] = $0 }

# The column of the texts in the list: that of most lines that continue one.
after_synopsis && indent($0) > 8 { count[indent($0)]++ }
/^usage: / { in_synopsis = 1 }
in_synopsis && $0 == "" { after_synopsis = 1 }

END {
    for (n in count) if (count[n] > count[column]) column = n
    printf ".TH %s 1 \"\" \"m3ref %s\" \"m3ref\"\n", toupper(name), version
    printf ".SH NAME\n%s \\- %s\n.SH SYNOPSIS\n.nf\n", name, escaped(what)
    for (i = 1; line[i] !~ /^usage: /; i++) continue
    for (; line[i] != ""; i++) {
        sub(/^(usage: |       )/, "", line[i])
        print escaped(line[i])
    }
    print ".fi\n.SH DESCRIPTION"
    for (; i <= NR; i++) {
        text = line[i]
        if (text == "") {
            if (line[i + 1] !~ /^(Exit status:|  )/) print ".PP"
        } else if (text ~ /^Exit status:/) {
            print ".SH EXIT STATUS"
            print escaped(substr(text, 14))
        } else if (text ~ /^  [^ ]/) item(text)
        else {
            sub(/^ */, "", text)
            words(text)
        }
    }
}

# A line with a column of its own stays a line.
function words(text,   is_row) {
    is_row = text ~ /[^ ]  +[^ ]/
    if (is_row || was_row) print ".br"
    print escaped(text)
    was_row = is_row
}

# The name ends at two spaces, or at the column. One that ends with a comma goes on in the next line.
function item(text,   rest, at) {
    text = substr(text, 3)
    at = match(text, /  /)
    if (!at && column && substr(text, column - 2, 1) == " ") at = column - 2
    rest = at ? substr(text, at) : ""
    if (at) text = substr(text, 1, at - 1)
    sub(/ +$/, "", text)
    sub(/^ +/, "", rest)
    printf "%s\n.B %s\n", goes_on ? ".TQ" : ".TP", escaped(text)
    goes_on = text ~ /,$/ && rest == ""
    was_row = 0
    if (rest != "") words(rest)
}

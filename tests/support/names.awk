# The files and folders that pages of documentation name in backquotes, in links, or by a path in the repository, and
# that do not exist. A name is looked for in the page's folder and those above it, in ref/, and in the folders that the
# same paragraph or row of a table names. Not looked for: names with NAME in them, files of a model's folder, of build/
# and of other programs.
# usage: git ls-files | awk -f names.awk - PAGE ..

# `path` without ./ and ../, and as a pattern where it has a *.
function plain(path) {
    gsub(/\/\.\//, "/", path)
    sub(/^\.\//, "", path)
    while (sub(/[^\/.]+\/\.\.\//, "", path)) {}
    return path
}

# A golden may be named without what follows its point.
function exists(path,   file) {
    path = plain(path)
    if (path ".safetensors" in there || path ".safetensors.gz" in there) return 1
    if (path !~ /\*/) return path in there
    gsub(/\./, "[.]", path)
    gsub(/\*/, "[^/]*", path)
    for (file in there) if (file ~ "^" path "$") return 1
    return 0
}

function add_folder(path) {
    if (path ~ /\/$/ || sub(/[^\/]*$/, "", path)) folders[++count] = path
}

# All names of one paragraph.
function look(text,   name, names, i, k, last, found) {
    count = names = 0
    for (i = room; i != ""; sub(/[^\/]*\/$/, "", i)) add_folder(i)
    add_folder("ref/")
    add_folder("./")
    while (match(text, /`[^`]*`|\]\([^)#]*|(^|[ =(])(golden|ref|scripts|tests)\/[A-Za-z0-9_.\/-]*/)) {
        name = substr(text, RSTART, RLENGTH)
        text = substr(text, RSTART + RLENGTH)
        gsub(/^(`|\]\(|[ =(])|`$|[.,:]$/, "", name)
        if (name ~ /NAME|^build\/|^\/|^https?:|[^A-Za-z0-9_.\/*-]/ || name ~ elsewhere) continue
        if (name !~ at_a_place && name !~ with_an_ending) continue
        list[++names] = name
        last = count
        for (i = 1; i <= last; i++) if (name ~ /\// && exists(folders[i] name)) add_folder(folders[i] name)
    }
    for (k = 1; k <= names; k++) {
        found = 0
        for (i = 1; i <= count && !found; i++) found = exists(folders[i] list[k])
        if (!found) print began ": there is no " list[k]
    }
}

function end_paragraph() {
    if (paragraph != "") look(paragraph)
    paragraph = ""
}

BEGIN {
    at_a_place = "^(golden|ref|scripts|tests)/|/$"
    with_an_ending = "[A-Za-z0-9_*][.](c|h|md|def|cu|cuh|S|sh|py|awk|tsv|svg|json)$"
    elsewhere = "^((config|tokenizer|vocab|model\\.safetensors\\.index)\\.json|mine\\.py|tools/.*|modeling_.*)$"
}
NR == FNR {
    there[$0]
    while (sub(/[^\/]+\/?$/, "") && $0 != "") {
        there[$0]
        there[substr($0, 1, length($0) - 1)]
    }
    next
}
FNR == 1 { end_paragraph(); room = FILENAME; sub(/[^\/]*$/, "", room) }
/^$/ { end_paragraph(); next }
/^[|]|^    / { end_paragraph() }
paragraph == "" { began = FILENAME ":" FNR }
{ paragraph = paragraph " " $0 }
/^[|]|^    / { end_paragraph() }
END { end_paragraph() }

# The commands of a page of documentation, and what the page says that they print. A line indented by four spaces or
# more is a command, which continues after a backslash; lines "# ..." after it are its output. Writes two files:
#   script    runs each command that needs nothing but the program and files of the repository, with the line
#             "@@ LINE" before its output
#   expected  the same lines "@@ LINE", with the output that the page prints
# and prints the number of outputs in the page, and of those that are recomputed. Not recomputed are outputs of other
# programs (make, python3, curl, cc, ..), commands that read a file of build/ which such a program writes, and commands
# with words, which tests/python/test_words.sh runs. With python=1, programs in NumPy that run in build/python are run
# too.
# usage: awk -v script=F -v expected=F [-v python=1] -f page.awk PAGE

# What the command reads of build/ was written by a command that is run; what it writes may be new.
function has_its_files(text,   file) {
    if (text ~ /^PYTHON/) sub(/ build\/[^ ]+( --[a-z-]+)?$/, "", text)
    sub(/ (picture|--run) [^ ]+ build\/[^ ]+/, " ", text)
    gsub(/ --(dump|make|cache-out|ledger|html|out) build\/[^ ]+/, " ", text)
    while (match(text, /build\/[a-z0-9_]+\.[a-z]+/)) {
        file = substr(text, RSTART, RLENGTH)
        if (!(file in made)) return 0
        text = substr(text, RSTART + RLENGTH)
    }
    return 1
}

function remember_files(text) {
    while (match(text, /build\/[a-z0-9_]+\.[a-z]+/)) {
        made[substr(text, RSTART, RLENGTH)] = 1
        text = substr(text, RSTART + RLENGTH)
    }
}

# The last file of build/ that another program names is the one that it writes.
function forget_result(text,   file) {
    while (match(text, /build\/[a-z0-9_]+\.[a-z]+/)) {
        file = substr(text, RSTART, RLENGTH)
        text = substr(text, RSTART + RLENGTH)
    }
    delete made[file]
}

function is_run() {
    if (command ~ / --(prompt|chat) /) return 0
    if (command ~ /MODEL|YOUR_DUMP/ || (output == "" && command !~ /build\/[a-z0-9_]+\./)) return 0
    if (command ~ /^PYTHONPATH=[^ ]+ build\/python\/bin\/python /) return python && has_its_files(command)
    return command ~ /^(build\/m3ref|grep) / && has_its_files(command)
}

function finish() {
    if (command == "") return
    if (output != "") outputs++
    if (command ~ /^[A-Z]=/) print command >script
    else if (!is_run()) {
        if (command !~ /^build\/m3ref/) forget_result(command)
    } else {
        remember_files(command)
        if (output == "") print "{ " command "\n} >/dev/null || echo 'line " first ": failed'" >script
        else {
            print "echo '@@ " first "'\n{ " command "\n} 2>&1" >script
            printf "@@ %d\n%s", first, output >expected
            recomputed++
        }
    }
    command = output = ""
}

BEGIN { printf "" >script; printf "" >expected }
!/^    / { finish(); continued = indent = 0; next }
!indent { match($0, /^ +/); indent = RLENGTH }
{ $0 = substr($0, 1, indent) ~ /^ +$/ ? substr($0, indent + 1) : $0 }
/^#/ { output = output substr($0, 3) "\n"; next }
continued { command = command "\n" $0; continued = /\\$/; next }
{ finish(); command = $0; first = NR; continued = /\\$/ }
END { finish(); print outputs + 0, recomputed + 0 }

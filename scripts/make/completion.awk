# Completions for a shell, from the lines "command NAME text" and "values OPTION words" and then ref/cli/README.md: its
# table of options, which agrees with the help texts and the program (tests/cli/test_options_page.sh).
# usage: awk -v shell=bash|zsh|fish -f completion.awk LISTS ref/cli/README.md
function quoted(text) {
    gsub(/`/, "", text)
    gsub(/'/, "’", text)
    return text
}
$1 == "command" {
    if (!($2 in what)) command[++commands] = $2
    name = $2
    if (!(name in what)) what[name] = substr($0, length($1) + length($2) + 3)
}
$1 == "values" {
    name = $2
    $1 = $2 = ""
    values[name] = substr($0, 3)
}
/^## / { in_table = $2 == "Options" }
in_table && /^[|] `--/ {
    split($0, cell, / [|] /)
    split(cell[1], word, /[ `|]+/)
    option[++options] = word[2]
    takes_value[word[2]] = word[3] != ""
    means[word[2]] = cell[2]
    sub(/ *[|]? *$/, "", cell[3])
    count = split(cell[3], users, /, */)
    for (i = 1; i <= count; i++) of[users[i]] = of[users[i]] " " word[2]
    if (word[3] != "" && !(word[2] in values)) words_in(word[2], cell[2])
}

# The words that an option's text shows in backquotes are its values, unless they name commands, options or forms.
function words_in(name, text,   at, parts, count) {
    count = split(text, parts, "`")
    for (at = 2; at <= count; at += 2)
        if (parts[at] !~ /[^a-z0-9_]/ && !(parts[at] in what))
            values[name] = values[name] (values[name] == "" ? "" : " ") parts[at]
}

function bash(   i) {
    print "# m3ref: completion for bash\n_m3ref() {\n    local word=${COMP_WORDS[COMP_CWORD]} options=\"\""
    print "    COMPREPLY=()\n    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        options=\"" list_of_commands() " --help --version\""
    print "    else\n        case ${COMP_WORDS[COMP_CWORD - 1]} in"
    for (i = 1; i <= options; i++) if (option[i] in values) print "        " option[i] ") options=\"" values[option[i]] "\" ;;"
    print "        op) [ \"$COMP_CWORD\" -ne 2 ] || [ \"${word#-}\" != \"$word\" ] || options=\"" values["op"] "\" ;;\n        esac"
    print "        [ -z \"$options\" ] && case $word in -*)\n            case ${COMP_WORDS[1]} in"
    for (i = 1; i <= commands; i++) print "            " command[i] ") options=\"" substr(of[command[i]], 2) "\" ;;"
    print "            esac ;;\n        esac\n    fi"
    print "    COMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n}"
    print "# Without a match: names of files.\ncomplete -o default -F _m3ref m3ref"
}

function zsh(   i, j, users, count) {
    print "#compdef m3ref\n_m3ref() {\n    local -a commands options\n    if (( CURRENT == 2 )); then\n        commands=("
    for (i = 1; i <= commands; i++) print "            '" command[i] ":" quoted(what[command[i]]) "'"
    print "            '--help:prints the commands' '--version:prints the version'\n        )"
    print "        _describe command commands\n        return\n    fi\n    case $words[CURRENT-1] in"
    for (i = 1; i <= options; i++) if (option[i] in values) print "    " option[i] ") compadd -- " values[option[i]] "; return ;;"
    print "    op) (( CURRENT != 3 )) || compadd -- " values["op"] " ;;\n    esac\n    case $words[2] in"
    for (i = 1; i <= commands; i++) {
        print "    " command[i] ") options=("
        count = split(substr(of[command[i]], 2), users, " ")
        for (j = 1; j <= count; j++) print "        '" users[j] ":" quoted(means[users[j]]) "'"
        print "        ) ;;"
    }
    print "    esac\n    if [[ $PREFIX == -* ]]; then _describe option options; else _files; fi\n}\n_m3ref \"$@\""
}

function fish(   i, j, users, count) {
    print "# m3ref: completion for fish"
    for (i = 1; i <= commands; i++)
        print "complete -c m3ref -n __fish_use_subcommand -f -a " command[i] " -d '" quoted(what[command[i]]) "'"
    print "complete -c m3ref -n __fish_use_subcommand -l help -d 'prints the commands'"
    print "complete -c m3ref -n __fish_use_subcommand -l version -d 'prints the version'"
    print "complete -c m3ref -n '__fish_seen_subcommand_from op' -a '" values["op"] "'"
    for (i = 1; i <= commands; i++) {
        count = split(substr(of[command[i]], 2), users, " ")
        for (j = 1; j <= count; j++)
            print "complete -c m3ref -n '__fish_seen_subcommand_from " command[i] "' -l " substr(users[j], 3) \
                (users[j] in values ? " -x -a '" values[users[j]] "'" : takes_value[users[j]] ? " -r" : "") \
                " -d '" quoted(means[users[j]]) "'"
    }
}

function list_of_commands(   i, text) {
    for (i = 1; i <= commands; i++) text = text (i > 1 ? " " : "") command[i]
    return text
}

END {
    if (shell == "bash") bash()
    else if (shell == "zsh") zsh()
    else fish()
}

#!/bin/sh
# Runs the commands of commands.txt through every fault; prints what is wrong, and at last the counts.
# usage: run.sh BUILD [NAMES [SLICE]]    NAMES, separated by commas: run,compare are also run-dump, compare-json, ..
#                                        SLICE 0 to 9: every tenth command
set -u
build=$1
here=$(dirname "$0")
folder=$(mktemp -d "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")/m3ref-faults.XXXXXX") || exit 1
trap 'rm -rf "$folder"' EXIT
"$here/prepare.sh" "$build/m3ref" "$folder/in" || exit
# All that ref/cli/start.c would set: the server is not to be started again.
export PYTHONPATH=scripts/python PYTHONDONTWRITEBYTECODE=1 PATH="$PWD/build/python/bin:$PATH"
export OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=0 OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=2 FAULTS_KNOWN="$folder/known"

pattern=$(echo "${2:-[a-z]*}" | sed 's/,/|/g')
sed -nE "s/^(($pattern)(-[a-z0-9-]+)?): .*/\1/p" "$here/commands.txt" |
    awk -v slice="${3:-}" 'slice == "" || NR % 10 == slice' |
    xargs -P "$(nproc)" -I{} sh -c "'$build/tests/fault_server' '$here/commands.txt' '$folder/in' '$folder/{}' {} >'$folder/{}.log' 2>&1
        status=\$?; cat '$folder/{}.log'; [ \$status -le 1 ] || echo '# {}: failed 1'; rm -rf '$folder/{}'" |
    tee "$folder/log" | grep -v '^#'

awk -F '[:,]' '/^# / { commands++; for (i = 2; i <= NF; i++) { n = split($i, w, " "); name = w[1]
        for (k = 2; k < n; k++) name = name " " w[k]
        if (!(name in sum)) order[++names] = name
        sum[name] += w[n]
        if (name == "never met" && w[n] > 0) print substr($1, 3) " never met " w[n] } }
    END { printf "commands: %d\n", commands
        for (i = 1; i <= names; i++) { printf "%s: %d\n", order[i], sum[order[i]]
            if (i > 3 || order[i] == "failed") wrong += sum[order[i]] }
        exit wrong > 0 || commands == 0 }' "$folder/log"

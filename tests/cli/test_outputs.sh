#!/bin/sh
# What is left when a command cannot finish its outputs, and what its messages say of values that it refuses.
#
# Seen to fail with synth writing under its output's name, with an address of any scheme accepted, and with an id that does
# not fit printed as -1.
m3ref=${BUILD:-build}/m3ref
golden=golden/tiny/golden.safetensors.gz
. tests/support/verdict.sh

# refused NAME STATUS WORDS ARGUMENTS..: that status, one line, which holds the words; nothing but out/ is left.
mkdir "$folder/out"
refused() {
    name=$1 expected=$2 words=$3
    shift 3
    (ulimit -f ${blocks:-unlimited} && "$m3ref" "$@" >/dev/null 2>"$folder/errors")
    status=$?
    {
        [ "$status" -eq "$expected" ] || echo "got status $status, expected $expected"
        [ "$(wc -l <"$folder/errors")" -eq 1 ] || echo "got $(wc -l <"$folder/errors") lines, expected one"
        grep -qe "$words" "$folder/errors" || { echo "no \"$words\" in:"; head -n 3 "$folder/errors"; }
        find "$folder" -mindepth 1 ! -name out ! -name errors ! -name findings
    } >"$folder/findings"
    verdict "$name" "$folder/findings"
}

blocks=1000
for out in new out; do
    refused "synth $out" 74 'File too large' synth golden/tiny/model/config.json "$folder/$out"
done
blocks=
for address in javascript:alert ' javascript:alert' JavaScript:alert data:text/html vbscript:x ''; do
    refused "--spec '$address'" 64 '--spec' compare $golden $golden --spec "$address" --html "$folder/page.html"
done
for address in SPEC.md ../SPEC.md https://example.org/SPEC.md HTTP://example.org a/b:c; do
    "$m3ref" compare $golden $golden --spec "$address" >/dev/null 2>"$folder/findings"
    verdict "--spec '$address'" "$folder/findings"
done
for id in -7 211 4294967296 99999999999; do
    refused "id $id" 64 "token 1: got id $id, expected" run golden/tiny/model --ids "1,$id"
done
refused 'an id beyond 64 bits' 64 'got 1,99999999999999999999, expected numbers' run golden/tiny/model \
    --ids 1,99999999999999999999

end

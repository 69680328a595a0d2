#!/bin/sh
# `make install`: program, library and headers in place; every header compiles by itself from there, and the one that a
# user includes holds all that it names. The licence goes with it, and nothing has strayed into the top level.
# Seen to fail with a folder of headers left out, with a private header installed that includes one that is not, with
# LICENSE not installed, and with another file beside README.md.
build=${BUILD:-build}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
passed=0
failed=0

# verdict NAME STATUS
verdict() {
    if [ "$2" -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "install: $1"
    fi
}

make -s install BUILD="$build" DESTDIR="$folder" PREFIX=/usr >/dev/null 2>"$folder/errors"
verdict "make install: $(cat "$folder/errors")" $?
include=$folder/usr/include/m3ref
[ -x "$folder/usr/bin/m3ref" ] && [ -s "$folder/usr/lib/libm3ref.a" ] && [ -x "$folder/usr/lib/libm3ref.so" ] &&
    [ -s "$include/m3ref.h" ]
verdict "program, library or m3ref.h is absent" $?
documents=$folder/usr/share/doc/m3ref
grep -qs 'Apache License' "$documents/LICENSE" && grep -qs 'The m3ref authors' "$documents/NOTICE"
verdict "LICENSE or NOTICE is absent" $?
beside=$(git ls-files 2>/dev/null | sed 's,/.*,,' | sort -u |
    grep -vxE '\..*|LICENSE|Makefile|NOTICE|README.md|SPEC.md|golden|ref|scripts|tests')
[ -z "$beside" ]
verdict "the top level holds $beside" $?

# Those of cuda/, there if the CUDA library was built, need the CUDA toolkit.
find "$include" -name '*.h' ! -path '*/cuda/*' | sort >"$folder/headers"
while read -r header; do
    ${CC:-cc} -std=gnu11 -fsyntax-only -I "$include" $(pkg-config --cflags jansson) -x c "$header" 2>"$folder/errors" ||
        { head -n 1 "$folder/errors"; echo "$header"; } >>"$folder/bad"
done <"$folder/headers"
touch "$folder/bad"
[ ! -s "$folder/bad" ]
verdict "headers that do not compile: $(cat "$folder/bad")" $?
[ "$(wc -l <"$folder/headers")" -ge 30 ]
verdict "few headers: $(cat "$folder/headers")" $?

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]

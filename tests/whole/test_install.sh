#!/bin/sh
# `make install`: what it makes works from there, and `make uninstall` leaves nothing behind.
# - The headers compile by themselves as C11 and as C++; a program in C and one in C++ use the libraries through
#   pkg-config; both results are compared with the golden of public PyTorch code.
# - Every command has its manual page, with every option of its help text; completions offer each command its options.
# - DESTDIR and LIBDIR are honoured. What was there before stays, a file that a user put there too.
# - What set-up says where it may not install, and what make says in one line where a library is missing.
#
# Seen to fail with: a header left out; `operator` as the name of a member; no guard for C++; the version script without
# a name; no soname; pkg-config without Requires.private; an option removed from the page of options; a page without its
# list; a file that install.sh does not write into its list; a folder removed that was there; LIBDIR ignored; LICENSE
# not installed; another file beside README.md; clang among the packages of the build; CFLAGS without the check.
build=${BUILD:-build}
. tests/support/verdict.sh
abi=$(sed -n 's/.*M3_LIBRARY_ABI = \([0-9]*\).*/\1/p' ref/library/library.h)
cc=${CC:-cc}
prefix=$folder/root/usr
install_as() { make -s "$1" BUILD="$build" CC="$cc" DESTDIR="$2" PREFIX="$3" LIBDIR="$4"; }
# The libraries of a build with sanitizers need theirs.
case $(nm -D "$build/libm3ref.so") in *__asan_*) sanitize='-fsanitize=address,undefined' ;; *) sanitize='' ;; esac

# ---- the files
mkdir -p "$prefix/share/man/man1" "$prefix/bin"
install_as install '' "$prefix" "$prefix/lib" >"$folder/findings" 2>&1
for file in bin/m3ref lib/libm3ref.a lib/libm3ref.so lib/libm3ref.so.$abi lib/pkgconfig/m3ref.pc include/m3ref/m3ref.h \
    include/m3ref/ops/ops.h share/m3ref/golden/tiny/golden.safetensors.gz; do
    [ -s "$prefix/$file" ] || echo "no $file"
done >>"$folder/findings"
grep -qs 'Apache License' "$prefix/share/doc/m3ref/LICENSE" || echo 'no LICENSE' >>"$folder/findings"
grep -qs 'The m3ref authors' "$prefix/share/doc/m3ref/NOTICE" || echo 'no NOTICE' >>"$folder/findings"
verdict 'make install' "$folder/findings"
[ "$failed" -eq 0 ] || { end; exit 1; }

git ls-files 2>/dev/null | sed 's,/.*,,' | sort -u |
    grep -vxE '\..*|LICENSE|Makefile|NOTICE|README.md|SPEC.md|golden|ref|scripts|tests' >"$folder/findings"
verdict 'beside README.md' "$folder/findings"

# ---- the headers
(cd "$prefix/include/m3ref" && find . -name '*.h' ! -path './cuda/*' | sort) >"$folder/headers"
while read -r header; do
    $cc -std=c11 -Wall -Wextra -pedantic -Werror -fsyntax-only -I "$prefix/include/m3ref" -x c \
        "$prefix/include/m3ref/$header" 2>&1 | head -n 2
done <"$folder/headers" >"$folder/findings"
[ "$(wc -l <"$folder/headers")" -ge 25 ] || echo "got few headers: $(cat "$folder/headers")" >>"$folder/findings"
verdict 'headers as C11' "$folder/findings"
for header in m3ref.h ops/ops.h; do
    for standard in c++11 c++20; do
        ${CXX:-g++} -std=$standard -Wall -Wextra -pedantic -Werror -fsyntax-only -x c++ "$prefix/include/m3ref/$header" \
            -I "$prefix/include/m3ref" 2>&1 | head -n 2
    done
done >"$folder/findings"
verdict 'headers as C++' "$folder/findings"

# ---- two programs that use the library
export PKG_CONFIG_PATH="$prefix/lib/pkgconfig"
golden=$prefix/share/m3ref/golden/tiny
# The most likely next token, from the logits of the golden, which are F64.
python3 - "$golden/golden.safetensors.gz" >"$folder/want" <<'END'
import gzip, json, struct, sys
data = gzip.open(sys.argv[1]).read()
size, = struct.unpack("<Q", data[:8])
entry = json.loads(data[8:8 + size])["logits"]
begin, end = entry["data_offsets"]
row = struct.unpack(f"<{entry['shape'][1]}d", data[8 + size + end - 8 * entry["shape"][1]:8 + size + end])
assert entry["dtype"] == "F64" and end - begin == 8 * entry["shape"][0] * entry["shape"][1]
print(row.index(max(row)))
END
user() { # user NAME COMPILER..: compiles a program, which prints into NAME.out
    name=$1
    shift
    "$@" $sanitize -o "$folder/$name" >"$folder/findings" 2>&1
    LD_LIBRARY_PATH=$prefix/lib ASAN_OPTIONS=detect_leaks=0 "$folder/$name" "$golden/model" "$golden/case.safetensors" \
        "$golden/golden.safetensors.gz" "$folder/dump.safetensors" >"$folder/$name.out" 2>>"$folder/findings" ||
        echo "ended with $?" >>"$folder/findings"
}
strict='-Wall -Wextra -Werror'
user c "$cc" -std=c11 $strict tests/whole/user/user.c $(pkg-config --cflags --libs m3ref)
diff "$folder/want" "$folder/c.out" >>"$folder/findings"
verdict 'program in C' "$folder/findings"
user static "$cc" -std=c11 $strict tests/whole/user/user.c $(pkg-config --cflags m3ref) \
    $(pkg-config --static --libs m3ref | sed 's/-lm3ref/-l:libm3ref.a/')
diff "$folder/want" "$folder/static.out" >>"$folder/findings"
verdict 'program in C with the static library' "$folder/findings"
user cc "${CXX:-g++}" -std=c++11 $strict tests/whole/user/user.cc $(pkg-config --cflags --libs m3ref)
grep -q '^pass  130 of 130' "$folder/cc.out" || tail -n 1 "$folder/cc.out" >>"$folder/findings"
verdict 'program in C++' "$folder/findings"

{
    objdump -p "$prefix/lib/libm3ref.so" | grep -q "SONAME *libm3ref.so.$abi\$" || echo 'no soname'
    nm -D --with-symbol-versions "$folder/c" | grep -q "m3_model_open@M3REF_$abi" || echo 'no version in the program'
    nm -D --defined-only --with-symbol-versions "$prefix/lib/libm3ref.so" | grep -v "@@M3REF_$abi\$\|A M3REF_$abi"
    nm -D "$folder/static" | grep ' U m3_'
    objdump -p "$folder/static" | grep 'NEEDED.*m3ref'
} >"$folder/findings"
verdict 'names and versions' "$folder/findings"

# ---- pages and completions, against the help texts
"$build/m3ref" --help | sed -n 's/^  \([a-z]*\) [A-Z[].*/\1/p' | sort -u >"$folder/commands"
while read -r command; do
    page=$prefix/share/man/man1/m3ref-$command.1
    [ -s "$page" ] || echo "no page of $command"
    sed 's/\\&//g; s/\\-/-/g; s/\\e/\\/g; s/^[.]B //' "$page" | tr -s ' \n' ' ' >"$folder/page"
    "$build/m3ref" "$command" --help | sed 's/^usage: //' | tr -s ' ' | sed 's/^ //; /^Exit status: /s///; /^$/d' |
        while IFS= read -r line; do
            # An option and the text beside it are two lines of the page.
            for part in $(printf '%s' "$line" | grep -oE -e '--[a-z][a-z0-9-]*'); do
                grep -qF -e "$part" "$folder/page" || echo "$command: the page lacks $part"
            done
        done
    "$build/m3ref" "$command" --help | grep -c '^  [^ ]' >"$folder/items"
    [ "$(grep -c '^[.]T[PQ]' "$page")" -eq "$(cat "$folder/items")" ] ||
        echo "$command: got $(grep -c '^[.]T[PQ]' "$page") items, expected $(cat "$folder/items")"
done <"$folder/commands" >"$folder/findings"
if command -v groff >/dev/null; then
    for page in "$prefix"/share/man/man1/*.1; do groff -man -ww -Tutf8 "$page" 2>&1 >/dev/null; done >>"$folder/findings"
else
    echo 'skipped: the layout of the pages: there is no groff'
fi
[ "$(wc -l <"$folder/commands")" -ge 11 ] || echo "got few commands: $(cat "$folder/commands")" >>"$folder/findings"
verdict 'manual pages' "$folder/findings"

# offers SHELL WORDS..: what a shell offers for the last word.
offers() {
    shell=$1
    shift
    case $shell in
    bash) bash -c '. "$1"; shift; COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _m3ref; printf "%s\n" "${COMPREPLY[@]}"' \
        bash "$prefix/share/bash-completion/completions/m3ref" "$@" ;;
    zsh) zsh -fc 'file=$1; shift
        _describe() { local pair; for pair in ${(P)2}; do print -r -- ${pair%%:*}; done }
        compadd() { shift; print -rl -- "$@" }
        _files() { : }
        words=("$@"); CURRENT=$#; PREFIX=$words[-1]; source $file' \
        zsh "$prefix/share/zsh/site-functions/_m3ref" "$@" | grep -e "^$(eval "echo \${$#}")" ;;
    fish) HOME=$folder fish -c 'source $argv[1]; complete -C "$argv[2..]"' "$prefix/share/fish/vendor_completions.d/m3ref.fish" \
        "$@" | cut -f 1 ;;
    esac
}
: >"$folder/findings"
for shell in bash zsh fish; do
    if ! command -v $shell >/dev/null; then
        echo "skipped: completion for $shell: there is no $shell"
        continue
    fi
    {
        for command in run compare op; do
            offers $shell m3ref "$command" --t | sort >"$folder/offered"
            "$build/m3ref" "$command" --help | grep -oE '^  --t[a-z-]*|, --t[a-z-]*' | tr -d ' ,' | sort -u |
                diff - "$folder/offered"
        done
        [ "$(offers $shell m3ref estim)" = estimate ] || echo 'no estimate'
        [ "$(offers $shell m3ref run --precision f6)" = f64 ] || echo 'no precision f64'
        [ "$(offers $shell m3ref op residual)" = residual_norm ] || echo 'no operator'
        [ "$(offers $shell m3ref compare --profile tf)" = tf32 ] || echo 'no profile'
    } 2>&1 | sed "s/^/$shell: /" >>"$folder/findings"
done
verdict 'completions' "$folder/findings"

# ---- removal
echo mine >"$prefix/share/m3ref/mine"
install_as uninstall '' "$prefix" "$prefix/lib" >"$folder/findings" 2>&1
(cd "$folder/root" && find . | sort) >"$folder/left"
printf '%s\n' . ./usr ./usr/bin ./usr/share ./usr/share/m3ref ./usr/share/m3ref/mine ./usr/share/man ./usr/share/man/man1 |
    sort | diff - "$folder/left" >>"$folder/findings"
verdict 'make uninstall' "$folder/findings"

install_as install "$folder/stage" /opt/m3 /opt/m3/lib64 >"$folder/findings" 2>&1
[ -s "$folder/stage/opt/m3/lib64/libm3ref.so.$abi" ] && [ ! -e "$folder/stage/opt/m3/lib" ] || echo 'no lib64' >>"$folder/findings"
grep -n "$folder" "$folder/stage/opt/m3/lib64/pkgconfig/m3ref.pc" "$folder/stage/opt/m3/share/m3ref/installed" >>"$folder/findings"
grep -qx 'libdir=/opt/m3/lib64' "$folder/stage/opt/m3/lib64/pkgconfig/m3ref.pc" || echo 'no libdir' >>"$folder/findings"
install_as install "$folder/stage" /opt/m3 /opt/m3/lib64 >>"$folder/findings" 2>&1
install_as uninstall "$folder/stage" /opt/m3 /opt/m3/lib64 >>"$folder/findings" 2>&1
find "$folder/stage" -mindepth 1 >>"$folder/findings" 2>/dev/null
install_as uninstall "$folder/stage" /opt/m3 /opt/m3/lib64 >/dev/null 2>&1 && echo 'removed nothing, and said nothing' >>"$folder/findings"
verdict 'DESTDIR, LIBDIR and a second installation' "$folder/findings"

# ---- what is said where something is missing: a stand-in for pkg-config knows no library, one for id is not root
mkdir "$folder/bin"
printf '#!/bin/sh\nexit 1\n' | tee "$folder/bin/pkg-config" >"$folder/bin/sudo"
printf '#!/bin/sh\necho 1000\n' >"$folder/bin/id"
chmod +x "$folder"/bin/*
said() { PATH=$folder/bin:$PATH OS_RELEASE=$1 scripts/setup.sh $2 2>&1; }
echo 'ID=fedora' >"$folder/fedora"
printf 'ID=manjaro\nID_LIKE="arch"\n' >"$folder/arch"
echo 'ID=debian' >"$folder/debian"
{
    said "$folder/debian" '' | grep -q 'apt-get install libopenblas-dev libjansson-dev zlib1g-dev libssl-dev libpng-dev$' || echo 'Debian'
    said "$folder/fedora" '' | grep -q 'dnf install openblas-devel jansson-devel zlib-devel openssl-devel libpng-devel$' || echo 'Fedora'
    said "$folder/arch" '' | grep -q 'pacman -S --needed openblas jansson zlib openssl libpng$' || echo 'Arch'
    [ "$(said /dev/null '' | grep -cE 'on (Debian|Fedora|Arch|macOS): ')" -eq 4 ] || echo 'not all systems are named'
    said "$folder/debian" '' | grep 'clang\|check'
    said "$folder/debian" tests | grep -q ' check' || echo 'the tests do not need check'
    said "$folder/debian" '' >/dev/null && echo 'set-up: got status 0'
} >"$folder/findings"
verdict 'set-up' "$folder/findings"
PATH=$folder/bin:$PATH OS_RELEASE=$folder/debian make -s BUILD="$folder/build" all >"$folder/said" 2>&1 && echo 'status 0' >"$folder/findings"
[ "$(wc -l <"$folder/said")" -eq 1 ] && grep -q 'missing: openblas .*apt-get install libopenblas-dev' "$folder/said" ||
    cat "$folder/said" >>"$folder/findings"
PATH=$folder/bin:$PATH make -s BUILD="$folder/build" help >/dev/null 2>>"$folder/findings"
verdict 'make without libraries' "$folder/findings"
end

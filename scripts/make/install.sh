#!/bin/sh
# Installs what `make` built, under $DESTDIR$PREFIX, and writes a list of the files and folders that it made; removes
# exactly those again.
# usage: install.sh BUILD <HEADERS       names of public headers, ref/...
#        install.sh --remove
# environment: PREFIX, LIBDIR (absolute), DESTDIR, SONAME
set -eu
case $PREFIX$LIBDIR in
/*/*) ;;
*) echo "install: PREFIX and LIBDIR: got $PREFIX and $LIBDIR, expected absolute paths" >&2 && exit 64 ;;
esac
list=$DESTDIR$PREFIX/share/m3ref/installed

# Folders are in the list after what they hold, and stay if something else is in them now.
remove() {
    [ -e "$list" ] || return 0
    tac "$list" | while IFS= read -r path; do
        if [ -d "$DESTDIR$path" ] && [ ! -L "$DESTDIR$path" ]; then
            rmdir "$DESTDIR$path" 2>/dev/null || :
        else
            rm -f "$DESTDIR$path"
        fi
    done
}

# folder PATH: makes it and those above it. The list has those that were not there.
folder() {
    [ ! -d "$DESTDIR$1" ] || return 0
    folder "${1%/*}"
    mkdir "$DESTDIR$1"
    echo "$1" >>"$made"
}

# put MODE FILE PATH
put() {
    folder "${3%/*}"
    install -m "$1" "$2" "$DESTDIR$3"
    echo "$3" >>"$made"
}

# Programs find the shared library by the system's list.
tell_loader() { [ -n "$DESTDIR" ] || [ "$(id -u)" -ne 0 ] || ! command -v ldconfig >/dev/null || ldconfig; }

if [ "$1" = --remove ]; then
    if [ ! -e "$list" ]; then
        echo "uninstall: $list: got no such file, expected the list that make install wrote" >&2
        exit 66
    fi
    remove
    tell_loader
    exit 0
fi
build=$1
share=$PREFIX/share
made=$(mktemp) || exit 1
# Also after a failure there is a list of what was installed.
trap 'rm -f "$made.golden"; [ ! -d "${list%/*}" ] || { cp "$made" "$list" && chmod 644 "$list"; }; rm -f "$made"' EXIT

# What an earlier version installed goes first.
remove
[ -z "$DESTDIR" ] || mkdir -p "$DESTDIR"
folder "$share/m3ref"
echo "$share/m3ref/installed" >>"$made"

put 755 "$build/m3ref" "$PREFIX/bin/m3ref"
put 644 "$build/libm3ref.a" "$LIBDIR/libm3ref.a"
put 755 "$build/libm3ref.so" "$LIBDIR/$SONAME"
ln -sf "$SONAME" "$DESTDIR$LIBDIR/libm3ref.so"
echo "$LIBDIR/libm3ref.so" >>"$made"
[ ! -e "$build/libm3ref_cuda.so" ] || put 755 "$build/libm3ref_cuda.so" "$LIBDIR/libm3ref_cuda.so"
[ ! -e "$build/libm3ref_mpi.so" ] || put 755 "$build/libm3ref_mpi.so" "$LIBDIR/libm3ref_mpi.so"
put 644 "$build/m3ref.pc" "$LIBDIR/pkgconfig/m3ref.pc"
while read -r header; do put 644 "$header" "$PREFIX/include/m3ref/${header#ref/}"; done

for page in "$build"/documents/*.1; do put 644 "$page" "$share/man/man1/${page##*/}"; done
put 644 "$build/documents/m3ref.bash" "$share/bash-completion/completions/m3ref"
put 644 "$build/documents/m3ref.zsh" "$share/zsh/site-functions/_m3ref"
put 644 "$build/documents/m3ref.fish" "$share/fish/vendor_completions.d/m3ref.fish"

find golden -type f | sort >"$made.golden"
while IFS= read -r file; do put 644 "$file" "$share/m3ref/$file"; done <"$made.golden"
put 644 LICENSE "$share/doc/m3ref/LICENSE"
put 644 NOTICE "$share/doc/m3ref/NOTICE"
tell_loader

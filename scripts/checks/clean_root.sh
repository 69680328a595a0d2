#!/bin/sh
# Does it work where nothing is installed? In fresh Debian systems, made in a folder: without a compiler, the wheel of
# `make wheel` runs the tiny model against its golden; with one, `make` says what is missing, `make run` installs it
# without clang, and the tests of the installation and of the GitHub action pass. Needs root and the network.
# usage: clean_root.sh BUILD        last line: N passed, N failed; status 69 without debootstrap
set -u
. "${0%/*}/needs.sh"
needs debootstrap:debootstrap unshare:util-linux
build=$1
base=$build/root/base
mirror=${MIRROR:-http://deb.debian.org/debian}
. tests/support/verdict.sh

if [ ! -e "$base.ready" ]; then
    rm -rf "$base"
    mkdir -p "$base"
    debootstrap --variant=minbase --include=python3,python3-venv,python3-pip,ca-certificates bookworm "$base" "$mirror" \
        >"$folder/log" 2>&1 || { tail -n 5 "$folder/log" >&2 && exit 1; }
    touch "$base.ready"
fi

# inside ROOT <COMMANDS: runs them there. The mount of /proc ends with the process.
inside() {
    unshare --mount --fork sh -c 'mount -t proc proc "$1/proc" && exec chroot "$1" sh -e' inside "$1" 2>&1
}

# expect NAME TEXT: the output has this line.
expect() { grep -qE "$2" "$folder/out" && : >"$folder/findings" || tail -n 5 "$folder/out" >"$folder/findings"; verdict "$1" "$folder/findings"; }

# ---- no compiler
without=$build/root/without
rm -rf "$without"
cp -a "$base" "$without"
mkdir "$without/wheels"
cp "$build"/wheel/m3ref-*.whl "$without/wheels"
"$build/wheel-tools/bin/pip" download -q --no-deps --python-version 3.11 --only-binary=:all: -d "$without/wheels" numpy 2>/dev/null
cp -r golden/tiny "$without/tiny"
inside "$without" >"$folder/out" <<'END'
! command -v cc gcc clang make
python3 -m venv /env
/env/bin/pip install -q --no-index --find-links /wheels m3ref
/env/bin/m3ref --version
/env/bin/python -m m3ref run /tiny/model --case /tiny/case.safetensors --dump /dump.safetensors
/env/bin/python -m m3ref compare /tiny/golden.safetensors.gz /dump.safetensors | tail -n 1
END
expect 'the wheel' '^pass  130 of 130 stages judged'
rm -rf "$without"

# ---- a compiler, brought by set-up
with=$build/root/with
rm -rf "$with"
cp -a "$base" "$with"
mkdir "$with/m3ref"
git ls-files -z --cached --others --exclude-standard | xargs -0 tar cf - | tar xf - -C "$with/m3ref"
inside "$with" >"$folder/out" <<'END'
cd /m3ref
apt-get update >/dev/null 2>&1
apt-get install -y --no-install-recommends make >/dev/null 2>&1
make || :
END
expect 'make without a compiler' '^Makefile:[0-9]*: [*]{3} missing: cc .*apt-get install gcc '
inside "$with" >"$folder/out" <<'END'
cd /m3ref
make run
! command -v clang
echo no clang
END
expect 'make run' '^pass  169 of 169 stages judged'
expect 'clang' '^no clang$'
inside "$with" >"$folder/out" <<'END'
cd /m3ref
apt-get install -y --no-install-recommends g++ python3-yaml >/dev/null 2>&1
mkdir -p /env/bin && ln -s /usr/bin/python3 /env/bin/python
sh tests/whole/test_install.sh
END
expect 'installation' '^[0-9]+ passed, 0 failed$'
inside "$with" >"$folder/out" <<'END'
cd /m3ref
PYTHON_ENVIRONMENT=/env sh tests/whole/test_ci.sh
END
expect 'GitHub action' '^[0-9]+ passed, 0 failed$'
rm -rf "$with"
end

#!/bin/sh
# Ensures that the packages for the build are there, and with `tests` or `fuzz` those for the tests or for `make fuzz`.
# On Debian or Ubuntu it announces and installs missing ones with apt. Elsewhere, or without permission to install, it
# says what to install, and stops.
# usage: setup.sh [tests] [fuzz]
#        setup.sh --missing          installs nothing; says in one line what the build lacks, or nothing
# environment: OS_RELEASE, for its test: the file that names the system
set -u
release=${OS_RELEASE:-/etc/os-release}

# What is needed, for what, and the package that has it.
table="\
need        for    Debian            Fedora              Arch
cc          build  gcc               gcc                 gcc
libc        build  libc6-dev         glibc-devel         glibc
make        build  make              make                make
objcopy     build  binutils          binutils            binutils
pkg-config  build  pkg-config        pkgconf-pkg-config  pkgconf
openblas    build  libopenblas-dev   openblas-devel      openblas
jansson     build  libjansson-dev    jansson-devel       jansson
zlib        build  zlib1g-dev        zlib-devel          zlib
libcrypto   build  libssl-dev        openssl-devel       openssl
libpng      build  libpng-dev        libpng-devel        libpng
g++         tests  g++               gcc-c++             gcc
check       tests  check             check-devel         check
mpfr        tests  libmpfr-dev       mpfr-devel          mpfr
clang       tests  clang             clang               clang
libomp      tests  libomp-dev        libomp-devel        openmp
mpicc       tests  libopenmpi-dev    openmpi-devel       openmpi
mpirun      tests  openmpi-bin       openmpi             openmpi
venv        tests  python3-venv      python3             python
fuzzer      fuzz   libclang-rt-dev   compiler-rt         compiler-rt
llvm-cov    fuzz   llvm              llvm                llvm"

# Is it there, however it was installed?
has() {
    case $1 in
    cc) set -- ${CC:-cc} && command -v "$1" || command -v gcc ;;
    mpicc | mpirun) command -v "$1" || [ -x "/usr/lib64/openmpi/bin/$1" ] ;;
    libc) printf '#include <stdio.h>\n' | ${CC:-cc} -E - ;;
    mpfr) printf '#include <mpfr.h>\n' | ${CC:-cc} -E - ;;
    libomp) printf '#include <omp.h>\n' | clang -fopenmp -E - ;;
    fuzzer) echo 'int main(void) { return 0; }' | clang -fsanitize=address,fuzzer-no-link -x c -o /dev/null - ;;
    llvm-cov) command -v llvm-profdata && command -v llvm-cov ;;
    venv) python3 -c 'import ensurepip, venv' ;;
    openblas | jansson | zlib | libcrypto | libpng | check) pkg-config --exists "$1" ;;
    *) command -v "$1" ;;
    esac >/dev/null 2>&1
}

only_says=""
groups=" build "
for word in "$@"; do
    case $word in
    --missing) only_says=yes ;;
    *) groups="$groups$word " ;;
    esac
done
missing=$(printf '%s\n' "$table" | sed 1d | while read -r need group packages; do
    case $groups in *" $group "*) has "$need" || echo "$need" ;; esac
done)
[ -z "$missing" ] && exit 0

# packages SYSTEM: those with what is missing, in one line.
packages() {
    printf '%s\n' "$table" | awk -v system_name="$1" -v missing="$missing" '
        NR == 1 { for (i = 3; i <= NF; i++) if ($i == system_name) column = i }
        BEGIN { count = split(missing, names, "\n"); for (i = 1; i <= count; i++) wanted[names[i]] = 1 }
        $1 in wanted && !seen[$column]++ { printf " %s", $column }'
}

# command SYSTEM: what to do there.
command_on() {
    case $1 in
    Debian) echo "apt-get install$(packages Debian)" ;;
    Fedora) echo "dnf install$(packages Fedora)" ;;
    Arch) echo "pacman -S --needed$(packages Arch)" ;;
    macOS) echo "m3ref needs Linux: brew install colima docker && colima start &&" \
        'docker run -it -v "$PWD:/m3ref" -w /m3ref debian:12 sh -c "apt-get update && apt-get install -y make && make run"' ;;
    esac
}

# The system, if it is one of those.
system=""
if [ "$(uname -s)" = Darwin ]; then
    system=macOS
else
    for id in $(sed -n 's/^ID=//p; s/^ID_LIKE=//p' "$release" 2>/dev/null | tr -d '"'); do
        case $id in
        debian | ubuntu) system=Debian ;;
        fedora | rhel | centos) system=Fedora ;;
        arch) system=Arch ;;
        esac
        [ -z "$system" ] || break
    done
fi

# Everything is printed in one line for make, and in several for people.
advice() {
    if [ -n "$system" ]; then
        echo "as the administrator: $(command_on "$system")"
    else
        for each in Debian Fedora Arch macOS; do echo "on $each: $(command_on "$each")"; done
    fi
}
names=$(echo $missing)
if [ -n "$only_says" ]; then
    echo "missing: $names; $(advice | tr '\n' ';' | sed 's/;$//; s/;/; /g')"
    exit 1
fi

echo "set-up: missing: $names"
as_root=""
if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then as_root=sudo; else as_root=no; fi
fi
if [ "$as_root" = no ] || [ "$system" != Debian ] || ! command -v apt-get >/dev/null 2>&1; then
    advice | sed 's/^/set-up: /' >&2
    exit 1
fi

wanted=$(packages Debian)
echo "set-up: installing with apt-get:$wanted"
log=$(mktemp) || exit 1
if ! { $as_root apt-get update && DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y --no-install-recommends $wanted; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    echo "set-up: apt-get failed: packages$wanted" >&2
    exit 1
fi
rm -f "$log"
echo "set-up: done"

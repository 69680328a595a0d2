#!/bin/sh
# Ensures that the packages for the build and the tests are installed. On Debian or Ubuntu it announces and installs
# missing ones with apt. Elsewhere, or without permission to install, it names the packages and stops.
# usage: setup.sh [libclang-rt-dev llvm]      packages besides the usual ones: those of `make fuzz`
set -u

packages="gcc g++ libc6-dev make binutils pkg-config libopenblas-dev libjansson-dev zlib1g-dev libssl-dev libpng-dev check
libmpfr-dev clang libomp-dev libopenmpi-dev openmpi-bin python3-venv $*"

# A package counts as installed if what it provides is there, however it was installed.
missing=""
for package in $packages; do
    case $package in
    gcc | g++ | make | clang) command -v "$package" >/dev/null 2>&1 ;;
    libc6-dev) printf '#include <stdio.h>\n' | gcc -E - >/dev/null 2>&1 ;;
    pkg-config) command -v pkg-config >/dev/null 2>&1 ;;
    binutils) command -v objcopy >/dev/null 2>&1 ;;
    libopenblas-dev) pkg-config --exists openblas 2>/dev/null ;;
    libjansson-dev) pkg-config --exists jansson 2>/dev/null ;;
    zlib1g-dev) pkg-config --exists zlib 2>/dev/null ;;
    libssl-dev) pkg-config --exists libcrypto 2>/dev/null ;;
    libpng-dev) pkg-config --exists libpng 2>/dev/null ;;
    check) pkg-config --exists check 2>/dev/null ;;
    libmpfr-dev) printf '#include <mpfr.h>\n' | gcc -E - >/dev/null 2>&1 ;;
    libomp-dev) printf '#include <omp.h>\n' | clang -fopenmp -E - >/dev/null 2>&1 ;;
    libopenmpi-dev) command -v mpicc >/dev/null 2>&1 ;;
    openmpi-bin) command -v mpirun >/dev/null 2>&1 ;;
    libclang-rt-dev) echo 'int main(void) { return 0; }' | clang -fsanitize=address,fuzzer-no-link -x c -o /dev/null - >/dev/null 2>&1 ;;
    llvm) { command -v llvm-profdata && command -v llvm-cov; } >/dev/null ;;
    python3-venv) python3 -c 'import ensurepip, venv' 2>/dev/null ;;
    esac || missing="$missing $package"
done
[ -z "$missing" ] && exit 0

echo "set-up: these packages are missing:$missing"
if [ "$(id -u)" -eq 0 ]; then
    as_root=""
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    as_root="sudo"
else
    echo "set-up: they need the administrator: apt-get install$missing" >&2
    exit 1
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "set-up: there is no apt-get here: please install them by the system's own means" >&2
    exit 1
fi

echo "set-up: installing them with apt-get"
log=$(mktemp)
if ! { $as_root apt-get update && DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    echo "set-up: apt-get failed: packages$missing" >&2
    exit 1
fi
rm -f "$log"
echo "set-up: done"

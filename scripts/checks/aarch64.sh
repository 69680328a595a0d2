#!/bin/sh
# Ordered sums on AArch64: builds with a cross-compiler, where the portable kernels become NEON code, and runs under
# qemu-user. The bits must be the recorded ones, and the kernels must give those of the plain loops.
# Debian's libraries for AArch64 are unpacked in FOLDER, not installed. Without a tool it says which, with status 69.
# usage: aarch64.sh FOLDER
set -u
mkdir -p "$1" && folder=$(cd "$1" && pwd) || exit 1
root=$folder/root
target=aarch64-linux-gnu
. "$(dirname "$0")/../needs.sh"
needs $target-gcc:gcc-$target qemu-aarch64:qemu-user apt-get:apt dpkg-deb:dpkg
[ -e /usr/$target/include/stdio.h ] || { echo 'aarch64.sh: this Debian package is missing: apt-get install libc6-dev-arm64-cross' >&2; exit 69; }

# ---- the libraries: with lists of packages of their own, so that the system's stay as they are
private_apt() {
    apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$folder/apt" \
        -o Dir::State::status="$folder/apt/status" -o Dir::Cache="$folder/apt" -o APT::Sandbox::User=root "$@"
}
if [ ! -e "$root/ready" ]; then
    mkdir -p "$folder/apt/lists/partial" "$folder/apt/archives/partial" "$root" && : >"$folder/apt/status"
    private_apt update >/dev/null && (cd "$folder/apt" &&
        private_apt download libopenblas-pthread-dev libopenblas0-pthread libgfortran5 libjansson-dev libjansson4 zlib1g-dev \
            zlib1g libssl-dev libssl3 libpng-dev libpng16-16 check \
            libsubunit-dev libsubunit0) ||
        { echo 'aarch64.sh: no packages for arm64: is there a network?' >&2; exit 69; }
    for package in "$folder"/apt/*.deb; do dpkg-deb -x "$package" "$root" || exit 1; done
    touch "$root/ready"
fi
libraries=$root/usr/lib/$target
# PKG_CONFIG_LIBDIR replaces the system's list; openblas.pc lies with the library's variant.
export PKG_CONFIG_SYSROOT_DIR="$root" PKG_CONFIG_LIBDIR="$libraries/pkgconfig:$libraries/openblas-pthread/pkgconfig"
export PKG_CONFIG_PATH=

# ---- the program that writes ordered sums, and a file of its name that runs it
build=$folder/build
mkdir -p "$build"
make -s -j"$(nproc)" BUILD="$build" CC="$target-gcc -I$root/usr/include -I$root/usr/include/$target" LD=$target-ld AR=$target-ar \
    OBJCOPY=$target-objcopy LDFLAGS="-L$libraries -L$libraries/openblas-pthread -Wl,-rpath-link,$libraries:$root/lib/$target" \
    "$build/tests/ordered_bits" "$build/tests/test_kernels_f32" "$build/tests/test_kernels_f64" || exit 1
export QEMU_LD_PREFIX=/usr/$target
export QEMU_SET_ENV="LD_LIBRARY_PATH=$libraries:$root/lib/$target:$libraries/openblas-pthread:/usr/$target/lib:$build"
emulated=$folder/emulated/tests/ordered_bits
mkdir -p "${emulated%/*}"
printf '#!/bin/sh\nexec qemu-aarch64 "%s/tests/ordered_bits" "$@"\n' "$build" >"$emulated" && chmod +x "$emulated"

failed=0
for real in f32 f64; do qemu-aarch64 "$build/tests/test_kernels_$real" || failed=1; done
BUILD=$folder/emulated tests/whole/test_ordered_bits.sh || failed=1
exit $failed

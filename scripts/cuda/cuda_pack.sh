#!/bin/sh
# Makes an archive that tests and times the CUDA kernels on a machine with a driver and nothing else: program, plug-in,
# tests of the operators, bench, goldens, and every shared library that they need, the loader and the C library too.
# On that machine:  tar xf m3ref-cuda.tar.xz && cd m3ref-cuda && scripts/cuda/cuda_test.sh operators, models, decode, bench
# usage: cuda_pack.sh BUILD       writes BUILD/m3ref-cuda.tar.xz
#        cuda_pack.sh --check ARCHIVE     starts its program in an empty root (as root): no device, status 69
set -eu
most=25000000
goldens='mtp tiny block128 mxfp8 f8block'
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
pack=$folder/m3ref-cuda

if [ "$1" = --check ]; then
    tar -C "$folder" -xf "$2"
    "$pack/build/m3ref" --version >/dev/null
    # Through a path, because the root has no /proc, which says where the program lies.
    status=0
    chroot "$pack" /lib/ld.so --library-path /lib /bin/m3ref run golden/mtp/model --ids 1 --ops /lib/libm3ref_cuda.so \
        >"$folder/said" 2>&1 || status=$?
    tail -n 1 "$folder/said"
    [ "$status" -eq 69 ] && grep -q 'no device' "$folder/said" || { echo "got status $status, expected 69"; exit 1; }
    # And as it is used, where /proc is there.
    status=0
    CUDA_VISIBLE_DEVICES='' "$pack/scripts/cuda/cuda_test.sh" operators >"$folder/said" 2>&1 || status=$?
    [ "$status" -eq 69 ] && grep -q 'no device' "$folder/said" || { cat "$folder/said"; exit 1; }
    exit 0
fi

build=$1
mkdir -p "$pack/bin" "$pack/lib" "$pack/build/tests" "$pack/scripts/cuda" "$pack/tests" "$pack/golden"
cp "$build/libm3ref_cuda.so" "$build/libm3ref_tests.so" "$pack/lib"
cp "$build/m3ref" "$build/cuda_bench" "$build"/tests/test_*_device "$pack/bin"
strip "$pack"/bin/* "$pack"/lib/*
ldd "$pack"/bin/* "$pack"/lib/* 2>/dev/null |
    sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p; s/^\t\(\/[^ ]*ld-linux[^ ]*\) .*/\1/p' |
    grep -v libm3ref | sort -u >"$folder/libraries"
while read -r library; do
    case $library in
    */ld-linux*) cp -L "$library" "$pack/lib/ld.so" ;;
    *) cp -L "$library" "$pack/lib" ;;
    esac
done <"$folder/libraries"

# The packed loader and libraries; LD_LIBRARY_PATH may lead to the driver's.
for program in "$pack"/bin/*; do
    name=$(basename "$program")
    case $name in
    test_*) wrapper=$pack/build/tests/$name up=../.. ;;
    *) wrapper=$pack/build/$name up=.. ;;
    esac
    cat >"$wrapper" <<WRAPPER
#!/bin/sh
here=\$(cd "\$(dirname "\$0")/$up" && pwd)
exec "\$here/lib/ld.so" --library-path "\$here/lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}" "\$here/bin/$name" "\$@"
WRAPPER
    chmod +x "$wrapper"
done

cp scripts/cuda/cuda_test.sh "$pack/scripts/cuda"
cp tests/run.sh "$pack/tests"
for golden in $goldens; do cp -r "golden/$golden" "$pack/golden"; done
tar -C "$folder" -c m3ref-cuda | xz -9 >"$build/m3ref-cuda.tar.xz.part"
mv "$build/m3ref-cuda.tar.xz.part" "$build/m3ref-cuda.tar.xz"
size=$(wc -c <"$build/m3ref-cuda.tar.xz")
echo "$build/m3ref-cuda.tar.xz: $size bytes, $(wc -l <"$folder/libraries") shared libraries of this machine"
[ "$size" -lt "$most" ] || { echo "expected less than $most"; exit 1; }

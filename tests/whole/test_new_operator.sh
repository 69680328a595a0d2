#!/bin/sh
# The page "To add an operator" (ref/ops/README.md): in a scratch copy an operator with its derivative is added, in no other
# files than the page names, and `m3ref op` judges a kernel of it. It takes a build of its own, in one slice of ten.
#
# Seen to fail with: a page that leaves out a file of the patch; a bound of 0; a judge that takes the kernel's values for
# the right ones.
build=${BUILD:-build}
. tests/support/verdict.sh
here=tests/whole/new_operator

# ---- the page names what the patch touches, and at most 12 files
sed -n '/^## To add an operator/,$s/^| `/`/p' ref/ops/README.md | sed 's/|.*//' | grep -o '`[A-Za-z_/]*\.[a-z]*`' | tr -d '`' |
    sed 's/NAME/softcap/' | sort -u >"$folder/page"
sed -n 's,^+++ b/,,p' $here/softcap.patch | sort >"$folder/touched"
grep -vxFf "$folder/page" "$folder/touched" >"$folder/unnamed"
verdict 'files of the patch that the page does not name' "$folder/unnamed"
count=$(wc -l <"$folder/page")
[ "$count" -gt 0 ] && [ "$count" -le 12 ] || echo "the page names $count files" >"$folder/many"
touch "$folder/many"
verdict 'files that the page names' "$folder/many"

[ "$(slice_of yes no no no no no no no no no | cut -d' ' -f1)" = yes ] || { end && exit 0; exit 1; }

# ---- a scratch copy
cp -a --parents Makefile SPEC.md ref scripts golden/documents tests/fuzz/fuzz.mk "$folder"
patch -s -p1 -d "$folder" <$here/softcap.patch >"$folder/patched" 2>&1 || echo "does not apply" >>"$folder/patched"
verdict 'the patch' "$folder/patched"
make -s -j2 -C "$folder" OPT=-O0 BUILD=made made/m3ref >"$folder/built" 2>&1 && : >"$folder/built"
verdict 'the build' "$folder/built"
m3ref=$folder/made/m3ref

for kind in right wrong; do
    ${CC:-cc} -O2 -shared -fPIC -I"$folder/ref" $([ $kind = right ] || echo -DWRONG) -o "$folder/$kind.so" \
        $here/plugin.c -lm || exit 1
    "$m3ref" op softcap --ops "$folder/$kind.so" >"$folder/out" 2>&1
    status=$?
    [ $status -eq $([ $kind = right ] && echo 0 || echo 1) ] && : >"$folder/out"
    verdict "a $kind kernel, status $status" "$folder/out"
done
for op in softcap softcap_backward; do
    "$m3ref" op $op --make "$folder/cases" >"$folder/out" 2>&1 &&
        "$m3ref" op $op --run "$folder/cases" "$folder/results" >>"$folder/out" 2>&1 &&
        "$m3ref" op $op --check "$folder/cases" "$folder/results" >>"$folder/out" 2>&1 && : >"$folder/out"
    verdict $op "$folder/out"
done
end

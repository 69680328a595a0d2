#!/bin/sh
# SPEC.md as a book: its index is what scripts/make/spec_index.tsv and the headings give and answers what readers look up, its
# links lead somewhere, its terms are used, and it stays short enough to be read. Section 7 is a guide, VERDICTS.md, and
# its details, REFERENCE.md: both have the same sections, each of the guide leads to its details, and the guide is short.
# Seen to fail with a row of the index changed, a look-up left out of spec_index.tsv, a link to a section that does not
# exist, a term that no document uses, another figure in section 4, and 100 lines more; with a link of VERDICTS.md to an
# anchor that REFERENCE.md lacks and to another section, a section that either of them lacks, a section without a link,
# and a guide of twice the length.
spec=${SPEC:-SPEC.md}
verdicts=${VERDICTS:-ref/oracle/VERDICTS.md}
reference=${REFERENCE:-ref/oracle/REFERENCE.md}
. tests/support/verdict.sh

awk -f scripts/make/spec_index.awk scripts/make/spec_index.tsv "$spec" "$verdicts" >"$folder/index" 2>"$folder/findings"
sed -n '/^## 18\. Index/,$p' "$spec" | grep '^|' | diff - "$folder/index" >>"$folder/findings"
[ ! -s "$folder/findings" ] || echo 'make index writes it anew' >>"$folder/findings"
verdict 'index' "$folder/findings"

while read -r word; do
    grep -v '^#' scripts/make/spec_index.tsv | cut -f 1 | grep -qi "$word" || echo "no entry for $word"
done >"$folder/findings" <<'END'
RoPE angle
top-k
tie rule
MXFP8 scale decoding
MTP hand-over
clamp of SwiGLU
projector merge
bicubic coefficients
aux-loss-free bias
bound of softmax
pooling of scores
ue8m0
temperature
GQA
RoPE base
END
verdict 'look-ups' "$folder/findings"

anchors_of() { grep '^#' "$1" | sed 's/^#* //' | tr 'A-Z' 'a-z' | tr -cd 'a-z0-9 _\n-' | tr ' ' '-'; }
for file in "$spec" "$verdicts"; do
    anchors_of "$file" | sed "s,^,$file#,"
done | sort >"$folder/anchors"
grep -o '](#[^)]*)' "$spec" | sed "s,^](,$spec,; s,)$,," >"$folder/links"
grep -o "]($verdicts#[^)]*)" "$spec" | sed 's,^](,,; s,)$,,' >>"$folder/links"
sort -u "$folder/links" | comm -23 - "$folder/anchors" >"$folder/findings"
grep -o '](\([^)#]*\))' "$spec" | sed 's,^](,,; s,)$,,' | sort -u | while read -r file; do
    [ -e "$file" ] || echo "no file $file"
done >>"$folder/findings"
[ -s "$folder/links" ] || echo 'no links' >>"$folder/findings"
verdict 'links' "$folder/findings"

sed -n '/^## 17\. /,/^## 18\. /p' "$spec" | sed -n 's/^| \([a-z][^|]*\) | .*/\1/p' | grep -vx term >"$folder/terms"
sed '/^## 17\. /,/^## 18\. /d' "$spec" | cat - "$verdicts" "$reference" README.md >"$folder/books"
tr ',' '\n' <"$folder/terms" | sed 's/^ *//' | while read -r term; do
    grep -qiwF -- "$term" "$folder/books" || echo "nothing uses the term $term"
done >"$folder/findings"
for term in tap dump golden case companion reading plug-in place; do
    grep -q "^$term\b" "$folder/terms" || echo "no entry for $term"
done >>"$folder/findings"
verdict 'terms' "$folder/findings"

# Each section 7.x of the guide ends with a link to the section of REFERENCE.md that has its number.
sections() { sed -n 's/^##* \(7[.0-9]*\)\.* .*/\1/p' "$1" | sed 's/\.$//'; }
sections "$verdicts" >"$folder/guide"
sections "$reference" | diff "$folder/guide" - >"$folder/findings"
sed -n 's/.*\[REFERENCE\.md, \(7[.0-9]*\)\](REFERENCE\.md#\([^)]*\)).*/\1 \2/p' "$verdicts" >"$folder/details"
cut -d ' ' -f 1 "$folder/details" | diff "$folder/guide" - >>"$folder/findings"
anchors_of "$reference" >"$folder/anchors"
while read -r number anchor; do
    grep -qx -- "$anchor" "$folder/anchors" || echo "$reference has no heading #$anchor"
    case $anchor in "$(echo "$number" | tr -d .)"-*) ;; *) echo "$number links to #$anchor" ;; esac
done <"$folder/details" >>"$folder/findings"
[ -s "$folder/guide" ] || echo 'no sections' >>"$folder/findings"
verdict 'guide and details' "$folder/findings"

wc -w <"$verdicts" | awk '$1 > 9000 { print $1 " words, expected at most 9000" }' >"$folder/findings"
verdict 'length of the guide' "$folder/findings"

# Section 4, vision_boundary: the figure is the distance between two goldens.
vision=golden/vision
figure=$("${BUILD:-build}/m3ref" compare $vision/two.safetensors.gz $vision/two_none.safetensors.gz --force \
    --taps projector.out --json | grep -o '"rel_l2":[0-9.]*' | awk -F : '{ printf "%.2f", $2 }')
tr '\n' ' ' <"$spec" | tr -s ' ' | grep -q "\`projector.out\` differs by $figure in relative L2" ||
    echo "the goldens differ by $figure" >"$folder/figure"
touch "$folder/figure"
verdict 'vision_boundary' "$folder/figure"

wc -l <"$spec" | awk '$1 > 2200 { print $1 " lines, expected at most 2200" }' >"$folder/findings"
verdict 'length' "$folder/findings"

end

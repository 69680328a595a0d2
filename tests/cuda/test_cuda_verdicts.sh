#!/bin/sh
# Goal:  scripts/cuda/cuda_test.sh counts exit status 2 of compare as a failure, partial like suspect, and prints the line
#        that says why.
# Given: a program in place of m3ref whose comparisons all end so.
# Seen to fail with status 2 passed on as 0.
. tests/support/verdict.sh
mkdir "$folder/build"

# fake LINE LAST: a program whose comparisons print the two lines and end with status 2
fake() {
    cat >"$folder/build/m3ref" <<PROGRAM
#!/bin/sh
case \$1 in
compare) printf '%s\n' '$1' '$2'; exit 2 ;;
run) while [ \$# -gt 1 ]; do [ "\$1" = --dump ] && : >"\$2"; shift; done ;;
esac
PROGRAM
    chmod +x "$folder/build/m3ref"
    OPS=fake BUILD=$folder/build scripts/cuda/cuda_test.sh models >"$folder/out" 2>&1
    status=$?
}

fake 'not judged      layers.0.mid   its inputs are missing' 'partial  1 of 2 stages judged, 1 not judged'
{
    [ "$status" -eq 1 ] || echo "status: got $status, expected 1"
    grep -q '^FAIL  tiny, fp32, golden: partial  1 of 2' "$folder/out" || cat "$folder/out"
    grep -q '^not judged      layers.0.mid' "$folder/out" || echo 'the stage that was not judged is not printed'
} >"$folder/partial"
verdict partial "$folder/partial"

fake 'suspect         layers.0.mid   1e-3' 'suspect  2 of 2 stages judged, 1 suspect'
{
    [ "$status" -eq 1 ] || echo "status: got $status, expected 1"
    grep -q '^FAIL  tiny, bf16, bounds: suspect  2 of 2' "$folder/out" || cat "$folder/out"
    grep -q '^suspect         layers.0.mid' "$folder/out" || echo 'the suspect stage is not printed'
} >"$folder/suspect"
verdict suspect "$folder/suspect"
end

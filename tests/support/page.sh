# Source this after verdict.sh. page FILE LEAST: the output that a page of documentation shows for each command is what
# the program prints now (page.awk says which commands are run); at least LEAST outputs are recomputed.
# A finding names the line of the page where the command is, after the second @@. Blanks at the end of a line do not count.
# The commands run in a folder of their own, whose build/ has the program and receives the files that they write.
root=$(pwd)
build=${BUILD:-build}
mkdir "$folder/root" "$folder/root/build"
ln -s "$root/golden" "$root/tests" "$root/scripts" "$root/ref" "$root/README.md" "$folder/root/"
case $build in /*) ;; *) build=$root/$build ;; esac
ln -s "$build/m3ref" "$folder/root/build/m3ref"
environment=${PYTHON_ENVIRONMENT:-build/python}
case $environment in /*) ;; *) environment=$root/$environment ;; esac
if [ -x "$environment/bin/python" ]; then
    ln -s "$environment" "$folder/root/build/python"
    python=1
else
    echo 'skipped: programs in Python: there is no build/python, which make test makes'
    python=0
fi

page() {
    counts=$(awk -v python=$python -v script="$folder/script" -v expected="$folder/expected" -f tests/support/page.awk "$1")
    : >"$folder/findings"
    [ "${counts#* }" -ge "$2" ] || echo "${counts#* } outputs are recomputed, not $2" >"$folder/findings"
    verdict "${1##*/}" "$folder/findings"
    (cd "$folder/root" && sh "$folder/script") >"$folder/actual" 2>&1
    diff -Z -U 0 -F '^@@ ' "$folder/expected" "$folder/actual" >"$folder/differences" 2>&1
    if [ $? -le 1 ]; then sed 1,2d "$folder/differences"; else cat "$folder/differences"; fi >"$folder/findings"
    verdict "${1##*/}" "$folder/findings"
    [ "${counts#* }" -eq "${counts% *}" ] ||
        echo "$1: ${counts#* } of ${counts% *} outputs recomputed; the others need another program than m3ref"
}

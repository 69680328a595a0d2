#!/bin/sh
# The Python package (scripts/python): one command installs it into a fresh virtual environment with NumPy alone,
# without the network, and its own tests pass there; they pass again beside PyTorch, if `make golden` has set that up.
#
# Seen to fail with no virtual environment. The tests say themselves what each was seen to fail with.
build=${BUILD:-build}
environment=${PYTHON_ENVIRONMENT:-build/python}
. tests/support/verdict.sh
unset PYTHONPATH
export M3REF_GOLDEN="$PWD/golden" PIP_NO_INDEX=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1
export M3REF_BUILD="$(cd "$build" && pwd)" OMP_NUM_THREADS=2
tested=0

# A library built with sanitizers wants theirs to be loaded first. Python itself frees little at its end.
if nm -D "$build/libm3ref.so" | grep -q __asan_; then
    preload="$(${CC:-cc} -print-file-name=libasan.so) $(${CC:-cc} -print-file-name=libubsan.so)"
    export ASAN_OPTIONS=detect_leaks=0
fi

# count WHERE FILE: adds the counts of a run of pytest to the script's.
count() {
    last=$(tail -n 1 "$2")
    good=$(printf '%s\n' "$last" | sed -n 's/.*\b\([0-9][0-9]*\) passed.*/\1/p')
    bad=$(printf '%s\n' "$last" | grep -oE '[0-9]+ (failed|errors?)' | awk '{ n += $1 } END { print n + 0 }')
    [ -n "$good" ] || [ "$bad" -gt 0 ] || bad=1
    [ "$bad" -eq 0 ] || tail -n 40 "$2" | sed "s/^/$1: /"
    passed=$((passed + ${good:-0}))
    failed=$((failed + bad))
    tested=$((tested + ${good:-0}))
}

# pytest_in WHERE PYTHON FOLDERS: runs the tests with the modules of `folders` behind those of the environment.
pytest_in() {
    LD_PRELOAD=${preload:-} "$2" -c 'import sys; sys.path += sys.argv[1].split(":"); import pytest
sys.exit(pytest.main(sys.argv[2:]))' "$3" -q -p no:cacheprovider --tb=short scripts/python/tests >"$folder/lines" 2>&1
    count "$1" "$folder/lines"
}

# ---- NumPy alone: a fresh environment that sees the NumPy and pytest of the one that set-up made
case $environment in /*) ;; *) environment=$PWD/$environment ;; esac
modules=$(ls -d "$environment"/lib/python3*/site-packages 2>/dev/null)
python3 -m venv --without-pip "$folder/fresh" >"$folder/findings" 2>&1 && : >"$folder/findings"
[ -d "$modules" ] || echo "$environment: got no such folder, expected the one that make test makes" >>"$folder/findings"
verdict 'environment' "$folder/findings"
own=$(ls -d "$folder"/fresh/lib/python3*/site-packages)
echo "$modules" >"$own/modules.pth"
"$environment/bin/python" -m pip --python "$folder/fresh/bin/python" install ./scripts/python >"$folder/pip" 2>&1 || tail -n 5 "$folder/pip" >"$folder/findings"
[ -x "$own/m3ref/m3ref" ] && [ -s "$own/m3ref/libm3ref.so" ] || echo 'no program or library' >>"$folder/findings"
find scripts/python -name '*.egg-info' -o -name '*.whl' -o -name build >>"$folder/findings"
verdict 'installation' "$folder/findings"
pytest_in 'NumPy alone' "$folder/fresh/bin/python" ''

# ---- beside PyTorch: the same installed package, and pytest, after the modules of that environment
if [ -x build/venv/bin/python ]; then
    mkdir "$folder/package"
    cp -r "$own"/m3ref "$own"/m3ref-*.dist-info "$folder/package"
    pytest_in 'PyTorch' build/venv/bin/python "$folder/package:$modules"
    echo "beside PyTorch: ${good:-0} tests"
else
    echo 'skipped: beside PyTorch: there is no build/venv, which `make golden-check` makes'
fi

# ---- formulas of SPEC.md are in C only; the package moves bytes. proposal.py measures how far tensors are apart.
formulas='np\.(dot|matmul|exp|log|sqrt|sum|mean|einsum|linalg)|[a-z)] @ [a-z(]'
grep -nE "$formulas" scripts/python/m3ref/*.py | grep -v '^scripts/python/m3ref/proposal.py:' >"$folder/findings"
verdict 'arithmetic in Python' "$folder/findings"

# ---- the library shows what library.h declares, and no name that is not ours
nm -D --defined-only "$build/libm3ref.so" | grep -v ' A M3REF_' | sed 's/.* //; s/@.*//' | sort >"$folder/shown"
grep -v '^m3_' "$folder/shown" >"$folder/findings"
sed -n 's/^[a-z].*[ *]\(m3_library_[a-z]*\)(.*/\1/p' ref/library/library.h | sort >"$folder/declared"
[ "$(wc -l <"$folder/declared")" -ge 9 ] || echo 'library.h: got fewer than 9 functions' >>"$folder/findings"
comm -13 "$folder/shown" "$folder/declared" >>"$folder/findings"
verdict 'names of libm3ref.so' "$folder/findings"
[ "$tested" -ge 60 ] || echo "got $tested tests, expected 60 or more" >"$folder/findings"
verdict 'tests' "$folder/findings"
end

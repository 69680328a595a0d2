#!/bin/sh
# scripts/gguf_model.py: tests/python/gguf_model_test.py says what each test was seen to fail with.
build=${BUILD:-build}
. tests/support/verdict.sh
environment=${PYTHON_ENVIRONMENT:-build/python}
export M3REF_BUILD="$(cd "$build" && pwd)" OMP_NUM_THREADS=2 PYTHONDONTWRITEBYTECODE=1
"$environment/bin/python" -m pytest -q -p no:cacheprovider --tb=short tests/python/gguf_model_test.py \
    >"$folder/lines" 2>&1
last=$(tail -n 1 "$folder/lines")
good=$(printf '%s\n' "$last" | sed -n 's/.*\b\([0-9][0-9]*\) passed.*/\1/p')
bad=$(printf '%s\n' "$last" | grep -oE '[0-9]+ (failed|errors?)' | awk '{ n += $1 } END { print n + 0 }')
[ -n "$good" ] || [ "$bad" -gt 0 ] || bad=1
[ "$bad" -eq 0 ] || tail -n 40 "$folder/lines"
passed=$((passed + ${good:-0}))
failed=$((failed + bad))
end

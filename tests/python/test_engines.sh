#!/bin/sh
# The adapters of public engines (scripts/engines), as far as no engine is needed.
#
# Seen to fail with no virtual environment. The tests say themselves what each was seen to fail with.
environment=${PYTHON_ENVIRONMENT:-build/python}
. tests/support/verdict.sh
unset PYTHONPATH
PYTHONDONTWRITEBYTECODE=1 "$environment/bin/python" -m pytest -q -p no:cacheprovider --tb=short scripts/engines/tests \
    >"$folder/lines" 2>&1
status=$?
passed=$(sed -n '$s/.*\b\([0-9][0-9]*\) passed.*/\1/p' "$folder/lines")
passed=${passed:-0}
[ "$status" -eq 0 ] && [ "$passed" -ge 15 ] || { tail -n 40 "$folder/lines"; failed=1; }
end

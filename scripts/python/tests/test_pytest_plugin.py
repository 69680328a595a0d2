"""The decorator: one test of pytest for each case, failing with the verdict's words and no traceback."""
import importlib.metadata
import pathlib
import subprocess
import sys

import m3ref

TESTS = '''
import m3ref
import formulas

@m3ref.cases("rms_norm", count=1)
def test_right(case):
    return formulas.rms_norm(**case.inputs, **case.params)

@m3ref.cases("rms_norm", count=1)
def test_wrong(case, tmp_path):
    return formulas.rms_norm_without_one(**case.inputs, **case.params)

class TestClass:
    @m3ref.cases("route", profile="bf16")
    def test_verdict(self, case):
        return case.check(formulas.route(**case.inputs, **case.params), profile="fp32")
'''


# Seen to fail with a decorator that drops the results; with the entry point removed, which shows tracebacks.
def test_decorator(tmp_path):
    (tmp_path / "test_kernel.py").write_text(TESTS)
    here = pathlib.Path(__file__).parent
    # The plug-in is found through the installed package; run from a source tree it is named.
    installed = any(point.value == "m3ref.pytest_plugin" for package in importlib.metadata.distributions()
                    for point in package.entry_points)
    named = [] if installed else ["-p", "m3ref.pytest_plugin"]
    code = f"import sys; sys.path[:] = {[str(here)] + sys.path!r}; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", code, "-p", "no:cacheprovider", *named, str(tmp_path)], cwd=tmp_path,
                          capture_output=True, text=True)
    wrong = len([case for case in m3ref.cases("rms_norm", count=1) if case.catches])
    assert done.returncode == 1 and wrong > 3, done.stdout + done.stderr
    assert f"{wrong} failed" in done.stdout.splitlines()[-1]
    assert "looks like norm.no_plus_one" in done.stdout and "test_wrong[2-weights-of-0" in done.stdout
    assert "VerdictError" not in done.stdout and "Traceback" not in done.stdout

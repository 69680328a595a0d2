"""pytest: a test that ends with a verdict shows its words and nothing else."""
import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    # By name, so that pytest does not load the library in sessions that do not use it.
    if call.excinfo is not None and call.excinfo.type.__name__ == "VerdictError" and report.failed:
        report.longrepr = str(call.excinfo.value)

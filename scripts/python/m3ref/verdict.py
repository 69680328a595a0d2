"""Verdicts on results and on dumps."""
import json
import os

from . import _library as c
from .tensors import file_of


class VerdictError(AssertionError):
    """The words of a verdict that is not a pass."""


class Verdict:
    """`verdict`: "pass", "partial", "suspect", "fail" or "not_comparable"; `stages`: one dict per output or tap;
    `summary`; `status`: the exit status that the program would have. str() is what the program prints. True only for a
    pass."""

    def __init__(self, status, lines, text, about=""):
        objects = [json.loads(line) for line in lines.splitlines()]
        self.status = status
        self.stages = [o for o in objects if o["type"] in ("stage", "selection")]
        self.summary = next(o for o in objects if o["type"] == "summary")
        self.verdict = self.summary["verdict"]
        self.text = about + text.rstrip("\n")

    def __str__(self):
        return self.text

    def __repr__(self):
        return f"<Verdict {self.verdict}: {self.text.splitlines()[-1] if self.text else ''}>"

    def __bool__(self):
        return self.status == 0

    def require(self):
        """Raises VerdictError, an AssertionError with the verdict's own words, unless the verdict is a pass."""
        __tracebackhide__ = True
        if not self:
            raise VerdictError(str(self))
        return self


def compare(reference, candidate, profile="fp32", *, map=None, taps=None, companions=None, force=False):
    """Compares two dumps, each a path or arrays by name, as `m3ref compare` does."""
    paths = [file_of(source) for source in (reference, candidate)]
    beside = file_of(companions) if companions is not None else (None, None)
    task = c.Compare(c.text(paths[0][0]), c.text(paths[1][0]), c.text(os.fspath(profile)), c.text(beside[0]),
                     c.text(map), c.text(taps), bool(force))
    return Verdict(*c.report(c.lib.m3_library_compare, task))

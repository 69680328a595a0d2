"""Runs your function on the cases of an operator.

    PYTHONPATH=scripts/python python3 ref/tutorial/exercise.py MINE.py NAME CASES RESULTS

CASES is what `m3ref op NAME --make CASES` wrote; RESULTS is for `m3ref op NAME --check CASES RESULTS`. MINE.py defines
a function NAME. It receives the operands and parameters of `m3ref op --list` by name, as far as it has parameters for
them; codes and scales of 8 bits arrive as bytes. It returns the output, or several outputs in their order, or a dict.
"""

import inspect
import runpy
import sys

import m3ref
import numpy as np

OUTPUTS = {"route": ("ids", "p"), "block_scores": ("m",), "select_blocks": ("ids",), "attend_full": ("lse", "o"),
           "experts": ("routed",), "rope_table_3d": ("cos", "sin")}


def main():
    if len(sys.argv) != 5:
        raise SystemExit(__doc__)
    path, name, cases, to = sys.argv[1:]
    function = runpy.run_path(path)[name]
    taken = inspect.signature(function).parameters
    results = {}
    for case in m3ref.open_cases(cases):
        operands = {key: value for key, value in {**case.inputs, **case.params}.items() if key in taken}
        for key, value in operands.items():
            if getattr(value, "nbytes", 0) and value.itemsize == 1:
                operands[key] = value.view(np.ndarray).view(np.uint8)        # codes and ue8m0 scales: their bytes
        got = function(**operands)
        if not isinstance(got, (dict, tuple)):
            got = (got,)
        if not isinstance(got, dict):
            got = dict(zip(OUTPUTS.get(name, ("y",)), got))
        results.update({f"{case.case}.{output}": array for output, array in got.items()})
    m3ref.save(to, results)


if __name__ == "__main__":
    main()

"""m3ref: a reference of MiniMax-M3, one operator at a time or as a whole model, and a judge for other implementations.

    for case in m3ref.cases("attend_blocks", sizes="real"):
        case.check(my_kernel(**case.inputs, **case.params), profile="bf16").require()

Arrays are NumPy's; torch tensors of any device and dtype are accepted wherever an array is. Everything is computed in
libm3ref.so.
"""
from ._library import Error, program
from .capture import capture
from .model import run
from .proposal import propose_map
from .operators import CaseSet, cases, cases_from, op, open_cases, operators
from .tensors import Dump, Stored, load, save, to_torch
from .verdict import Verdict, VerdictError, compare

__all__ = ["CaseSet", "Dump", "Error", "Stored", "Verdict", "VerdictError", "capture", "cases", "cases_from", "compare",
           "load", "op", "open_cases", "operators", "program", "propose_map", "run", "save", "to_torch"]

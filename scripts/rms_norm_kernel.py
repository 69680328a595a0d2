"""A kernel author's program: RMSNorm in NumPy, run on a file of cases.

    PYTHONPATH=scripts/python build/python/bin/python scripts/rms_norm_kernel.py CASES RESULTS [--forget-one]

CASES is what `m3ref op rms_norm --make CASES` wrote; RESULTS is for `m3ref op rms_norm --check CASES RESULTS`. With
--forget-one it makes the mistake that several engines made: the stored weight is an offset from 1. The package m3ref
only reads and writes the files here.
"""

import sys

import m3ref
import numpy as np


def rms_norm(x, w, eps, forget_one):
    scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps))
    return x * scale * (w if forget_one else 1 + w)


def main():
    paths = [word for word in sys.argv[1:] if not word.startswith("--")]
    if len(paths) != 2:
        raise SystemExit(__doc__)
    results = {}
    for case in m3ref.open_cases(paths[0]):
        results[f"{case.case}.y"] = rms_norm(**case.inputs, **case.params, forget_one="--forget-one" in sys.argv)
    m3ref.save(paths[1], results)


if __name__ == "__main__":
    main()

"""The committed cases of single operators: operands, parameters, sizes, and what the reference gives in double."""

import json
import os
import subprocess

import numpy as np
from tensors import Stored, load


def numbers(array):
    """Numbers as doubles, ids as integers. Codes of 8 bits stay codes."""
    if isinstance(array, Stored):
        return array.bits() if array.format.startswith("F8") else array.float32().astype(float)
    if array.dtype.itemsize == 1 and array.dtype.kind not in "biu":
        return array.view(np.uint8)
    return array.astype(float) if array.dtype.kind == "f" else array


def sizes(shape, letters):
    """{letter: size} of an array; a letter may have a factor before it, and _ is a size without a letter."""
    found, at = {}, 0
    for size in shape:
        digits = ""
        while at < len(letters) and letters[at].isdigit():
            digits, at = digits + letters[at], at + 1
        if at < len(letters) and letters[at].isalpha():
            found[letters[at]] = size // int(digits or 1)
        at += not digits or (at < len(letters) and letters[at].isalpha())
    return found


def operators(program):
    done = subprocess.run([program, "op", "--list", "--json"], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def value_of(parameter):
    """Parameters such as init_blocks are words that hold a number."""
    return int(parameter) if isinstance(parameter, str) and parameter.lstrip("-").isdigit() else parameter


def cases_of(program, operator, folder):
    """[(id, values by name)] of an operator, tiny, seed 1, F32: the cases of golden/op/cases.sha256."""
    name = operator["name"]
    paths = [os.path.join(folder, f"{name}.{kind}") for kind in ("cases", "results")]
    subprocess.run([program, "op", name, "--make", paths[0]], check=True, capture_output=True)
    subprocess.run([program, "op", name, "--run", *paths, "--precision", "f64"], check=True, capture_output=True)
    operands, results = load(paths[0]), load(paths[1])
    found = []
    for case in json.loads(operands.metadata["cases"]):
        values = {key: value_of(value) for key, value in case["params"].items()}
        values["exact"] = case["exact"]
        letters = {}
        for row, arrays in [(r, operands) for r in operator["operands"]] + [(r, results) for r in operator["outputs"]]:
            array = arrays.get(f"{case['case']}.{row['name']}")
            values[row["name"]] = None if array is None else numbers(array)
            if array is not None:
                letters.update(sizes(array.shape, row["shape"]))
        found.append((f"{name}.{case['case']}", {**letters, **values}))
    return found

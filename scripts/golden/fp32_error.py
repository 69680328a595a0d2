"""The error of fp32: the public code in fp32, over several orders of summation, against the fp64 truth.

Each order runs twice: with the tables of the public code (angles in fp32) and with tables from fp64 angles. A golden
records the worst of the first kind as `<tap>.f32_rel_l2`, `.f32_max`, of the second as `.f32_angle64_rel_l2`, `_max`.
"""

import contextlib
import warnings
from dataclasses import dataclass

import numpy as np
import torch

import formulas
import truth

warnings.filterwarnings("ignore", message="TF32 acceleration")       # torch says so whenever mkldnn flags are set


@dataclass
class Order:
    attention: str
    experts: str
    threads: int
    linear: str
    mkldnn: bool


ORDERS = [
    Order("sdpa", "eager", 1, "native", True),
    Order("eager", "batched_mm", 2, "native", True),
    Order("eager", "eager", 2, "reversed", False),
    Order("sdpa", "batched_mm", 1, "interleaved", False),
    Order("eager", "eager", 1, "one by one", True),
]


def reordered_linear(linear, order):
    """A stand-in for torch.nn.functional.linear that adds the products in another order."""
    def apply(x, weight, bias=None):
        columns = weight.shape[1]
        if order == "one by one":
            total = torch.zeros(*x.shape[:-1], weight.shape[0], dtype=x.dtype)
            for k in range(columns):
                total += x[..., k, None] * weight[:, k]
            return total if bias is None else total + bias
        index = torch.arange(columns).flip(0) if order == "reversed" else \
            torch.cat([torch.arange(start, columns, 7) for start in range(7)])
        return linear(x[..., index], weight[:, index], bias)
    return apply


@contextlib.contextmanager
def summation(order):
    threads, linear = torch.get_num_threads(), torch.nn.functional.linear
    torch.set_num_threads(order.threads)
    if order.linear != "native":
        torch.nn.functional.linear = reordered_linear(linear, order.linear)
    try:
        with torch.backends.mkldnn.flags(enabled=order.mkldnn):
            yield
    finally:
        torch.nn.functional.linear = linear
        torch.set_num_threads(threads)


def fp32_models(folder):
    """Yields ("f32" or "f32_angle64", order, model) of every order."""
    for order in ORDERS:
        for kind in ("f32", "f32_angle64"):
            model = truth.load(folder, torch.float32, order.attention, order.experts)
            if kind == "f32_angle64":
                truth.fp64_angles(model)
            yield kind, order, model


def fp32_runs(folder, input_ids, rows):
    """Yields ("f32" or "f32_angle64", taps at `rows`) of every order."""
    for kind, order, model in fp32_models(folder):
        with summation(order):
            taps, _ = truth.run(model, input_ids)
        yield kind, {name: value[rows] for name, value in taps.items()}


class Fp32Error:
    """Worst errors per tap, and the largest absolute error of the scores of every selection."""

    def __init__(self):
        self.worst, self.absolute, self.flips, self.runs = {}, {}, [], []

    def add(self, kind, got, want):
        self.runs.append((kind, got))
        for name, reference in want.items():
            if reference.dtype == np.int32:
                if not np.array_equal(got[name], reference):
                    self.flips.append(f"{name} ({kind})")
                continue
            for measure, error in (("rel_l2", formulas.relative_l2), ("max", formulas.relative_max)):
                self.raise_to(f"{name}.{kind}_{measure}", error(got[name], reference))
            finite = np.isfinite(reference)
            error = float(np.abs(got[name][finite] - reference[finite]).max())
            self.absolute[name] = max(self.absolute.get(name, 0.0), error)

    def raise_to(self, key, value):
        if not np.isfinite(value):
            raise ValueError(f"{key}: fp32 is not comparable with fp64")
        self.worst[key] = max(self.worst.get(key, 0.0), float(value))

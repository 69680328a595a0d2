"""The checks that a case must pass before it is written, and the metadata of every golden."""

import platform

import numpy as np
import torch
import transformers

import files
import fp32_error

FP64_LIMIT = 1e-14
MARGIN = 20
VERSIONS = {"python": platform.python_version(), "torch": torch.__version__.split("+")[0],
            "transformers": transformers.__version__, "numpy": np.__version__}
PRODUCER = "transformers {transformers}, torch {torch}, numpy {numpy}".format(**VERSIONS)


class Refused(Exception):
    pass


def demand_fp64(check, taps):
    """Refuses taps without a formula, and taps that differ from their formula; ids are compared by Check."""
    unchecked = set(taps) - set(check.errors) - {name for name in taps if taps[name].dtype == np.int32}
    if unchecked:
        raise Refused(f"no formula for {sorted(unchecked)}")
    bad = {name: error for name, error in check.errors.items() if not error <= FP64_LIMIT}
    if bad:
        raise Refused("not fp64: " + ", ".join(f"{name} {error:.1e}" for name, error in sorted(bad.items())))


def exercise(check):
    """Refuses a case without gates and ups beyond the clamp."""
    for wanted in ("gate>7", "|up|>7"):
        total = sum(value for name, value in check.counts.items() if name.endswith(wanted))
        if total == 0:
            raise Refused(f"no element with {wanted}")


def measure(runs, taps, rows=None):
    """The errors of fp32 runs [(kind, taps)] against fp64 taps; `rows` picks those that the golden holds."""
    ruler = fp32_error.Fp32Error()
    want = taps if rows is None else {name: value[rows] for name, value in taps.items()}
    for kind, got in runs:
        ruler.add(kind, got, want)
    return ruler


def judge_margins(check, ruler, rows):
    """{tap.margin: least margin}; refuses flips and margins that fp32 could bridge."""
    if ruler.flips:
        raise Refused("fp32 selects otherwise at " + ", ".join(ruler.flips))
    margins = {}
    for name, values in check.margins.items():
        scores = name.removesuffix(".order")
        scores = scores.replace("index.blocks", "index.block_scores").replace("moe.experts", "moe.choice")
        least, error = float(values[rows].min()), ruler.absolute[scores]
        if not least >= MARGIN * error:
            raise Refused(f"{name}: margin {least:.2e} is below {MARGIN} x {error:.2e}")
        tap, order, _ = name.partition(".order")
        margins[tap + (".order_margin" if order else ".margin")] = least
        margins[tap + ".score_error"] = error
    return margins


def companions(check, taps, rows=slice(None)):
    """What a dump holds beside the chosen ids among these taps: {tap.margin: [T] or [T,G], tap.bias: [E] float32}."""
    found = {tap + ".margin": values[rows] for tap, values in check.margins.items() if tap in taps}
    for tap, bias in check.biases.items():
        if tap in taps:
            found[tap + ".bias"] = bias.astype(np.float32)
            if not np.array_equal(found[tap + ".bias"], bias):
                raise Refused(f"{tap}.bias is not exact in float32")
    return found


def number(value):
    return f"{value:.3e}" if np.isfinite(value) else "inf"


def metadata(name, model_folder, inputs, numbers, semantics="{}"):
    """name: the case as make.py takes it; inputs: the integers that are hashed."""
    return {"format": "m3ref-dump", "format_version": "1", "producer": PRODUCER + ", pure fp64", "precision": "f64",
            "command": f"python scripts/golden/make.py {name}", "semantics": semantics,
            "model_sha256": files.model_sha256(model_folder),
            "case_sha256": files.case_sha256(inputs)} | {key: number(value) for key, value in numbers.items()}

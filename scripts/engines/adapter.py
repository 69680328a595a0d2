"""What all adapters share: their command line, the case, the dump.

An adapter is a file of this folder with a function `run(model, case, dump, options)`: it loads the model directory into
its engine, feeds the case, and gives what its hooks see to `dump` under the names of SPEC.md 6. dump.py starts it.
"""

import argparse
import json
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden"))
import files  # noqa: E402


class Case:
    """The inputs of one sequence; ids [T] as int64, pictures as in the file. With `several`, those of several:
    `sequences` has the ids of each, and `ids` all of them."""

    def __init__(self, path, several=False):
        self.arrays, _ = files.read(path)
        self.path, ids = path, self.arrays["input_ids"].astype(np.int64)
        self.sequences = sequences(self.arrays, ids)
        self.ids = np.concatenate(self.sequences)
        positions = self.arrays.get("position_ids")
        if len(self.sequences) > 1 and not several:
            raise SystemExit(f"{path}: got {len(self.sequences)} sequences, expected one")
        if "attention_mask" in self.arrays and ids.ndim == 1 or \
                positions is not None and (positions.reshape(-1) != np.arange(len(self.ids))).any():
            raise SystemExit(f"{path}: got position_ids or an attention_mask, expected positions from 0 and no mask")

    def chunks(self, size):
        """The ids in parts of `size`; 0: in one part."""
        size = size or len(self.ids)
        return [self.ids[start:start + size] for start in range(0, len(self.ids), size)]


def sequences(arrays, ids):
    """The ids of each sequence, without padding."""
    if "cu_seqlens" in arrays:
        starts = arrays["cu_seqlens"].tolist()
        return [ids[start:end] for start, end in zip(starts, starts[1:])]
    lines = ids.reshape(-1, ids.shape[-1])
    mask = arrays.get("attention_mask")
    if mask is None or mask.ndim == 1:
        return list(lines)
    return [line[seen != 0] for line, seen in zip(lines, mask.reshape(lines.shape))]


class Dump:
    """Taps by name. Rows of several calls follow each other; bfloat16 is kept as its bits."""

    def __init__(self):
        self.parts, self.rows = {}, []

    def add_rows(self, rows):
        """The sequence and the position of each row of a call, if calls mix sequences: the dump gets them in order."""
        self.rows += rows

    def save(self, tap, array, dtype=None):
        """array: NumPy, the first axis being rows; dtype: "BF16" if it holds the bits of bfloat16."""
        if array.dtype.kind in "iu" and not dtype:
            array = array.astype(np.int32)
        self.parts.setdefault(tap, []).append((dtype, np.ascontiguousarray(array)))

    def tensors(self, rows):
        """{tap: stored tensor}. A tap is left out if it lacks rows because some call did not compute it."""
        found = {}
        order = sorted(range(len(self.rows)), key=self.rows.__getitem__)
        for tap, parts in self.parts.items():
            arrays = widened([array for _, array in parts])
            whole = np.concatenate(arrays) if len(arrays) > 1 else arrays[0]
            if order and len(whole) == rows:
                whole = whole[order]
            if tap.startswith(("vision.", "projector.", "mtp.")) or len(whole) == rows:
                dtype = parts[0][0]
                found[tap] = (dtype, whole.shape, whole.tobytes()) if dtype else files.from_array(whole)
        return found


def widened(arrays):
    """Block scores and lists of later calls are wider: earlier ones end in -inf or -1."""
    width = max(array.shape[-1] for array in arrays)
    missing = -1 if arrays[0].dtype.kind == "i" else -np.inf
    return [array if array.shape[-1] == width else np.concatenate(
        [array, np.full((*array.shape[:-1], width - array.shape[-1]), missing, array.dtype)], axis=-1)
        for array in arrays]


def read_config(model):
    with open(os.path.join(model, "config.json")) as file:
        return json.load(file)


def visible_blocks(first, rows, heads, block, width):
    """The lists [rows,heads,width] of a call that makes none, because all blocks fit: those that each row sees. The
    first row has position `first`."""
    own = (first + np.arange(rows))[:, None] // block
    lists = np.where(np.arange(width) <= own, np.arange(width), -1).astype(np.int32)
    return np.repeat(lists[:, None], heads, axis=1)


def parsed(words, engines):
    parser = argparse.ArgumentParser(prog="dump.py", description="Runs a public engine and writes its taps.")
    parser.add_argument("engine", choices=engines)
    parser.add_argument("model", help="model directory")
    parser.add_argument("case", help="safetensors file of inputs")
    parser.add_argument("out", help="the dump to write")
    parser.add_argument("--dtype", choices=("f32", "bf16", "f16", "q8_0"), default="f32",
                        help="number type of weights and activations")
    parser.add_argument("--chunk", type=int, default=0, help="feed so many tokens at a time through the engine's cache")
    parser.add_argument("--decode", type=int, default=0, metavar="N",
                        help="feed the last N tokens of each sequence one at a time, as an engine does that serves")
    parser.add_argument("--mtp", action="store_true", help="run the modules of multi-token prediction too")
    parser.add_argument("--kv", default="", help="number type of cached keys and values, if the engine leaves a choice")
    parser.add_argument("--weights", default="", help="also write the weights that the engine has after its own "
                        "conversion, as a model directory by which to judge it; for llama.cpp")
    parser.add_argument("--repaired", action="store_true",
                        help="without the engine's faults that golden/ENGINES.md reports")
    parser.add_argument("--mistake", default="", help="a deliberate mistake: scripts/engines/mistakes.py names them")
    return parser.parse_args(words)


def write(dump, case, options, producer):
    model = options.weights or options.model
    weights = files.weights_sha256(model)
    hashed = {name: value for name, value in case.arrays.items() if not name.startswith("pixel")}
    said = [f"dtype {options.dtype}"] + [f"chunks of {options.chunk}"] * bool(options.chunk)
    said += [f"{options.decode} decode steps"] * bool(options.decode)
    said += [f"{options.kv} cache"] * bool(options.kv)
    said += ["repaired"] * options.repaired
    said += [f"mistake {options.mistake}"] * bool(options.mistake)
    metadata = {"producer": producer, "options": ", ".join(said), "model_sha256": files.model_sha256(model),
                "case_sha256": files.case_sha256(hashed)}
    tensors = dump.tensors(len(case.ids))
    if not tensors:
        raise SystemExit(f"{options.out}: the engine gave no tap")
    part = options.out + ".part"
    metadata |= {"weights_sha256": weights} if weights else {}
    files.write(os.path.abspath(part), files.to_bytes(tensors, metadata))
    os.replace(part, options.out)

"""Goldens as the scope of predicates: taps of whole models from public code, their readings and their cases."""

import glob
import hashlib
import json
import os
import re
import struct

import numpy as np
from tensors import load


class Golden:
    """One golden. `missing` is set where a predicate asked for a tap that this golden does not hold."""

    def __init__(self, path, folder):
        self.name = os.path.relpath(path, folder).replace(".safetensors.gz", "")
        self.dump, self.inputs, self.missing = load(path), {}, False
        self.semantics = json.loads(self.dump.metadata.get("semantics", "{}"))

    def tap(self, name):
        """One tap; an array of no numbers if the golden does not hold it."""
        return self.all_of([name] if name in self.dump else [])

    def taps(self, ending):
        """The numbers of that tap in all layers and modules."""
        return self.all_of([n for n in self.dump if n == ending or re.search(r"\.\d+\." + re.escape(ending) + "$", n)])

    def all_of(self, names):
        if not names:
            self.missing = True
            return np.empty(0)
        if len(names) == 1:
            return np.asarray(self.dump[names[0]])
        return np.concatenate([np.ravel(self.dump[name]) for name in names])

    def case(self, name):
        """An input of the golden's case, such as position_ids."""
        if name not in self.inputs:
            self.missing = True
            return np.empty(0)
        return np.asarray(self.inputs[name])

    def values(self):
        return {"tap": self.tap, "taps": self.taps, "case": self.case,
                "holds": lambda name: name in self.dump,
                "reading": lambda field: self.semantics.get(field, ""),
                "layers": len({n.split(".")[1] for n in self.dump if n.startswith("layers.")}),
                "rows": np.asarray(self.dump["rows"]) if "rows" in self.dump else np.arange(len(self.dump["embed"]))
                if "embed" in self.dump else np.empty(0)}


HASHED = ("attention_mask", "image_grid_thw", "input_ids", "position_ids", "video_grid_thw")


def case_hash(inputs):
    """case_sha256 of SPEC 3.5."""
    digest = hashlib.sha256()
    for name in HASHED:
        if name in inputs:
            values = np.asarray(inputs[name])
            digest.update(name.encode() + b"\0" + struct.pack(f"<{1 + values.ndim}Q", values.ndim, *values.shape))
            digest.update(values.astype("<i8").tobytes())
    return digest.hexdigest()


def goldens(folder):
    """All goldens, each with the inputs of the case whose hash it names."""
    inputs = [load(path) for path in sorted(glob.glob(os.path.join(folder, "*", "*case.safetensors")))]
    by_hash = {case_hash(case): case for case in inputs}
    found = [Golden(path, folder) for path in sorted(glob.glob(os.path.join(folder, "*", "*.safetensors.gz")))]
    for golden in found:
        golden.inputs = by_hash.get(golden.dump.metadata.get("case_sha256"), {})
    return found

"""What `m3ref synth --dtype FORM` makes of golden/mxfp8/model/config.json, by synth.py: for each form the SHA-256 of
the sorted lines "SHA-256  NAME" of all tensors, which `m3ref inspect --sha256` prints too.

    python scripts/golden/synth_hashes.py > tests/cli/synth_packed.sha256
"""

import hashlib
import json
import os

import configs
import synth

CONFIG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "golden", "mxfp8", "model", "config.json")

with open(CONFIG) as file:
    shapes = configs.tensor_shapes(json.load(file))
for form in ("mxfp8", "nvfp4", "mxfp4", "w4a16"):
    stored, _ = synth.model(shapes, 1, form)
    lines = sorted(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, (_, _, data) in stored.items())
    print(form, hashlib.sha256("".join(lines).encode()).hexdigest())

"""transformers on a CPU, by scripts/dump_transformers.py: its dumps have the names of modules (--map transformers).

A case of several sequences with padding is one call. --repaired: the indexer compares slots with slots and hides padding
(scripts/dump_batch.py).
"""

import dump_batch
import dump_transformers
import torch
from dump_transformers import files, truth
from safetensors.torch import load_file, save_file


def run(folder, case, dump, options, change=None):
    if options.chunk or options.decode:
        raise SystemExit("transformers: got --chunk or --decode, expected a whole sequence")
    if len(case.sequences) > 1:
        return padded(folder, case, options)
    dump_transformers.dump(folder, case.path, options.out, options.dtype, "eager", "eager",
                           change=lambda model: change(model) if change else None)


def padded(folder, case, options):
    given = {name: value.long() for name, value in load_file(case.path).items()}
    if "attention_mask" not in given:
        raise SystemExit(f"{case.path}: got no attention_mask, expected sequences with padding")
    if options.dtype != "f32":
        raise SystemExit(f"transformers: --dtype: got {options.dtype}, expected f32 for several sequences")
    model = truth.load(folder, torch.float32, "eager", "eager")
    if options.repaired:
        tensors = dump_batch.padded(model, given, None)
    else:
        positions = (given["attention_mask"].cumsum(1) - 1).clamp(min=0)
        tensors = dump_transformers.run(model, given | {"position_ids": positions})
    save_file({name: value.contiguous() for name, value in tensors.items()}, options.out, metadata={
        "producer": f"transformers {truth.transformers.__version__}, torch {torch.__version__}",
        "options": "several sequences, padded" + ", repaired" * options.repaired,
        "model_sha256": files.model_sha256(folder),
        "case_sha256": files.case_sha256({name: value.numpy() for name, value in load_file(case.path).items()})})

"""Makes tests/candidates/: two bf16 runs of golden/tiny/model by the public PyTorch code, one of them wrong.

    python scripts/candidates.py            write the files
    python scripts/candidates.py --check    regenerate them elsewhere and compare

The case is the first 19 tokens of golden/tiny, five blocks of which a query attends three. Of what dump_transformers.py
writes only tensors are kept that the map of transformers reads, and of the wrong run not the last two layers. --check
demands the case in the same bytes, the same tensors, choices and metadata; values within LIMIT (relative L2), because
bf16 products differ with the processor. One line per file; exit status 1 on any mismatch.
"""

import json
import os
import re
import sys
import tempfile

import numpy as np
import torch
from safetensors.torch import load_file

import dump_transformers            # puts scripts/golden where the next import finds it
import files

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
MODEL = os.path.join(ROOT, "golden", "tiny", "model")
LONG_CASE = os.path.join(ROOT, "golden", "tiny", "case.safetensors")
MAP = os.path.join(ROOT, "ref", "oracle", "map", "maps", "transformers.json")
OUT = os.path.join(ROOT, "tests", "candidates")
CASE, HONEST, WRONG = "case.safetensors", "bf16.safetensors.gz", "bf16_without_plus_one.safetensors.gz"
TOKENS = 19
LIMIT = 2e-3                            # between kernels of one processor family 6e-5 was seen
LEFT_OUT = r"\.layers\.[34]\."
DTYPES = {torch.bfloat16: "BF16", torch.float32: "F32", torch.int64: "I64"}


def known_names():
    """A pattern of the names that the map reads, with its prefixes."""
    with open(MAP) as file:
        described = json.load(file)
    recipes = [recipe for entry in described["taps"].values()
               for recipe in (entry if isinstance(entry, list) else [entry])]
    names = "|".join(re.sub(r"\\{\w\\}", r"\\d+", re.escape(recipe["from"])) for recipe in recipes)
    return re.compile("(?:" + "|".join(map(re.escape, described["prefixes"])) + f")?(?:{names})")


def stored(tensor):
    return DTYPES[tensor.dtype], tuple(tensor.shape), tensor.contiguous().view(torch.uint8).numpy().tobytes()


def produce_one(folder, name, left_out=None, remark="", change=None):
    with tempfile.TemporaryDirectory() as temporary:
        whole = os.path.join(temporary, "dump.safetensors")
        dump_transformers.dump(MODEL, os.path.join(folder, CASE), whole, "bf16", "eager", "eager", remark,
                               change=change)
        tensors, metadata = load_file(whole), files.read(whole)[1]
    del metadata["weights_sha256"]          # dumps without it are judged too: these two
    known = known_names()
    kept = {key: stored(value) for key, value in tensors.items()
            if known.fullmatch(key) and not (left_out and re.search(left_out, key))}
    files.write(os.path.join(folder, name), files.to_bytes(kept, metadata))


def produce(folder):
    torch.set_num_threads(1)
    ids = files.read(LONG_CASE)[0]["input_ids"][:TOKENS]
    files.write(os.path.join(folder, CASE), files.to_bytes({"input_ids": files.from_array(ids)}))
    produce_one(folder, HONEST)
    produce_one(folder, WRONG, LEFT_OUT, ", without plus one", dump_transformers.drop_plus_one)


def numbers(array):
    """BF16 comes as raw integers: the upper halves of floats."""
    return (array.astype(np.uint32) << 16).view(np.float32) if array.dtype == np.uint16 else array


def differences(committed, made):
    """Differences between two dumps."""
    (got, got_metadata), (want, want_metadata) = files.read(committed), files.read(made)
    findings = [f"{name}: only in one" for name in sorted(set(got) ^ set(want))]
    if got_metadata != want_metadata:
        findings.append(f"metadata {got_metadata} for {want_metadata}")
    for name in sorted(set(got) & set(want)):
        a, b = got[name], want[name]
        if a.dtype != b.dtype or a.shape != b.shape:
            findings.append(f"{name}: {a.dtype} {a.shape} for {b.dtype} {b.shape}")
        elif b.dtype == np.int64:
            if not np.array_equal(a, b):
                findings.append(f"{name}: {np.count_nonzero(a != b)} of {a.size} ids differ")
        elif not same_values(numbers(a).astype(np.float64), numbers(b).astype(np.float64)):
            findings.append(f"{name}: values differ by more than {LIMIT}")
    return findings


def same_values(a, b):
    """Blocks that a query cannot see have a score of -inf, in both or in neither."""
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite]):
        return False
    return bool(np.linalg.norm(a[finite] - b[finite]) <= LIMIT * np.linalg.norm(b[finite]))


def check():
    with tempfile.TemporaryDirectory() as made:
        produce(made)
        with open(os.path.join(OUT, CASE), "rb") as first, open(os.path.join(made, CASE), "rb") as second:
            results = {CASE: [] if first.read() == second.read() else ["bytes differ"]}
        for name in (HONEST, WRONG):
            results[name] = differences(os.path.join(OUT, name), os.path.join(made, name))
    for name, findings in results.items():
        print(f"{'FAIL' if findings else 'ok':5} {name}")
        for finding in findings[:5]:
            print(f"      {finding}")
        if len(findings) > 5:
            print(f"      and {len(findings) - 5} more")
    return any(results.values())


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit("usage: candidates.py [--check]")
    if sys.argv[1:]:
        sys.exit(1 if check() else 0)
    produce(OUT)


if __name__ == "__main__":
    main()

"""Regenerates golden/ in a temporary directory and compares it with the files of the repository.

Weights, cases, configs and PNG files must be the same bytes, everything of pictures/ the same values; taps equal to
1e-12 (relative L2 and max |d| / max |r|), ids identical; the errors of fp32 code, which depend on the machine, within
a factor of 4; MANIFEST.json must list every file with its SHA-256. One line per file; exit status 1 on any mismatch.
"""

import json
import os
import sys
import tempfile

import numpy as np

import cases
import files
import flops
import formulas
import judge
import m2
import make
import mtp
import readings
import train

TAP_LIMIT = 1e-12
FP32_ERROR_FACTOR = 4
MARGIN_LIMIT = 1e-2
UNLISTED = ("MANIFEST.json", "README.md", "ENGINES.md")


def same_bytes(committed, made):
    with open(committed, "rb") as first, open(made, "rb") as second:
        return [] if first.read() == second.read() else ["bytes differ"]


def number_agrees(key, committed, made):
    a, b = float(committed), float(made)
    if key.startswith("loss."):
        return abs(a - b) <= TAP_LIMIT * abs(b)
    if key.endswith("margin"):
        return a == b or abs(a - b) <= MARGIN_LIMIT * abs(b)
    return a == b or (a > 0 and b > 0 and a <= FP32_ERROR_FACTOR * b and b <= FP32_ERROR_FACTOR * a)


def is_number(key):
    return key.rpartition(".")[2].startswith(("f32_", "margin", "order_margin", "score_error")) or \
        key.startswith("loss.") or key == "table_gap"


def same_dump(committed, made, limit=TAP_LIMIT):
    """Differences between two dumps: names, ids, values, metadata. A limit of 0 requires equal values."""
    (got, got_meta), (want, want_meta) = files.read(committed), files.read(made)
    findings = [f"{name}: only in one" for name in sorted(set(got) ^ set(want))]
    findings += [f"metadata {key}: only in one" for key in sorted(set(got_meta) ^ set(want_meta))]
    for name in sorted(set(got) & set(want)):
        a, b = got[name], want[name]
        if a.dtype != b.dtype or a.shape != b.shape:
            findings.append(f"{name}: {a.dtype} {a.shape} for {b.dtype} {b.shape}")
        elif b.dtype.kind in "iu" or limit == 0:
            if not np.array_equal(a, b):
                findings.append(f"{name}: {np.count_nonzero(a != b)} of {a.size} values differ")
        else:
            errors = formulas.relative_l2(a, b), formulas.relative_max(a, b)
            if not (errors[0] <= limit and errors[1] <= limit):
                findings.append(f"{name}: relative L2 {errors[0]:.1e}, max {errors[1]:.1e}")
    for key in sorted(set(got_meta) & set(want_meta)):
        a, b = got_meta[key], want_meta[key]
        if not (number_agrees(key, a, b) if is_number(key) else a == b):
            findings.append(f"metadata {key}: {a} for {b}")
    return findings


def check_manifest(golden, made):
    """Differences between MANIFEST.json, the files in its folder and the cases."""
    with open(os.path.join(golden, "MANIFEST.json")) as file:
        committed = json.load(file)
    with open(os.path.join(made, "MANIFEST.json")) as file:
        expected = json.load(file)
    listed = {entry["path"]: entry for case in committed["entries"] for entry in case["files"]}
    findings = []
    for path, entry in sorted(listed.items()):
        full = os.path.join(golden, path)
        if not os.path.exists(full):
            findings.append(f"{path}: listed, absent")
        elif files.sha256(full) != entry["sha256"] or os.path.getsize(full) != entry["bytes"]:
            findings.append(f"{path}: SHA-256 or size differs from MANIFEST.json")
    findings += [f"{path}: not listed" for path in all_files(golden) if path not in listed and path not in UNLISTED]
    for part in (committed, expected):
        for case in part["entries"]:
            case["files"] = [entry["path"] for entry in case["files"]]
            case["versions"].pop("python", None)
    if committed != expected:
        findings.append("entries differ from the cases of cases.py")
    return findings


def all_files(folder):
    """The files that cases make: not those of documents/, which people write, not those of op/, which `make
    kill-matrix` writes, and not vectors.txt, which SPEC.md's definitions give."""
    paths = [os.path.relpath(os.path.join(where, name), folder)
             for where, _, names in os.walk(folder) for name in names]
    others = ("documents" + os.sep, "op" + os.sep, "vectors.txt")
    return sorted(path for path in paths if not path.startswith(others))


def compare(golden, made):
    """{path: findings} over the files of both trees, except the pages."""
    results = {}
    for path in sorted(set(all_files(made)) | set(all_files(golden))):
        committed, fresh = os.path.join(golden, path), os.path.join(made, path)
        if path in ("README.md", "ENGINES.md"):
            continue
        if path == "MANIFEST.json":
            results[path] = check_manifest(golden, made)
        elif not os.path.exists(committed):
            results[path] = ["absent from golden/"]
        elif not os.path.exists(fresh):
            results[path] = ["no case makes it"]
        elif path.endswith(".gz") or os.path.basename(path) == "positions.safetensors":
            exact = path.startswith("pictures" + os.sep)
            results[path] = same_dump(committed, fresh, 0 if exact else TAP_LIMIT)
        else:
            results[path] = same_bytes(committed, fresh)
    return results


def main():
    golden = sys.argv[1] if len(sys.argv) > 1 else make.GOLDEN
    with tempfile.TemporaryDirectory() as made:
        try:
            photo = make.copy_photo(golden, made)
            for case in cases.CASES:
                make.produce(case, made)
            mtp.produce(cases.MTP, made)
            m2.produce(cases.M2, cases.M2_MTP, made)
            readings.produce(cases.READINGS, made)
            make.produce_vision(made, photo)
            train.produce(cases.TRAIN, cases.MTP, made)
            make.produce_pictures(made, photo)
            flops.produce(made)
        except judge.Refused as reason:
            sys.exit(f"FAIL  refused: {reason}")
        make.produce_configs(made)
        make.copy_packed(golden, made)
        make.manifest(made)
        results = compare(golden, made)
    for path, findings in results.items():
        print(f"{'FAIL' if findings else 'ok':5} {path}")
        for finding in findings[:5]:
            print(f"      {finding}")
        if len(findings) > 5:
            print(f"      and {len(findings) - 5} more")
    failed = sum(bool(findings) for findings in results.values())
    print(f"golden-check: {len(results) - failed} of {len(results)} files agree")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

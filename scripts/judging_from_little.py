"""What `compare` and `blame` see of known mistakes, in full dumps and in dumps that hold little.

    python scripts/judging_from_little.py BUILD FOLDER [--seeds tiny,2,5] [--profile bf16] [--honest 8] [--public]
                                          [--kinds "full,layer outputs"]

For golden/tiny and models of scripts/no_false_alarms.py: every known mistake (SPEC 7.12) in the arithmetic of the
profile, honest draws of other seeds and, with --public, the public PyTorch model in bf16. Each of them is judged as

    full            all taps, by compare and a reference with bounds alone
    layer outputs   by compare among honest implementations of the profile, as are the next two
    logits
    last row        of the logits
    blame outputs   layer outputs and logits, by blame
    blame logits    logits alone, by blame

Prints how many mistakes with an effect are flagged (a stage fails or is suspect), which are not, and every alarm over
an honest candidate: any exit status but 0. Exit status 1 for an alarm, if fewer than 70 % of layer outputs are flagged,
or fewer than 95 % of full dumps.

A mistake has an effect above rounding if, without any rounding, some row of a tap that is compared is off by more than
the median honest row.
"""

import argparse
import fnmatch
import json
import os
import subprocess
import sys

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import no_false_alarms as models  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
KINDS = {"full": "*", "layer outputs": "layers.*.out", "logits": "logits", "last row": "logits",
         "blame outputs": "layers.*.out,logits", "blame logits": "logits"}


def prepare(program, folder, name):
    """Model and case."""
    if name == "tiny":
        return os.path.join(ROOT, "golden/tiny/model"), os.path.join(ROOT, "golden/tiny/case.safetensors")
    bench, seed = models.Bench(program, folder), int(name)
    shape = models.shape_of(seed)
    with open(bench.path("config.json"), "w") as file:
        json.dump(models.config_of(shape), file)
    bench.must(["synth", bench.path("config.json"), bench.path("model"), "--seed", str(seed)])
    save_file(models.case_of(shape, seed), bench.path("case.safetensors"))
    return bench.path("model"), bench.path("case.safetensors")


def last_row(path, out):
    """The last row of the logits of a dump, as a dump."""
    with safe_open(path, "np") as file:
        logits, metadata = file.get_tensor("logits"), file.metadata()
    save_file({"logits": logits[-1:].copy(), "rows": np.array([len(logits) - 1], np.int32)}, out, metadata)


def cut(path, patterns, out):
    """A dump with only the taps that match."""
    with safe_open(path, "np") as file:
        taps = {k: file.get_tensor(k) for k in file.keys() if any(fnmatch.fnmatch(k, p) for p in patterns.split(","))}
        save_file(taps, out, file.metadata())


def verdict(program, folder, inputs, candidate, kind, profile, mapped):
    """Exit status, verdict and stages; None: this candidate is not judged so."""
    model, case, reference = inputs
    words = ["--profile", profile, "--json"] + (["--map", "transformers"] if mapped else [])
    little = os.path.join(folder, "little.safetensors")
    if mapped and (kind == "last row" or kind.startswith("blame")):
        return None
    if kind == "last row":
        last_row(candidate, little)
        candidate = little
    if kind.startswith("blame"):
        cut(candidate, KINDS[kind], little)
        words = ["blame", model, little, "--case", case, "--threads", "1", *words]
    else:
        words = ["compare", reference, candidate, *words]
        if kind != "full":
            words += ["--taps", KINDS[kind], "--envelope", os.path.join(folder, "envelope.safetensors")]
    done = subprocess.run([program, *words], capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    summary = [line for line in lines if line["type"] == "summary"]
    return done.returncode, summary[0]["verdict"] if summary else None, [s for s in lines if "tap" in s]


def rows_of(file, tap):
    values = file.get_tensor(tap).astype(np.float64)
    return values.reshape(len(values), -1)


def effects(folder, names):
    """Per mistake and kind: the largest effect of a row, in median honest rows."""
    found = {}
    with safe_open(os.path.join(folder, "exact", "right.safetensors"), "np") as right, \
            safe_open(os.path.join(folder, "envelope.safetensors"), "np") as envelope:
        known = [tap for tap in right.keys() if tap + ".row_error" in envelope.keys()]
        for name in names:
            with safe_open(os.path.join(folder, "exact", name + ".safetensors"), "np") as wrong:
                for kind in KINDS:
                    worst = 0.0
                    for tap in known:
                        if not any(fnmatch.fnmatch(tap, p) for p in KINDS[kind].split(",")) or tap not in wrong.keys():
                            continue
                        a, b = rows_of(right, tap), rows_of(wrong, tap)
                        if a.shape != b.shape:
                            worst = np.inf
                            continue
                        if kind == "last row":
                            a, b = a[-1:], b[-1:]
                        size = np.linalg.norm(a, axis=1)
                        off = np.linalg.norm(b - a, axis=1)[size > 0] / size[size > 0]
                        usual = float(np.median(envelope.get_tensor(tap + ".row_error")))
                        off = off[np.isfinite(off)]
                        worst = max(worst, float(np.max(off, initial=0)) / usual if usual > 0 else 0)
                    found[name, kind] = worst
    return found


def one_model(build, folder, name, arguments):
    program = os.path.join(build, "m3ref")
    os.makedirs(os.path.join(folder, "exact"), exist_ok=True)
    model, case = prepare(program, folder, name)
    envelope, reference = (os.path.join(folder, n + ".safetensors") for n in ("envelope", "reference"))
    run = lambda *words: subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()  # noqa: E731
    run(program, "run", model, "--case", case, "--precision", "f64", "--bounds", "--dump", reference)
    run(program, "envelope", model, "--case", case, "--profile", arguments.profile, "--runs", "1", "--out", envelope)
    made = run(os.path.join(build, "tests", "mistaken_dumps"), model, case, arguments.profile, folder,
               str(arguments.honest))
    exact = run(os.path.join(build, "tests", "mistaken_dumps"), model, case, "fp32", os.path.join(folder, "exact"))
    honest = [n for n in made if n == "right" or n.startswith(("honest.", "whole."))]
    mistakes = [n for n in made if n in exact and n != "right"]
    candidates = [(n, os.path.join(folder, n + ".safetensors"), False) for n in honest + mistakes]
    if arguments.public:
        for attention, experts in (("eager", "eager"), ("sdpa", "eager")):
            path = os.path.join(folder, f"public_{attention}.safetensors")
            models.public(model, case, path, "bf16", attention, experts)
            candidates.append(("public " + attention, path, True))
    large, alarms, table = effects(folder, mistakes), [], []
    for kind in arguments.kinds:
        flagged, shown, judged, missed, hidden = 0, 0, 0, [], []
        for candidate, path, mapped in candidates:
            if kind == "full" and candidate.startswith("honest."):      # they go on from values that no dump shows
                continue
            result = verdict(program, folder, (model, case, reference), path, kind, arguments.profile, mapped)
            if result is None:
                continue
            status, word, stages = result
            share = max((s["row_error"] / s["row_error_largest"] for s in stages if s.get("row_error_largest")),
                        default=0)
            if candidate not in mistakes:
                judged += 1
                if status:
                    alarms.append((name, kind, candidate, status, share))
            elif not large[candidate, kind] > 1:
                hidden.append(candidate)
            else:
                shown += 1
                flagged += word in ("fail", "suspect")
                if word not in ("fail", "suspect"):
                    missed.append(f"{candidate} ({large[candidate, kind]:.2g}, {word})")
        table.append((name, kind, judged, flagged, shown, missed, hidden))
    return table, alarms


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("folder")
    parser.add_argument("--seeds", default="tiny,2,5")
    parser.add_argument("--profile", default="bf16")
    parser.add_argument("--honest", type=int, default=8)
    parser.add_argument("--public", action="store_true")
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(KINDS))
    arguments = parser.parse_args()
    alarms, rows = [], []
    for name in arguments.seeds.split(","):
        some, more = one_model(os.path.abspath(arguments.build),
                               os.path.join(os.path.abspath(arguments.folder), name), name, arguments)
        rows += some
        alarms += more
        for row in some:
            print(f"{row[0]:5} {row[1]:14} flagged {row[3]:2} of {row[4]:2} with an effect; {row[2]} honest; missed: "
                  + (", ".join(row[5]) or "none"), flush=True)
    for alarm in alarms:
        print("alarm", *alarm)
    enough = True
    for kind, least in (("full", 0.95), ("layer outputs", 0.7)):
        some = [row for row in rows if row[1] == kind]
        power = sum(row[3] for row in some) / max(1, sum(row[4] for row in some))
        enough = enough and (not some or power >= least)
        if some:
            print(f"judging from little: {kind}: {100 * power:.0f} % flagged")
    print(f"judging from little: {len(alarms)} alarms")
    sys.exit(1 if alarms or not enough else 0)


if __name__ == "__main__":
    main()

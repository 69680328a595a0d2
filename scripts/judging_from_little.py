"""What `compare --envelope` sees in dumps that hold layer outputs or logits alone.

    python scripts/judging_from_little.py BUILD FOLDER [--seeds tiny,2,5] [--profile bf16] [--honest 8] [--public]

For golden/tiny and models of scripts/no_false_alarms.py: every known mistake (SPEC 7.12) in the arithmetic of the
profile, honest draws of other seeds and, with --public, the public PyTorch model in bf16; each as layer outputs alone,
as logits alone and as the last row of the logits. Prints how many mistakes with an effect are flagged, which are not,
and every alarm over an honest candidate. Exit status 1 for an alarm, or if fewer than 70 % of layer outputs are
flagged.

A mistake has an effect above rounding if, without any rounding, some row of a tap that is compared is off by more than
the median honest row.
"""

import argparse
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
KINDS = {"layer outputs": "layers.*.out", "logits": "logits", "last row": "logits"}


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


def verdict(program, folder, reference, candidate, kind, profile, mapped):
    words = ["--map", "transformers"] if mapped else []
    if kind == "last row":
        if mapped:
            return None
        last_row(candidate, os.path.join(folder, "last.safetensors"))
        candidate = os.path.join(folder, "last.safetensors")
    done = subprocess.run([program, "compare", reference, candidate, "--profile", profile, "--taps", KINDS[kind],
                           "--envelope", os.path.join(folder, "envelope.safetensors"), "--json", *words],
                          capture_output=True, text=True)
    stages = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, [s for s in stages if s["type"] == "stage"]


def rows_of(file, tap):
    values = file.get_tensor(tap).astype(np.float64)
    return values.reshape(len(values), -1)


def effects(folder, names):
    """Per mistake and kind: the largest effect of a row, in median honest rows."""
    found = {}
    with safe_open(os.path.join(folder, "exact", "right.safetensors"), "np") as right, \
            safe_open(os.path.join(folder, "envelope.safetensors"), "np") as envelope:
        outputs = [tap for tap in right.keys() if tap.endswith(".out") and tap.startswith("layers.")]
        for name in names:
            with safe_open(os.path.join(folder, "exact", name + ".safetensors"), "np") as wrong:
                for kind in KINDS:
                    worst = 0.0
                    for tap in outputs if kind == "layer outputs" else ["logits"]:
                        a, b = rows_of(right, tap), rows_of(wrong, tap)
                        if kind == "last row":
                            a, b = a[-1:], b[-1:]
                        off = np.linalg.norm(b - a, axis=1) / np.linalg.norm(a, axis=1)
                        worst = max(worst, float(np.max(off) / np.median(envelope.get_tensor(tap + ".row_error"))))
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
    honest = [n for n in made if n == "right" or n.startswith("honest.")]
    mistakes = [n for n in made if n in exact and n != "right"]
    candidates = [(n, os.path.join(folder, n + ".safetensors"), False) for n in honest + mistakes]
    if arguments.public:
        for attention, experts in (("eager", "eager"), ("sdpa", "eager")):
            path = os.path.join(folder, f"public_{attention}.safetensors")
            models.public(model, case, path, "bf16", attention, experts)
            candidates.append(("public " + attention, path, True))
    large, alarms, table = effects(folder, mistakes), [], []
    for kind in KINDS:
        flagged, shown, missed, hidden = 0, 0, [], []
        for candidate, path, mapped in candidates:
            result = verdict(program, folder, reference, path, kind, arguments.profile, mapped)
            if result is None:
                continue
            status, stages = result
            share = max((s["row_error"] / s["row_error_largest"] for s in stages if s["row_error_largest"]), default=0)
            if candidate not in mistakes:
                if status:
                    alarms.append((name, kind, candidate, status, share))
            elif not large[candidate, kind] > 1:
                hidden.append(candidate)
            else:
                shown += 1
                flagged += status in (1, 2)
                if status not in (1, 2):
                    missed.append(f"{candidate} ({large[candidate, kind]:.2g}, status {status})")
        table.append((name, kind, len(candidates) - len(mistakes), flagged, shown, missed, hidden))
    return table, alarms


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("folder")
    parser.add_argument("--seeds", default="tiny,2,5")
    parser.add_argument("--profile", default="bf16")
    parser.add_argument("--honest", type=int, default=8)
    parser.add_argument("--public", action="store_true")
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
    outputs = [row for row in rows if row[1] == "layer outputs"]
    power = sum(row[3] for row in outputs) / max(1, sum(row[4] for row in outputs))
    print(f"judging from little: {len(alarms)} alarms, layer outputs alone {100 * power:.0f} % flagged")
    sys.exit(1 if alarms or power < 0.7 else 0)


if __name__ == "__main__":
    main()

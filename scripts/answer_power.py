"""Which of the known mistakes (SPEC 7.12) does `m3ref check` see in log-probabilities alone?

    python scripts/answer_power.py BUILD FOLDER [--worlds tiny,2,5] [--profiles fp32,bf16,fp8] [--honest 24]
                                   [--public] [--prompt] [--write PAGE] [--from FIGURES ..]

A world is a model with a case of TOKENS tokens: golden/tiny, and the random models of scripts/no_false_alarms.py by
their seeds; with --prompt the tokens are those of `m3ref prompt`. At each position the 20 most likely tokens are given.
Every mistake is made in the arithmetic of each profile, and judged among honest implementations; so are honest
implementations with a seed that no check uses and, with --public, answers of the public PyTorch model in that
arithmetic. A mistake counts if, without any rounding, it changes
some log-probability by more than EFFECT, and if the profile does not permit it. --write makes a page of the figures.
FOLDER/figures.json has them; --from reads such files instead of running. Exit status 1 for an alarm, or if a goal
(GOALS, in per cent) is missed.
"""

import argparse
import json
import os
import subprocess
import sys

from safetensors.numpy import load_file, save_file

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import judging_from_little  # noqa: E402
from power import PERMITTED  # noqa: E402

TOKENS, EFFECT = 64, 1e-4
GOALS = {"fp32": 90, "bf16": 75, "fp8": 75}
# Engines of the public model: dtype, attention, rounding of inputs (scripts/engine_roundings.py).
PUBLIC = {"fp32": (("f32", "eager", None), ("f32", "sdpa", None)),
          "bf16": (("bf16", "eager", None), ("bf16", "sdpa", None)),
          "fp8": (("bf16", "eager", "act_mx"), ("bf16", "sdpa", "act_mx"))}


def public_answer(model, case, out, dtype, attention, rounding):
    """In a process of its own, because roundings change the model's code."""
    import torch
    import dump_transformers
    import engine_roundings
    import server_answers
    torch.set_num_threads(1)
    ids, given = load_file(case)["input_ids"], dump_transformers.read_case(case)[1]
    loaded = dump_transformers.truth.load(model, torch.float32, attention, "eager")
    if dtype == "bf16":
        dump_transformers.store_halves(loaded, dump_transformers.HALVES[dtype], ())
    wrap = engine_roundings.quantise(loaded, rounding, None) if rounding else None
    dump = dump_transformers.Dump(loaded, (), wrap)
    with torch.no_grad(), dump.watching():
        logits = loaded(use_cache=False, **given).logits[0].float().numpy()
    server_answers.write(out, server_answers.Answer(ids, len(ids), logits).to("vllm"))


def world(program, folder, name, is_prompt):
    os.makedirs(folder, exist_ok=True)
    model, case = judging_from_little.prepare(program, folder, name)
    if is_prompt:
        case = os.path.join(folder, "prompt.safetensors")
        subprocess.run([program, "prompt", model, "--tokens", str(TOKENS), "--out", case], check=True,
                       stdout=subprocess.DEVNULL)
    tensors = load_file(case)
    if "pixel_values" not in tensors:
        case = os.path.join(folder, "short.safetensors")
        save_file({"input_ids": tensors["input_ids"][:TOKENS].copy()}, case)
    return model, case


def answers(folder, model, case, profile):
    made = []
    for dtype, attention, rounding in PUBLIC[profile]:
        out = os.path.join(folder, f"{profile}_{attention}.json")
        subprocess.run([sys.executable, os.path.abspath(__file__), "--answer", model, case, out, dtype, attention,
                        rounding or ""], check=True)
        made.append(out)
    return made


def judge(arguments, name, profile, model, case):
    folder = os.path.join(arguments.folder, name)
    files = answers(folder, model, case, profile) if arguments.public else []
    done = subprocess.run([os.path.join(arguments.build, "tests", "answer_power"), model, case, profile,
                           str(arguments.honest), *files], check=True, capture_output=True, text=True)
    rows = []
    for line in done.stdout.splitlines():
        kind, what, verdict, quotient, by, effect, z, share, toward = line.split("\t")
        rows.append({"world": name, "profile": profile, "kind": kind, "name": what, "verdict": verdict,
                     "quotient": float(quotient), "by": by, "effect": float(effect), "z": float(z), "toward": toward})
        shown = rows[-1]
        print(f"{name:5} {profile:5} {kind:8} {os.path.basename(what):26} {verdict:8} {quotient:>9} {by:24} "
              f"{effect:>9} {z} {share} {toward}",
              flush=True)
        shown["counts"] = kind == "mistake" and shown["effect"] > EFFECT and what not in PERMITTED.get(profile, ())
    return rows


def flagged(row):
    return row["verdict"] in ("fail", "suspect")


def page(rows):
    profiles = list(dict.fromkeys(row["profile"] for row in rows))
    out = ["# Power of log-probabilities", "",
           "`make answer-power` writes this page (`scripts/answer_power.py`, whose first lines say how). REFERENCE.md",
           "7.18 describes the statistic.", "",
           "| profile | mistakes with an effect | flagged | fail | honest answers | alarms |",
           "|---|---|---|---|---|---|"]
    for profile in profiles:
        some = [row for row in rows if row["profile"] == profile]
        counted = [row for row in some if row["counts"]]
        honest = [row for row in some if row["kind"] != "mistake"]
        seen = sum(map(flagged, counted))
        out.append(f"| {profile} | {len(counted)} | {seen} ({100 * seen / max(1, len(counted)):.0f} %) | "
                   f"{sum(row['verdict'] == 'fail' for row in counted)} | {len(honest)} | "
                   f"{sum(row['verdict'] != 'pass' for row in honest)} |")
    out += ["", "## Mistake by mistake", "",
            "`F` fails, `S` is suspect, `-` is not seen; small letters and `.` likewise, where the effect is below 1e-4",
            "or the profile permits the mistake. A world is a model with its case; a number is a seed of",
            "`scripts/no_false_alarms.py`.", "", "| world | mistake | effect | " + " | ".join(profiles) + " |",
            "|---|---|---|" + "---|" * len(profiles)]
    table = {}
    for row in rows:
        if row["kind"] == "mistake":
            table.setdefault((row["world"], row["name"]), {})[row["profile"]] = row
    letters = {"fail": "F", "suspect": "S"}
    for (name, mistake), by in table.items():
        cells = []
        for profile in profiles:
            row = by.get(profile)
            letter = letters.get(row["verdict"], "-" if row["counts"] else ".") if row else ""
            cells.append(f"`{letter if not row or row['counts'] else letter.lower()}`")
        effect = max(row["effect"] for row in by.values())
        out.append(f"| {name} | {mistake} | {effect:.2g} | " + " | ".join(cells) + " |")
    return "\n".join(out) + "\n"


def main():
    if sys.argv[1:2] == ["--answer"]:
        model, case, out, dtype, attention, rounding = sys.argv[2:]
        public_answer(model, case, out, dtype, attention, rounding or None)
        return
    words = {"type": lambda text: text.split(",")}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=os.path.abspath)
    parser.add_argument("folder", type=os.path.abspath)
    parser.add_argument("--worlds", default=["tiny", "2", "5"], **words)
    parser.add_argument("--profiles", default=list(GOALS), **words)
    parser.add_argument("--honest", type=int, default=24)
    parser.add_argument("--public", action="store_true")
    parser.add_argument("--prompt", action="store_true")
    parser.add_argument("--write")
    parser.add_argument("--from", dest="figures", nargs="+")
    arguments = parser.parse_args()
    rows = []
    for path in arguments.figures or []:
        with open(path) as file:
            rows += json.load(file)
    for name in [] if arguments.figures else arguments.worlds:
        model, case = world(os.path.join(arguments.build, "m3ref"), os.path.join(arguments.folder, name), name,
                            arguments.prompt)
        for profile in arguments.profiles:
            rows += judge(arguments, name, profile, model, case)
            with open(os.path.join(arguments.folder, "figures.json"), "w") as file:
                json.dump(rows, file)
    wrong = [f"{row['world']} {row['profile']}: {row['kind']} {row['name']} is called {row['verdict']}"
             for row in rows if row["kind"] != "mistake" and row["verdict"] != "pass"]
    for profile in arguments.profiles:
        counted = [row for row in rows if row["profile"] == profile and row["counts"]]
        seen = sum(map(flagged, counted))
        print(f"{profile}: flagged {seen} of {len(counted)}; not seen: "
              + ", ".join(f"{row['name']} ({row['world']})" for row in counted if not flagged(row)))
        if 100 * seen < GOALS.get(profile, 0) * len(counted):
            wrong.append(f"{profile}: got {seen} of {len(counted)}, expected {GOALS[profile]} %")
    if arguments.write:
        with open(arguments.write, "w") as file:
            file.write(page(rows))
    print("\n".join(wrong))
    print(f"answer power: {len(rows)} answers, {len(wrong)} problems")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

"""Which of the known mistakes (SPEC 7.12) do compare and blame see, under which profile, in which kind of dump?

    python scripts/power.py BUILD FOLDER [--worlds tiny,5,..] [--profiles bf16,..] [--mistakes 'act.*,..'] [--jobs 2]
                            [--model MODEL --case CASE] [--write PAGE] [--check PAGE] [--from FIGURES ..]

Makes every mistake in the arithmetic of each profile: taps are rounded as the profile stores them, inputs of linear
operators as it quantises them. A world is a model with a case: those below, the random models of
scripts/no_false_alarms.py by their seeds, and `own`, which is MODEL with CASE. Prints a line per world, profile and
mistake with the judges' marks (MARKS). FOLDER/figures.json has all figures, also of a run that was stopped; --from
reads such files instead of running. --write makes a page of the figures, --check compares them with that page, as far
as they go. Exit status 1 if a run without mistake is flagged, if the page differs, or if a goal (GOALS) is missed.

Is a mistake above the profile's rounding? That is decided without the judges. Two runs without any rounding, one with
the mistake and one without, differ by the mistake's effect. HONEST implementations of the profile differ from the run
without mistake by rounding. The effect is above rounding in a dump if, in some tap that it holds, some row is off (L2)
by more than TWICE the most that any honest implementation is off in that row, or more sets of a tap of choices differ
than twice the most of an honest implementation (and at least 2 % of them).
"""

import argparse
import concurrent.futures
import fnmatch
import glob
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import no_false_alarms as models  # noqa: E402

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
HONEST = 8
TWICE = 2
KINDS = {"full": ["*"], "outputs": ["layers.*.out", "mtp.*.layer.out", "logits", "mtp.*.logits"],
         "logits": ["logits", "mtp.*.logits"], "last row": ["logits"]}
# Beside golden/tiny: what a mistake needs that golden/tiny does not have. Model, case, reading, mistakes.
WORLDS = {"tiny": ("tiny/model", "tiny/case", None, "*"),
          "far": ("tiny/model", "tiny/positions_case", None, "rope.fp32_angle"),
          "ties": ("tiny/model", "tiny/case", None, "select.tie"),
          "local": ("tiny/model", "readings/case", "local_blocks=2", "select.local_multi"),
          "two": ("tiny/model", "vision/two_case", None, "vision.no_boundary,vision.frame_repeat"),
          "video": ("tiny/model", "vision/video_case", None, "vision.*"),
          "mxfp8": ("mxfp8/model", "mxfp8/case", None, "quant.*,index.scale_missing"),
          "mtp": ("mtp/model", "mtp/case", None, "mtp.*")}
DEFAULT = [*WORLDS, "5"]
# Roundings that programs of the profile may make: no mistakes there (SPEC 7.3, 7.12). fp8 and cuda_bf16 are as bf16.
BF16 = ("attn.partial_bf16", "norm.early_round", "router.bf16", "select.tie", "vision.conv_precision",
        "rope.fp32_angle")
PERMITTED = {"fp32": ("rope.fp32_angle",), "bf16": BF16, "fp8": BF16, "cuda_bf16": BF16[2:]}
# Profile, kind, what, per cent of the mistakes above rounding.
GOALS = (("bf16", "full", "flagged", 98), ("bf16", "full", "named", 95), ("bf16", "outputs", "flagged", 70),
         ("fp8", "full", "compare", 95))


class World:
    """A model with its case, and a folder for each profile."""

    def __init__(self, arguments, name):
        self.name, self.program = name, os.path.join(arguments.build, "m3ref")
        self.dumps = os.path.join(arguments.build, "tests", "mistaken_dumps")
        self.folder = os.path.join(arguments.folder, name)
        self.reading, self.ids, self.honest = None, "*", HONEST
        os.makedirs(self.folder, exist_ok=True)
        if name == "own":
            self.model, self.case = arguments.model, arguments.case
        elif name in WORLDS:
            model, case, self.reading, self.ids = WORLDS[name]
            self.model = os.path.join(ROOT, "golden", model)
            self.case = os.path.join(ROOT, "golden", case + ".safetensors")
        else:
            self.make(int(name))
        if name == "ties":
            self.without_scores()
        if arguments.mistakes:
            self.ids = arguments.mistakes
        self.set = ["--set", self.reading] if self.reading else []

    def make(self, seed):
        shape = models.shape_of(seed)
        config, self.model = os.path.join(self.folder, "config.json"), os.path.join(self.folder, "model")
        self.case = os.path.join(self.folder, "case.safetensors")
        with open(config, "w") as file:
            json.dump(models.config_of(shape), file)
        run(self.program, "synth", config, self.model, "--seed", str(seed))
        save_file(models.case_of(shape, seed), self.case)

    def without_scores(self):
        """A copy of the model whose index queries, and so all scores of blocks, are 0."""
        copy = os.path.join(self.folder, "model")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.model, copy)
        self.model = copy
        for path in glob.glob(os.path.join(copy, "*.safetensors")):
            overwrite(path, lambda name: name.endswith("index_q_norm.weight"))

    def place(self, profile, *names):
        return os.path.join(self.folder, profile, *names)


def overwrite(path, chosen):
    """Sets the chosen BF16 or F32 tensors of a file to -1, in place."""
    with open(path, "r+b") as file:
        header = int.from_bytes(file.read(8), "little")
        table = json.loads(file.read(header))
        for name, tensor in table.items():
            if name != "__metadata__" and chosen(name):
                one = {"BF16": b"\x80\xbf", "F32": b"\x00\x00\x80\xbf"}[tensor["dtype"]]
                start, end = tensor["data_offsets"]
                file.seek(8 + header + start)
                file.write(one * ((end - start) // len(one)))


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise SystemExit(" ".join(words) + ": " + done.stderr)
    return done.stdout


def prepare(world, profile):
    """The dumps of one profile; returns the mistakes that could be made."""
    os.makedirs(world.place(profile), exist_ok=True)
    run(world.program, "run", world.model, "--case", world.case, "--precision", "f64", "--bounds", "--profile", profile,
        "--dump", world.place(profile, "reference.safetensors"), *world.set)
    made = run(world.dumps, world.model, world.case, profile, world.place(profile), str(world.honest), world.ids,
               *([world.reading] if world.reading else [])).split()
    return [name for name in made if name != "right" and not name.startswith(("honest.", "whole."))]


def holds(kind, name):
    return any(fnmatch.fnmatch(name, pattern) for pattern in KINDS[kind])


def reduce(path, kind, out):
    """What a program would have dumped that dumps this kind only."""
    with safe_open(path, "np") as file:
        kept = {name: file.get_tensor(name) for name in file.keys() if holds(kind, name)}
        metadata = file.metadata()
    if kind == "last row":
        rows = len(kept["logits"])
        kept = {"logits": kept["logits"][-1:].copy(), "rows": np.array([rows - 1], np.int32)}
    save_file(kept, out, metadata)


# ---- is it above rounding?

def taps(path):
    with safe_open(path, "np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def off_by(right, wrong):
    """Per row: L2 of the difference, over that of the row; of sets, the share that differs (one number)."""
    if right.dtype.kind == "i":
        if right.shape != wrong.shape:
            return np.ones(1)
        differ = np.any(np.sort(right, -1) != np.sort(wrong, -1), -1)
        return np.array([np.mean(differ)])
    if right.shape != wrong.shape:
        return np.full(len(right), np.inf)
    a, b = (x.reshape(len(x), -1).astype(np.float64) for x in (right, wrong))
    same_infinity = ~np.isfinite(a) & (a == b)
    d = np.where(same_infinity, 0, b) - np.where(same_infinity, 0, a)
    size = np.linalg.norm(np.where(np.isfinite(a), a, 0), axis=1)
    with np.errstate(all="ignore"):
        off = np.where(np.isnan(d).any(1), np.inf, np.linalg.norm(d, axis=1) / np.where(size > 0, size, 1))
    return off


class Effects:
    """What honest implementations of a profile are off by, and mistakes without rounding."""

    def __init__(self, world, profile):
        self.right = taps(world.place("exact", "right.safetensors"))
        self.most = {}
        for number in range(world.honest):
            found = taps(world.place(profile, f"honest.{number}.safetensors"))
            for name in self.right:
                off = off_by(self.right[name], found[name])
                self.most[name] = np.maximum(self.most.get(name, 0), off)

    def above(self, wrong, kind):
        """Some row, or share of sets, in honest extremes: above 1 is above rounding."""
        worst = 0.0
        for name in self.right:
            if name not in wrong or not holds(kind, name) or name.endswith(("rows", ".bias")):
                continue
            off, most = off_by(self.right[name], wrong[name]), self.most[name]
            if kind == "last row":
                off, most = off[-1:], most[-1:]
            least = 0.01 if self.right[name].dtype.kind == "i" else 1e-9
            worst = max(worst, float(np.max(off / (TWICE * np.maximum(most, least)), initial=0)))
        return worst


# ---- the judges

def verdict(words, first):
    """Flagged, named, and the tap that is said."""
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    lines = done.stdout.splitlines()
    summary = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
    tap = summary.get("culprit") or summary.get("first_divergence")
    flagged = done.returncode in (1, 2) and summary.get("verdict") in ("fail", "suspect")
    named = flagged and tap is not None and any(fnmatch.fnmatch(tap, p) for p in first.split(","))
    return {"status": done.returncode, "verdict": summary.get("verdict"), "flagged": flagged, "named": bool(named),
            "tap": tap}


def judged(world, profile, mistake, first):
    """Both judges on full dumps, compare on the others: there blame runs honest implementations for each verdict, and
    scripts/judging_from_little.py measures it."""
    not_run = {"status": None, "verdict": None, "flagged": False, "named": False, "tap": None}
    found = {}
    path = world.place(profile, mistake + ".safetensors")
    for kind in KINDS:
        part = path if kind == "full" else path.replace(".safetensors", "." + kind.replace(" ", "_") + ".part")
        if kind != "full":
            reduce(path, kind, part)
        compared = [world.program, "compare", world.place(profile, "reference.safetensors"), part, "--profile", profile,
                    "--json"]
        blamed = [world.program, "blame", world.model, part, "--case", world.case, "--profile", profile, "--json",
                  *world.set]
        found[kind] = {"compare": verdict(compared, first),
                       "blame": verdict(blamed, first) if kind == "full" else not_run}
        if kind != "full":
            os.remove(part)
    return found


def one_world(arguments, name, pool, before):
    world = World(arguments, name)
    os.makedirs(world.place("exact"), exist_ok=True)
    run(world.dumps, world.model, world.case, "fp32", world.place("exact"), "0", world.ids,
        *([world.reading] if world.reading else []))
    with open(world.place("exact", "first.tsv")) as file:
        first = dict(line.rstrip("\n").split("\t") for line in file)
    rows = []
    for profile in arguments.profiles:
        made = prepare(world, profile)
        effects = Effects(world, profile)
        todo = {mistake: pool.submit(judged, world, profile, mistake, first.get(mistake, ""))
                for mistake in ["right", *made]}
        for mistake, future in todo.items():
            wrong = taps(world.place("exact", mistake + ".safetensors"))
            for kind, both in future.result().items():
                rows.append({"world": name, "profile": profile, "mistake": mistake, "kind": kind,
                             "permitted": mistake in PERMITTED.get(profile.split("+")[0], ()),
                             "effect": effects.above(wrong, kind), **both})
            show(rows[-len(KINDS):])
        shutil.rmtree(world.place(profile))
        with open(os.path.join(arguments.folder, "figures.json"), "w") as file:
            json.dump(before + rows, file)
    shutil.rmtree(world.folder)
    return rows


# ---- what is printed

MARKS = """`N` flagged and named (the first divergence or the culprit is where the mistake was put), `F` flagged, `-`
not flagged; small letters and `.` likewise, where the effect is within rounding or the profile permits it. A world is a
model with its case; a number is a seed of `scripts/no_false_alarms.py`."""


def mark(row, judge):
    found = row[judge]
    letter = "N" if found["named"] else "F" if found["flagged"] else "-"
    if is_shown(row):
        return letter
    return letter.lower() if letter != "-" else "."


def cells(rows):
    """Of the kinds of dump of one world, profile and mistake, compare, and of the full one also blame: "NN F - ."."""
    return " ".join(mark(row, "compare") + (mark(row, "blame") if row["kind"] == "full" else "") for row in rows)


def show(rows):
    row = rows[0]
    print(f"{row['world']:6} {row['profile']:9} {row['mistake']:24} {cells(rows)}   effect "
          + " ".join(f"{r['effect']:.2g}" for r in rows)
          + f"   {row['compare']['tap']}  {row['blame']['tap']}", flush=True)


def is_shown(row):
    return row["mistake"] != "right" and not row["permitted"] and row["effect"] > 1


def counts(rows):
    """Per profile and kind: how many are above rounding, and how many of them are seen. `flagged`, `named`: by one
    judge at least."""
    table = {}
    for row in filter(is_shown, rows):
        of = table.setdefault((row["profile"], row["kind"]), dict.fromkeys(
            ("shown", "compare", "blame", "flagged", "compare named", "blame named", "named"), 0))
        of["shown"] += 1
        for judge in ("compare", "blame"):
            of[judge] += row[judge]["flagged"]
            of[judge + " named"] += row[judge]["named"]
        of["flagged"] += row["compare"]["flagged"] or row["blame"]["flagged"]
        of["named"] += row["compare"]["named"] or row["blame"]["named"]
    return table


def share(part, whole):
    return f"{part} ({100 * part / whole:.0f} %)" if whole else "-"


def lines_of(rows):
    """The four kinds of dump of each world, profile and mistake."""
    lines = {}
    for row in rows:
        lines.setdefault((row["world"], row["profile"], row["mistake"]), []).append(row)
    return lines


def hidden(rows):
    """What neither judge flags, per profile and kind."""
    lists = {}
    for row in filter(is_shown, rows):
        if not row["compare"]["flagged"] and not row["blame"]["flagged"]:
            name = row["mistake"] + ("" if row["world"] == "tiny" else f" ({row['world']})")
            lists.setdefault((row["profile"], row["kind"]), []).append(name)
    return lists


def quantised(path):
    """The section that scripts/quantised_experts.py has written into the page."""
    if not os.path.exists(path):
        return []
    with open(path) as file:
        found = re.search(r"## Quantised experts\n.*?(?=^## |\Z)", file.read(), flags=re.S | re.M)
    return found[0].rstrip("\n").split("\n") + [""] if found else []


def page(rows, of_quantised):
    made, profiles = lines_of(rows), list(dict.fromkeys(row["profile"] for row in rows))
    out = ["# Power: which mistakes the judges see", "",
           "`make power` writes this page (`scripts/power.py`, whose first lines say how). REFERENCE.md 7.12 describes",
           "the mistakes, the kinds of dump, and when an effect is above rounding.", "",
           "| profile | dump | above rounding | flagged | by compare | by blame | named | by compare | by blame |",
           "|---|---|---|---|---|---|---|---|---|"]
    for (profile, kind), of in counts(rows).items():
        out.append(f"| {profile} | {kind} | {of['shown']} | " + " | ".join(
            share(of[key], of["shown"]) if kind == "full" or not key.startswith("blame") else "not run"
            for key in ("flagged", "compare", "blame", "named", "compare named", "blame named")) + " |")
    out += ["", "`scripts/judging_from_little.py` measures `blame` on dumps that are not full (REFERENCE.md 7.10)."]
    out += ["", "## Hidden", "", "Above rounding, and flagged by neither judge that was run:", "", "| profile | dump | mistakes |",
            "|---|---|---|"]
    out += [f"| {profile} | {kind} | {', '.join(names)} |" for (profile, kind), names in hidden(rows).items()]
    permitted = {profile: ", ".join(PERMITTED[profile]) for profile in profiles if profile in PERMITTED}
    out += ["", "The profile permits, so that they are no mistakes under it:", ""]
    out += [f"- `{profile}`: {names}" for profile, names in permitted.items()]
    out += ["", *of_quantised, "## Mistake by mistake", "",
            "Marks of compare and blame on full dumps, then of compare on the others (" + ", ".join(list(KINDS)[1:]) + "):",
            *MARKS.split("\n"), "",
            "| world | mistake | " + " | ".join(profiles) + " |", "|---|---|" + "---|" * len(profiles)]
    for world, mistake in dict.fromkeys((row["world"], row["mistake"]) for row in rows):
        found = [made.get((world, profile, mistake)) for profile in profiles]
        out.append(f"| {world} | {mistake} | " + " | ".join(f"`{cells(f)}`" if f else "" for f in found) + " |")
    return "\n".join(out) + "\n"


def read_page(path):
    """{(world, profile, mistake): cells}"""
    found, profiles = {}, None
    with open(path) as file:
        for line in file:
            columns = [part.strip() for part in line.strip().strip("|").split("|")]
            if columns[:2] == ["world", "mistake"]:
                profiles = columns[2:]
            elif profiles and line.startswith("| "):
                for profile, text in zip(profiles, columns[2:], strict=True):
                    found[columns[0], profile, columns[1]] = text.strip("`")
    return found


def differences(rows, path):
    """Between the figures and a page."""
    stated, wrong = read_page(path), []
    for (world, profile, mistake), found in lines_of(rows).items():
        if stated.get((world, profile, mistake)) != cells(found):
            wrong.append(f"{path}: {world} {profile} {mistake}: got {cells(found)}, expected "
                         f"{stated.get((world, profile, mistake), 'a line')}")
    return wrong


def missed(rows):
    """Goals that the figures miss, and runs without a mistake that are flagged."""
    table, wrong = counts(rows), []
    for profile, kind, what, goal in GOALS:
        of = table.get((profile, kind))
        if of and 100 * of[what] < goal * of["shown"]:
            wrong.append(f"{profile}, {kind}: {what}: got {share(of[what], of['shown'])}, expected {goal} %")
    for row in rows:
        if row["mistake"] == "right" and (row["compare"]["flagged"] or row["blame"]["flagged"]):
            wrong.append(f"{row['world']} {row['profile']} {row['kind']}: a run without mistake is flagged")
    return wrong


def read_figures(paths):
    """Of several files; the last one that has a line decides."""
    lines = {}
    for path in paths:
        with open(path) as file:
            lines |= lines_of(json.load(file))
    return [row for rows in lines.values() for row in rows]


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words = {"type": lambda text: text.split(",")}
    parser.add_argument("build", type=os.path.abspath)
    parser.add_argument("folder", type=os.path.abspath)
    parser.add_argument("--worlds", **words)
    parser.add_argument("--profiles", **words)
    parser.add_argument("--mistakes")
    parser.add_argument("--model", type=os.path.abspath)
    parser.add_argument("--case", type=os.path.abspath)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write")
    parser.add_argument("--check")
    parser.add_argument("--from", dest="figures", nargs="+")
    found = parser.parse_args()
    found.worlds = found.worlds or (["own"] if found.model else DEFAULT)
    built_in = glob.glob(os.path.join(ROOT, "ref/oracle/error/profiles/*.json"))
    found.profiles = found.profiles or sorted(os.path.basename(path)[:-5] for path in built_in)
    return found


def main():
    arguments, rows = options(), []
    os.makedirs(arguments.folder, exist_ok=True)
    if arguments.figures:
        rows = read_figures(arguments.figures)
    else:
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            for name in arguments.worlds:
                rows += one_world(arguments, name, pool, rows)
    for (profile, kind), of in counts(rows).items():
        print(f"{profile:9} {kind:9} above rounding {of['shown']}, " + ", ".join(
            f"{key} {share(of[key], of['shown'])}" for key in of if key != "shown"))
    wrong = missed(rows) + (differences(rows, arguments.check) if arguments.check else [])
    if arguments.write:
        text = page(rows, quantised(arguments.write))
        with open(arguments.write, "w") as file:
            file.write(text)
    print("\n".join(wrong))
    print(f"power: {len(lines_of(rows))} lines, {len(wrong)} problems")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

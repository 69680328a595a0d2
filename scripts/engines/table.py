"""Runs public engines on goldens, judges them, and writes golden/ENGINES.md.

    python3 scripts/engines/table.py [--program m3ref] [--no-mistakes] [ENGINE ...]

Every engine has a section of the page; only those of the engines that are run are written anew. Exit status 1 if an
engine could not be installed or run, or if a deliberate mistake was not found.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden"))
import files  # noqa: E402
from engines import environments, mistakes, page  # noqa: E402
from engines.registry import ENGINES, MODELS  # noqa: E402

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
WORK = os.path.join(environments.BUILD, "dumps")
ROW_RUNS = ("--row-runs", "0")          # every tap is judged by its inputs; logits alone are another question


class Failed(Exception):
    pass


class Bench:
    def __init__(self, program):
        self.program, self.troubles = program, []
        os.makedirs(WORK, exist_ok=True)

    def make_model(self, run):
        """The words that make the model of a run, if it is none of golden/."""
        config, *options = MODELS[run.model]
        words = ["synth", config, run.model_path(), *options]
        if not os.path.exists(os.path.join(ROOT, run.model_path(), "config.json")):
            os.makedirs(os.path.join(ROOT, run.model_path()), exist_ok=True)
            done = subprocess.run([self.program, *words], cwd=ROOT, capture_output=True, text=True)
            if done.returncode:
                raise Failed(done.stderr.strip())
        return words

    def dump(self, name, run, out, mistake=""):
        words = [name, run.model_path(), run.case_path(), out, "--dtype", run.dtype, *run.options]
        words += ["--mistake", mistake] if mistake else []
        if run.own_weights:
            shutil.rmtree(os.path.join(ROOT, weights_of(run)), ignore_errors=True)
            words += ["--weights", weights_of(run)]
        done = subprocess.run([sys.executable, "scripts/engines/dump.py", *words], cwd=ROOT, capture_output=True,
                              text=True)
        if done.returncode:
            raise Failed((done.stderr.strip().splitlines() or ["no reason given"])[-1])
        return words

    def judge(self, name, run, out):
        """(words of the command, summary, the tap lines that are wrong)."""
        profile, reading = ENGINES[name].profiles[run.dtype], [*ENGINES[name].reading, *run.reading]
        model = weights_of(run) if run.own_weights else run.model_path()
        words = ["check", model, out, "--case", run.case_path(), "--profile", profile]
        words += ["--map", ENGINES[name].map] if ENGINES[name].map else []
        for field in reading:
            words += ["--set", field]
        key = re.sub(r"[^\w=+]+", "_", "-".join([model, run.case_path(), profile, *sorted(reading)]))
        truth = os.path.join(WORK, f"truth-{key}.safetensors")
        done = subprocess.run([self.program, *words, *ROW_RUNS, "--json", "--truth", truth], cwd=ROOT,
                              capture_output=True, text=True)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        if not lines or lines[-1]["type"] != "summary":
            raise Failed((done.stderr.strip().splitlines() or ["no verdict"])[-1])
        return words, lines[-1], [line for line in lines if line.get("tap") == lines[-1]["culprit"]]


def relative(path):
    return os.path.relpath(path, ROOT)


def weights_of(run):
    return relative(os.path.join(WORK, f"{run.model}-{run.dtype}"))


def explanation(summary):
    """What the judge takes for the cause: a reading, or a known mistake."""
    if summary["reading"]:
        return summary["reading"]
    return summary["mistake"] or ""


def kernels_run(bench, name, run):
    """Kernels get operands that are cut out of a run of the reference, and are judged as one operator."""
    whole, cases, out = (relative(os.path.join(WORK, f"{name}-{part}.safetensors")) for part in
                         ("run", "cases", "results"))
    model = ["--model", run.model_path(), "--case", run.case_path()]
    judge = ["op", "sparse_attention", "--check", cases, out, "--profile", ENGINES[name].profiles[run.dtype]]
    commands = [
        [bench.program, "run", run.model_path(), "--case", run.case_path(), "--dump", whole],
        [bench.program, "op", "sparse_attention", "--make", cases, "--from", whole, "--tap", "layers.0.attn", *model,
         *run.options, "--dtype", run.dtype],
        [sys.executable, "scripts/engines/kernels.py", name, cases, out], [bench.program, *judge, "--json"]]
    for words in commands:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
        if done.returncode and words is not commands[-1]:
            raise Failed((done.stderr.strip().splitlines() or ["no reason given"])[-1])
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if not lines or lines[-1]["type"] != "summary":
        raise Failed((done.stderr.strip().splitlines() or ["no verdict"])[-1])
    stages = [line for line in lines if line["type"] in ("stage", "selection")]
    wrong = [line for line in stages if line["verdict"] in ("fail", "inadmissible")]
    summary = {"culprit": None, "reading": None, "judged": len(stages), "failed": len(wrong), **lines[-1]}
    shown = [["build/m3ref", *words[1:]] for words in commands[:2]]
    shown += [["python3", *commands[2][1:]], ["build/m3ref", *judge]]
    return {"run": run, "commands": shown, "check": judge, "summary": summary, "wrong": wrong}


def one_run(bench, name, run):
    if ENGINES[name].kernels:
        return kernels_run(bench, name, run)
    out = relative(os.path.join(WORK, f"{name}.safetensors"))
    made = [["build/m3ref", *bench.make_model(run)]] if run.model in MODELS else []
    words = bench.dump(name, run, out)
    command, summary, wrong = bench.judge(name, run, out)
    shown = [*made, ["python3", "scripts/engines/dump.py", *words], ["build/m3ref", *command]]
    return {"run": run, "commands": shown, "check": command, "summary": summary, "wrong": wrong}


def same_fault(summary, wanted):
    return all(summary[key] == wanted[key] for key in ("culprit", "reading", "mistake"))


def smallest_case(bench, name, run, wanted):
    """(tokens, tensor lines, summary) of the least start of the case at which the judge says the same."""
    ids = files.read(os.path.join(ROOT, run.case_path()))[0]["input_ids"]
    folder, least, most, found = os.path.join(WORK, "prefix"), 1, len(ids), None
    os.makedirs(folder, exist_ok=True)
    while least < most:
        middle = (least + most) // 2
        case = relative(os.path.join(folder, "case.safetensors"))
        files.write(os.path.join(ROOT, case),
                    files.to_bytes({"input_ids": files.from_array(ids[:middle].astype(np.int32))}))
        shorter = ShorterRun(run, case)
        out = relative(os.path.join(WORK, "prefix.safetensors"))
        bench.dump(name, shorter, out)
        _, summary, wrong = bench.judge(name, shorter, out)
        if same_fault(summary, wanted):
            most, found = middle, (middle, wrong, summary)
        else:
            least = middle + 1
    return most, found[1] if found else [], found[2] if found else None


class ShorterRun:
    """A run on a case that is no golden."""

    def __init__(self, run, case):
        self.run, self.case = run, case
        self.dtype, self.options, self.reading, self.own_weights = run.dtype, run.options, run.reading, run.own_weights

    def model_path(self):
        return self.run.model_path()

    def case_path(self):
        return self.case


def deviation(bench, name, results):
    """The first wrong fp32 run, at the least number of tokens that shows it; None if there is none."""
    for result in results:
        run, summary = result["run"], result.get("summary")
        if summary and summary["verdict"] == "fail" and run.dtype == "f32" and not run.options and "/" not in run.case:
            tokens, wrong, shorter = smallest_case(bench, name, run, summary)
            return {"tokens": tokens, "wrong": wrong or result["wrong"], "summary": shorter or summary, "run": run}
    return None


def one_mistake(bench, name, mistake):
    run, expected = ENGINES[name].mistakes, mistakes.MISTAKES[name][mistake]
    run = run._replace(case=expected.case or run.case)
    if run.model in MODELS:
        bench.make_model(run)
    out = relative(os.path.join(WORK, f"{name}-mistake.safetensors"))
    bench.dump(name, run, out, mistake)
    _, summary, _ = bench.judge(name, run, out)
    right = summary["verdict"] == "fail" and summary["culprit"] == expected.culprit
    right = right and (not expected.known or explanation(summary) in expected.known)
    return {"mistake": mistake, "summary": summary, "expected": expected, "right": right}


def mistakes_of(bench, name, found, write):
    for mistake in mistakes.MISTAKES.get(name, {}):
        try:
            row = one_mistake(bench, name, mistake)
        except Failed as reason:
            bench.troubles.append(f"{name}, {mistake}: {reason}")
            continue
        found["mistakes"].append(row)
        if not row["right"]:
            bench.troubles.append(f"{name}, {mistake}: the judge says {row['summary']['culprit']} "
                                  f"{explanation(row['summary'])}, expected {row['expected'].culprit} "
                                  f"{' or '.join(row['expected'].known)}")
        print(name, mistake, row["summary"]["culprit"], explanation(row["summary"]), flush=True)
        write(found)


def runs_of(bench, name, found, write):
    for run in ENGINES[name].runs:
        try:
            found["runs"].append(one_run(bench, name, run))
            print(name, run.model, run.case, run.dtype, found["runs"][-1]["summary"]["verdict"], flush=True)
        except Failed as reason:
            found["runs"].append({"run": run, "trouble": str(reason)})
            bench.troubles.append(f"{name} {run.model} {run.case} {run.dtype}: {reason}")
            print(bench.troubles[-1], flush=True)
        write(found)


def one_engine(bench, name, with_mistakes, write):
    """Finds all that the page says about an engine; write(found) is called after each verdict."""
    found = {"name": name, "runs": [], "mistakes": [], "trouble": None, "deviation": None}
    try:
        environments.python(name)
    except environments.NotInstalled as reason:
        found["trouble"] = str(reason)
        bench.troubles.append(str(reason))
        write(found)
        return
    if with_mistakes:
        mistakes_of(bench, name, found, write)
    runs_of(bench, name, found, write)
    found["deviation"] = deviation(bench, name, found["runs"])
    write(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/m3ref")
    parser.add_argument("--page", default=os.path.join(ROOT, "golden", "ENGINES.md"))
    parser.add_argument("--no-mistakes", action="store_true")
    parser.add_argument("engines", nargs="*", metavar="ENGINE")
    arguments = parser.parse_args()
    for name in arguments.engines:
        if name not in ENGINES:
            parser.error(f"got engine {name}, expected one of: {', '.join(ENGINES)}")
    bench = Bench(os.path.abspath(arguments.program))
    for name in arguments.engines or ENGINES:
        one_engine(bench, name, not arguments.no_mistakes,
                   lambda found: page.replace(arguments.page, found["name"], found))
    for trouble in bench.troubles:
        print(trouble)
    sys.exit(bool(bench.troubles))


if __name__ == "__main__":
    main()

"""golden/ENGINES.md: a section for each engine, between marks, so that one of them can be written anew."""

import os
import re
import shlex

from .registry import ENGINES

HEAD = """# Public engines, judged

`make engines` writes this page: it runs public engines on goldens, on a CPU and with their sources unchanged, and
judges each dump with `m3ref check`. `make engines ENGINE=mlx_lm` runs one of them and replaces its section.
`scripts/engines/README.md` says how an engine is added.

Precision is that of weights and activations. The verdict is that of `m3ref check` under the profile that is named, with
the readings that are named: nothing else is allowed for. Taps counts the tensors that were judged.
"""
MARK = "<!-- {} -->"


def code(text):
    return f"`{text}`" if text else ""


def command(words):
    return " ".join(shlex.quote(word) for word in words)


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def run_row(engine, result):
    run = result["run"]
    what = [run.model, run.case + "".join(f" {option}" for option in run.options), run.dtype]
    if "trouble" in result:
        return [*what, "", "not run: " + result["trouble"].replace("|", "/"), "", "", "", ""]
    summary, words = result["summary"], result["check"]
    readings = ", ".join(words[at + 1] for at, word in enumerate(words) if word == "--set")
    cause = summary["reading"] or summary["mistake"]
    return [*what, code(words[words.index("--profile") + 1]) + (" " + code(readings) if readings else ""),
            f"**{summary['verdict']}**" if summary["verdict"] != "pass" else "pass",
            f"{summary['judged'] - summary['failed']} of {summary['judged']}", code(summary["first_divergence"]),
            code(summary["culprit"]), code(cause)]


def deviation_text(found):
    summary, wrong, run = found["summary"], found["wrong"], found["run"]
    lines = [f"The first {found['tokens']} tokens of `{run.case_path()}` on `{run.model_path()}` are the smallest case "
             f"found, in {run.dtype}. The first wrong tensor is `{summary['culprit']}` ({summary['operator']})."]
    for line in wrong[:1]:
        if line.get("got") is not None:
            lines.append(f"At {line.get('index')} it is {line['got']}; expected: {line.get('want')}.")
    lines.append(re.sub(r" in \S+\.safetensors", "", summary["sentence"]))
    return "\n".join(lines)


def section(name, found):
    engine = ENGINES[name]
    parts = [f"## {engine.title}", engine.remarks] if engine.remarks else [f"## {engine.title}"]
    if found["trouble"]:
        return "\n\n".join([*parts, f"**Not installed:** {found['trouble']}"])
    parts.append(table(("model", "case", "precision", "profile, reading", "verdict", "taps right",
                        "first divergence", "culprit", "mistake or reading"),
                       [run_row(engine, result) for result in found["runs"]]))
    first = next((result for result in found["runs"] if result.get("summary", {}).get("verdict") not in (None, "pass")),
                 next((result for result in found["runs"] if "summary" in result), None))
    if first:
        parts.append("One of these rows again:\n\n" +
                     "\n".join("    " + command(words) for words in first["commands"]))
    if found["deviation"]:
        parts += ["### Deviation", deviation_text(found["deviation"])] + [engine.report] * bool(engine.report)
    if found["mistakes"]:
        rows = [[row["mistake"], code(row["summary"]["culprit"]),
                 code(row["summary"]["reading"] or row["summary"]["mistake"]) or row["summary"]["operator"] or "",
                 "yes" if row["right"] else "**no**"] for row in found["mistakes"]]
        caught = sum(row["right"] for row in found["mistakes"])
        parts += ["### Deliberate mistakes",
                  f"Put into the engine by `scripts/engines/mistakes.py`, on `{engine.mistakes.model_path()}` in f32; {caught} of "
                  f"{len(rows)} are found at the tap where they were made and named. Where no known mistake says "
                  "the same, the "
                  "operator stands for the name.",
                  table(("mistake", "culprit", "named", "as expected"), rows)]
    return "\n\n".join(parts)


def replace(path, name, found):
    """Writes the section of one engine; the others stay, in the order of the registry."""
    sections = {}
    if os.path.exists(path):
        with open(path) as file:
            text = file.read()
        for other in ENGINES:
            start, end = MARK.format(other), MARK.format("end of " + other)
            if start in text and end in text:
                sections[other] = text[text.index(start) + len(start):text.index(end)].strip("\n")
    sections[name] = section(name, found)
    parts = [HEAD.strip("\n")]
    parts += [f"{MARK.format(other)}\n{sections[other]}\n{MARK.format('end of ' + other)}"
              for other in ENGINES if other in sections]
    with open(path + ".part", "w") as file:
        file.write("\n\n".join(parts) + "\n")
    os.replace(path + ".part", path)

"""The coverage map: which case shows each formula, branch, clamp side, tie rule and edge of SPEC.md.

    python map.py PROGRAM FOLDER [--check]

FOLDER/coverage.json has a row for each of them, with a predicate (predicates.py) on the numbers of a case. This program
makes the cases of all operators, asks the reference in double for their results, evaluates the predicates, and writes
FOLDER/coverage.tsv: row, kind, what it is about, and everything that covers it. --check compares instead of writing.
A row names one or more of

    "of", "when"     operators, and the predicate on their operands, parameters, results and derived quantities
    "taps"           a predicate on the taps of a whole model, for all goldens
    "test", "why"    FILE:TEST, a test of the parts, and why no case and no golden can show it

Exit status 1 if nothing covers a row, if SPEC.md states something that no row quotes (text.py), if a predicate names
something that a case does not have, or, with --check, if the table differs.
"""

import json
import os
import re
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
# The file tensors.py of the package alone: the package would load the library.
sys.path[:0] = [HERE, os.path.join(HERE, "..", "python", "m3ref")]

from cases import cases_of, operators                                                           # noqa: E402
from derived import QUANTITIES                                                                  # noqa: E402
from goldens import goldens                                                                     # noqa: E402
from predicates import PredicateError, Scope, holds                                             # noqa: E402
from text import uncovered                                                                      # noqa: E402

KINDS = {"formula", "branch", "clamp", "tie", "edge", "order", "error"}


def malformed(row):
    """What is wrong with a row of the data file, or None."""
    known = {"id", "kind", "spec", "what", "of", "when", "taps", "test", "why"}
    if not set(row) <= known or not {"id", "kind", "what"} <= set(row):
        return f"got the fields {sorted(row)}, expected id, kind, what and others of {sorted(known)}"
    if row["kind"] not in KINDS:
        return f"got the kind {row['kind']}, expected one of {sorted(KINDS)}"
    if ("of" in row) != ("when" in row) or ("test" in row) != ("why" in row):
        return "got one of the fields of a pair, expected of and when, or test and why"
    if not {"when", "taps", "test"} & set(row):
        return "got nothing that may cover the row, expected when, taps or test"
    return None


def tested(name):
    """[the test] if it is there."""
    path, _, test = name.partition(":")
    if not os.path.exists(os.path.join(ROOT, path)):
        return []
    with open(os.path.join(ROOT, path)) as file:
        return [name] if not test or re.search(rf"^(LOOP_)?TEST(_IF)?\({test}\b", file.read(), re.MULTILINE) else []


def covering_cases(row, cases, findings):
    """The cases of which the predicate is true; every operator that the row names needs one."""
    found, idle = [], []
    for name in row["of"]:
        true = []
        for case, scope in cases.get(name, []):
            try:
                true += [case] if holds(row["when"], scope) else []
            except PredicateError as why:
                findings.append(f"{row['id']}: {why}")
                break
        found += true
        idle += [] if true else [name]
    if idle:
        findings.append(f"{row['id']}: no case of {' and '.join(idle)} covers it: {row['what']}")
    return [] if idle else found


def covering_goldens(row, models, findings):
    """A golden that does not hold the taps of the predicate does not cover the row."""
    found, known = [], False
    for model in models:
        model.missing = False
        try:
            true = holds(row["taps"], Scope(model.values(), {}, f"golden {model.name}"))
        except PredicateError as why:
            true = False
            if not model.missing:
                findings.append(f"{row['id']}: {why}")
        known |= not model.missing
        found += [f"golden/{model.name}"] if true and not model.missing else []
    if not known:
        findings.append(f"{row['id']}: no golden holds the taps of this predicate")
    return found


def covering(row, cases, models, findings):
    """Everything that covers a row; nothing if one of the ways that it names covers nothing."""
    ways = []
    if "when" in row:
        ways.append(covering_cases(row, cases, findings))
    if "taps" in row:
        ways.append(covering_goldens(row, models, findings))
    if "test" in row:
        ways.append(tested(row["test"]))
    return sum(ways, []) if all(ways) else []


def tables(program, rows, page, findings):
    listed = operators(program)
    with tempfile.TemporaryDirectory() as folder:
        cases = {o["name"]: [(case, Scope(values, QUANTITIES, case)) for case, values in cases_of(program, o, folder)]
                 for o in listed}
    models, lines, seen = goldens(os.path.join(ROOT, "golden")), ["row\tkind\twhat\tcovered by"], set()
    for row in rows:
        wrong = malformed(row) or ("got this id twice, expected once" if row["id"] in seen else None)
        if wrong:
            findings.append(f"{row.get('id', 'a row')}: {wrong}")
            continue
        seen.add(row["id"])
        findings += [f"{row['id']}: got the operator {name}, expected one of m3ref op --list"
                     for name in row.get("of", []) if name not in cases]
        found = covering(row, cases, models, findings)
        lines.append("\t".join([row["id"], row["kind"], row["what"], " ".join(found) or "-"]))
        if not found and "when" not in row:
            findings.append(f"{row['id']}: nothing covers it: {row['what']}")
    for o in listed:
        if not any(o["name"] in row.get("of", []) for row in rows):
            findings.append(f"{o['name']}: no row is about this operator")
    findings += uncovered(page, rows)
    return lines


def main():
    words = [word for word in sys.argv[1:] if word != "--check"]
    if len(words) != 2:
        raise SystemExit(__doc__)
    with open(os.path.join(words[1], "coverage.json")) as file:
        rows = json.load(file)
    with open(os.path.join(ROOT, "SPEC.md")) as file:
        page = file.read()
    findings = []
    lines = tables(words[0], rows, page, findings)
    path, text = os.path.join(words[1], "coverage.tsv"), "\n".join(lines) + "\n"
    if "--check" not in sys.argv:
        with open(path + ".part", "w") as file:
            file.write(text)
        os.replace(path + ".part", path)
    elif not os.path.exists(path) or open(path).read() != text:
        findings.append(f"{path}: differs; make kill-matrix writes it")
    for finding in findings:
        print(finding)
    ways = [line.rsplit("\t", 1)[1] for line in lines[1:]]
    patterns = (r"(^| )[a-z_0-9]+\.\d", "golden/", "tests/")
    by = [sum(bool(re.search(pattern, way)) for way in ways) for pattern in patterns]
    print(f"{len(ways)} rows of the coverage map, {ways.count('-')} uncovered; {by[0]} are covered by cases of single "
          f"operators, {by[1]} by goldens, {by[2]} by tests of the parts")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()

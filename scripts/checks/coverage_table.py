#!/usr/bin/env python3
"""Lines and branches per folder of ref/ from a tracefile of gcovr, beside the target of each folder.

usage: coverage_table.py TRACE EXCEPTIONS [--missing GLOB]      --missing lists the branches that no test takes

EXCEPTIONS: FILE<tab>PATTERN<tab>REASON; the branches of a line of the file (a glob) that matches the pattern, or whose next
line does, are counted apart, as far as no test takes them. A row that matches no line is an error.
"""
import fnmatch
import json
import re
import sys
from collections import defaultdict
from pathlib import Path

TARGETS = {"base": 97, "io": 97, "model": 97, "oracle": 95}
OTHERS = 90


def exceptions(path):
    rows = []
    for line in Path(path).read_text().splitlines():
        if line.startswith("#") or not line:
            continue
        file, pattern, reason = line.split("\t")
        if not reason.strip():
            sys.exit(f"{path}: {pattern}: got no reason")
        rows.append([file, re.compile(pattern), 0, line])
    return rows


def is_excepted(rows, file, text):
    hits = [row for row in rows if fnmatch.fnmatch(file, row[0]) and row[1].search(text)]
    for row in hits:
        row[2] += 1
    return bool(hits)


def main():
    trace, rows = json.loads(Path(sys.argv[1]).read_text()), exceptions(sys.argv[2])
    missing = sys.argv[4] if len(sys.argv) > 4 else None
    counts = defaultdict(lambda: [0] * 5)   # lines, lines reached, branches, branches taken, excepted
    for file in trace["files"]:
        name = file["file"]
        source = Path(name).read_text().splitlines()
        folder = counts[name.split("/")[1]]
        for line in file["lines"]:
            if line.get("gcovr/noncode"):
                continue
            taken = sum(b["count"] > 0 for b in line["branches"])
            folder[0] += 1
            folder[1] += line["count"] > 0
            at = line["line_number"] - 1
            if is_excepted(rows, name, " ".join(source[at:at + 2])):
                folder[4] += len(line["branches"]) - taken
                folder[2] += taken
            else:
                folder[2] += len(line["branches"])
                if missing and taken < len(line["branches"]) and fnmatch.fnmatch(name, missing):
                    print(f"{name}:{line['line_number']}: {taken} of {len(line['branches'])}: "
                          f"{source[at].strip()[:100]}")
            folder[3] += taken
    low = 0
    print(f"{'folder':10} {'lines':>7} {'%':>6} {'branches':>9} {'%':>6} {'target':>7} {'excepted':>9}")
    for name, (lines, reached, branches, taken, apart) in sorted(counts.items()):
        target, share = TARGETS.get(name, OTHERS), 100 * taken / max(branches, 1)
        low += share < target
        print(f"{name:10} {lines:7} {100 * reached / lines:6.1f} {branches:9} {share:6.1f} {target:7} {apart:9}")
    unused = [row[3] for row in rows if row[2] == 0]
    for row in unused:
        print(f"exception without a line: {row}")
    sys.exit(1 if low or unused else 0)


main()

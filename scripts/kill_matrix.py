"""Who catches which known mistake: the committed cases of `m3ref op`, and the goldens.

    python scripts/kill_matrix.py PROGRAM FOLDER [--check]

Makes the cases of every operator (tiny, seed 1; `m3ref op NAME --make`) and writes three files to FOLDER: cases.sha256,
the hashes of these files of cases; cases.tsv, what each case covers; kills.tsv, for every known mistake the cases that
catch it, and the golden and the tap at which `compare` finds it (the table of REFERENCE.md 7.12, which test_known_bugs
recomputes). --check compares with the files in FOLDER instead of writing them.

Exit status 1 if a mistake is caught by no case and no golden, or, with --check, if a file differs.
"""

import hashlib
import json
import os
import re
import struct
import subprocess
import sys
import tempfile

PAGE = os.path.join(os.path.dirname(__file__), "..", "ref", "oracle", "REFERENCE.md")


def lines_of(program, *words):
    done = subprocess.run([program, *words], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def cases_of(program, name, folder):
    """The bytes of the file of cases, and its list of cases."""
    path = os.path.join(folder, "cases.safetensors")
    subprocess.run([program, "op", name, "--make", path], check=True, capture_output=True)
    with open(path, "rb") as file:
        content = file.read()
    size = struct.unpack("<Q", content[:8])[0]
    return content, json.loads(json.loads(content[8:8 + size])["__metadata__"]["cases"])


def goldens():
    """{mistake: (golden, first tap)} from the table of measured effects."""
    with open(PAGE) as file:
        rows = [re.split(r" *\| *", line.strip().strip("|").strip()) for line in file if line.startswith("| ")]
    return {row[0]: (row[1], row[2]) for row in rows
            if len(row) >= 5 and re.fullmatch(r"[a-z0-9]+\.[a-z0-9_]+(:[a-z]+)?", row[0])
            and ("." in row[2] or row[2] in ("embed", "logits"))}


def tables(program):
    hashes, covered, kills = [], [], {}
    with tempfile.TemporaryDirectory() as folder:
        for row in lines_of(program, "op", "--list", "--json"):
            content, cases = cases_of(program, row["name"], folder)
            hashes.append(f"{hashlib.sha256(content).hexdigest()}  {row['name']}")
            for case in cases:
                covered.append(f"{row['name']}\t{case['case']}\t{row['section']}\t{case['what']}")
                for mistake in case["catches"]:
                    kills.setdefault(mistake, []).append(f"{row['name']}.{case['case']}")
    by_golden = goldens()
    matrix, missed = [], []
    for mistake in lines_of(program, "mistakes", "--json"):
        name = mistake["id"]
        golden = " ".join(by_golden.get(name, ("-",)))
        matrix.append(f"{name}\t{golden}\t{' '.join(kills.get(name, ['-']))}")
        if golden == "-" and name not in kills:
            missed.append(name)
    return {"cases.sha256": hashes, "cases.tsv": ["operator\tcase\tSPEC\tcovers", *covered],
            "kills.tsv": ["mistake\tgolden and tap\tcases", *matrix]}, missed


def main():
    words = [word for word in sys.argv[1:] if word != "--check"]
    if len(words) != 2:
        raise SystemExit(__doc__)
    files, missed = tables(words[0])
    different = []
    for name, lines in files.items():
        path, text = os.path.join(words[1], name), "\n".join(lines) + "\n"
        if "--check" not in sys.argv:
            with open(path + ".part", "w") as file:
                file.write(text)
            os.replace(path + ".part", path)
        elif not os.path.exists(path) or open(path).read() != text:
            different.append(path)
    for name in missed:
        print(f"{name}: caught by no case and no golden")
    for path in different:
        print(f"{path}: differs; make kill-matrix writes it")
    matrix = files["kills.tsv"]
    print(f"{len(matrix) - 1} known mistakes, {len(missed)} missed; "
          f"{sum(not line.endswith(chr(9) + '-') for line in matrix[1:])} caught by cases of single operators")
    sys.exit(1 if missed or different else 0)


if __name__ == "__main__":
    main()

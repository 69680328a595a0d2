#!/usr/bin/env python3
"""Static analysis of ref/: gcc -fanalyzer, clang-tidy (.clang-tidy), cppcheck; 0 findings are expected.

usage: analyze.py COMMANDS.json [--tools gcc,clang-tidy,cppcheck] [--files GLOB]
known.tsv has the findings that are none, each with its reason; one that no longer occurs has to leave it.
"""
import argparse
import concurrent.futures
import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
STATUSES = HERE / "statuses.h"
PACKAGES = {"gcc": "gcc", "clang-tidy": "clang-tidy", "cppcheck": "cppcheck"}
# status.c defines the functions that statuses.h redefines.
DEFINES_STATUSES = "ref/base/status.c"
FINDING = {
    "gcc": re.compile(r"^(\S+?):(?:(\d+):)?.* warning: (.*) \[-W([a-z-]+)\]$"),
    "clang-tidy": re.compile(r"^(\S+?):(\d+):\d+: (?:warning|error): (.*) \[([a-zA-Z.,-]+)\]$"),
    "cppcheck": re.compile(r"^(\S+?):(\d+): (?:\w+): (.*) \[(\w+)\]$"),
}
# gcc 12 takes memory for lost that is stored behind a pointer it was given, and values for unset that were set through
# one; the leak checker of `make asan`, memcheck of `make valgrind` and clang look for both.
GCC = ["-fanalyzer", "-Wno-analyzer-malloc-leak", "-Wno-analyzer-use-of-uninitialized-value", "-Wno-unused-value",
       "-D_GNU_SOURCE"]
CPPCHECK = ["--quiet", "--enable=warning,portability,performance", "--std=c11", "-Iref",
            "-DM3_CPPCHECK",
            "--suppress=missingInclude", "--template={file}:{line}: {severity}: {message} [{id}]"]


def words(command):
    """The words of a compiler's command that matter to an analyser, without the output."""
    kept, skip, given = [], False, shlex.split(command)
    if "mpicc" in given:  # after a setting; what it gives to the compiler
        given = [*given[given.index("mpicc") :], *subprocess.check_output(["mpicc", "--showme:compile"], text=True).split()]
    for word in given[1:]:
        if skip or word in ("-Werror", "-MMD", "-MP", "-c", "-shared"):
            skip = False
        elif word == "-o":
            skip = True
        else:
            kept.append(word)
    return kept


def analyse(tool, file, command):
    prefix = [] if file == DEFINES_STATUSES else ["-include", str(STATUSES)]
    if tool == "gcc":
        call = ["gcc", *prefix, *words(command), *GCC, "-c", "-o", os.devnull]
    elif tool == "clang-tidy":
        kept = [w for w in words(command) if w != file and w != "-fno-semantic-interposition"]
        call = ["clang-tidy", "--quiet", file, "--", "-D_GNU_SOURCE", "-Wno-unused-value", *prefix, *kept]
    else:
        defines = [w for w in words(command) if w.startswith("-D") and '"' not in w]
        include = [] if file == DEFINES_STATUSES else [f"--include={STATUSES}"]
        call = ["cppcheck", *CPPCHECK, *include, *defines, file]
    done = subprocess.run(call, capture_output=True, text=True, errors="replace")
    lines = (done.stdout + done.stderr).splitlines()
    found = {(m[1], m[2] or "0", m[4].split(",")[0], m[3]) for m in map(FINDING[tool].match, lines) if m}
    if done.returncode and not found and tool == "gcc":
        found.add((file, "0", "not-compiled", lines[0] if lines else "no message"))
    return [(tool, *each) for each in found]


def read_known():
    rows = [line.split("\t") for line in (HERE / "known.tsv").read_text().splitlines()]
    for row in rows:
        if len(row) != 4 or not row[3].strip():
            sys.exit(f"known.tsv: got {row}, expected tool, file, finding, reason")
    return {tuple(row[:3]): row[3] for row in rows}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("commands")
    parser.add_argument("--tools", default=",".join(FINDING))
    parser.add_argument("--files", default="ref/*")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()
    tools = args.tools.split(",")
    missing = [PACKAGES[tool] for tool in tools if not shutil.which(tool)]
    if missing:
        print("analyze.py: these Debian packages are missing: apt-get install", *missing, file=sys.stderr)
        sys.exit(69)

    commands = {}
    for entry in json.loads(Path(args.commands).read_text()):
        if fnmatch.fnmatch(entry["file"], args.files) and entry["file"].endswith(".c"):
            commands.setdefault(entry["file"], entry["command"])
    if not commands:
        sys.exit("analyze.py: no file to analyse")
    known, met, findings = read_known(), set(), []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        jobs = [pool.submit(analyse, t, f, c) for f, c in commands.items() for t in tools]
        for job in jobs:
            for tool, file, line, name, message in job.result():
                key = (tool, os.path.relpath(file) if file.startswith("/") else file, name)
                met.add(key)
                if key not in known:
                    findings.append(f"{key[1]}:{line}: {message} [{tool}: {name}]")
    for key in known:
        if key not in met and key[0] in tools and key[1] in commands:
            findings.append(f"known.tsv: {' '.join(key)}: no longer found")
    for finding in sorted(findings):
        print(finding)
    print(f"{len(commands)} files, {', '.join(tools)}: {len(findings)} findings, {len(met & known.keys())} known")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()

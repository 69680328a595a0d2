#!/usr/bin/env python3
"""Kills commands that write, at random moments, and looks at what is left.

Claims, after each kill: every output's name holds the old file, byte for byte, or a whole new one; after the next run of
the same outputs nothing else is in the folder. A synth's folder is absent, or whole.

Usage: kills.py PROGRAM [COUNT [SEED]]; the last line is "N passed, N failed". `make kills` runs 1,000.
Every other kill finds a system that refuses files without a name: a library in front of the C library does that.
Seen to fail with outputs that are written in place (new_file.c), and without the sweep (leftover.c).
"""
import gzip
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import xml.dom.minidom

WORDS = {"MODEL": "golden/tiny/model", "CASE": "golden/tiny/case.safetensors",
         "GOLDEN": "golden/tiny/golden.safetensors.gz"}
# name, arguments (OUT is the folder), outputs
COMMANDS = [
    ("run", "run MODEL --case CASE --bounds --dump OUT/a.safetensors", ["a.safetensors"]),
    ("run .gz", "run MODEL --case CASE --dump OUT/a.safetensors.gz", ["a.safetensors.gz"]),
    ("cache", "run MODEL --ids 1,2,3 --cache-out OUT/c.safetensors", ["c.safetensors"]),
    ("compare", "compare GOLDEN GOLDEN --html OUT/a.html --junit OUT/a.xml --ledger OUT/a.jsonl",
     ["a.html", "a.xml", "a.jsonl"]),
    ("blame", "blame MODEL GOLDEN --case CASE --force --html OUT/a.html", ["a.html"]),
    ("check", "check MODEL GOLDEN --case CASE --truth OUT/truth --junit OUT/a.xml", ["truth", "a.xml"]),
    ("envelope", "envelope MODEL --case CASE --profile bf16 --runs 2 --out OUT/e.safetensors", ["e.safetensors"]),
    ("op", "op rms_norm --make OUT/o.safetensors", ["o.safetensors"]),
    ("synth", "synth MODEL/config.json OUT/m", ["m"]),
]
REFUSES_NAMELESS = """
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>
int open(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    int mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, int) : 0;
    va_end(rest);
    if ((flags & O_TMPFILE) == O_TMPFILE) return errno = EOPNOTSUPP, -1;
    return syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
"""
SIGNALS = [signal.SIGKILL] * 8 + [signal.SIGTERM, signal.SIGINT]


def whole(path):
    """Why the file is not a whole one of its kind, or None."""
    try:
        if os.path.isdir(path):
            inside = sorted(os.listdir(path))
            if inside != ["config.json", "model.safetensors"]:
                return f"holds {inside}"
            return whole(path + "/config.json") or whole(path + "/model.safetensors")
        data = open(path, "rb").read()
        if path.endswith(".gz"):
            data, path = gzip.decompress(data), path[:-3]
        if path.endswith((".safetensors", "truth")):
            length = struct.unpack("<Q", data[:8])[0]
            header = json.loads(data[8:8 + length])
            end = max([v["data_offsets"][1] for k, v in header.items() if k != "__metadata__"], default=0)
            return None if len(data) == 8 + length + end else f"has {len(data)} bytes, not {8 + length + end}"
        if path.endswith(".xml"):
            xml.dom.minidom.parseString(data)
        elif path.endswith(".json"):
            json.loads(data)
        elif path.endswith(".jsonl"):
            [json.loads(line) for line in data.splitlines()]
        elif not data.rstrip().endswith(b"</html>"):
            return "has no end"
    except Exception as error:  # whatever a half file makes a parser say
        return f"{type(error).__name__}: {error}"
    return None


def start(program, words, folder, preload=None):
    environment = dict(os.environ, LD_PRELOAD=preload) if preload else None
    for word, path in dict(WORDS, OUT=folder).items():
        words = words.replace(word, path)
    return subprocess.Popen([program] + words.split(), stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, env=environment)


def old_outputs(folder, outputs):
    """Other bytes under every name, which a killed command must leave; no folder, and no truth, which would be read."""
    for name in outputs:
        path = os.path.join(folder, name)
        shutil.rmtree(path, ignore_errors=True)
        if "." in name:
            open(path, "w").write("old")
        elif os.path.exists(path):
            os.remove(path)


def trial(program, command, longest, random_source, preload):
    """The findings of one kill."""
    _, words, outputs = command
    folder, findings = tempfile.mkdtemp(prefix="m3ref-kills-"), []
    try:
        old_outputs(folder, outputs)
        process = start(program, words, folder, preload)
        time.sleep(random_source.random() * longest)
        process.send_signal(random_source.choice(SIGNALS))
        process.stderr.read()
        process.wait()
        for name in outputs:
            path = os.path.join(folder, name)
            is_old = not os.path.exists(path) if "." not in name else open(path, "rb").read() == b"old"
            why = None if is_old else whole(path)
            if why:
                findings.append(f"{name} after the kill: {why}")
        old_outputs(folder, outputs)
        process = start(program, words, folder, preload)
        said = process.stderr.read().decode(errors="replace")
        if not 0 <= process.wait() < 64:
            findings.append(f"the next run: status {process.returncode}: {said[:200]}")
        for name in outputs:
            why = whole(os.path.join(folder, name))
            if why:
                findings.append(f"{name} after the next run: {why}")
        rest = sorted(set(os.listdir(folder)) - set(outputs))
        if rest:
            findings.append(f"left: {rest}")
    finally:
        shutil.rmtree(folder)
    return findings


def time_of(program, command):
    folder = tempfile.mkdtemp(prefix="m3ref-kills-")
    try:
        begin = time.monotonic()
        process = start(program, command[1], folder)
        process.stderr.read()
        process.wait()
        return time.monotonic() - begin
    finally:
        shutil.rmtree(folder)


def main():
    program, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.SystemRandom().randrange(1 << 32)
    random_source = random.Random(seed)
    print(f"kills: seed {seed}", flush=True)
    longest = {command[0]: time_of(program, command) * 1.1 for command in COMMANDS}
    weights = [1 / max(longest[command[0]], 0.02) ** 2 for command in COMMANDS]
    library = tempfile.NamedTemporaryFile(suffix=".so")
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", library.name, "-x", "c", "-"], input=REFUSES_NAMELESS.encode(),
                   check=True)
    failed = 0
    for number in range(count):
        command = COMMANDS[number % len(COMMANDS)] if number < 2 * len(COMMANDS) else \
            random_source.choices(COMMANDS, weights)[0]
        findings = trial(program, command, longest[command[0]], random_source,
                         library.name if number % 2 else None)
        failed += bool(findings)
        for finding in findings[:3]:
            print(f"FAIL {number} {command[0]}: {finding}")
    print(f"{count - failed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())

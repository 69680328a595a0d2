#!/usr/bin/env python3
"""Kills commands that write, at random moments, and looks at what is left.

Claims, after each kill: every output's name holds the old file, byte for byte, or a whole new one; no process of the
command is left, also if one of several ranks is killed; after the next run of the same outputs nothing else is in the
folder. A folder of a model is absent, or whole. What --resume has kept may stay until the next run, which uses it.

Usage: kills.py PROGRAM [COUNT [SEED [NAME]]]; the last line is "N passed, N failed". `make kills` runs 1,000.
Every other kill finds a system that refuses files without a name: a library in front of the C library does that.
Commands of the Python package, and of several ranks, are left out, with a line, where those are not installed.
Seen to fail with outputs that are written in place (new_file.c), and without the sweep (leftover.c; write_whole of the
package).
"""
import glob
import gzip
import importlib.util
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
    ("resume", "run MODEL --case CASE --resume OUT/state --dump OUT/a.safetensors --cache-out OUT/c.safetensors",
     ["a.safetensors", "c.safetensors"]),
    ("odd names", "run MODEL --case CASE --dump OUT/ODD.safetensors", ["ODD.safetensors"]),
    ("baseline", "compare GOLDEN GOLDEN --baseline BASELINE --html OUT/a.html --ledger OUT/a.jsonl", ["a.html", "a.jsonl"]),
    ("map", "compare GOLDEN MAPPED --map transformers --profile bf16 --force --html OUT/a.html", ["a.html"]),
]
WITH_PYTHON = [
    ("words", "run MODEL --prompt Hello --dump OUT/a.safetensors", ["a.safetensors"]),
    ("chat", "run MODEL --chat CHAT --dump OUT/a.safetensors", ["a.safetensors"]),
    ("convert", "PYTHON -m m3ref convert CASE OUT/a.safetensors", ["a.safetensors"]),
    ("convert .gz", "PYTHON -m m3ref convert CASE OUT/a.safetensors.gz", ["a.safetensors.gz"]),
    ("gguf", "PYTHON scripts/gguf_model.py GGUF OUT/m", ["m"]),
]
RANKS = "mpirun --quiet --allow-run-as-root --oversubscribe --bind-to none --mca pml ob1 --mca btl self,vader -n 3 PROGRAM "
WITH_RANKS = [
    ("ranks", RANKS + "run MODEL --case CASE --bounds --threads 1 --dump OUT/a.safetensors", ["a.safetensors"]),
    ("ranks, check", RANKS + "check MODEL GOLDEN --case CASE --threads 1 --truth OUT/truth --junit OUT/a.xml", ["truth", "a.xml"]),
]
SOON = 60       # seconds, within which all has ended after a kill
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
    environment = dict(os.environ, M3REF_KILLS=folder, PYTHONPATH="scripts/python", PYTHONDONTWRITEBYTECODE="1",
                       PATH=os.path.dirname(sys.executable) + ":" + os.environ["PATH"])
    if preload:
        environment["LD_PRELOAD"] = preload
    for word, path in dict(WORDS, PROGRAM=program, OUT=folder).items():
        words = words.replace(word, path)
    words = words.split()
    if words[0] not in (sys.executable, "mpirun"):
        words.insert(0, program)
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)


def processes(folder):
    """(number, rank or None) of those that the commands of a folder started, and that have not ended."""
    found = []
    for place in glob.glob("/proc/[0-9]*"):
        try:
            lines = dict(line.partition(b"=")[::2] for line in open(place + "/environ", "rb").read().split(b"\0"))
            ended = open(place + "/stat").read().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            continue
        if lines.get(b"M3REF_KILLS") == os.fsencode(folder) and not ended:
            found.append((int(place[6:]), lines.get(b"OMPI_COMM_WORLD_RANK")))
    return found


def kill_one(process, folder, number, random_source):
    """One of the ranks, or else the command. Returns the processes that there were."""
    started = processes(folder)
    ranks = [one for one, rank in started if rank is not None]
    try:
        os.kill(random_source.choice(ranks) if ranks else process.pid, number)
    except ProcessLookupError:
        pass
    return [one for one, _ in started]


def all_end(process, folder, started):
    """Why not all processes end soon, or None. Those that do not are killed. One that has ended counts as one that runs
    until its parent, or init, has taken notice: so long the program leaves its files alone."""
    end = time.monotonic() + SOON
    while process.poll() is None or processes(folder) or any(os.path.exists(f"/proc/{one}") for one in started):
        if time.monotonic() > end:
            left = processes(folder)
            for one, _ in left:
                os.kill(one, signal.SIGKILL)
            return f"after {SOON} s there still runs: {left}"
        time.sleep(0.01)
    return None


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
    outputs = [name.replace("ODD", WORDS["ODD"]) for name in outputs]
    folder, findings = tempfile.mkdtemp(prefix="m3ref-kills-"), []
    try:
        old_outputs(folder, outputs)
        process = start(program, words, folder, preload)
        time.sleep(random_source.random() * longest)
        started = kill_one(process, folder, random_source.choice(SIGNALS), random_source)
        why = all_end(process, folder, started)
        process.stderr.read()
        if why:
            findings.append(why)
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
        rest = sorted(set(os.listdir(folder)) - set(outputs) - {"state"})
        if os.path.exists(folder + "/state"):
            rest += os.listdir(folder + "/state")
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


def prepare(program, folder):
    """Makes the other inputs, and returns all commands."""
    commands = list(COMMANDS)
    WORDS.update(ODD=os.fsdecode(b"\xff\033[31m"), BASELINE=folder + "/baseline", CHAT=folder + "/chat",
                 GGUF=folder + "/model.gguf", PYTHON=sys.executable, MAPPED="tests/candidates/bf16.safetensors.gz")
    with open(WORDS["BASELINE"], "w") as file:
        subprocess.run([program, "compare", WORDS["GOLDEN"], WORDS["GOLDEN"], "--json"], stdout=file, check=True)
    with open(WORDS["CHAT"], "w") as file:
        json.dump([{"role": "user", "content": "Hello"}], file)
    if all(importlib.util.find_spec(name) for name in ("tokenizers", "jinja2", "gguf", "pytest")):
        spec = importlib.util.spec_from_file_location("gguf_model_test", "tests/python/gguf_model_test.py")
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
        made.write(WORDS["GGUF"], *made.text_tensors(WORDS["MODEL"]))
        commands += WITH_PYTHON
    else:
        print("skipped: what starts Python: it has not the libraries that make test installs")
    if shutil.which("mpirun") and os.path.exists(os.path.dirname(program) + "/libm3ref_mpi.so"):
        commands += WITH_RANKS
    else:
        print("skipped: several ranks: Open MPI is not installed")
    return commands


def main():
    program, count = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.SystemRandom().randrange(1 << 32)
    chosen = sys.argv[4] if len(sys.argv) > 4 else ""
    random_source = random.Random(seed)
    print(f"kills: seed {seed}", flush=True)
    inputs = tempfile.TemporaryDirectory(prefix="m3ref-kills-")
    commands = [command for command in prepare(program, inputs.name) if command[0].startswith(chosen)]
    longest = {command[0]: time_of(program, command) * 1.1 for command in commands}
    weights = [1 / max(longest[command[0]], 0.02) ** 2 for command in commands]
    library = tempfile.NamedTemporaryFile(suffix=".so")
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", library.name, "-x", "c", "-"], input=REFUSES_NAMELESS.encode(),
                   check=True)
    failed = 0
    for number in range(count):
        command = commands[number % len(commands)] if number < 2 * len(commands) else \
            random_source.choices(commands, weights)[0]
        findings = trial(program, command, longest[command[0]], random_source,
                         library.name if number % 2 else None)
        failed += bool(findings)
        for finding in findings[:3]:
            print(f"FAIL {number} {command[0]}: {finding}")
    print(f"{count - failed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())

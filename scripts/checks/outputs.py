"""What the program prints and writes, kept for comparison: a change of structure must change none of it.

    python3 scripts/checks/outputs.py PROGRAM FOLDER [--against FOLDER]

Runs every command of tests/faults/commands.txt and those below, and keeps for each a text in FOLDER: exit status, standard
output, errors, and the files that it wrote (tensors as hashes). Times, sizes of memory and names of temporary folders are
masked. --against compares with the folder of another program on the same machine, and names what differs; exit status 1
if anything does.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
GOLDENS = (("tiny", "golden"), ("block128", "golden"), ("mxfp8", "golden"), ("f8block", "golden"), ("common", "golden"),
           ("fourbit", "golden"), ("m2", "golden"), ("mtp", "golden"))
EXPLAINED = ("embed", "layers.0.attn_norm", "layers.0.q_proj", "layers.0.q_norm", "layers.0.q_rope", "layers.1.attn_lse",
             "layers.2.attn", "layers.2.index.q_rope", "layers.2.index.block_scores", "layers.2.index.blocks",
             "layers.3.attn_out", "layers.3.mid", "layers.0.mlp.act", "layers.0.mlp", "layers.3.moe.router_logits",
             "layers.3.moe.router_scores", "layers.3.moe.experts", "layers.3.moe.weights", "layers.4.moe.expert_out",
             "layers.4.moe.routed", "layers.4.moe.shared", "layers.4.mlp", "layers.4.out", "final_norm", "logits")
# What differs from run to run.
MASKS = ((r"[0-9.]+ s\b", "# s"), (r"[0-9.]+ (k|M|G)B\b( of its own| with mapped files)?", "# B"), (r"\d+:\d\d:\d\d", "#"),
         (r'"(seconds|time|prefill_seconds|rate|tokens_per_second|memory\w*|\w*_per_s)":[-+.e0-9]+', r'"\1":#'),
         (r"[0-9.]+ (tokens|GB|GFLOP|MB)(/s| per second)", "# /s"), (r'commit[ :"]+[0-9a-f]{7,40}', "commit #"),
         (r"\b[0-9]+(\.[0-9]+)? (ms|us)\b", "# ms"))
# These measure, or are stopped.
LEFT_OUT = ("bench", "op-perf", "run-plan", "check-plan", "run-resumed")


def golden_commands():
    for name, file in GOLDENS:
        model, case = f"golden/{name}/model", f"golden/{name}/case.safetensors"
        golden = f"golden/{name}/{file}.safetensors.gz"
        for profile in ("fp32", "bf16", "fp8") if name != "block128" else ():       # two minutes each
            words = f"{model} {golden} --case {case} --profile {profile} --row-runs 2 --threads 1"
            yield f"check-{name}-{profile}", f"check {words}"
            yield f"blame-{name}-{profile}", f"blame {words} --json"
            yield f"compare-{name}-{profile}", f"compare {golden} {golden} --profile {profile} --json"
        yield f"run-{name}", f"run {model} --case {case} --linear ordered --threads 1 --dump {{out}}/d --json"
        yield f"bounds-{name}", (f"run {model} --case {case} --linear ordered --threads 1 --precision f64 --bounds "
                                 "--dump {out}/d")
    for name in ("bf16", "bf16_without_plus_one"):
        for form in ("", "--json", "--html {out}/h --junit {out}/j"):
            yield f"check-{name}-{form[2:6]}", (f"check golden/tiny/model tests/candidates/{name}.safetensors.gz --case "
                                                "tests/candidates/case.safetensors --map transformers --profile bf16 "
                                                f"--threads 1 {form}")


def operator_commands(program):
    done = subprocess.run([program, "op", "--list", "--json"], capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        name = json.loads(line)["name"]
        yield f"op-make-{name}", f"op {name} --make {{kept}}/{name}.cases --cases 1 --threads 1"
        yield f"op-run-{name}", f"op {name} --run {{kept}}/{name}.cases {{kept}}/{name}.results --threads 1"
        yield f"op-check-{name}", f"op {name} --check {{kept}}/{name}.cases {{kept}}/{name}.results --json --threads 1"


def commands(program):
    with open(os.path.join(ROOT, "tests", "faults", "commands.txt")) as file:
        for line in file:
            name, words = line.split(":", 1)
            if name not in LEFT_OUT and "=" not in words.split()[0]:
                yield name, words
    yield from golden_commands()
    yield from operator_commands(program)
    for tap in EXPLAINED:
        yield f"explain-{tap}", (f"explain golden/tiny/model --case golden/tiny/case.safetensors --tap {tap} --token 40 "
                                 "--threads 1")
    for config in sorted(os.listdir(os.path.join(ROOT, "golden", "configs"))):
        yield f"estimate-{config}", f"estimate golden/configs/{config} --json"
        yield f"estimate-text-{config}", f"estimate golden/configs/{config}"


def masked(text, folders):
    for folder in folders:
        text = text.replace(folder, "FOLDER")
    for pattern, by in MASKS:
        text = re.sub(pattern, by, text)
    return text


def tensors_of(content):
    """The strings of a safetensors file, and a hash of each tensor; None: it is none."""
    size = struct.unpack("<Q", content[:8])[0] if len(content) > 8 else len(content)
    if size > len(content) - 8 or content[8:9] != b"{":
        return None
    header = json.loads(content[8:8 + size])
    strings, data = header.pop("__metadata__", {}), content[8 + size:]
    lines = [f"{key}: {text}" for key, text in sorted(strings.items()) if key not in ("seal_sha256", "cases_sha256")]
    for name, t in sorted(header.items()):
        begin, end = t["data_offsets"]
        lines.append(f"{hashlib.sha256(data[begin:end]).hexdigest()} {t['dtype']} {t['shape']} {name}")
    return "\n".join(lines)


def file_text(path):
    with open(path, "rb") as file:
        content = file.read()
    if content[:2] == b"\x1f\x8b":
        import gzip
        content = gzip.decompress(content)
    tensors = tensors_of(content)
    return tensors if tensors is not None else content.decode("utf-8", "backslashreplace")


def run(program, words, folders):
    out = tempfile.mkdtemp(dir=folders["kept"])
    filled = [word.format(out=out, odd="\udcff\x1b[31m", **folders) for word in words.split()]       # as tests/faults/main.c
    done = subprocess.run([program, *filled], capture_output=True, text=True, errors="backslashreplace", cwd=ROOT)
    parts = [f"m3ref {words.strip()}", f"status {done.returncode}", done.stdout, done.stderr]
    for folder, _, names in sorted(os.walk(out)):
        for name in sorted(names):
            path = os.path.join(folder, name)
            parts.append(f"== {os.path.relpath(path, out)}\n{file_text(path)}")
    shutil.rmtree(out)
    return masked("\n".join(parts), (out, folders["in"], folders["kept"], program))


def differing(folder, other):
    names = sorted(set(os.listdir(folder)) | set(os.listdir(other)))
    for name in names:
        texts = []
        for path in (os.path.join(other, name), os.path.join(folder, name)):
            if not os.path.exists(path):
                texts.append(None)
                continue
            with open(path) as file:
                texts.append(file.read())
        if texts[0] != texts[1]:
            yield name


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("folder")
    parser.add_argument("--against", help="the folder of another program")
    arguments = parser.parse_args()
    program = os.path.abspath(arguments.program)
    os.makedirs(arguments.folder, exist_ok=True)
    count = 0
    with tempfile.TemporaryDirectory() as work:
        folders = {"in": os.path.join(work, "in"), "kept": os.path.join(work, "kept")}
        os.mkdir(folders["kept"])
        subprocess.run(["sh", "tests/faults/prepare.sh", program, folders["in"]], check=True, cwd=ROOT)
        for name, words in commands(program):
            with open(os.path.join(arguments.folder, name), "w", errors="backslashreplace") as file:
                file.write(run(program, words, folders))
            count += 1
    print(f"{count} outputs in {arguments.folder}")
    others = list(differing(arguments.folder, arguments.against)) if arguments.against else []
    for name in others:
        print(f"differs: {name}")
    if arguments.against:
        print(f"{count - len(others)} of {count} as in {arguments.against}")
    sys.exit(1 if others else 0)


if __name__ == "__main__":
    main()

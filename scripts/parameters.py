"""Matched filters for named parameters (SPEC 7.15): no false alarm, and what they find.

    python scripts/parameters.py BUILD FOLDER [--seeds 1,2,..] [--profiles bf16,fp8,fp32] [--honest 3] [--power] [--public]

Random models as in scripts/no_false_alarms.py, some of them with an MTP module. Honest: draws of implementations of each
profile (tests/support/mistaken_dumps.c) and, with --public, the public PyTorch model in bf16 and fp32. Power: draws of
the same implementations with one parameter changed; the attention scores' scale and cap are applied to the candidate's
own q_rope, k_rope and v_proj in numpy. Each is judged by `m3ref blame`. Prints the largest |z| of honest taps by kind of
tap, and a line per changed parameter. Exit status 1 for an alarm over an honest tap, or if a parameter that must be
found (FOUND) is not, with its estimate within 5 standard errors.
"""

import argparse
import collections
import fnmatch
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

# name: (keys of the text config, parameter, taps, must be found in one layer at least)
CHANGED = {
    "alpha 1.7": ({"swiglu_alpha": 1.7}, "alpha"),
    "alpha 1.703125": ({"swiglu_alpha": 1.703125}, "alpha"),
    "limit 6.9": ({"swiglu_limit": 6.9}, "limit"),
    "factor 2.001": ({"routed_scaling_factor": 2.001}, "routed scaling factor"),
    "theta + 0.1 %": ({"rope_theta": 5005000}, "theta"),
    "theta + 0.01 %": ({"rope_theta": 5000500}, "theta"),
    "eps 1e-5": ({"rms_norm_eps": 1e-5}, "eps"),
    "eps 1e-3": ({"rms_norm_eps": 1e-3}, "eps"),
}
# The scale of scores times this, or a cap.
MAPPED = ["--map", "transformers"]
SCORES = {"scale + 0.1 %": (1.001, 0), "scale + 1 %": (1.01, 0), "cap 30": (1, 30.0), "cap 50": (1, 50.0)}


class Bench:
    def __init__(self, arguments):
        self.program = os.path.join(arguments.build, "m3ref")
        self.dumps = os.path.join(arguments.build, "tests", "mistaken_dumps")
        self.folder, self.honest, self.found = arguments.folder, collections.defaultdict(list), []
        self.problems = 0

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def must(self, words):
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(words)}: {done.stderr}")

    def blame(self, model, dump, profile, words=()):
        """The lines of taps that were tested."""
        done = subprocess.run([self.program, "blame", model, dump, "--case", self.path("case.safetensors"), "--profile",
                               profile, "--force", "--json", *words], capture_output=True, text=True)
        if done.returncode > 3:
            raise SystemExit(f"blame {dump}: {done.stderr}")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return [line for line in lines if line.get("z") is not None]


def kind_of(tap):
    return re.sub(r"\.\d+\.", ".N.", tap)


def prepare(bench, seed):
    shape = models.shape_of(seed)
    config = models.config_of(shape)
    modules = str(int(seed % 3 == 0))
    with open(bench.path("config.json"), "w") as file:
        json.dump(config, file)
    shutil.rmtree(bench.path("model"), ignore_errors=True)
    bench.must([bench.program, "synth", bench.path("config.json"), bench.path("model"), "--seed", str(seed), "--mtp", modules])
    save_file(models.case_of(shape, seed), bench.path("case.safetensors"))
    return config


def draws(bench, model, profile, count):
    shutil.rmtree(bench.path("draws"), ignore_errors=True)
    os.makedirs(bench.path("draws"))
    bench.must([bench.dumps, model, bench.path("case.safetensors"), profile, bench.path("draws"), str(count), "alone"])
    return [bench.path("draws", f"honest.{i}.safetensors") for i in range(count)]


def honest(bench, seed, profile, dump, words=()):
    for line in bench.blame(bench.path("model"), dump, profile, words):
        bench.honest[profile.split("+")[0] + (" public" if words else ""), kind_of(line["tap"])].append(line["z"])
        if line["parameter"]:
            bench.problems += 1
            print(f"ALARM seed {seed} {profile} {line['tap']} {line['verdict']} {line['tiers']}: {line['note']}, z {line['z']:.2f}",
                  flush=True)


def engine(bench, model, profile):
    """A dump of the public model, which computes in bf16 or fp32; for fp8, a draw."""
    if profile == "fp8":
        return draws(bench, model, profile, 1)[0]
    out = bench.path("public.safetensors")
    models.public(model, bench.path("case.safetensors"), out, "f32" if profile == "fp32" else "bf16", "eager", "eager")
    return out


def changed_model(bench, config, keys):
    folder = bench.path("changed")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for name in os.listdir(bench.path("model")):
        if name != "config.json":
            os.symlink(os.path.abspath(bench.path("model", name)), os.path.join(folder, name))
    with open(bench.path("model", "config.json")) as file:
        config = json.load(file)
    config["text_config"] |= keys
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    return folder


def report(bench, seed, profile, name, parameter, expected, lines):
    hits = [line for line in lines if line["parameter"] == parameter]
    others = [line for line in lines if line["parameter"] not in (None, parameter)]
    best = max(hits, key=lambda line: abs(line["z"]), default=None)
    text = f"seed {seed:2} {profile:5} {name:15} named at {len(hits):3} taps"
    if best:
        off = (best["estimate"] - expected) / best["standard_error"]
        wrong = sum(abs(line["estimate"] - expected) > 5 * line["standard_error"] for line in hits)
        text += f", best {best['tap']} {best['verdict']} z {best['z']:.1f}, {best['note']}; off by {off:.1f} standard errors; {wrong} beyond 5"
    else:
        most = max(lines, key=lambda line: abs(line["z"]), default=None)
        text += f", most {most['tap']} z {most['z']:.1f}" if most else ", nothing tested"
    print(text + "".join(f"; {o['tap']}: {o['note']}" for o in others[:3]), flush=True)
    bench.found.append((profile, name, len(hits)))


def bf16(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def attention(tensors, layer, block, scale, cap, rounded):
    """attn of the candidate's own inputs, in double, with one rounding at the end."""
    q, k, v = (tensors[f"layers.{layer}.{name}"].astype(np.float64) for name in ("q_rope", "k_rope", "v_proj"))
    T, Q, D = q.shape
    G, out = k.shape[1], np.zeros_like(q)
    blocks = tensors.get(f"layers.{layer}.index.blocks")
    for t in range(T):
        for h in range(Q):
            g = h // (Q // G)
            keys = np.arange(t + 1)
            if blocks is not None:
                keys = keys[np.isin(keys // block, blocks[t, g])]
            z = k[keys, g] @ q[t, h] * scale / np.sqrt(D)
            z = cap * np.tanh(z / cap) if cap else z
            p = np.exp(z - z.max())
            out[t, h] = p / p.sum() @ v[keys, g]
    return bf16(out) if rounded else out.astype(np.float32)


def scores(bench, seed, profile, config, dump):
    with safe_open(dump, "np") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()
    text = config["text_config"]
    layers = text["num_hidden_layers"]
    for name, (scale, cap) in SCORES.items():
        wrong = dict(tensors)
        for layer in range(layers):
            wrong[f"layers.{layer}.attn"] = attention(tensors, layer, text["sparse_attention_config"]["sparse_block_size"],
                                                      scale, cap, profile != "fp32")
        save_file(wrong, bench.path("scores.safetensors"), metadata)
        lines = bench.blame(bench.path("model"), bench.path("scores.safetensors"), profile, ["--taps", "layers.*.attn"])
        parameter = "soft cap of scores" if cap else "scale of scores"
        report(bench, seed, profile, name, parameter, 1 / cap**2 if cap else scale / np.sqrt(text["head_dim"]), lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("folder")
    parser.add_argument("--seeds", default=",".join(map(str, range(1, 16))))
    parser.add_argument("--profiles", default="bf16,fp8,fp32")
    parser.add_argument("--honest", type=int, default=3)
    parser.add_argument("--power", action="store_true")
    parser.add_argument("--public", action="store_true")
    arguments = parser.parse_args()
    bench = Bench(arguments)
    os.makedirs(arguments.folder, exist_ok=True)
    for seed in map(int, arguments.seeds.split(",")):
        config = prepare(bench, seed)
        for profile in arguments.profiles.split(","):
            for dump in draws(bench, bench.path("model"), profile, arguments.honest) if arguments.honest else []:
                honest(bench, seed, profile, dump)
            if not arguments.power:
                continue
            for name, (keys, parameter) in CHANGED.items():
                model = changed_model(bench, config, keys)
                lines = bench.blame(bench.path("model"), draws(bench, model, profile, 1)[0], profile)
                report(bench, seed, profile, name, parameter, next(iter(keys.values())), lines)
                if arguments.public and profile != "fp8" and parameter in ("alpha", "limit", "eps"):
                    lines = bench.blame(bench.path("model"), engine(bench, model, profile), profile, MAPPED)
                    report(bench, seed, profile, name + "*", parameter, next(iter(keys.values())), lines)
            scores(bench, seed, profile, config, draws(bench, bench.path("model"), profile, 1)[0])
        if arguments.public:
            for profile in ("bf16", "fp32"):
                honest(bench, seed, profile, engine(bench, bench.path("model"), profile), MAPPED)
        done = sum(map(len, bench.honest.values()))
        print(f"seed {seed}: {done} honest taps so far, {bench.problems} alarms", flush=True)
    print("profile       tap                             taps   rms z  largest |z|")
    for (profile, kind), z in sorted(bench.honest.items()):
        print(f"{profile:12}  {kind:30} {len(z):5}  {np.sqrt(np.mean(np.square(z))):6.2f}  {np.abs(z).max():6.2f}")
    every = np.concatenate([np.abs(z) for z in bench.honest.values()]) if bench.honest else np.zeros(1)
    print(f"parameters: {every.size} honest taps, largest |z| {every.max():.2f}, {bench.problems} alarms")
    sys.exit(1 if bench.problems else 0)


if __name__ == "__main__":
    main()

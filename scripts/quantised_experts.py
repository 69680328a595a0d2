"""Engines whose experts multiply numbers of 8 and 4 bits, right ones and wrong ones: what does blame say of them?

    python scripts/quantised_experts.py PROGRAM FOLDER [--seeds 0:10] [--wrong-seeds 0:3] [--models 0:5]
                                        [--kinds 'MXFP4;NVFP4'] [--mistakes right,..] [--jobs 2] [--write PAGE]

Makes random models (shapes: MODELS), runs each in float for the inputs of its MoE blocks, and computes the outputs of
experts and of the shared expert as an engine in BF16 would (KINDS: how activations and weights are quantised), right and
with MISTAKES (those only of the wrong seeds). Nothing of m3ref's arithmetic is used. Weights of 4 bits are written into the checkpoint as the BF16
numbers that they stand for. `blame` judges each dump from its own inputs, under the profile of its kind. A line is
printed for what is unexpected: a right tap that is wrong or suspect; a mistake that changes a tap by CERTAIN or more and
passes; a lost output (LOST) with which blame exits 0. Exit status 1 if there is such a line. --write puts the table of
verdicts into the page, as its section `## Quantised experts`.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import random
import re
import shutil
import subprocess
import sys

import torch
from safetensors import safe_open
from safetensors.torch import save_file

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
ENV = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
LAYERS, SEEN, CERTAIN = (2, 4), 0.02, 0.05       # smaller effects are within the rounding of codes of 4 bits
# H, F, that of the shared expert, E, K
MODELS = ((128, 64, 64, 8, 2), (192, 96, 64, 16, 4), (256, 128, 128, 12, 4), (320, 96, 96, 10, 3), (512, 256, 128, 8, 2))
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


# ---- formats

def in_blocks(round_block):
    """Applies a function of [.., blocks, size] to rows that are filled up with zeros."""
    def rounded(x, size):
        filled = torch.nn.functional.pad(x, (0, -x.shape[-1] % size))
        y = round_block(filled.reshape(*x.shape[:-1], -1, size))
        return y.reshape(*x.shape[:-1], -1)[..., :x.shape[-1]]
    return rounded


def e4m3(x):
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).float()


def e2m1(x):
    nearest = (x.abs().clamp(max=6)[..., None] - E2M1).abs().argmin(-1)
    return E2M1[nearest] * x.sign()


def largest(x):
    return x.abs().amax(-1, keepdim=True).clamp(min=1e-30)


def shared_exponent(x, most):
    """OCP Microscaling 1.0, 6.3; `most` is the exponent of the format's largest number."""
    return torch.exp2(torch.floor(torch.log2(largest(x))) - most)


@in_blocks
def mx_block(x):
    scale = shared_exponent(x, 8)
    return e4m3(x / scale) * scale


@in_blocks
def scaled_block(x):
    scale = largest(x) / 448
    return e4m3(x / scale) * scale


@in_blocks
def mxfp4_block(x):
    scale = shared_exponent(x, 2)
    return e2m1(x / scale) * scale


def per_token(x):
    scale = largest(x) / 448
    return e4m3(x / scale) * scale


def per_tensor(x):
    scale = x.abs().max().clamp(min=1e-30) / 448
    return e4m3(x / scale) * scale


def nvfp4(x, of_weights=False):
    """The scale of the tensor is a power of two in weights, so that BF16 holds them."""
    whole = x.abs().max().clamp(min=1e-30) / (6 * 448)
    if of_weights:
        whole = torch.exp2(torch.ceil(torch.log2(whole)))

    @in_blocks
    def block(y):
        scale = (e4m3(largest(y) / 6 / whole) * whole).clamp(min=1e-30)
        return e2m1(y / scale) * scale
    return block(x, 16)


def same(x):
    return x


def bf16(x):
    return x.bfloat16().float()


# Activations of experts, of the shared expert, weights of experts, profile.
KINDS = {
    "fp8, MX": (lambda x: mx_block(x, 32), lambda x: mx_block(x, 32), same, "fp8"),
    "fp8, per token": (per_token, per_token, same, "fp8"),
    "fp8, per tensor": (per_tensor, per_tensor, same, "fp8"),
    "fp8, per 128": (lambda x: scaled_block(x, 128), lambda x: scaled_block(x, 128), same, "fp8"),
    "MXFP4 weights, fp8": (lambda x: mx_block(x, 32), same, lambda w: mxfp4_block(w, 32), "mxfp4"),
    "MXFP4": (lambda x: mxfp4_block(x, 32), same, lambda w: mxfp4_block(w, 32), "mxfp4"),
    "NVFP4": (nvfp4, lambda x: mx_block(x, 32), lambda w: nvfp4(w, True), "nvfp4"),
}
ACTIVATIONS = {"right": (1.702, 1, 7), "alpha 1": (1, 1, 7), "no + 1": (1.702, 0, 7), "SiLU": (1, 0, 1e30),
               "no clamp": (1.702, 1, 1e30)}
LOST = ("zeros", "negated", "dropped", "another row")
MISTAKES = (*ACTIVATIONS, *LOST)


# ---- the engine

def gated(gate, up, mistake):
    alpha, one, limit = ACTIVATIONS.get(mistake, ACTIVATIONS["right"])
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + one) * gate * torch.sigmoid(alpha * gate)


def lose(out, mistake):
    if mistake == "dropped":
        return out * (torch.rand(*out.shape[:-1], 1, generator=torch.Generator().manual_seed(1)) > 0.27)
    return {"zeros": lambda: out * 0, "negated": lambda: -out, "another row": lambda: out.roll(1, 0)}.get(
        mistake, lambda: out)()


class Block:
    """One MoE block: its inputs in BF16, and its weights."""

    def __init__(self, weights, taps, layer):
        self.name = f"language_model.model.layers.{layer}.block_sparse_moe."
        self.weights, self.x = weights, bf16(taps[f"layers.{layer}.mlp_norm"])
        self.ids = taps[f"layers.{layer}.moe.experts"].long()

    def mlp(self, x, matrices, quantise, rounded, mistake):
        gate, up, down = (self.weights[self.name + name + ".weight"].float() for name in matrices)
        act = rounded(gated(rounded(x @ gate.T), rounded(x @ up.T), mistake))
        return rounded(quantise(act) @ down.T)

    def experts(self, quantise, rounded, mistake):
        out = torch.zeros(*self.ids.shape, self.x.shape[1])
        x = quantise(self.x)            # a scale of the whole tensor is of all rows
        for expert in self.ids.unique().tolist():
            row, slot = torch.nonzero(self.ids == expert, as_tuple=True)
            names = [f"experts.{expert}.{name}" for name in ("w1", "w3", "w2")]
            out[row, slot] = self.mlp(x[row], names, quantise, rounded, mistake)
        return lose(out, mistake)

    def shared(self, quantise, rounded, mistake):
        names = [f"shared_experts.{name}_proj" for name in ("gate", "up", "down")]
        return lose(self.mlp(quantise(self.x), names, quantise, rounded, mistake), mistake)

    def taps(self, layer, kind, mistake):
        """What the engine dumps, and by how much each tap is moved by the mistake alone."""
        act, act_shared, _, _ = KINDS[kind]
        dumped, moved = {}, {}
        for name, make, quantise in (("expert_out", self.experts, act), ("shared", self.shared, act_shared)):
            tap = f"layers.{layer}.moe.{name}"
            right, wrong = make(same, same, "right"), make(same, same, mistake)
            moved[tap] = float((wrong - right).norm() / right.norm())
            dumped[tap] = make(quantise, bf16, mistake).bfloat16().contiguous()
        return dumped, moved


# ---- models

def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, env=ENV)
    if done.returncode:
        raise SystemExit(" ".join(words) + ": " + done.stderr)


def read(path):
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()


def make_model(arguments, folder, number, seed):
    with open(os.path.join(ROOT, "golden/common/model/config.json")) as file:
        config = json.load(file)
    names = ("hidden_size", "intermediate_size", "shared_intermediate_size", "num_local_experts",
             "num_experts_per_tok")
    config["text_config"] |= dict(zip(names, MODELS[number], strict=True))
    with open(folder + ".json", "w") as file:
        json.dump(config, file)
    run(arguments.program, "synth", folder + ".json", folder, "--seed", str(seed), "--dtype", "bf16")


def quantise_weights(folder, quantise):
    """In place; the result is what the checkpoint's numbers are."""
    path = os.path.join(folder, "model.safetensors")
    weights, metadata = read(path)
    for name, weight in weights.items():
        if ".experts." in name:
            weights[name] = quantise(weight.float()).bfloat16().contiguous()
    save_file(weights, path, metadata)
    return weights


def judge(arguments, folder, kind, ids, path):
    words = [arguments.program, "blame", folder, path, "--ids", ids, "--profile", KINDS[kind][3], "--json",
             "--row-runs", "0", "--taps", "*.moe.expert_out,*.moe.shared", "--threads", "1"]
    done = subprocess.run(words, capture_output=True, text=True, env=ENV)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, {line["tap"]: line for line in lines if line["type"] == "blame"}


def one_model(arguments, number, seed):
    """[(kind, mistake, tap, moved, verdict, name)], and what is unexpected."""
    torch.set_num_threads(1)
    base = os.path.join(arguments.folder, f"{number}_{seed}")
    draw = random.Random(seed)
    ids = ",".join(str(draw.randrange(190)) for _ in range(draw.choice((24, 64, 150))))
    found, odd, weights_of, taps_of = [], [], {}, {}
    for kind in arguments.kinds:
        quantise = KINDS[kind][2]
        folder = f"{base}_{list(KINDS).index(kind) if quantise is not same else 0}"
        if folder not in weights_of:
            shutil.rmtree(folder, ignore_errors=True)
            make_model(arguments, folder, number, seed)
            weights_of[folder] = quantise_weights(folder, quantise)
            run(arguments.program, "run", folder, "--ids", ids, "--dump", folder + "/base.st")
            taps_of[folder] = read(folder + "/base.st")[0]
        for mistake in arguments.mistakes if seed in arguments.wrong_seeds else ("right",):
            dump, moved = {}, {}
            for layer in LAYERS:
                block = Block(weights_of[folder], taps_of[folder], layer)
                made, by = block.taps(layer, kind, mistake)
                dump |= made | {f"layers.{layer}.mlp_norm": block.x.bfloat16(),
                                f"layers.{layer}.moe.experts": taps_of[folder][f"layers.{layer}.moe.experts"]}
                moved |= by
            save_file(dump, folder + "/dump.st")
            status, lines = judge(arguments, folder, kind, ids, folder + "/dump.st")
            for tap, line in lines.items():
                found.append((kind, mistake, tap.split(".")[-1], moved[tap], line["verdict"], line["mistake"]))
                wrong = line["verdict"] in ("fail", "suspect")
                if wrong if mistake == "right" else line["verdict"] == "pass" and moved[tap] >= CERTAIN:
                    odd.append(f"model {number}, seed {seed}, {kind}, {mistake}: {tap}: got {line['verdict']} "
                               f"({line['mistake']}), moved by {moved[tap]:.3g}")
            if mistake in LOST and status == 0:
                odd.append(f"model {number}, seed {seed}, {kind}, {mistake}: got exit status 0")
    for folder in weights_of:
        shutil.rmtree(folder)
        os.remove(folder + ".json")
    return found, odd


# ---- the page

IDS = {"alpha 1": ("act.alpha",), "no + 1": ("act.no_plus_one",), "no clamp": ("act.no_clamp",),
       "SiLU": ("act.silu", "act.params_dropped")}


def cell(rows):
    of = collections.Counter(verdict for _, _, _, _, verdict, _ in rows)
    named = sum(name in IDS.get(mistake, ()) for _, mistake, _, _, _, name in rows)
    parts = [f"{count} {verdict.replace('_', ' ')}" for verdict, count in sorted(of.items())]
    return ", ".join(parts) + (f"; {named} named" if named else "")


def table(found):
    kinds = list(dict.fromkeys(row[0] for row in found))
    lines = ["| mistake | " + " | ".join(kinds) + " |", "|---|" + "---|" * len(kinds)]
    for mistake in dict.fromkeys(row[1] for row in found):
        rows = [row for row in found if row[1] == mistake and (mistake == "right" or row[3] >= SEEN)]
        lines.append(f"| {mistake} | " + " | ".join(cell([r for r in rows if r[0] == k]) or "-" for k in kinds) + " |")
    return lines


def section(found, arguments):
    return "\n".join([
        "## Quantised experts", "",
        "`scripts/quantised_experts.py` (`make power` runs it) writes this section: engines in PyTorch whose experts read",
        f"activations and weights as the column says; {len(arguments.models)} random models, two layers, "
        f"{len(arguments.seeds)} seeds of right engines and {len(arguments.wrong_seeds)} of wrong ones.",
        "Counted are the verdicts of `blame` on `moe.expert_out` and `moe.shared`; of a mistake, on taps that it moves by",
        f"{100 * SEEN:.0f} % or more. A tap that is not judged makes the run partial, with exit status 2.", "",
        *table(found)]) + "\n"


def write(path, text):
    """In place of the section of this name, or at the end of the first part of the page."""
    with open(path) as file:
        page = file.read()
    page = re.sub(r"## Quantised experts\n.*?(?=^## |\Z)", "", page, flags=re.S | re.M)
    at = page.find("## Mistake by mistake")
    at = at if at >= 0 else len(page)
    with open(path, "w") as file:
        file.write(page[:at] + text + "\n" + page[at:])


def span(text):
    first, end = text.split(":")
    return range(int(first), int(end))


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=os.path.abspath)
    parser.add_argument("folder", type=os.path.abspath)
    parser.add_argument("--seeds", type=span, default=range(10))
    parser.add_argument("--wrong-seeds", type=span, default=range(3))
    parser.add_argument("--models", type=span, default=range(len(MODELS)))
    parser.add_argument("--kinds", type=lambda text: text.split(";"), default=list(KINDS))
    parser.add_argument("--mistakes", type=lambda text: text.split(","), default=list(MISTAKES))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write")
    return parser.parse_args()


def main():
    arguments, found, odd = options(), [], []
    os.makedirs(arguments.folder, exist_ok=True)
    with concurrent.futures.ProcessPoolExecutor(arguments.jobs) as pool:
        todo = [pool.submit(one_model, arguments, number, seed) for number in arguments.models
                for seed in arguments.seeds]
        for future in todo:
            more, strange = future.result()
            found += more
            odd += strange
            for line in strange:
                print(line, flush=True)
    print("\n".join(table(found)))
    if arguments.write:
        write(arguments.write, section(found, arguments))
    right = sum(row[1] == "right" for row in found)
    print(f"quantised: {len(found)} verdicts, {right} of right engines, {len(odd)} unexpected")
    sys.exit(1 if odd else 0)


if __name__ == "__main__":
    main()

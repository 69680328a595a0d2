#!/usr/bin/env python3
"""Plain gradient descent on the index branch of golden/tiny: the alignment loss by step, as JSON and as a picture.

usage: index_descent.py PROGRAM [--steps N] [--json OUT] [--svg OUT]

Each step runs `m3ref grad --loss kl` on a copy of the model, whose index tensors are F32, and subtracts RATE times the
gradient from them, rounded to float. No other tensor gets a gradient from this loss, and none changes. Sums are ordered,
so that every machine gives the same losses.
"""

import argparse
import array
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

MODEL, CASE = "golden/tiny/model", "golden/train/case.safetensors"
RATE, STEPS = 0.3, 50
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 320, 56, 16, 40, 44


def read(path):
    """({name: entry of the header}, metadata, data) of a safetensors file."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        return header, header.pop("__metadata__", None), file.read()


def write(path, tensors, metadata):
    """tensors: {name: (dtype, shape, bytes)}"""
    header, at = ({"__metadata__": metadata} if metadata else {}), 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path + ".part", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))
    os.replace(path + ".part", path)


def floats(data):
    values = array.array("f")
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def to_bytes(values):
    values = array.array("f", values)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


class IndexBranch:
    """A copy of the model; its index tensors as floats."""

    def __init__(self, folder):
        shutil.copytree(MODEL, folder, dirs_exist_ok=True)
        self.folder, self.path = folder, os.path.join(folder, "model.safetensors")
        header, self.metadata, data = read(self.path)
        by_place = sorted(header, key=lambda name: header[name]["data_offsets"])
        self.tensors = {}
        for name in by_place:
            entry = header[name]
            part = data[slice(*entry["data_offsets"])]
            if ".index_" in name:                               # BF16 is the upper half of a float
                if entry["dtype"] != "BF16":
                    sys.exit(f"index_descent: {self.path}: {name}: got {entry['dtype']}, expected BF16")
                part = b"".join(b"\0\0" + part[i:i + 2] for i in range(0, len(part), 2))
                entry["dtype"] = "F32"
            self.tensors[name] = entry["dtype"], entry["shape"], part
        write(self.path, self.tensors, self.metadata)

    def descend(self, gradients):
        header, _, data = read(gradients)
        for name, entry in header.items():
            own = name.removeprefix("d.param.")
            dtype, shape, before = self.tensors[own]
            slope = floats(data[slice(*entry["data_offsets"])])
            after = [w - RATE * d for w, d in zip(floats(before), slope, strict=True)]
            self.tensors[own] = dtype, shape, to_bytes(after)
        write(self.path, self.tensors, self.metadata)


def descent(program, steps):
    """The losses before each step, and after the last."""
    losses = []
    with tempfile.TemporaryDirectory() as folder:
        branch, gradients = IndexBranch(os.path.join(folder, "model")), os.path.join(folder, "d.safetensors")
        for step in range(steps + 1):
            command = [program, "grad", branch.folder, "--case", CASE, "--loss", "kl", "--linear", "ordered", "--json",
                       "--taps", "param.*", "--dump", gradients]
            made = subprocess.run(command, stdout=subprocess.PIPE, check=False)
            if made.returncode:
                sys.exit(f"index_descent: step {step}: m3ref grad ended with status {made.returncode}")
            losses.append(json.loads(made.stdout)["losses"]["kl"])
            if step < steps:
                branch.descend(gradients)
    return losses


def picture(losses):
    """An SVG of the losses by step."""
    steps, top = len(losses) - 1, 0.5 * (int(max(losses) / 0.5) + 1)
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(step, loss):
        return f"{LEFT + wide * step / steps:.1f},{TOP + high * (1 - loss / top):.1f}"

    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
             'font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
             f'<text x="{LEFT}" y="20" font-size="14">Alignment loss of the index branch, gradient descent on golden/tiny'
             '</text>']
    for i in range(round(top / 0.5) + 1):
        y = TOP + high * (1 - i * 0.5 / top)
        lines += [f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>',
                  f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{i * 0.5:g}</text>']
    for step in range(0, steps + 1, max(1, steps // 5)):
        x = LEFT + wide * step / steps
        lines.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{step}</text>')
    lines += [f'<text x="{LEFT + wide / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">step</text>',
              f'<polyline fill="none" stroke="#1f6feb" stroke-width="2" points="'
              + " ".join(at(step, loss) for step, loss in enumerate(losses)) + '"/>',
              f'<text x="{LEFT + 8}" y="{TOP + high * (1 - losses[0] / top) - 6:.1f}">{losses[0]:.4f}</text>',
              f'<text x="{WIDTH - RIGHT}" y="{TOP + high * (1 - losses[-1] / top) - 8:.1f}" text-anchor="end">'
              f'{losses[-1]:.4f}</text>', "</svg>"]
    return "\n".join(lines) + "\n"


def save(path, text):
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".part", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--json")
    parser.add_argument("--svg")
    given = parser.parse_args()
    if given.steps < 1:
        parser.error("--steps: expected at least 1")
    losses = descent(given.program, given.steps)
    if given.json:
        rows = ",\n  ".join(repr(loss) for loss in losses)
        save(given.json, f'{{"rate": {RATE}, "model": "{MODEL}", "case": "{CASE}", "losses": [\n  {rows}\n]}}\n')
    if given.svg:
        save(given.svg, picture(losses))
    rises = sum(b > a for a, b in zip(losses, losses[1:]))
    print(f"{given.steps} steps: loss {losses[0]:.6f} to {losses[-1]:.6f}, {rises} rises")


if __name__ == "__main__":
    main()

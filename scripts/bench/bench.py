"""Measures the speeds that README quotes: `make bench`, `make bench-torch`.

    bench.py BUILD [--threads N] [--out FILE] [--torch] [--cpu-time] [--only ITEM,...]
    bench.py BUILD --readme FILE            writes README's tables from a file that an earlier run wrote
    bench.py BUILD --readme FILE --check    only says whether they are these tables

Every item runs in a process of its own, between runs of the limit that belongs to it, so that their ratio holds on a
machine that others use. Prints a line for each item and writes all of them to FILE (BUILD/bench.json). --torch also
runs the public PyTorch code on the same work, with the environment of `make golden-check`.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import textwrap

PLACES = (4096, 16384, 65536, 262144)

# Item, what it is, runs.
ITEMS = [
    ("sgemm", "BLAS alone, 512 x 6144 x 6144", 15),
    ("read", "plain read of 1 GB", 15),
    ("copy", "y := x + 1, bytes read and written", 15),
    ("linear", "linear, BF16, T = 512", 9),
    ("linear-f32", "linear, F32, T = 512", 9),
    ("linear-mxfp8", "linear, MXFP8, T = 512", 9),
    ("linear-ordered", "linear, BF16, T = 512, ordered sums", 9),
    ("linear-64", "linear, BF16, T = 64", 15),
    ("linear-8", "linear, BF16, T = 8", 25),
    ("linear-1", "linear, BF16, T = 1", 25),
    ("linear-mxfp8-1", "linear, MXFP8, T = 1", 25),
    ("linear-fp8-1", "linear, FP8, T = 1", 25),
    ("moe-1", "MoE, 16 experts top 4 + shared, T = 1", 15),
    ("moe", "MoE, 16 experts top 4 + shared, T = 512", 3),
    ("attend-full", "full attention core, T = 4096", 2),
    ("attend-blocks", "sparse attention core, T = 4096", 2),
    ("scores", "scores of blocks, T = 4096", 9),
    ("attention", "sparse attention layer, T = 4096", 2),
    ("norm", "RMSNorm, 2048 x 6144", 15),
    ("head-norm", "RMSNorm of heads of 128", 15),
    ("layer-norm", "LayerNorm, 2048 x 6144", 15),
    ("rope", "RoPE, heads of 128", 15),
    ("swiglu", "SwiGLU, 2048 x 6144", 15),
    ("gelu", "GELU, 2048 x 6144", 9),
    ("vision", "tower and projector, 672 x 672 picture", 3),
    ("attend-blocks-back", "derivative of the sparse attention core", 2),
    ("grad", "gradients of a layer of 16 experts, T = 512", 2),
]
DECODE = [
    ("decode-index", "choosing 16 blocks", 9),
    ("decode-sparse", "choosing them and attending to them", 9),
    ("decode-blocks", "attending to chosen blocks", 9),
    ("decode-dense", "full attention", 5),
]
TORCH = [("linear", 15), ("moe_grouped", 3), ("moe_eager", 3), ("attention", 1), ("vision", 3)]


def line_of(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"bench: {' '.join(command)}: exit status {done.returncode}")
    return json.loads(done.stdout)


def show(record, name):
    rate = f"{record['gflops']:8.1f} GF" if "gflops" in record else f"{record.get('gb_per_s', 0):8.1f} GB"
    share = f"{record['ratio']:6.2f} of {record['limit']:<6}" if "ratio" in record else " " * 16
    goal = ""
    if "goal" in record:
        goal = f"goal {record['goal']:.2f}" + ("" if record["ratio"] >= record["goal"] else ", missed")
    print(f"{name:<42} {record['seconds']:11.6f} s {rate} {share} {record['peak_bytes'] // 1000000:6} MB  {goal}",
          flush=True)


def models(build, wanted):
    """Models of released sizes with random weights, written once: a vision part, 1.7 GB, with a minimal text part; and a
    sparse layer with 16 experts, 2.2 GB."""
    folders = {"vision": f"{build}/bench_vision", "grad": f"{build}/bench_layer"}
    for item, config in ("vision", "scripts/bench/bench_vision.json"), ("grad", "scripts/bench/bench_layer.json"):
        if not os.path.isdir(folders[item]) and (not wanted or item in wanted):
            line = [f"{build}/m3ref", "synth", config, folders[item]]
            subprocess.run(line, stdout=subprocess.DEVNULL, check=True)
    return folders


def measure(build, options, folders, save):
    """Measures all items, and calls `save` with those that are done after each."""
    program, records = f"{build}/m3ref", []
    wanted = options.only.split(",") if options.only else None
    work = [(item, name, runs, []) for item, name, runs in ITEMS]
    work += [(item, f"{keys} places, {name}", runs, ["--keys", str(keys)]) for keys in PLACES for item, name, runs in DECODE]
    for item, name, runs, more in work:
        if wanted and item not in wanted:
            continue
        if item in folders:
            more = ["--model", folders[item]]
        command = [program, "bench", item, "--threads", str(options.threads), "--runs", str(options.runs or runs), *more]
        record = line_of(command + (["--cpu-time"] if options.cpu_time else []))
        show(record, name)
        records.append(record)
        save(records)
    return records


def measure_torch(build, options):
    python, records = f"{build}/venv/bin/python", []
    if not os.access(python, os.X_OK):
        print(f"public PyTorch code: left out, {build}/venv is missing (make golden-check makes it)")
        return records
    for name, runs in TORCH:
        record = line_of([python, "scripts/bench/bench_torch.py", "--threads", str(options.threads), "--runs", str(runs), name])
        record["name"] = name
        print(f"PyTorch: {record['what']:<51} {record['seconds']:11.6f} s {record['peak_bytes'] // 1000000:31} MB", flush=True)
        records.append(record)
    return records


# ---- README


MISSING = "not measured"


class Page:
    """The tables of a file that `measure` wrote."""

    def __init__(self, data):
        self.items = {(r["what"], r.get("keys")): r for r in data["items"]}
        self.torch = {r["name"]: r for r in data.get("torch", [])}
        self.data = data

    def seconds(self, name):
        return f"{self.items[(name, None)]['seconds']:.3g} s" if (name, None) in self.items else MISSING

    def with_memory(self, name):
        found = self.items.get((name, None))
        return f"{self.seconds(name)}, {found['peak_bytes'] / 1e9:.1f} GB" if found else MISSING

    def torch_cell(self, *names):
        found = [self.torch[n] for n in names if n in self.torch]
        if not found:
            return MISSING
        best = min(found, key=lambda r: r["seconds"])
        return f"{best['seconds']:.3g} s, {best['peak_bytes'] / 1e9:.1f} GB"

    def ratio_row(self, name, r):
        rate = f"{r['gflops']:.0f} GFLOP/s" if "gflops" in r else f"{r['gb_per_s']:.1f} GB/s"
        share = f"{r['ratio']:.2f} of {r['limit']}" if "ratio" in r else "a limit"
        return f"| {name} | {rate} | {share} | " + (f"{r['goal']:.2f} |" if "goal" in r else "|")

    def ratios(self):
        work = [((item, None), name) for item, name, _ in ITEMS]
        work += [((item, 65536), f"one token after 65,536: {name}") for item, name, _ in DECODE]
        rows = [self.ratio_row(name, self.items[key]) for key, name in work if key in self.items]
        return ["| | rate | share of the limit | goal |", "|---|---|---|---|", *rows]

    def against_torch(self):
        return [
            "| | m3ref | public PyTorch code, fp32 |", "|---|---|---|",
            f"| `linear` 6144 x 6144, T = 512, F32 weights | {self.seconds('linear-f32')} | {self.torch_cell('linear').split(',')[0]} |",
            "| the same with weights in BF16, in MXFP8, and in BF16 with ordered sums | "
            f"{self.seconds('linear')}, {self.seconds('linear-mxfp8')}, {self.seconds('linear-ordered')} | |",
            "| mixture of experts: 4 of 16 experts per token, and the shared expert, T = 512 | "
            f"{self.with_memory('moe')} | {self.torch_cell('moe_grouped', 'moe_eager')} |",
            f"| a sparse attention layer, 64 / 4 heads, T = 4096 | {self.with_memory('attention')} | {self.torch_cell('attention')} |",
            "| tower and projector, a picture of 672 x 672, BF16 weights | "
            f"{self.with_memory('vision')} | {self.torch_cell('vision')} |",
        ]

    def decoding(self):
        rows = ["| | " + " | ".join(f"{p:,}" for p in PLACES) + " |", "|---" * (len(PLACES) + 1) + "|"]
        for item, name in (("decode-index", "choosing 16 blocks"), ("decode-sparse", "choosing them and attending to them"),
                           ("decode-dense", "full attention")):
            found = [self.items.get((item, places)) for places in PLACES]
            rows.append(f"| {name} | " + " | ".join(f"{round(1000 * r['seconds'], 1):g}" if r else MISSING for r in found) + " |")
        return rows

    def text(self):
        threads = self.data["threads"]
        began = (f"`scripts/bench/bench.py` measured these figures with {threads} thread{'s' if threads > 1 else ''} on a shared server "
                 f"({self.data['processor']}), in float, at the sizes of the released model"
                 + (", in CPU time, because the server was busy" if self.data["cpu_time"] else "")
                 + ". `scripts/bench/bench.json` has all of them. Ratios matter more than seconds.")
        return "\n".join([
            *textwrap.wrap(began, 120), "", *self.against_torch(), "",
            *textwrap.wrap("GB is the peak memory of the process. Each item of the next table has a limit, which is a speed of this machine, "
                           "measured between the runs of the item: BLAS alone (sgemm), a plain read, or a copy. On a busy machine an "
                           "item may be a little faster than its limit was a moment before. Sums that must have the same bits on "
                           "every machine use separate multiplications and additions, not fused multiply-adds. On some "
                           "processors, such as Intel's server processors, a fused multiply-add takes half the time of a "
                           "multiplication and an addition. There, attention, scores and ordered sums stay far below sgemm.", 120), "",
            *self.ratios(), "",
            "The next table shows the milliseconds of attention for one token in one layer, by number of cached tokens:", "",
            *self.decoding(),
        ])


BEGIN, END = "<!-- from scripts/bench/bench.json: make bench-readme -->\n", "\n<!-- end of what make bench-readme writes -->"


def readme(path, check):
    with open(path, encoding="utf-8") as file:
        text = Page(json.load(file)).text()
    with open("README.md", encoding="utf-8") as file:
        page = file.read()
    before, rest = page.split(BEGIN)
    old, after = rest.split(END)
    if check:
        return 0 if old == text else sys.exit(f"README.md: the section Speed is not what {path} gives: make bench-readme")
    with open("README.md", "w", encoding="utf-8") as file:
        file.write(before + BEGIN + text + END + after)
    return 0


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        text = file.read()
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "").split()
    return f"{platform.machine()}, {'AVX-512' if 'avx512f' in flags else 'AVX2' if 'avx2' in flags else 'no AVX2'}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--out")
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--cpu-time", action="store_true", help="for one thread on a machine that others use")
    parser.add_argument("--runs", type=int, help="instead of the usual numbers of runs")
    parser.add_argument("--only", help="some items")
    parser.add_argument("--readme", metavar="FILE")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.readme:
        return readme(options.readme, options.check)

    print(f"threads {options.threads}; seconds are the least of several runs; GF is 1e9 operations/s, GB 1e9 bytes/s")
    data = {"processor": processor(), "threads": options.threads, "cpu_time": options.cpu_time}
    out = options.out or f"{options.build}/bench.json"

    def save(items, torch=()):
        rows, others = (",\n".join("  " + json.dumps(r) for r in part) for part in (items, torch))
        with open(out + ".part", "w", encoding="utf-8") as file:
            file.write(f'{{{json.dumps(data)[1:-1]},\n "items": [\n{rows}\n ],\n "torch": [\n{others}\n ]}}\n')
        os.replace(out + ".part", out)

    folders = models(options.build, options.only.split(",") if options.only else None)
    items = measure(options.build, options, folders, save)
    if options.torch:
        save(items, measure_torch(options.build, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())

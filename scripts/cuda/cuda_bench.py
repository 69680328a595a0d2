"""Times the CUDA operators beside the limits of the device and beside attention of the installed PyTorch.

    python3 scripts/cuda/cuda_bench.py BUILD/cuda_bench [--json OUT] [--limit SECONDS] [--small]

Runs cuda_bench, at most --limit seconds, and keeps the rows that it has printed by then. Without PyTorch these are all.
With it (2.5 or later), in the same run measures a large bf16 matrix product and a large copy, dense causal attention,
the same with the chosen blocks as a mask, flex_attention with them, dense decoding. One table; after it a line for each
requirement. What cannot be measured is listed with the reason. --small: tiny sizes, on a CPU if there is no device;
its figures mean nothing.

Blocks are drawn at random in PyTorch's measurements, as in cuda_bench, whose scores are of random vectors: rows side by
side share few of them. Exit status: 0 measured, whatever the figures; 1 cuda_bench failed or took too long; 69 no
device.
"""

import argparse
import json
import math
import subprocess
import sys
import threading
import time

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError:
    torch = None

TOO_LONG = 20               # seconds of a call: larger sizes are then left out
BUDGET = 420                # seconds of the whole: later measurements are left out
START = time.monotonic()

RELEASED = {"G": 4, "Q": 64, "D": 128, "block": 128, "N": 16, "H": 6144, "matrix": 8192, "copy": 2 << 30,
            "prefill": [8 << 10, 64 << 10], "decode": [64 << 10, 1 << 20], "tokens": [1, 8, 512, 8192]}
SMALL = {"G": 2, "Q": 8, "D": 32, "block": 16, "N": 4, "H": 64, "matrix": 64, "copy": 1 << 16,
         "prefill": [112, 201], "decode": [65, 500], "tokens": [1, 8, 12, 70]}


class Bench:
    def __init__(self, sizes, device):
        self.sizes, self.device, self.rows = sizes, device, []
        self.memory = torch.cuda.mem_get_info()[1] if device == "cuda" else 1 << 32

    def random(self, *shape):
        return torch.randn(*shape, device=self.device, dtype=torch.bfloat16)

    def seconds(self, call):
        """The median of several runs, after one to warm up; the first alone if it took very long."""
        self.wait(call)
        times = [self.wait(call)]
        while len(times) < 5 or (sum(times) < 0.5 and len(times) < 30):
            if sum(times) > 5:
                break
            times.append(self.wait(call))
        return sorted(times)[len(times) // 2]

    def wait(self, call):
        if self.device == "cpu":
            start = time.perf_counter()
            call()
            return time.perf_counter() - start
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        call()
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last) / 1000

    def measure(self, what, T, S, prepare, flops=0, moved=0):
        """A row: its time, or why there is none. prepare() returns the call."""
        row = {"what": what, "T": T, "S": S}
        self.rows.append(row)
        try:
            expected = max((r["seconds"] * (S / r["S"]) ** 2 for r in self.rows
                            if r["what"] == what and T > 1 and "seconds" in r and r["S"]), default=0)
            if expected > TOO_LONG:
                raise Skipped(f"would take {expected:.0f} s")
            if time.monotonic() - START > BUDGET:
                raise Skipped(f"{BUDGET} s are over")
            with torch.no_grad():
                row["seconds"] = self.seconds(prepare())
            row["tflops"] = flops / row["seconds"] / 1e12
            row["gbs"] = moved / row["seconds"] / 1e9
        except Skipped as reason:
            row["skipped"] = str(reason)
        except Exception as error:      # of PyTorch, its compiler or the device: the reason is printed
            row["skipped"] = f"{type(error).__name__}: {(str(error).strip() or '?').splitlines()[0][:160]}"
        if self.device == "cuda":
            torch.cuda.empty_cache()
        print(f"# {time.monotonic() - START:5.0f} s  {what} T={T} S={S}: {row.get('seconds', row.get('skipped'))}",
              file=sys.stderr, flush=True)

    def fits(self, needed, what):
        if needed > 0.8 * self.memory:
            raise Skipped(f"{what}: {needed / 1e9:.0f} GB, the device has {self.memory / 1e9:.0f}")


class Skipped(Exception):
    """A measurement that is left out, with its reason."""


# ---- PyTorch's attention

def heads(b, T):
    """q [1,Q,T,D]; k, v [1,G,T,D]"""
    z = b.sizes
    return b.random(1, z["Q"], T, z["D"]), b.random(1, z["G"], T, z["D"]), b.random(1, z["G"], T, z["D"])


def dense(b, T, backend):
    def prepare():
        q, k, v = heads(b, T)

        def call():
            with sdpa_kernel(backend):
                F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return call
    return prepare


def chosen_blocks(b, T):
    """[G,T,B], True where row t of group g attends to block b: N of the visible ones, always including its own."""
    z = b.sizes
    B = math.ceil(T / z["block"])
    chosen = torch.zeros(z["G"], T, B, dtype=torch.bool, device=b.device)
    own = torch.arange(T, device=b.device) // z["block"]
    blocks = torch.arange(B, device=b.device)
    for first in range(0, T, 8192):
        piece = own[first:first + 8192, None]
        scores = torch.rand(z["G"], len(piece), B, device=b.device)
        scores = scores.masked_fill(blocks > piece, -1).masked_fill(blocks == piece, 2)
        best = scores.topk(min(z["N"], B), dim=-1)
        chosen[:, first:first + 8192].scatter_(2, best.indices, best.values >= 0)
    return chosen


def masked(b, T):
    """One group at a time, so that its heads share one [T,T] mask."""
    z = b.sizes

    def prepare():
        b.fits(3 * T * T + 4 * T * z["Q"] * z["D"] * 2, "mask [T,T] of one group, bool and bf16")
        (q, k, v), r = heads(b, T), z["Q"] // z["G"]
        place = torch.arange(T, device=b.device)
        mask = chosen_blocks(b, T)[0][:, place // z["block"]].logical_and_(place <= place[:, None])[None, None]

        def call():                     # the mask of the first group serves all: the work is the same
            for g in range(z["G"]):
                keys, values = (x[:, g:g + 1].expand(-1, r, -1, -1) for x in (k, v))
                F.scaled_dot_product_attention(q[:, g * r:(g + 1) * r], keys, values, attn_mask=mask)
        return call
    return prepare


def flex(b, T):
    """Tiles of as many rows as a block has keys; inside a tile every row has its own blocks."""
    z = b.sizes

    def prepare():
        try:
            from torch.nn.attention.flex_attention import BlockMask, flex_attention
        except ImportError:
            raise Skipped("this PyTorch has no flex_attention") from None
        (q, k, v), chosen = heads(b, T), chosen_blocks(b, T)
        tile, r, B = z["block"], z["Q"] // z["G"], chosen.shape[2]
        if T % tile:
            raise Skipped(f"a tile has {tile} rows")
        wanted = chosen.view(z["G"], T // tile, tile, B).any(2)
        counts = wanted.sum(-1, dtype=torch.int32).repeat_interleave(r, 0)[None]
        order = wanted.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)
        order = order.repeat_interleave(r, 0)[None]

        def mask_mod(_, h, row, key):
            return chosen[h // r, row, key // tile] & (key <= row)

        mask = BlockMask.from_kv_blocks(counts, order, BLOCK_SIZE=tile, mask_mod=mask_mod)
        compiled = torch.compile(flex_attention, dynamic=False)
        return lambda: compiled(q, k, v, block_mask=mask, enable_gqa=True)
    return prepare


def decode(b, S, grouped):
    """One token. `grouped`: heads of a group as rows of one head, so that keys are read once."""
    z = b.sizes

    def prepare():
        q, k, v = b.random(1, z["Q"], 1, z["D"]), b.random(1, z["G"], S, z["D"]), b.random(1, z["G"], S, z["D"])
        if grouped:
            q = q.view(1, z["G"], z["Q"] // z["G"], z["D"])
        return lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=not grouped)
    return prepare


def measure_torch(b):
    z = b.sizes
    n, Q, G, D = z["matrix"], z["Q"], z["G"], z["D"]

    def product(rows, cols, inner):
        x, w = b.random(rows, inner), [b.random(cols, inner) for _ in range(4 if rows == 1 else 1)]
        calls = iter(range(1 << 30))
        return lambda: F.linear(x, w[next(calls) % len(w)])

    def copy():
        x, y = (torch.rand(z["copy"] // 4, device=b.device) for _ in range(2))
        return lambda: y.copy_(x)

    b.measure("limit: bf16 product", n, n, lambda: product(n, n, n), 2 * n ** 3)
    b.measure("limit: copy", 0, 0, copy, 0, 2 * z["copy"])
    backends = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    if b.device == "cpu":
        del backends["cudnn"]
    for T in z["prefill"]:
        for name, backend in backends.items():
            b.measure(f"torch dense prefill, {name}", T, T, dense(b, T, backend), 2 * Q * D * T * (T + 1))
    for S in z["decode"]:
        for name in ("heads", "groups"):
            b.measure(f"torch dense decode, {name}", 1, S, decode(b, S, name == "groups"), 4 * Q * D * S,
                      4 * S * G * D)
    for T in z["tokens"]:
        b.measure("torch linear", T, 0, lambda T=T: product(T, z["H"], z["H"]), 2 * T * z["H"] ** 2,
                  2 * z["H"] ** 2 + 4 * T * z["H"])
    for T in z["prefill"]:
        b.measure("torch masked prefill", T, T, masked(b, T))
    for T in z["prefill"]:
        b.measure("torch flex prefill", T, T, flex(b, T))


# ---- ours, and the table

def run_ours(program, small, limit):
    """Rows of cuda_bench, as far as it came in `limit` seconds, and its exit status, or why there is none."""
    lines = []
    with subprocess.Popen([program] + ["--small"] * small, stdout=subprocess.PIPE, text=True) as process:
        reader = threading.Thread(target=lambda: lines.extend(process.stdout), daemon=True)
        reader.start()
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
            status = f"it took longer than {limit} s"
        reader.join(10)
    rows = [json.loads(line) for line in list(lines) if line.endswith("\n")]
    return [row | {"what": "ours: " + row["what"]} for row in rows if row["what"] != "device"], status


def find(rows, what, T, S, kind=None):
    """The row, if it was measured."""
    for row in rows:
        if (row["what"], row["T"], row["S"], row.get("type")) == (what, T, S, kind) and "seconds" in row:
            return row
    return None


def prefill_seconds(rows, T, kind="bf16"):
    names = ("block_scores", "select_blocks", "attend_blocks")
    parts = [find(rows, f"ours: {name}", T, T, kind) for name in names]
    return sum(part["seconds"] for part in parts) if all(parts) else None


def opponents(row, rows):
    """The PyTorch measurement that does the same work, or the work that this saves."""
    T, S, what = row["T"], row["S"], row["what"]
    if what == "ours: linear":
        return [find(rows, "torch linear", T, 0)]
    if what == "ours: step":
        return [find(rows, f"torch dense decode, {how}", 1, S) for how in ("heads", "groups")]
    if what == "ours: prefill":
        return [find(rows, f"torch {how} prefill{end}", T, S) for how, end in
                (("dense", ", flash"), ("dense", ", cudnn"), ("masked", ""), ("flex", ""))]
    return []


def share(value, limit):
    return f"{100 * value / limit:6.1f} %" if value and limit else f"{'-':>8}"


def print_table(rows, limits):
    print(f"{'what':30} {'type':5} {'T':>7} {'S':>8} {'ms':>11} {'TFLOP/s':>9} {'GB/s':>8} {'of prod.':>8} "
          f"{'of copy':>8}   torch, ms (times ours)")
    for row in rows:
        if "seconds" not in row:
            if "skipped" in row:
                print(f"{row['what']:30} {'':5} {row['T']:7} {row['S']:8}   left out: {row['skipped']}")
            continue
        against = [f"{other['what'].removeprefix('torch ')} {1000 * other['seconds']:.3f} "
                   f"({other['seconds'] / row['seconds']:.2f})" for other in opponents(row, rows) if other]
        print(f"{row['what']:30} {row.get('type', ''):5} {row['T']:7} {row['S']:8} {1000 * row['seconds']:11.4f} "
              f"{row['tflops']:9.2f} {row['gbs']:8.1f} {share(row['tflops'], limits['tflops'])} "
              f"{share(row['gbs'], limits['gbs'])}   {'; '.join(against)}".rstrip())


def requirement(text, value, least, unit, how):
    if value is None:
        print(f"{text}: not measured")
        return
    print(f"{text}: {value:.2f}{unit}, {'holds' if value >= least else 'does not hold'}; {how}")


def print_requirements(rows, limits, sizes):
    T, S = sizes["prefill"][-1], sizes["decode"][-1]
    ours, flash = prefill_seconds(rows, T), find(rows, "torch dense prefill, flash", T, T)
    ratio = flash["seconds"] / ours if ours and flash else None
    requirement(f"prefill at {T} at least 5 times as fast as dense flash attention", ratio, 5, "",
                "block scores, selection and attention together")
    for part, least in (("block_scores", 40), ("attend_blocks", 20)):
        row = find(rows, f"ours: {part}", T, T, "bf16")
        value = 100 * row["tflops"] / limits["tflops"] if row and limits["tflops"] else None
        how = "of the bf16 product measured here"
        if row and limits["tflops"] and limits["gbs"]:
            floor = max(row["flops"] / limits["tflops"] / 1e12, row["moved"] / limits["gbs"] / 1e9)
            how += (f"; floor by products and by the bytes between kernels {1000 * floor:.3f} ms, "
                    f"took {1000 * row['seconds']:.3f}")
        requirement(f"{part} at {T} at least {least} % of the limit of products", value, least, " %", how)
    row = find(rows, "ours: step", 1, S, "bf16")
    value = 100 * row["gbs"] / limits["gbs"] if row and limits["gbs"] else None
    requirement(f"decoding at {S} at least 60 % of memory bandwidth", value, 60, " %",
                "of the copy measured here; bytes that must be read: all index keys, keys and values of chosen blocks")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="cuda_bench")
    parser.add_argument("--json", metavar="OUT", help="all rows, as a JSON array")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--limit", metavar="SECONDS", type=int, default=280, help="for cuda_bench")
    options = parser.parse_args()
    sizes = SMALL if options.small else RELEASED
    ours, status = run_ours(options.program, options.small, options.limit)
    if status == 69:
        sys.exit(69)
    device = "cuda" if torch and torch.cuda.is_available() else "cpu"
    bench = Bench(sizes, device) if torch and (device == "cuda" or options.small) else None
    if bench:
        torch.manual_seed(1)
        measure_torch(bench)
    whole = [{"what": "ours: prefill", "type": kind, "T": T, "S": T, "seconds": prefill_seconds(ours, T, kind),
              "tflops": 0, "gbs": 0} for kind in ("bf16", "f32") for T in sizes["prefill"]]
    rows = ours + [row for row in whole if row["seconds"]] + (bench.rows if bench else [])
    product, copy = find(rows, "limit: bf16 product", sizes["matrix"], sizes["matrix"]), find(rows, "limit: copy", 0, 0)
    mine = find(ours, "ours: copy", 0, 0, "f32")
    limits = {"tflops": product and product["tflops"],
              "gbs": max((row["gbs"] for row in (copy, mine) if row), default=None)}
    beside = f"PyTorch {torch.__version__}" if bench else "no PyTorch that sees the device"
    print(f"{beside}; medians; limits: bf16 product of {sizes['matrix']}, the faster copy")
    print_table(rows, limits)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)
    if status:
        print(f"cuda_bench: {status if isinstance(status, str) else f'status {status}'}: rows are missing")
    print_requirements(rows, limits, sizes)
    sys.exit(1 if status else 0)


if __name__ == "__main__":
    main()

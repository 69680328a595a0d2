"""Times the public PyTorch code of MiniMax-M3 at released sizes, fp32, random weights: what `bench` is compared with.

    python scripts/bench/bench_torch.py [--threads N] [--runs N] [NAME ...]

One JSON line per measurement: {"what", "seconds": least of the runs, "peak_bytes": peak memory of its process, ...}.
Each runs in a process of its own. `attention` holds a dense [64,T,T] mask and scores: about 12 GiB at T = 4096.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import torch
from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl as modeling
from transformers.models.minimax_m3_vl.configuration_minimax_m3_vl import MiniMaxM3VLConfig, MiniMaxM3VLTextConfig

HIDDEN = 6144


def text_config(experts=128, attention="sdpa", implementation="eager"):
    config = MiniMaxM3VLTextConfig(num_hidden_layers=1, num_local_experts=experts, layer_types=["minimax_m3_sparse"],
                                   mlp_layer_types=["sparse"], rope_theta=5000000, partial_rotary_factor=0.5)
    config._attn_implementation, config._experts_implementation = attention, implementation
    return config


def randomised(module):
    for tensor in [*module.parameters(), *module.buffers()]:
        tensor.data.uniform_(-0.02, 0.02)
    return module.eval()


def linear():
    """One 6144 x 6144 matrix, T = 512."""
    module, x = randomised(torch.nn.Linear(HIDDEN, HIDDEN, bias=False)), torch.randn(512, HIDDEN)
    return lambda: module(x)


def moe(implementation):
    """A MoE block of 16 experts, top 4, with its router and shared expert, T = 512."""
    module = randomised(modeling.MiniMaxM3VLSparseMoeBlock(text_config(16, implementation=implementation)))
    x = torch.randn(1, 512, HIDDEN)
    return lambda: module(x)


def attention():
    """A sparse attention layer: 64 heads, 4 KV heads, head 128, block 128, 16 blocks kept, T = 4096."""
    config, T = text_config(), 4096
    rotary = modeling.MiniMaxM3VLRotaryEmbedding(config)
    module = randomised(modeling.MiniMaxM3VLAttention(config, 0))
    x, positions = torch.randn(1, T, HIDDEN), torch.arange(T)[None]
    tables = rotary(x, positions)
    return lambda: module(x, tables, None, position_ids=positions)


def vision():
    """Tower of 32 layers and projector on a picture of 672 x 672 pixels: 2,304 patches, 576 tokens."""
    config = MiniMaxM3VLConfig()
    config.vision_config._attn_implementation = "sdpa"
    tower = randomised(modeling.MiniMaxM3VLVisionModel(config.vision_config))
    projector = randomised(modeling.MiniMaxM3VLMultiModalProjector(config))
    pixels, grid = torch.randn(2304, 1176), torch.tensor([[1, 48, 48]])
    return lambda: projector(tower(pixels, grid).last_hidden_state.squeeze(0))


BENCHES = {
    "linear": (linear, "linear 6144x6144, T=512"),
    "moe_eager": (lambda: moe("eager"), "MoE block, 16 experts top 4 + shared, eager, T=512"),
    "moe_grouped": (lambda: moe("grouped_mm"), "MoE block, 16 experts top 4 + shared, grouped_mm, T=512"),
    "vision": (vision, "tower and projector, 672x672, sdpa"),
    "attention": (attention, "sparse attention layer, 64/4 heads, sdpa, T=4096"),
}


@torch.no_grad()
def measure(name, threads, runs):
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    prepare, what = BENCHES[name]
    call, times = prepare(), []
    if runs > 1:
        call()                                        # warms caches and threads; not counted
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"what": what, "seconds": round(min(times), 6), "peak_bytes": peak, "threads": threads,
                      "runs": runs, "torch": torch.__version__}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--runs", type=int, default=5, help="attention always runs once")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", metavar="NAME", help=" ".join(BENCHES))
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHES)
    if unknown:
        parser.error(f"unknown: {' '.join(sorted(unknown))}")
    for name in options.names or BENCHES:
        runs = 1 if name == "attention" else options.runs
        if options.here:
            measure(name, options.threads, runs)
        else:
            subprocess.run([sys.executable, __file__, "--here", "--threads", str(options.threads), "--runs", str(runs),
                            name], check=True)


if __name__ == "__main__":
    main()

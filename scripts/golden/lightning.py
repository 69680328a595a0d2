"""Prints the numbers of tests/ops/test_lightning_attention.c that come from public code: the inner product of
MiniMaxLightningAttention of transformers in fp64, between its projections, and its slope rates.

    python scripts/golden/lightning.py

The projection is the identity, so that the inputs are those of the formula below, before SiLU. Refused if the chunked
pass and the one with a cache differ by more than 1e-15 of the largest number.
"""

import torch
from transformers import MiniMaxConfig
from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention

TOKENS, HEADS, WIDTH, BLOCK, LAYER, LAYERS = 7, 3, 2, 3, 1, 4
PIECES = (4, 2, 1)


class Cache:
    state = None

    def get_linear_cache(self, layer):
        return self.state

    def set_linear_cache(self, layer, state):
        self.state = state


def attention(layer, layers, heads, width):
    config = MiniMaxConfig(hidden_size=3 * heads * width, num_attention_heads=heads, num_key_value_heads=heads,
                           head_dim=width, num_hidden_layers=layers, block_size=BLOCK, hidden_act="silu",
                           layer_types=["linear_attention"] * layers)
    module = MiniMaxLightningAttention(config, layer)
    module.qkv_proj.weight.data = torch.eye(3 * heads * width)
    return module


def run(module, hidden, cache):
    """(o [T,Q,D], state [Q,D,D]): what enters the module's norm, and what it hands on."""
    caught = []
    hook = module.norm.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0][0]))
    with torch.no_grad():
        _, state = module(hidden[None], None, None, cache)
    hook.remove()
    return caught[0].reshape(-1, HEADS, WIDTH), state[0]


def show(name, values):
    numbers = [f"{value:.17g}," for value in values.flatten().tolist()]
    print(f"    static const double {name}[] = {{")
    for start in range(0, len(numbers), 5):
        print("        " + " ".join(numbers[start:start + 5]))
    print("    };")


def main():
    torch.set_default_dtype(torch.float64)
    module = attention(LAYER, LAYERS, HEADS, WIDTH)
    count = TOKENS * HEADS * 3 * WIDTH
    hidden = ((torch.arange(count) * 37 + 11) % 101 - 50).double().reshape(TOKENS, -1) / 16
    o, state = run(module, hidden, None)

    cache, parts = Cache(), []
    for rows in hidden.split(PIECES):
        parts.append(run(module, rows, cache)[0])
    pairs = (torch.cat(parts), o), (cache.state[0], state)
    worst = max(((cached - chunked).abs().max() / chunked.abs().max()).item() for cached, chunked in pairs)
    if not worst <= 1e-15:
        raise SystemExit(f"chunked and cached differ by {worst:.1e}")

    show("slopes", module.slope_rate)
    show("o", o)
    show("state", state)
    for layer, layers, heads in ((0, 80, 64), (78, 80, 64), (79, 80, 64)):
        show(f"slopes_{layer}", attention(layer, layers, heads, 1).slope_rate[[0, 1, heads - 1]])


main()

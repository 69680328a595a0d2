"""Engines that no_false_alarms.py puts on the public PyTorch model, and mistakes in them."""

from typing import NamedTuple

import fused_and_cached
import tensor_parallel

BF16 = ("--dtype", "bf16")


class Mistake(NamedTuple):
    options: tuple                              # of dump_transformers.py, after those of the engine
    at: tuple                                   # what blame must find wrong on golden/tiny; the first is the culprit


class Engine(NamedTuple):
    options: tuple                              # of dump_transformers.py; of a tuple in it, one by the seed
    profile: str
    too_strict: str = ""                        # a profile under which blame must find something wrong
    weights: tuple = ("bf16",)                  # m3ref synth --dtype, by the seed
    mistakes: tuple = ()


PLUS_ONE = Mistake(("--without-plus-one",), ("layers.0.mlp.act",))
ALPHA = Mistake(("--alpha", "1.7"), ("layers.0.mlp.act",))
FUSED = ("layers.0.attn_norm", "layers.0.mlp_norm", "layers.1.attn_norm", "final_norm")
IN_8_BITS = ("mxfp8", "f8_block")


def in_parts(ranks):
    return Engine((*BF16, "--ranks", str(ranks), "--reduce", tensor_parallel.REDUCES), f"bf16+tp{ranks}", "bf16",
                  mistakes=(PLUS_ONE,))


ENGINES = {
    "eager": Engine((), "fp32", mistakes=(PLUS_ONE, ALPHA)),
    "sdpa": Engine(("--attention", "sdpa"), "fp32"),
    "grouped": Engine(("--experts", "grouped_mm"), "fp32"),
    "tf32": Engine(("--products", ("tf32", "tf32_cut")), "tf32", "fp32",
                   mistakes=(PLUS_ONE, ALPHA, Mistake(("--product-mistake", "angles_too"), ("layers.0.q_rope",)))),
    "fp16": Engine(("--dtype", "f16"), "fp16", "fp32", mistakes=(PLUS_ONE,)),
    "bf16": Engine(BF16, "bf16", mistakes=(PLUS_ONE,)),
    "bf16 sdpa": Engine((*BF16, "--attention", "sdpa", "--experts", "grouped_mm"), "bf16"),
    "fused norm": Engine((*BF16, "--fused-norm"), "bf16+fused_norm", "bf16", mistakes=(
        PLUS_ONE, Mistake(("--fused-norm", "no_plus_one"), FUSED),
        Mistake(("--fused-norm", "one_plus_w_bf16"), FUSED))),
    "kv e4m3": Engine((*BF16, "--cache", "e4m3", "--cache-scale", fused_and_cached.SCALES), "bf16+kv_e4m3", "bf16",
                      mistakes=(PLUS_ONE, Mistake(("--cache-mistake", "value_unscaled"), ("layers.0.attn",)),
                                Mistake(("--cache-mistake", "key_of_the_token_before"), ("layers.0.attn",)))),
    "bf16 tp2": in_parts(2), "bf16 tp4": in_parts(4), "bf16 tp8": in_parts(8),
    "fp8 mx": Engine((*BF16, "--products", ("mx_down", "mx_up")), "fp8", "bf16", IN_8_BITS, (
        PLUS_ONE, Mistake(("--product-mistake", "exponent_one_too_low"), ("layers.0.q_proj",)))),
    "fp8 token": Engine((*BF16, "--products", "e4m3_token"), "fp8+act_token", "bf16", IN_8_BITS, (
        PLUS_ONE, Mistake(("--product-mistake", "scale_of_the_token_before"), ("layers.0.q_proj",)))),
}


def options(engine, seed):
    return [option if isinstance(option, str) else option[seed % len(option)] for option in engine.options]

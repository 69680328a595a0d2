"""Hooks for models in MLX, which has none: calls of modules, and of functions of mlx.core in the model's own file."""

import os
import re

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from . import adapter

# The modules of a layer, and the names of its taps.
LAYERS = ((re.compile(r"^language_model\.model\.layers\.(\d+)\.?"), "layers."),
          (re.compile(r"^vision_tower\.vision_model\.encoder\.layers\.(\d+)\.?"), "vision.layers."))


def place(name):
    """(prefix of the taps of the layer that a module belongs to, the end of its name)."""
    for pattern, prefix in LAYERS:
        found = pattern.match(name)
        if found:
            return f"{prefix}{found.group(1)}.", name[found.end():]
    return "", name


# How an array becomes rows of a tap.

def rows(taps, x):
    return x.reshape(-1, x.shape[-1])


def last(letter):
    """Heads side by side in the last axis: Q, G, I or A of them."""
    def split(taps, x):
        return x.reshape(-1, taps.heads[letter], x.shape[-1] // taps.heads[letter])
    return split


def heads(taps, x):
    """[1, rows, heads, channels]."""
    return x.reshape(-1, *x.shape[-2:])


def transposed(taps, x):
    """[1, heads, rows, channels]."""
    return x[0].transpose(1, 0, 2)


# What modules of a text layer give and are given: the end of a module's name, the tap, how its array becomes rows.
TEXT_OUT = {
    "input_layernorm": ("attn_norm", rows), "self_attn.q_proj": ("q_proj", last("Q")),
    "self_attn.k_proj": ("k_proj", last("G")), "self_attn.v_proj": ("v_proj", last("G")),
    "self_attn.q_norm": ("q_norm", heads), "self_attn.k_norm": ("k_norm", heads),
    "self_attn.index_q_proj": ("index.q_proj", last("I")), "self_attn.index_k_proj": ("index.k_proj", rows),
    "self_attn.index_q_norm": ("index.q_norm", heads), "self_attn.index_k_norm": ("index.k_norm", rows),
    "self_attn.o_proj": ("attn_out", rows), "post_attention_layernorm": ("mlp_norm", rows),
    "mlp.gate_proj": ("mlp.gate", rows), "mlp.up_proj": ("mlp.up", rows), "mlp": ("mlp", rows),
    "block_sparse_moe.gate": ("moe.router_logits", rows), "block_sparse_moe.shared_experts": ("moe.shared", rows),
    "block_sparse_moe": ("mlp", rows), "": ("out", rows),
}
TEXT_IN = {"self_attn.o_proj": ("attn", last("Q")), "post_attention_layernorm": ("mid", rows),
           "mlp.down_proj": ("mlp.act", rows)}


def to_numpy(x):
    """(array, dtype of the dump)."""
    return (np.array(x.view(mx.uint16)), "BF16") if x.dtype == mx.bfloat16 else (np.array(x), None)


class Functions:
    """mlx.core as a file sees it, with some functions watched: {name: function(original, *arguments)}."""

    def __init__(self, watched, under=mx):
        self.watched, self.under = watched, under

    def __getattr__(self, name):
        original = getattr(self.under, name)
        if name not in self.watched:
            return original
        return lambda *arguments, **keywords: self.watched[name](original, *arguments, **keywords)


class Watch:
    """Calls of a model's modules; `inside` has the names of those in progress."""

    def __init__(self, model, before, after):
        self.modules = dict(model.named_modules())
        self.names = {id(module): name for name, module in model.named_modules()}
        self.inside, self.before, self.after = [], before, after
        for kind in {type(module) for _, module in model.named_modules()}:
            if "__call__" in vars(kind):
                kind.__call__ = self.watched(kind.__call__)

    def watched(self, original):
        def call(module, *arguments, **keywords):
            name = self.names.get(id(module))
            if name is None:
                return original(module, *arguments, **keywords)
            self.before(name, arguments)
            self.inside.append(name)
            try:
                result = original(module, *arguments, **keywords)
                return self.after(name, arguments, result)
            finally:
                self.inside.pop()
        return call

    def at(self, end):
        return bool(self.inside) and self.inside[-1].endswith(end)


class Taps:
    """Saves what the tables of an adapter name. out, given: {(start of the taps' names, end of a module's name): (tap,
    form)}, the start being "layers." or "vision.layers." or "" for a whole name; turns: {end: ((tap, form), ..)}, for a
    module of an attention that is called several times."""

    def __init__(self, model, config, dump, out, given, turns):
        self.dump, self.text = dump, config["text_config"]
        sparse = self.text["sparse_attention_config"]
        self.heads = {"Q": self.text["num_attention_heads"], "G": self.text["num_key_value_heads"],
                      "I": sparse["sparse_num_index_heads"], "A": config["vision_config"]["num_attention_heads"]}
        self.block, self.kept = sparse["sparse_block_size"], sparse["sparse_topk_blocks"]
        self.sparse = [f"layers.{layer}." for layer, on in enumerate(sparse["sparse_attention_freq"]) if on]
        self.out, self.given, self.turns = out, given, turns
        self.total, self.listed, self.turn = 0, True, {}
        self.watch = Watch(model, self.before, self.after)

    def save(self, tap, x, form=rows):
        """A tap of the module that is running."""
        self.dump.save(place(self.watch.inside[-1])[0] + tap, *to_numpy(form(self, x)))

    def save_blocks(self, blocks):
        """Ascending lists [1, heads, rows, N]."""
        self.listed = True
        self.save("index.blocks", blocks.astype(mx.int32), transposed)

    @staticmethod
    def key(prefix, end):
        return prefix.rstrip("0123456789."), end

    def before(self, name, arguments):
        prefix, end = place(name)
        if prefix == "layers.0." and end == "":
            self.dump.save("fused", *to_numpy(rows(self, arguments[0])))
        if end == "self_attn":
            self.turn, self.listed = {}, False
        if self.key(prefix, end) in self.given:
            tap, form = self.given[self.key(prefix, end)]
            self.dump.save(prefix + tap, *to_numpy(form(self, arguments[0])))

    def after(self, name, arguments, result):
        prefix, end = place(name)
        if self.key(prefix, end) in self.out:
            self.save(self.out[self.key(prefix, end)][0], result, self.out[self.key(prefix, end)][1])
        if prefix and end in self.turns:
            turn = self.turn[end] = self.turn.get(end, -1) + 1
            self.save(self.turns[end][turn][0], result, self.turns[end][turn][1])
        if end == "self_attn" and prefix in self.sparse and not self.listed:
            rows = result.shape[-2]
            lists = adapter.visible_blocks(self.total - rows, rows, self.heads["I"], self.block, self.kept)
            self.dump.save(prefix + "index.blocks", lists)
        return result


class Products:
    """What each expert gives, on its way through `(y * scores[..., None]).sum(axis=-2)`."""

    def __init__(self, y, taps):
        self.y, self.taps = y, taps

    def __mul__(self, scores):
        factor = self.taps.watch.modules[self.taps.watch.inside[-1]].routed_scaling_factor
        self.taps.save("moe.weights", scores[..., :self.taps.text["num_experts_per_tok"], 0] / factor)
        return Products(self.y * scores, self.taps)

    def sum(self, axis):
        result = self.y.sum(axis=axis)
        if self.y.shape[-2] == self.taps.text["num_experts_per_tok"]:      # else the shared expert is one of them
            self.taps.save("moe.routed", result)
        return result


def load_weights(model, folder, dtype):
    """Weights as the release stores them, or all in float; matrices in MXFP8 stay codes with scales."""
    mx.set_default_device(mx.cpu)
    weights = {}
    for name in sorted(name for name in os.listdir(folder) if name.endswith(".safetensors")):
        weights.update(mx.load(os.path.join(folder, name)))
    weights = model.sanitize(weights)
    if dtype == "f32":
        weights = {name: value.astype(mx.float32) if mx.issubdtype(value.dtype, mx.floating) else value
                   for name, value in weights.items()}
    if any(name.endswith(".scales") for name in weights):
        nn.quantize(model, group_size=32, bits=8, mode="mxfp8",
                    class_predicate=lambda name, module: name + ".scales" in weights)
    model.load_weights(list(weights.items()))
    model.eval()


def gather_in_float(original, x, weight, **keywords):
    """MLX multiplies experts in bfloat16 on a GPU alone, adding in float: the same on a CPU."""
    if x.dtype == mx.float32:
        return original(x, weight, **keywords)
    return original(x.astype(mx.float32), weight.astype(mx.float32), **keywords).astype(x.dtype)

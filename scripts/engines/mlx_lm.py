"""mlx-lm on a CPU: the text model `mlx_lm.models.minimax_m3_vl`."""

import importlib.metadata

import mlx.core as mx
import mlx_lm.models.minimax_m3_vl as modeling
import mlx_lm.models.switch_layers as switch_layers

from . import adapter, mlx_hooks
from .mlx_hooks import TEXT_IN, TEXT_OUT, rows, transposed

OUT = TEXT_OUT | {"self_attn.q_norm": ("q_norm", transposed), "self_attn.k_norm": ("k_norm", transposed)}
WHOLE = {("", "language_model.model.embed_tokens"): ("embed", rows),
         ("", "language_model.model.norm"): ("final_norm", rows),
         ("", "language_model.lm_head"): ("logits", rows)}
TURNS = {"self_attn.rope": (("q_rope", transposed), ("k_rope", transposed)),
         "self_attn.index_rope": (("index.k_rope", rows), ("index.q_rope", transposed))}


def of_layers(table):
    return {("layers", end): value for end, value in table.items()}


class Taps(mlx_hooks.Taps):
    def __init__(self, model, config, dump):
        super().__init__(model, config, dump, of_layers(OUT) | WHOLE, of_layers(TEXT_IN), TURNS)
        modeling.mx = mlx_hooks.Functions({"sigmoid": self.sigmoid, "where": self.where,
                                           "argpartition": self.argpartition}, modeling.mx)

    def sigmoid(self, original, x):
        result = original(x)
        if self.watch.at("block_sparse_moe"):
            self.save("moe.router_scores", result, rows)
        return result

    def where(self, original, condition, value, other):
        if self.watch.at("self_attn") and value is mx.inf:      # local blocks; -inf hides keys
            self.save("index.block_scores", other, transposed)
        return original(condition, value, other)

    def argpartition(self, original, x, kth, axis):
        result = original(x, kth=kth, axis=axis)
        chosen = result[..., :kth + 1]
        if self.watch.at("self_attn"):
            self.save_blocks(mx.sort(chosen, axis=-1))
        else:
            self.save("moe.experts", chosen, rows)
        return result

    def after(self, name, arguments, result):
        result = super().after(name, arguments, result)
        if name.endswith("block_sparse_moe.switch_mlp"):
            self.save("moe.expert_out", result, lambda taps, x: x)
            return mlx_hooks.Products(result, self)
        return result


def load(folder, dtype):
    config = adapter.read_config(folder)
    model = modeling.Model(modeling.ModelArgs.from_dict(config))
    mlx_hooks.load_weights(model, folder, dtype)
    switch_layers.mx = mlx_hooks.Functions({"gather_mm": mlx_hooks.gather_in_float})
    return model, config


def run(folder, case, dump, options, change=None):
    """change: a function that makes a mistake in the model; see mistakes.py."""
    mx.disable_compile()
    mx.set_default_device(mx.cpu)
    if change:
        change(modeling)
    model, config = load(folder, options.dtype)
    taps = Taps(model, config, dump)
    cache = model.make_cache() if options.chunk else None
    for ids in case.chunks(options.chunk):
        taps.total += len(ids)
        mx.eval(model(mx.array(ids)[None], cache=cache))
    return f"mlx-lm {importlib.metadata.version('mlx-lm')}, mlx {importlib.metadata.version('mlx')}"

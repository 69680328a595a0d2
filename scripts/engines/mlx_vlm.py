"""mlx-vlm on a CPU: text, vision tower and projector of `mlx_vlm.models.minimax_m3_vl`.

Its block scores are scaled, and merged over the index heads before it chooses: only its lists are dumped, the same for
every head. If the shared expert is as wide as the others, it is computed as one of them: `moe.routed` does not exist.
"""

import importlib.metadata

import mlx.core as mx
import mlx_vlm.models.minimax_m3_vl.language as modeling
import mlx_vlm.models.minimax_m3_vl.minimax_m3_vl as whole
import mlx_vlm.models.minimax_m3_vl.vision as vision
import mlx_vlm.models.switch_layers as switch_layers

from . import adapter, mlx_hooks
from .mlx_hooks import TEXT_IN, TEXT_OUT, heads, last, rows, transposed

VISION_OUT = {
    "layer_norm1": ("norm1", rows), "self_attn.q_proj": ("q_proj", last("A")),
    "self_attn.k_proj": ("k_proj", last("A")), "self_attn.v_proj": ("v_proj", last("A")),
    "self_attn.out_proj": ("attn_out", rows), "layer_norm2": ("norm2", rows),
    "mlp.fc1": ("fc1", rows), "mlp": ("mlp", rows), "": ("out", rows),
}
VISION_IN = {"self_attn.out_proj": ("attn", last("A")), "layer_norm2": ("mid", rows), "mlp.fc2": ("act", rows)}
WHOLE_OUT = {
    "language_model.model.embed_tokens": "embed", "language_model.model.norm": "final_norm",
    "language_model.lm_head": "logits", "vision_tower.vision_model.embeddings": "vision.patch_embed",
    "vision_tower.vision_model.pre_layrnorm": "vision.pre_norm",
    "multi_modal_projector.linear_1": "projector.linear_1", "multi_modal_projector.linear_2": "projector.linear_2",
    "patch_merge_mlp.linear_1": "projector.merge_linear_1", "patch_merge_mlp.linear_2": "projector.out",
}
WHOLE_IN = {"vision_tower.vision_model.embeddings": "vision.pixels",
            "multi_modal_projector.linear_2": "projector.act_1",
            "patch_merge_mlp.linear_1": "projector.merged", "patch_merge_mlp.linear_2": "projector.act_2"}
TURNS = {"self_attn.rope": (("q_rope", transposed), ("k_rope", transposed), ("index.q_rope", transposed),
                            ("index.k_rope", rows))}


def table(text, of_vision, of_whole):
    return ({("layers", end): value for end, value in text.items()}
            | {("vision.layers", end): value for end, value in of_vision.items()}
            | {("", name): (tap, rows) for name, tap in of_whole.items()})


class Taps(mlx_hooks.Taps):
    def __init__(self, model, config, dump):
        super().__init__(model, config, dump, table(TEXT_OUT, VISION_OUT, WHOLE_OUT), table(TEXT_IN, VISION_IN, WHOLE_IN), TURNS)
        modeling.mx = mlx_hooks.Functions({"sigmoid": self.sigmoid, "argpartition": self.argpartition}, modeling.mx)
        modeling.MiniMaxM3Indexer.__call__ = self.indexed(modeling.MiniMaxM3Indexer.__call__)
        vision._apply_vision_rope = self.rotated(vision._apply_vision_rope)

    def sigmoid(self, original, x):
        result = original(x)
        if self.watch.at("block_sparse_moe"):
            self.save("moe.router_scores", result)
        return result

    def argpartition(self, original, x, kth, axis):
        result = original(x, kth=kth, axis=axis)
        if self.watch.at("block_sparse_moe"):
            self.save("moe.experts", result[..., :kth + 1])
        return result

    def indexed(self, original):
        def call(indexer, *arguments):
            blocks, *rest = original(indexer, *arguments)
            if blocks is not None:              # [1, rows, N], -1 last
                self.save_blocks(mx.repeat(blocks[:, None], self.heads["I"], axis=1))
            return blocks, *rest
        return call

    def rotated(self, original):
        def call(x, frequencies):
            result = original(x, frequencies)
            turn = self.turn["vision"] = self.turn.get("vision", -1) + 1
            self.save(("q_rope", "k_rope")[turn], result, heads)
            return result
        return call

    def after(self, name, arguments, result):
        result = super().after(name, arguments, result)
        if name.endswith("block_sparse_moe.switch_mlp"):
            count = self.text["num_experts_per_tok"]
            each = result.reshape(-1, *result.shape[-2:])
            self.save("moe.expert_out", each[:, :count], lambda taps, x: x)
            if each.shape[1] > count:
                self.save("moe.shared", each[:, count])
            return mlx_hooks.Products(result, self)
        return result


def run(folder, case, dump, options, change=None):
    mx.disable_compile()
    mx.set_default_device(mx.cpu)
    if change:
        change(modeling)
    config = adapter.read_config(folder)
    model = whole.Model(whole.ModelConfig.from_dict(config))
    mlx_hooks.load_weights(model, folder, options.dtype)
    switch_layers.mx = mlx_hooks.Functions({"gather_mm": mlx_hooks.gather_in_float})
    taps = Taps(model, config, dump)
    cache = model.make_cache() if options.chunk else None
    pictures = {name: mx.array(value) for name, value in case.arrays.items()
                if name not in ("input_ids", "position_ids")}
    for ids in case.chunks(options.chunk):
        taps.total += len(ids)
        mx.eval(model(mx.array(ids)[None], cache=cache, **pictures).logits)
    return f"mlx-vlm {importlib.metadata.version('mlx-vlm')}, mlx {importlib.metadata.version('mlx')}"

"""Deliberate mistakes, put into engines by replacing functions of theirs: the judge must find and name each of them."""

from .mistake import Mistake, replaced
from .mistakes_whole import SGLANG, VLLM

# ---- mlx-lm

def turning(channels):
    """RoPE over another number of channels: a function of those of the head and those that should turn."""
    def change(modeling):
        class Rope(modeling.nn.RoPE):
            def __call__(self, x, offset=0):
                right, self.dims = self.dims, channels(x.shape[-1], self.dims)
                try:
                    return super().__call__(x, offset=offset)
                finally:
                    self.dims = right

        modeling.initialize_rope = lambda dims, base, traditional, **rest: Rope(dims, traditional, base)
    return change


def mlx_activation(function):
    def change(modeling):
        mx = modeling.mx
        modeling.SwigluOAI.__call__ = lambda self, x, gate: function(mx, x, gate, self._alpha, self._limit)
    return change


def mlx_gated(mx, x, gate, alpha, limit, one=1.0):
    gate, x = mx.minimum(gate, limit), mx.clip(x, -limit, limit)
    return (x + one) * (gate * mx.sigmoid(alpha * gate))


def mlx_norm(function):
    def change(modeling):
        modeling.GemmaRMSNorm.__call__ = lambda self, x: function(modeling.mx.fast.rms_norm, x, self.weight, self.eps)
    return change


def mlx_functions(**functions):
    def change(modeling):
        from . import mlx_hooks
        modeling.mx = mlx_hooks.Functions(functions)
    return change


def mlx_biased_weights(modeling):
    from . import mlx_hooks
    last = []

    def argpartition(original, x, **keywords):
        last.append(-x)
        return original(x, **keywords)

    def take_along_axis(original, scores, ids, axis):
        return original(last[-1], ids, axis=axis)

    modeling.mx = mlx_hooks.Functions({"argpartition": argpartition, "take_along_axis": take_along_axis})


def mlx_sum(original, x, **keywords):
    return original(x, **keywords) * 0 + 1


def mlx_scores_of_keys_to_come(original, condition, value, other):
    from math import inf
    return value if isinstance(other, float) and other == -inf else original(condition, value, other)


def mlx_attribute(owner, name, value):
    def change(modeling):
        kind = getattr(modeling, owner)
        init = kind.__init__

        def made(self, *arguments, **keywords):
            init(self, *arguments, **keywords)
            setattr(self, name, value)

        kind.__init__ = made
    return change


def mlx_dense(modeling):
    def block_mask(original, attention, x, mask, *rest):
        original(attention, x, mask, *rest)
        return mask

    replaced(modeling.Attention, "_block_mask", block_mask)


MLX_LM = {
    "half of the rotated channels": Mistake(turning(lambda head, right: right // 2), "layers.0.q_rope", ()),
    "all channels rotated": Mistake(turning(lambda head, right: head), "layers.0.q_rope", ("rope.full",)),
    "no + 1 in SwiGLU": Mistake(mlx_activation(lambda *a: mlx_gated(*a, one=0.0)), "layers.0.mlp.act",
                                ("act.no_plus_one",)),
    "alpha 1": Mistake(mlx_activation(lambda mx, x, g, alpha, limit: mlx_gated(mx, x, g, 1.0, limit)),
                       "layers.0.mlp.act", ("act.alpha",)),
    "no clamps": Mistake(mlx_activation(lambda mx, x, g, alpha, limit: mlx_gated(mx, x, g, alpha, 1e30)),
                         "layers.0.mlp.act", ("act.no_clamp",)),
    "norm weights without 1 +": Mistake(mlx_norm(lambda norm, x, w, eps: norm(x, w, eps)), "layers.0.attn_norm",
                                        ("norm.no_plus_one",)),
    "eps 1e-4 for 1e-6": Mistake(mlx_norm(lambda norm, x, w, eps: norm(x, 1 + w, 1e-4)), "layers.0.attn_norm", ()),
    "bias in the weights of experts": Mistake(mlx_biased_weights, "layers.2.moe.weights", ("router.bias_in_weights",)),
    "weights of experts not normalised": Mistake(mlx_functions(sum=mlx_sum), "layers.2.moe.weights",
                                                 ("router.no_renorm",)),
    "factor of routed experts lost": Mistake(mlx_attribute("SparseMoeBlock", "routed_scaling_factor", 1.0),
                                             "layers.2.moe.routed", ("moe.no_scale",)),
    "own block not forced": Mistake(mlx_attribute("Attention", "index_local_blocks", 0), "layers.2.index.blocks",
                                    ("select.no_local", "local_blocks=0")),
    "keys to come count in block scores": Mistake(mlx_functions(where=mlx_scores_of_keys_to_come),
                                                  "layers.2.index.block_scores", ()),     # also of blocks to come
    "dense attention in sparse layers": Mistake(mlx_dense, "layers.2.attn", ("attn.dense",)),
}


# ---- NeMo Automodel

def nemo_half_turned(modeling):
    def rotated(original, q, k, table, **keywords):
        half = table.shape[-1] // 2
        return original(q, k, modeling.torch.cat([table[..., :half // 2], table[..., half:half + half // 2]], -1),
                        **keywords)

    replaced(modeling, "apply_rotary_emb_qk", rotated)


def nemo_neighbours_turned(modeling):
    def rotated(original, q, k, table, **keywords):
        torch, turned = modeling.torch, table.shape[-1]

        def order(x):
            there = torch.cat([torch.arange(0, turned, 2), torch.arange(1, turned, 2),
                               torch.arange(turned, x.shape[-1])])
            return there, there.argsort()

        results = original(q[..., order(q)[0]], k[..., order(k)[0]], table, **keywords)
        return tuple(x[..., order(x)[1]] for x in results)

    replaced(modeling, "apply_rotary_emb_qk", rotated)


def nemo_norm(function):
    return lambda modeling: replaced(modeling, "_rms_norm_core", function)


def nemo_activation(function):
    return lambda modeling: replaced(modeling, "swiglu_oai", function)


def without_one(original, gate, up, alpha, limit):
    return original(gate, up, alpha, limit) - original(gate, up * 0, alpha, limit)


def gate_class():
    from nemo_automodel.components.moe import layers
    return layers.Gate


def nemo_biased_weights(modeling):
    def route(original, gate, scores):
        gate.router_weight_uses_score_correction_bias = True
        return original(gate, scores)

    replaced(gate_class(), "_route_scores", route)


def nemo_no_bias(modeling):
    gate_class()._local_score_correction_bias = lambda gate: None


def nemo_no_factor(modeling):
    def route(original, gate, scores):
        gate.route_scale = 1.0
        return original(gate, scores)

    replaced(gate_class(), "_route_scores", route)


def nemo_selection(**other):
    return lambda modeling: replaced(modeling, "_select_sparse_blocks_chunk",
                                     lambda original, *arguments, **keywords: original(*arguments, **keywords | other))


def nemo_block_not_causal(modeling):
    """Keys to come of the own block are attended to."""
    def mask(original, q, k, *, num_q_heads, **keywords):
        chosen = modeling.select_sparse_blocks(q, k, **keywords)
        keys = chosen.repeat_interleave(keywords["block_size"], dim=-1)[..., :q.shape[1]]
        return keys.repeat_interleave(num_q_heads // q.shape[2], dim=1)

    replaced(modeling, "build_block_sparse_attn_mask", mask)


NEMO = {
    "half of the rotated channels": Mistake(nemo_half_turned, "layers.0.q_rope", ()),
    "neighbours rotated as pairs": Mistake(nemo_neighbours_turned, "layers.0.q_rope", ("rope.interleaved",)),
    "norm weights without 1 +": Mistake(nemo_norm(lambda norm, x, w, eps, gemma: norm(x, w, eps, False)),
                                        "layers.0.attn_norm", ("norm.no_plus_one",)),
    "eps 1e-4 for 1e-6": Mistake(nemo_norm(lambda norm, x, w, eps, gemma: norm(x, w, 1e-4, gemma)),
                                 "layers.0.attn_norm", ()),
    "no + 1 in SwiGLU": Mistake(nemo_activation(without_one), "layers.0.mlp.act", ("act.no_plus_one",)),
    "no clamps": Mistake(nemo_activation(lambda act, gate, up, alpha, limit: act(gate, up, alpha, 0.0)),
                         "layers.0.mlp.act", ("act.no_clamp",)),
    "gate and up exchanged": Mistake(nemo_activation(lambda act, gate, up, alpha, limit: act(up, gate, alpha, limit)),
                                     "layers.0.mlp.act", ()),    # act.swap is of experts
    "bias in the weights of experts": Mistake(nemo_biased_weights, "layers.2.moe.weights", ("router.bias_in_weights",)),
    "experts chosen without the bias": Mistake(nemo_no_bias, "layers.2.moe.experts", ("router.no_bias",)),
    "factor of routed experts lost": Mistake(nemo_no_factor, "layers.2.moe.routed", ("moe.no_scale",)),
    "log-sum-exp for the maximum": Mistake(nemo_selection(score_type="lse"), "layers.2.index.blocks",
                                           ("select.lse", "pool=lse")),
    "own block not forced": Mistake(nemo_selection(local_blocks=0), "layers.2.index.blocks",
                                    ("select.no_local", "local_blocks=0")),
    "keys to come of the own block attended to": Mistake(nemo_block_not_causal, "layers.2.attn",
                                                         ("attn.block_noncausal",)),
}

MISTAKES = {"mlx_lm": MLX_LM, "nemo": NEMO, "vllm_whole": VLLM, "sglang_whole": SGLANG}


def function(engine, name):
    if name not in MISTAKES.get(engine, {}):
        there = ", ".join(MISTAKES.get(engine, {})) or "none"
        raise SystemExit(f"{engine}: got mistake {name!r}, expected one of: {there}")
    return MISTAKES[engine][name].change

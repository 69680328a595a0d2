"""Deliberate mistakes in vLLM and SGLang whole. Imports of an engine stand inside: this file is read without them."""

from dataclasses import replace

from .mistake import Mistake, replaced

LONG = "long_case"                      # more blocks than are chosen


def made_with(kind, **other):
    """Objects of a class are made with other arguments."""
    replaced(kind, "__init__", lambda init, self, *arguments, **keywords: init(self, *arguments, **keywords | other))


# ---- vLLM; a change gets vllm_stand_ins

def vllm_model():
    from vllm.models.minimax_m3.nvidia import model
    return model


def vllm_turning(factor):
    def rope(original, head, max_position, rope_parameters):
        share = factor * rope_parameters["partial_rotary_factor"]
        return original(head, max_position=max_position,
                        rope_parameters=rope_parameters | {"partial_rotary_factor": share})

    return lambda stand_ins: replaced(vllm_model(), "get_rope", rope)


def vllm_activation(**other):
    def change(stand_ins):
        from vllm.model_executor.layers.activation import SiluAndMulWithClamp as Gated

        def made(original, self, swiglu_limit, alpha=1.0, beta=0.0, **rest):
            original(self, **{"swiglu_limit": swiglu_limit, "alpha": alpha, "beta": beta} | other, **rest)

        replaced(Gated, "__init__", made)
    return change


def vllm_norm(function):
    return lambda stand_ins: replaced(stand_ins, "normalised", function)


def vllm_router(function):
    def change(stand_ins):
        from vllm.model_executor.layers.fused_moe.router import cpu_router
        replaced(cpu_router, "_grouped_topk", function)
    return change


def vllm_biased_weights(original, gating_output, e_score_correction_bias, routed_scaling_factor, **rest):
    _, ids = original(gating_output=gating_output, e_score_correction_bias=e_score_correction_bias,
                      routed_scaling_factor=routed_scaling_factor, **rest)
    weights = (gating_output.float().sigmoid() + e_score_correction_bias).gather(1, ids.long())
    return routed_scaling_factor * weights / weights.sum(-1, keepdim=True), ids


def vllm_own_block(stand_ins):
    from vllm.models.minimax_m3.common.indexer import MiniMaxM3Indexer
    made_with(MiniMaxM3Indexer, local_blocks=0)


def vllm_one_list(stand_ins):
    from vllm.models.minimax_m3.common import indexer
    def merged(score, *arguments):
        return score(*arguments).amax(0, keepdim=True).expand(arguments[-1], -1, -1).contiguous()

    replaced(indexer, "minimax_m3_index_score", merged)


def vllm_dense(stand_ins):
    import torch
    from vllm.models.minimax_m3.common import sparse_attention

    def attend(original, q, cache, blocks, table, starts, lengths, before, *rest, **keywords):
        own = torch.cat([first + torch.arange(end - start) for first, start, end in
                         zip(before, starts, starts[1:])])[:, None] // 128
        names = torch.arange(int(own.max()) + 1)
        every = torch.where(names <= own, names, -1).int().expand(len(blocks), -1, -1).contiguous()
        original(q, cache, every, table, starts, lengths, before, *rest, **keywords)

    replaced(sparse_attention, "minimax_m3_sparse_attn", attend)


VLLM = {
    "half of the rotated channels": Mistake(vllm_turning(0.5), "layers.0.q_rope", ()),
    "all channels rotated": Mistake(vllm_turning(2), "layers.0.q_rope", ("rope.full",)),
    "no + 1 in SwiGLU": Mistake(vllm_activation(beta=0.0), "layers.0.mlp.act", ("act.no_plus_one",)),
    "alpha 1": Mistake(vllm_activation(alpha=1.0), "layers.0.mlp.act", ("act.alpha",)),
    "no clamps": Mistake(vllm_activation(swiglu_limit=1e30), "layers.0.mlp.act", ("act.no_clamp",)),
    "norm weights without 1 +": Mistake(vllm_norm(lambda norm, x, w, eps: norm(x, w.float() - 1, eps)),
                                        "layers.0.attn_norm", ("norm.no_plus_one",)),
    "eps 1e-4 for 1e-6": Mistake(vllm_norm(lambda norm, x, w, eps: norm(x, w, 1e-4)), "layers.0.attn_norm", ()),
    "bias in the weights of experts": Mistake(vllm_router(vllm_biased_weights), "layers.1.moe.weights",
                                              ("router.bias_in_weights",)),
    "weights of experts not normalised": Mistake(
        vllm_router(lambda route, **given: route(**given | {"renormalize": False})), "layers.1.moe.weights",
        ("router.no_renorm",)),
    "factor of routed experts lost": Mistake(
        vllm_router(lambda route, **given: route(**given | {"routed_scaling_factor": 1.0})), "layers.1.moe.weights",
        ()),
    "own block not forced": Mistake(vllm_own_block, "layers.1.index.blocks", ("select.no_local", "local_blocks=0"), LONG),
    "one list for all groups": Mistake(vllm_one_list, "layers.1.index.blocks",
                                       ("selection=shared", "select.shared_heads"), LONG),
    "dense attention in sparse layers": Mistake(vllm_dense, "layers.1.attn", (), LONG),
}


# ---- SGLang; a change gets sglang_whole

def sglang_model():
    from sglang.srt.models import minimax_m3
    return minimax_m3


def sglang_turning(factor):
    return lambda adapter: replaced(sglang_model(), "get_rope", lambda original, head, rotary_dim, **rest: original(
        head, rotary_dim=int(factor * rotary_dim), **rest))


def sglang_activation(function):
    def change(adapter):
        from sglang.srt.layers.moe import fused_moe_native
        from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe
        name = "swiglu_no_interleaved_with_alpha_and_limit"
        replaced(fused_moe, name, function)
        fused_moe_native.swiglu_gpt_oss_sigmoid_alpha = getattr(fused_moe, name)
    return change


def sglang_without_one(act, x, alpha, limit):
    without_up = x.clone()
    without_up[..., x.shape[-1] // 2:] = 0
    return act(x, alpha, limit) - act(without_up, alpha, limit)


def sglang_norm(**other):
    def forward(original, self, *arguments, **keywords):
        eps, weight = self.variance_epsilon, self.weight
        self.variance_epsilon = other.get("eps", eps)
        weight.data -= other.get("less", 0)
        try:
            return original(self, *arguments, **keywords)
        finally:
            self.variance_epsilon = eps
            weight.data += other.get("less", 0)

    return lambda adapter: replaced(sglang_model().GemmaRMSNorm, "forward_native", forward)


def sglang_router(**other):
    def change(adapter):
        from sglang.srt.layers.moe import topk
        replaced(topk, "select_experts", lambda select, topk_config, **given: select(
            topk_config=replace(topk_config, **other), **given))
    return change


def sglang_biased_weights(adapter):
    from sglang.srt.layers.moe import topk

    def select(original, router_logits, topk_config, **given):
        output = original(router_logits=router_logits, topk_config=topk_config, **given)
        weights = (router_logits.float().sigmoid() + topk_config.correction_bias).gather(1, output.topk_ids.long())
        factor = topk_config.routed_scaling_factor
        return output._replace(topk_weights=factor * weights / weights.sum(-1, keepdim=True))

    replaced(topk, "select_experts", select)


def sglang_no_bias(adapter):
    def select(original, topk_config, **given):
        bias = topk_config.correction_bias
        return original(topk_config=replace(topk_config, correction_bias=bias * 0), **given)

    from sglang.srt.layers.moe import topk
    replaced(topk, "select_experts", select)


def sglang_attention(**other):
    """A mistake in the stand-in for attention: fields of the cache, before each call."""
    def attend(original, self, *arguments, **keywords):
        vars(self).update(other)
        return original(self, *arguments, **keywords)

    return lambda adapter: replaced(adapter.Cache, "attend", attend)


def sglang_dense(adapter):
    replaced(adapter.Cache, "seen", lambda original, self, chosen: chosen | True)


SGLANG = {
    "half of the rotated channels": Mistake(sglang_turning(0.5), "layers.0.q_rope", ()),
    "all channels rotated": Mistake(sglang_turning(2), "layers.0.q_rope", ("rope.full",)),
    "no + 1 in SwiGLU": Mistake(sglang_activation(sglang_without_one), "layers.0.mlp.act", ("act.no_plus_one",)),
    "alpha 1": Mistake(sglang_activation(lambda act, x, alpha, limit: act(x, 1.0, limit)), "layers.0.mlp.act",
                       ("act.alpha",)),
    "no clamps": Mistake(sglang_activation(lambda act, x, alpha, limit: act(x, alpha, 1e30)), "layers.0.mlp.act",
                         ("act.no_clamp",)),
    "norm weights without 1 +": Mistake(sglang_norm(less=1), "layers.0.attn_norm", ("norm.no_plus_one",)),
    "eps 1e-4 for 1e-6": Mistake(sglang_norm(eps=1e-4), "layers.0.attn_norm", ()),
    "bias in the weights of experts": Mistake(sglang_biased_weights, "layers.1.moe.weights",
                                              ("router.bias_in_weights",)),
    "experts chosen without the bias": Mistake(sglang_no_bias, "layers.1.moe.experts", ("router.no_bias",)),
    "weights of experts not normalised": Mistake(sglang_router(renormalize=False), "layers.1.moe.weights",
                                                 ("router.no_renorm",)),
    "factor of routed experts lost": Mistake(sglang_router(routed_scaling_factor=1.0), "layers.1.moe.weights",
                                             ()),
    "own block not forced": Mistake(sglang_attention(last=0), "layers.1.index.blocks", ("select.no_local", "local_blocks=0"), LONG),
    "dense attention in sparse layers": Mistake(sglang_dense, "layers.1.attn", ("attn.dense",), LONG),
}

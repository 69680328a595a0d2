"""The public PyTorch model run with every tap recorded, in pure fp64 or in fp32: text here, pictures in sight.py.

`dtype=torch.float64` alone leaves norms, router, indexer, softmax and rotary tables in fp32: pure_fp64() and
exact_frequencies() close those leaks. A leak shows as 1e-8 in formulas.check; fp64 proper as 1e-15.
"""

import contextlib

import mpmath
import numpy as np
import torch
import transformers
from safetensors.torch import load_file
from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl as modeling

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


class Fp64Torch:
    """The torch module, except that its float32 is float64."""

    def __getattr__(self, name):
        return torch.float64 if name in ("float32", "float") else getattr(torch, name)


@contextlib.contextmanager
def pure_fp64():
    """While open, the modelling code neither casts to fp32 nor builds tables in it."""
    to_float = torch.Tensor.float
    torch.Tensor.float = torch.Tensor.double
    modeling.torch = Fp64Torch()
    try:
        yield
    finally:
        torch.Tensor.float = to_float
        modeling.torch = torch


def expand(path):
    """{name: float64 array} of a weight file; codes and ue8m0 scales are decoded by PyTorch's own 8-bit types, codes of
    4 bits by compressed-tensors."""
    tensors = load_file(path)
    packed = [name.removesuffix("_packed") for name in tensors if name.endswith(".weight_packed")]
    if packed:
        import packed_weights                   # its package is needed for these weights only

        tensors = packed_weights.expand(tensors, packed)
    scales = {name: tensors.pop(name) for name in list(tensors) if name.endswith("_scale_inv")}
    weights = {name: value.double() for name, value in tensors.items()}
    for name, scale in scales.items():
        weight = weights[name.removesuffix("_scale_inv")]
        if scale.dtype == torch.uint8:
            block, scale = (1, 32), scale.view(torch.float8_e8m0fnu)
        else:
            block = (128, 128)
        grid = torch.kron(scale.double(), torch.ones(block, dtype=torch.float64))
        weight *= grid[:weight.shape[0], :weight.shape[1]]
    return {name: value.numpy() for name, value in weights.items()}


def load(folder, dtype, attention, experts):
    """The model of a directory; anything missing, unexpected or misshaped is an error, not a warning."""
    model, info = transformers.MiniMaxM3SparseForConditionalGeneration.from_pretrained(
        folder, dtype=dtype, attn_implementation=attention, experts_implementation=experts, output_loading_info=True)
    problems = {key: info[key] for key in info if info[key]}
    if problems:
        raise ValueError(f"{folder}: {problems}")
    return model.eval()


def inverse_frequencies(theta, rotary):
    """theta^(-2i/r), each correctly rounded to fp64. [r/2]"""
    with mpmath.workdps(40):
        return np.array([float(mpmath.power(theta, -mpmath.mpf(2 * i) / rotary)) for i in range(rotary // 2)])


def exact_frequencies(model):
    """Frequencies of the rotary tables in fp64; inside pure_fp64() the module's own forward then keeps fp64."""
    rotary = model.model.language_model.rotary_emb
    theta = model.config.text_config.rope_parameters["rope_theta"]
    rotary.inv_freq = torch.from_numpy(inverse_frequencies(theta, 2 * len(rotary.inv_freq)))


def fp64_angles(model):
    """Rotary tables of an fp32 run, of text and vision, from fp64 angles, cos and sin rounded once."""
    exact_frequencies(model)
    rotary = model.model.language_model.rotary_emb
    vision = model.model.vision_tower.rotary_emb
    vision_forward = vision.forward

    def forward_vision(*arguments, dtype, **rest):
        with pure_fp64():
            tables = vision_forward(*arguments, dtype=torch.float64, **rest)
        return tuple(table.to(dtype) for table in tables)

    def forward(x, position_ids):
        angle = position_ids[:, :, None].double() * rotary.inv_freq
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)

    rotary.forward, vision.forward = forward, forward_vision


class Recorder:
    """Hooks on one model; `taps` fills during a forward pass. Heads are viewed as [T, heads, head dim]."""

    def __init__(self, model):
        self.model, self.taps, self.handles = model, {}, []
        self.attention_weights, self.indexer_inputs, self.expert_inputs = {}, {}, {}
        self.layer = self.rotations = None

    def save(self, name, value, heads=None):
        value = value.detach()[0] if value.dim() > 2 else value.detach()
        self.taps[name] = value.reshape(value.shape[0], heads, -1) if heads else value.clone()

    def out(self, module, name, heads=None):
        self.handles.append(module.register_forward_hook(lambda m, i, result: self.save(name, result, heads)))

    def into(self, module, name, heads=None):
        self.handles.append(module.register_forward_pre_hook(lambda m, inputs: self.save(name, inputs[0], heads)))

    def attach(self):
        text, language = self.model.config.text_config, self.model.model.language_model
        self.out(language.embed_tokens, "embed")
        self.into(language.layers[0], "fused")
        for number, layer in enumerate(language.layers):
            self.attach_layer(f"layers.{number}.", number, layer, text)
        self.out(language.norm, "final_norm")
        self.out(self.model.lm_head, "logits")

    def attach_layer(self, prefix, number, layer, text):
        Q, G = text.num_attention_heads, text.num_key_value_heads
        attention = layer.self_attn
        self.out(layer.input_layernorm, prefix + "attn_norm")
        for name, heads in (("q", Q), ("k", G), ("v", G)):
            self.out(getattr(attention, name + "_proj"), f"{prefix}{name}_proj", heads)
        self.out(attention.q_norm, prefix + "q_norm", Q)
        self.out(attention.k_norm, prefix + "k_norm", G)
        self.into(attention.o_proj, prefix + "attn", Q)
        self.out(attention.o_proj, prefix + "attn_out")
        self.into(layer.post_attention_layernorm, prefix + "mid")
        self.out(layer.post_attention_layernorm, prefix + "mlp_norm")
        self.out(layer.mlp, prefix + "mlp")
        self.out(layer, prefix + "out")
        self.handles.append(attention.register_forward_pre_hook(lambda m, i: self.enter(number)))
        self.handles.append(attention.register_forward_hook(lambda m, i, result: self.leave(number, result)))
        if attention.indexer is not None:
            self.attach_indexer(prefix + "index.", number, attention.indexer)
        if text.mlp_layer_types[number] == "sparse":
            self.attach_moe(prefix, number, layer.mlp)
        else:
            self.attach_dense(prefix + "mlp.", layer.mlp)

    def enter(self, number):
        self.layer, self.rotations = number, 0

    def leave(self, number, result):
        self.attention_weights[number] = None if result[1] is None else result[1].detach()[0]

    def attach_indexer(self, prefix, number, indexer):
        heads = indexer.num_heads
        self.out(indexer.q_proj, prefix + "q_proj", heads)
        self.out(indexer.k_proj, prefix + "k_proj")
        self.out(indexer.q_norm, prefix + "q_norm", heads)

        def keys(module, inputs, result):                        # one shared head: [1,T,1,X]
            self.taps[prefix + "k_norm"] = result.detach()[0, :, 0].clone()

        def blocks(module, inputs, result):
            self.indexer_inputs[number] = inputs
            self.taps[prefix + "blocks"] = result.detach()[0].transpose(0, 1)

        self.handles.append(indexer.k_norm.register_forward_hook(keys))
        self.handles.append(indexer.register_forward_hook(blocks))

    def attach_moe(self, prefix, number, block):
        def gate(module, inputs, result):
            self.expert_inputs[number] = inputs[0].detach()
            for name, value in zip(("router_logits", "weights", "experts"), result):
                self.taps[f"{prefix}moe.{name}"] = value.detach().clone()

        def routed(module, inputs, result):                      # the hook sees it before the scaling
            self.taps[prefix + "moe.routed"] = result.detach() * block.routed_scaling_factor

        self.handles.append(block.gate.register_forward_hook(gate))
        self.handles.append(block.experts.register_forward_hook(routed))
        self.out(block.shared_experts, prefix + "moe.shared")

    def attach_dense(self, prefix, mlp):
        def halves(module, inputs, result):
            self.taps[prefix + "gate"], self.taps[prefix + "up"] = result.detach()[0].chunk(2, dim=-1)

        self.handles.append(mlp.gate_up_proj.register_forward_hook(halves))
        self.into(mlp.down_proj, prefix + "act")

    def rotate(self, original):
        def apply(q, k, cos, sin, **rest):
            results = original(q, k, cos, sin, **rest)
            prefix = f"layers.{self.layer}." + ("index." if self.rotations else "")
            for name, value in zip(("q_rope", "k_rope"), results):
                value = value.detach()[0].transpose(0, 1)
                single_head = name == "k_rope" and self.rotations
                self.taps[prefix + name] = (value[:, 0] if single_head else value).clone()
            self.rotations += 1
            return results
        return apply

    def inputs(self):
        """The model's inputs besides the ids."""
        return {}

    def block_scores(self, number, indexer):
        return module_block_scores(indexer, self.indexer_inputs[number])

    def keys_attended(self, prefix, block, heads_per_group, heads):
        return keys_attended(self.taps, prefix, block, heads_per_group, heads)

    def forward(self, input_ids):
        original = modeling.apply_rotary_pos_emb
        modeling.apply_rotary_pos_emb = self.rotate(original)
        try:
            self.model(input_ids=torch.from_numpy(input_ids)[None], use_cache=False, **self.inputs())
        finally:
            modeling.apply_rotary_pos_emb = original
            for handle in self.handles:
                handle.remove()


def module_block_scores(indexer, inputs):
    """[T,G,B]: the indexer's own pooled scores. Without local blocks it passes them to top-k before any boost."""
    seen, topk, local = [], torch.Tensor.topk, indexer.local_blocks

    def record(scores, *arguments, **keywords):
        seen.append(scores.detach().clone())
        return topk(scores, *arguments, **keywords)

    torch.Tensor.topk, indexer.local_blocks = record, 0
    try:
        indexer(*inputs)
    finally:
        torch.Tensor.topk, indexer.local_blocks = topk, local
    return seen[0][0].transpose(0, 1)


def log_sum_exp(taps, prefix, keep, scale):
    """attn_lse [T,Q] in the type of the run; keep [T,Q,T] says which keys a row attends to."""
    q, k = taps[prefix + "q_rope"], taps[prefix + "k_rope"]
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    z = torch.einsum("thd,jhd->thj", q, k) * scale
    return z.masked_fill(~keep, float("-inf")).logsumexp(dim=-1)


def keys_attended(taps, prefix, block, heads_per_group, heads):
    """[T,Q,T] bool: causal, and in a chosen block where the layer is sparse."""
    T = len(taps[prefix + "q_rope"])
    causal = torch.tril(torch.ones(T, T, dtype=torch.bool))[:, None]
    if prefix + "index.blocks" not in taps:
        return causal.expand(T, heads, T)
    chosen = (taps[prefix + "index.blocks"][..., None] == torch.arange(-(-T // block))).any(dim=2)
    chosen = chosen.repeat_interleave(block, dim=-1)[..., :T]
    return (chosen & causal).repeat_interleave(heads_per_group, dim=1)


def order_blocks(blocks, width):
    """Ascending ids, then -1, always `width` wide. blocks [T,G,min(N,B)]"""
    blocks = torch.where(blocks < 0, torch.iinfo(blocks.dtype).max, blocks).sort(dim=-1).values
    blocks = torch.where(blocks == torch.iinfo(blocks.dtype).max, -1, blocks)
    return torch.nn.functional.pad(blocks, (0, width - blocks.shape[-1]), value=-1)


def order_experts(taps, prefix, bias):
    """Chosen experts by descending sigmoid + bias, the lower id first on a tie, and their weights along."""
    taps[prefix + "router_scores"] = torch.sigmoid(taps[prefix + "router_logits"])
    taps[prefix + "choice"] = taps[prefix + "router_scores"] + bias
    ids, by_id = taps[prefix + "experts"].sort(dim=-1)
    order = taps[prefix + "choice"].gather(1, ids).sort(dim=-1, descending=True, stable=True).indices
    taps[prefix + "experts"] = ids.gather(1, order)
    taps[prefix + "weights"] = taps[prefix + "weights"].gather(1, by_id).gather(1, order)


@torch.no_grad()
def run(model, input_ids, recorder=None):
    """({tap: NumPy array}, {layer: attention weights [Q,T,T] or None}) of one forward pass.

    Beside the taps: `layers.l.moe.choice` [T,E], the biased scores that choose."""
    recorder = recorder or Recorder(model)
    recorder.attach()
    recorder.forward(input_ids)
    text, taps = model.config.text_config, recorder.taps
    heads, per_group = text.num_attention_heads, text.num_attention_heads // text.num_key_value_heads
    for number, layer in enumerate(model.model.language_model.layers):
        prefix = f"layers.{number}."
        if number in recorder.indexer_inputs:
            indexer = layer.self_attn.indexer
            taps[prefix + "index.block_scores"] = recorder.block_scores(number, indexer)
            taps[prefix + "index.blocks"] = order_blocks(taps[prefix + "index.blocks"], text.index_topk_blocks)
        keep = recorder.keys_attended(prefix, text.index_block_size, per_group, heads)
        taps[prefix + "attn_lse"] = log_sum_exp(taps, prefix, keep, layer.self_attn.scaling)
        if number in recorder.expert_inputs:
            order_experts(taps, prefix + "moe.", layer.mlp.gate.e_score_correction_bias)
            ids, x = taps[prefix + "moe.experts"], recorder.expert_inputs[number]
            one = torch.ones(len(x), 1, dtype=x.dtype)
            taps[prefix + "moe.expert_out"] = torch.stack(
                [layer.mlp.experts.forward(x, ids[:, [slot]], one) for slot in range(ids.shape[1])], dim=1)
    return {name: to_numpy(value) for name, value in taps.items()}, recorder.attention_weights


def to_numpy(value):
    array = value.contiguous().numpy()
    return array.astype(np.int32) if array.dtype == np.int64 else array

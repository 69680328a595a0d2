"""NeMo Automodel on a CPU: `nemo_automodel.components.models.minimax_m3_vl`, with multi-token prediction and pictures.

Its block scores are multiplied by 1/sqrt(index_dim): judge it with --set index_scale=rsqrt. An expert's weight is
applied before its last product, so no expert's own output exists; neither does the sum of routed and shared experts.
"""

import contextlib
import functools
import importlib.metadata
import os
import re

import torch
from nemo_automodel.components.models.common import BackendConfig
from nemo_automodel.components.models.minimax_m3_vl import layers as modeling
from nemo_automodel.components.models.minimax_m3_vl import vision_encoder
from nemo_automodel.components.models.minimax_m3_vl.config import MiniMaxM3VLConfig
from nemo_automodel.components.models.minimax_m3_vl.model import MiniMaxM3SparseForConditionalGeneration
from safetensors.torch import load_file

from . import adapter

PLACES = ((re.compile(r"^model\.layers\.(\d+)\.?"), "layers.{}."),
          (re.compile(r"^model\.mtp\.layers\.(\d+)\.transformer_layer\.?"), "mtp.{}.layer."),
          (re.compile(r"^model\.mtp\.layers\.(\d+)\."), "mtp.{}."),
          (re.compile(r"^vision_tower\.vision_model\.encoder\.layers\.(\d+)\.?"), "vision.layers.{}."))
# What modules give: the end of a module's name, the tap, and of which heads there are several in a row.
OUT = {
    "input_layernorm": ("attn_norm", ""), "self_attn.q_proj": ("q_proj", "Q"), "self_attn.k_proj": ("k_proj", "G"),
    "self_attn.v_proj": ("v_proj", "G"), "self_attn.q_norm": ("q_norm", "Q"), "self_attn.k_norm": ("k_norm", "G"),
    "self_attn.indexer.index_q_proj": ("index.q_proj", "I"), "self_attn.indexer.index_k_proj": ("index.k_proj", ""),
    "self_attn.indexer.index_q_norm": ("index.q_norm", "I"), "self_attn.indexer.index_k_norm": ("index.k_norm", ""),
    "self_attn.o_proj": ("attn_out", ""), "post_attention_layernorm": ("mlp_norm", ""),
    "mlp.gate_proj": ("mlp.gate", ""), "mlp.up_proj": ("mlp.up", ""), "mlp.experts": ("moe.routed", ""),
    "shared_experts": ("moe.shared", ""), "": ("out", ""),
    "enorm": ("embed_norm", ""), "hnorm": ("hidden_norm", ""), "eh_proj": ("eh_proj", ""),
    "final_layernorm": ("final_norm", ""),
}
IN = {"self_attn.o_proj": ("attn", "Q"), "post_attention_layernorm": ("mid", ""), "mlp.down_proj": ("mlp.act", "")}
VISION_OUT = {
    "layer_norm1": ("norm1", ""), "self_attn.q_proj": ("q_proj", "A"), "self_attn.k_proj": ("k_proj", "A"),
    "self_attn.v_proj": ("v_proj", "A"), "self_attn.out_proj": ("attn_out", ""), "layer_norm2": ("norm2", ""),
    "mlp.fc1": ("fc1", ""), "mlp.fc2": ("mlp", ""), "": ("out", ""),
}
VISION_IN = {"self_attn.out_proj": ("attn", "A"), "layer_norm2": ("mid", ""), "mlp.fc2": ("act", "")}
TOWER, PROJECTOR, MERGER = (f"vision_tower.{part}." for part in
                            ("vision_model", "multi_modal_projector", "patch_merge_mlp"))
WHOLE_OUT = {
    "model.embed_tokens": "embed", "model.norm": "final_norm", TOWER + "embeddings": "vision.patch_embed",
    TOWER + "pre_layrnorm": "vision.pre_norm", PROJECTOR + "linear_1": "projector.linear_1",
    PROJECTOR + "linear_2": "projector.linear_2", MERGER + "linear_1": "projector.merge_linear_1",
    MERGER + "linear_2": "projector.out",
}
WHOLE_IN = {TOWER + "embeddings": "vision.pixels", PROJECTOR + "linear_2": "projector.act_1",
            MERGER + "linear_1": "projector.merged", MERGER + "linear_2": "projector.act_2"}


@contextlib.contextmanager
def watching(owner, name, seen):
    """While open, what a function of PyTorch gives is added to `seen`."""
    original = getattr(owner, name)

    def call(*arguments, **keywords):
        seen.append(original(*arguments, **keywords))
        return seen[-1]

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, original)


class Taps:
    def __init__(self, model, config, dump, rows):
        self.dump, self.rows, self.inside, self.modules = dump, rows, [], 0
        text = config["text_config"]
        self.kept = text["sparse_attention_config"]["sparse_topk_blocks"]
        self.heads = {"Q": text["num_attention_heads"], "G": text["num_key_value_heads"], "": 0,
                      "I": text["sparse_attention_config"]["sparse_num_index_heads"],
                      "A": config["vision_config"]["num_attention_heads"]}
        for name, module in model.named_modules():
            if name:
                module.register_forward_pre_hook(functools.partial(self.before, name), with_kwargs=True)
                module.register_forward_hook(functools.partial(self.after, name))
            if hasattr(module, "_route_scores"):
                module._route_scores = functools.partial(self.routed, module, module._route_scores)
        modeling.apply_rotary_emb_qk = functools.partial(self.rotated, modeling.apply_rotary_emb_qk)
        vision_encoder._apply_vision_rope = functools.partial(self.vision_rotated, vision_encoder._apply_vision_rope)
        modeling._select_sparse_blocks_chunk = functools.partial(self.selected, modeling._select_sparse_blocks_chunk)

    @staticmethod
    def place(name):
        for pattern, prefix in PLACES:
            found = pattern.match(name)
            if found:
                return prefix.format(found.group(1)), name[found.end():]
        return "", name

    def save(self, tap, x, heads=0):
        """Rows of a module of multi-token prediction that lack a next token are left out."""
        x = x.detach().reshape(-1, heads, x.shape[-1] // heads) if heads else x.detach().reshape(-1, x.shape[-1])
        self.keep(tap, x)

    def keep(self, tap, x):
        if tap.startswith("mtp."):
            x = x[:self.rows - int(tap.split(".")[1]) - 1]
        x = x.contiguous()
        if x.dtype == torch.bfloat16:
            self.dump.save(tap, x.view(torch.uint16).numpy(), "BF16")
        else:
            self.dump.save(tap, x.numpy())

    def before(self, name, module, inputs, keywords):
        prefix, end = self.place(name)
        given = inputs[0] if inputs else keywords.get("x")
        self.inside.append(name)
        table = VISION_IN if prefix.startswith("vision") else IN
        if name == "model.layers.0":
            self.save("fused", given)
        if prefix and end in table:
            self.save(prefix + table[end][0], given, self.heads[table[end][1]])
        elif name in WHOLE_IN:
            self.save(WHOLE_IN[name], given)

    def after(self, name, module, inputs, result):
        prefix, end = self.place(name)
        self.inside.pop()
        table = VISION_OUT if prefix.startswith("vision") else OUT
        if prefix and end == "mlp" and hasattr(module, "down_proj") and not prefix.startswith("vision"):
            self.save(prefix + "mlp", result)
        elif prefix and end in table:
            heads = self.heads[table[end][1]]
            self.save(prefix + table[end][0], result.flatten(-2) if heads and result.dim() == 4 else result, heads)
        elif name == "lm_head":
            self.save(f"mtp.{self.modules - 1}.logits" if self.modules else "logits", result)
            self.modules += 1
        elif name in WHOLE_OUT and not (name == "model.embed_tokens" and self.modules):
            self.save(WHOLE_OUT[name], result)

    def routed(self, gate, original, scores):
        seen = []
        with watching(torch, "sigmoid", seen):
            weights, ids, rest = original(scores)
        prefix = self.place(self.inside[-1])[0] + "moe."
        self.save(prefix + "router_logits", scores)
        if seen:
            self.save(prefix + "router_scores", seen[0])
        self.save(prefix + "experts", ids)
        self.save(prefix + "weights", weights / gate.route_scale)
        return weights, ids, rest

    def rotated(self, original, q, k, *rest, **keywords):
        q, k = original(q, k, *rest, **keywords)
        prefix, end = self.place(self.inside[-1])
        is_index = end.endswith("indexer")
        prefix += "index." if is_index else ""
        self.keep(prefix + "q_rope", q.detach()[0])
        self.keep(prefix + "k_rope", k.detach()[0, :, 0] if is_index else k.detach()[0])
        return q, k

    def vision_rotated(self, original, *arguments):
        results = original(*arguments)
        for tap, value in zip(("q_rope", "k_rope"), results):
            self.keep(self.place(self.inside[-1])[0] + tap, value)
        return results

    def selected(self, original, *arguments, **keywords):
        seen = []
        with watching(torch.Tensor, "amax", seen):
            chosen = original(*arguments, **keywords)
        prefix = self.place(self.inside[-1])[0] + "index."
        if seen:
            self.keep(prefix + "block_scores", seen[0][0].transpose(0, 1))
        numbered = torch.where(chosen, torch.arange(chosen.shape[-1]), chosen.shape[-1]).sort(dim=-1).values
        lists = numbered[..., :self.kept].masked_fill(numbered[..., :self.kept] == chosen.shape[-1], -1)
        lists = torch.nn.functional.pad(lists, (0, self.kept - lists.shape[-1]), value=-1)
        self.keep(prefix + "blocks", lists[0].transpose(0, 1))
        return chosen


def load(folder, dtype, mtp):
    config = MiniMaxM3VLConfig.from_pretrained(folder)
    config.text_config.torch_dtype = config.torch_dtype = "float32" if dtype == "f32" else "bfloat16"
    if not mtp:
        config.text_config.num_mtp_modules = 0
    backend = BackendConfig(attn="sdpa", linear="torch", experts="torch", dispatcher="torch", rope_fusion=False)
    model = MiniMaxM3SparseForConditionalGeneration.from_config(config, backend=backend)
    stored = {}
    for name in sorted(name for name in os.listdir(folder) if name.endswith(".safetensors")):
        stored.update(load_file(os.path.join(folder, name)))
    if dtype == "f32":
        stored = {name: value.float() for name, value in stored.items()}
    native = model.state_dict_adapter.from_hf(stored)
    for name, parameter in model.named_parameters():
        if name in native:
            parameter.data = parameter.data.to(native[name].dtype)      # as the release stores it
    found = model.load_state_dict(native, strict=False)
    if [name for name in found.missing_keys if "inv_freq" not in name] or found.unexpected_keys:
        raise SystemExit(f"{folder}: {found}")
    return model.eval()


@torch.no_grad()
def run(folder, case, dump, options, change=None):
    if options.chunk:
        raise SystemExit("nemo: got --chunk, expected a whole sequence: it has no cache")
    if change:
        change(modeling)
    model = load(folder, options.dtype, options.mtp)
    Taps(model, adapter.read_config(folder), dump, len(case.ids))
    ids = torch.from_numpy(case.ids)[None]
    pictures = {name: torch.from_numpy(value.copy()) for name, value in case.arrays.items()
                if name not in ("input_ids", "position_ids")}
    hidden = []
    model.model.register_forward_hook(lambda module, inputs, result: hidden.append(result))
    model(ids, **pictures)
    if options.mtp:
        model.model.mtp_logits(hidden[0], ids, model.lm_head)
    return f"NeMo Automodel {importlib.metadata.version('nemo-automodel')}, torch {torch.__version__}"

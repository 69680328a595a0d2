"""Runs the public PyTorch model on a case and writes what its modules give, under their own names.

    python scripts/dump_transformers.py MODEL CASE OUT [--dtype f32|bf16|f16] [--attention eager|sdpa]
                                        [--experts eager|grouped_mm|batched_mm] [--threads N]
                                        [--without-plus-one] [--alpha A]
                                        [--ranks N --reduce ring|one_shot|rank_order]
                                        [--products tf32|tf32_cut|e4m3_token|e4m3_tensor|e4m3_block|mx_down|mx_up
                                        [--product-mistake MISTAKE]]
                                        [--fused-norm [MISTAKE]] [--cache e4m3|e5m2|f16 [--cache-scale one|tensor|token]
                                        [--cache-mistake MISTAKE]]
    m3ref compare REFERENCE OUT --map transformers

A tensor is named after the module that gives it: the name alone, or name.0, name.1 .. for the parts of a tuple;
name.in is what the module was given; name.FUNCTION.0 what a function gave that was called while the module ran.
A model with weights in 8 bits is given to the public code with the weights expanded.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import types

import torch
from safetensors.torch import load_file, save_file
from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl as modeling

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden"))
import coarse_products  # noqa: E402
import files  # noqa: E402
import fused_and_cached  # noqa: E402
import tensor_parallel  # noqa: E402
import truth  # noqa: E402

INPUTS = ("layers.0", "o_proj", "out_proj", "down_proj", "post_attention_layernorm", "layer_norm2", "mlp.fc2",
          "linear_2", "merge_linear_1", "vision_tower.embeddings", "pre_layrnorm")
ROTATIONS = ("apply_rotary_pos_emb", "apply_rotary_pos_emb_vision")
HALVES = {"bf16": torch.bfloat16, "f16": torch.float16}
IN_FP32 = ("mlp.gate.weight", "vision_tower.embeddings.proj.weight")       # F32 in the releases too


class Functional:
    """torch.nn.functional of the modelling module, with two functions watched."""

    def __init__(self, dump):
        self.dump = dump

    def __getattr__(self, name):
        return getattr(torch.nn.functional, name)

    def linear(self, x, weight, bias=None):
        if self.dump.cut and self.dump.is_last_product():
            result = tensor_parallel.product(x, weight, *self.dump.cut)
        else:
            result = torch.nn.functional.linear(x, weight, bias)
        self.dump.see_expert(result)
        return result

    def sigmoid(self, x):
        result = torch.nn.functional.sigmoid(x)
        self.dump.save(self.dump.inside[-1] + ".sigmoid", result)
        return result


class Dump:
    """Hooks on every module of a model; `tensors` fills during a forward pass."""

    def __init__(self, model, cut=(), wrap=None):
        self.cut = cut                          # ranks and reduce of tensor parallelism
        self.functional = wrap(Functional(self)) if wrap else Functional(self)
        self.tensors, self.inside, self.results, self.calls, self.handles = {}, [], None, [], []
        for name, module in model.named_modules():
            if name:
                self.handles.append(module.register_forward_pre_hook(self.before(name), with_kwargs=True))
                self.handles.append(module.register_forward_hook(self.after(name)))

    def save(self, name, value):
        """The tower is called once for pictures and once for videos: their rows follow each other. Before
        transformers 5.23 it puts an axis of 1 before them; a call has at least four rows."""
        value = value.detach().clone().contiguous()
        if name in self.tensors:
            axis = 1 if value.dim() > 2 and value.shape[0] == 1 else 0
            value = torch.cat((self.tensors[name], value), dim=axis)
        self.tensors[name] = value

    def before(self, name):
        def hook(module, inputs, keywords):
            self.inside.append(name)
            given = inputs[0] if inputs else keywords.get("hidden_states")
            if name.endswith(INPUTS) and isinstance(given, torch.Tensor):
                self.save(name + ".in", given)
            if isinstance(module, modeling.MiniMaxM3VLExperts):
                self.results = []
            if isinstance(module, modeling.MiniMaxM3VLIndexer):
                self.calls.append((name, module, inputs))
        return hook

    def after(self, name):
        def hook(module, inputs, result):
            if isinstance(module, modeling.MiniMaxM3VLExperts):
                self.save_experts(name, inputs[1], module.num_experts)
            self.inside.pop()
            if isinstance(result, torch.Tensor):
                self.save(name, result)
            elif isinstance(result, tuple) and not name.endswith((".self_attn", "rotary_emb")):
                for part, value in enumerate(result):
                    if isinstance(value, torch.Tensor):
                        self.save(f"{name}.{part}", value)
        return hook

    def in_expert(self):
        return self.results is not None and self.inside[-1].endswith(".experts")

    def is_last_product(self):
        return self.in_expert() and len(self.results) % 2 == 1

    def see_expert(self, result):
        if self.in_expert():
            self.results.append(result.detach())

    def save_experts(self, name, ids, experts):
        """The output of each expert for each of its tokens, in the plain loop over experts: two products per expert."""
        results, self.results = self.results, None
        if not results:
            return
        each = results[1].new_zeros(*ids.shape, results[1].shape[-1])
        for expert, given in zip(ids.unique().tolist(), results[1::2], strict=True):
            slot, token = torch.where(ids.T == expert)
            each[token, slot] = given
        self.save(name + ".each", each)

    def rotated(self, name, original):
        def apply(*arguments, **keywords):
            results = original(*arguments, **keywords)
            for part, value in enumerate(results):
                self.save(f"{self.inside[-1]}.{name}.{part}", value)
            return results
        return apply

    @contextlib.contextmanager
    def watching(self):
        kept = {name: getattr(modeling, name) for name in ROTATIONS}
        for name, original in kept.items():
            setattr(modeling, name, self.rotated(name, original))
        modeling.F = self.functional
        try:
            yield
        finally:
            modeling.F = torch.nn.functional
            for name, original in kept.items():
                setattr(modeling, name, original)
            for handle in self.handles:
                handle.remove()

    def add_block_scores(self):
        """The indexer boosts its own scores before it returns them: it is called once more without local blocks."""
        for name, indexer, inputs in self.calls:
            local, indexer.local_blocks = indexer.local_blocks, 0
            seen, topk = [], torch.Tensor.topk

            def record(scores, *arguments, **keywords):
                seen.append(scores.detach().clone())
                return topk(scores, *arguments, **keywords)

            torch.Tensor.topk = record
            try:
                indexer(*inputs)
            finally:
                torch.Tensor.topk, indexer.local_blocks = topk, local
            self.save(name + ".block_scores", seen[0])


def store_halves(model, dtype, in_float=()):
    """The weights of inference in bf16 or float16, except for the tensors that the releases store in F32."""
    for name, parameter in model.named_parameters():
        if not name.endswith(IN_FP32) and name not in in_float:
            parameter.data = parameter.data.to(dtype)


def gated_layers(model):
    return [module for module in model.model.language_model.modules()
            if isinstance(module, (modeling.MiniMaxM3VLExperts, modeling.MiniMaxM3VLDenseMLP))]


def drop_plus_one(model):
    """SwiGLU-OAI without its + 1, the mistake most often made in M3."""
    def gated(layer, gate_up):
        gate, up = gate_up.chunk(2, dim=-1)
        gate = gate.clamp(max=layer.swiglu_limit)
        up = up.clamp(min=-layer.swiglu_limit, max=layer.swiglu_limit)
        return up * (gate * torch.sigmoid(gate * layer.swiglu_alpha))

    for layer in gated_layers(model):
        if isinstance(layer, modeling.MiniMaxM3VLExperts):
            layer._apply_gate = types.MethodType(gated, layer)
        else:
            layer.forward = lambda x, layer=layer: layer.down_proj(gated(layer, layer.gate_up_proj(x)))


def set_alpha(model, alpha):
    for layer in gated_layers(model):
        layer.swiglu_alpha = alpha


def read_case(path):
    """The case's tensors, and the model's inputs. This model does not accept separate positions and masks."""
    case = load_file(path)
    positions = case.get("position_ids")
    if "attention_mask" in case or positions is not None and not torch.equal(positions, torch.arange(len(positions))):
        raise SystemExit(f"{path}: got position_ids or an attention_mask, expected positions from 0 and no mask")
    given = {name: value if name.startswith("pixel") else value.long() for name, value in case.items()
             if name != "position_ids"}
    given["input_ids"] = given["input_ids"][None]
    return case, given


def cut_videos(given, config):
    """The public video processor of transformers 5.23 gives a row of the grid to every vision_segment_max_frames steps;
    its tower attends within a row. Before, the tower attends to everything."""
    if hasattr(modeling, "get_vision_attention_seqlens") and "video_grid_thw" in given:
        most = config["vision_config"]["vision_segment_max_frames"]
        given["video_grid_thw"] = torch.tensor([[min(most, t - start), h, w] for t, h, w in
                                                given["video_grid_thw"].tolist() for start in range(0, t, most)])


@contextlib.contextmanager
def expanded(folder):
    """The folder itself, or if its weights have scales, one with the same weights in F32, as long as it is open."""
    path = os.path.join(folder, "model.safetensors")
    if not os.path.exists(path) or not any(name.endswith("_scale_inv") for name in files.read(path)[0]):
        yield folder
        return
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    config.pop("quantization_config", None)
    with tempfile.TemporaryDirectory() as plain:
        with open(os.path.join(plain, "config.json"), "w") as file:
            json.dump(config, file)
        save_file({name: torch.from_numpy(value).float() for name, value in truth.expand(path).items()},
                  os.path.join(plain, "model.safetensors"), metadata={"format": "pt"})
        yield plain


@torch.no_grad()
def run(model, given, cut=(), wrap=None):
    dump = Dump(model, cut, wrap)
    with dump.watching():
        model(use_cache=False, **given)
    dump.add_block_scores()
    return dump.tensors


def dump(folder, case_path, out, dtype, attention, experts, remark="", cut=(), change=None, in_float=lambda model: ()):
    """cut: ranks and reduce of tensor parallelism; change: a function that changes the model before it runs,
    and may return one that wraps torch.nn.functional; in_float: the names of parameters that stay in float."""
    case, given = read_case(case_path)
    with open(os.path.join(folder, "config.json")) as file:
        cut_videos(given, json.load(file))
    with expanded(folder) as plain:
        model = truth.load(plain, torch.float32, attention, experts)
    if dtype in HALVES:
        store_halves(model, HALVES[dtype], in_float(model))
    if cut:
        tensor_parallel.cut_modules(model, *cut)
    wrap = change(model) if change else None
    hashed = {name: value.numpy() for name, value in case.items() if not name.startswith("pixel")}
    weights = files.weights_sha256(folder)
    save_file(run(model, given, cut, wrap), out, metadata=({"weights_sha256": weights} if weights else {}) | {
        "producer": f"transformers {truth.transformers.__version__}, torch {torch.__version__}",
        "options": f"dtype {dtype}, attention {attention}, experts {experts}{remark}",
        "model_sha256": files.model_sha256(folder), "case_sha256": files.case_sha256(hashed)})


def parsed(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("case")
    parser.add_argument("out")
    parser.add_argument("--dtype", choices=("f32", *HALVES), default="f32")
    parser.add_argument("--attention", choices=("eager", "sdpa"), default="eager")
    parser.add_argument("--experts", choices=("eager", "grouped_mm", "batched_mm"), default="eager")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--without-plus-one", action="store_true")
    parser.add_argument("--alpha", type=float, help="of SwiGLU, in place of the config's: a mistake")
    parser.add_argument("--ranks", type=int, help="products in so many parts; experts: eager alone")
    parser.add_argument("--reduce", choices=tensor_parallel.REDUCES, default="ring")
    parser.add_argument("--products", choices=coarse_products.KINDS, help="experts: eager alone")
    parser.add_argument("--product-mistake", choices=coarse_products.MISTAKES)
    parser.add_argument("--fused-norm", nargs="?", const="", choices=("", *fused_and_cached.NORMS))
    parser.add_argument("--cache", choices=fused_and_cached.FORMATS)
    parser.add_argument("--cache-scale", choices=fused_and_cached.SCALES, default="one")
    parser.add_argument("--cache-mistake", choices=fused_and_cached.CACHES)
    return parser.parse_args(words)


def main(words=None):
    """words: those of the command line."""
    arguments = parsed(words)

    products = coarse_products.Products(arguments.products, arguments.product_mistake)

    def change(model):
        wrap = products.change(model)
        if arguments.without_plus_one:
            drop_plus_one(model)
        if arguments.alpha:
            set_alpha(model, arguments.alpha)
        if arguments.fused_norm is not None:
            fused_and_cached.fuse_norms(model, arguments.fused_norm or None)
        if arguments.cache:
            fused_and_cached.cache_keys(model, arguments.cache, arguments.cache_scale, arguments.cache_mistake)
        return wrap

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    with products.replacing(modeling):
        dump(arguments.model, arguments.case, arguments.out, arguments.dtype, arguments.attention, arguments.experts,
             ", without plus one" if arguments.without_plus_one else "",
             (arguments.ranks, arguments.reduce) if arguments.ranks else (), change, products.in_float)


if __name__ == "__main__":
    main()

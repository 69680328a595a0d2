"""SGLang's model class of MiniMax-M3 on a CPU: its loader, linear layers, norms, RoPE, router, experts and logits.

Its attention back ends for M3 exist for GPUs alone. PyTorch code of this file stands in for them: caches, block scores,
the choice of blocks, attention. sglang.py judges the Triton kernels behind them. Sequences run one after the other; the
last tokens of each are fed one at a time, the others in chunks if dump.py gets --chunk. Names are those of
maps/sglang_whole.json.

--repaired: the native experts get the activation that the model asks for; see golden/ENGINES.md.
"""

import importlib.abc
import importlib.machinery
import importlib.metadata
import inspect
import os
import sys
import tempfile
import types

os.environ.update(CUDA_VISIBLE_DEVICES="", SGLANG_USE_CPU_ENGINE="1", SGLANG_OPT_USE_BF16_ROUTER_GEMM="0",
                  HF_HUB_OFFLINE="1", GLOO_SOCKET_IFNAME="lo", TRITON_INTERPRET="1")

import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import AutoConfig, AutoProcessor, AutoTokenizer  # noqa: E402, F401

from . import adapter  # noqa: E402

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
FOR_GPUS = ("sgl_kernel", "flashinfer", "torchao", "torchvision", "torch_memory_saver")


class Nothing(type):
    """What a hollow module has under any name: a class whose attributes are such classes."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(name, (), {"__init__": lambda self, *arguments, **keywords: None})


class Hollow(types.ModuleType):
    __path__ = []
    __getattr__ = Nothing.__getattr__


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Packages that SGLang imports, and that only GPUs need, are hollow."""

    def find_spec(self, name, path=None, target=None):
        asks_only = sys._getframe(1).f_code.co_name == "find_spec"      # importlib.util: whether it is there
        if name.split(".")[0] in FOR_GPUS and not asks_only:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Hollow(spec.name)

    def exec_module(self, module):
        pass


class Cache:
    """Keys, values and index keys of one sequence, by layer; the stand-in for attention reads them."""

    def __init__(self, text):
        self.parts, self.taps, sparse = {}, None, text["sparse_attention_config"]
        self.block, self.kept = sparse["sparse_block_size"], sparse["sparse_topk_blocks"]
        self.first, self.last = sparse["sparse_init_block"], sparse["sparse_local_block"]

    def add(self, layer, **new):
        old = self.parts.get(layer)
        self.parts[layer] = {name: torch.cat([old[name], x]) if old else x for name, x in new.items()}
        return self.parts[layer]

    def blocks(self, scores, places):
        """Which blocks each row and group sees, [R,G,B], of scores [R,G,S] that are -inf for hidden keys."""
        rows, groups, keys = scores.shape
        count = -(-keys // self.block)
        best = torch.nn.functional.pad(scores, (0, count * self.block - keys), value=-torch.inf)
        best = best.view(rows, groups, count, self.block).amax(-1)
        own = (places // self.block)[:, None]
        index = torch.arange(count)
        forced = (index > own - self.last) & (index <= own) | (index < self.first) & (index <= own)
        best = best.masked_fill(forced[:, None], torch.inf)
        value, chosen = best.topk(min(self.kept, count), dim=-1)
        return torch.zeros_like(best, dtype=torch.bool).scatter(-1, chosen, value > -torch.inf)

    def seen(self, chosen):
        """The blocks that attention reads."""
        return chosen

    def attend(self, module, q, k, v, index_q=None, index_k=None):
        rows, size = len(q), module.qk_head_dim
        q, k, v = (x.reshape(rows, -1, size) for x in (q, k, v))
        held = self.add(module.layer_id, k=k, v=v, **({} if index_k is None else {"index": index_k[:, 0]}))
        keys, values, groups = held["k"].float(), held["v"].float(), k.shape[1]
        places = torch.arange(len(keys) - rows, len(keys))
        given = {"in": q, "in.1": k} | ({} if index_q is None else {"in.idx_q": index_q, "in.idx_k": index_k})
        for name, x in given.items():
            self.taps(name, x)
        hidden = (torch.arange(len(keys)) > places[:, None])[:, None].expand(rows, groups, -1)
        if index_q is not None:
            scores = torch.einsum("rgx,sx->rgs", index_q.float(), held["index"].float())
            chosen = self.blocks(scores.masked_fill(hidden, -torch.inf), places)
            hidden = hidden | ~self.seen(chosen).repeat_interleave(self.block, dim=-1)[..., :len(keys)]
            self.taps("topk_idx", listed(chosen))
        logits = torch.einsum("rghd,sgd->rghs", q.float().view(rows, groups, -1, size), keys) * module.scaling
        share = logits.masked_fill(hidden[:, :, None], -torch.inf).softmax(-1)
        return torch.einsum("rghs,sgd->rghd", share, values).reshape(rows, -1).to(q.dtype)


def listed(chosen):
    """Ascending lists [R,G,N] of blocks, ending in -1."""
    count = chosen.shape[-1]
    names = torch.where(chosen, torch.arange(count), count).sort(dim=-1).values
    return names.masked_fill(names == count, -1)[..., :int(chosen.sum(-1).max())].int()


class Taps:
    def __init__(self, model, dump):
        self.dump = dump
        for name, module in model.named_modules():
            if name.endswith(".mlp.down_proj"):
                module.register_forward_pre_hook(self.before(name))
            leaf = not any(module.children()) and not name.endswith("shared_experts.gate_up_proj")
            if leaf or name.endswith(".mlp.experts"):
                module.register_forward_hook(self.after(name))
            if hasattr(module, "_forward_method"):
                module._forward_method = module.forward_native

    def save(self, name, x):
        x = x.detach().contiguous()
        if x.dtype == torch.bfloat16:
            self.dump.save(name, x.view(torch.uint16).numpy().copy(), "BF16")
        else:
            self.dump.save(name, x.numpy().copy())

    def before(self, name):
        return lambda module, arguments: self.save(name + ".in", arguments[0])

    def after(self, name):
        def hook(module, arguments, result):
            if isinstance(result, torch.Tensor):
                self.save(name, result)
            elif isinstance(result, tuple):
                parts = [x for x in result if isinstance(x, torch.Tensor)]
                for part, x in enumerate(parts):
                    self.save(f"{name}.{part}" if len(parts) > 1 else name, x)
        return hook


def start(folder, dtype):
    """SGLang's state of one process, as its scheduler sets it up."""
    from sglang.srt.distributed import init_distributed_environment, initialize_model_parallel
    from sglang.srt.layers.dp_attention import initialize_dp_attention
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import ServerArgs
    words = ServerArgs(model_path=folder, device="cpu", dtype=str(TYPES[dtype]).split(".")[1], skip_tokenizer_init=True,
                       disable_cuda_graph=True, attention_backend="torch_native", tp_size=1)
    publish(words, role="scheduler", ranks=SpawnRanks(world_rank=0))
    with tempfile.TemporaryDirectory() as meeting:
        init_distributed_environment(world_size=1, rank=0, local_rank=0, backend="gloo",
                                     distributed_init_method=f"file://{meeting}/point")
        initialize_model_parallel(backend="gloo")
        initialize_dp_attention(words)


def load(folder, text, dtype):
    from sglang.srt.models import minimax_m3
    torch.set_default_dtype(TYPES[dtype])
    config = transformers.PretrainedConfig(**text)
    config.rope_theta, config.rope_scaling = text["rope_theta"], None
    model = minimax_m3.MiniMaxM3SparseForCausalLM(config)
    weights = {}
    for name in sorted(name for name in os.listdir(folder) if name.endswith(".safetensors")):
        weights |= load_file(os.path.join(folder, name))
    prefix = "language_model."
    model.load_weights((name.removeprefix(prefix), weight) for name, weight in weights.items() if prefix in name)
    torch.set_default_dtype(torch.float32)
    return model.eval()


def repair():
    from sglang.srt.layers.moe import fused_moe_native
    from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe
    fused_moe_native.swiglu_gpt_oss_sigmoid_alpha = fused_moe.swiglu_no_interleaved_with_alpha_and_limit


def step(model, ids, first, decodes):
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
    end = first + len(ids)
    given = dict(forward_mode=ForwardMode.DECODE if decodes else ForwardMode.EXTEND, batch_size=1, input_ids=ids,
                 req_pool_indices=torch.zeros(1, dtype=torch.long), seq_lens=torch.tensor([end]),
                 out_cache_loc=torch.arange(first, end), seq_lens_sum=end, positions=torch.arange(first, end))
    known = inspect.signature(ForwardBatch).parameters
    batch = ForwardBatch(**{name: value for name, value in given.items() if name in known})
    return model.model(ids, given["positions"], batch)


def run(folder, case, dump, options, change=None):
    sys.meta_path.append(Finder())
    text = adapter.read_config(folder)["text_config"]
    start(folder, options.dtype)
    from sglang.srt.layers.radix_attention import RadixAttention
    if options.repaired:
        repair()
    if change:
        change(sys.modules[__name__])
    model = load(folder, text, options.dtype)
    taps = Taps(model, dump)

    def attention(self, q, k, v, batch, save_kv_cache=True, idx_q=None, idx_k=None, idx_v=None, **rest):
        name = f"model.layers.{self.layer_id}.self_attn.attn"
        cache.taps = lambda part, x: taps.save(f"{name}.{part}", x)
        result = cache.attend(self, q, k, v, idx_q, idx_k)
        return result if idx_q is None else (None, result)

    RadixAttention.forward = attention
    with torch.no_grad():
        for number, ids in enumerate(case.sequences):
            cache = Cache(text)
            prompt = len(ids) - options.decode
            size = options.chunk or prompt
            starts = [*range(0, prompt, size), *range(prompt, len(ids))]
            for first, end in zip(starts, [*starts[1:], len(ids)]):
                hidden = step(model, torch.from_numpy(ids[first:end]), first, first >= prompt)
                taps.save("logits_processor", torch.nn.functional.linear(hidden, model.lm_head.weight))
                dump.add_rows([(number, place) for place in range(first, end)])
    return f"SGLang {importlib.metadata.version('sglang')} on a CPU"

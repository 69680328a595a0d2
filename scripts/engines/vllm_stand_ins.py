"""What of vLLM exists for GPUs alone, in PyTorch, with the roundings of the originals. Import before vLLM.

| stands in for | why |
|---|---|
| FlashInfer's Gemma norm and add + Gemma norm | CUDA |
| the fused kernel of head norms, RoPE and the insertion into the paged caches | CUDA |
| the loop over M3's experts | the CPU's kernel knows no SwiGLU with alpha and limit; the activation is vLLM's own |

Everything else is vLLM's. Its router for CPUs knows sigmoid scores in its routine for groups of experts, and M3 and M2
have one group.
"""

import importlib.machinery
import os
import sys
import types

import torch


def environment():
    """One process, no device; Triton's interpreter counts as Triton's backend for CPUs."""
    os.environ.update(CUDA_VISIBLE_DEVICES="", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="ERROR",
                      VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1", HF_HUB_OFFLINE="1", VLLM_HOST_IP="127.0.0.1",
                      VLLM_LOOPBACK_IP="127.0.0.1", GLOO_SOCKET_IFNAME="lo", VLLM_CPU_OMP_THREADS_BIND="nobind")
    import triton.backends
    driver = types.SimpleNamespace(is_active=lambda: True)
    triton.backends.backends["cpu"] = types.SimpleNamespace(driver=driver, compiler=None)
    hollow("flashinfer")
    hollow("flashinfer.norm", gemma_rmsnorm=gemma_rmsnorm, gemma_fused_add_rmsnorm=gemma_fused_add_rmsnorm)
    import transformers.image_processing_utils  # noqa: F401    it asks whether torchvision is there
    hollow("torchvision")
    hollow("torchvision.transforms", InterpolationMode=types.SimpleNamespace(BICUBIC=3))


def hollow(name, **content):
    """A package without its own code."""
    module = types.ModuleType(name)
    module.__spec__, module.__path__ = importlib.machinery.ModuleSpec(name, None), []
    vars(module).update(content)
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)


# ---- norms and the fused kernel: in float from their inputs to their outputs

def normalised(x, weight, eps):
    """In float."""
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (1 + weight.float())


def gemma_rmsnorm(x, weight, eps):
    return normalised(x, weight, eps).to(x.dtype)


def gemma_fused_add_rmsnorm(x, residual, weight, eps):
    total = x.float() + residual.float()
    residual.copy_(total)
    x.copy_(normalised(total, weight, eps))


def rotated(x, table, positions, turned):
    cos, sin = table[positions].float()[:, None].chunk(2, dim=-1)
    a, b = x[..., :turned // 2], x[..., turned // 2:turned]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., turned:]], dim=-1)


def norm_rope_insert(qkv, q_weight, k_weight, table, positions, heads, groups, turned, eps, index_q_weight=None,
                     index_k_weight=None, index_heads=0, slots=None, index_slots=None, cache=None, index_cache=None,
                     block=0, q_out=None, index_q_out=None, kv_cache_dtype="auto", **rest):
    """Dense layers get q and k back in qkv; sparse layers get q and index q in tensors of their own, and the caches
    filled."""
    if any(value is not None for name, value in rest.items() if name in ("q_fp8_out", "kv_k_scale", "kv_v_scale")):
        raise NotImplementedError("caches in 8 or 4 bits")
    size = q_weight.numel()
    q, k, v, rest_of_row = qkv.split([heads * size, groups * size, groups * size,
                                      qkv.shape[1] - (heads + 2 * groups) * size], dim=1)

    def turn(x, weight):
        x = x.reshape(len(x), -1, weight.numel())
        return rotated(normalised(x, weight, eps), table, positions, turned)

    keys, queries = turn(k, k_weight), turn(q, q_weight)
    k.copy_(keys.flatten(1))
    (q if q_out is None else q_out).copy_(queries.flatten(1))
    if not index_heads:
        return
    width = index_q_weight.numel()
    index_q_out.copy_(turn(rest_of_row[:, :index_heads * width], index_q_weight).flatten(1))
    index_keys = turn(rest_of_row[:, index_heads * width:], index_k_weight)[:, 0]
    here = slots >= 0
    page, place = slots[here] // block, slots[here] % block
    entries = torch.cat([k.view(len(k), groups, size), v.view(len(v), groups, size)], dim=-1)
    cache[page, :, place] = entries[here].to(cache.dtype)
    here = index_slots >= 0
    index_cache[index_slots[here] // block, index_slots[here] % block] = index_keys[here].to(index_cache.dtype)


# ---- experts

def swiglu_oai(activation):
    return activation.value == "swigluoai_uninterleave"


def run_experts(activation, output, x, w1, w2, weights, ids):
    """activation: vLLM's module. The sum over experts is in float."""
    total = torch.zeros(x.shape, dtype=torch.float32)
    for expert in ids.unique().tolist():
        token, place = torch.where(ids == expert)
        each = torch.nn.functional.linear(
            activation.forward_native(torch.nn.functional.linear(x[token], w1[expert])), w2[expert])
        total.index_add_(0, token, each.float() * weights[token, place].float()[:, None])
    output.copy_(total)


def use_run_experts():
    from vllm.model_executor.layers.activation import SiluAndMulWithClamp
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts as Experts
    supports, process, apply = Experts._supports_activation, Experts.process_weights_after_loading, Experts.apply

    def process_weights(self, layer):
        config = self.moe_config
        if not swiglu_oai(config.activation):
            return process(self, layer)
        self.gated = SiluAndMulWithClamp(config.swiglu_limit, config.swiglu_alpha, config.swiglu_beta,
                                         compile_native=False)

    def apply_experts(self, output, hidden_states, w1, w2, topk_weights, topk_ids, activation, *rest, **keywords):
        if not swiglu_oai(activation):
            return apply(self, output, hidden_states, w1, w2, topk_weights, topk_ids, activation, *rest, **keywords)
        return run_experts(self.gated, output, hidden_states, w1, w2, topk_weights, topk_ids)

    Experts._supports_activation = staticmethod(lambda activation: swiglu_oai(activation) or supports(activation))
    Experts.process_weights_after_loading, Experts.apply = process_weights, apply_experts


def one_group_of_experts():
    from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter
    init = CPURouter.__init__

    def made(self, *arguments, **keywords):
        init(self, *arguments, **keywords)
        if self.scoring_func == "sigmoid":
            self.use_grouped_topk, self.num_expert_group, self.topk_group = True, 1, 1

    CPURouter.__init__ = made


def install():
    from vllm import _custom_ops
    from vllm.model_executor.models import registry
    registry._run_in_subprocess = lambda function: function()      # the subprocess would lack what is replaced here
    _custom_ops.fused_minimax_m3_qknorm_rope_kv_insert = norm_rope_insert
    use_run_experts()
    one_group_of_experts()

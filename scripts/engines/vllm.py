"""vLLM's Triton kernels of MiniMax-M3's prefill: index scores, choice of blocks, sparse attention.

Only these two files of vLLM are there; what they import from it is replaced: the platform is one without special paths.
"""

import importlib
import os
import types

import torch
import triton
import triton.language

from . import environments, kernels

SOURCE = os.path.join(environments.folder("vllm"), "source", "vllm")
NOT_CUDA = types.SimpleNamespace(is_cuda=lambda: False, is_rocm=lambda: False, is_arch_support_pdl=lambda: False,
                                 is_device_capability=lambda capability: False)
for package in ("vllm", "vllm.models", "vllm.models.minimax_m3", "vllm.models.minimax_m3.common",
                "vllm.models.minimax_m3.common.ops"):
    kernels.hollow(package, os.path.join(os.path.dirname(SOURCE), *package.split(".")))
kernels.hollow("vllm.platforms", current_platform=NOT_CUDA)
kernels.hollow("vllm.triton_utils", tl=triton.language, triton=triton)
kernels.hollow("vllm.utils", os.path.join(SOURCE, "utils"))
kernels.hollow("vllm.utils.math_utils", round_up=lambda x, multiple: -(-x // multiple) * multiple)
index = importlib.import_module("vllm.models.minimax_m3.common.ops.index_topk")
attention = importlib.import_module("vllm.models.minimax_m3.common.ops.sparse_attn")


def sparse_attention(call):
    if call.block != index.SPARSE_BLOCK_SIZE:
        call.refuse("block", call.block, index.SPARSE_BLOCK_SIZE)
    paged = kernels.Paged(torch, len(call.k), call.block)
    table = paged.order.repeat(call.count, 1)
    groups, longest = call.k.shape[1], int(call.lengths.max())
    scores = index.minimax_m3_index_score(
        call.index_q, paged.store(call.index_k), table, call.cu_seqlens, call.lengths, call.prefix, call.longest,
        longest, groups)
    blocks = index.minimax_m3_index_topk(
        scores, call.cu_seqlens, call.prefix, call.longest, call.N, call.init, call.local)
    cache = paged.store(torch.cat([call.k, call.v], dim=-1)).transpose(1, 2).contiguous()
    out = torch.empty_like(call.q)
    attention.minimax_m3_sparse_attn(
        call.q, cache, blocks, table, call.cu_seqlens, call.lengths, call.prefix, call.longest, groups,
        call.q.shape[-1] ** -0.5, out)
    scores = scores[:, :, :-(-len(call.k) // call.block)].transpose(0, 1)
    return {"m": call.visible(torch, scores), "blocks": blocks.transpose(0, 1), "o": out}

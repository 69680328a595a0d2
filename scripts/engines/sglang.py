"""SGLang's Triton kernels of MiniMax-M3's prefill: index scores with the choice of blocks, and sparse attention.

Only these kernels of SGLang are there; what they import from it is replaced: the device has no special paths. Its
scores stay inside, multiplied by 1/sqrt(index_dim). They take BF16 and F16.
"""

import importlib
import os

import torch

from . import environments, kernels

SOURCE = os.path.join(environments.folder("sglang"), "source", "sglang")
for package in ("sglang", "sglang.kernels", "sglang.kernels.ops", "sglang.kernels.ops.attention"):
    kernels.hollow(package, os.path.join(os.path.dirname(SOURCE), *package.split(".")))
kernels.hollow("sglang.srt")
kernels.hollow("sglang.srt.utils", is_gfx95_supported=lambda: False)
PREFILL = "sglang.kernels.ops.attention.minimax_sparse.prefill."
index = importlib.import_module(PREFILL + "flash_with_topk_idx")
attention = importlib.import_module(PREFILL + "topk_sparse")
PAGE = 16


def sparse_attention(call):
    if call.block not in (16, 32, 64, 128):
        call.refuse("block", call.block, "16, 32, 64 or 128")
    if call.q.dtype == torch.float32:
        call.refuse("q", "F32", "BF16 or F16 (--dtype of m3ref op --make)")
    paged = kernels.Paged(torch, len(call.k), PAGE)
    slots = (paged.order[:, None] * PAGE + torch.arange(PAGE, dtype=torch.int32)).flatten().repeat(call.count, 1)
    requests = torch.arange(call.count, dtype=torch.int32)
    keys, values, index_keys = (paged.store(x).flatten(0, 1) for x in (call.k, call.v, call.index_k[:, None]))
    _, blocks = index.flash_prefill_with_topk_index(
        call.index_q, index_keys, None, None, slots, requests, call.cu_seqlens, call.lengths, call.prefix, call.longest,
        int(call.lengths.max()), 1, call.block, call.N, call.init, call.local, disable_index_value=True, page_size=PAGE)
    out = attention.flash_prefill_with_gqa_share_sparse(
        call.q, keys, values, None, slots, requests, blocks, 1, call.block, call.cu_seqlens, call.lengths, call.prefix,
        call.longest)
    return {"blocks": blocks.transpose(0, 1), "o": out}

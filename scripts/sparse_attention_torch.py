"""Sparse attention as a torch function with a backward pass of its own: an example of a kernel for

    m3ref op attend_blocks_backward

Row t, query head h attends to the visible keys of the blocks in blocks[t, group of h]. With ALL_KEYS the backward pass
takes all earlier keys, as a kernel for full attention would."""
import os

import torch

ALL_KEYS = "ALL_KEYS" in os.environ


def visible(q, k, blocks, seen, params):
    """[T,Q,S]: which keys a query head sees."""
    T, Q, S, G = len(q), q.shape[1], len(k), k.shape[1]
    lists = blocks.long().flatten(1)[:, None].expand(T, G, -1) if params["selection"] == "union" else blocks.long()
    sees = (lists[..., None] == torch.arange(S) // params["block"]).any(2) & earlier(T, S)[:, None]
    return (sees if seen is None else sees & (seen != 0)).repeat_interleave(Q // G, 1)


def earlier(T, S):
    return torch.arange(S) <= torch.arange(S - T, S)[:, None]


class SparseAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, blocks, seen, params):
        share = q.shape[1] // k.shape[1]
        sees = visible(q, k, blocks, seen, params)
        z = torch.einsum("tqd,sqd->tqs", q, k.repeat_interleave(share, 1)) / q.shape[-1] ** 0.5
        lse = torch.logsumexp(z.masked_fill(~sees, -torch.inf), -1)
        p = torch.exp(z - lse[..., None]).masked_fill(~sees, 0)
        o = torch.einsum("tqs,sqd->tqd", p, v.repeat_interleave(share, 1))
        ctx.save_for_backward(q, k, v, o, lse, earlier(len(q), len(k))[:, None] if ALL_KEYS else sees)
        return o, lse

    @staticmethod
    def backward(ctx, do, dlse):
        q, k, v, o, lse, sees = ctx.saved_tensors
        share, scale = q.shape[1] // k.shape[1], q.shape[-1] ** -0.5
        wide_k, wide_v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        z = torch.einsum("tqd,sqd->tqs", q, wide_k) * scale
        if ALL_KEYS:
            lse = torch.logsumexp(z.masked_fill(~sees, -torch.inf), -1)
            o = torch.einsum("tqs,sqd->tqd", torch.exp(z - lse[..., None]).masked_fill(~sees, 0), wide_v)
        p = torch.exp(z - lse[..., None]).masked_fill(~sees, 0)
        delta = (do * o).sum(-1) - dlse
        ds = p * (torch.einsum("tqd,sqd->tqs", do, wide_v) - delta[..., None]) * scale
        by_group = lambda x: x.unflatten(1, (k.shape[1], share)).sum(2)
        dk, dv = (by_group(torch.einsum("tqs,tqd->sqd", a, b)) for a, b in ((ds, q), (p, do)))
        return torch.einsum("tqs,sqd->tqd", ds, wide_k), dk, dv, None, None, None

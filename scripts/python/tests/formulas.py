"""Operators in NumPy, written from SPEC.md and not from the C code."""
import numpy as np


def rms_norm(x, w, eps):
    x = x.astype(np.float64)
    return (x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * (1 + w.astype(np.float64))).astype(np.float32)


def rms_norm_without_one(x, w, eps):
    return rms_norm(x, w - 1, eps)


def rms_norm_in_f16(x, w, eps):
    """Adds the squares one after the other in F16."""
    total = np.zeros(x.shape[:-1], np.float16)
    for i in range(x.shape[-1]):
        total = (total + x[..., i].astype(np.float16) ** 2).astype(np.float16)
    mean = total.astype(np.float32)[..., None] / np.float32(x.shape[-1])
    return (x / np.sqrt(mean + np.float32(eps)) * (1 + w)).astype(np.float32)


def route(s, bias, K):
    """The K best of s + bias, the lower id on a tie; weights are the shares of s."""
    ids = np.argsort(-(s.astype(np.float64) + bias), axis=-1, kind="stable")[:, :K]
    chosen = np.take_along_axis(s.astype(np.float64), ids, -1)
    return ids.astype(np.int32), (chosen / chosen.sum(-1, keepdims=True)).astype(np.float32)


def attend(q, k, v, rows, shift=0):
    """Causal attention in the given rows; `shift` moves the end of what a row sees."""
    T, Q, D = q.shape
    p0, shared = k.shape[0] - T, Q // k.shape[1]
    o = np.zeros((len(rows), Q, v.shape[2]))
    for i, t in enumerate(rows):
        for h in range(Q):
            keys = k[:max(p0 + t + 1 + shift, 1), h // shared].astype(np.float64)
            z = keys @ q[t, h].astype(np.float64) / np.sqrt(D)
            weights = np.exp(z - z.max())
            o[i, h] = weights @ v[:len(keys), h // shared] / weights.sum()
    return o.astype(np.float32)

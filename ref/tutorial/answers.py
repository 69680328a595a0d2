"""Answers to the exercises of the tutorial, in NumPy: one function for each operator, as SPEC.md defines it.

    PYTHONPATH=scripts/python python3 ref/tutorial/exercise.py ref/tutorial/answers.py NAME CASES RESULTS
"""

import numpy as np


def sig(x):
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x.astype(np.float64)))


def rms_norm(x, w, eps):
    return rms_norm_plain(x, 1 + w, eps)


def rms_norm_plain(x, w, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * w


def rope(x, cos, sin):
    half = cos.shape[1]
    a, b = x[..., :half], x[..., half:2 * half]
    c, s = cos[:, None], sin[:, None]
    return np.concatenate([a * c - b * s, b * c + a * s, x[..., 2 * half:]], axis=-1)


def swiglu(gate, up):
    return (up * gate * sig(gate)).astype(np.float32)


def swiglu_oai(gate, up, alpha, limit, gate_clamp="upper"):
    g = np.minimum(gate, np.float32(limit))
    if gate_clamp == "both":
        g = np.maximum(g, np.float32(-limit))
    u = np.clip(up, np.float32(-limit), np.float32(limit))
    return ((u + 1) * g * sig(np.float32(alpha) * g)).astype(np.float32)


def block_scores(q, k, block, seen=None, pool="max", index_scale="1"):
    T, G, X = q.shape
    S = k.shape[0]
    s = np.einsum("tgx,sx->tgs", q, k)
    if index_scale == "rsqrt":
        s = s * np.float32(1 / np.sqrt(X))
    visible = np.arange(S) <= np.arange(S - T, S)[:, None]
    if seen is not None:
        visible &= seen != 0
    s = np.where(visible[:, None], s, -np.inf)
    edges = range(0, S, block)
    best = np.stack([s[..., b:b + block].max(-1) for b in edges], -1)
    if pool == "lse":
        near = np.where(np.isfinite(best), best, 0)
        parts = [np.exp(s[..., b:b + block] - near[..., i, None]).sum(-1) for i, b in enumerate(edges)]
        with np.errstate(divide="ignore"):
            best = near + np.log(np.stack(parts, -1))
    return best.astype(np.float32)


def select_blocks(m, block, N, p0, selection="group", init_blocks="0", local_blocks="1", local_rule="last"):
    T, G, B = m.shape
    ids = np.full((T, G, N), -1, np.int32)
    local = min(int(local_blocks), 1) if local_rule == "own" else int(local_blocks)
    if selection == "shared":
        m = np.broadcast_to(m.max(1, keepdims=True), m.shape)
    for t in range(T):
        own = (p0 + t) // block
        forced = [b for b in range(own, own - local, -1) if b >= 0]
        forced += [b for b in range(min(int(init_blocks), own + 1)) if b not in forced]
        for g in range(G):
            rest = [b for b in range(own + 1) if b not in forced and m[t, g, b] > -np.inf]
            rest.sort(key=lambda b: -m[t, g, b])        # a stable sort: the lower id wins a tie
            chosen = sorted((forced + rest)[:N])
            ids[t, g, :len(chosen)] = chosen
    return ids


def route(s, bias, K):
    ids = np.argsort(-(s + bias), axis=-1, kind="stable")[:, :K]        # stable: the lower id wins a tie
    p = np.take_along_axis(s, ids, -1)
    return ids.astype(np.int32), p / p.sum(-1, keepdims=True)


def experts(x, ids, p, w1, w3, w2, factor, activation, alpha=1.702, limit=7.0, gate_clamp="upper"):
    routed = np.zeros_like(x)
    for t in range(x.shape[0]):
        for k in range(ids.shape[1]):
            e = ids[t, k]
            gate, up = w1[e] @ x[t], w3[e] @ x[t]
            act = swiglu_oai(gate, up, alpha, limit, gate_clamp) if activation == "swiglu_oai" else swiglu(gate, up)
            routed[t] += p[t, k] * (w2[e] @ act)
    return np.float32(factor) * routed


def mtp_join(embedding, hidden, enorm, hnorm, eh_proj, eps, mtp_join="concat", mtp_zero_position0="false"):
    H = hidden.shape[1]
    if mtp_zero_position0 == "true":
        embedding = np.concatenate([np.zeros_like(embedding[:1]), embedding[1:]])
    if mtp_join == "additive":
        return embedding + hidden @ eh_proj[:, H:].T
    return np.concatenate([rms_norm(embedding, enorm, eps), rms_norm(hidden, hnorm, eps)], -1) @ eh_proj.T


def scatter(x, ids, f, id):
    y = x.copy()
    y[ids == id] = f
    return y


def rope_table_3d(places, R, theta, rope_angle="f64"):
    frequency = theta ** (-2.0 * np.arange(R // 6) / (R // 3))
    if rope_angle == "f32":
        angle = (places.astype(np.float32)[..., None] * frequency.astype(np.float32)).astype(np.float64)
    else:
        angle = places[..., None] * frequency
    angle = angle.reshape(len(places), R // 2)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def e4m3(code):
    code = code.astype(np.int64)
    sign, e, f = 1 - 2 * (code >> 7), code >> 3 & 15, code & 7
    number = sign * np.where(e == 0, f * 2.0 ** -9, (8 + f) * 2.0 ** (e - 10))
    return np.where(code & 127 == 127, np.nan, number)


def linear_mxfp8(x, w, scales):
    scale = 2.0 ** (scales.astype(np.int64) - 127)
    return x @ (e4m3(w) * np.repeat(scale, 32, axis=1)[:, :w.shape[1]]).T.astype(np.float32)


def linear_fp8(x, w, scales):
    scale = np.repeat(np.repeat(scales, 128, axis=0), 128, axis=1)[:w.shape[0], :w.shape[1]]
    return x @ (e4m3(w) * scale).T.astype(np.float32)


def attend_full(q, k, v, seen=None):
    T, Q, D = q.shape
    S, G = k.shape[:2]
    k, v = np.repeat(k, Q // G, axis=1), np.repeat(v, Q // G, axis=1)       # head h reads group h div (Q/G)
    z = np.einsum("tqd,sqd->tqs", q, k) / np.float32(np.sqrt(D))
    visible = np.arange(S) <= np.arange(S - T, S)[:, None]
    if seen is not None:
        visible &= seen != 0
    z = np.where(visible[:, None], z, -np.inf).astype(np.float64)
    top = np.where(np.isfinite(z.max(-1, keepdims=True)), z.max(-1, keepdims=True), 0)
    e = np.exp(z - top)
    total = e.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (top + np.log(total))[..., 0]
    o = np.einsum("tqs,sqd->tqd", e, v) / np.where(total > 0, total, 1)
    return lse.astype(np.float32), o.astype(np.float32)

"""Quantities that follow from the numbers of a case by the definitions of SPEC.md, one function each.

The arguments of a function are names of operands, outputs, parameters, sizes, or of other functions here. The formulas
are written from SPEC.md in NumPy, so they are a second witness of what the reference gave.
"""

import numpy as np


# ---- places, keys and blocks: SPEC 1

def p0(S, T):
    return S - T


def place(p0, T):
    return p0 + np.arange(T)


def own(place, block):
    """The block that contains the row."""
    return place // block


def block_of(S, block):
    """The block of each key."""
    return np.arange(S) // block


def causal(place, S):
    return np.arange(S) <= place[:, None]


def visible(causal, S, seen=None):
    """[T,S]: keys that a row may see."""
    return causal if seen is None else causal & (seen != 0)


def listed_blocks(blocks, block_of, G, selection="group"):
    """[T,G,S]: keys whose block is in the list of the group, or of any group."""
    found = (blocks[:, :, :, None] == block_of[None, None, None, :]).any(2)
    return np.repeat(found.any(1, keepdims=True), G, 1) if selection == "union" else found


def block_count(S, block):
    return -(-S // block)


def keys(visible, G, listed_blocks=None):
    """[T,G,S]: keys that a row and group attends to."""
    found = np.repeat(visible[:, None, :], G, 1)
    return found if listed_blocks is None else found & listed_blocks


def lists_own(blocks, own):
    """[T,G]: does the list hold the row's own block?"""
    return (blocks == own[:, None, None]).any(-1)


# ---- softmax attention: SPEC 5.7, 5.10

def logit(q, k, D, Q, G):
    """[T,Q,S]: of every key, whether the row sees it or not."""
    return np.einsum("thd,shd->ths", q, np.repeat(k, Q // G, 1)) / np.sqrt(D)


def logits(logit, keys, Q, G):
    """[T,Q,S]: -inf for keys that are not attended to."""
    return np.where(np.repeat(keys, Q // G, 1), logit, -np.inf)


def expected_lse(logits):
    return log_sum_exp(logits)


def unscaled_lse(logits, D):
    """What lse is without the factor 1 / sqrt(D)."""
    return log_sum_exp(logits * np.sqrt(D))


def weights(logits, expected_lse):
    with np.errstate(invalid="ignore"):
        return np.where(np.isneginf(logits), 0, np.exp(logits - expected_lse[:, :, None]))


def expected_o(weights, v, Q, G):
    return np.einsum("ths,shd->thd", weights, np.repeat(v, Q // G, 1))


def without_mask(logit, v, Q, G):
    """What attention to all keys gives, later ones too."""
    w = np.exp(logit - log_sum_exp(logit)[:, :, None])
    return np.einsum("ths,shd->thd", w, np.repeat(v, Q // G, 1))


def other_group(q, k, keys, v, D, Q, G):
    """What heads give that read group h mod G."""
    group = np.arange(Q) % G
    z = np.where(keys[:, group], np.einsum("thd,shd->ths", q, k[:, group]) / np.sqrt(D), -np.inf)
    with np.errstate(invalid="ignore"):
        w = np.where(np.isneginf(z), 0, np.exp(z - log_sum_exp(z)[:, :, None]))
    return np.einsum("ths,shd->thd", w, v[:, group])


def log_sum_exp(z):
    m = z.max(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(np.isneginf(m), -np.inf, m + np.log(np.exp(z - m[..., None]).sum(-1)))


# ---- scores of blocks and their choice: SPEC 5.8, 5.9

def score_q(q, index_q=None):
    return q if index_q is None else index_q


def score_k(k, index_k=None):
    return k if index_k is None else index_k


def dot(score_q, score_k):
    """[T,G,S]: the score of every key, without the factor of index_scale."""
    return np.einsum("tgx,sx->tgs", score_q, score_k)


def key_scores(dot, score_q, index_scale):
    return dot / np.sqrt(score_q.shape[-1]) if index_scale == "rsqrt" else dot


def pooled(key_scores, visible, block_of, pool):
    """[T,G,B] by the definition."""
    scores = np.where(visible[:, None, :], key_scores, -np.inf)
    by_block = [scores[:, :, block_of == b] for b in range(block_of.max() + 1)]
    return np.stack([log_sum_exp(s) if pool == "lse" else s.max(-1) for s in by_block], -1)


def pooled_before_mask(key_scores, block_of):
    return np.stack([key_scores[:, :, block_of == b].max(-1) for b in range(block_of.max() + 1)], -1)


def seen_in_block(visible, block_of):
    """[T,B]: how many keys of a block a row sees."""
    return np.stack([visible[:, block_of == b].sum(-1) for b in range(block_of.max() + 1)], -1)


def lists(ids=None, blocks=None):
    return blocks if ids is None else ids


def scores(m, selection):
    """[T,G,B]: the scores by which blocks are chosen."""
    return np.repeat(m.max(1, keepdims=True), m.shape[1], 1) if selection == "shared" else m


def candidate(own, m):
    """[T,B]"""
    return np.arange(m.shape[-1]) <= own[:, None]


def each_block(m):
    """[1,1,B]: the ids of all blocks, to compare with."""
    return np.arange(m.shape[-1])[None, None, :]


def local(local_blocks, local_rule):
    return min(local_blocks, 1) if local_rule == "own" else local_blocks


def forced_in_order(own, local, init_blocks):
    """For each row, the forced blocks in the order in which they are taken."""
    found = []
    for o in own:
        row = [b for b in range(o, o - local, -1) if b >= 0]
        found.append(row + [b for b in range(init_blocks) if b <= o and b not in row])
    return found


def forced(forced_in_order, m, N):
    """[T,B]: forced blocks that find a place."""
    found = np.zeros((m.shape[0], m.shape[-1]), bool)
    for t, row in enumerate(forced_in_order):
        found[t, row[:N]] = True
    return found


def forced_counts(forced_in_order):
    return np.array([len(row) for row in forced_in_order])


def chosen(lists, m):
    """[T,G,B]"""
    return (lists[:, :, :, None] == np.arange(m.shape[-1])).any(2)


def free(chosen, forced):
    """[T,G,B]: chosen by their scores."""
    return chosen & ~forced[:, None, :]


def rejected(chosen, candidate, scores):
    return candidate[:, None, :] & ~chosen & (scores > -np.inf)


def expected_lists(forced_in_order, scores, own, N):
    T, G, _ = scores.shape
    found = np.full((T, G, N), -1)
    for t in range(T):
        for g in range(G):
            row = forced_in_order[t][:N]
            rest = [b for b in range(own[t] + 1) if b not in row and scores[t, g, b] > -np.inf]
            row = sorted(row + sorted(rest, key=lambda b: (-scores[t, g, b], b))[:N - len(row)])
            found[t, g, :len(row)] = row
    return found


def least_chosen(free, scores):
    return np.where(free, scores, np.inf).min(-1)


def best_rejected(rejected, scores):
    return np.where(rejected, scores, -np.inf).max(-1)


def equal_chosen(free, scores):
    """[T,G]: two blocks that are chosen by their scores have the same one."""
    found = np.zeros(free.shape[:2], bool)
    for t, g in np.ndindex(*found.shape):
        row = scores[t, g, free[t, g]]
        found[t, g] = len(np.unique(row)) < len(row)
    return found


def chosen_count(chosen):
    return chosen.sum(-1)



# ---- experts: SPEC 5.14, 5.15

def choice(s, bias):
    return s + bias


def expert_scores(s=None, y=None):
    """The result of sigmoid, or of the router's first step."""
    return y if s is None else s


def chosen_choice(choice, ids):
    return np.take_along_axis(choice, ids.astype(np.int64), -1)


def chosen_score(s, ids):
    return np.take_along_axis(s, ids.astype(np.int64), -1)


def best_left(choice, ids):
    """[T]: the greatest choice of an expert that was not chosen."""
    found = choice.copy()
    np.put_along_axis(found, ids.astype(np.int64), -np.inf, -1)
    return found.max(-1)


def expected_ids(choice, ids):
    return np.argsort(-choice, -1, kind="stable")[:, :ids.shape[-1]]


def ids_without_bias(s, ids):
    return np.argsort(-s, -1, kind="stable")[:, :ids.shape[-1]]


def router_ids(x, router, bias, ids):
    return expected_ids(1 / (1 + np.exp(-(x @ router.T))) + bias, ids)


def router_ids_without_bias(x, router, ids):
    return expected_ids(x @ router.T, ids)


def rows_of_expert(ids, E):
    return np.bincount(np.ravel(ids), minlength=E)


def of_expert(x, ids, w1):
    """[T,K,F]"""
    return np.einsum("th,tkfh->tkf", x, w1[ids])


def expert_up(x, ids, w3):
    return np.einsum("th,tkfh->tkf", x, w3[ids])


def expected_each(of_expert, expert_up, ids, w2, activation, alpha, limit, gate_clamp):
    return np.einsum("tkf,tkhf->tkh", act(of_expert, expert_up, activation, alpha, limit, gate_clamp), w2[ids])


def expected_routed(p, expected_each, factor):
    return factor * np.einsum("tk,tkh->th", p, expected_each)


def shared_gate(x, gate):
    return x @ gate.T


def shared_up(x, up):
    return x @ up.T


def expected_mlp(shared_gate, shared_up, down, activation, alpha, limit, gate_clamp):
    return act(shared_gate, shared_up, activation, alpha, limit, gate_clamp) @ down.T


def act(gate, up, activation, alpha, limit, gate_clamp):
    with np.errstate(over="ignore"):
        if activation == "swiglu":
            return up * gate / (1 + np.exp(-gate))
        gate = np.clip(gate, -limit if gate_clamp == "both" else None, limit)
        return (np.clip(up, -limit, limit) + 1) * gate / (1 + np.exp(-alpha * gate))


# ---- norms

def plain_norm(x, eps):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps)


def sum_norm(a, b, eps):
    return plain_norm(a + b, eps)


def embedding_norm(embedding, eps):
    return plain_norm(embedding, eps)


def hidden_norm(hidden, eps):
    return plain_norm(hidden, eps)


# ---- rotary embeddings: SPEC 5.5, 5.6, 5.18

def expected_angle(pos, R, theta, rope_angle):
    return angles(pos, R, theta, rope_angle)


def angles(pos, R, theta, rope_angle):
    frequency = np.power(theta, -2.0 * np.arange(R // 2) / R)
    if rope_angle == "f32":
        return (np.float32(pos)[:, None] * np.float32(frequency)).astype(float)
    return pos[:, None] * frequency


def exact_angle(pos, R, theta):
    return angles(pos, R, theta, "f64")


def cosine(expected_angle):
    return np.cos(expected_angle)


def sine(expected_angle):
    return np.sin(expected_angle)


def cosine_3d(expected_angle_3d):
    return np.cos(expected_angle_3d)


def sine_3d(expected_angle_3d):
    return np.sin(expected_angle_3d)


def expected_angle_3d(places, R, theta, rope_angle):
    return np.concatenate([angles(places[:, a], R // 3, theta, rope_angle) for a in range(3)], -1)


def expected_turn(x, cos, sin):
    return turned(x, cos, sin)


def turned(x, cos, sin):
    half = cos.shape[-1]
    c, s = cos[:, None, :], sin[:, None, :]
    a, b = x[..., :half], x[..., half:2 * half]
    return np.concatenate([a * c - b * s, b * c + a * s, x[..., 2 * half:]], -1)


def normed_turn(normed, expected_angle):
    return turned(normed, np.cos(expected_angle), np.sin(expected_angle))


def pictures(grid):
    return [tuple(int(n) for n in row) for row in grid]


def patches(pictures, merge, segment_frames, vision_boundary):
    """[P,5]: step in the segment, row, column, number of the segment, step in the picture. One step is a still."""
    found, segment = [], 0
    for steps, height, width in pictures:
        length = segment_frames if segment_frames and steps > 1 and vision_boundary == "segment" else steps
        for step in range(steps):
            for a in range(height // merge):
                for b in range(width // merge):
                    for c in range(merge):
                        for d in range(merge):
                            number = int(steps > 1) if vision_boundary == "none" else segment + step // length
                            found.append((step % length, merge * a + c, merge * b + d, number, step))
        segment += -(-steps // length)
    return np.array(found)


def patch_angle(patches, U, theta, rope_angle):
    return expected_angle_3d(patches[:, :3], 6 * (U // 6), theta, rope_angle)


def expected_patch_turn(x, patch_angle):
    return turned(x, np.cos(patch_angle), np.sin(patch_angle))


def expected_q_rope(q, patch_angle):
    return turned(q, np.cos(patch_angle), np.sin(patch_angle))


# ---- attention within segments: SPEC 5.19

def segment(P, ends=None, patches=None):
    return patches[:, 3] if ends is None else np.searchsorted(ends, np.arange(P), side="right")


def segment_lengths(segment):
    return np.unique(segment, return_counts=True)[1]


def segment_q(q, q_rope=None):
    return q if q_rope is None else q_rope


def segment_k(k, k_rope=None):
    return k if k_rope is None else k_rope


def segment_logit(segment_q, segment_k, U):
    """[P,A,P]"""
    return np.einsum("pad,rad->par", segment_q, segment_k) / np.sqrt(U)


def segment_weights(segment_logit, segment):
    z = np.where((segment[:, None] == segment)[:, None, :], segment_logit, -np.inf)
    return np.exp(z - log_sum_exp(z)[:, :, None])


def expected_segment_o(segment_weights, v):
    return np.einsum("par,rad->pad", segment_weights, v)


def without_segments(segment_logit, v):
    z = segment_logit
    return np.einsum("par,rad->pad", np.exp(z - log_sum_exp(z)[:, :, None]), v)


def only_earlier(segment_logit, segment, P, v):
    """What a causal mask within segments gives."""
    mask = (segment[:, None] == segment) & (np.arange(P) <= np.arange(P)[:, None])
    z = np.where(mask[:, None, :], segment_logit, -np.inf)
    return np.einsum("par,rad->pad", np.exp(z - log_sum_exp(z)[:, :, None]), v)


# ---- stored numbers: SPEC 3.3

def code_value(w):
    """E4M3 codes as numbers."""
    e, f = (w >> 3) & 15, (w & 7).astype(float)
    value = np.where(e == 0, f * 2.0 ** -9, (8 + f) * 2.0 ** (e.astype(float) - 10))
    return np.where((w & 0x7f) == 0x7f, np.nan, np.where(w & 0x80, -value, value))


def code_exponent(w):
    return (w >> 3) & 15


def expanded(code_value, scales):
    """Codes times the scales of their blocks."""
    rows, cols = code_value.shape
    if scales.dtype == np.uint8:
        return code_value * np.repeat(np.exp2(scales.astype(float) - 127), 32, 1)[:, :cols]
    return code_value * np.repeat(np.repeat(scales, 128, 0), 128, 1)[:rows, :cols]


def transposed(w, scales=None):
    """The matrix that x is multiplied by."""
    return (w if scales is None else expanded(code_value(w), scales)).T


def projection(eh_proj):
    return eh_proj.T


# ---- noise: SPEC 5.22, 3.6

def noise(T, H, p0):
    """[T,H]: u of the tap layers.0.mlp_norm with seed 0."""
    wrap, step = (1 << 64) - 1, 0x9E3779B97F4A7C15

    def mix(z):
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & wrap
        z = (z ^ z >> 27) * 0x94D049BB133111EB & wrap
        return z ^ z >> 31

    key = 14695981039346656037
    for byte in b"layers.0.mlp_norm":
        key = (key ^ byte) * 1099511628211 & wrap
    draws = [mix(mix(key) + (i + 1) * step & wrap) >> 32 for i in range(p0 * H, (p0 + T) * H)]
    return np.array(draws).reshape(T, H) / 2.0 ** 32


HELPERS = (log_sum_exp, act, angles, turned)
QUANTITIES = {name: function for name, function in globals().items() if callable(function) and function not in HELPERS}

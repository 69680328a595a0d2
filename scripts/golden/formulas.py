"""Every tap once more, in NumPy fp64, from the tapped inputs of its operator and the released weights.

Written from the model's formulas, with nothing of the public code: a wrong hook, a swapped half or fp32 inside the
fp64 run shows here. Errors are the larger of relative L2 and max |d| / max |r|;
1e-15 is usual.
"""

import math
from decimal import Decimal, localcontext

import numpy as np


def relative_l2(got, want):
    """Relative L2 over finite elements; NaN if the patterns of infinities differ."""
    finite = np.isfinite(want)
    if got.shape != want.shape or not np.array_equal(got[~finite], want[~finite]):
        return np.nan
    if not np.isfinite(got[finite]).all():
        return np.nan
    size = np.linalg.norm(want[finite].astype(np.float64))
    return np.linalg.norm(got[finite].astype(np.float64) - want[finite]) / (size if size else 1.0)


def relative_max(got, want):
    """max |d| / max |r| over finite elements."""
    finite = np.isfinite(want)
    if got.shape != want.shape:
        return np.nan
    if not finite.any():
        return 0.0
    size = np.abs(want[finite]).max()
    return np.abs(got[finite].astype(np.float64) - want[finite]).max() / (size if size else 1.0)


def sigmoid(x):
    return 0.5 * (1 + np.tanh(0.5 * x))


def gemma_norm(x, w, eps):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * (1 + w)


def inverse_frequencies(theta, rotary):
    """theta^(-2i/r) through decimal logarithms of 40 digits, rounded once."""
    with localcontext() as context:
        context.prec = 40
        log = Decimal(theta).ln()
        return np.array([float((-log * 2 * i / rotary).exp()) for i in range(rotary // 2)])


def rope(x, positions, theta, rotary):
    """x [T,heads,D] or [T,D]: the first `rotary` dims turn in pairs (i, i + rotary/2)."""
    angle = positions[:, None].astype(np.float64) * inverse_frequencies(theta, rotary)
    if x.ndim == 3:
        angle = angle[:, None]
    half, y = rotary // 2, x.copy()
    y[..., :half] = x[..., :half] * np.cos(angle) - x[..., half:rotary] * np.sin(angle)
    y[..., half:rotary] = x[..., half:rotary] * np.cos(angle) + x[..., :half] * np.sin(angle)
    return y


def block_scores(q, k, block):
    """[T,G,B]: max over the visible keys of a block of q.k, unscaled; q [T,G,X], k [T,X]."""
    T, B = len(k), -(-len(k) // block)
    scores = np.full((T, q.shape[1], B), -np.inf)
    for b in range(B):
        keys = np.arange(b * block, min((b + 1) * block, T))
        dots = q @ k[keys].T
        dots[np.broadcast_to(keys > np.arange(T)[:, None, None], dots.shape)] = -np.inf
        scores[:, :, b] = dots.max(axis=-1)
    return scores


def choose_blocks(scores, block, kept, local):
    """([T,G,N] ascending then -1, [T,G] margins: least chosen not forced minus best rejected, +inf without either)."""
    T, G, B = scores.shape
    blocks, margins = np.full((T, G, kept), -1, np.int32), np.full((T, G), np.inf)
    for t in range(T):
        own = t // block
        forced = {max(own - j, 0) for j in range(local)}
        for g in range(G):
            visible = [b for b in range(B) if scores[t, g, b] > -np.inf or b in forced]
            order = sorted(visible, key=lambda b: (b not in forced, -scores[t, g, b], b))
            chosen, rejected = order[:kept], order[kept:]
            blocks[t, g, :len(chosen)] = sorted(chosen)
            free = [scores[t, g, b] for b in chosen if b not in forced]
            if free and rejected:
                margins[t, g] = min(free) - scores[t, g, rejected[0]]
    return blocks, margins


def choose_experts(choice, kept):
    """([T,K] by descending choice, [T] margins to the first rejected, [T] least gap between neighbours chosen)."""
    order = np.argsort(-choice, axis=1, kind="stable")
    ranked = np.take_along_axis(choice, order, axis=1)
    gaps = ranked[:, :-1] - ranked[:, 1:]
    return order[:, :kept].astype(np.int32), gaps[:, kept - 1], gaps[:, :kept - 1].min(axis=1)


def attention(q, k, v, keep):
    """(attn [T,Q,D], lse [T,Q]); keep [T,Q,T] bool; query head h reads group h div (Q/G)."""
    T, Q, D = q.shape
    out, lse = np.empty_like(q), np.empty((T, Q))
    for h in range(Q):
        g = h // (Q // k.shape[1])
        z = q[:, h] @ k[:, g].T / np.sqrt(D)
        z[~keep[:, h]] = -np.inf
        top = z.max(axis=1, keepdims=True)
        weight = np.exp(z - top)
        total = weight.sum(axis=1, keepdims=True)
        out[:, h] = weight @ v[:, g] / total
        lse[:, h] = (top + np.log(total))[:, 0]
    return out, lse


def keys_attended(T, heads, groups, block, blocks):
    """[T,Q,T] bool from the causal rule and, where blocks [T,G,N] are given, the chosen blocks."""
    causal = np.arange(T)[None, :] <= np.arange(T)[:, None]
    if blocks is None:
        return np.broadcast_to(causal[:, None], (T, heads, T))
    keep = np.zeros((T, groups, T), bool)
    for t in range(T):
        for g in range(groups):
            keep[t, g] = causal[t] & np.isin(np.arange(T) // block, blocks[t, g])
    return np.repeat(keep, heads // groups, axis=1)


def swiglu(gate, up, text):
    limit = text["swiglu_limit"]
    g, u = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return (u + 1) * g * sigmoid(text["swiglu_alpha"] * g)


class Check:
    """Errors of the taps of one run, and counts of what the case exercises."""

    def __init__(self, config, weights, taps, attention_weights, input_ids):
        self.text, self.weights, self.taps, self.ids = config["text_config"], weights, taps, input_ids
        self.attention_weights = attention_weights
        self.errors, self.margins, self.biases, self.counts = {}, {}, {}, {}

    def equal(self, tap, got):
        want = self.taps[tap]
        errors = [relative_l2(got, want), relative_max(got, want), self.errors.get(tap, 0.0)]
        self.errors[tap] = np.nan if np.isnan(errors).any() else max(errors)

    def same(self, tap, got):
        if not np.array_equal(got, self.taps[tap]):
            self.errors[tap] = np.nan

    def run(self):
        taps, weights, eps = self.taps, self.weights, self.text["rms_norm_eps"]
        self.equal("embed", weights["language_model.model.embed_tokens.weight"][self.ids])
        self.fuse()
        x = taps["fused"]
        for number in range(self.text["num_hidden_layers"]):
            self.layer(number, f"layers.{number}.", f"language_model.model.layers.{number}.", x)
            x = taps[f"layers.{number}.out"]
        self.equal("final_norm", gemma_norm(x, weights["language_model.model.norm.weight"], eps))
        self.equal("logits", taps["final_norm"] @ weights["language_model.lm_head.weight"].T)

    def fuse(self):
        self.equal("fused", self.taps["embed"])

    def layer(self, number, p, source, x):
        """number: key of its attention weights; p, source: prefixes of its taps and weights; x: its input."""
        taps, eps = self.taps, self.text["rms_norm_eps"]
        w = {name.removeprefix(source).removesuffix(".weight"): value
             for name, value in self.weights.items() if name.startswith(source)}
        self.equal(p + "attn_norm", gemma_norm(x, w["input_layernorm"], eps))
        self.heads(p, w, "self_attn.", ("q", "k", "v"))
        blocks = self.index(p, w) if p + "index.blocks" in taps else None
        self.attend(number, p, blocks)
        self.equal(p + "attn_out", taps[p + "attn"].reshape(len(x), -1) @ w["self_attn.o_proj"].T)
        self.equal(p + "mid", x + taps[p + "attn_out"])
        self.equal(p + "mlp_norm", gemma_norm(taps[p + "mid"], w["post_attention_layernorm"], eps))
        self.moe(p, w) if p + "moe.experts" in taps else self.dense(p, w)
        self.equal(p + "out", taps[p + "mid"] + taps[p + "mlp"])

    def heads(self, p, w, prefix, names):
        """Projection, per-head norm and rotation of q and k (v is projected only)."""
        taps, text = self.taps, self.text
        rotary = round(text["partial_rotary_factor"] * text["head_dim"])
        input_norm = taps[p.removesuffix("index.") + "attn_norm"]
        positions = np.arange(len(input_norm))
        for name in names:
            shape = taps[f"{p}{name}_proj"].shape
            self.equal(f"{p}{name}_proj", (input_norm @ w[f"{prefix}{name}_proj"].T).reshape(shape))
            if name != "v":
                norm = gemma_norm(taps[f"{p}{name}_proj"], w[f"{prefix}{name}_norm"], text["rms_norm_eps"])
                self.equal(f"{p}{name}_norm", norm)
                self.equal(f"{p}{name}_rope", rope(taps[f"{p}{name}_norm"], positions, text["rope_theta"], rotary))

    def index(self, p, w):
        taps, sparse = self.taps, self.text["sparse_attention_config"]
        self.heads(p + "index.", w, "self_attn.index_", ("q", "k"))
        scores = block_scores(taps[p + "index.q_rope"], taps[p + "index.k_rope"], sparse["sparse_block_size"])
        self.equal(p + "index.block_scores", scores)
        blocks, margins = choose_blocks(taps[p + "index.block_scores"], sparse["sparse_block_size"],
                                        sparse["sparse_topk_blocks"], sparse["sparse_local_block"])
        self.same(p + "index.blocks", blocks)
        self.margins[p + "index.blocks"] = margins
        return blocks

    def attend(self, number, p, blocks):
        taps, text = self.taps, self.text
        q, k, v = taps[p + "q_rope"], taps[p + "k_rope"], taps[p + "v_proj"]
        block = text["sparse_attention_config"]["sparse_block_size"]
        out, lse = attention(q, k, v, keys_attended(len(q), q.shape[1], k.shape[1], block, blocks))
        self.equal(p + "attn", out)
        self.equal(p + "attn_lse", lse)
        weight = self.attention_weights[number].numpy()                      # [Q,T,T]: z - ln(weight) at the largest
        best = weight.argmax(axis=-1)
        for h in range(q.shape[1]):
            rows, keys = np.arange(len(q)), best[h]
            z = (q[rows, h] * k[keys, h // (q.shape[1] // k.shape[1])]).sum(axis=-1) / np.sqrt(q.shape[2])
            lse[:, h] = z - np.log(weight[h, rows, keys])
        self.equal(p + "attn_lse", lse)

    def activate(self, gate, up):
        return swiglu(gate, up, self.text)

    def dense(self, p, w):
        taps = self.taps
        self.equal(p + "mlp.gate", taps[p + "mlp_norm"] @ w["mlp.gate_proj"].T)
        self.equal(p + "mlp.up", taps[p + "mlp_norm"] @ w["mlp.up_proj"].T)
        self.equal(p + "mlp.act", self.activate(taps[p + "mlp.gate"], taps[p + "mlp.up"]))
        self.equal(p + "mlp", taps[p + "mlp.act"] @ w["mlp.down_proj"].T)
        self.clamps(p, taps[p + "mlp.gate"], taps[p + "mlp.up"])

    def clamps(self, p, gate, up):
        for name, hit in (("gate>7", gate > 7), ("gate<-7", gate < -7), ("|up|>7", np.abs(up) > 7)):
            self.counts[p + name] = self.counts.get(p + name, 0) + int(hit.sum())

    def moe(self, p, w):
        taps, m, b = self.taps, p + "moe.", "block_sparse_moe."
        x = taps[p + "mlp_norm"]
        self.equal(m + "router_logits", x @ w[b + "gate"].T)
        self.equal(m + "router_scores", sigmoid(taps[m + "router_logits"]))
        bias = self.biases[m + "experts"] = w[b + "e_score_correction_bias"]
        self.equal(m + "choice", taps[m + "router_scores"] + bias)
        ids, margins, gaps = choose_experts(taps[m + "choice"], self.text["num_experts_per_tok"])
        self.same(m + "experts", ids)
        self.margins[m + "experts"], self.margins[m + "experts.order"] = margins, gaps
        chosen = np.take_along_axis(taps[m + "router_scores"], ids, axis=1)
        self.equal(m + "weights", chosen / chosen.sum(axis=1, keepdims=True))
        out = np.zeros_like(taps[m + "expert_out"])
        for expert in range(self.text["num_local_experts"]):
            rows, slots = np.nonzero(ids == expert)
            gate, up = (x[rows] @ w[f"{b}experts.{expert}.{name}"].T for name in ("w1", "w3"))
            out[rows, slots] = self.activate(gate, up) @ w[f"{b}experts.{expert}.w2"].T
            self.clamps(p, gate, up)
        self.equal(m + "expert_out", out)
        routed = np.einsum("tk,tkh->th", taps[m + "weights"], taps[m + "expert_out"])
        self.equal(m + "routed", self.text["routed_scaling_factor"] * routed)
        gate, up, down = (w[f"{b}shared_experts.{name}_proj"] for name in ("gate", "up", "down"))
        self.equal(m + "shared", self.activate(x @ gate.T, x @ up.T) @ down.T)
        self.equal(p + "mlp", taps[m + "routed"] + taps[m + "shared"])
        self.counts[p + "experts used"] = int(len(np.unique(ids)))


# ---- multi-token prediction

class MtpCheck(Check):
    """The modules alone, in one reading; `taps` holds embed, fused and final_norm of the main model too."""

    def __init__(self, config, weights, taps, attention_weights, input_ids, reading):
        super().__init__(config, weights, taps, attention_weights, input_ids)
        self.reading = reading

    def run(self):
        taps, eps, reading = self.taps, self.text["rms_norm_eps"], self.reading
        embedding = taps["fused" if reading.get("mtp_embed") == "fused" else "embed"]
        handed = "final_norm" if reading.get("mtp_handover") == "post_norm" else "layer.out"
        for module in range(self.text["num_mtp_modules"]):
            p, source = f"mtp.{module}.", f"language_model.model.mtp.layers.{module}."
            enorm, hnorm, final, join = (self.weights[f"{source}{name}.weight"]
                                         for name in ("enorm", "hnorm", "final_layernorm", "eh_proj"))
            hidden = taps[f"mtp.{module - 1}.{handed}" if module else "final_norm"]
            rows = range(len(self.ids) - module - 1)
            e = np.stack([embedding[t + module + 1] for t in rows])
            h = np.stack([hidden[t] for t in rows])
            if reading.get("mtp_zero_position0") == "true":
                e[0] = 0
            split = join.shape[0]
            if reading.get("mtp_join") == "additive":
                self.equal(p + "eh_proj", e + h @ join[:, split:].T)
            else:
                self.equal(p + "embed_norm", gemma_norm(e, enorm, eps))
                self.equal(p + "hidden_norm", gemma_norm(h, hnorm, eps))
                self.equal(p + "eh_proj", taps[p + "embed_norm"] @ join[:, :split].T
                           + taps[p + "hidden_norm"] @ join[:, split:].T)
            self.layer(p, p + "layer.", source + "transformer_layer.", taps[p + "eh_proj"])
            self.equal(p + "final_norm", gemma_norm(taps[p + "layer.out"], final, eps))
            self.equal(p + "logits", taps[p + "final_norm"] @ self.weights["language_model.lm_head.weight"].T)


# ---- pictures

def places(grid, longest=None):
    """([P,3] t, h, w, [P] segment) of one picture, from the row numbers; t starts again every `longest` steps."""
    steps, height, width = (int(side) for side in grid)
    row = np.arange(steps * height * width)
    t, within = row // (height * width), row % (height * width)
    group, corner = within // 4, within % 4
    h, w = 2 * (group // (width // 2)) + corner // 2, 2 * (group % (width // 2)) + corner % 2
    longest = longest or steps
    return np.stack((t % longest, h, w), axis=1), t // longest


def layer_norm(x, w, b, eps):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + eps) * w + b


def gelu(x):
    return x * np.vectorize(lambda value: 0.5 * math.erfc(-value / math.sqrt(2)))(x)


def rope_3d(x, place, theta):
    """x [P,A,U]: a third of the pairs turns by t, a third by h, a third by w; channels beyond a multiple of 6 stay."""
    axis = 2 * (x.shape[2] // 6)
    angle = (place[:, :, None] * inverse_frequencies(theta, axis)).reshape(len(x), 1, -1)
    half, y = angle.shape[2], x.copy()
    y[..., :half] = x[..., :half] * np.cos(angle) - x[..., half:2 * half] * np.sin(angle)
    y[..., half:2 * half] = x[..., half:2 * half] * np.cos(angle) + x[..., :half] * np.sin(angle)
    return y


class PictureCheck(Check):
    """As Check, with the tower, the projector and the scatter. pictures: fields pixels, grids, images, boundary."""

    def __init__(self, config, weights, taps, attention_weights, input_ids, pictures):
        super().__init__(config, weights, taps, attention_weights, input_ids)
        self.config, self.vision, self.pictures = config, config["vision_config"], pictures

    def fuse(self):
        self.tower()
        self.projector()
        want, next_row = self.taps["embed"].copy(), 0
        for kind in ("image_token_index", "video_token_index"):
            for t in np.flatnonzero(self.ids == self.config[kind]):
                want[t] = self.taps["projector.out"][next_row]
                next_row += 1
        self.equal("fused", want if next_row == len(self.taps["projector.out"]) else np.full_like(want, np.nan))

    def rows(self):
        """([P,3] places, [P] number of the segment) of all rows of the call."""
        pictures, parts, numbers = self.pictures, [], []
        for number, grid in enumerate(pictures.grids):
            video = number >= pictures.images
            if pictures.boundary == "none":
                place, _ = places(grid)
                segment = np.full(len(place), int(video))
            else:
                place, segment = places(grid, self.vision["vision_segment_max_frames"] if video else None)
                segment = segment + (1 + max(numbers[-1]) if numbers else 0)
            parts.append(place)
            numbers.append(segment)
        return np.concatenate(parts), np.concatenate(numbers)

    def affine(self, x, name):
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def norm(self, x, name):
        w, b = (self.weights[name + part] for part in (".weight", ".bias"))
        return layer_norm(x, w, b, self.vision["layer_norm_eps"])

    def tower(self):
        taps, prefix = self.taps, "vision_tower.vision_model."
        self.equal("vision.pixels", self.pictures.pixels.astype(np.float64))
        self.same("vision.grid", np.array(self.pictures.grids, np.int32))
        patch = self.weights[prefix + "embeddings.patch_embedding.weight"]
        self.equal("vision.patch_embed", taps["vision.pixels"] @ patch.reshape(len(patch), -1).T)
        self.equal("vision.pre_norm", self.norm(taps["vision.patch_embed"], prefix + "pre_layrnorm"))
        place, segment = self.rows()
        x = taps["vision.pre_norm"]
        for number in range(self.vision["num_hidden_layers"]):
            tap = f"vision.layers.{number}."
            self.encoder_layer(tap, f"{prefix}encoder.layers.{number}.", x, place, segment)
            x = taps[tap + "out"]

    def encoder_layer(self, p, w, x, place, segment):
        taps = self.taps
        self.equal(p + "norm1", self.norm(x, w + "layer_norm1"))
        for name in ("q", "k", "v"):
            projected = self.affine(taps[p + "norm1"], f"{w}self_attn.{name}_proj")
            self.equal(f"{p}{name}_proj", projected.reshape(taps[f"{p}{name}_proj"].shape))
            if name != "v":
                self.equal(f"{p}{name}_rope", rope_3d(taps[f"{p}{name}_proj"], place, self.vision["rope_theta"]))
        keep = np.broadcast_to((segment[:, None] == segment)[:, None], (len(x), taps[p + "q_rope"].shape[1], len(x)))
        self.equal(p + "attn", attention(taps[p + "q_rope"], taps[p + "k_rope"], taps[p + "v_proj"], keep)[0])
        self.equal(p + "attn_out", self.affine(taps[p + "attn"].reshape(len(x), -1), w + "self_attn.out_proj"))
        self.equal(p + "mid", x + taps[p + "attn_out"])
        self.equal(p + "norm2", self.norm(taps[p + "mid"], w + "layer_norm2"))
        self.equal(p + "fc1", self.affine(taps[p + "norm2"], w + "mlp.fc1"))
        self.equal(p + "act", gelu(taps[p + "fc1"]))
        self.equal(p + "mlp", self.affine(taps[p + "act"], w + "mlp.fc2"))
        self.equal(p + "out", taps[p + "mid"] + taps[p + "mlp"])

    def projector(self):
        taps, last = self.taps, f"vision.layers.{self.vision['num_hidden_layers'] - 1}.out"
        self.equal("projector.linear_1", self.affine(taps[last], "multi_modal_projector.linear_1"))
        self.equal("projector.act_1", gelu(taps["projector.linear_1"]))
        self.equal("projector.linear_2", self.affine(taps["projector.act_1"], "multi_modal_projector.linear_2"))
        four = [taps["projector.linear_2"][corner::4] for corner in range(4)]
        self.equal("projector.merged", np.concatenate(four, axis=1))
        self.equal("projector.merge_linear_1", self.affine(taps["projector.merged"], "patch_merge_mlp.linear_1"))
        self.equal("projector.act_2", gelu(taps["projector.merge_linear_1"]))
        self.equal("projector.out", self.affine(taps["projector.act_2"], "patch_merge_mlp.linear_2"))

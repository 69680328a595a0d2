"""Every tap of a run in another reading, or under an attention mask, once more in NumPy: formulas.Check with the
operators of SPEC.md 5.7 to 5.11 as they are then. Nothing here is shared with readings.py.
"""

import numpy as np

import formulas


class ReadingCheck(formulas.Check):
    """semantics: the fields that are not default; mask [S] of 0 and 1, or None."""

    def __init__(self, config, weights, taps, attention_weights, input_ids, semantics, mask):
        super().__init__(config, weights, taps, attention_weights, input_ids)
        self.semantics, self.values = semantics, {}
        self.seen = np.ones(len(input_ids), bool) if mask is None else mask != 0
        sparse = self.text["sparse_attention_config"]
        self.block, self.kept = sparse["sparse_block_size"], sparse["sparse_topk_blocks"]

    def equal(self, tap, got):
        self.values[tap] = got
        super().equal(tap, got)

    def visible(self, t, b):
        """Keys of block b that row t sees."""
        return [j for j in range(b * self.block, min((b + 1) * self.block, t + 1)) if self.seen[j]]

    # ---- choosing

    def index(self, p, w):
        taps = self.taps
        self.heads(p + "index.", w, "self_attn.index_", ("q", "k"))
        scores = self.block_scores(taps[p + "index.q_rope"], taps[p + "index.k_rope"])
        self.equal(p + "index.block_scores", scores)
        blocks, margins = self.choose(taps[p + "index.block_scores"])
        self.same(p + "index.blocks", blocks)
        self.margins[p + "index.blocks"] = margins
        return blocks

    def block_scores(self, q, k):
        T, G, X = q.shape
        scores = np.full((T, G, -(-T // self.block)), -np.inf)
        factor = 1 / np.sqrt(X) if self.semantics.get("index_scale") == "rsqrt" else 1.0
        for t in range(T):
            for b in range(t // self.block + 1):
                keys = self.visible(t, b)
                if not keys:
                    continue
                dots = factor * (q[t] @ k[keys].T)
                top = dots.max(axis=1)
                if self.semantics.get("pool") == "lse":
                    top = top + np.log(np.exp(dots - top[:, None]).sum(axis=1))
                scores[t, :, b] = top
        return scores

    def forced(self, t):
        """Blocks that row t keeps whatever their score, the one that matters most first."""
        own, local = t // self.block, self.semantics.get("local_blocks", 1)
        if self.semantics.get("local_rule") == "own":
            local = min(local, 1)
        blocks = [own - back for back in range(local) if own >= back]
        return blocks + [b for b in range(self.semantics.get("init_blocks", 0)) if b <= own and b not in blocks]

    def choose(self, scores):
        """([T,G,N] ascending then -1, [T,G] margins between the last chosen by score and the best rejected)."""
        T, G, _ = scores.shape
        blocks, margins = np.full((T, G, self.kept), -1, np.int32), np.full((T, G), np.inf)
        for t in range(T):
            forced = self.forced(t)
            for g in range(G):
                score = scores[t].max(axis=0) if self.semantics.get("selection") == "shared" else scores[t, g]
                free = [b for b in range(t // self.block + 1) if b not in forced and score[b] > -np.inf]
                free.sort(key=lambda b: (-score[b], b))
                chosen = (forced + free)[:self.kept]
                blocks[t, g, :len(chosen)] = sorted(chosen)
                taken = len(chosen) - len(forced)
                if 0 < taken < len(free):
                    margins[t, g] = score[free[taken - 1]] - score[free[taken]]
        return blocks, margins

    # ---- attending

    def keys_attended(self, blocks, heads, groups):
        """[T,Q,T] bool; blocks None: a full layer."""
        T = len(self.seen)
        keep = np.zeros((T, heads, T), bool)
        for t in range(T):
            for h in range(heads):
                lists = range(t // self.block + 1)
                if blocks is not None:
                    group = h // (heads // groups)
                    lists = blocks[t] if self.semantics.get("selection") == "union" else blocks[t, group]
                    lists = set(lists.ravel().tolist()) - {-1}
                for b in lists:
                    keep[t, h, self.visible(t, b)] = True
        return keep

    def attend(self, number, p, blocks):
        """As in formulas; a row and head without a key gives 0 and -inf. Public weights judge the others."""
        taps = self.taps
        q, k, v = taps[p + "q_rope"], taps[p + "k_rope"], taps[p + "v_proj"]
        T, Q, D = q.shape
        keep = self.keys_attended(blocks, Q, k.shape[1])
        out, lse, public = np.zeros_like(q), np.full((T, Q), -np.inf), np.full((T, Q), -np.inf)
        weights = self.attention_weights[number].numpy()
        for t in range(T):
            for h in range(Q):
                keys, g = np.flatnonzero(keep[t, h]), h // (Q // k.shape[1])
                if len(keys) == 0:
                    continue
                z = k[keys, g] @ q[t, h] / np.sqrt(D)
                total = np.exp(z - z.max()).sum()
                lse[t, h] = z.max() + np.log(total)
                out[t, h] = np.exp(z - z.max()) @ v[keys, g] / total
                best = z.argmax()
                public[t, h] = z[best] - np.log(weights[h, t, keys[best]])
        self.equal(p + "attn", out)
        self.equal(p + "attn_lse", lse)
        self.equal(p + "attn_lse", public)
        self.counts[p + "rows without a key"] = int((~keep.any(axis=2)).all(axis=1).sum())

    # ---- the activation

    def activate(self, gate, up):
        if self.semantics.get("gate_clamp") == "both":
            gate = np.maximum(gate, -self.text["swiglu_limit"])
        return super().activate(gate, up)

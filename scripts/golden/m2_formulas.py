"""The M2 family once more in NumPy fp64, as formulas.py: full attention in every layer, plain norms, one norm over all
heads of q and of k, SiLU without a clamp, no shared expert, no factor; noise on the input of the experts; modules."""

import numpy as np

import formulas


def norm(x, w, eps):
    """The weight as stored: 1 is not added."""
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * w


def mix(z):
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2 ** 64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2 ** 64
    return z ^ z >> 31


def noise(eps, seed, layer, rows, width):
    """[rows,width]: the factors of one layer at places 0 .. rows-1, by SPEC.md 3.6 on Python's integers."""
    key = 14695981039346656037
    for letter in b"layers.%d.mlp_norm" % layer:
        key = (key ^ letter) * 1099511628211 % 2 ** 64
    key = mix((key + seed * 0x9E3779B97F4A7C15) % 2 ** 64)
    words = [mix((key + (i + 1) * 0x9E3779B97F4A7C15) % 2 ** 64) >> 32 for i in range(rows * width)]
    return np.array([1 + eps * (2 * (word / 4294967296) - 1) for word in words]).reshape(rows, width)


class Check(formulas.Check):
    """positions [T] turn q and k; jitter: (eps, seed), or None."""

    def __init__(self, config, weights, taps, attention_weights, input_ids, positions, jitter=None):
        super().__init__({"text_config": config}, weights, taps, attention_weights, input_ids)
        self.positions, self.jitter = positions, jitter

    def run(self):
        taps, weights = self.taps, self.weights
        self.equal("embed", weights["model.embed_tokens.weight"][self.ids])
        self.equal("fused", taps["embed"])
        x = taps["fused"]
        for number in range(self.text["num_hidden_layers"]):
            self.layer(number, f"layers.{number}.", f"model.layers.{number}.", x)
            x = taps[f"layers.{number}.out"]
        self.equal("final_norm", self.norm(x, weights["model.norm.weight"]))
        self.equal("logits", taps["final_norm"] @ weights["lm_head.weight"].T)

    def norm(self, x, w):
        return norm(x, w, self.text["rms_norm_eps"])

    def layer(self, number, p, source, x):
        taps = self.taps
        w = {name.removeprefix(source).removesuffix(".weight"): value
             for name, value in self.weights.items() if name.startswith(source)}
        self.equal(p + "attn_norm", self.norm(x, w["input_layernorm"]))
        for name in ("q", "k", "v"):
            self.project(p, name, w)
        self.attend(number, p)
        self.equal(p + "attn_out", taps[p + "attn"].reshape(len(x), -1) @ w["self_attn.o_proj"].T)
        self.equal(p + "mid", x + taps[p + "attn_out"])
        self.equal(p + "mlp_norm", self.norm(taps[p + "mid"], w["post_attention_layernorm"]))
        self.moe(number, p, w)
        self.equal(p + "out", taps[p + "mid"] + taps[p + "mlp"])

    def project(self, p, name, w):
        """Projection; for q and k one norm over all heads together, then the rotation of each head."""
        taps, flat = self.taps, self.taps[p + "attn_norm"] @ w[f"self_attn.{name}_proj"].T
        shape = taps[f"{p}{name}_proj"].shape
        self.equal(f"{p}{name}_proj", flat.reshape(shape))
        if name != "v":
            flat = taps[f"{p}{name}_proj"].reshape(len(flat), -1)
            self.equal(f"{p}{name}_norm", self.norm(flat, w[f"self_attn.{name}_norm"]).reshape(shape))
            turned = formulas.rope(taps[f"{p}{name}_norm"], self.positions[:len(flat)], self.text["rope_theta"],
                                   self.text["rotary_dim"])
            self.equal(f"{p}{name}_rope", turned)

    def attend(self, number, p):
        q, k, v = (self.taps[p + name] for name in ("q_rope", "k_rope", "v_proj"))
        out, lse = formulas.attention(q, k, v, formulas.keys_attended(len(q), q.shape[1], k.shape[1], None, None))
        self.equal(p + "attn", out)
        self.equal(p + "attn_lse", lse)
        weight = self.attention_weights[number].numpy()                      # [Q,T,T]: z - ln(weight) at the largest
        rows = np.arange(len(q))
        for h in range(q.shape[1]):
            best = weight[h].argmax(axis=-1)
            z = (q[:, h] * k[best, h // (q.shape[1] // k.shape[1])]).sum(axis=-1) / np.sqrt(q.shape[2])
            lse[:, h] = z - np.log(weight[h, rows, best])
        self.equal(p + "attn_lse", lse)

    def moe(self, number, p, w):
        taps, m, b = self.taps, p + "moe.", "block_sparse_moe."
        x = taps[p + "mlp_norm"]
        if self.jitter:
            x = x * noise(*self.jitter, number, *x.shape)
        self.equal(m + "router_logits", x @ w[b + "gate"].T)
        self.equal(m + "router_scores", formulas.sigmoid(taps[m + "router_logits"]))
        bias = self.biases[m + "experts"] = w[b + "e_score_correction_bias"]
        self.equal(m + "choice", taps[m + "router_scores"] + bias)
        ids, margins, gaps = formulas.choose_experts(taps[m + "choice"], self.text["num_experts_per_tok"])
        self.same(m + "experts", ids)
        self.margins[m + "experts"], self.margins[m + "experts.order"] = margins, gaps
        chosen = np.take_along_axis(taps[m + "router_scores"], ids, axis=1)
        self.equal(m + "weights", chosen / chosen.sum(axis=1, keepdims=True))
        out = np.zeros_like(taps[m + "expert_out"])
        for expert in range(self.text["num_local_experts"]):
            rows, slots = np.nonzero(ids == expert)
            gate, up = (x[rows] @ w[f"{b}experts.{expert}.{name}"].T for name in ("w1", "w3"))
            out[rows, slots] = gate * formulas.sigmoid(gate) * up @ w[f"{b}experts.{expert}.w2"].T
            self.clamps(p, gate, up)
        self.equal(m + "expert_out", out)
        self.equal(m + "routed", np.einsum("tk,tkh->th", taps[m + "weights"], taps[m + "expert_out"]))
        self.equal(p + "mlp", taps[m + "routed"])
        self.counts[p + "experts used"] = int(len(np.unique(ids)))


class MtpCheck(Check):
    """The modules alone; `taps` holds embed and final_norm of the main model too."""

    def __init__(self, config, weights, taps, attention_weights, input_ids, positions, reading):
        super().__init__(config, weights, taps, attention_weights, input_ids, positions)
        self.additive = reading.get("mtp_join") == "additive"

    def run(self):
        taps, H = self.taps, self.text["hidden_size"]
        hidden = taps["final_norm"]
        for module in range(self.text["num_mtp_modules"]):
            p, source = f"mtp.{module}.", f"model.mtp.layers.{module}."
            enorm, hnorm, final, join = (self.weights[f"{source}{name}.weight"]
                                         for name in ("enorm", "hnorm", "final_layernorm", "eh_proj"))
            e, h = taps["embed"][module + 1:], hidden[:len(self.ids) - module - 1]
            if self.additive:
                self.equal(p + "eh_proj", e + h @ join[:, H:].T)
            else:
                self.equal(p + "embed_norm", self.norm(e, enorm))
                self.equal(p + "hidden_norm", self.norm(h, hnorm))
                self.equal(p + "eh_proj", taps[p + "embed_norm"] @ join[:, :H].T
                           + taps[p + "hidden_norm"] @ join[:, H:].T)
            self.layer(p, p + "layer.", source + "transformer_layer.", taps[p + "eh_proj"])
            hidden = taps[p + "layer.out"]
            self.equal(p + "final_norm", self.norm(hidden, final))
            self.equal(p + "logits", taps[p + "final_norm"] @ self.weights["lm_head.weight"].T)

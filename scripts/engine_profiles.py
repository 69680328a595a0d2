"""The engines of the profiles mlx_bf16, llama_cpp_f32, llama_cpp, nvfp4, mxfp4 and w4a16, and of the words act_q8_0,
act_q8_k, act_nvfp4 and act_mxfp4, put on the public PyTorch model by their roundings. Nothing here is shared with
m3ref. Each engine runs without a mistake, with mistakes that every engine may have, with a mistake in its own roundings,
and coarser than its profile allows. m3ref blame and compare judge every dump. A coarser engine may pass compare, which
does not read the weights; so may any engine whose products all read codes of 4 bits:

    python scripts/engine_profiles.py [--program build/m3ref] [--model DIR --case FILE] [NAME ..]

Exit status 1 if an engine without a mistake does not pass blame, or fails compare, or if any other passes blame.
"""

import os
import sys

import torch

import engine_roundings
from engine_roundings import modeling

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
COMPARE_IS_LAX = ("act_nvfp4", "act_mxfp4")     # without the weights, codes of 4 bits everywhere hide much
BF16_WORDS = ("act_q8_0", "act_q8_k", "act_nvfp4", "act_mxfp4")
MISTAKES = {
    "mlx_bf16": ("none", "no_plus_one", "half_rope", "alpha_1.75", "variance_h_minus_1", "coarser"),
    "llama_cpp_f32": ("none", "no_plus_one", "alpha_1.7", "half_rope", "key_of_the_token_before", "coarser"),
    "llama_cpp": ("none", "no_plus_one", "half_rope", "scale_of_the_block_before", "coarser"),
    "nvfp4": ("none", "no_plus_one", "half_rope", "coarser"),
    "mxfp4": ("none", "no_plus_one", "half_rope", "coarser"),
    "w4a16": ("none", "no_plus_one", "half_rope", "coarser"),
    "act_q8_0": ("none", "scale_of_the_block_before", "coarser"),
    "act_q8_k": ("none", "scale_of_the_block_before", "coarser"),
    "act_nvfp4": ("none", "scale_of_the_block_before", "coarser"),
    "act_mxfp4": ("none", "scale_of_the_block_before", "coarser"),
}
PROFILES = {name: "bf16+" + name for name in BF16_WORDS}


# ---- codes that share scales

def nearest_e2m1(x, coarse):
    table = E2M1[[0, 6]] if coarse else E2M1
    low = table[(torch.searchsorted(table, x.abs().clamp(max=6).contiguous(), right=True) - 1).clamp(min=0)]
    above = torch.searchsorted(table, x.abs().clamp(max=6).contiguous(), right=True).clamp(max=len(table) - 1)
    high = table[above]
    near = torch.where(x.abs() - low <= high - x.abs(), low, high)
    return torch.copysign(torch.minimum(near, table[-1]), x)


def coded(x, kind, mistake):
    """x as a product reads it whose inputs are codes of `kind`."""
    size = {"q8_0": 32, "q8_k": 256, "nvfp4": 16, "mxfp4": 32}[kind]
    flat = x.reshape(-1, x.shape[-1]).float()
    groups = torch.nn.functional.pad(flat, (0, -flat.shape[-1] % size)).unflatten(-1, (-1, size))
    most = groups.abs().amax(-1, keepdim=True)
    coarse = mistake == "coarser"
    if kind.startswith("q8"):
        divides = most / (7 if coarse else 127)
        multiplies = divides.half().float() if kind == "q8_0" else divides
    elif kind == "nvfp4":
        one = flat.abs().amax() / (6 * 448)
        divides = multiplies = (most / 6 / one).clamp(max=448).to(torch.float8_e4m3fn).float() * one
    else:
        divides = multiplies = torch.exp2(torch.floor(torch.log2(most.clamp(min=1e-38))) - 2)
    if mistake == "scale_of_the_block_before":
        multiplies = multiplies.flatten().roll(1).reshape(multiplies.shape)
    scaled = groups / torch.where(divides > 0, divides, 1.0)
    codes = scaled.round().clamp(-127, 127) if kind.startswith("q8") else nearest_e2m1(scaled, coarse)
    values = (codes * multiplies).flatten(-2)[..., :flat.shape[-1]]
    return values.to(x.dtype).reshape(x.shape)


def read_codes(model, linears, experts, mistake):
    """Inputs of the text layers' linear operators, and of experts, as codes; a kind of engine_roundings or of `coded`;
    None: as they are. The mistake is made in the experts' codes if they have some, otherwise in the others'."""
    def read(x, kind, made):
        if kind is None:
            return x
        return engine_roundings.quantised(x, kind, made) if kind.startswith("act_") else coded(x, kind, made)

    for name, module in model.model.language_model.named_modules():
        if isinstance(module, torch.nn.Linear) and "layers." in name and linears:
            forward = module.forward
            module.forward = lambda x, forward=forward: forward(read(x, linears, mistake if linears == experts else None))

    class Functional:
        def __init__(self, under):
            self.under = under

        def __getattr__(self, name):
            return getattr(self.under, name)

        def linear(self, x, weight, bias=None):
            return self.under.linear(read(x, experts, mistake) if self.under.dump.in_expert() else x, weight, bias)
    return Functional


# ---- parts of engines

def angles_by_ratio():
    """ggml's: the position, times a rounded ratio for every further frequency."""
    def forward(self, x, position_ids):
        half = self.inv_freq.shape[0]
        ratio = torch.tensor(float(self.config.rope_parameters["rope_theta"])).pow(torch.tensor(-1.0 / half))
        angle, columns = position_ids.float(), []
        for _ in range(half):
            columns.append(angle)
            angle = angle * ratio
        angles = torch.stack(columns, -1)
        both = torch.cat((angles, angles), -1)
        return both.cos().to(x.dtype), both.sin().to(x.dtype)
    modeling.MiniMaxM3VLRotaryEmbedding.forward = forward


def attend_in_f16(mistake):
    """ggml's flash attention for few rows: F16 operands, and a running sum in F16. Coarser: BF16 operands."""
    half = torch.bfloat16 if mistake == "coarser" else torch.float16

    def attend(module, query, key, value, mask, scaling, **keywords):
        if mistake == "key_of_the_token_before":
            key = key.roll(1, 2)
        key = modeling.repeat_kv(key, module.num_key_value_groups).to(half)
        value = modeling.repeat_kv(value, module.num_key_value_groups).to(half)
        logits = query.to(half).float() @ key.float().transpose(2, 3) * scaling
        logits = logits + mask if mask is not None else logits
        top = torch.full(logits.shape[:-1], -torch.inf)
        total, sum_v = torch.zeros_like(top), torch.zeros(*top.shape, value.shape[-1], dtype=half)
        for j in range(logits.shape[-1]):
            z = logits[..., j]
            seen = z > -1e30
            new = torch.where(seen, torch.maximum(top, z), top)
            shrink = torch.where(new > top, torch.exp(top - new), 1.0).nan_to_num(0.0)
            weight = torch.where(seen, torch.exp(z - new), 0.0).nan_to_num(0.0)
            sum_v = (sum_v.float() * shrink[..., None]).to(half)
            sum_v = (sum_v.float() + weight[..., None] * value[:, :, j, None].float()).to(half)
            total, top = total * shrink + weight, new
        return (sum_v.float() / total[..., None]).transpose(1, 2).contiguous(), None
    modeling.eager_attention_forward = attend


def norms_of_mlx(mistake):
    def forward(self, x):
        wide, H = x.float(), x.shape[-1]
        mean = wide.pow(2).sum(-1, keepdim=True) / (H - 1 if mistake == "variance_h_minus_1" else H)
        unit = (wide * torch.rsqrt(mean + self.eps)).to(x.dtype)
        return unit * (1.0 + self.weight.to(x.dtype))
    modeling.MiniMaxM3VLRMSNorm.forward = forward


def weights_in_bf16():
    route = modeling.MiniMaxM3VLTopKRouter.forward

    def forward(self, hidden):
        logits, weights, ids = route(self, hidden)
        return logits, weights.bfloat16(), ids
    modeling.MiniMaxM3VLTopKRouter.forward = forward


def turn_half():
    """The mistake that only the first half of the rotated channels is turned."""
    turn = modeling.apply_rotary_pos_emb

    def forward(q, k, cos, sin, *rest, **keywords):
        half = cos.shape[-1] // 2
        keep = torch.arange(cos.shape[-1]) % half >= half // 2
        cos, sin = torch.where(keep, torch.ones_like(cos), cos), torch.where(keep, torch.zeros_like(sin), sin)
        return turn(q, k, cos, sin, *rest, **keywords)
    modeling.apply_rotary_pos_emb = forward


def spoil_weights(model):
    """Coarser than w4a16: weights with 4 significant bits."""
    for name, parameter in model.model.language_model.named_parameters():
        if "layers." in name and parameter.dim() > 1 and "mlp.gate.weight" not in name:
            mantissa, exponent = torch.frexp(parameter.data.float())
            parameter.data = torch.ldexp((mantissa * 16).round() / 16, exponent).to(parameter.dtype)


def change_of(name, mistake):
    import dump_transformers

    def change(model):
        if mistake == "no_plus_one":
            dump_transformers.drop_plus_one(model)
        if mistake.startswith("alpha"):
            dump_transformers.set_alpha(model, 1.75 if "1.75" in mistake else 1.7)
        own = mistake if mistake in ("scale_of_the_block_before", "coarser") else None
        kind = name.removeprefix("act_")
        if name in BF16_WORDS:
            return read_codes(model, kind, kind, own)
        if name == "llama_cpp":
            return read_codes(model, "q8_0", "q8_0", own)
        if name in ("nvfp4", "mxfp4"):          # coarser: every product reads codes of 4 bits
            others = name if own == "coarser" else {"nvfp4": "act_mx", "mxfp4": None}[name]
            return read_codes(model, others, name, None)
        if name == "w4a16" and mistake == "coarser":
            spoil_weights(model)
        if name == "mlx_bf16" and mistake == "coarser":
            return read_codes(model, "act_token", "act_token", None)
        if name == "mlx_bf16" and not mistake.startswith("alpha"):
            dump_transformers.set_alpha(model, 1.703125)
        return None
    return change


def dump(name, mistake, model, case, out):
    """Runs one engine in this process, which it changes for good."""
    import dump_transformers
    if mistake == "half_rope":
        turn_half()
    if name.startswith("llama_cpp"):
        angles_by_ratio()
        attend_in_f16(mistake if name == "llama_cpp_f32" else None)
    if name == "mlx_bf16":
        norms_of_mlx(mistake)
        weights_in_bf16()
    dtype = "f32" if name.startswith("llama_cpp") else "bf16"
    dump_transformers.dump(model, case, out, dtype, "eager", "eager", f", {name}", (), change_of(name, mistake))


if __name__ == "__main__":
    engine_roundings.main(sys.modules[__name__], os.path.abspath(__file__))

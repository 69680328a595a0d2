"""Roundings of engines that the public model does not have, put on the public model by name:

    fp16                    everything is stored in float16
    tf32                    operands of matrix products are rounded to 11 significant bits
    act_token .. act_mx     inputs of the text layers' linear operators in E4M3: a scale for each row, for the tensor,
                            for 128 values, for 32 (a power of two, rounded down)
    router_bf16             logits, scores and weights of the router in bf16
    expert_weight_first     the routing weight multiplies the activation before the second product
    norm_weight_bf16        1 + w is formed in bf16
    split_kv                attention in parts of the keys, whose outputs are rounded before they are merged

and mistakes in them: MISTAKES. As a program it runs each on a model and case, judges every dump with m3ref blame and
compare, and says what fails and should not, or passes and should not:

    python scripts/engine_roundings.py [--program build/m3ref] [--model DIR --case FILE] [NAME ..]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import torch
from torch.overrides import TorchFunctionMode
from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl as modeling

E4M3 = torch.float8_e4m3fn
MISTAKES = {
    "fp16": ("none", "no_plus_one", "variance_h_minus_1"),
    "tf32": ("none", "bf16_operands", "no_plus_one"),
    "act_token": ("none", "scale_of_the_row_before", "no_plus_one"),
    "act_tensor": ("none", "half_scale", "no_plus_one"),
    "act_block": ("none", "scale_of_the_row_before", "no_plus_one"),
    "act_mx": ("none", "scale_of_the_row_before", "no_plus_one"),
    "router_bf16": ("none", "softmax", "weights_not_normalised"),
    "expert_weight_first": ("none", "before_the_activation", "weights_squared"),
    "norm_weight_bf16": ("none", "no_plus_one", "variance_h_minus_1"),
    "split_kv": ("none", "parts_averaged", "last_part_dropped"),
}
PROFILES = {"fp16": "fp16", "tf32": "tf32"} | {name: "bf16+" + name for name in MISTAKES if name not in ("fp16", "tf32")}


# ---- E4M3

def scales(x, kind, mistake):
    """The scale of each number of x [rows, columns]."""
    wide = x.float().abs()
    if kind == "act_tensor":
        scale = wide.amax().expand_as(wide) / 448 * (0.5 if mistake == "half_scale" else 1)
    elif kind == "act_token":
        scale = wide.amax(-1, keepdim=True).expand_as(wide) / 448
    else:
        size = 128 if kind == "act_block" else 32
        padded = torch.nn.functional.pad(wide, (0, -wide.shape[-1] % size))
        most = padded.unflatten(-1, (-1, size)).amax(-1)
        most = most / 448 if kind == "act_block" else torch.exp2(torch.floor(torch.log2(most.clamp(min=1e-38))) - 8)
        scale = most.repeat_interleave(size, -1)[..., :wide.shape[-1]]
    scale = torch.where(scale > 0, scale, 1.0)
    return scale.roll(1, 0) if mistake == "scale_of_the_row_before" else scale


def quantised(x, kind, mistake):
    flat = x.reshape(-1, x.shape[-1])
    scale = scales(flat, kind, None)
    codes = (flat.float() / scale).clamp(-448, 448).to(E4M3).float()
    return (codes * (scales(flat, kind, mistake) if mistake else scale)).to(x.dtype).reshape(x.shape)


class Quantising:
    """torch.nn.functional with the inputs of experts quantised."""

    def __init__(self, under, kind, mistake):
        self.under, self.kind, self.mistake = under, kind, mistake

    def __getattr__(self, name):
        return getattr(self.under, name)

    def linear(self, x, weight, bias=None):
        is_expert = self.under.dump.in_expert()
        return self.under.linear(quantised(x, self.kind, self.mistake) if is_expert else x, weight, bias)


def quantise(model, kind, mistake):
    for name, module in model.model.language_model.named_modules():
        if isinstance(module, torch.nn.Linear) and "layers." in name:
            forward = module.forward
            module.forward = lambda x, forward=forward: forward(quantised(x, kind, mistake))
    return lambda functional: Quantising(functional, kind, mistake)


# ---- tf32

def tf32(x, bits=11):
    if x.dtype != torch.float32 or bits == 24:
        return x
    drop = 24 - bits
    number = x.contiguous().view(torch.int32)
    even = (number >> drop) & 1
    return ((number + (1 << (drop - 1)) - 1 + even) & -(1 << drop)).view(torch.float32)


class Tf32(TorchFunctionMode):
    PRODUCTS = {torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, torch.nn.functional.linear,
                torch.nn.functional.conv3d, torch.conv3d}

    def __init__(self, bits):
        super().__init__()
        self.bits = bits

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        if function in self.PRODUCTS and arguments[0].shape[-1] > 1:      # not the angles of RoPE
            arguments = (*(tf32(x, self.bits) for x in arguments[:2]), *arguments[2:])
        return function(*arguments, **(keywords or {}))


# ---- router, experts, norms

def route_in_bf16(model, mistake):
    def forward(self, hidden):
        hidden = hidden.reshape(-1, self.hidden_dim)
        logits = modeling.F.linear(hidden.bfloat16(), self.weight.bfloat16())
        scores = modeling.F.sigmoid(logits) if mistake != "softmax" else logits.float().softmax(-1).bfloat16()
        _, ids = torch.topk(scores + self.e_score_correction_bias.bfloat16(), self.top_k, dim=-1, sorted=False)
        weights = scores.gather(1, ids)
        if mistake != "weights_not_normalised":
            weights = weights / weights.sum(-1, keepdim=True)
        return logits, weights, ids
    modeling.MiniMaxM3VLTopKRouter.forward = forward


def weigh_first(model, mistake):
    def forward(self, hidden, ids, weights):
        final = torch.zeros_like(hidden)
        mask = modeling.F.one_hot(ids, num_classes=self.num_experts).permute(2, 1, 0)
        for expert in range(self.num_experts):
            slot, token = torch.where(mask[expert])
            if len(token) == 0:
                continue
            weight = weights[token, slot, None].to(hidden.dtype)
            if mistake == "weights_squared":
                weight = weight * weight
            gate_up = modeling.F.linear(hidden[token], self.gate_up_proj[expert])
            if mistake == "before_the_activation":
                act = self._apply_gate(gate_up * weight)
            else:
                act = self._apply_gate(gate_up) * weight
            final.index_add_(0, token, modeling.F.linear(act, self.down_proj[expert]))
        return final
    modeling.MiniMaxM3VLExperts.forward = forward


def norm_weights_bf16(model, mistake):
    def forward(self, x):
        wide, H = x.float(), x.shape[-1]
        mean = wide.pow(2).sum(-1, keepdim=True) / (H - 1 if mistake == "variance_h_minus_1" else H)
        scale = self.weight if mistake == "no_plus_one" else 1.0 + self.weight.bfloat16()
        return (wide * torch.rsqrt(mean + self.eps) * scale.float()).to(x.dtype)
    modeling.MiniMaxM3VLRMSNorm.forward = forward


def attend_in_parts(model, mistake, parts=4):
    def attend(module, query, key, value, mask, scaling, **keywords):
        key = modeling.repeat_kv(key, module.num_key_value_groups).float()
        value = modeling.repeat_kv(value, module.num_key_value_groups).float()
        logits = query.float() @ key.transpose(2, 3) * scaling
        if mask is not None:
            logits = logits + mask
        outputs, sizes = [], []
        for z, v in zip(logits.chunk(parts, -1), value.chunk(parts, 2), strict=True):
            size = torch.logsumexp(z, -1)
            p = torch.softmax(z, -1).nan_to_num()
            outputs.append((p @ v).to(query.dtype).float())
            sizes.append(size)
        weights = torch.softmax(torch.stack(sizes), 0)
        if mistake == "parts_averaged":
            weights = torch.full_like(weights, 1 / len(sizes))
        if mistake == "last_part_dropped":
            outputs[-1] = torch.zeros_like(outputs[-1])
        merged = sum(w[..., None] * o for w, o in zip(weights, outputs, strict=True))
        return merged.to(query.dtype).transpose(1, 2).contiguous(), None
    modeling.eager_attention_forward = attend


# ---- mistakes of every engine

def change_variance():
    def forward(self, x):
        wide, H = x.float(), x.shape[-1]
        mean = wide.pow(2).sum(-1, keepdim=True) / (H - 1)
        return (wide * torch.rsqrt(mean + self.eps) * (1.0 + self.weight.float())).to(x.dtype)
    modeling.MiniMaxM3VLRMSNorm.forward = forward


def dump(name, mistake, model, case, out):
    """Runs one engine in this process, which it changes for good."""
    import dump_transformers
    mistake = None if mistake == "none" else mistake
    dtype = "f16" if name == "fp16" else "f32" if name == "tf32" else "bf16"
    if name != "norm_weight_bf16" and mistake == "variance_h_minus_1":
        change_variance()

    def change(loaded):
        if name != "norm_weight_bf16" and mistake == "no_plus_one":
            dump_transformers.drop_plus_one(loaded)
        if name.startswith("act_"):
            return quantise(loaded, name, mistake if mistake != "no_plus_one" else None)
        changes = {"router_bf16": route_in_bf16, "expert_weight_first": weigh_first,
                   "norm_weight_bf16": norm_weights_bf16, "split_kv": attend_in_parts}
        return changes[name](loaded, mistake) if name in changes else None

    with Tf32(8 if mistake == "bf16_operands" else 11 if name == "tf32" else 24):
        dump_transformers.dump(model, case, out, dtype, "eager", "eager", f", {name}", (), change)


# ---- verdicts

def judge(program, arguments):
    done = subprocess.run([program, *arguments, "--json"], capture_output=True, text=True)
    summary = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
    return summary.get("verdict", f"status {done.returncode}"), summary, done


def check(engines, program, name, mistake, folder, arguments, truth):
    out = os.path.join(folder, f"{name}.{mistake}.safetensors")
    subprocess.run([sys.executable, program, "--dump", out, "--mistake", mistake, "--model",
                    arguments.model, "--case", arguments.case, name], check=True)
    word = engines.PROFILES.get(name, name)
    plain = "fp32" if name in ("tf32", "llama_cpp", "llama_cpp_f32") else "bf16"
    verdicts = []
    for profile in (word, plain):
        own = ["--map", "transformers", "--profile", profile]
        for command in (["blame", arguments.model, out, "--case", arguments.case, *own], ["compare", truth, out, *own]):
            verdict, summary, done = judge(arguments.program, command)
            verdicts.append(verdict)
            if arguments.show and verdict != "pass":
                print("\n".join(done.stdout.splitlines()[-1:]), file=sys.stderr)
    expected = ("pass", "partial") if mistake == "none" else ("fail",)
    caught = ("fail", "suspect") if mistake.startswith("alpha") else expected[:1]     # a parameter a little off is suspect
    lax = mistake == "coarser" or name in getattr(engines, "COMPARE_IS_LAX", ())
    compared = (*expected, *caught, *(("pass", "partial", "suspect") if lax else ()))
    right = verdicts[0] in caught and verdicts[1] in compared           # without bounds for codes, compare is partial
    print(f"{'' if right else 'WRONG  '}{name:20} {mistake:24} {word}: blame {verdicts[0]}, compare {verdicts[1]}; "
          f"{plain}: blame {verdicts[2]}, compare {verdicts[3]}", flush=True)
    return right


def main(engines, program):
    """engines: a module with MISTAKES, PROFILES and dump; program: its file."""
    parser = argparse.ArgumentParser(description=engines.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--program", default="build/m3ref")
    parser.add_argument("--model", default="golden/tiny/model")
    parser.add_argument("--case", default="tests/candidates/case.safetensors")
    parser.add_argument("--mistake", default="")
    parser.add_argument("--dump", help="only run one engine, and write its dump here")
    parser.add_argument("--show", action="store_true", help="print the summary of what does not pass")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.dump:
        engines.dump(arguments.names[0], arguments.mistake, arguments.model, arguments.case, arguments.dump)
        return
    wrong = count = 0
    with tempfile.TemporaryDirectory() as folder:
        truth = os.path.join(folder, "truth.safetensors")
        subprocess.run([arguments.program, "run", arguments.model, "--case", arguments.case, "--precision", "f64",
                        "--bounds", "--dump", truth], check=True, stdout=subprocess.DEVNULL)
        for name in arguments.names or engines.MISTAKES:
            for mistake in [arguments.mistake] if arguments.mistake else engines.MISTAKES[name]:
                wrong += not check(engines, program, name, mistake, folder, arguments, truth)
                count += 1
    print(f"{count - wrong} of {count} as expected")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main(sys.modules[__name__], os.path.abspath(__file__))

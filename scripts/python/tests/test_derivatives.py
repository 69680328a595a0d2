"""Derivatives: autograd of PyTorch, in float and in bfloat16, passes; its usual mistakes are found and named."""
import os
import pathlib
import re
import subprocess
import sys

import pytest

import m3ref

torch = pytest.importorskip("torch", reason="PyTorch differentiates")
F = torch.nn.functional
ROOT = pathlib.Path(__file__).resolve().parents[3]


def embed(x):
    return [F.embedding(x["ids"].long(), x["w"])], ["w"]


def rms(x, eps, offset=0.0):
    wide = x["x"].float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return [(wide * (offset + x["w"].float())).to(x["x"].dtype)], ["x", "w"]


def linear(x, bias=False):
    if bias:
        x["bias"] = torch.zeros(len(x["w"]), dtype=x["x"].dtype, requires_grad=True)
    return [F.linear(x["x"], x["w"], x.get("bias"))], ["x", "w"] + ["bias"] * bias


def rope(x):
    x["x"] = torch.ones_like(x["dy"], requires_grad=True)
    half = x["cos"].shape[-1]
    cos, sin = x["cos"][:, None].to(x["dy"].dtype), x["sin"][:, None].to(x["dy"].dtype)
    a, b, rest = x["x"].split([half, half, x["x"].shape[-1] - 2 * half], -1)
    return [torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)], ["x"]


def attention(x, sees):
    """sees [G,T,S]: which keys a row sees. Weights are normalised in float, as public code does."""
    q, k, v = x["q"], x["k"], x["v"]
    repeat = q.shape[1] // k.shape[1]
    wide_k, wide_v = (t.repeat_interleave(repeat, 1).transpose(0, 1) for t in (k, v))
    z = (q.transpose(0, 1) @ wide_k.transpose(1, 2)) * q.shape[-1] ** -0.5
    z = z.float().masked_fill(~sees.repeat_interleave(repeat, 0), -torch.inf)
    empty = ~sees.any(-1).repeat_interleave(repeat, 0)[..., None]
    p = torch.where(empty, 0, torch.softmax(z.masked_fill(empty, 0), -1))
    lse = torch.where(empty, 0, torch.logsumexp(z.masked_fill(empty, 0), -1, keepdim=True))[..., 0]
    return [(p.to(q.dtype) @ wide_v).transpose(0, 1), lse.transpose(0, 1)], ["q", "k", "v"]


def causal(x, block=None, selection="group", all_keys=False):
    T, S, G = len(x["q"]), len(x["k"]), x["k"].shape[1]
    sees = torch.ones(T, S, dtype=bool).tril(S - T).expand(G, T, S)
    if "seen" in x:
        sees = sees & (x["seen"] != 0)
    if block and not all_keys:
        lists = x["blocks"].long().transpose(0, 1)
        lists = lists.transpose(0, 1).flatten(1).expand(G, T, -1) if selection == "union" else lists
        sees = sees & (lists[..., None] == torch.arange(S) // block).any(2)
    return attention(x, sees)


def segments(x):
    segment = torch.bucketize(torch.arange(len(x["q"])), x["ends"], right=True)
    return attention(x, (segment[:, None] == segment).expand(x["q"].shape[1], -1, -1))


def gated(x, alpha=None, limit=None, gate_clamp="upper"):
    gate, up = x["gate"], x["up"]
    if alpha is None:
        return [up * F.silu(gate)], ["gate", "up"]
    gate = gate.clamp(-limit if gate_clamp == "both" else None, limit)
    return [(up.clamp(-limit, limit) + 1) * (gate * torch.sigmoid(gate * alpha))], ["gate", "up"]


def route(x, K):
    chosen = x["s"].gather(1, x["ids"].long())
    return [chosen / chosen.sum(1, keepdim=True)], ["s"]


def experts(x, factor, activation, alpha, limit, gate_clamp):
    y = torch.zeros_like(x["x"], dtype=torch.float32)
    for e in range(len(x["w1"])):
        rows, slots = torch.where(x["ids"] == e)
        gate, up = F.linear(x["x"][rows], x["w1"][e]), F.linear(x["x"][rows], x["w3"][e])
        oai = (alpha, limit, gate_clamp) if activation == "swiglu_oai" else ()
        out = F.linear(gated({"gate": gate, "up": up}, *oai)[0][0], x["w2"][e])
        y = y.index_add(0, rows, out * x["p"][rows, slots, None].float())
    return [(y * factor).to(x["x"].dtype)], ["x", "p", "w1", "w3", "w2"]


def layer_norm(x, eps):
    x["b"] = torch.zeros_like(x["w"], requires_grad=True)
    return [F.layer_norm(x["x"], x["w"].shape, x["w"], x["b"], eps)], ["x", "w", "b"]


def scatter(x, id):
    x["x"] = torch.zeros_like(x["dy"], requires_grad=True)
    return [x["x"].masked_scatter((x["ids"] == id)[:, None], x["f"])], ["x", "f"]


FORWARD = {
    "embed": embed, "rms_norm": lambda x, eps: rms(x, eps, 1.0), "rms_norm_plain": rms, "linear": linear,
    "linear_bias": lambda x: linear(x, True), "rope": rope, "attend_full": causal, "attend_blocks": causal,
    "attend_segments": segments, "swiglu_oai": gated, "swiglu": gated,
    "sigmoid": lambda x: ([torch.sigmoid(x["x"])], ["x"]), "route": route, "experts": experts,
    "layer_norm": layer_norm, "gelu": lambda x: ([F.gelu(x["x"])], ["x"]), "scatter": scatter,
}


def gradients(forward, case):
    x = case.torch()
    for name, value in x.items():
        value.requires_grad_(value.is_floating_point() and name not in ("dy", "dlse", "cos", "sin"))
    outputs, wanted = forward(x, **case.params)
    incoming = [x["dy"]] + [x.get("dlse", torch.zeros_like(y)) for y in outputs[1:]]
    torch.autograd.backward(outputs, [d.to(y.dtype) for d, y in zip(incoming, outputs)])
    found = tuple(torch.zeros_like(x[name]) if x[name].grad is None else x[name].grad for name in wanted)
    return found if len(found) > 1 else found[0]


# Seen to fail in bfloat16 without: roundings of logits, of what arrives at w2, and of sums that are kept in the format
# of storing.
@pytest.mark.parametrize("dtype,profile", [("f32", "fp32"), ("bf16", "bf16")])
@pytest.mark.parametrize("name", FORWARD)
def test_autograd_passes(name, dtype, profile):
    for case in m3ref.cases(name + "_backward", dtype=dtype):
        verdict = case.check(gradients(FORWARD[name], case), profile=profile)
        assert verdict.verdict == "pass", f"{case.what}: {verdict}"


def named(name, forward):
    """The mistakes that the verdicts on drawn cases name."""
    verdicts = [case.check(gradients(forward, case)) for case in m3ref.cases(name + "_backward")]
    return {verdict.summary["mistake"] for verdict in verdicts if verdict.verdict == "fail"} - {None}


def test_mistakes_have_names():
    assert "grad.attend_all_keys" in named("attend_blocks", lambda x, **how: causal(x, all_keys=True, **how))
    assert "grad.norm_no_plus_one" in named("rms_norm", lambda x, eps: rms({**x}, eps))
    assert "grad.experts_no_factor" in named("experts", lambda x, factor, **how: experts(x, 1, **how))
    assert "grad.gelu_tanh" in named("gelu", lambda x: ([F.gelu(x["x"], approximate="tanh")], ["x"]))


# Seen to fail with a backward pass without the scale.
@pytest.mark.parametrize("wrong", [False, True])
def test_the_example_of_the_project(wrong, tmp_path):
    page = (ROOT / "README.md").read_text()
    block = next(text for text in re.findall(r"(?:^    .*\n|^\n)+", page, re.M) if "attend_blocks_backward" in text)
    (tmp_path / "test_it.py").write_text("\n".join(line[4:] for line in block.splitlines()) + "\n")
    where = os.pathsep.join([str(ROOT / "scripts"), *map(os.path.abspath, sys.path)])
    environment = {**os.environ, "PYTHONPATH": where, **({"ALL_KEYS": "1"} if wrong else {})}
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path], env=environment,
                          cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == wrong, done.stdout + done.stderr
    shown = re.search(r"the failure says\n\n    # (.*?) ?\.\.\n", page).group(1)
    assert (shown in done.stdout) == wrong, done.stdout

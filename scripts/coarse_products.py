"""Products of rounded operands, put on the public model: engines in TF32 and in 8 bits, as they run on devices.

    tf32, tf32_cut     every product, those of attention and of block scores too, reads its operands with 10 bits after
                       the point: rounded to nearest, ties away from zero (cvt.rna), or cut off
    e4m3_token         the matrices of the text layers, except the router's, read their input in E4M3: one float scale per
    e4m3_tensor        token, amax / 448; one per call; one per 128 values of a token
    e4m3_block
    mx_down, mx_up     the same with a power of two per 32 values: 2^(floor(log2 amax) - 8), beyond 448 saturated; or the
                       least at which nothing saturates

Sums are in float, and a result is rounded once to the type of its input. Weights are used as they are: codes times
scales. MISTAKES are mistakes, by name.
"""

import contextlib

import torch
from torch.nn.functional import conv3d, linear, pad

E4M3_LARGEST = 448.0
LEAST_SCALE = 1.0 / (E4M3_LARGEST * 512.0)      # vLLM's
KINDS = ("tf32", "tf32_cut", "e4m3_token", "e4m3_tensor", "e4m3_block", "mx_down", "mx_up")
MISTAKES = ("angles_too", "scale_of_the_token_before", "exponent_one_too_low")


def tf32(x, cut=False):
    """A float with the lower 13 bits gone; of finite values the addition carries into the exponent correctly."""
    return ((x.contiguous().view(torch.int32) + (0 if cut else 0x1000)) & ~0x1FFF).view(torch.float32)


def in_e4m3(x, scale):
    """The codes, as floats."""
    return (x / scale).clamp(-E4M3_LARGEST, E4M3_LARGEST).to(torch.float8_e4m3fn).float()


def by_float_scale(x, mistake=None):
    """Codes, and a scale for each row of the last axis."""
    scale = (x.abs().amax(-1, keepdim=True) / E4M3_LARGEST).clamp(min=LEAST_SCALE)
    codes = in_e4m3(x, scale)
    if mistake == "scale_of_the_token_before" and x.dim() > 1:
        scale = torch.cat((scale[..., :1, :], scale[..., :-1, :]), -2)
    return codes, scale


def by_power_of_two(x, up, mistake=None):
    largest = x.abs().amax(-1, keepdim=True)
    mantissa, exponent = torch.frexp(largest)                   # largest = mantissa 2^exponent, mantissa from 1/2
    exponent = exponent - 9
    if up:
        exponent = exponent + (mantissa * 512 > E4M3_LARGEST).int()
    if mistake == "exponent_one_too_low":
        exponent = exponent - 1
    scale = torch.ldexp(torch.ones_like(largest), exponent.clamp(-127, 127))
    return in_e4m3(x, scale) * scale


def in_blocks(x, width, quantise):
    """quantise of x [..,width] for a last axis of any length: the last block may be partial."""
    length = x.shape[-1]
    blocks = pad(x, (0, -length % width)).unflatten(-1, (-1, width))
    return quantise(blocks).flatten(-2)[..., :length]


class Products:
    """One way to multiply; kind None: as the model does. `everywhere`: in all of the model; otherwise in the quantised
    matrices of text layers."""

    def __init__(self, kind, mistake=None):
        self.kind, self.mistake = kind, mistake
        self.everywhere = kind is not None and kind.startswith("tf32")

    def linear(self, x, weight, bias=None):
        wide, weight = x.float(), weight.float()
        if self.everywhere:
            return linear(self.operand(wide), self.operand(weight), bias).to(x.dtype)
        if self.kind == "e4m3_token":
            codes, scale = by_float_scale(wide, self.mistake)
            return (linear(codes, weight) * scale).to(x.dtype)
        return linear(self.quantised(wide), weight).to(x.dtype)

    def patches(self, x, module):
        return conv3d(self.operand(x), self.operand(module.weight), module.bias, module.stride)

    def operand(self, x):
        return tf32(x, self.kind == "tf32_cut")

    def quantised(self, x):
        if self.kind == "e4m3_tensor":
            scale = (x.abs().amax() / E4M3_LARGEST).clamp(min=LEAST_SCALE)
            return in_e4m3(x, scale) * scale
        if self.kind == "e4m3_block":
            return in_blocks(x, 128, lambda blocks: torch.mul(*by_float_scale(blocks)))
        return in_blocks(x, 32, lambda blocks: by_power_of_two(blocks, self.kind == "mx_up", self.mistake))

    def is_ours(self, name, module):
        """Linear modules that multiply in this way."""
        if self.everywhere:
            return isinstance(module, (torch.nn.Linear, torch.nn.Conv3d))
        return isinstance(module, torch.nn.Linear) and "language_model.layers." in name

    def in_float(self, model):
        """Parameters that stay in float, because codes times scales need not be numbers of 16 bits."""
        if self.kind is None:
            return ()
        ours = {name + ".weight" for name, module in model.named_modules() if self.is_ours(name, module)}
        return ours | {name for name, parameter in model.named_parameters()
                       if ".mlp.experts." in name and parameter.dim() == 3}

    def change(self, model):
        """Replaces modules, and returns what wraps the functions that experts and router call."""
        if self.kind is None:
            return None
        for name, module in model.named_modules():
            if self.is_ours(name, module) and isinstance(module, torch.nn.Conv3d):
                module.forward = lambda x, module=module: self.patches(x, module)
            elif self.is_ours(name, module):
                module.forward = lambda x, module=module: self.linear(x, module.weight, module.bias)
        if self.mistake == "angles_too":
            rotary = model.model.language_model.rotary_emb
            rotary.inv_freq = self.operand(rotary.inv_freq)
        return lambda functional: Functional(functional, self)

    @contextlib.contextmanager
    def replacing(self, modeling):
        """While open, products of attention and of block scores are TF32 too."""
        if self.everywhere:
            modeling.torch = Torch(self)
        try:
            yield
        finally:
            modeling.torch = torch


class Torch:
    """The torch module, except for its matmul."""

    def __init__(self, products):
        self.products = products

    def __getattr__(self, name):
        return getattr(torch, name)

    def matmul(self, a, b):
        return torch.matmul(self.products.operand(a), self.products.operand(b))


class Functional:
    """torch.nn.functional as dump_transformers.py watches it, except for products."""

    def __init__(self, under, products):
        self.under, self.products = under, products

    def __getattr__(self, name):
        return getattr(self.under, name)

    def linear(self, x, weight, bias=None):
        if not (self.products.everywhere or self.under.dump.in_expert()):
            return self.under.linear(x, weight, bias)
        result = self.products.linear(x, weight, bias)
        self.under.dump.see_expert(result)
        return result

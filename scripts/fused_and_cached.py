"""Two things that engines do and the public model does not, put on the public model:

    fuse_norms     a norm reads the sum of the residual stream in float, before it is rounded for storing
    cache_keys     keys and values, those of the index too, are rounded to a cache's format before attention reads them

and mistakes in them, by name: NORMS, CACHES.
"""

import torch

FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "f16": torch.float16}
SCALES = ("one", "tensor", "token")             # how numbers are scaled to a format of 8 bits
NORMS = ("one_plus_w_bf16", "variance_h_minus_1", "no_plus_one")
CACHES = ("value_unscaled", "key_of_the_token_before")


def normalised(x, norm, mistake):
    """The public norm of a sum in float."""
    H, weight = x.shape[-1], norm.weight
    mean = x.pow(2).sum(-1, keepdim=True) / (H - 1 if mistake == "variance_h_minus_1" else H)
    scale = 1.0 + weight.float()
    if mistake == "one_plus_w_bf16":
        scale = (1.0 + weight.to(torch.bfloat16)).float()
    if mistake == "no_plus_one":
        scale = weight.float()
    return x * torch.rsqrt(mean + norm.eps) * scale


class Sums:
    """The last sum in float; the norm that follows takes it."""

    def __init__(self, mistake):
        self.mistake, self.last = mistake, None

    def add(self, a, b):
        self.last = a.float() + b.float()
        return self.last.to(a.dtype)

    def norm(self, module):
        def forward(x):
            taken, self.last = self.last, None
            given = x.float() if taken is None else taken
            return normalised(given, module, self.mistake).to(x.dtype)
        return forward


def fuse_norms(model, mistake=None):
    text, sums = model.model.language_model, Sums(mistake)

    def layer_forward(layer):
        def forward(hidden_states, **keywords):
            normed = layer.input_layernorm(hidden_states)
            attended, _ = layer.self_attn(hidden_states=normed, **keywords)
            middle = sums.add(hidden_states, attended)
            return sums.add(middle, layer.mlp(layer.post_attention_layernorm(middle)))
        return forward

    for layer in text.layers:
        layer.forward = layer_forward(layer)
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.forward = sums.norm(norm)
    text.norm.forward = sums.norm(text.norm)


class Cache:
    """Gives back what is given, rounded to its format: x [batch,heads,tokens,channels]."""

    def __init__(self, kind, scale, mistake):
        self.kind, self.scale, self.mistake = kind, scale, mistake
        self.layers = self

    def __getitem__(self, layer):
        return self

    def rounded(self, x, is_value=False):
        wide = x.float()
        scale = torch.ones(())
        if self.kind != "f16" and self.scale != "one":
            largest = wide.abs().amax() if self.scale == "tensor" else wide.abs().amax((1, 3), keepdim=True)
            scale = largest / torch.finfo(FORMATS[self.kind]).max
        stored = (wide / scale).to(FORMATS[self.kind]).float()
        if self.mistake == "value_unscaled" and is_value:
            return (stored * 1.25).to(x.dtype)
        return (stored * scale).to(x.dtype)

    def update(self, keys, values, layer):
        keys = self.rounded(keys)
        if self.mistake == "key_of_the_token_before":
            keys = torch.cat((keys[:, :, :1], keys[:, :, :-1]), 2)
        return keys, self.rounded(values, True)

    def update_index(self, keys):
        return self.rounded(keys)


def cache_keys(model, kind, scale="one", mistake=None):
    cache = Cache(kind, scale, mistake)

    def with_cache(forward):
        return lambda *inputs, **keywords: forward(*inputs, **(keywords | {"past_key_values": cache}))

    for layer in model.model.language_model.layers:
        layer.self_attn.forward = with_cache(layer.self_attn.forward)

"""The vision tower and the projector of the public code with every tap recorded, and the same once more as a formula.

`vision_boundary=none` is the public code as it is. `segment` is not in it: formula() computes it with an explicit mask
and restarting t, and apart() makes it of public calls, one per segment; both must agree.
"""

from dataclasses import dataclass

import numpy as np
import torch
from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl as modeling

import truth

LAYER_TAPS = {"layer_norm1": "norm1", "self_attn.out_proj": "attn_out", "layer_norm2": "norm2", "mlp.fc1": "fc1",
              "mlp.fc2": "mlp"}
LAYER_INPUTS = {"layer_norm2": "mid", "mlp.fc2": "act"}
PROJECTOR_TAPS = {"linear_1": "linear_1", "linear_2": "linear_2", "merge_linear_1": "merge_linear_1",
                  "merge_linear_2": "out"}
PROJECTOR_INPUTS = {"linear_2": "act_1", "merge_linear_1": "merged", "merge_linear_2": "act_2"}


@dataclass
class Pictures:
    """The rows of one call: images first, then videos."""
    pixels: np.ndarray              # fp32 [P,1176]
    grids: list                     # [t,h,w] per picture
    images: int                     # how many of the grids are images
    boundary: str                   # "segment" or "none"

    def image_rows(self):
        return sum(int(np.prod(grid)) for grid in self.grids[:self.images])

    def segments(self, longest):
        """[(rows, grid)] of the segments; a video is cut every `longest` steps."""
        parts, start = [], 0
        for number, (steps, height, width) in enumerate(self.grids):
            step = longest if number >= self.images else steps
            for first in range(0, steps, step):
                grid = [min(step, steps - first), height, width]
                parts.append((slice(start, start + int(np.prod(grid))), grid))
                start = parts[-1][0].stop
        return parts


class PictureRecorder(truth.Recorder):
    """Hooks on text, tower and projector; the rows of several tower calls are joined in the order of the calls."""

    def __init__(self, model, pictures):
        super().__init__(model)
        self.pictures, self.vision_layer = pictures, None

    def save(self, name, value, heads=None):
        before = self.taps.get(name)
        super().save(name, value, heads)
        if before is not None:
            self.taps[name] = torch.cat((before, self.taps[name]))

    def attach(self):
        super().attach()
        tower, projector = self.model.model.vision_tower, self.model.model.multi_modal_projector
        self.out(tower.embeddings, "vision.patch_embed")
        self.out(tower.pre_layrnorm, "vision.pre_norm")
        for number, layer in enumerate(tower.layers):
            self.attach_encoder_layer(number, f"vision.layers.{number}.", layer)
        for name, tap in PROJECTOR_TAPS.items():
            self.out(getattr(projector, name), "projector." + tap)
        for name, tap in PROJECTOR_INPUTS.items():
            self.into(getattr(projector, name), "projector." + tap)

    def attach_encoder_layer(self, number, prefix, layer):
        heads = layer.self_attn.num_heads
        for name, tap in LAYER_TAPS.items():
            self.out(layer.get_submodule(name), prefix + tap)
        for name, tap in LAYER_INPUTS.items():
            self.into(layer.get_submodule(name), prefix + tap)
        for name in ("q_proj", "k_proj", "v_proj"):
            self.out(getattr(layer.self_attn, name), prefix + name, heads)
        self.into(layer.self_attn.out_proj, prefix + "attn", heads)
        self.out(layer, prefix + "out")
        self.handles.append(layer.self_attn.register_forward_pre_hook(lambda m, i: self.enter_vision(number)))

    def enter_vision(self, number):
        self.vision_layer = number

    def rotate_vision(self, original):
        def apply(*arguments):
            results = original(*arguments)
            for name, value in zip(("q_rope", "k_rope"), results):
                self.save(f"vision.layers.{self.vision_layer}.{name}", value)
            return results
        return apply

    def inputs(self):
        pictures, cut = self.pictures, self.pictures.image_rows()
        pixels, grids = torch.from_numpy(pictures.pixels), torch.tensor(pictures.grids)
        given = {}
        if pictures.images:
            given |= {"pixel_values": pixels[:cut], "image_grid_thw": grids[:pictures.images]}
        if pictures.images < len(grids):
            given |= {"pixel_values_videos": pixels[cut:], "video_grid_thw": grids[pictures.images:]}
        return given

    def forward(self, input_ids):
        original = modeling.apply_rotary_pos_emb_vision
        modeling.apply_rotary_pos_emb_vision = self.rotate_vision(original)
        try:
            super().forward(input_ids)
        finally:
            modeling.apply_rotary_pos_emb_vision = original
        weight = self.model.model.vision_tower.embeddings.proj.weight
        self.taps["vision.pixels"] = torch.from_numpy(self.pictures.pixels).to(weight.dtype)
        self.taps["vision.grid"] = torch.tensor(self.pictures.grids)


class Features:
    """What the public model reads from the result of its feature functions."""

    def __init__(self, rows):
        self.pooler_output = rows


class ApartRecorder(PictureRecorder):
    """`segment` from public calls only: the tower and the projector are called once per segment."""

    def forward(self, input_ids):
        model, cut = self.model.model, self.pictures.image_rows()
        longest = model.config.vision_config.vision_segment_max_frames
        parts = self.pictures.segments(longest)

        def call(original, wanted):
            pixels = torch.from_numpy(self.pictures.pixels)
            rows = [original(pixels[part], torch.tensor([grid])).pooler_output for part, grid in parts if wanted(part)]
            return lambda **given: Features(torch.cat(rows))

        for name, wanted in (("get_image_features", lambda part: part.stop <= cut),
                             ("get_video_features", lambda part: part.start >= cut)):
            original = getattr(model, name)
            setattr(model, name, lambda o=original, w=wanted, **given: call(o, w)(**given))
        try:
            super().forward(input_ids)
        finally:
            del model.get_image_features, model.get_video_features


class FedRecorder(truth.Recorder):
    """The public text model, fed with features computed elsewhere."""

    def __init__(self, model, pictures, features):
        super().__init__(model)
        self.pictures, self.features = pictures, torch.from_numpy(features)

    def inputs(self):
        return PictureRecorder.inputs(self)

    def forward(self, input_ids):
        model, cut = self.model.model, self.pictures.image_rows() // 4
        model.get_image_features = lambda **given: Features(self.features[:cut])
        model.get_video_features = lambda **given: Features(self.features[cut:])
        try:
            super().forward(input_ids)
        finally:
            del model.get_image_features, model.get_video_features


# ---- the formula: PyTorch fp64, from the released weights

def places(grid, first_step=0):
    """[P,3] of t, h, w: each axis laid over the whole grid, then cut into 2x2 groups."""
    steps, height, width = grid
    axes = torch.meshgrid(torch.arange(steps) - first_step, torch.arange(height), torch.arange(width), indexing="ij")
    cut = torch.stack(axes, dim=-1).reshape(steps, height // 2, 2, width // 2, 2, 3)
    return cut.permute(0, 1, 3, 2, 4, 5).reshape(-1, 3)


def layout(pictures, longest):
    """([P,3] places, [P,P] bool: which rows see each other) of a call."""
    if pictures.boundary == "none":
        cut = pictures.image_rows()
        blocks = [torch.ones(n, n) for n in (cut, len(pictures.pixels) - cut) if n]
        return torch.cat([places(grid) for grid in pictures.grids]), torch.block_diag(*blocks).bool()
    parts = pictures.segments(longest)
    blocks = [torch.ones(part.stop - part.start, part.stop - part.start) for part, _ in parts]
    return torch.cat([places(grid) for _, grid in parts]), torch.block_diag(*blocks).bool()


def turn(x, place, theta):
    """x [P,A,U] by three bands of angles; pairs lie half of the turned channels apart."""
    axis = x.shape[-1] // 6 * 2
    frequencies = theta ** (-torch.arange(0, axis, 2, dtype=torch.float64) / axis)
    angle = torch.cat([place[:, [a]].double() * frequencies for a in range(3)], dim=1)[:, None]
    turned = 3 * axis
    first, second = x[..., :turned].chunk(2, dim=-1)
    return torch.cat((first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin(),
                      x[..., turned:]), dim=-1)


@torch.no_grad()
def formula(config, weights, pictures):
    """{tap: NumPy array} of vision.* and projector.*; weights: released names, fp64 arrays."""
    weights = {name: torch.from_numpy(value) for name, value in weights.items()}
    vision, prefix, functional = config["vision_config"], "vision_tower.vision_model.", torch.nn.functional
    place, sees = layout(pictures, vision["vision_segment_max_frames"])
    taps = {"vision.pixels": torch.from_numpy(pictures.pixels).double(), "vision.grid": torch.tensor(pictures.grids)}

    def affine(x, name):
        return functional.linear(x, weights[name + ".weight"], weights[name + ".bias"])

    def norm(x, name):
        scale, shift = weights[name + ".weight"], weights[name + ".bias"]
        return functional.layer_norm(x, scale.shape, scale, shift, vision["layer_norm_eps"])

    patch = weights[prefix + "embeddings.patch_embedding.weight"].flatten(1)
    taps["vision.patch_embed"] = taps["vision.pixels"] @ patch.T
    x = taps["vision.pre_norm"] = norm(taps["vision.patch_embed"], prefix + "pre_layrnorm")
    for number in range(vision["num_hidden_layers"]):
        x = encoder_layer(taps, f"vision.layers.{number}.", f"{prefix}encoder.layers.{number}.", x, affine, norm,
                          vision, place, sees)
    for name, source in (("linear_1", "multi_modal_projector.linear_1"), ("act_1", None),
                         ("linear_2", "multi_modal_projector.linear_2"), ("merged", "merge"),
                         ("merge_linear_1", "patch_merge_mlp.linear_1"), ("act_2", None),
                         ("out", "patch_merge_mlp.linear_2")):
        x = functional.gelu(x) if source is None else x.reshape(len(x) // 4, -1) if source == "merge" else \
            affine(x, source)
        taps["projector." + name] = x
    return {name: truth.to_numpy(value) for name, value in taps.items()}


def encoder_layer(taps, p, w, x, affine, norm, vision, place, sees):
    heads = vision["num_attention_heads"]
    taps[p + "norm1"] = norm(x, w + "layer_norm1")
    q, k, v = (affine(taps[p + "norm1"], f"{w}self_attn.{name}_proj").unflatten(1, (heads, -1)) for name in "qkv")
    taps |= {p + "q_proj": q, p + "k_proj": k, p + "v_proj": v}
    q, k = taps[p + "q_rope"], taps[p + "k_rope"] = [turn(y, place, vision["rope_theta"]) for y in (q, k)]
    z = torch.einsum("iad,jad->aij", q, k) * q.shape[-1] ** -0.5
    taps[p + "attn"] = torch.einsum("aij,jad->iad", z.masked_fill(~sees, float("-inf")).softmax(dim=-1), v)
    taps[p + "attn_out"] = affine(taps[p + "attn"].flatten(1), w + "self_attn.out_proj")
    taps[p + "mid"] = x + taps[p + "attn_out"]
    taps[p + "norm2"] = norm(taps[p + "mid"], w + "layer_norm2")
    taps[p + "fc1"] = affine(taps[p + "norm2"], w + "mlp.fc1")
    taps[p + "act"] = torch.nn.functional.gelu(taps[p + "fc1"])
    taps[p + "mlp"] = affine(taps[p + "act"], w + "mlp.fc2")
    taps[p + "out"] = taps[p + "mid"] + taps[p + "mlp"]
    return taps[p + "out"]

"""RoPE at positions 1,000,000 + t, which the public code does not take: tiny's q and k turned by a formula of our own.

Inputs are tapped tensors of tiny (they do not depend on the position); the outputs are PyTorch fp64, checked against
angles of 50 digits. An fp32 angle is wrong by up to 4e-3 rad here, which is what this golden is for.
"""

import os

import mpmath
import numpy as np
import torch

import files
import formulas
import judge

FIRST = 1_000_000
ANGLE_LIMIT = 1e-10
PAIRS = (("layers.0.q_norm", "layers.0.q_rope"), ("layers.0.k_norm", "layers.0.k_rope"),
         ("layers.2.index.q_norm", "layers.2.index.q_rope"), ("layers.2.index.k_norm", "layers.2.index.k_rope"))


def tables(positions, theta, rotary, angle_type):
    """(cos, sin) in fp64 [T,r/2] of angles formed in `angle_type`."""
    exponents = -2 * torch.arange(rotary // 2, dtype=torch.float64) / rotary
    inverse = torch.pow(torch.tensor(float(theta), dtype=torch.float64), exponents).to(angle_type)
    angle = (torch.from_numpy(positions)[:, None].to(angle_type) * inverse).double()
    return angle.cos(), angle.sin()


def exact_tables(positions, theta, rotary):
    with mpmath.workdps(50):
        inverse = [mpmath.power(theta, -mpmath.mpf(2 * i) / rotary) for i in range(rotary // 2)]
        angles = [[int(p) * value for value in inverse] for p in positions]
        return tuple(torch.tensor([[float(f(a)) for a in row] for row in angles], dtype=torch.float64)
                     for f in (mpmath.cos, mpmath.sin))


def rotate(x, cos, sin):
    """x [T,heads,D] or [T,D], tables [T,r/2] in the type of x."""
    half = cos.shape[1]
    if x.ndim == 3:
        cos, sin = cos[:, None], sin[:, None]
    first, second, rest = x[..., :half], x[..., half:2 * half], x[..., 2 * half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def produce(case, folder, config, input_ids, taps, ruler):
    """positions.safetensors (inputs, outputs, position_ids) and the case that makes a whole-model run meet it."""
    theta, rotary = config["text_config"]["rope_theta"], config["text_config"]["rotary_dim"]
    positions = FIRST + np.arange(case.tokens, dtype=np.int64)
    cos, sin = tables(positions, theta, rotary, torch.float64)
    exact = exact_tables(positions, theta, rotary)
    gap = max(float((cos - exact[0]).abs().max()), float((sin - exact[1]).abs().max()))
    if not gap <= ANGLE_LIMIT:
        raise ValueError(f"fp64 tables are {gap:.1e} from the exact ones")
    cos32, sin32 = tables(positions, theta, rotary, torch.float32)
    tensors, numbers = {"position_ids": positions.astype(np.int32)}, {"table_gap": gap}
    for source, target in PAIRS:
        x = torch.from_numpy(taps[source])
        tensors[source], tensors[target] = taps[source], rotate(x, cos, sin).numpy()
        for kind, got in ruler.runs:                     # fp32 rows turned by fp64 tables rounded once
            single = rotate(torch.from_numpy(got[source]), cos.float(), sin.float()).numpy()
            worst(numbers, source, "f32", got[source], tensors[source])
            worst(numbers, target, "f32", single, tensors[target])
            wrong = rotate(torch.from_numpy(got[source]), cos32.float(), sin32.float()).numpy()
            worst(numbers, target, "f32_angle32", wrong, tensors[target])
    inputs = {"input_ids": input_ids, "position_ids": positions}
    files.write(os.path.join(folder, "positions.safetensors"),
                files.to_bytes({name: files.from_array(value) for name, value in tensors.items()},
                               judge.metadata(case.name, os.path.join(folder, "model"), inputs, numbers)))
    files.write(os.path.join(folder, "positions_case.safetensors"),
                files.to_bytes({name: files.from_array(value.astype(np.int32)) for name, value in inputs.items()}))


def worst(numbers, tap, kind, got, want):
    for measure, error in (("rel_l2", formulas.relative_l2), ("max", formulas.relative_max)):
        key = f"{tap}.{kind}_{measure}"
        numbers[key] = max(numbers.get(key, 0.0), float(error(got, want)))

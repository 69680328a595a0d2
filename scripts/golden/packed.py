"""Expected weights of codes of 4 bits, by the libraries that define the formats: golden/packed/*.safetensors.

    pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
    pip install compressed-tensors==0.20.0 nvidia-modelopt==0.47.0 safetensors==0.8.0
    python scripts/golden/packed.py [OUT]            default: golden/packed

Each file holds matrices as a checkpoint holds them ("NAME.weight_packed", ...), and beside each of them NAME.f64, what
the library makes of it in double, and NAME.bf16, what it makes of it by default where that is BF16. The matrices are
quantised by the library, except those named "codes": they are random bytes, so that every code occurs.
"""

import os
import sys

import torch
from compressed_tensors.compressors import MXFP4PackedCompressor, NVFP4PackedCompressor, PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme, preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from modelopt.torch.export.quant_utils import pack_int4_in_uint8
from modelopt.torch.quantization.qtensor import MXFP4QTensor, NVFP4QTensor
from safetensors.torch import save_file

from packed_weights import floats, integers

VERSIONS = {"versions": "torch 2.13.0, compressed-tensors 0.20.0, nvidia-modelopt 0.47.0"}
OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "golden", "packed")


def matrix(rows, cols, seed):
    """BF16 weights of size 1/20 with a few outliers and a group of zeros."""
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(rows, cols, generator=generator) * 0.05
    w[torch.rand(rows, cols, generator=generator) < 0.01] *= 12
    w[0, :16] = 0
    return w.bfloat16()


def random_bytes(shape, seed, low=0, high=256):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int32).byte()


def grouped_range(w, size):
    groups = w.float().reshape(w.shape[0], -1, size)
    return groups.amin(-1), groups.amax(-1)


# ---- compressed-tensors

def floats_of(state):
    return floats(state["weight_packed"], state["weight_scale"], state.get("weight_global_scale"))


def compressed(tensors, name, compressor, scheme, state, in_double):
    default = compressor.decompress(dict(state), scheme)["weight"]
    keep = ("weight_packed", "weight_scale", "weight_global_scale", "weight_shape", "weight_zero_point")
    tensors |= {f"{name}.{key}": state[key] for key in keep if key in state}
    tensors[f"{name}.f64"] = in_double
    if default.dtype == torch.bfloat16:
        tensors[f"{name}.bf16"] = default


def nvfp4(tensors):
    scheme = preset_name_to_scheme("NVFP4A16", ["Linear"])
    for name, rows, cols, seed in (("wide", 24, 96, 1), ("odd", 7, 16, 2)):
        w = matrix(rows, cols, seed)
        whole = generate_gparam(w.min().float(), w.max().float())
        scale, _ = calculate_qparams(*grouped_range(w, 16), scheme.weights, global_scale=whole)
        state = NVFP4PackedCompressor.compress(
            {"weight": w, "weight_scale": scale, "weight_global_scale": whole}, scheme)
        compressed(tensors, name, NVFP4PackedCompressor, scheme, state, floats_of(state))
    scales = torch.tensor([code for code in range(256) if code & 127 != 127], dtype=torch.uint8)
    state = {"weight_packed": random_bytes((127, 16), 3), "weight_scale": scales.view(torch.float8_e4m3fn).view(127, 2),
             "weight_global_scale": torch.tensor([1.7432e3])}
    compressed(tensors, "codes", NVFP4PackedCompressor, scheme, state, floats_of(state))


def mxfp4(tensors):
    scheme = preset_name_to_scheme("MXFP4A16", ["Linear"])
    for name, rows, cols, seed in (("wide", 24, 96, 4), ("odd", 7, 32, 5)):
        w = matrix(rows, cols, seed)
        scale, _ = calculate_qparams(*grouped_range(w, 32), scheme.weights)
        state = MXFP4PackedCompressor.compress({"weight": w, "weight_scale": scale}, scheme)
        compressed(tensors, name, MXFP4PackedCompressor, scheme, state, floats_of(state))
    state = {"weight_packed": random_bytes((126, 32), 6),
             "weight_scale": torch.arange(1, 253, dtype=torch.uint8).view(126, 2)}
    compressed(tensors, "codes", MXFP4PackedCompressor, scheme, state, floats_of(state))


def w4a16(tensors):
    for name, rows, cols, group, symmetric, dtype, seed in (
            ("group", 21, 128, 32, True, torch.bfloat16, 7), ("zeros", 21, 128, 64, False, torch.bfloat16, 8),
            ("half", 9, 48, 16, False, torch.float16, 9), ("channel", 13, 50, None, True, torch.bfloat16, 10),
            ("single", 8, 64, 32, True, torch.float32, 11)):
        args = QuantizationArgs(num_bits=4, type="int", strategy="group" if group else "channel", group_size=group,
                                symmetric=symmetric)
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        w = matrix(rows, cols, seed)
        scale, zero = calculate_qparams(*grouped_range(w, group or cols), args)
        state = {"weight": w.to(dtype), "weight_scale": scale.to(dtype), "weight_zero_point": zero}
        state = PackedQuantizationCompressor.compress(state, scheme)
        exact = integers(state["weight_packed"], state["weight_scale"], (rows, cols), args,
                         state.get("weight_zero_point"))
        compressed(tensors, name, PackedQuantizationCompressor, scheme, state, exact)


# ---- ModelOpt, under the names of its exported checkpoints

def modelopt(tensors):
    for name, rows, cols, seed in (("nvfp4", 24, 96, 12), ("nvfp4_odd", 7, 16, 13)):
        q, scale, whole = NVFP4QTensor.quantize(matrix(rows, cols, seed), 16)
        how = {"scale": scale, "double_scale": whole, "block_sizes": {-1: 16}}
        exact = how | {"scale": scale.double(), "double_scale": whole.double()}
        tensors |= {f"{name}.weight": q._quantized_data, f"{name}.weight_scale": scale, f"{name}.weight_scale_2": whole,
                    f"{name}.f64": q.dequantize(dtype=torch.float64, **exact),
                    f"{name}.bf16": q.dequantize(dtype=torch.bfloat16, **how)}
    q, scale = MXFP4QTensor.quantize(matrix(24, 96, 14), 32)
    how = {"scale": scale, "block_sizes": {-1: 32}}
    tensors |= {"mxfp4.weight": q._quantized_data, "mxfp4.weight_scale": scale.view(24, 3),
                "mxfp4.f64": q.dequantize(dtype=torch.float64, **how),
                "mxfp4.bf16": q.dequantize(dtype=torch.bfloat16, **how)}
    # There is no reader of the exported integers in the package: these are the codes that its packer was given.
    w = matrix(22, 96, 15).float()
    scale = (w.view(22, 3, 32).abs().amax(-1) / 7).clamp(min=1e-4).bfloat16()
    wide = scale.double().repeat_interleave(32, 1)
    packed = pack_int4_in_uint8(w, scale.float(), 32)
    codes = (w / scale.float().repeat_interleave(32, 1)).round().clamp(-8, 7).to(torch.int8).double()
    tensors |= {"int4.weight": packed, "int4.weight_scale": scale, "int4.f64": codes * wide,
                "int4.bf16": (codes * wide).bfloat16()}


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else OUT
    os.makedirs(out, exist_ok=True)
    for make in (nvfp4, mxfp4, w4a16, modelopt):
        tensors = {}
        make(tensors)
        tensors = {name: value.detach().contiguous() for name, value in tensors.items()}
        save_file(tensors, os.path.join(out, make.__name__ + ".safetensors"), metadata=VERSIONS)


if __name__ == "__main__":
    main()

"""Codes of 4 bits expanded in double by compressed-tensors, the library that defines their layout."""

import torch
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize


def arguments(kind, strategy, size, symmetric=True):
    return QuantizationArgs(num_bits=4, type=kind, strategy=strategy, group_size=size, symmetric=symmetric)


def floats(packed, scale, whole=None):
    """NVFP4 with the scale of the whole matrix, otherwise MXFP4. float64 [rows, columns]"""
    codes = unpack_fp4_from_uint8(packed, packed.shape[0], 2 * packed.shape[1], dtype=torch.float64)
    if whole is None:
        return dequantize(x_q=codes, scale=torch.exp2(scale.double() - 127), args=arguments("float", "group", 32),
                          dtype=torch.float64)
    return dequantize(x_q=codes, scale=scale.double(), args=arguments("float", "tensor_group", 16),
                      global_scale=whole.double(), dtype=torch.float64)


def integers(packed, scale, shape, args, zero_point=None):
    codes = unpack_from_int32(packed, 4, torch.Size(shape))
    if zero_point is not None:
        zero_point = unpack_from_int32(zero_point, 4, torch.Size(scale.shape), 0)
    return dequantize(x_q=codes, scale=scale.double(), zero_point=zero_point, args=args)


def expand(tensors, names):
    """The tensors, with these matrices in double instead of their codes."""
    tensors = dict(tensors)
    for name in names:
        packed, scale = tensors.pop(name + "_packed"), tensors.pop(name + "_scale")
        if packed.dtype == torch.int32:
            shape = tensors.pop(name + "_shape").tolist()
            args = arguments("int", "group", shape[1] // scale.shape[1])
            tensors[name] = integers(packed, scale, shape, args)
        else:
            tensors[name] = floats(packed, scale, tensors.pop(name + "_global_scale", None))
    return tensors

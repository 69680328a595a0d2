"""Weights from a seed: every value is a pure function of the tensor's name, the index and the seed.

Only integer arithmetic modulo 2^64 and exact scaling by powers of two, so any language gives the same bytes.
"""

import numpy as np

GOLDEN_RATIO = 0x9E3779B97F4A7C15
WRAP = (1 << 64) - 1
PATCH_COLUMNS = 1176                                    # 3 channels x 2 frames x 14 x 14

TEXT_NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight", "q_norm.weight", "k_norm.weight",
              "model.norm.weight", "enorm.weight", "hnorm.weight", "final_layernorm.weight")
VISION_NORMS = ("layer_norm1.weight", "layer_norm2.weight", "pre_layrnorm.weight")
GATE_AND_UP = (".gate_proj.weight", ".up_proj.weight", ".w1.weight", ".w3.weight")
OUTPUTS = (".o_proj.weight", ".down_proj.weight", ".w2.weight")
FOUR_BITS = ("nvfp4", "mxfp4", "w4a16", "fourbit")
KEPT_F32 = (".block_sparse_moe.gate.weight", ".e_score_correction_bias", ".patch_embedding.weight")
QUANTISED = OUTPUTS + GATE_AND_UP + (".q_proj.weight", ".k_proj.weight", ".v_proj.weight", ".index_q_proj.weight",
                                     ".index_k_proj.weight")


def mix(z):
    z = z ^ (z >> np.uint64(30))
    z = z * np.uint64(0xBF58476D1CE4E5B9)
    z = z ^ (z >> np.uint64(27))
    z = z * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def key(name, seed):
    h = 14695981039346656037
    for byte in name.encode():
        h = (h ^ byte) * 1099511628211 & WRAP
    return mix(np.array([(h + seed * GOLDEN_RATIO) & WRAP], np.uint64))


def draw(name, seed, count, m):
    """`count` integers, uniform on 0 .. m-1, as int64."""
    index = np.arange(1, count + 1, dtype=np.uint64)
    high = mix(key(name, seed) + index * np.uint64(GOLDEN_RATIO)) >> np.uint64(32)
    return (high * np.uint64(m) >> np.uint64(32)).astype(np.int64)


def exponent(name, shape):
    """e of the tensor: its values lie within 127/128 * 2^e."""
    if name.endswith(TEXT_NORMS) or name.endswith(".e_score_correction_bias"):
        return -2
    if name.endswith(".bias"):
        return -3
    if name.endswith(VISION_NORMS) or name.endswith("embed_tokens.weight"):
        return 0
    columns = PATCH_COLUMNS if name.endswith(".patch_embedding.weight") else shape[-1]
    c = (columns.bit_length() - 1) // 2
    if name.endswith(GATE_AND_UP):
        return 2 - c
    return -c if name.endswith(OUTPUTS) else 1 - c


def plain_values(name, shape, seed, e):
    """Float64 [shape]; exact in F32 and in BF16."""
    return (draw(name, seed, int(np.prod(shape)), 255) - 127).reshape(shape) / 128.0 * 2.0 ** e


def router_values(name, shape, seed, e):
    """As plain_values, with bits below BF16: exact in F32, and a router kept in BF16 loses them."""
    return plain_values(name, shape, seed, e) + 2.0 ** -9 * plain_values(name + "#fine", shape, seed, e)


def e4m3_values():
    """The 256 values of F8_E4M3 by code."""
    code = np.arange(256)
    field, mantissa = code >> 3 & 15, code & 7
    size = np.where(field == 0, mantissa * 2.0 ** -9, (1 + mantissa / 8.0) * 2.0 ** (field - 7.0))
    size[(field == 15) & (mantissa == 7)] = np.nan
    return np.where(code >= 128, -size, size)


def e4m3_tensor(name, shape, seed):
    """Codes of (draw(31) - 15) / 8; zero is code 0."""
    table = e4m3_values()
    wanted = (np.arange(31) - 15) / 8.0
    codes = np.array([np.flatnonzero(table == value)[0] for value in wanted], np.uint8)
    return codes[draw(name, seed, int(np.prod(shape)), 31)].reshape(shape)


def scale_tensor(name, shape, seed, e, style):
    """(dtype, array): ue8m0 bytes per 32 columns, or F32 per 128x128 block. `shape` and `e` are the weight's."""
    rows, columns = shape
    if style == "mxfp8":
        if columns % 32:
            raise ValueError(f"{name}: {columns} columns are not a multiple of 32")
        dims = (rows, columns // 32)
        return "U8", (127 + e + 2 - draw(name, seed, dims[0] * dims[1], 6)).astype(np.uint8).reshape(dims)
    dims = (-(-rows // 128), -(-columns // 128))
    pairs = 2 * dims[0] * dims[1]
    power = 6.0 * (np.arange(pairs // 2) % 2) + draw(name, seed, pairs, 2)[0::2]
    fraction = draw(name, seed, pairs, 2 ** 23)[1::2]
    return "F32", (2.0 ** (e + 1 - power) * (1 + fraction / 2.0 ** 23)).astype(np.float32).reshape(dims)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def unpacked(data):
    """The codes of 4 bits in bytes [.., n]: [.., 2n], the lower half of a byte first."""
    return np.stack((data & 15, data >> 4), -1).reshape(*data.shape[:-1], -1)


def packed_tensors(name, shape, seed, e, form):
    """(stored tensors, values) of a matrix in "nvfp4", "mxfp4" or "w4a16", as compressed-tensors lays
    them out. The values are exact, except that a quotient by a global scale is rounded once."""
    rows, columns = shape
    size = 16 if form == "nvfp4" else 32
    if columns % size:
        raise ValueError(f"{name}: {columns} columns are not a multiple of {size}")
    groups, stored = (rows, columns // size), {}
    count = groups[0] * groups[1]
    if form == "w4a16":
        words = draw(name + "_packed", seed, rows * columns // 8, 2 ** 32).astype("<u4").reshape(rows, columns // 8)
        lower, fraction = (draw(name + "_scale", seed, 2 * count, m) for m in (3, 128))
        scale = (2.0 ** (e - 2 - lower[0::2]) * (1 + fraction[1::2] / 128)).reshape(groups)
        stored[name + "_packed"] = ("I32", words.shape, words.tobytes())
        stored[name + "_scale"] = ("BF16", groups, bf16_bytes(scale))
        stored[name + "_shape"] = ("I64", (2,), np.array(shape, "<i8").tobytes())
        codes = unpacked(words.view(np.uint8).reshape(rows, -1)).astype(np.float64) - 8
        return stored, codes * np.repeat(scale, size, 1)
    data = draw(name + "_packed", seed, rows * columns // 2, 256).astype(np.uint8).reshape(rows, columns // 2)
    stored[name + "_packed"] = ("U8", data.shape, data.tobytes())
    if form == "mxfp4":
        scale = (127 + e - draw(name + "_scale", seed, count, 6)).astype(np.uint8).reshape(groups)
        stored[name + "_scale"] = ("U8", groups, scale.tobytes())
        return stored, E2M1[unpacked(data)] * np.repeat(2.0 ** (scale.astype(np.float64) - 127), size, 1)
    scale = (0x30 + draw(name + "_scale", seed, count, 32)).astype(np.uint8).reshape(groups)
    whole = 2.0 ** (2 - e) * (1 + draw(name + "_global_scale", seed, 1, 2 ** 23) / 2.0 ** 23)
    stored[name + "_scale"] = ("F8_E4M3", groups, scale.tobytes())
    stored[name + "_global_scale"] = ("F32", (1,), whole.astype("<f4").tobytes())
    return stored, E2M1[unpacked(data)] * np.repeat(e4m3_values()[scale] / whole, size, 1)


def form_of(name, style):
    """How a matrix is stored: in "fourbit" attention is NVFP4, experts are MXFP4, other MLPs W4A16."""
    if style != "fourbit":
        return style
    if ".experts." in name:
        return "mxfp4"
    return "nvfp4" if ".self_attn." in name else "w4a16"


def bf16_bytes(values):
    bits = values.astype(np.float32).view(np.uint32)
    if (bits & 0xFFFF).any():
        raise ValueError("not exact in BF16")
    return (bits >> 16).astype("<u2").tobytes()


def expand_scale(scale, shape, style):
    """The scale of every weight, float64 [shape]."""
    if style == "mxfp8":
        return np.repeat(2.0 ** (scale.astype(np.float64) - 127), 32, axis=1)
    return np.repeat(np.repeat(scale.astype(np.float64), 128, 0), 128, 1)[:shape[0], :shape[1]]


def model(shapes, seed, style, fine_router=False):
    """(stored tensors for files.to_bytes, exact values as float64) of a model with these {name: shape}.

    style: "bf16" as the BF16 release, "mxfp8" as the MXFP8 release, "f8_block" E4M3 with F32 scales per 128x128, or one
    of FOUR_BITS."""
    stored, values = {}, {}
    for name, shape in shapes.items():
        e = exponent(name, shape)
        text = name.startswith("language_model.")
        if style in FOUR_BITS and text and name.endswith(QUANTISED):
            tensors, values[name] = packed_tensors(name, shape, seed, e, form_of(name, style))
            stored |= tensors
        elif style != "bf16" and text and name.endswith(QUANTISED):
            codes = e4m3_tensor(name, shape, seed)
            scale_dtype, scale = scale_tensor(name + "_scale_inv", shape, seed, e, style)
            stored[name] = ("F8_E4M3", shape, codes.tobytes())
            stored[name + "_scale_inv"] = (scale_dtype, scale.shape, scale.tobytes())
            values[name] = e4m3_values()[codes] * expand_scale(scale, shape, style)
        elif name.endswith(KEPT_F32):
            router = fine_router and text
            values[name] = (router_values if router else plain_values)(name, shape, seed, e)
            single = values[name].astype(np.float32)
            if (single != values[name]).any():
                raise ValueError(f"{name}: not exact in F32")
            stored[name] = ("F32", shape, single.astype("<f4").tobytes())
        else:
            values[name] = plain_values(name, shape, seed, e)
            stored[name] = ("BF16", shape, bf16_bytes(values[name]))
    return stored, values


def token_ids(seed, count, vocabulary, reserved):
    """`count` ids, uniform on the vocabulary without the reserved ids. int64 [count]"""
    allowed = np.array([token for token in range(vocabulary) if token not in reserved])
    return allowed[draw("input_ids", seed, count, len(allowed))].astype(np.int64)

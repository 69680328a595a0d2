"""Bytes: safetensors files written the same way every time, and the two hashes that bind a golden to its inputs.

The reference writer keeps metadata in a hash map, so its files differ from run to run; this one sorts everything.
A stored tensor is a triple (dtype name, shape, bytes), so that BF16 and F8_E4M3 need no array type.
"""

import gzip
import hashlib
import json
import os
import struct

import numpy as np

SIZES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "U8": 1}
ARRAYS = {"F64": "<f8", "I64": "<i8", "F32": "<f4", "I32": "<i4", "BF16": "<u2", "F16": "<f2", "F8_E4M3": "u1",
          "U8": "u1"}

WHOLE_BYTES = 64 * 10**9


def from_array(array):
    """The stored tensor of a NumPy array of float64, float32, float16, int64, int32 or uint8."""
    names = {"float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "uint8": "U8"}
    name = names[array.dtype.name]
    return name, array.shape, np.ascontiguousarray(array).astype(ARRAYS[name]).tobytes()


def to_bytes(tensors, metadata=None):
    """A safetensors file: widest dtype first, then by name; header padded with spaces to 8 bytes."""
    names = sorted(tensors, key=lambda name: (-SIZES[tensors[name][0]], name))
    header, offset = {}, 0
    if metadata:
        header["__metadata__"] = {key: metadata[key] for key in sorted(metadata)}
    for name in names:
        dtype, shape, data = tensors[name]
        if len(data) != SIZES[dtype] * int(np.prod(shape, dtype=np.int64)):
            raise ValueError(f"{name}: {len(data)} bytes do not make {dtype} {list(shape)}")
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(tensors[name][2] for name in names)


def write(path, data):
    """Writes bytes; a name that ends in .gz gets a gzip container without a time stamp."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(gzip.compress(data, 9, mtime=0) if path.endswith(".gz") else data)


def write_json(path, value):
    write(path, (json.dumps(value, indent=2) + "\n").encode())


def read(path):
    """(NumPy arrays, metadata) of a safetensors file, gzipped or not; BF16 and F8 come as raw integers."""
    with open(path, "rb") as file:
        data = file.read()
    if path.endswith(".gz"):
        data = gzip.decompress(data)
    length = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + length])
    metadata = header.pop("__metadata__", {})
    arrays = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        arrays[name] = np.frombuffer(data[begin:end], ARRAYS[entry["dtype"]]).reshape(entry["shape"])
    return arrays, metadata


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def model_sha256(folder):
    """config.json, then per weight file in byte order of names: base name, a zero byte, length bytes and header."""
    digest = hashlib.sha256()
    with open(os.path.join(folder, "config.json"), "rb") as file:
        digest.update(file.read())
    for name in sorted(name for name in os.listdir(folder) if name.endswith(".safetensors")):
        with open(os.path.join(folder, name), "rb") as file:
            length = file.read(8)
            header = file.read(struct.unpack("<Q", length)[0])
        digest.update(name.encode() + b"\0" + length + header)
    return digest.hexdigest()


def weights_sha256(folder):
    """JSON: the SHA-256 of each weight file, as m3ref writes it (SPEC 3.5). None above 64 GB, where m3ref samples."""
    hashes, total = {}, 0
    for name in sorted(name for name in os.listdir(folder) if name.endswith(".safetensors")):
        path = os.path.join(folder, name)
        total += os.path.getsize(path)
        if total > WHOLE_BYTES:
            return None
        with open(path, "rb") as file:
            hashes[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return json.dumps(hashes)


def case_sha256(inputs):
    """The integer inputs of a case in byte order of names: name, a zero byte, rank, dims, values."""
    digest = hashlib.sha256()
    for name in sorted(inputs):
        values = np.asarray(inputs[name])
        digest.update(name.encode() + b"\0" + struct.pack(f"<{1 + values.ndim}Q", values.ndim, *values.shape))
        digest.update(values.astype("<i8").tobytes())
    return digest.hexdigest()

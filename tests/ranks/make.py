"""Inputs of test_ranks.sh. usage: make.py packed OUT | make.py nan MODEL.safetensors TENSOR OUT | make.py long OUT T V"""
import json
import struct
import sys


def write(path, tensors):
    header, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)


def integers(numbers):
    return ("I32", [len(numbers)], struct.pack(f"<{len(numbers)}i", *numbers))


def packed(out):
    """Three sequences of different lengths, one of a single token."""
    write(out, {"input_ids": integers([(7 * i) % 90 for i in range(60)]), "cu_seqlens": integers([0, 37, 38, 60])})


def nan(model, tensor, out):
    """The same model with a NaN as first element of a BF16 or F32 tensor."""
    with open(model, "rb") as file:
        data = bytearray(file.read())
    (length,) = struct.unpack("<Q", data[:8])
    t = json.loads(data[8 : 8 + length])[tensor]
    bits = {"BF16": b"\xc0\x7f", "F32": b"\0\0\xc0\x7f"}[t["dtype"]]
    at = 8 + length + t["data_offsets"][0]
    data[at : at + len(bits)] = bits
    with open(out, "wb") as file:
        file.write(data)


def long(out, tokens, vocabulary):
    write(out, {"input_ids": integers([(i * i + 3 * i) % int(vocabulary) for i in range(int(tokens))])})


if __name__ == "__main__":
    {"packed": packed, "nan": nan, "long": long}[sys.argv[1]](*sys.argv[2:])

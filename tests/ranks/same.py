"""usage: same.py A B: do two safetensors files hold the same tensors, byte for byte? Their metadata may differ."""
import json
import struct
import sys


def tensors(path):
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    body = data[8 + length :]
    return {name: (t["dtype"], t["shape"], body[slice(*t["data_offsets"])]) for name, t in header.items()}


def main():
    a, b = tensors(sys.argv[1]), tensors(sys.argv[2])
    differ = sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))
    print(f"{len(a)} tensors, {len(differ)} differ {' '.join(differ[:5])}")
    return 1 if differ or not a else 0


if __name__ == "__main__":
    sys.exit(main())

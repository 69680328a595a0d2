"""Files of arrays, and types that NumPy does not have."""
import fcntl
import gzip
import os
import random
import struct
import subprocess
import sys

import numpy as np
import pytest

import m3ref
from m3ref import tensors


def example():
    return {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(7, np.int64), "c": np.zeros((0, 3), "f8"),
            "d": np.array([True, False]), "e": np.arange(3, dtype=np.uint8), "f": np.arange(5, dtype=np.float16),
            "bf": tensors.stored(np.array([0x3F80, 0xC000], np.uint16), "BF16")}


@pytest.mark.parametrize("name", ["t.safetensors", "t.safetensors.gz"])
def test_files(tmp_path, name):
    m3ref.save(tmp_path / name, example(), {"format": "m3ref-dump"})
    read = m3ref.load(tmp_path / name)
    assert read.metadata == {"format": "m3ref-dump"} and set(read) == set(example())
    for key, want in example().items():
        assert read[key].shape == want.shape and tensors.format_of(read[key]) == tensors.format_of(want)
        assert np.array_equal(tensors.bits_of(read[key]), tensors.bits_of(want))
    assert list(tmp_path.iterdir()) == [tmp_path / name]
    m3ref.save(tmp_path / "again.safetensors", read)
    assert m3ref.load(tmp_path / "again.safetensors").metadata == read.metadata


# The program refuses offsets that are not multiples of the type's size. Seen to fail with narrow types first.
def test_the_program_reads_them(tmp_path):
    m3ref.save(tmp_path / "t.safetensors", example())
    done = subprocess.run([m3ref.program(), "inspect", tmp_path / "t.safetensors"], capture_output=True, text=True)
    assert done.returncode == 0 and "BF16" in done.stdout, done.stderr


def test_transposed_and_sliced_arrays(tmp_path):
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    m3ref.save(tmp_path / "t", {"t": x.T, "s": x[:, ::2]})
    read = m3ref.load(tmp_path / "t")
    assert np.array_equal(read["t"], x.T) and np.array_equal(read["s"], x[:, ::2])


def test_files_that_are_none(tmp_path):
    path = tmp_path / "bad"
    header = b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
    for data in (b"", b"123", struct.pack("<Q", 1 << 60) + b"{}", struct.pack("<Q", len(header)) + header + b"12",
                 struct.pack("<Q", 4) + b"[[]]", struct.pack("<Q", len(header)) + header.replace(b"F32", b"F33")):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="not a safetensors file"):
            m3ref.load(path)
    with pytest.raises(TypeError, match="complex"):
        m3ref.save(path, {"a": np.zeros(2, complex)})


# Seen to fail with sizes over 64 bits, lists that are nested too deep, and files of gzip that end early.
def test_mutations(tmp_path):
    m3ref.save(tmp_path / "good", example())
    good, draw = (tmp_path / "good").read_bytes(), random.Random(1)
    end = 8 + struct.unpack("<Q", good[:8])[0]
    edges = [b"9" * 30, b"-1", b"[" * 3000, b"null", b'"', b"}", bytes(8), b"\xff" * 4]
    for i in range(400):
        data = bytearray(good)
        for _ in range(draw.choice([1, 1, 3])):
            at, piece = draw.randrange(end), draw.choice(edges + [draw.randbytes(1)] * 3)
            data[at : at + draw.choice([0, len(piece)])] = piece
        if i % 2 and (grown := len(data) - len(good)) >= 0:
            data[:8] = struct.pack("<Q", end - 8 + grown)
        packed = gzip.compress(bytes(data))
        for path, content in ((tmp_path / "bad", data), (tmp_path / "bad.gz", packed[: draw.randrange(len(packed))])):
            path.write_bytes(content)
            try:
                m3ref.load(path)
            except ValueError as why:
                assert str(path) in str(why)


def test_npz(tmp_path):
    plain = {name: value for name, value in example().items() if name != "bf"}
    np.savez(tmp_path / "t.npz", **plain)
    read = m3ref.load(tmp_path / "t.npz")
    assert set(read) == set(plain)
    for name, want in plain.items():
        assert read[name].dtype == want.dtype and np.array_equal(read[name], want)
    np.savez(tmp_path / "o.npz", o=np.array([{}], object))
    (tmp_path / "no.npz").write_bytes(b"PK\3\4 and nothing else")
    for name in ("o.npz", "no.npz"):
        with pytest.raises(ValueError, match=f"{name}: not an .npz file of arrays"):
            m3ref.load(tmp_path / name)


# Needs torch, which the environment of the tests may lack. A file with code in it must not run it.
def test_pt(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.arange(6.).reshape(2, 3), "layers": [{"b": torch.ones(2, dtype=torch.bfloat16)}], "n": 3},
               tmp_path / "t.pt")
    read = m3ref.load(tmp_path / "t.pt")
    assert set(read) == {"a", "layers.0.b"} and tensors.format_of(read["layers.0.b"]) == "BF16"
    assert np.array_equal(read["a"], np.arange(6, dtype=np.float32).reshape(2, 3))

    class Code:
        def __reduce__(self):
            return open, (str(tmp_path / "written"), "w")

    torch.save({"a": Code()}, tmp_path / "code.pt")
    torch.save({"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}, tmp_path / "twice.pt")
    for name in ("code.pt", "twice.pt"):
        with pytest.raises(ValueError, match=f"{name}: not a .pt file of tensors"):
            m3ref.load(tmp_path / name)
    assert not (tmp_path / "written").exists()


def test_pt_without_torch(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "t.pt").write_bytes(b"PK")
    with pytest.raises(ValueError, match="expected torch to be installed"):
        m3ref.load(tmp_path / "t.pt")


def converted(*words):
    paths = os.pathsep.join(filter(None, sys.path))         # the package may be on the path of this process alone
    return subprocess.run([sys.executable, "-m", "m3ref", "convert", *map(str, words)], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": paths})


# The program names the way, and after it reads the file. Bad files: one line, and nothing is written.
def test_convert(tmp_path):
    np.savez(tmp_path / "t.npz", a=np.arange(3, dtype=np.float32))
    refused = subprocess.run([m3ref.program(), "inspect", tmp_path / "t.npz"], capture_output=True, text=True)
    assert refused.returncode == 65 and refused.stderr.count("\n") == 1 and "python -m m3ref convert" in refused.stderr
    done = converted(tmp_path / "t.npz", tmp_path / "t.safetensors")
    assert done.returncode == 0, done.stderr
    assert np.array_equal(m3ref.load(tmp_path / "t.safetensors")["a"], [0, 1, 2])
    (tmp_path / "bad.npz").write_bytes(b"PK\3\4")
    np.savez(tmp_path / "empty.npz")
    (tmp_path / "cut.gz").write_bytes(gzip.compress((tmp_path / "t.safetensors").read_bytes())[:-9])
    for source, target, status in (("bad.npz", "o.safetensors", 65), ("empty.npz", "o.safetensors", 65),
                                   ("none.npz", "o.safetensors", 66), ("t.npz", "o.txt", 64),
                                   ("cut.gz", "o.safetensors", 65), ("t.npz", "none/o.safetensors", 74),
                                   ("t.safetensors", "t.safetensors", 64)):
        done = converted(tmp_path / source, tmp_path / target)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (status, "", 1), done
        assert not (tmp_path / "o.safetensors").exists() and not (tmp_path / "o.txt").exists()
        assert "part" not in done.stderr
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "m3ref", "convert", tmp_path / "t.npz", tmp_path / "o.safetensors"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE,
                              env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    assert (done.returncode, done.stderr) == (74, b"m3ref: standard output: No space left on device\n")


# What a process that was killed has left goes at the next write; what another is writing stays.
def test_left_overs(tmp_path):
    (tmp_path / "t.1.part").write_bytes(b"")
    with open(tmp_path / "t.2.part", "wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        m3ref.save(tmp_path / "t", example())
    assert sorted(os.listdir(tmp_path)) == ["t", "t.2.part"]


# Seen to fail with a Stored that allows ufuncs: 2 x BF16 1 was 2 x 16256.
def test_bits_are_not_computed_with():
    x = m3ref.Stored(np.array([0x3F80, 0xC000], np.uint16), "BF16")
    assert x.float32().tolist() == [1.0, -2.0] and x[1:].format == "BF16"
    for operation in (lambda: x * 2, lambda: x + x, lambda: -x, lambda: np.sqrt(x)):
        with pytest.raises(TypeError):
            operation()


@pytest.mark.parametrize("dtype,format", [("bf16", "BF16"), ("f16", "F16"), ("f32", "F32")])
def test_operands_keep_their_type(dtype, format):
    case = m3ref.cases("rms_norm", dtype=dtype)[-1]
    assert {tensors.format_of(array) for array in case.inputs.values()} == {format}
    assert case.check(m3ref.op.rms_norm(**case.inputs, **case.params)).require()


def test_results_in_bf16():
    case = m3ref.cases("rms_norm")[-1]
    y = m3ref.op.rms_norm(**case.inputs, **case.params)
    half = (y.view(np.uint32) + 0x7FFF + (y.view(np.uint32) >> 16 & 1)) >> 16       # to nearest, ties to even
    rounded = tensors.stored(half.astype(np.uint16), "BF16")
    assert case.check(rounded, profile="bf16").verdict == "pass" and case.check(rounded).verdict == "fail"

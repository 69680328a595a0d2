"""Arrays, and safetensors files of them, on a disk or in memory."""
import contextlib
import fcntl
import glob
import gzip
import io
import json
import mmap
import os
import struct
import sys
import tempfile
import zipfile
import zlib

import numpy as np

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

PLAIN = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "?"}
# Types that NumPy does not have: the bits, and the name in ml_dtypes and torch.
BITS = {"BF16": ("<u2", "bfloat16", "bfloat16"), "F8_E4M3": ("u1", "float8_e4m3fn", "float8_e4m3fn"),
        "F8_E8M0": ("u1", "float8_e8m0fnu", "float8_e8m0fnu")}


class Stored(np.ndarray):
    """Numbers of a type that NumPy does not have, as their bits; `format` is "BF16", "F8_E4M3" or "F8_E8M0".

    Arithmetic is refused, because it would compute with the bits. If ml_dtypes is installed, its types are used
    instead of this class."""

    __array_ufunc__ = None

    def __new__(cls, bits, format):
        array = np.asarray(bits).view(cls)
        array.format = format
        return array

    def __array_finalize__(self, other):
        self.format = getattr(other, "format", None)

    def bits(self):
        return np.asarray(self).view(np.ndarray)

    def float32(self):
        """The same numbers as float32; BF16 only."""
        if self.format != "BF16":
            raise TypeError(f"got {self.format}, expected BF16: install ml_dtypes for its numbers")
        return (self.bits().astype(np.uint32) << 16).view(np.float32)


def stored(bits, format):
    """Bits as an array of that type."""
    if format in PLAIN:
        return bits
    name = BITS[format][1]
    return bits.view(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else Stored(bits, format)


def format_of(array, name="array"):
    """The dtype as safetensors spells it."""
    if isinstance(array, Stored) and array.format:
        return array.format
    for format, dtype in PLAIN.items():
        if array.dtype == np.dtype(dtype):
            return format
    for format, (_, spelled, _) in BITS.items():
        if array.dtype.name == spelled:
            return format
    raise TypeError(f"{name}: got dtype {array.dtype}, expected one of {', '.join([*PLAIN, *BITS])}")


def bits_of(array):
    """The array as one of a type that NumPy has, with the same bytes."""
    if isinstance(array, Stored):
        return array.bits()
    if array.dtype.kind == "V" or array.dtype.name in [names[1] for names in BITS.values()]:
        return array.view(np.uint16 if array.dtype.itemsize == 2 else np.uint8)
    return array


def is_torch(value):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def from_torch(tensor):
    torch = sys.modules["torch"]
    tensor = tensor.detach().cpu().contiguous()
    for format, (bits, _, name) in BITS.items():
        if tensor.dtype == getattr(torch, name, None):
            plain = tensor.view(torch.int16 if bits == "<u2" else torch.uint8).numpy()
            return stored(plain.view(bits), format)
    return tensor.numpy()


def to_array(value):
    """A NumPy array with the numbers of a NumPy array, a torch tensor, an array with DLPack or `.get()`, or a list."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError("got a masked array, expected one without a mask, which would be ignored")
    if isinstance(value, np.ndarray):
        return value
    if is_torch(value):
        return from_torch(value)
    if hasattr(value, "__cuda_array_interface__") and hasattr(value, "get"):
        return value.get()
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        return np.from_dlpack(value)
    return np.asarray(value)


def to_torch(array, device=None):
    """A torch tensor with the same numbers and type."""
    import torch
    format, bits = format_of(array), np.array(bits_of(array))
    # from_numpy knows int16 in every version, uint16 only in newer ones.
    tensor = torch.from_numpy(bits.view("<i2") if format == "BF16" else bits)
    if format in BITS:
        tensor = tensor.view(getattr(torch, BITS[format][2]))
    return tensor if device is None else tensor.to(device)


def numbers_of(array):
    """The array as one with which NumPy can compute."""
    if isinstance(array, Stored):
        return array.float32()
    return array.astype(np.float32) if format_of(array) in BITS else array


class Dump(dict):
    """Arrays by name, with the `metadata` of their file."""

    def __init__(self, tensors=(), metadata=None):
        super().__init__(tensors)
        self.metadata = dict(metadata or {})


def pieces(tensors, metadata):
    """The bytes of a safetensors file, in pieces. Wide types come first, so that every tensor is aligned."""
    arrays = {name: np.ascontiguousarray(a).reshape(a.shape) if not isinstance(a, Stored) else
              Stored(np.ascontiguousarray(a.bits()).reshape(a.shape), a.format)
              for name, a in ((name, to_array(value)) for name, value in tensors.items())}
    # The seal is that of a file that was read: this is another.
    metadata = {key: text for key, text in (metadata or {}).items() if key != "seal_sha256"}
    header, at = ({"__metadata__": metadata} if metadata else {}), 0
    order = sorted(arrays, key=lambda name: -arrays[name].dtype.itemsize)
    for name in order:
        a = arrays[name]
        header[name] = {"dtype": format_of(a, name), "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for name in order:
        if arrays[name].nbytes:
            yield memoryview(bits_of(arrays[name]).reshape(-1)).cast("B")


def sweep(path):
    """Removes what processes that were killed have left of this file: nobody locks it."""
    for part in glob.glob(f"{glob.escape(path)}.*.part"):
        with contextlib.suppress(OSError), open(part, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(part)


def write_whole(path, pieces, packed=False):
    """Writes a file completely or not at all: under another name, which is then replaced."""
    path = os.fspath(path)
    sweep(path)
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(part, "wb") as file:
            with contextlib.suppress(OSError):      # not every disk has locks
                fcntl.flock(file, fcntl.LOCK_EX)
            with gzip.GzipFile("", "wb", fileobj=file) if packed else contextlib.nullcontext(file) as to:
                for piece in pieces:
                    to.write(piece)
            file.flush()
            os.fsync(file.fileno())
            os.replace(part, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)


def save(path, tensors, metadata=None):
    """Writes arrays to a safetensors file; `.gz` packs it. Metadata: that of a Dump, or given."""
    metadata = getattr(tensors, "metadata", {}) if metadata is None else metadata
    write_whole(path, pieces(tensors, metadata), os.fspath(path).endswith(".gz"))


def parse(data, name):
    """A Dump whose arrays are views of the bytes."""
    try:
        length = struct.unpack_from("<Q", data)[0]
        if 8 + length > len(data):
            raise ValueError(f"got a header of {length} bytes, expected at most {len(data) - 8}")
        header = json.loads(bytes(data[8:8 + length]))
        metadata, dump = header.pop("__metadata__", {}), Dump()
        for key, entry in header.items():
            begin, end = entry["data_offsets"]
            dtype = np.dtype(PLAIN.get(entry["dtype"]) or BITS[entry["dtype"]][0])
            count = int(np.prod(entry["shape"], dtype=np.int64))
            if end - begin != count * dtype.itemsize or 8 + length + end > len(data):
                raise ValueError(f"{key}: got {end - begin} bytes, expected {count * dtype.itemsize} in the file")
            bits = np.frombuffer(data, dtype, count, 8 + length + begin) if count else np.empty(0, dtype)
            dump[key] = stored(bits.reshape(entry["shape"]), entry["dtype"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, struct.error) as why:
        raise ValueError(f"{name}: not a safetensors file: {why}") from None
    dump.metadata = metadata
    return dump


def load_npz(path):
    """The arrays of np.savez; objects are refused."""
    with open(path, "rb") as file:
        data = io.BytesIO(file.read())          # zipfile takes an error of the disk for a file of another kind
    try:
        with np.load(data, allow_pickle=False) as archive:
            return Dump({name: np.array(archive[name]) for name in archive.files})
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as why:
        raise ValueError(f"{path}: not an .npz file of arrays: {why}") from None


def flat(value, name, into):
    """Tensors in dicts, lists and tuples, with names joined by dots."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else None
    if parts is None:
        if is_torch(value) or isinstance(value, np.ndarray):
            if name in into:
                raise ValueError(f"two tensors are called {name}")
            into[name] = to_array(value)
        return into
    for key, part in parts:
        flat(part, f"{name}.{key}" if name else str(key), into)
    return into


def load_pt(path):
    """The tensors of torch.save. weights_only: a file of another kind is refused, and no code in it runs."""
    try:
        import torch
    except ImportError:
        raise ValueError(f"{path}: got a file of PyTorch, expected torch to be installed to read it") from None
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        tensors = flat(saved, "tensor" if is_torch(saved) else "", {})
    except Exception as why:                    # torch raises many kinds
        if getattr(why, "errno", None):
            raise
        reason = (str(why).strip().splitlines() or [type(why).__name__])[0]
        raise ValueError(f"{path}: not a .pt file of tensors: {reason}") from None
    return Dump(tensors)


def load(path):
    """Reads safetensors, .npz or .pt (.pth, .bin) files. Arrays of safetensors are read-only views of the file."""
    path = os.fspath(path)
    if path.endswith(".npz"):
        return load_npz(path)
    if path.endswith((".pt", ".pth", ".bin")):
        return load_pt(path)
    if path.endswith(".gz"):
        try:
            with gzip.open(path, "rb") as file:
                return parse(file.read(), path)
        except (gzip.BadGzipFile, EOFError, zlib.error) as why:
            raise ValueError(f"{path}: not a gzip file: {why}") from None
    with open(path, "rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as why:
            raise ValueError(f"{path}: not a safetensors file: {why}") from None
    return parse(data, path)


class Memory:
    """A file in memory that the library opens by its path. on_disk: a file without a name in the folder for temporary
    files, for data that may be larger than memory."""

    def __init__(self, tensors=None, metadata=None, on_disk=False):
        if on_disk:
            with tempfile.TemporaryFile() as file:
                self.fd = os.dup(file.fileno())
        else:
            self.fd = os.memfd_create("m3ref", os.MFD_CLOEXEC)
        self.path = f"/proc/self/fd/{self.fd}"
        if tensors is not None:
            with open(self.fd, "wb", closefd=False) as file:
                for piece in pieces(tensors, metadata):
                    file.write(piece)

    def load(self, name):
        return parse(mmap.mmap(self.fd, 0, access=mmap.ACCESS_READ), name)

    def __del__(self):
        if getattr(self, "fd", -1) >= 0:
            os.close(self.fd)
            self.fd = -1


def file_of(source):
    """(path, what keeps it alive) of a path, or of arrays by name."""
    if isinstance(source, dict):
        memory = Memory(source, getattr(source, "metadata", {}))
        return memory.path, memory
    return os.fspath(source), None

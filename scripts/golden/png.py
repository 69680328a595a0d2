"""A PNG writer for every colour type, bit depth and interlace method: Pillow writes no Adam7 and few of the depths.

Rows take the five filters in turn, the data come in chunks of 60 bytes, and deflate only stores, so that a file has the
same bytes whatever the zlib.
"""

import struct
import zlib

import numpy as np

GREY, RGB, PALETTE, GREY_ALPHA, RGBA = 0, 2, 3, 4, 6
PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))  # x y dx dy
DATA_BYTES = 60


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def pack(samples, depth):
    """Rows of bytes [h,n] of samples [h,w,channels]; the first sample takes the high bits."""
    rows = samples.reshape(len(samples), -1)
    if depth == 16:
        return np.stack((rows >> 8, rows & 255), axis=-1).reshape(len(rows), -1).astype(np.uint8)
    bits = (rows[..., None] >> np.arange(depth)[::-1]) & 1
    return np.packbits(bits.reshape(len(rows), -1).astype(np.uint8), axis=1)


def paeth(left, above, corner):
    estimate = left + above - corner
    distances = [abs(estimate - value) for value in (left, above, corner)]
    return (left, above, corner)[distances.index(min(distances))]


def filtered(rows, step):
    """The bytes of one pass: each row after its filter number; `step` is the distance to the byte on the left."""
    out, above = bytearray(), np.zeros(rows.shape[1], np.int64)
    for number, row in enumerate(rows.astype(np.int64)):
        left, corner = (np.concatenate((np.zeros(step, np.int64), line))[:len(row)] for line in (row, above))
        kind = number % 5
        guess = (0 * row, left, above, (left + above) // 2,
                 np.array([paeth(*values) for values in zip(left, above, corner)], np.int64))[kind]
        out += bytes([kind]) + ((row - guess) & 255).astype(np.uint8).tobytes()
        above = row
    return bytes(out)


def encode(samples, depth, colour, palette=None, transparency=b"", interlaced=False, before=()):
    """The file of integer samples [h,w,channels]. palette [n,3]; `before`: (kind, data) of chunks ahead of the data."""
    height, width, channels = samples.shape
    step = max(1, channels * depth // 8)
    parts = [samples[y::dy, x::dx] for x, y, dx, dy in PASSES] if interlaced else [samples]
    data = b"".join(filtered(pack(part, depth), step) for part in parts if part.size)
    data = zlib.compress(data, 0)
    file = b"\x89PNG\r\n\x1a\n"
    file += chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, int(interlaced)))
    file += b"".join(chunk(kind, content) for kind, content in before)
    if palette is not None:
        file += chunk(b"PLTE", palette.astype(np.uint8).tobytes())
    if transparency:
        file += chunk(b"tRNS", transparency)
    for start in range(0, len(data), DATA_BYTES):
        file += chunk(b"IDAT", data[start:start + DATA_BYTES])
    return file + chunk(b"IEND", b"")

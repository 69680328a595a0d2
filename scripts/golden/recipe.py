"""Preprocessing once more, in NumPy and Python integers: the public processors must give the same, bit for bit.

Written from the rules (sizes, resampling, normalisation, patches), with nothing of the public code.
"""

import math

import numpy as np

FACTOR, PATCH, MERGE, FRAMES = 28, 14, 2, 2
IMAGE_LIMITS, VIDEO_LIMITS = (3136, 451584), (3136, 602112)
LARGEST_ASPECT = 200
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)


def half_even(numerator, denominator):
    """Nearest integer of a fraction in exact integers; half goes to the even one."""
    quotient, rest = divmod(2 * numerator + denominator, 2 * denominator)
    return quotient - (rest == 0 and quotient % 2)


def smart_resize(height, width, least, most):
    """(height, width), multiples of 28; (-1, -1) beyond an aspect ratio of 200."""
    if max(height, width) > LARGEST_ASPECT * min(height, width):
        return -1, -1
    h, w = (half_even(side, FACTOR) * FACTOR for side in (height, width))
    if h * w > most:
        beta = math.sqrt(height * width / most)
        return tuple(max(FACTOR, math.floor(side / beta / FACTOR) * FACTOR) for side in (height, width))
    if h * w < least:
        beta = math.sqrt(least / (height * width))
        return tuple(math.ceil(side * beta / FACTOR) * FACTOR for side in (height, width))
    return h, w


def cubic(x):
    """The cubic of a = -1/2."""
    x = abs(x)
    if x < 1:
        return (1.5 * x - 2.5) * x * x + 1
    return ((-0.5 * x + 2.5) * x - 4) * x + 2 if x < 2 else 0.0


def taps(size_in, size_out):
    """Per output: (first input, integer weights); and the number of fraction bits."""
    scale = size_in / size_out
    stretch = max(scale, 1.0)
    rows = []
    for o in range(size_out):
        centre = scale * (o + 0.5)
        first = max(int(centre - 2 * stretch + 0.5), 0)
        last = min(int(centre + 2 * stretch + 0.5), size_in)
        weights = [cubic((i - centre + 0.5) / stretch) for i in range(first, last)]
        total = sum(weights)
        rows.append((first, [weight / total for weight in weights]))
    largest = max(max(weights) for _, weights in rows)
    bits = max(p for p in range(23) if int(0.5 + largest * 2 ** p) < 2 ** 15)
    away = [(first, [int(w * 2 ** bits + math.copysign(0.5, w)) for w in weights]) for first, weights in rows]
    return away, bits


def resample(image, size_out, axis):
    """One pass along an axis of [h,w,3] uint8, rounded and clamped to uint8."""
    if image.shape[axis] == size_out:
        return image
    rows, bits = taps(image.shape[axis], size_out)
    wide = np.moveaxis(image, axis, 0).astype(np.int64)
    out = np.stack([(2 ** (bits - 1) + np.tensordot(np.array(weights), wide[first:first + len(weights)], 1)) >> bits
                    for first, weights in rows])
    return np.moveaxis(np.clip(out, 0, 255).astype(np.uint8), 0, axis)


def bicubic(image, size):
    """[h2,w2,3] uint8 from [h,w,3] uint8: along the width first, then along the height."""
    return np.ascontiguousarray(resample(resample(image, size[1], 1), size[0], 0))


def normalise(image):
    """fp32 [...,3]: subtract 255 mean, divide by 255 std, both rounded to fp32 before."""
    mean, std = (np.array(values, np.float32) * np.float32(255) for values in (MEAN, STD))
    return (image.astype(np.float32) - mean) / std


def patches(frames):
    """(fp32 [P,1176], [t,h,w]) of frames [n,h,w,3] uint8, sides multiples of 28. An odd last frame is repeated."""
    if len(frames) % FRAMES:
        frames = np.concatenate((frames, frames[-1:]))
    t, h, w = len(frames) // FRAMES, frames.shape[1] // PATCH, frames.shape[2] // PATCH
    x = normalise(frames).reshape(t, FRAMES, h // MERGE, MERGE, PATCH, w // MERGE, MERGE, PATCH, 3)
    #   axes:                     0  1       2           3      4      5           6      7      8
    x = x.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)                  # t, h/2, w/2, 2, 2; channel, frame, row, column
    return x.reshape(t * h * w, -1), [t, h, w]


def pixel_values(frames, limits):
    """(fp32 [P,1176], [t,h,w]) of frames [n,h,w,3] uint8 of any size."""
    size = smart_resize(*frames.shape[1:3], *limits)
    return patches(np.stack([bicubic(frame, size) for frame in frames]))

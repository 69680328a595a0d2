"""golden/pictures/: expected values of everything between a file of a picture and the rows that enter the tower.

Pillow decodes, PyTorch resamples, the public processors do the whole; png.py's samples and recipe.py are the second
witness, and equality to the bit is demanded.
"""

import io
import json
import os
import warnings

import numpy as np
import PIL
import PIL.Image

import files
import judge
import png
import processors
import recipe
import synth

NAME = "pictures"
CLIPPED = [0, 1, 127, 128, 254, 255, 256, 257, 511, 512, 32767, 32768, 65279, 65280, 65534, 65535]
warnings.filterwarnings("ignore", message="Palette images with Transparency")


def demand(equal, what):
    if not equal:
        raise judge.Refused(f"pictures: {what}")


# ---- files: (name, width, height, colour type, depth, options)

FILES = [
    ("grey1", 13, 7, png.GREY, 1, {}), ("grey2", 7, 5, png.GREY, 2, {}), ("grey4", 5, 9, png.GREY, 4, {}),
    ("grey8", 13, 7, png.GREY, 8, {}), ("grey16", 17, 5, png.GREY, 16, {}),
    ("grey8_trns", 9, 5, png.GREY, 8, {"transparent": True}),
    ("grey16_trns", 17, 5, png.GREY, 16, {"transparent": True}),
    ("palette1", 11, 3, png.PALETTE, 1, {"colours": 2}), ("palette2", 7, 5, png.PALETTE, 2, {"colours": 3}),
    ("palette4", 9, 5, png.PALETTE, 4, {"colours": 11}), ("palette8", 13, 17, png.PALETTE, 8, {"colours": 201}),
    ("palette8_trns", 13, 7, png.PALETTE, 8, {"colours": 40, "transparent": True}),
    ("rgb8", 13, 7, png.RGB, 8, {}), ("rgb16", 13, 7, png.RGB, 16, {}),
    ("rgb8_trns", 7, 5, png.RGB, 8, {"transparent": True}),
    ("rgb8_gamma", 7, 5, png.RGB, 8, {"before": [(b"gAMA", (100000).to_bytes(4, "big"))]}),
    ("rgb8_turned", 7, 5, png.RGB, 8, {"before": [(b"eXIf", b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0"
                                                  b"\x06\0\0\0\0\0\0\0")]}),
    ("rgba8", 13, 7, png.RGBA, 8, {"before": [(b"bKGD", b"\0\xff\0\x80\0\x01")]}), ("rgba16", 9, 5, png.RGBA, 16, {}),
    ("grey_alpha8", 13, 7, png.GREY_ALPHA, 8, {}), ("grey_alpha16", 9, 5, png.GREY_ALPHA, 16, {}),
    ("grey1_adam7", 21, 11, png.GREY, 1, {"interlaced": True}),
    ("grey16_adam7", 17, 5, png.GREY, 16, {"interlaced": True}),
    ("palette4_adam7", 13, 7, png.PALETTE, 4, {"colours": 13, "interlaced": True}),
    ("rgb8_adam7", 13, 9, png.RGB, 8, {"interlaced": True}), ("rgb16_adam7", 9, 9, png.RGB, 16, {"interlaced": True}),
    ("rgb8_adam7_3x1", 3, 1, png.RGB, 8, {"interlaced": True}), ("rgb8_1x1", 1, 1, png.RGB, 8, {}),
]
CHANNELS = {png.GREY: 1, png.RGB: 3, png.PALETTE: 1, png.GREY_ALPHA: 2, png.RGBA: 4}


def samples_of(name, width, height, colour, depth, colours=None):
    """Integers [h,w,channels]: every value that a depth has or, at 16 bits, the values around 8 bits first."""
    count = width * height * CHANNELS[colour]
    values = synth.draw(name, 1, count, colours or 2 ** depth)
    if depth == 16:
        values[:min(count, len(CLIPPED))] = CLIPPED[:count]
    return values.reshape(height, width, -1)


def encode(name, width, height, colour, depth, options):
    """(the file's bytes, the RGB that its samples mean to Pillow)."""
    samples = samples_of(name, width, height, colour, depth, options.get("colours"))
    palette, transparency = None, b""
    if colour == png.PALETTE:
        palette = synth.draw(name + "#palette", 1, 3 * options["colours"], 256).reshape(-1, 3)
        if options.get("transparent"):
            transparency = bytes(range(0, 255, 8))
    elif options.get("transparent"):
        transparency = b"".join(int(value).to_bytes(2, "big") for value in samples[1, 1])
    data = png.encode(samples, depth, colour, palette, transparency, options.get("interlaced", False),
                      options.get("before", ()))
    return data, meaning(samples, colour, depth, palette)


def meaning(samples, colour, depth, palette):
    """RGB [h,w,3]: alpha, transparency, gamma change nothing; 16 bits of plain grey are clamped, all others shifted."""
    if colour == png.PALETTE:
        return palette[samples[..., 0]].astype(np.uint8)
    if depth == 16:
        samples = np.minimum(samples, 255) if colour == png.GREY else samples >> 8
    else:
        samples = samples * (255 // (2 ** depth - 1))
    grey = colour in (png.GREY, png.GREY_ALPHA)
    return (np.repeat(samples[..., :1], 3, axis=2) if grey else samples[..., :3]).astype(np.uint8)


def rgb(data):
    """[h,w,3] uint8 of the bytes of a file, by Pillow."""
    return np.asarray(PIL.Image.open(io.BytesIO(data)).convert("RGB"))


def produce_files(folder):
    expected = {}
    for name, width, height, colour, depth, options in FILES:
        data, by_rule = encode(name, width, height, colour, depth, options)
        expected[name + ".png"] = rgb(data)
        demand(np.array_equal(expected[name + ".png"], by_rule), f"{name}.png: Pillow reads other colours")
        files.write(os.path.join(folder, name + ".png"), data)
    save(folder, "rgb.safetensors.gz", expected, {"pillow": PIL.__version__})


# ---- sizes

HALVES = range(14, 14 + 9 * 28, 28)                        # half-way between two multiples of 28
RELEASED = range(336, 2017, 336)
EXTREME = [(1, 1), (1, 2), (2, 1), (3, 5), (7, 13), (27, 29), (28, 28), (29, 27), (41, 43), (55, 57), (56, 56),
           (57, 55), (1, 200), (200, 1), (1, 201), (201, 1), (2, 400), (2, 401), (3, 599), (3, 600), (3, 601),
           (14, 2800), (14, 2801), (2801, 14), (28, 5600), (5600, 28), (5601, 28), (10, 2000), (13, 1999), (671, 673),
           (672, 672), (672, 673), (686, 672), (672, 686), (687, 672), (672, 896), (896, 672), (784, 768), (770, 784),
           (783, 769), (1080, 1920), (1920, 1080), (480, 640), (2160, 3840), (4000, 6000), (8191, 8193), (500, 100000),
           (65535, 65535), (99999, 1000), (20000, 20000), (1000000, 5000), (5000, 1000000), (2147483647, 2147483647)]


def sizes():
    """[n,2] height and width, without repetition, in a fixed order."""
    pairs = [(h, w) for h in HALVES for w in (h, 56, 100, 126)] + [(w, h) for h in HALVES for w in (56, 100)]
    pairs += [(h, w) for h in RELEASED for w in RELEASED] + EXTREME
    random = synth.draw("sizes", 1, 300, 2500).reshape(-1, 2) + 1
    pairs += [tuple(map(int, pair)) for pair in random] + sensitive()
    return list(dict.fromkeys(pairs))


def sensitive():
    """Sizes at which side / beta / 28 and side / (beta * 28) have different integer parts."""
    found = []
    for limit in (recipe.IMAGE_LIMITS[1], recipe.VIDEO_LIMITS[1]):
        for h in range(28, 3000, 28):
            for w in range(28, 3000, 28):
                beta = (h * w / limit) ** 0.5
                if beta > 1 and any(int(side / beta / 28) != int(side / (beta * 28)) for side in (h, w)):
                    found.append((h, w))
    return found[::max(1, len(found) // 20)][:24]


LIMITS = {"images": recipe.IMAGE_LIMITS, "videos": recipe.VIDEO_LIMITS}


def size_questions():
    return {"smart_resize": np.array([pair + limits for limits in LIMITS.values() for pair in sizes()], np.int64)}


def write_sizes(folder, questions, got):
    rows = [(*row, *result) for row, result in zip(questions["smart_resize"].tolist(), got["smart_resize"].tolist())]
    for row in rows:
        demand(recipe.smart_resize(*row[:4]) == row[4:], f"smart_resize{row[:4]} is {row[4:]}")
    text = {"factor": recipe.FACTOR, "columns": ["height", "width", "resized_height", "resized_width"]}
    for kind, limits in LIMITS.items():
        cases = [[*row[:2], *(row[4:] if row[4] > 0 else (None, None))] for row in rows if row[2:4] == limits]
        text[kind] = {"min_pixels": limits[0], "max_pixels": limits[1], "cases": cases}
    files.write(os.path.join(folder, "resize.json"), compact(text).encode())


def compact(value):
    """JSON with one case per line."""
    parts = []
    for key, entry in value.items():
        if isinstance(entry, dict):
            rows = ",\n".join("    " + json.dumps(row) for row in entry["cases"])
            limits = ", ".join(f"{json.dumps(name)}: {entry[name]}" for name in ("min_pixels", "max_pixels"))
            parts.append(f"  {json.dumps(key)}: {{{limits}, \"cases\": [\n{rows}\n  ]}}")
        else:
            parts.append(f"  {json.dumps(key)}: {json.dumps(entry)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


# ---- resampling: (pattern, height, width, new height, new width)

PAIRS = [("photo", 65, 97, 56, 84), ("noise", 30, 50, 3, 5), ("noise", 6, 5, 30, 25),
         ("noise", 28, 40, 28, 17), ("noise", 40, 28, 17, 28), ("noise", 1, 1, 28, 28), ("noise", 1, 37, 28, 56),
         ("noise", 37, 1, 56, 28), ("noise", 27, 29, 28, 28), ("noise", 29, 27, 28, 28), ("noise", 29, 57, 28, 56),
         ("extreme", 31, 33, 28, 56), ("extreme", 13, 7, 84, 56), ("extreme", 64, 64, 9, 11),
         ("stripes", 33, 35, 56, 28), ("spike", 15, 17, 56, 84), ("noise", 56, 28, 28, 56), ("noise", 30, 10, 14, 28),
         ("halves", 1, 9000, 28, 28),
         ("noise", 2, 3, 1, 2), ("noise", 20, 21, 20, 21), ("stripes", 300, 2, 28, 28), ("white", 9, 11, 28, 56),
         ("ramp", 60, 75, 56, 84), ("noise", 41, 23, 13, 17), ("extreme", 10, 10, 50, 50),
         ("halves", 53, 31, 9, 28)]


def pattern(kind, number, height, width, photo):
    """uint8 [h,w,3]."""
    shape = (height, width, 3)
    y, x, c = np.indices(shape)
    if kind == "photo":
        return photo
    if kind in ("noise", "extreme"):
        drawn = synth.draw(f"bicubic.{number}", 1, height * width * 3, 256 if kind == "noise" else 2).reshape(shape)
        return (drawn if kind == "noise" else 255 * drawn).astype(np.uint8)
    image = {"stripes": 255 * ((x + y * (c == 1)) % 2), "white": np.full(shape, 255),
             "ramp": (x * (c + 1) + 2 * y) % 256, "halves": 127 + (x + y + c) % 2,      # mean 127.5: the bits decide
             "spike": 255 * ((y == height // 2) & (x == width // 3 + c))}[kind]
    return image.astype(np.uint8)


def bicubic_questions(photo):
    questions = {}
    for number, (kind, height, width, new_height, new_width) in enumerate(PAIRS):
        questions[f"bicubic.{number}"] = pattern(kind, number, height, width, photo)
        questions[f"size.{number}"] = np.array((new_height, new_width))
    return questions


def write_bicubic(folder, questions, got):
    tensors, metadata = {}, {}
    for number, (kind, height, width, *size) in enumerate(PAIRS):
        metadata[f"pair.{number}"] = what = f"{kind} {height}x{width} to {size[0]}x{size[1]}"
        tensors[f"in.{number}"] = questions[f"bicubic.{number}"]
        tensors[f"out.{number}"] = got[f"bicubic.{number}"]
        demand(np.array_equal(tensors[f"out.{number}"], recipe.bicubic(tensors[f"in.{number}"], size)),
               f"{what}: the recipe differs")
    save(folder, "bicubic.safetensors.gz", tensors, metadata)


# ---- the processors as a whole

def processor_questions(photo):
    images = {"photo": photo, "small": pattern("noise", "small", 7, 13, None),
              "tall": pattern("ramp", 0, 113, 29, None),
              "as_is": pattern("ramp", 0, 28, 112, None)}
    frames = np.stack([pattern("ramp", n, 43, 31, None) + np.uint8(71 * n) for n in range(3)])
    return {f"image.{name}": image for name, image in images.items()} | {"video.video": frames}


def write_processor(folder, questions, got):
    tensors = {}
    for key, value in questions.items():
        kind, _, name = key.partition(".")
        if kind == "image":
            tensors[f"{name}.rgb"] = value
            parts, frames, limits = (f"{name}.pixel_values", f"{name}.image_grid_thw"), value[None], LIMITS["images"]
        elif kind == "video":
            tensors[f"{name}.frames"] = value
            parts, frames, limits = (f"{name}.pixel_values_videos", f"{name}.video_grid_thw"), value, LIMITS["videos"]
        else:
            continue
        pixels, grid = recipe.pixel_values(frames, limits)
        same = np.array_equal(got[parts[0]], pixels) and got[parts[1]].tolist() == [grid]
        demand(same, f"{name}: the recipe differs")
        tensors |= {part: got[part] for part in parts}
    save(folder, "processor.safetensors.gz", tensors, {})


def save(folder, name, tensors, metadata):
    data = files.to_bytes({key: files.from_array(value) for key, value in tensors.items()}, metadata)
    files.write(os.path.join(folder, name), data)


def entry():
    """What MANIFEST.json says of the folder beside its files."""
    versions = {**judge.VERSIONS, "pillow": PIL.__version__}
    return {"case": NAME, "producer": f"Pillow {versions['pillow']}, {judge.PRODUCER}", "versions": versions, "seed": 1,
            "command": f"python scripts/golden/make.py {NAME}", "weights": None, "dims": {},
            "covers": "PNG of every colour type and depth, interlaced, with transparency, palette, gamma, background "
                      "and orientation; sizes half-way between multiples of 28, at the limits of pixels and aspect, "
                      "tiny and huge; uint8 resampling up, down, of one axis, of one pixel, over- and undershooting; "
                      "pixel values of four pictures and a video of three frames",
            "cannot_detect": "broken PNG files; pictures above the limit of pixels as a whole; torchvision itself, for "
                             "which a stand-in calls the same PyTorch functions; processors on an accelerator"}


def produce(out, photo_file):
    """Everything under out/pictures; photo_file: the file of the photograph."""
    folder = os.path.join(out, NAME)
    with open(photo_file, "rb") as file:
        photo = rgb(file.read())
    produce_files(folder)
    questions = size_questions() | bicubic_questions(photo) | processor_questions(photo)
    got, plain = processors.ask(questions), processors.ask(questions, "default")
    for name, value in got.items():
        demand(np.array_equal(value, plain[name]), f"{name}: depends on the code path of PyTorch")
    write_sizes(folder, questions, got)
    write_bicubic(folder, questions, got)
    write_processor(folder, questions, got)

"""The public image and video processors and PyTorch's own resampling, always in a fresh process.

Fresh for three reasons: the processors need a stand-in for torchvision, which is not there; a call with other pixel
limits changes the class defaults; and the code path of PyTorch is chosen once per process.

    python processors.py IN.npz OUT.npz

IN holds `smart_resize` [n,4] (height, width, least and most pixels), `image.NAME` and `bicubic.NAME` [h,w,3] with
`size.NAME` [2], `video.NAME` [frames,h,w,3]; OUT the answers under the same names.
"""

import enum
import importlib.machinery
import os
import subprocess
import sys
import tempfile
import types

import numpy as np


class Interpolation(enum.Enum):
    NEAREST_EXACT, BOX, BILINEAR, HAMMING, BICUBIC, LANCZOS = range(6)


def stand_in():
    """Puts modules named torchvision in place that hold what the processors call, as torchvision does it on a CPU:
    uint8 goes to F.interpolate as it is, an unchanged size is no call, normalise subtracts, then divides."""
    import torch

    def resize(image, size, interpolation, antialias):
        if tuple(image.shape[-2:]) == tuple(size):
            return image
        if image.dtype != torch.uint8 or interpolation != Interpolation.BICUBIC or not antialias:
            raise TypeError(f"resize of {image.dtype}, {interpolation}, antialias {antialias}")
        return torch.nn.functional.interpolate(image, size=list(size), mode="bicubic", align_corners=False,
                                               antialias=True)

    def normalize(image, mean, std):
        mean, std = (torch.as_tensor(value, dtype=image.dtype).view(-1, 1, 1) for value in (mean, std))
        return image.sub(mean).div_(std)

    def pil_to_tensor(picture):
        return torch.as_tensor(np.array(picture, copy=True)).permute(2, 0, 1)

    contents = {"torchvision": {"__version__": "99"}, "torchvision.io": {"ImageReadMode": None, "decode_image": None},
                "torchvision.transforms": {"InterpolationMode": Interpolation},
                "torchvision.transforms.functional": {"pil_to_tensor": pil_to_tensor}, "torchvision.transforms.v2": {},
                "torchvision.transforms.v2.functional": {"InterpolationMode": Interpolation, "resize": resize,
                                                         "normalize": normalize, "pil_to_tensor": pil_to_tensor}}
    for name, values in contents.items():
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module.__path__, module.__file__ = [], "stand-in"
        module.__dict__.update(values)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


def bicubic(image, size):
    """[h2,w2,3] from [h,w,3]; contiguous and channels-last memory must give the same."""
    import torch
    plain = torch.from_numpy(image).permute(2, 0, 1)[None].contiguous()
    results = [torch.nn.functional.interpolate(x, size=size, mode="bicubic", align_corners=False, antialias=True)
               for x in (plain, plain.contiguous(memory_format=torch.channels_last))]
    if not torch.equal(*results):
        raise ValueError("the memory format changes the result")
    return results[0][0].permute(1, 2, 0).contiguous().numpy()


def answers(questions):
    import PIL.Image
    from transformers.models.minimax_m3_vl import image_processing_minimax_m3_vl as images
    from transformers.models.minimax_m3_vl import video_processing_minimax_m3_vl as videos
    image_processor, video_processor = images.MiniMaxM3VLImageProcessor(), videos.MiniMaxM3VLVideoProcessor()
    results, stills = {}, {}
    for key, value in questions.items():
        kind, _, name = key.partition(".")
        if kind == "bicubic":
            results[key] = bicubic(value, questions["size." + name].tolist())
        elif kind == "image":
            stills[name] = PIL.Image.fromarray(value)
            result = image_processor([stills[name]], return_tensors="pt")
            results[f"{name}.pixel_values"], results[f"{name}.image_grid_thw"] = (
                result[part].numpy() for part in ("pixel_values", "image_grid_thw"))
        elif kind == "video":
            result = video_processor([value], return_tensors="pt")
            results[f"{name}.pixel_values_videos"], results[f"{name}.video_grid_thw"] = (
                result[part].numpy() for part in ("pixel_values_videos", "video_grid_thw"))
        elif kind == "smart_resize":
            results[kind] = np.array([resized(images.smart_resize, *map(int, row)) for row in value])
    if stills:
        joint = image_processor(list(stills.values()), return_tensors="pt")
        apart = np.concatenate([results[f"{name}.pixel_values"] for name in stills])
        if not np.array_equal(joint["pixel_values"].numpy(), apart):
            raise ValueError("a picture changes its neighbours in the same call")
    return results


def resized(smart_resize, height, width, least, most):
    """(height, width) of the public function; (-1, -1) where it refuses the aspect ratio."""
    try:
        return smart_resize(height, width, 28, least, most)
    except ValueError:
        return -1, -1


def ask(questions, capability=None):
    """{name: array} of a fresh process; capability: of ATEN_CPU_CAPABILITY."""
    environment = dict(os.environ) | ({"ATEN_CPU_CAPABILITY": capability} if capability else {})
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("in.npz", "out.npz")]
        np.savez(paths[0], **questions)
        subprocess.run([sys.executable, os.path.abspath(__file__), *paths], env=environment, check=True)
        with np.load(paths[1]) as file:
            return dict(file)


def main():
    stand_in()
    with np.load(sys.argv[1]) as file:
        np.savez(sys.argv[2], **answers(dict(file)))


if __name__ == "__main__":
    main()

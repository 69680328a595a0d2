"""The engines: their versions, what they need, and what they are run on."""

from typing import NamedTuple


class Source(NamedTuple):
    """Files of a package that is not installed, in the folder `source` of the environment."""
    package: str
    is_sdist: bool
    patterns: tuple                     # which files of the archive


class Engine(NamedTuple):
    title: str
    module: str                         # the adapter, a file of this folder
    packages: tuple                     # installed in this order, each entry by a call of pip of its own
    dtypes: tuple = ("f32", "bf16")
    models: tuple = ("common", "tiny")
    caches: tuple = ()                  # the number types of keys and values that --kv chooses from
    sources: tuple = ()
    commands: tuple = ()                # run in the environment's folder after that, with its programs


TORCH = ("torch==2.13.0",)
MLX = "mlx[cpu]==0.32.4"

ENGINES = {
    "mlx_lm": Engine("mlx-lm 0.32.2", "mlx_lm", ((MLX, "mlx-lm==0.32.2"),)),
    "mlx_vlm": Engine("mlx-vlm 0.7.10", "mlx_vlm", ((MLX, "mlx-vlm==0.7.10"),), models=("common",)),
    "nemo": Engine("NeMo Automodel 0.7.0", "nemo", (
        TORCH, ("--no-deps", "nemo-automodel==0.7.0"), ("transformers==5.18.0", "pyyaml==6.0.3"))),
    "llama_cpp": Engine("llama.cpp 0c1e570", "llama_cpp", (
        TORCH, ("transformers==5.18.0", "pyyaml==6.0.3", "cmake==4.4.4", "ninja==1.13.2", "jinja2", "diskcache==5.6.3")),
        dtypes=("f32", "bf16", "q8_0"), models=("common", "m2"), caches=("f32", "f16"),
        sources=(Source("llama-cpp-python==0.3.36", True, ("llama_cpp/*", "vendor/llama.cpp/*")),),
        commands=(("cmake", "-S", "source/vendor/llama.cpp", "-B", "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                   "-DBUILD_SHARED_LIBS=ON", "-DLLAMA_BUILD_COMMON=OFF", "-DLLAMA_BUILD_APP=OFF"),
                  ("cmake", "--build", "build", "--target", "llama"))),
}

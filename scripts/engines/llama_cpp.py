"""llama.cpp on a CPU: MiniMax-M2 and -M3. The model directory is converted to GGUF by llama.cpp's own converter.

The dump has the names of the map `llama_cpp`: a node of the graph that llama.cpp names has that name. The product of a
tensor of the file has the name of the tensor, so that `blk.2.attn_q` is what `blk.2.attn_q.weight` gives. A node
without a name is called after what it is made from: `ROPE(blk.2.indexer.q_norm)`. --dtype is the type of the file.
"""

import ctypes
import os
import re
import sys
import tempfile
from pathlib import Path

import numpy as np

from . import adapter, environments

COMMIT = "0c1e570"
SOURCE = os.path.join(environments.folder("llama_cpp"), "source")
os.environ["LLAMA_CPP_LIB_PATH"] = os.path.join(environments.folder("llama_cpp"), "build", "bin")
sys.path[:0] = [SOURCE, os.path.join(SOURCE, "vendor", "llama.cpp"), os.path.join(SOURCE, "vendor", "llama.cpp", "gguf-py")]
import conversion  # noqa: E402
import gguf  # noqa: E402
import llama_cpp.llama_cpp as llama  # noqa: E402

FILE_TYPES = {"f32": gguf.LlamaFileType.ALL_F32, "bf16": gguf.LlamaFileType.MOSTLY_BF16,
              "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0}
# What llama.cpp's graph takes for granted, by field of the text part of config.json.
FIXED = {"hidden_act": ("swigluoai", "silu"), "scoring_func": ("sigmoid",), "swiglu_alpha": (1.702,),
         "swiglu_limit": (7.0,), "use_gemma_norm": (True,), "attention_output_gate": (False,)}
FIXED_SPARSE = {"use_sparse_attention": (True,), "sparse_score_type": ("max",), "sparse_init_block": (0,)}
PRODUCTS = ("MUL_MAT", "MUL_MAT_ID", "GET_ROWS", "MUL")
VIEWS = ("VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE", "CONT")
UNNAMED = re.compile(r"^(node_\d+|norm(-\d+)?|.*\(.*\)|)$")
UNNAMED_KEPT = ("ROPE", "TOP_K")
TYPES = {0: np.float32, 26: np.int32}               # GGML_TYPE_F32, GGML_TYPE_I32
F32 = 0                                             # GGML_TYPE_F32
DISABLED, ENABLED = 0, 1                            # LLAMA_FLASH_ATTN_TYPE_..


class Node(ctypes.Structure):
    """struct ggml_tensor of ggml.h."""


Node._fields_ = [
    ("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4), ("nb", ctypes.c_size_t * 4),
    ("op", ctypes.c_int), ("op_params", ctypes.c_int32 * 16), ("flags", ctypes.c_int32),
    ("src", ctypes.POINTER(Node) * 10), ("view_src", ctypes.c_void_p), ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p), ("name", ctypes.c_char * 64)]


def refuse(model, field, got, expected):
    raise SystemExit(f"{model}/config.json: {field}: got {got}, expected {' or '.join(str(x) for x in expected)}")


def check(model, config):
    """llama.cpp would read other values without a word, and compute something else."""
    text = {**config, **config.get("text_config", {})}
    sparse = text.get("sparse_attention_config") or {}
    for fixed, given in ((FIXED, text), (FIXED_SPARSE, sparse)):
        for field, expected in fixed.items():
            if field in given and given[field] not in expected:
                refuse(model, field, given[field], expected)
    if sparse and sparse["sparse_num_index_heads"] != text["num_key_value_heads"]:
        refuse(model, "sparse_num_index_heads", sparse["sparse_num_index_heads"], (text["num_key_value_heads"],))
    if sparse and text.get("shared_intermediate_size") != text["intermediate_size"]:
        refuse(model, "shared_intermediate_size", text.get("shared_intermediate_size"), (text["intermediate_size"],))
    dense = text.get("moe_layer_freq", [])
    if 0 in dense[dense.index(1):] if 1 in dense else dense:
        refuse(model, "moe_layer_freq", dense, ("dense layers first, then at least one with experts",))
    if sparse and sparse["sparse_attention_freq"] != dense:
        refuse(model, "sparse_attention_freq", sparse["sparse_attention_freq"], (dense,))
    architectures = config.get("architectures") or [""]
    if architectures[0] not in conversion.TEXT_MODEL_MAP:
        refuse(model, "architectures", architectures[0], ("an architecture that llama.cpp can convert",))
    return architectures[0]


def without_vocabulary(converter):
    converter._set_vocab_none()
    converter.gguf_writer.add_vocab_size(converter.hparams["vocab_size"])


def convert(model, out, dtype):
    """Has the model sparse attention? config.json is read here: the converter would read it through transformers, which renames its fields."""
    config = adapter.read_config(model)
    kind = conversion.get_model_class(check(model, config))
    kind.set_vocab = without_vocabulary
    stored = kind.filter_tensors
    kind.filter_tensors = classmethod(lambda cls, item: None if item[0].startswith("mtp.") else stored(item))
    kind(Path(model), FILE_TYPES[dtype], Path(out), hparams=config).write()
    return kind.model_arch == gguf.MODEL_ARCH.MINIMAXM3


class Taps:
    """Keeps the nodes of each call as [rows, ..]."""

    def __init__(self, dump):
        self.dump, self.rows, self.error = dump, 0, None
        llama._lib.ggml_op_name.restype = ctypes.c_char_p

    def op(self, node):
        return llama._lib.ggml_op_name(node.op).decode()

    def name(self, node):
        """The name in the dump, or None for a node that is left out."""
        op, given, source = self.op(node), node.name.decode(), node.src[0].contents if node.src[0] else None
        weight, named = self.weight(node), not UNNAMED.match(given)
        if weight:
            return weight
        if op in VIEWS:
            return given if named and not self.is_product(source) else None
        if named:
            return given
        # A call of one token does not name the scores with the local blocks; a call of several does.
        if op == "ADD" and source.name.startswith(b"msa_bs-"):
            return source.name.decode().replace("msa_bs-", "msa_bsf-")
        return f"{op}({self.name(source)})" if op in UNNAMED_KEPT else None

    def weight(self, node):
        """The tensor of the file that the node multiplies by or takes rows of; "" if there is none."""
        source = node.src[1 if self.op(node) == "MUL" else 0] if self.op(node) in PRODUCTS else None
        name = source.contents.name.decode() if source else ""
        return name[:-len(".weight")] if name.endswith(".weight") else ""

    def is_product(self, node):
        """Is it what a tensor of the file gives, perhaps in another shape?"""
        while self.op(node) in VIEWS and node.src[0]:
            node = node.src[0].contents
        return self.weight(node) != ""

    def see(self, pointer, ask, _):
        try:
            node = ctypes.cast(pointer, ctypes.POINTER(Node)).contents
            name = self.name(node) if node.type in TYPES else None
            if name and not ask:
                self.save(name, node)
            return bool(name) or not ask
        except Exception as error:                  # an exception cannot pass through C
            self.error = self.error or error
            return False

    def save(self, name, node):
        shape = list(node.ne)
        for axis in range(1, 5):
            if int(np.prod(shape[axis:])) == self.rows:
                break
        else:
            return                                  # not rows of tokens
        self.dump.save(name, self.values(node).reshape(self.rows, *reversed(shape[:axis])).copy())

    @staticmethod
    def values(node):
        span = sum((extent - 1) * stride for extent, stride in zip(node.ne, node.nb)) + 4
        bytes_ = (ctypes.c_char * span).from_address(node.data)
        return np.ndarray(tuple(reversed(node.ne)), TYPES[node.type], bytes_, strides=tuple(reversed(node.nb)))


def evaluate(path, chunks, taps, kv, sparse):
    llama.llama_backend_init()
    parameters = llama.llama_model_default_params()
    model = llama.llama_model_load_from_file(path.encode(), parameters)
    if not model:
        raise SystemExit("llama.cpp: it does not load the GGUF file; its messages are above")
    settings = llama.llama_context_default_params()
    longest, total = max(len(ids) for ids in chunks), sum(len(ids) for ids in chunks)
    settings.n_ctx, settings.n_batch, settings.n_ubatch, settings.n_seq_max = total, longest, longest, 1
    if kv == "f32":
        # Sparse attention needs flash attention. Dense layers of flash attention round keys and values to F16.
        settings.type_k = settings.type_v = F32
        settings.flash_attn_type = ENABLED if sparse else DISABLED
    settings.n_threads = settings.n_threads_batch = os.cpu_count()
    settings.cb_eval = llama.ggml_backend_sched_eval_callback(taps.see)
    context = llama.llama_init_from_model(model, settings)
    if not context:
        raise SystemExit("llama.cpp: it makes no context for this model; its messages are above")
    start = 0
    for ids in chunks:
        batch = llama.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = taps.rows = len(ids)
        for row, token in enumerate(ids):
            batch.token[row], batch.pos[row], batch.n_seq_id[row] = int(token), start + row, 1
            batch.seq_id[row][0], batch.logits[row] = 0, 1
        status = llama.llama_decode(context, batch)
        if taps.error:
            raise taps.error
        if status:
            raise SystemExit(f"llama.cpp: llama_decode gave {status}, expected 0")
        llama.llama_batch_free(batch)
        start += len(ids)
    llama.llama_free(context)
    llama.llama_model_free(model)


def run(folder, case, dump, options, change=None):
    if set(case.arrays) - {"input_ids", "position_ids"}:
        raise SystemExit(f"{case.path}: got pictures, expected text: the program that reads them is not built here")
    taps = Taps(dump)
    with tempfile.TemporaryDirectory() as work:
        path = os.path.join(work, "model.gguf")
        sparse = convert(folder, path, options.dtype)
        evaluate(path, case.chunks(options.chunk), taps, options.kv, sparse)
    return f"llama.cpp {COMMIT}, GGUF {options.dtype.upper()}"

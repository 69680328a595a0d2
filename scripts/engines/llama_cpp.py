"""llama.cpp on a CPU: MiniMax-M2 and -M3. The model directory is converted to GGUF by llama.cpp's own converter.

The dump has the names of the map `llama_cpp`: a node of the graph that llama.cpp names has that name. The product of a
tensor of the file has the name of the tensor, so that `blk.2.attn_q` is what `blk.2.attn_q.weight` gives. A node
without a name is called after what it is made from: `ROPE(blk.2.indexer.q_norm)`. --dtype is the type of the file.
--weights makes a model directory from the file, because weights in Q8_0 are not those of the model.
"""

import ctypes
import importlib
import os
import re
import sys
import tempfile
from pathlib import Path

import numpy as np

import gguf_model

from . import adapter, environments

COMMIT = "0c1e570"
SOURCE = os.path.join(environments.folder("llama_cpp"), "source")
M3 = ("MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration", "MiniMaxM3VLForConditionalGeneration")
M2 = ("MiniMaxM2ForCausalLM",)
FILE_TYPES = {"f32": "ALL_F32", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0"}
# What llama.cpp's graphs take for granted, by field of the text part of config.json.
FIXED = {"scoring_func": "sigmoid"}
FIXED_M3 = {"hidden_act": "swigluoai", "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "use_gemma_norm": True,
            "attention_output_gate": False}
FIXED_SPARSE = {"use_sparse_attention": True, "sparse_score_type": "max", "sparse_init_block": 0}
PRODUCTS = ("MUL_MAT", "MUL_MAT_ID", "GET_ROWS", "MUL")
VIEWS = ("VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE", "CONT")
UNNAMED = re.compile(r"^(node_\d+|norm(-\d+)?|.*\(.*\)|)$")
UNNAMED_KEPT = ("ROPE", "TOP_K")
TYPES = {0: np.float32, 26: np.int32}               # GGML_TYPE_F32, GGML_TYPE_I32
F32 = 0                                             # GGML_TYPE_F32
WARNING, ERROR = 3, 4                               # GGML_LOG_LEVEL_..
DISABLED, ENABLED = 0, 1                            # LLAMA_FLASH_ATTN_TYPE_..


class Node(ctypes.Structure):
    """struct ggml_tensor of ggml.h."""


Node._fields_ = [
    ("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4), ("nb", ctypes.c_size_t * 4),
    ("op", ctypes.c_int), ("op_params", ctypes.c_int32 * 16), ("flags", ctypes.c_int32),
    ("src", ctypes.POINTER(Node) * 10), ("view_src", ctypes.c_void_p), ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p), ("name", ctypes.c_char * 64)]


def check(model, config):
    """(architecture, is it an M3?). llama.cpp reads no field for what its graphs take for granted, so another value
    would be computed as if it were that."""
    def refuse(field, got, expected):
        raise SystemExit(f"{model}/config.json: {field}: got {got}, expected {expected}, as llama.cpp has it")

    architecture = (config.get("architectures") or ["none"])[0]
    if architecture not in M3 + M2:
        refuse("architectures", architecture, " or ".join(M3 + M2))
    is_m3, text = architecture in M3, {**config, **config.get("text_config", {})}
    sparse = text.get("sparse_attention_config") or {}
    if is_m3 and not sparse:
        refuse("sparse_attention_config", "nothing", "the fields of a released config.json")
    for fixed, given in ((FIXED, text), (FIXED_M3 if is_m3 else {}, text), (FIXED_SPARSE, sparse)):
        for field, expected in fixed.items():
            if given.get(field, expected) != expected:
                refuse(field, given[field], expected)
    if is_m3:
        layers = text.get("moe_layer_freq") or []
        if sorted(layers) != layers or 1 not in layers:
            refuse("moe_layer_freq", layers, "layers without experts first, then layers with experts")
        for field, given, expected in (
                ("sparse_attention_freq", sparse.get("sparse_attention_freq"), layers),
                ("sparse_num_index_heads", sparse.get("sparse_num_index_heads"), text["num_key_value_heads"]),
                ("shared_intermediate_size", text.get("shared_intermediate_size"), text["intermediate_size"])):
            if given != expected:
                refuse(field, given, expected)
    return architecture, is_m3


def load():
    """llama.cpp's converter and its functions for Python."""
    os.environ["TQDM_DISABLE"] = "1"                # no progress bars
    os.environ["LLAMA_CPP_LIB_PATH"] = os.path.join(environments.folder("llama_cpp"), "build", "bin")
    vendor = os.path.join(SOURCE, "vendor", "llama.cpp")
    sys.path[:0] = [SOURCE, vendor, os.path.join(vendor, "gguf-py")]
    return tuple(importlib.import_module(name) for name in ("conversion", "gguf", "llama_cpp.llama_cpp"))


def convert(conversion, gguf, model, architecture, config, out, dtype):
    """The converter's own way to read config.json goes through transformers, which renames its fields."""
    kind = conversion.get_model_class(architecture)
    stored = kind.filter_tensors
    kind.set_vocab = without_vocabulary
    kind.filter_tensors = classmethod(lambda cls, item: None if "mtp." in item[0] else stored(item))
    kind(Path(model), gguf.LlamaFileType[FILE_TYPES[dtype]], Path(out), hparams=config).write()


def without_vocabulary(converter):
    converter._set_vocab_none()
    converter.gguf_writer.add_vocab_size(converter.hparams["vocab_size"])


class Taps:
    """Keeps the nodes of each call as [rows, ..]."""

    def __init__(self, dump, library):
        self.dump, self.rows, self.error, self.library = dump, 0, None, library
        library.ggml_op_name.restype = ctypes.c_char_p

    def op(self, node):
        return self.library.ggml_op_name(node.op).decode()

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


def settings_of(llama, chunks, taps, kv, is_m3):
    settings = llama.llama_context_default_params()
    settings.n_ctx, settings.n_seq_max = sum(len(ids) for ids in chunks), 1
    settings.n_batch = settings.n_ubatch = max(len(ids) for ids in chunks)
    settings.n_threads = settings.n_threads_batch = os.cpu_count()
    settings.cb_eval = llama.ggml_backend_sched_eval_callback(taps.see)
    if kv == "f32":
        # M3 chooses blocks with flash attention only, which rounds keys and values of dense layers to F16 all the same.
        settings.type_k = settings.type_v = F32
        settings.flash_attn_type = ENABLED if is_m3 else DISABLED
    return settings


def evaluate(llama, path, chunks, taps, kv, is_m3):
    log = llama.llama_log_callback(lambda level, text, _: WARNING <= level <= ERROR and sys.stderr.write(text.decode()))
    llama.llama_log_set(log, None)
    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    settings = settings_of(llama, chunks, taps, kv, is_m3)
    context = llama.llama_init_from_model(model, settings) if model else None
    if not context:
        raise SystemExit("llama.cpp: it cannot load the GGUF file; its messages are above")
    start = 0
    for ids in chunks:
        batch = llama.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = taps.rows = len(ids)
        for row, token in enumerate(ids):
            batch.token[row], batch.pos[row], batch.n_seq_id[row] = int(token), start + row, 1
            batch.seq_id[row][0], batch.logits[row] = 0, 1
        status = llama.llama_decode(context, batch)
        llama.llama_batch_free(batch)
        if taps.error:
            raise taps.error
        if status:
            raise SystemExit(f"llama.cpp: llama_decode: got {status}, expected 0")
        start += len(ids)
    llama.llama_free(context)
    llama.llama_model_free(model)


def run(folder, case, dump, options, change=None):
    if set(case.arrays) - {"input_ids", "position_ids"}:
        raise SystemExit(f"{case.path}: got pictures, expected text: only llama.cpp's text model is built")
    config = adapter.read_config(folder)
    architecture, is_m3 = check(folder, config)
    conversion, gguf, llama = load()
    with tempfile.TemporaryDirectory() as work:
        path = os.path.join(work, "model.gguf")
        convert(conversion, gguf, folder, architecture, config, path, options.dtype)
        if options.weights:
            try:
                gguf_model.convert(gguf, path, options.weights)
            except gguf_model.Refused as reason:
                raise SystemExit(f"--weights: {reason}") from None
        evaluate(llama, path, case.chunks(options.chunk), Taps(dump, llama._lib), options.kv, is_m3)
    return f"llama.cpp {COMMIT}, GGUF {options.dtype.upper()}"

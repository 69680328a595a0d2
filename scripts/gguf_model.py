"""A model directory (config.json and safetensors) from a GGUF file of MiniMax-M3 or -M2 by llama.cpp's converter.

    pip install gguf==0.19.0
    python scripts/gguf_model.py MODEL.gguf OUT

F32, F16 and BF16 are copied as they are. Quantised tensors (Q8_0, Q4_K, Q6_K, ...) are expanded to F32 by the package
gguf, bit for bit as its `gguf.quants.dequantize` does: a Q4_K file grows by a factor of about 7. The converter adds 1
to the norms of M3, so config.json says `use_gemma_norm` false. A GGUF file holds neither the vision tower nor, in M3,
alpha and limit of the activation: these are the constants of llama.cpp's graph, 1.702 and 7.

Of a model in several files (-00001-of-0000N.gguf) give the first. OUT must not exist; it appears when it is complete.
Exit status: 0 done; 64 wrong usage; 65 bad file; 66 missing file; 69 the package gguf is missing; 70 out of memory;
74 I/O error.
"""

import contextlib
import fcntl
import glob
import json
import os
import re
import shutil
import sys

import numpy as np

USAGE, BAD_INPUT, ABSENT, UNAVAILABLE, INTERNAL, IO_ERROR = 64, 65, 66, 69, 70, 74
SHARD_BYTES = 5_000_000_000
PLAIN = {"F32": "F32", "F16": "F16", "BF16": "BF16"}
EXPANDED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
BYTES = {"F32": 4, "F16": 2, "BF16": 2}

GLOBAL = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
          "output.weight": "lm_head.weight"}
LAYER = {
    "attn_norm.weight": "input_layernorm.weight", "ffn_norm.weight": "post_attention_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight", "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight", "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight", "attn_k_norm.weight": "self_attn.k_norm.weight",
    "indexer.q_proj.weight": "self_attn.index_q_proj.weight", "indexer.k_proj.weight": "self_attn.index_k_proj.weight",
    "indexer.q_norm.weight": "self_attn.index_q_norm.weight", "indexer.k_norm.weight": "self_attn.index_k_norm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight", "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight", "ffn_gate_inp.weight": "block_sparse_moe.gate.weight",
    "exp_probs_b.bias": "block_sparse_moe.e_score_correction_bias",
    "ffn_gate_shexp.weight": "block_sparse_moe.shared_experts.gate_proj.weight",
    "ffn_up_shexp.weight": "block_sparse_moe.shared_experts.up_proj.weight",
    "ffn_down_shexp.weight": "block_sparse_moe.shared_experts.down_proj.weight",
}
EXPERTS = {"ffn_gate_exps.weight": "w1", "ffn_up_exps.weight": "w3", "ffn_down_exps.weight": "w2"}


class Refused(Exception):
    """A file that cannot be converted; the text says why."""

    def __init__(self, text, status=BAD_INPUT):
        super().__init__(text)
        self.status = status


class Source:
    """One or several GGUF files of a model."""

    def __init__(self, gguf, path):
        self.gguf, self.path = gguf, path
        self.readers = [self.open(name) for name in self.parts(path)]
        self.fields = self.readers[0].fields
        self.tensors = {}
        for reader in self.readers:
            for tensor in reader.tensors:
                if tensor.name in self.tensors:
                    raise Refused(f"{path}: {tensor.name}: got it twice, expected it once")
                self.tensors[tensor.name] = tensor

    @staticmethod
    def parts(path):
        found = re.search(r"-00001-of-(\d{5})\.gguf$", path)
        if not found:
            return [path]
        return [f"{path[:found.start()]}-{n:05}-of-{found[1]}.gguf" for n in range(1, int(found[1]) + 1)]

    def open(self, path):
        if not os.path.exists(path):
            raise Refused(f"{path}: no such file", ABSENT)
        try:
            reader = self.gguf.GGUFReader(path)
        except Exception as error:      # the reader trusts the sizes in the file: any exception may follow
            if getattr(error, "errno", None):
                raise Refused(f"{path}: {error.strerror}", IO_ERROR) from None
            raise Refused(f"{path}: not a readable GGUF file: {type(error).__name__}: {str(error)[:200]}") from None
        size = os.path.getsize(path)
        for tensor in reader.tensors:
            if tensor.data_offset + int(tensor.n_bytes) > size:
                raise Refused(f"{path}: {tensor.name}: got data up to byte {tensor.data_offset + int(tensor.n_bytes)}, "
                              f"expected at most {size}, the size of the file")
        return reader

    def value(self, key, default=None):
        """A number or text of the metadata. float32 numbers are written as short as they are exact: 1e-06."""
        field = self.fields.get(key)
        if field is None:
            if default is None:
                raise Refused(f"{self.path}: {key}: got nothing, expected this key")
            return default
        value = field.contents()
        if isinstance(value, float):
            return float(str(np.float32(value)))
        return value

    def shape(self, name, rank):
        """Rows and columns as PyTorch orders them; GGUF has them reversed."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise Refused(f"{self.path}: {name}: got no such tensor, expected {rank} dimensions")
        shape = tuple(int(n) for n in reversed(tensor.shape))
        if len(shape) != rank:
            raise Refused(f"{self.path}: {name}: got {len(shape)} dimensions, expected {rank}")
        return shape


def size_of(source, arch, key, expected, what):
    """A size of the metadata must be that of the tensors."""
    value = source.value(f"{arch}.{key}")
    if not isinstance(value, int) or value != expected:
        raise Refused(f"{source.path}: {arch}.{key}: got {value}, expected {expected}, {what}")
    return value


def count_of(source, key, most):
    value = source.value(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise Refused(f"{source.path}: {key}: got {value}, expected an integer from 1 to {most}")
    return value


def has(source, layer, name):
    return f"blk.{layer}.{name}" in source.tensors


def common_config(source, arch, layers):
    vocabulary, hidden = source.shape("token_embd.weight", 2)
    size_of(source, arch, "embedding_length", hidden, "the columns of token_embd.weight")
    for key in ("rope.scaling.type", "attention.sliding_window"):
        value = source.value(f"{arch}.{key}", "none")
        if value not in ("none", 0):
            raise Refused(f"{source.path}: {arch}.{key}: got {value}, expected none")
    heads, groups = (count_of(source, f"{arch}.attention.{key}", 1 << 16) for key in ("head_count", "head_count_kv"))
    head_dim = source.shape("blk.0.attn_q.weight", 2)[0] // heads
    if f"{arch}.attention.key_length" in source.fields:
        size_of(source, arch, "attention.key_length", head_dim, "the rows of attn_q.weight by heads")
    return {"hidden_size": hidden, "vocab_size": vocabulary, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": groups, "head_dim": head_dim,
            "rotary_dim": source.value(f"{arch}.rope.dimension_count"),
            "rope_theta": source.value(f"{arch}.rope.freq_base", 10000.0),
            "rms_norm_eps": source.value(f"{arch}.attention.layer_norm_rms_epsilon"),
            "max_position_embeddings": source.value(f"{arch}.context_length"), "use_qk_norm": True,
            "tie_word_embeddings": "output.weight" not in source.tensors,
            "num_local_experts": source.value(f"{arch}.expert_count"),
            "num_experts_per_tok": source.value(f"{arch}.expert_used_count"), "num_mtp_modules": 0}


def m2_config(source, arch, layers):
    width = source.shape("blk.0.ffn_down_exps.weight", 3)[2]
    return {"architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2",
            **common_config(source, arch, layers), "intermediate_size": width, "hidden_act": "silu",
            "shared_intermediate_size": 0, "scoring_func": "sigmoid", "use_routing_bias": True,
            "qk_norm_type": "per_layer", "attn_type_list": [1] * layers}


def m3_config(source, arch, layers):
    experts = ("ffn_gate_exps.weight", "ffn_gate_up_exps.weight")
    moe = [int(any(has(source, l, name) for name in experts)) for l in range(layers)]
    sparse = [int(has(source, l, "indexer.q_proj.weight")) for l in range(layers)]
    config = {"architectures": ["MiniMaxM3VLForCausalLM"], "model_type": "minimax_m3_vl_text",
              **common_config(source, arch, layers), "use_gemma_norm": False, "hidden_act": "swigluoai",
              "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "scoring_func": "sigmoid", "use_routing_bias": True,
              "attention_output_gate": False, "qk_norm_type": "per_head", "moe_layer_freq": moe,
              "routed_scaling_factor": source.value(f"{arch}.expert_weights_scale", 1.0)}
    if 0 in moe:
        config["dense_intermediate_size"] = source.shape(f"blk.{moe.index(0)}.ffn_down.weight", 2)[1]
    if 1 in moe:
        first = moe.index(1)
        config["intermediate_size"] = source.shape(f"blk.{first}.ffn_down_exps.weight", 3)[2]
        config["n_shared_experts"] = source.value(f"{arch}.expert_shared_count")
        config["shared_intermediate_size"] = source.shape(f"blk.{first}.ffn_down_shexp.weight", 2)[1]
    index = f"{arch}.attention.indexer."
    config["sparse_attention_config"] = {"use_sparse_attention": 1 in sparse, "sparse_attention_freq": sparse,
                                         "sparse_disable_index_value": sparse, "sparse_init_block": 0,
                                         "sparse_score_type": "max"}
    if 1 in sparse:
        config["sparse_attention_config"] |= {
            "sparse_num_index_heads": source.value(index + "head_count"),
            "sparse_index_dim": source.value(index + "key_length"), "sparse_topk_blocks": source.value(index + "top_k"),
            "sparse_block_size": source.value(index + "block_size"),
            "sparse_local_block": source.value(index + "local_blocks")}
    return config


CONFIGS = {"minimax-m2": m2_config, "minimax-m3": m3_config}


# ---- tensors

class Piece:
    """One tensor of the result: rows [first, end) of a GGUF tensor, or of one of its experts."""

    def __init__(self, name, tensor, shape, rows=None, expert=None):
        self.name, self.tensor, self.shape, self.rows, self.expert = name, tensor, shape, rows, expert
        self.kind = tensor.tensor_type.name
        self.dtype = PLAIN.get(self.kind, "F32")
        self.bytes = int(np.prod(shape, dtype=np.int64)) * BYTES[self.dtype]

    def numbers(self, gguf):
        data = self.tensor.data
        data = data[self.expert] if self.expert is not None else data
        data = data[self.rows[0]:self.rows[1]] if self.rows else data
        if self.kind not in PLAIN:
            data = gguf.quants.dequantize(np.ascontiguousarray(data), self.tensor.tensor_type)
        data = np.ascontiguousarray(data)
        if data.nbytes != self.bytes:
            raise Refused(f"{self.tensor.name}: got {data.nbytes} bytes of numbers, expected {self.bytes}")
        return data


def split_layer(source, arch, prefix, part, tensor, shape):
    """The pieces of a tensor of one layer, under the names of a release."""
    if part in LAYER:
        return [Piece(prefix + LAYER[part], tensor, shape)]
    if part in EXPERTS and len(shape) == 3:
        return [Piece(f"{prefix}block_sparse_moe.experts.{e}.{EXPERTS[part]}.weight", tensor, shape[1:], expert=e)
                for e in range(shape[0])]
    if part == "ffn_gate_up_exps.weight" and len(shape) == 3:
        half = shape[1] // 2
        return [Piece(f"{prefix}block_sparse_moe.experts.{e}.{name}.weight", tensor, (half, shape[2]), rows, e)
                for e in range(shape[0]) for name, rows in (("w1", (0, half)), ("w3", (half, 2 * half)))]
    if part == "attn_qkv.weight" and len(shape) == 2:
        heads, groups = (source.value(f"{arch}.attention.{key}") for key in ("head_count", "head_count_kv"))
        width = shape[0] // (heads + 2 * groups)
        ends = (0, heads * width, (heads + groups) * width, (heads + 2 * groups) * width)
        return [Piece(f"{prefix}self_attn.{name}_proj.weight", tensor, (ends[i + 1] - ends[i], shape[1]),
                      (ends[i], ends[i + 1])) for i, name in enumerate("qkv")]
    raise Refused(f"{source.path}: {tensor.name}: got a tensor that a model of {arch} does not have")


def pieces_of(source, arch, layers):
    pieces = []
    for name, tensor in source.tensors.items():
        shape = tuple(int(n) for n in reversed(tensor.shape))
        kind = tensor.tensor_type.name
        if kind not in PLAIN and kind not in EXPANDED:
            raise Refused(f"{source.path}: {name}: got {kind}, expected {', '.join(list(PLAIN) + list(EXPANDED))}")
        found = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
        if name in GLOBAL:
            pieces.append(Piece(GLOBAL[name], tensor, shape))
        elif found and int(found[1]) < layers:
            pieces += split_layer(source, arch, f"model.layers.{int(found[1])}.", found[2], tensor, shape)
        else:
            raise Refused(f"{source.path}: {name}: got a tensor that a model of {arch} does not have")
    return pieces


def shards_of(pieces):
    shards, room = [[]], SHARD_BYTES
    for piece in pieces:
        if shards[-1] and piece.bytes > room:
            shards.append([])
            room = SHARD_BYTES
        shards[-1].append(piece)
        room -= piece.bytes
    return shards


def write_shard(gguf, path, pieces):
    entries, at = {"__metadata__": {"format": "pt"}}, 0
    for piece in sorted(pieces, key=lambda piece: -BYTES[piece.dtype]):
        entries[piece.name] = {"dtype": piece.dtype, "shape": list(piece.shape), "data_offsets": [at, at + piece.bytes]}
        at += piece.bytes
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for piece in sorted(pieces, key=lambda piece: -BYTES[piece.dtype]):
            file.write(piece.numbers(gguf).tobytes())
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def locked(folder):
    """Holds a folder, so that others see that its process has not ended. BlockingIOError: another holds it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def sweep(out):
    """Removes what processes that were killed have left."""
    for part in glob.glob(f"{glob.escape(out)}.*.part"):
        with contextlib.suppress(OSError), locked(part):
            shutil.rmtree(part)


def convert(gguf, path, out):
    """Returns the number of tensors and their bytes."""
    source = Source(gguf, path)
    arch = source.value("general.architecture")
    if arch not in CONFIGS:
        raise Refused(f"{path}: general.architecture: got {arch}, expected {' or '.join(CONFIGS)}")
    layers = count_of(source, f"{arch}.block_count", 1024)
    config, pieces = CONFIGS[arch](source, arch, layers), pieces_of(source, arch, layers)
    shards, out = shards_of(pieces), out.rstrip("/")
    part, places, total = f"{out}.{os.getpid()}.part", {}, sum(piece.bytes for piece in pieces)
    sweep(out)
    os.mkdir(part)
    try:
        with locked(part):
            for number, shard in enumerate(shards, 1):
                name = "model.safetensors" if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
                write_shard(gguf, os.path.join(part, name), shard)
                places |= {piece.name: name for piece in shard}
            if len(shards) > 1:
                with open(os.path.join(part, "model.safetensors.index.json"), "w") as file:
                    json.dump({"metadata": {"total_size": total}, "weight_map": places}, file, indent=1)
            with open(os.path.join(part, "config.json"), "w") as file:
                json.dump(config, file, indent=2)
            os.rename(part, out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return len(pieces), total


def fail(text, status):
    """Prints the text with ? for what steers a terminal, and for what is no text."""
    print("gguf_model.py: " + "".join(one if one.isprintable() else "?" for one in text), file=sys.stderr)
    return status


def main(arguments):
    if arguments in (["--help"], ["-h"]):
        print(__doc__.strip())
        return 0
    if len(arguments) != 2 or arguments[0].startswith("-"):
        return fail("expected MODEL.gguf and OUT; --help says more", USAGE)
    path, out = arguments
    try:
        import gguf
    except ImportError:
        return fail("the package gguf is missing: pip install gguf==0.19.0", UNAVAILABLE)
    if os.path.lexists(out):
        return fail(f"{out}: got a name that exists, expected a new folder", USAGE)
    try:
        tensors, total = convert(gguf, path, out)
    except Refused as reason:
        return fail(str(reason), reason.status)
    except OSError as error:
        return fail(f"{out}: {error.strerror}", IO_ERROR)
    except MemoryError:
        return fail("out of memory", INTERNAL)
    except KeyboardInterrupt:
        return 130
    line = "".join(one if one.isprintable() else "?" for one in f"{out}: {tensors} tensors, {total} bytes")
    try:
        print(line, flush=True)
    except OSError as error:
        return fail(f"standard output: {error.strerror}", IO_ERROR)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

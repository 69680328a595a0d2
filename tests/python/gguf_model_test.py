"""scripts/gguf_model.py: GGUF files as llama.cpp's converter writes them become the models that they were made from.

The files are made here, tensor by tensor, from golden models; the numbers of quantised blocks are computed by formulas
of this file. Real output of llama.cpp's converter (tag of llama-cpp-python 0.3.36; F32, F16, BF16, Q8_0) was converted
by hand as well: the dumps in double were equal to those of the original model.
"""

import importlib.util
import json
import os
import random
import shutil
import struct
import subprocess
import sys

import gguf
import numpy as np
import pytest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
PROGRAM = os.path.join(os.environ.get("M3REF_BUILD", os.path.join(ROOT, "build")), "m3ref")
TYPES = gguf.GGMLQuantizationType
NAMES = {"embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
         "lm_head.weight": "output.weight"}
OF_LAYER = {
    "input_layernorm.weight": "attn_norm.weight", "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight", "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight", "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight", "self_attn.k_norm.weight": "attn_k_norm.weight",
    "self_attn.index_q_proj.weight": "indexer.q_proj.weight", "self_attn.index_k_proj.weight": "indexer.k_proj.weight",
    "self_attn.index_q_norm.weight": "indexer.q_norm.weight", "self_attn.index_k_norm.weight": "indexer.k_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight", "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight", "block_sparse_moe.gate.weight": "ffn_gate_inp.weight",
    "block_sparse_moe.e_score_correction_bias": "exp_probs_b.bias",
    "block_sparse_moe.shared_experts.gate_proj.weight": "ffn_gate_shexp.weight",
    "block_sparse_moe.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
    "block_sparse_moe.shared_experts.down_proj.weight": "ffn_down_shexp.weight",
}


def read(path):
    """{name: (dtype, shape, bytes)} of a safetensors file."""
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    entries = json.loads(data[8:8 + size])
    entries.pop("__metadata__", None)
    return {name: (e["dtype"], e["shape"], data[8 + size + e["data_offsets"][0]:8 + size + e["data_offsets"][1]])
            for name, e in entries.items()}


def as_float(entry):
    dtype, shape, data = entry
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    return np.frombuffer(data, {"F32": "<f4", "F16": "<f2", "F64": "<f8"}[dtype]).reshape(shape)


def text_tensors(model):
    """The text of a model, named as in GGUF, experts merged; norms of M3 get the 1 that the converter adds."""
    config = json.load(open(os.path.join(model, "config.json")))
    text, is_m3 = config.get("text_config", config), "text_config" in config
    made, experts = {}, {}
    for name, entry in read(os.path.join(model, "model.safetensors")).items():
        name = name.removeprefix("language_model.")
        if not name.startswith(("model.", "lm_head")):
            continue
        values = as_float(entry)
        if is_m3 and name.endswith("norm.weight"):
            values = values + np.float32(1)
        if not name.startswith("model.layers."):
            made[NAMES[name if name in NAMES else name.removeprefix("model.")]] = values
            continue
        _, _, layer, part = name.split(".", 3)
        if ".experts." in part:
            _, _, expert, matrix, _ = part.split(".")
            experts.setdefault((layer, matrix), {})[int(expert)] = values
        else:
            made[f"blk.{layer}.{OF_LAYER[part]}"] = values
    for (layer, matrix), group in experts.items():
        merged = {"w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps"}[matrix]
        made[f"blk.{layer}.{merged}.weight"] = np.stack([group[e] for e in range(len(group))])
    return text, is_m3, made


def write(path, text, is_m3, tensors, kinds=None):
    """A GGUF file. kinds: {part of a name: type}; all other tensors are F32."""
    writer = gguf.GGUFWriter(str(path), "minimax-m3" if is_m3 else "minimax-m2")
    writer.add_block_count(text["num_hidden_layers"])
    writer.add_context_length(text["max_position_embeddings"])
    writer.add_embedding_length(text["hidden_size"])
    writer.add_head_count(text["num_attention_heads"])
    writer.add_head_count_kv(text["num_key_value_heads"])
    writer.add_key_length(text["head_dim"])
    writer.add_rope_freq_base(text["rope_theta"])
    writer.add_rope_dimension_count(text["rotary_dim"])
    writer.add_layer_norm_rms_eps(text["rms_norm_eps"])
    writer.add_expert_count(text["num_local_experts"])
    writer.add_expert_used_count(text["num_experts_per_tok"])
    if is_m3:
        sparse = text["sparse_attention_config"]
        writer.add_expert_shared_count(1)
        writer.add_expert_weights_scale(text["routed_scaling_factor"])
        for key, name in {"head_count": "sparse_num_index_heads", "key_length": "sparse_index_dim",
                          "top_k": "sparse_topk_blocks", "block_size": "sparse_block_size",
                          "local_blocks": "sparse_local_block"}.items():
            writer.add_uint32(f"minimax-m3.attention.indexer.{key}", sparse[name])
    for name, values in tensors.items():
        kind = next((kinds[part] for part in kinds or {} if part in name), None)
        if isinstance(values, tuple):
            writer.add_tensor(name, values[0], raw_dtype=values[1])
        elif kind is None:
            writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
        elif kind == TYPES.F16:
            writer.add_tensor(name, np.ascontiguousarray(values, np.float16))
        else:
            blocks = gguf.quants.quantize(np.ascontiguousarray(values, np.float32), kind)
            writer.add_tensor(name, blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def convert(path, out):
    return subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "gguf_model.py"), str(path), str(out)],
                          capture_output=True, text=True)


def run(model, dump):
    done = subprocess.run([PROGRAM, "run", str(model), "--ids", "1,2,3,4,5,6,7,8,9,10,11,12,13", "--precision", "f64",
                           "--dump", str(dump)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return read(dump)


@pytest.mark.parametrize("name,kind", [("tiny", None), ("tiny", TYPES.BF16), ("m2", None), ("m2", TYPES.BF16)])
def test_plain_numbers_give_the_original_model(tmp_path, name, kind):
    """Every tap in double has the same bytes. Seen to fail with w1 and w3 exchanged, with Gemma norms, with a theta of
    10000, and with the experts of the first layer in all layers."""
    model = os.path.join(ROOT, "golden", name, "model")
    if name == "m2":        # that one is in FP8
        config, model = os.path.join(model, "config.json"), str(tmp_path / "synthetic")
        subprocess.run([PROGRAM, "synth", config, model, "--dtype", "bf16"], check=True, capture_output=True)
    text, is_m3, tensors = text_tensors(model)
    kinds = {part: kind for part in ("attn_q.", "attn_output", "exps", "token_embd")} if kind else None
    write(tmp_path / "model.gguf", text, is_m3, tensors, kinds)
    done = convert(tmp_path / "model.gguf", tmp_path / "model")
    assert done.returncode == 0, done.stderr
    stored = read(tmp_path / "model" / "model.safetensors")
    assert stored["model.embed_tokens.weight"][0] == ("BF16" if kind else "F32")
    want, got = run(model, tmp_path / "want"), run(tmp_path / "model", tmp_path / "got")
    taps = [tap for tap in want if not tap.startswith(("vision.", "projector."))]
    assert len(taps) > 60 and all(got[tap] == want[tap] for tap in taps)


# ---- quantised blocks, by their definitions

def half(data, at):
    return float(np.frombuffer(data[at:at + 2].tobytes(), "<f2")[0])


def q8_0(block):
    return [half(block, 0) * float(q) for q in block[2:34].view(np.int8)]


def q4_k(block):
    """d, dmin; 8 pairs (scale, minimum) of 6 bits; 32 bytes of codes for each two groups of 32."""
    d, dmin, s = half(block, 0), half(block, 2), [int(x) for x in block[4:16]]
    out = []
    for j in range(8):
        scale = s[j] & 63 if j < 4 else (s[j + 4] & 15) | (s[j - 4] >> 6) << 4
        least = s[j + 4] & 63 if j < 4 else (s[j + 4] >> 4) | (s[j] >> 6) << 4
        codes = block[16 + 32 * (j // 2):48 + 32 * (j // 2)] >> 4 * (j % 2) & 15
        out += [np.float32(np.float32(d * scale) * np.float32(q)) - np.float32(dmin * least) for q in codes]
    return out


def q6_k(block):
    """128 low halves, 64 upper pairs of bits, 16 scales, d."""
    low, high, scales, d = block[:128], block[128:192], block[192:208].view(np.int8), half(block, 208)
    out = []
    for i in range(256):
        part, at = i // 128, i % 128
        nibble = int(low[64 * part + at % 64]) >> 4 * (at // 64) & 15
        bits = int(high[32 * part + at % 32]) >> 2 * (at // 32) & 3
        out.append(np.float32(np.float32(d * int(scales[i // 16])) * np.float32((nibble | bits << 4) - 32)))
    return out


@pytest.mark.parametrize("kind,bytes_of_block,numbers,formula", [
    (TYPES.Q8_0, 34, 32, q8_0), (TYPES.Q4_K, 144, 256, q4_k), (TYPES.Q6_K, 210, 256, q6_k)])
def test_blocks_are_expanded_by_their_definition(tmp_path, kind, bytes_of_block, numbers, formula):
    """Random bytes, except that the half-precision scales are finite. Seen to fail with the low halves of Q4_K taken
    for both groups, and with a zero of 31 for Q6_K."""
    model = os.path.join(ROOT, "golden", "tiny", "model")
    text, is_m3, tensors = text_tensors(model)
    text = {**text, "hidden_size": 256, "vocab_size": 12}
    random = np.random.default_rng(7)
    blocks = random.integers(0, 256, (12, 256 // numbers, bytes_of_block), np.uint8)
    for at in {TYPES.Q8_0: (0,), TYPES.Q4_K: (0, 2), TYPES.Q6_K: (208,)}[kind]:
        blocks[..., at + 1] = blocks[..., at + 1] & 0x83 | 0x2c
    others = {name: values for name, values in tensors.items() if "token" not in name}
    tensors = {"token_embd.weight": (blocks.reshape(12, -1), kind), **others}
    write(tmp_path / "model.gguf", text, is_m3, tensors)
    done = convert(tmp_path / "model.gguf", tmp_path / "model")
    assert done.returncode == 0, done.stderr
    got = as_float(read(tmp_path / "model" / "model.safetensors")["model.embed_tokens.weight"])
    want = np.array([[x for block in row for x in formula(block)] for row in blocks], np.float32)
    assert got.dtype == np.float32 and np.array_equal(got.view(np.uint32), want.view(np.uint32))


# ---- hostile files

@pytest.fixture(name="good")
def good_file(tmp_path):
    text, is_m3, tensors = text_tensors(os.path.join(ROOT, "golden", "tiny", "model"))
    write(tmp_path / "good.gguf", text, is_m3, tensors)
    return tmp_path / "good.gguf", (text, is_m3, tensors)


def refused(tmp_path, path, status, *words):
    """One line, the status, and nothing written."""
    done = convert(path, tmp_path / "out")
    assert done.returncode == status and done.stdout == "", (done.returncode, done.stderr)
    assert done.stderr.count("\n") == 1 and all(word in done.stderr for word in words), done.stderr
    assert not [name for name in os.listdir(tmp_path) if name.startswith("out")]


def test_absent(tmp_path):
    refused(tmp_path, tmp_path / "none.gguf", 66, "none.gguf", "no such file")


@pytest.mark.parametrize("size", [0, 3, 24, 600, 5000, -1, -70000])
def test_truncated(tmp_path, good, size):
    data = good[0].read_bytes()
    (tmp_path / "bad.gguf").write_bytes(data[:size])
    refused(tmp_path, tmp_path / "bad.gguf", 65, "bad.gguf")


@pytest.mark.parametrize("at", [8, 16])
@pytest.mark.parametrize("count", [2 ** 20, 2 ** 62])
def test_counts_that_lie(tmp_path, good, at, count):
    """The numbers of tensors and of metadata."""
    data = bytearray(good[0].read_bytes())
    data[at:at + 8] = struct.pack("<Q", count)
    (tmp_path / "bad.gguf").write_bytes(data)
    refused(tmp_path, tmp_path / "bad.gguf", 65, "bad.gguf")


@pytest.mark.parametrize("rows", [2 ** 20, 2 ** 40, 2 ** 63 - 1])
def test_sizes_that_lie(tmp_path, good, rows):
    data = bytearray(good[0].read_bytes())
    at = data.index(b"token_embd.weight") + len("token_embd.weight") + 4
    data[at + 8:at + 16] = struct.pack("<Q", rows)
    (tmp_path / "bad.gguf").write_bytes(data)
    refused(tmp_path, tmp_path / "bad.gguf", 65, "bad.gguf")


def test_offset_outside(tmp_path, good):
    data = bytearray(good[0].read_bytes())
    at = data.index(b"token_embd.weight") + len("token_embd.weight") + 4 + 16 + 4
    data[at:at + 8] = struct.pack("<Q", 2 ** 34)
    (tmp_path / "bad.gguf").write_bytes(data)
    refused(tmp_path, tmp_path / "bad.gguf", 65, "bad.gguf")


def test_unknown_type(tmp_path, good):
    data = bytearray(good[0].read_bytes())
    at = data.index(b"token_embd.weight") + len("token_embd.weight") + 4 + 16
    data[at:at + 4] = struct.pack("<I", 201)
    (tmp_path / "bad.gguf").write_bytes(data)
    refused(tmp_path, tmp_path / "bad.gguf", 65, "bad.gguf")


def test_another_architecture(tmp_path, good):
    text, is_m3, tensors = good[1]
    write(tmp_path / "bad.gguf", text, is_m3, tensors)
    data = (tmp_path / "bad.gguf").read_bytes().replace(b"minimax-m3", b"minimax-m9")
    (tmp_path / "bad.gguf").write_bytes(data)
    refused(tmp_path, tmp_path / "bad.gguf", 65, "general.architecture", "minimax-m9", "minimax-m3")


def test_codes_that_are_not_read(tmp_path, good):
    text, is_m3, tensors = good[1]
    tensors = {**tensors, "token_embd.weight": (np.zeros((4, 3 * 17), np.uint8), TYPES.MXFP4)}
    write(tmp_path / "bad.gguf", text, is_m3, tensors)
    refused(tmp_path, tmp_path / "bad.gguf", 65, "token_embd.weight", "got MXFP4, expected F32")


def test_wrong_shape(tmp_path, good):
    text, is_m3, tensors = good[1]
    tensors = {**tensors, "token_embd.weight": tensors["token_embd.weight"][:, :-1]}
    write(tmp_path / "bad.gguf", text, is_m3, tensors)
    refused(tmp_path, tmp_path / "bad.gguf", 65, "embedding_length", "got 96, expected 95")


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.0.attn_q.weight", "blk.0.ffn_down.weight",
                                  "blk.2.ffn_down_exps.weight"])
def test_missing_tensor(tmp_path, good, name):
    text, is_m3, tensors = good[1]
    write(tmp_path / "bad.gguf", text, is_m3, {k: v for k, v in tensors.items() if k != name})
    refused(tmp_path, tmp_path / "bad.gguf", 65, name, "got no such tensor")


def test_extra_tensor(tmp_path, good):
    text, is_m3, tensors = good[1]
    write(tmp_path / "bad.gguf", text, is_m3, {**tensors, "blk.0.ffn_other.weight": np.ones((2, 2), np.float32)})
    refused(tmp_path, tmp_path / "bad.gguf", 65, "blk.0.ffn_other.weight")


def test_a_tensor_that_the_config_lacks_is_found_by_the_program(tmp_path, good):
    """What the script does not look at, inspect does."""
    text, is_m3, tensors = good[1]
    write(tmp_path / "model.gguf", text, is_m3, {k: v for k, v in tensors.items() if k != "blk.1.attn_k_norm.weight"})
    assert convert(tmp_path / "model.gguf", tmp_path / "model").returncode == 0
    done = subprocess.run([PROGRAM, "inspect", str(tmp_path / "model")], capture_output=True, text=True)
    assert done.returncode == 65 and "model.layers.1.self_attn.k_norm.weight: got no such tensor" in done.stderr


def test_out_that_exists(tmp_path, good):
    (tmp_path / "there").mkdir()
    done = convert(good[0], tmp_path / "there")
    assert done.returncode == 64 and "expected a new folder" in done.stderr


def test_left_overs(tmp_path, good):
    """What a process that was killed has left goes with the next. Seen to fail with the folder taken for a new one."""
    for name in ("out.1.part", "out.part"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"")
    assert convert(good[0], tmp_path / "out").returncode == 0
    assert sorted(name for name in os.listdir(tmp_path) if name.startswith("out")) == ["out", "out.part"]


def test_errors_of_the_system(tmp_path, good):
    refused(tmp_path, tmp_path, 74, f"{tmp_path}: Is a directory")
    done = convert(good[0], tmp_path / "none" / "out")
    assert done.returncode == 74 and done.stderr == f"gguf_model.py: {tmp_path}/none/out: No such file or directory\n"
    done = convert(tmp_path / os.fsdecode(b"\xff\033[31m"), tmp_path / "out")
    assert done.returncode == 66 and done.stderr == f"gguf_model.py: {tmp_path}/??[31m: no such file\n"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "gguf_model.py"), good[0], tmp_path / "out"],
                              stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 74 and done.stderr == "gguf_model.py: standard output: No space left on device\n"


def test_parts(tmp_path, good):
    """A missing part of several is named."""
    os.rename(good[0], tmp_path / "m-00001-of-00002.gguf")
    refused(tmp_path, tmp_path / "m-00001-of-00002.gguf", 66, "m-00002-of-00002.gguf")


def test_mutations(tmp_path, capsys):
    """Whatever bytes of the header are changed, the file is converted or refused in one line, without an exception.

    Seen to fail with the reader's exceptions not turned into refusals."""
    spec = importlib.util.spec_from_file_location("gguf_model", os.path.join(ROOT, "scripts", "gguf_model.py"))
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    text, is_m3, tensors = text_tensors(os.path.join(ROOT, "golden", "tiny", "model"))
    write(tmp_path / "bad.gguf", text, is_m3, tensors)
    good, draw, refused_count = (tmp_path / "bad.gguf").read_bytes(), random.Random(1), 0
    header = good.rindex(b"blk.") + 200
    edges = [bytes(8), b"\xff" * 8, b"\0\0\0\x80", b"\x01", b"\xff\xff\xff\x7f", b"\0\0\0\0\0\0\0\x80"]
    for i in range(150):
        data = bytearray(good)
        for _ in range(draw.choice([1, 1, 2, 5])):
            at, piece = draw.randrange(4, header), draw.choice(edges + [draw.randbytes(1)] * 6)
            data[at : at + len(piece)] = piece
        (tmp_path / "bad.gguf").write_bytes(data)
        out = tmp_path / f"out{i}"
        status = script.main([str(tmp_path / "bad.gguf"), str(out)])
        lines = capsys.readouterr().err.count("\n")
        assert (status, lines) in ((0, 0), (65, 1)), (i, status, lines)
        assert out.exists() == (status == 0)
        refused_count += status != 0
        shutil.rmtree(out, ignore_errors=True)
    assert 30 < refused_count < 150

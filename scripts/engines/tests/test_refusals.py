"""What llama.cpp cannot express is refused before anything is installed or loaded. No engine is needed here."""

import copy
import json
import os
import sys
import types

import pytest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "scripts"))
from engines import adapter, environments, llama_cpp, registry  # noqa: E402


def config(name):
    with open(os.path.join(ROOT, "golden", name, "model", "config.json")) as file:
        return json.load(file)


def refusal(given):
    with pytest.raises(SystemExit) as stop:
        llama_cpp.check("MODEL", given)
    return str(stop.value)


def test_expressible():
    assert llama_cpp.check("MODEL", config("common")) == ("MiniMaxM3SparseForConditionalGeneration", True)
    assert llama_cpp.check("MODEL", config("m2"))[1] is False


# Seen to fail with the check of the sparse fields left out, and with a field that is absent taken for a wrong one.
@pytest.mark.parametrize("path, value, words", [
    (("swiglu_limit",), 6.5, "swiglu_limit: got 6.5, expected 7.0"),
    (("hidden_act",), "silu", "hidden_act: got silu, expected swigluoai"),
    (("scoring_func",), "softmax", "scoring_func: got softmax, expected sigmoid"),
    (("shared_intermediate_size",), 48, "shared_intermediate_size: got 48, expected 44"),
    (("moe_layer_freq",), [0, 1, 0, 1, 1], "moe_layer_freq: got [0, 1, 0, 1, 1], expected layers without experts first"),
    (("moe_layer_freq",), [0, 0, 0, 0, 0], "moe_layer_freq: got [0, 0, 0, 0, 0]"),
    (("sparse_attention_config", "sparse_attention_freq"), [0, 0, 0, 1, 1], "sparse_attention_freq: got [0, 0, 0, 1, 1]"),
    (("sparse_attention_config", "sparse_score_type"), "lse", "sparse_score_type: got lse, expected max"),
    (("sparse_attention_config", "sparse_init_block"), 1, "sparse_init_block: got 1, expected 0"),
    (("sparse_attention_config", "sparse_num_index_heads"), 1, "sparse_num_index_heads: got 1, expected 2"),
    (("sparse_attention_config",), None, "sparse_attention_config: got nothing"),
])
def test_fields(path, value, words):
    given = copy.deepcopy(config("common"))
    place = given["text_config"]
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    assert refusal(given).startswith("MODEL/config.json: " + words)


def test_other_models():
    assert refusal(config("tiny")).startswith("MODEL/config.json: shared_intermediate_size: got 56, expected 44")
    assert "architectures: got LlamaForCausalLM" in refusal({"architectures": ["LlamaForCausalLM"]})
    assert "architectures: got none" in refusal({})


# Seen to fail with the pictures of a case ignored.
def test_pictures():
    case = adapter.Case(os.path.join(ROOT, "golden", "vision", "two_case.safetensors"))
    with pytest.raises(SystemExit, match="got pictures, expected text"):
        llama_cpp.run(os.path.join(ROOT, "golden", "common", "model"), case, None, types.SimpleNamespace())


# Seen to fail with every file of an archive unpacked.
def test_files_of_archives():
    source = registry.ENGINES["sglang"].sources[0]
    assert environments.is_wanted(source, "sglang/kernels/ops/attention/minimax_sparse/common/utils.py")
    assert not environments.is_wanted(source, "sglang/kernels/ops/attention/flash.py")
    assert not environments.is_wanted(source, "other/sglang/kernels/ops/attention/minimax_sparse/x.py")

"""Inputs that a reader refuses or notes, one for each reason, and dumps that are drawn: parts of seeds.py, which gives
`keep`, `pack` and `numbers`."""

import copy
import json
import math
import pathlib
import struct

REMOVED = object()


def changed(value, changes):
    """A copy with some fields set or removed; a name such as "text_config.head_dim" leads into objects."""
    result = copy.deepcopy(value)
    for name, field in changes.items():
        *parents, last = name.split(".")
        place = result
        for parent in parents:
            place = place[parent]
        if field is REMOVED:
            place.pop(last, None)
        else:
            place[last] = field
    return result


def configs(keep):
    little = json.loads(pathlib.Path("tests/fuzz/little.json").read_text())
    flat = json.loads(pathlib.Path("golden/tiny/config_flat.json").read_text())
    text, sparse = "text_config.", "text_config.sparse_attention_config."
    for name, changes in {
        "other_type": {"model_type": "llama"},
        "other_class": {"architectures": ["LlamaForCausalLM"]},
        "without_text": {"text_config": REMOVED},
        "text_is_a_list": {"text_config": []},
        "text_alone": {"model_type": "minimax_m3_vl_text", "text_config": {"hidden_size": 8}},
        "moe_of_three": {text + "moe_layer_freq": [0, 1, 1]},
        "moe_unstated": {text + "moe_layer_freq": REMOVED},
        "kinds_differ": {text + "mlp_layer_types": ["sparse", "dense"]},
        "dense_attention": {text + "sparse_attention_config": REMOVED},
        "sparse_unstated": {sparse + "sparse_attention_freq": REMOVED},
        "index_value": {sparse + "sparse_disable_index_value": [0, 0]},
        "linear_attention": {text + "attn_type_list": [0, 1]},
        "norm_per_layer": {text + "qk_norm_type": "per_layer", text + "rope_scaling": {}, text + "sliding_window": 4},
        "rotary_differs": {text + "rotary_dim": 4},
        "rotary_unstated": {text + "rotary_dim": REMOVED, text + "partial_rotary_factor": REMOVED},
        "heads_uneven": {text + "num_attention_heads": 3, text + "num_key_value_heads": 2},
        "number_is_text": {text + "hidden_size": "8"},
        "number_too_large": {text + "rms_norm_eps": 2},
        "flag_is_a_number": {text + "use_qk_norm": 1},
        "unknown_field": {text + "unknown": 1},
        "field_missing": {text + "head_dim": REMOVED, text + "swiglu_alpha": REMOVED},
        "too_large": {text + "vocab_size": 1 << 30, text + "hidden_size": 1 << 20, text + "num_hidden_layers": 2},
        "word_unknown": {text + "scoring_func": "softmax"},
    }.items():
        keep("config_m3", name, json.dumps(changed(little, changes)).encode())
    for name, changes in {
        "flat_rotary": {text + "rotary_dim": 14},
        "flat_without_factor": {
            text + "partial_rotary_factor": REMOVED,
            text + "rope_parameters.partial_rotary_factor": REMOVED,
        },
        "flat_kinds_unstated": {text + "layer_types": REMOVED, text + "mlp_layer_types": REMOVED},
        "flat_other_number": {text + "rope_theta": 10000},
        "compression_differs": {
            "img_token_compression_config": {"spatial_merge_size": 3},
            "vision_config.img_token_compression_config": {"spatial_merge_size": 2},
        },
    }.items():
        keep("config_m3", name, json.dumps(changed(flat, changes)).encode())
    group = {"weights": {"num_bits": 8, "type": "int"}}
    compressed = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    for name, value in {
        "unknown_method": {"quant_method": "gptq"},
        "unknown_format": {"quant_method": "compressed-tensors", "format": "x"},
        "int8": dict(compressed, config_groups={"a": group}),
        "sparse": dict(compressed, sparsity_config={"format": "x"}, transform_config={"a": 1}),
    }.items():
        keep("quantization", name, json.dumps(value).encode())
    few = {"model_type": "m3ref_comparison", "name": "x", "source": "x", "parameters": 4}
    for name, value in {
        "unknown_field": dict(few, unknown=1),
        "some_attention": dict(few, attention_layers=2),
        "more_active": dict(few, active_parameters=5),
        "other_type": {"model_type": "x"},
        "other_class": {"architectures": ["x"]},
        "llama_of_another_class": {"model_type": "llama", "architectures": ["x"]},
    }.items():
        keep("estimate", name, json.dumps(value).encode())


def headers(keep, pack):
    def entry(**changes):
        return {"a": dict({"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, **changes)}

    def content(header, data=bytes(4), length=None):
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text) if length is None else length) + text + data

    two = dict(entry(), b=entry(data_offsets=[8, 12])["a"])
    for name, bad in {
        "header_of_4_gb": content({}, length=1 << 32),
        "header_cut": content({}, length=100),
        "header_is_a_list": content([]),
        "metadata_is_a_number": content({"__metadata__": {"a": 1}}, b""),
        "rank_10": content(entry(shape=[1] * 10)),
        "shape_of_texts": content(entry(shape=["1"])),
        "elements_overflow": content(entry(shape=[1 << 40, 1 << 40])),
        "bytes_overflow": content(entry(shape=[1 << 61])),
        "one_offset": content(entry(data_offsets=[0])),
        "offsets_descend": content(entry(data_offsets=[4, 0])),
        "other_size": content(entry(shape=[2])),
        "unaligned": content(entry(data_offsets=[1, 5]), bytes(5)),
        "hole": content(two, bytes(12)),
        "overlap": content(dict(two, b=entry()["a"]), bytes(4)),
        "bytes_left": content(entry(), bytes(8)),
        "empty_at_one_place": content(
            {n: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in "ba"}, b""
        ),
    }.items():
        keep("safetensors", name, bad)
    keep("inspect", "nan", pack({"a": ("F32", [2], struct.pack("<2f", math.nan, 1))}))
    keep("gzip", "damaged", b"\x1f\x8b\x08" + bytes(7) + b"\xff" * 40)


def cases(keep, pack, numbers):
    ids, pixels = numbers("I64", [2], [1, 2]), numbers("F32", [4, 1176], [0.0] * 4704)
    grid = numbers("I64", [1, 3], [1, 2, 2])
    for name, tensors in {
        "ids_of_floats": {"input_ids": numbers("F32", [2], [1.0, 2.0])},
        "no_ids": {"input_ids": numbers("I64", [0], [])},
        "positions_of_one": {"input_ids": ids, "position_ids": numbers("I64", [1], [0])},
        "mask_of_two": {"input_ids": ids, "attention_mask": numbers("I64", [2], [2, 1])},
        "mask_of_four": {"input_ids": ids, "attention_mask": numbers("I64", [4], [1] * 4)},
        "grid_alone": {"input_ids": ids, "image_grid_thw": grid},
        "pixels_of_rank_1": {"input_ids": ids, "image_grid_thw": grid, "pixel_values": numbers("F32", [1], [0.0])},
        "grid_of_rank_1": {"input_ids": ids, "image_grid_thw": numbers("I64", [3], [1, 2, 2]), "pixel_values": pixels},
        "unknown_tensor": {"input_ids": ids, "x": ids},
        "several": {"input_ids": numbers("I64", [2, 1], [1, 2])},
        "large_id": {"input_ids": numbers("I64", [2], [1, 1 << 30])},
        "position_below_0": {"input_ids": ids, "position_ids": numbers("I64", [2], [-1, 0])},
        "position_2_to_60": {"input_ids": ids, "position_ids": numbers("I64", [2], [0, 1 << 60])},
        "position_far": {"input_ids": ids, "position_ids": numbers("I64", [2], [0, 1 << 40])},
    }.items():
        keep("case", name, pack(tensors))


def caches(keep, pack, load, whole):
    tensors, metadata = load(whole)
    dtype, shape, data = tensors["layers.0.k"]
    keep("cache", "without_keys", pack({n: t for n, t in tensors.items() if n != "layers.0.k"}, metadata))
    keep("cache", "keys_of_rank_2", pack(dict(tensors, **{"layers.0.k": (dtype, [shape[0], 4], data)}), metadata))
    keep("cache", "one_more", pack(dict(tensors, x=(dtype, shape, data)), metadata))
    keep("cache", "nan", pack(dict(tensors, **{"layers.0.k": (dtype, shape, b"\xff" * len(data))}), metadata))


def answers(keep):
    def choice(**fields):
        return {"choices": [fields]}

    def completion(tokens, own, tops=None, **more):
        return dict(
            choice(logprobs={"tokens": tokens, "token_logprobs": own, "top_logprobs": tops}, token_ids=None), **more
        )

    def named(*ids):
        return [f"token_id:{i}" for i in ids]

    pair = [-1.0, 1, None]
    for name, value in {
        "error": {"error": {"message": "busy"}},
        "two_answers": [{}, {}],
        "in_a_list": [{"prompt_ids": [1, 2], "ids": [3]}],
        "neither": {"a": 1},
        "token_twice": choice(prompt_logprobs=[None] + [{"2": {"logprob": -1}, "02": {"logprob": -1}}]),
        "more_positions": choice(prompt_token_ids=[1, 2], prompt_logprobs=[None]),
        "echo": completion(named(1, 2, 3), [None, -1.0, -2.0], usage={"prompt_tokens": 2}),
        "echo_of_another_prompt": dict(
            choice(
                logprobs={"tokens": named(1, 2, 3), "token_logprobs": [None, -1.0, -2.0]}, prompt_token_ids=[5, 6]
            ),
            usage={"prompt_tokens": 2},
        ),
        "echo_of_none": completion(named(1, 2), [None, -1.0], usage={"prompt_tokens": 7}),
        "uneven_lists": completion(named(1, 2), [-1.0]),
        "ids_and_texts": choice(logprobs={"tokens": named(1, 2), "token_logprobs": [-1, -1]}, token_ids=[1, 3]),
        "ids_of_one": choice(logprobs={"tokens": named(1, 2), "token_logprobs": [-1, -1]}, token_ids=[1]),
        "texts_alone": dict(
            choice(
                logprobs={"content": [{"token": "x", "logprob": -1.0}]},
                prompt_logprobs=[None, {"2": {"logprob": -1.0}}],
                prompt_token_ids=[1, 2],
            )
        ),
        "no_logprobs": choice(text="x"),
        "sglang_uneven": {"meta_info": {"input_token_logprobs": [pair, pair], "input_top_logprobs": [None]}},
        "sglang_output": {"meta_info": {"output_token_logprobs": [pair]}},
        "sglang_more_output": {"output_ids": [1, 2], "meta_info": {"output_token_logprobs": [pair]}},
        "sglang_short_prompt": {"meta_info": {"prompt_tokens": 1, "input_token_logprobs": [pair, pair]}},
        "sglang_none": {"meta_info": {}},
        "other_tokens": choice(prompt_logprobs=[None, {"3": {"logprob": -1.0}}], prompt_token_ids=[1, 2]),
        "other_prompt": {"prompt_ids": [1, 2, 3, 4, 5, 7], "ids": [1]},
    }.items():
        keep("answer", name, json.dumps(value).encode())
    keep("answer", "page", b"<html>")
    keep("answer", "stream", b"data: {}\n")
    keep("answer", "mark_of_order", b"\xef\xbb\xbf {}")


def right_answers(keep, load, whole):
    """What the little model itself answers: its own tokens, and its log-probabilities of the prompt."""
    dtype, (rows, width), data = load(whole)[0]["logits"]
    numbers = struct.unpack(f"<{rows * width}{dict(F32='f', F64='d')[dtype]}", data)
    logits = [numbers[t * width : (t + 1) * width] for t in range(rows)]
    total = [math.log(sum(map(math.exp, row))) for row in logits]
    listed = [{str(i): {"logprob": x - total[t]} for i, x in enumerate(row)} for t, row in enumerate(logits[:-1])]
    best = max(range(width), key=lambda i: logits[-1][i])
    prompt = list(range(1, rows + 1))
    for name, value in {
        "own_tokens": {"prompt_ids": prompt, "ids": [best]},
        "own_logprobs": {"choices": [{"prompt_token_ids": prompt, "prompt_logprobs": [None] + listed}]},
        "own_token_twice": {"prompt_ids": prompt, "ids": [best, best]},
        "two_decimals": {
            "choices": [
                {
                    "prompt_token_ids": prompt,
                    "prompt_logprobs": [None]
                    + [{i: {"logprob": round(e["logprob"], 2)} for i, e in row.items()} for row in listed],
                }
            ]
        },
    }.items():
        for end in ("", " "):  # the target prints JSON or text, as the size is odd or even
            content = (json.dumps(value) + end).encode()
            keep("answer_judged", f"{name}_{'json' if len(content) % 2 else 'text'}", content)


def profiles(keep):
    for name, value in {
        "list": [],
        "base_is_a_number": {"name": "x", "base": 1},
        "base_elsewhere": {"name": "x", "base": "a/b"},
        "base_of_itself": {"name": "x", "base": "profile.json"},
        "base_unknown": {"name": "x", "base": "unknown"},
        "word_unknown": {"name": "x", "base": "bf16+unknown"},
        "matches_nothing": {"name": "x", "base": "bf16", "store": {"unknown": "f16"}},
        "store_f8": {"name": "x", "base": "bf16", "store": {"*": "f8_e4m3"}},
        "odd_fields": {
            "name": "x",
            "base": "bf16",
            "what": "two\nlines",
            "sources": {"store": 1},
            "input": {"*": 1},
            "partials": {"*": {"ranks": 1}},
            "alpha": "x",
            "exact": [1],
        },
    }.items():
        keep("profile", name, json.dumps(value).encode())


def drawn(keep, pack, numbers, load, whole):
    """Dumps with pictures, drafts and layers of MTP modules: small ones, with numbers that no model has computed."""
    tensors, metadata = load(whole)
    values = lambda *shape: numbers("F32", list(shape), [(7 * i % 31) / 8 for i in range(math.prod(shape))])
    features = numbers("F32", [4, 8], [i % 8 + i / 64 for i in range(32)])
    fused = ("F32", [6, 8], bytes(32) + features[2] + bytes(32))
    blocks = numbers("I32", [6, 1, 2], [0, -1] * 2 + [0, 1] * 4)
    picture = {"vision.grid": numbers("I32", [1, 3], [1, 4, 4]), "vision.pixels": values(16, 12)}
    merged = dict(picture, **{"projector.out": features, "fused": fused, "layers.1.index.blocks": blocks})
    for name, some in {
        "patches": picture,
        "patches_merged": merged,
        "patches_of_two_steps": dict(picture, **{"vision.grid": numbers("I32", [1, 3], [2, 4, 2])}),
        "patches_of_another_grid": dict(picture, **{"vision.grid": numbers("I32", [1, 3], [1, 0, 4])}),
        "patches_uneven": dict(merged, **{"vision.grid": numbers("I32", [1, 3], [1, 16, 1])}),
        "drafts": {"logits": values(6, 17), "mtp.0.logits": values(6, 17), "mtp.1.logits": values(6, 17)},
        "drafts_of_another_width": {"logits": values(6, 17), "mtp.0.logits": values(6, 16)},
        "blocks_of_mtp": {"mtp.0.layer.index.blocks": blocks},
        "blocks_of_many_layers": {f"layers.{i}.index.blocks": blocks for i in range(20)},
        "experts_alone": {"layers.1.moe.experts": numbers("I32", [6, 2], [0, 1] * 6)},
        "other_keys": dict(tensors, **{"layers.1.attn_lse": values(6, 2)}),
        "several": {"sequences": numbers("I32", [1], [6])},
        "rank_1": {"embed": values(6)},
        "nothing": {"x": values(6)},
        "another_width": {"layers.0.out": values(6, 9)},
    }.items():
        keep("picture", name, pack(some, metadata))


def ranks(keep, pack, numbers, metadata):
    """Files of two ranks or chunks."""
    scores = "layers.1.index.block_scores"
    bytes_of = {"F32": 4, "F64": 8, "F16": 2, "BF16": 2}
    text = lambda files, **rules: json.dumps({"files": files, **({"rules": rules} if rules else {})}).encode()
    zeros = lambda dtype, *shape: (dtype, list(shape), bytes(bytes_of[dtype] * math.prod(shape)))
    rows_of = lambda name, width: pack({name: zeros("F32", 3, width)}, metadata)
    for dtype in bytes_of:
        widening = [pack({scores: zeros(dtype, 3, 1, n)}, metadata) for n in (2, 3)]
        keep("map_ranks", f"scores_of_more_blocks_{dtype.lower()}", text("chunks"), *widening)
    embed, narrower, narrow = rows_of("embed", 8), rows_of("embed", 7), rows_of("embed", 5)
    keep("map_ranks", "other_width", text("chunks"), embed, narrower)
    keep("map_ranks", "other_shape", text("ranks", **{"*": "equal"}), embed, narrower)
    keep("map_ranks", "parts_too_wide", text("ranks", **{"*": {"concat": 1}}), narrow, narrow)
    keep("map_ranks", "nothing_in_common", text("chunks"), embed, rows_of("fused", 8))
    keep("map_ranks", "unstated", b'{"name": "x"}', embed, embed)
    for name, second in (("gap", [4, 5, 6]), ("twice", [2, 3, 4])):
        numbered = [{"embed": zeros("F32", 3, 8), "rows": numbers("I64", [3], rows)} for rows in ([0, 1, 2], second)]
        keep("map_ranks", "numbered_" + name, text("ranks", **{"*": "rows"}), *[pack(n, metadata) for n in numbered])
    foreign = pack({"x": zeros("F32", 2, 3, 8)}, metadata)
    recipe = {"files": "ranks", "taps": {"embed": {"from": "x"}}, "rules": {"*": "equal"}}
    keep("map_ranks", "two_sequences", json.dumps(recipe).encode(), foreign, foreign)
    keep("map_ranks", "two_sequences_last", text("ranks", **{"*": "last"}), foreign, foreign)


def rows(keep, pack, numbers, metadata):
    """Candidates of sequences of 3 and 2 tokens that number their rows, rightly and wrongly."""
    whole = {"positions": [0, 1, 2, 0, 1], "query_start_loc": [0, 3, 5]}
    step = {"positions": [1, 2, 1], "query_start_loc": [0, 2, 3]}
    lists = {
        "own": (5, {"rows": [0, 1, 1, 2, 0], "sequences": [0, 1, 0, 0, 1]}),
        "whole": (5, whole),
        "positions": (5, {"positions": [0, 1, 2, 0, 1]}),
        "one": (3, {"positions": [0, 1, 2], "seq_lens": [3], "query_start_loc": [0, 3]}),
        "one_decode": (1, {"positions": [2], "seq_lens": [3]}),
        "step": (3, step),
        "decode": (2, {"positions": [2, 1], "seq_lens": [3, 2]}),
        "lengths": (3, {"query_start_loc": [0, 2, 3], "seq_lens": [3, 2]}),
        "cached": (3, {"extend_seq_lens": [2, 1], "extend_prefix_lens": [1, 1]}),
        "ends": (3, {"forward_batch.positions": [1, 2, 1], "forward_batch.seq_lens": [3, 2]}),
        "requests": (3, {**step, "requests": [1, 0], "positions": [0, 1, 2]}),
        "req_indices": (3, {"req_indices": [1, 0, 1], "positions": [0, 2, 1]}),
        "buffers": (5, {**step, "positions": [1, 2, 1, 0, 0], "slot_mapping": [4, 5, 6, -1, -1]}),
        "back": (3, {**step, "positions": [2, 1, 1]}),
        "beyond": (3, {**step, "positions": [1, 7, 1]}),
        "request_twice": (3, {**step, "requests": [1, 1]}),
        "row_twice": (3, {"rows": [0, 0, 1], "sequences": [1, 1, 0]}),
        "other_sequence": (3, {"rows": [0, 1, 1], "sequences": [2, 1, 0]}),
        "starts_back": (3, {**step, "query_start_loc": [0, 2, 1]}),
        "starts_from_1": (3, {**step, "query_start_loc": [1, 2, 3]}),
        "starts_beyond": (3, {**step, "query_start_loc": [0, 2, 9]}),
        "three_requests": (3, {**step, "query_start_loc": [0, 1, 2, 3]}),
        "slots_between": (3, {**step, "slot_mapping": [1, -1, 2]}),
        "slots_in_request": (3, {**step, "slot_mapping": [1, 2, -1]}),
        "short_lengths": (3, {"query_start_loc": [0, 2, 3], "seq_lens": [1, 2]}),
        "unnamed": (3, {"query_start_loc": [0, 2, 3]}),
        "two_lists": (5, {**whole, "cu_seqlens": [0, 2, 5]}),
        "huge": (3, {**step, "query_start_loc": [0, 2**62, 2**62 + 1]}),
        "no_row": (3, {"positions": [], "query_start_loc": [0, 0, 0]}),
        "other_rows": (4, step),
    }
    for name, (count, given) in lists.items():
        tensors = {n: numbers("I64", [len(v)], v) for n, v in given.items()}
        for tap in ("embed", "embed_tokens", "norm.0", "final_norm"):
            tensors[tap] = numbers("F32", [count, 8], [0.5] * 8 * count)
        keep("rows", name, pack(tensors, metadata))


OPERATORS = 14  # of the target from_dump, which takes one and a place of the case from the size of the dump


def cuts(keep, pack, numbers, load, whole):
    """Dumps that operators' cases are taken from."""
    tensors, metadata = load(whole)

    def of_size(content, operator, own_case):
        for length in range(0, 16 * OPERATORS, 8):
            dump = pack(content, dict(metadata, length="x" * length))
            if len(dump) // 8 % OPERATORS == operator and len(dump) // 8 // OPERATORS % 2 == own_case:
                return dump
        raise SystemExit("no size selects the operator")

    few = {n: t for n, t in tensors.items() if n.startswith("layers.0.") or n in ("embed", "fused")}
    few["case.input_ids"] = numbers("I64", [6], range(1, 7))
    rows = lambda *numbered: {"rows": numbers("I32", [len(numbered)], numbered)}
    cases = {n: t for n, t in few.items() if n.startswith("case.")}
    taps = {n: t for n, t in few.items() if n not in cases}
    short = lambda n: {k: (d, [n, *s[1:]], b[: len(b) // s[0] * n]) for k, (d, s, b) in taps.items()}
    for name, operator, content in (
        ("masked", 2, dict(few, **{"case.attention_mask": numbers("U8", [6], [0, 1, 1, 1, 1, 1])})),
        ("rows_of_attention", 2, dict(cases, **short(2), **rows(0, 3))),
        ("rows_beyond_the_case", 1, dict(cases, **short(2), **rows(0, 9))),
        ("rows_uneven", 0, dict(cases, **short(3), **rows(0, 3))),
        ("no_row", 0, dict(cases, **short(0))),
        ("rank_1", 0, dict(few, fused=numbers("F32", [8], [0.0] * 8))),
        ("without_operand", 0, {n: t for n, t in few.items() if n != "fused"}),
        ("without_tap", 6, few),
        ("f64", 0, {n: ("F64", s, bytes(2 * len(b))) if d == "F32" else (d, s, b) for n, (d, s, b) in few.items()}),
    ):
        for own_case in (0, 1):
            keep("from_dump", f"{name}_{own_case}", of_size(content, operator, own_case))

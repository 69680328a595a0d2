#!/usr/bin/env python3
"""Writes the first inputs of every fuzz target: small files of the goldens, and files of the model of little.json.

usage: seeds.py PROGRAM OUT      from the repository's root; makes OUT/TARGET/seed_*
"""

import gzip
import json
import pathlib
import re
import resource
import shutil
import struct
import subprocess
import sys

import seeds_refused as refused

PROGRAM, OUT = sys.argv[1], pathlib.Path(sys.argv[2])
IDS = "1,2,3,4,5,6"
GOLDEN, HERE = pathlib.Path("golden"), pathlib.Path("tests/fuzz")
WORK = pathlib.Path("build/fuzz_seeds")  # always the same, because dumps hold the command that wrote them
SIZES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2}


def keep(target, name, *files):
    """One input: its files, each but the last after its size."""
    content = b"".join(struct.pack("<I", len(f)) + f for f in files[:-1]) + files[-1]
    (OUT / target).mkdir(parents=True, exist_ok=True)
    (OUT / target / f"seed_{name}").write_bytes(content)


def run(*words):
    subprocess.run([PROGRAM, *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def load(content):
    """(tensors: name -> (dtype, shape, bytes), metadata)"""
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    at = lambda e: content[8 + length + e["data_offsets"][0] : 8 + length + e["data_offsets"][1]]
    return {name: (e["dtype"], e["shape"], at(e)) for name, e in header.items()}, metadata


def pack(tensors, metadata=None):
    header, data = {"__metadata__": metadata} if metadata else {}, b""
    for name, (dtype, shape, content) in sorted(tensors.items(), key=lambda t: -SIZES.get(t[1][0], 1)):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def numbers(dtype, shape, values):
    code = {"F32": "f", "F64": "d", "I64": "q", "I32": "i", "U8": "B"}[dtype]
    return dtype, shape, struct.pack(f"<{len(values)}{code}", *values)


def small_files(folder, pattern, most=8000):
    return [p for p in sorted(pathlib.Path(folder).glob(pattern)) if p.is_file() and p.stat().st_size <= most]


# What a comparison treats alike: the taps of one group, and what their operators read.
GROUPS = {
    "norms": "layers.0.attn_norm,embed,fused",
    "rope": "layers.0.q_norm,layers.0.q_rope,layers.0.k_norm,layers.0.k_rope",
    "attend": "layers.0.q_rope,layers.0.k_rope,layers.0.v_proj,layers.0.attn,layers.0.attn_lse",
    "index": "layers.1.index.q_rope,layers.1.index.k_rope,layers.1.index.block_scores,layers.1.index.blocks",
    "sparse": "layers.1.q_rope,layers.1.k_rope,layers.1.v_proj,layers.1.index.blocks,layers.1.attn*",
    "router": "layers.1.moe.router*,layers.1.moe.experts,layers.1.moe.weights",
    "moe": "layers.1.moe.experts,layers.1.moe.weights,layers.1.moe.expert_out,layers.1.moe.routed,layers.1.moe.shared,"
    "layers.1.mlp",
    "mlp": "layers.0.mlp*,layers.0.mid,layers.0.out",
    "head": "layers.1.out,final_norm,logits",
}


def safetensors_files():
    for path in small_files(GOLDEN, "*/*case.safetensors", 1500):
        keep("safetensors", path.parent.name + "_" + path.stem, path.read_bytes())
    every = {d: (d, [2, 1], bytes(2 * SIZES.get(d, 1))) for d in ("F64", "F32", "F16", "BF16", "I64", "I32", "U8")}
    every["F8_E4M3"] = ("F8_E4M3", [2], bytes(2))
    every["F8_E5M2"] = ("F8_E5M2", [2], bytes(2))
    every["none"] = ("F32", [0, 3], b"")
    every["scalar"] = numbers("F32", [], [1.5])
    keep("safetensors", "dtypes", pack(every, {"format": "pt"}))
    keep("safetensors", "zip", b"PK\3\4" + bytes(20))
    keep("safetensors", "npy", b"\x93NUMPY" + bytes(20))
    keep("safetensors", "pickle", b"\x80\x04" + b"\xff" * 20)
    listed = {name: tensor for name, tensor in every.items() if name != "F8_E5M2"}  # which is refused
    for format in ("pt", "safetensors"):  # as text and as JSON: the target takes one or the other from the length
        keep("inspect", "dtypes_" + format, pack(listed, {"format": format}))
    content = pack(every)
    keep("gzip", "one", gzip.compress(content, mtime=0))
    keep("gzip", "two", gzip.compress(content[:50], mtime=0) + gzip.compress(content[50:], mtime=0))
    keep("gzip", "stored", gzip.compress(content, 0, mtime=0))
    keep("gzip", "cut", gzip.compress(content, mtime=0)[:-9])


def models(little):
    one, two = (pack({n: numbers("F32", [1], [1.0])}) for n in ("a", "b"))
    index = {
        "metadata": {"total_size": 8},
        "weight_map": {f"{n}": f"model-0000{i}-of-00002.safetensors" for i, n in ((1, "a"), (2, "b"))},
    }
    keep("index", "two", json.dumps(index).encode(), one, two)
    for name, change in (("outside", "../x"), ("absent", "model-00003-of-00002.safetensors")):
        other = {"weight_map": dict(index["weight_map"], b=change)}
        keep("index", name, json.dumps(other).encode(), one, two)
    m2 = [
        p
        for p in sorted(GOLDEN.glob("**/config.json")) + sorted(GOLDEN.glob("configs/*.json"))
        if json.loads(p.read_text()).get("model_type", "").startswith("minimax_m2")
    ]
    m3 = [p for p in sorted(GOLDEN.glob("**/*config*.json")) if p not in m2 and p.stat().st_size < 9500]
    for path in m2:
        keep("config_m2", path.parent.parent.name + path.parent.name + path.stem, path.read_bytes())
    for path in m3 + [HERE / "little.json"]:
        keep("config_m3", path.parent.parent.name + path.parent.name + path.stem, path.read_bytes())
        whole = json.loads(path.read_text())
        if "quantization_config" in whole:
            keep("quantization", path.parent.parent.name, json.dumps(whole["quantization_config"]).encode())
    for path in sorted(GOLDEN.glob("configs/*.json")):
        keep("estimate", path.stem, path.read_bytes())
        whole = json.loads(path.read_text())
        if "quantization_config" in whole:
            keep("quantization", path.stem, json.dumps(whole["quantization_config"]).encode())
    keep("estimate", "little", (HERE / "little.json").read_bytes())
    keep("model", "little", (little / "config.json").read_bytes(), (little / "model.safetensors").read_bytes())
    config = json.loads((HERE / "little.json").read_text())
    text = config["text_config"]
    text.update(
        hidden_size=32,
        head_dim=16,
        dense_intermediate_size=32,
        shared_intermediate_size=32,
        intermediate_size=32,
        num_local_experts=2,
        rotary_dim=8,
    )
    text["sparse_attention_config"]["sparse_index_dim"] = 8
    wide = WORK / "wide.json"
    wide.write_text(json.dumps(config))
    for dtype in ("mxfp8", "f8_block", "nvfp4", "mxfp4", "w4a16", "bf16"):
        run("synth", wide, WORK / dtype, "--dtype", dtype)
        tensors, metadata = load((WORK / dtype / "model.safetensors").read_bytes())
        # Matrices of one layer are enough to see how they are stored; the rest is reported as missing.
        few = {n: t for n, t in tensors.items() if re.search(r"layers\.0\.|experts\.0\.w1|gate\.", n)}
        keep("model", dtype, (WORK / dtype / "config.json").read_bytes(), pack(few, metadata))
        quantized = json.loads((WORK / dtype / "config.json").read_text()).get("quantization_config")
        if quantized:
            keep("quantization", dtype, json.dumps(quantized).encode())
    fp4 = {"weight": {"dtype": "fp4", "group_size": 32}}
    for name, value in (
        ("quark", {"quant_method": "quark", "global_quant_config": fp4}),
        ("quark_list", {"quant_method": "quark", "global_quant_config": {"weight": [fp4["weight"]]}}),
        ("quark_int8", {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int8"}}}),
        ("modelopt", {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
        ("modelopt_alone", {"quant_algo": "MXFP4"}),
    ):
        keep("quantization", name, json.dumps(value).encode())


def pictures():
    for path in small_files(GOLDEN / "pictures", "*.png", 1500):
        keep("png", path.stem, path.read_bytes())
    one = (GOLDEN / "pictures/rgb8_1x1.png").read_bytes()
    small = (GOLDEN / "pictures/grey8.png").read_bytes()
    keep("pictures", "small", small, small, small)
    keep("pictures", "sizes", small, small, one)


def cases():
    ids = numbers("I64", [6], range(1, 7))
    grid = numbers("I64", [1, 3], [1, 2, 2])
    pixels = numbers("F32", [4, 1176], [0.25] * 4704)
    images, videos = [200025] * 1, [200026] * 1
    keep("case", "ids", pack({"input_ids": ids}))
    keep(
        "case",
        "all",
        pack(
            {
                "input_ids": ids,
                "position_ids": numbers("I64", [6], range(6)),
                "attention_mask": numbers("I64", [6], [0, 1, 1, 1, 1, 1]),
            }
        ),
    )
    for name, token, keys in (
        ("image", images, ("pixel_values", "image_grid_thw")),
        ("video", videos, ("pixel_values_videos", "video_grid_thw")),
    ):
        keep(
            "case",
            name,
            pack({"input_ids": numbers("I32", [4], [1, 2] + token + [3]), keys[0]: pixels, keys[1]: grid}),
        )
    dump = {"case.input_ids": ids, "case.position_ids": numbers("I64", [6], range(6))}
    mask = {"case.attention_mask": numbers("U8", [6], [1] * 6)}
    for name, more in (
        ("dump", mask),
        ("dump_image", {"case.image_grid_thw": grid}),
        ("dump_video", {"case.video_grid_thw": grid}),
        ("dump_odd_grid", {"case.image_grid_thw": numbers("I64", [3], [1, 2, 2])}),
        ("dump_short_mask", {"case.attention_mask": numbers("U8", [5], [1] * 5)}),
    ):
        keep("case", name, pack(dump | more))
    keep("case", "dump_cached", pack({"case.input_ids": ids}, {"case.cached": "3", "case.shift": "2"}))
    for path in small_files(GOLDEN, "*/*case.safetensors", 700):
        keep("case", path.parent.name + "_" + path.stem, path.read_bytes())
    padded = {
        "input_ids": numbers("I64", [2, 3], [1, 2, 3, 0, 4, 5]),
        "attention_mask": numbers("I64", [2, 3], [1, 1, 1, 0, 1, 1]),
    }
    packed = {"input_ids": ids, "cu_seqlens": numbers("I32", [3], [0, 2, 6])}
    keep("batch", "padded", pack(padded))
    keep("batch", "right", pack(dict(padded, attention_mask=numbers("I32", [2, 3], [1, 1, 0, 1, 1, 1]))))
    keep("batch", "packed", pack(packed))
    keep("batch", "positions", pack(dict(packed, position_ids=numbers("I64", [6], [0, 1, 0, 1, 2, 3]))))
    for name, values in (("labels", [-100, 2, 3, -100, 4, 5]), ("labels_on_padding", [1] * 6)):
        keep("batch", name, pack(dict(padded, labels=numbers("I64", [2, 3], values))))
    for name, labels in (
        ("labels_packed", numbers("I32", [6], [0, 1, -100, 16, 2, 3])),
        ("labels_of_none", numbers("I32", [6], [-100] * 6)),
        ("labels_too_large", numbers("I32", [6], [17] * 6)),
        ("labels_of_floats", numbers("F32", [6], [0.0] * 6)),
        ("labels_short", numbers("I32", [5], [0] * 5)),
    ):
        keep("batch", name, pack(dict(packed, labels=labels)))
    return pack(padded), pack(packed)


def gradients(little, whole):
    """The taps of a pass and its gradients, for different sums of losses."""
    taps, metadata = load(whole)
    case, dump = WORK / "labels.safetensors", WORK / "gradients.safetensors"
    case.write_bytes(
        pack({"input_ids": numbers("I64", [6], range(1, 7)), "labels": numbers("I64", [6], [-100, 2, 3, 4, 5, 6])})
    )
    for name, losses in (("lm", "lm"), ("aux", "lm,aux"), ("kl", "lm,kl")):
        run("grad", little, "--case", case, "--loss", losses, "--dump", dump)
        found, more = load(dump.read_bytes())
        found = {n: t for n, t in found.items() if not re.search(r"experts\.[12]\.", n)}  # inputs have at most 32 KiB
        keep("gradients", "of_" + name, pack(taps | found, metadata | more))
        few = {n: t for n, t in found.items() if not n.startswith("d.param")}
        keep("gradients", "of_taps_" + name, pack(taps | few, metadata | more))
    keep("gradients", "alone", pack(found, more))
    for name in ("layers.1.mid", "layers.1.moe.experts", "layers.0.q_rope"):
        keep("gradients", "without_" + name, pack({n: t for n, t in taps.items() if n != name} | found, metadata))
    wrong = {n: (d, s, bytes(len(b))) for n, (d, s, b) in found.items()}
    keep("gradients", "of_zero", pack(taps | wrong, metadata | more))


def dumps(little, several):
    def dump(name, *options):
        path = WORK / f"{name}.safetensors"
        run("run", little, "--dump", path, *options)
        return path

    ids = ("--ids", IDS)
    whole = dump("whole", *ids)
    keep("blame", "whole", whole.read_bytes())
    keep("picture", "whole", whole.read_bytes())
    gradients(little, whole.read_bytes())
    refused.drawn(keep, pack, numbers, load, whole.read_bytes())
    refused.right_answers(keep, load, whole.read_bytes())
    refused.cuts(keep, pack, numbers, load, whole.read_bytes())
    keep("picture", "margins", dump("drawn", *ids, "--bounds", "--taps", "layers.1.moe.*,layers.*.out").read_bytes())
    for length in range(0, 8 * 14, 8):  # each selects another operator
        tensors, metadata = load(whole.read_bytes())
        keep("from_dump", f"whole_{length // 8}", pack(tensors, dict(metadata, length="x" * length)))
    keep(
        "from_dump",
        "bounds",
        dump(
            "from", *ids, "--taps", "layers.1.mlp_norm,layers.1.moe.*", "--precision", "f64", "--bounds"
        ).read_bytes(),
    )
    bounds = dump("from_all", *ids, "--precision", "f64", "--bounds", "--taps", "layers.1.*,embed")
    tensors, metadata = load(bounds.read_bytes())
    few = {n: t for n, t in tensors.items() if n.startswith("case.") or n.count(".") < 3}
    for length in (40, 64, 88, 152, 200):  # each selects another operator; some read the case of the dump
        keep("from_dump", f"own_case_{length}", pack(few, dict(metadata, length="x" * length)))
    for name, taps in GROUPS.items():
        candidate = dump("candidate_" + name, *ids, "--taps", taps)
        truth = dump("truth_" + name, *ids, "--taps", taps, "--precision", "f64")
        profiled = dump(
            "profiled_" + name, *ids, "--taps", taps, "--precision", "f64", "--bounds", "--profile", "bf16"
        )
        keep("compare", name, truth.read_bytes(), candidate.read_bytes())
        few = [
            dump(f"{kind}_few_{name}", "--ids", "1,2,3", "--taps", taps, *options).read_bytes()
            for kind, options in (("bounds", ("--precision", "f64", "--bounds")), ("candidate", ()))
        ]
        keep("companions", name, *few)
        keep("reports", name, truth.read_bytes(), candidate.read_bytes())
        keep("blame", name, candidate.read_bytes())
        if name in ("head", "mlp"):
            keep("companions", "rows_" + name, profiled.read_bytes(), candidate.read_bytes())
        tensors, metadata = load(candidate.read_bytes())
        hostile = {("<hostile>" + n if i % 2 else n): t for i, (n, t) in enumerate(tensors.items())}
        metadata = dict(metadata, producer="\"'<hostile>&]]>", command="--><hostile>")
        keep("reports", "hostile_" + name, pack(tensors, metadata), pack(hostile, metadata))
        few = {n: (d, [2, *s[1:]], b[: len(b) // s[0] * 2]) for n, (d, s, b) in tensors.items()}
        few["rows"] = numbers("I64", [2], [0, 3])
        keep("compare", "rows_" + name, truth.read_bytes(), pack(few, metadata))
    keep(
        "decisions",
        "all",
        dump(
            "decided", *ids, "--taps", "layers.1.index.blocks,layers.1.moe.experts,layers.1.moe.weights"
        ).read_bytes(),
    )
    keep(
        "decisions", "last", dump("decided", *ids, "--taps", "layers.1.moe.experts,layers.1.moe.weights").read_bytes()
    )
    run("run", little, *ids, "--cache-out", WORK / "cache.safetensors")
    keep("cache", "all", (WORK / "cache.safetensors").read_bytes())
    refused.caches(keep, pack, load, (WORK / "cache.safetensors").read_bytes())
    run(
        "envelope",
        little,
        *ids,
        "--profile",
        "bf16",
        "--runs",
        3,
        "--row-runs",
        2,
        "--taps",
        "layers.1.out,final_norm,logits",
        "--out",
        WORK / "envelope.safetensors",
    )
    truth, candidate = ((WORK / f"{n}_head.safetensors").read_bytes() for n in ("truth", "candidate"))
    keep("envelope", "head", (WORK / "envelope.safetensors").read_bytes(), truth, candidate)
    for name, case in zip(("padded", "packed"), several):
        (WORK / "several.safetensors").write_bytes(case)
        taps = ("--case", WORK / "several.safetensors", "--taps", "layers.0.attn_norm,embed,layers.1.index.blocks")
        truth, candidate = dump("t", *taps, "--precision", "f64"), dump("c", *taps)
        keep("several", name, truth.read_bytes(), candidate.read_bytes())
    keep(
        "several",
        "one",
        (WORK / "truth_norms.safetensors").read_bytes(),
        pack(
            {
                n: (d, [1, *s], b)
                for n, (d, s, b) in load((WORK / "candidate_norms.safetensors").read_bytes())[0].items()
            }
        ),
    )
    return WORK / "candidate_norms.safetensors", WORK / "candidate_sparse.safetensors"


def baselines():
    truth, candidate = (WORK / f"{n}_head.safetensors" for n in ("truth", "candidate"))
    done = subprocess.run([PROGRAM, "compare", truth, candidate, "--json"], capture_output=True)
    lines = done.stdout.splitlines(keepends=True)
    keep("baseline", "all", done.stdout)
    keep("baseline", "stage", *[next(line for line in lines if b'"stage"' in line)])
    stage, summary = {"type": "stage", "tap": "logits"}, {"type": "summary"}
    for name, parts in (
        ("failed", [dict(stage, verdict="fail", headroom="inf")]),
        ("choice", [{"type": "selection", "tap": "logits", "verdict": "tie"}]),
        ("gone", [dict(stage, tap="layers.7.out", verdict="pass", headroom=0.5), dict(stage, verdict="not_judged")]),
        ("no_verdict", [dict(stage, verdict="good")]),
        ("no_tap", [{"type": "stage", "verdict": "pass"}]),
        ("no_type", [{"tap": "logits"}]),
        ("no_stage", [summary]),
        ("other_model", [dict(stage, verdict="pass"), dict(summary, model_sha256="0" * 64)]),
    ):
        keep("baseline", name, b"".join(json.dumps(part).encode() + b"\n" for part in parts))


def states(little):
    """States of a run that stopped where a file would have been too large: after each layer."""
    folder, found = WORK / "state", {}
    words = ["--ids", IDS, "--threads", "1", "--taps", "logits,layers.*.out", "--dump", WORK / "d", "--cache-out", WORK / "c"]
    for most in range(1200, 3000, 50):
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([PROGRAM, "run", little, *words, "--resume", folder], preexec_fn=limit, capture_output=True)
        if (folder / "0.state.safetensors").exists():
            state, outputs = ((folder / name).read_bytes() for name in ("0.state.safetensors", "0.outputs"))
            found[load(state)[1].get("layer", "none")] = state, outputs
    for layer, (state, outputs) in found.items():
        keep("resume", "after_" + layer, state, outputs)
    (tensors, labels), outputs = load(state), outputs + bytes(24)
    of_run = {key: labels[key] for key in ("layer", "outputs_bytes", "command", "outputs")}
    for name, more in (
        ("other_record", {"outputs_bytes": str(len(outputs))}),
        ("past_the_end", {"outputs_bytes": str(len(outputs) + 1)}),
        ("no_number", {"outputs_bytes": "x"}),
        ("in_a_record", {"outputs_bytes": "30"}),
        ("other_layer", {"layer": "9"}),
        ("other_name", {"outputs": "1.outputs"}),
    ):
        keep("resume", name, pack(tensors, dict(of_run, **more)), outputs)
    keep("resume", "no_command", pack(tensors, {"layer": "1", "outputs_bytes": "0", "outputs": "0.outputs"}), outputs)
    keep("resume", "no_hidden", pack({}, of_run), outputs)
    keep("resume", "short_hidden", pack({"hidden": numbers("F32", [1], [1.0])}, of_run), outputs)


def names():
    for name, text in (
        ("latin", b"caf\xe9"),
        ("colour", b"\x1b[31m"),
        ("delete", b"\x7fli"),
        ("lines", b"a\nb\xe2\x80\xa8"),
        ("even", b"\xff<&'\""),
    ):
        keep("names", name, text)


def maps(norms, sparse):
    built_in = pathlib.Path("ref/oracle/map/maps")
    for path in sorted(built_in.glob("*.json")):
        keep("map", path.stem, path.read_bytes())
    tensors, metadata = load(norms.read_bytes())
    foreign, steps = {}, {
        "embed": {
            "from": "model.embed",
            "steps": [{"drop": 0}, {"shape": ["*", "H"]}, {"axes": [1, 0]}, {"axes": [1, 0]}],
        },
        "fused": {"from": ["model.fused.{i}"], "steps": [{"join": 1}]},
        "layers.{l}.attn_norm": [
            {"from": "absent.{l}"},
            {"from": ["n.{l}", "m.{l}"], "steps": [{"sum": True}, {"times": 0.5}, {"plus": 0}]},
        ],
        "layers.{l}.q_proj": {
            "from": "qkv.{l+1}",
            "steps": [{"slice": {"axis": 1, "from": "0", "to": "QD"}}, {"shape": ["*", "Q", "D"]}],
        },
        "layers.{l}.k_proj": {
            "from": "k.{l}",
            "steps": [{"unrepeat": {"axis": 1, "times": "2"}}, {"repeat": {"axis": 1, "times": "1"}}],
        },
        "layers.{l}.v_proj": {
            "from": "v.{l}",
            "steps": [{"only": ["*", "*", "D"]}, {"pick": {"axis": 2, "order": [3, 2, 1, 0]}}],
        },
        "layers.{l}.index.blocks": {"from": "b.{l}", "steps": [{"blocks": True}]},
        "layers.{l}.moe.experts": {"from": "e.{l}", "steps": [{"ids": True}]},
        "layers.{l}.index.block_scores": {"from": "s.{l}", "steps": [{"scores": True}]},
    }
    dtype, shape, data = tensors["embed"]
    foreign["model.embed"] = (dtype, [1, *shape], data)
    foreign["model.fused.0"] = foreign["model.fused.1"] = (dtype, [6, 4], data[: len(data) // 2])
    foreign["pre.n.0"] = foreign["pre.m.0"] = (dtype, shape, data)
    foreign["qkv.1"] = numbers("F32", [6, 12], [0.5] * 72)
    foreign["k.0"] = numbers("F32", [6, 2, 4], [0.5] * 48)
    foreign["v.0"] = numbers("F32", [6, 1, 4], [0.25] * 24)
    foreign["b.1"] = numbers("I64", [6, 1, 3], [2, -1, 0] * 6)
    foreign["e.1"] = numbers("I64", [6, 2], [0, 1] * 6)
    foreign["s.1"] = numbers("F32", [6, 1, 4], [0.5, -3.4028234663852886e38, 1.0, -3.4028234663852886e38] * 6)
    keep(
        "map_dump",
        "steps",
        json.dumps({"name": "x", "prefixes": ["pre."], "taps": steps}).encode(),
        pack(foreign, metadata),
    )
    for tap in steps:
        recipe = {"name": "x", "prefixes": ["pre."], "taps": {tap: steps[tap]}}
        keep("map_dump", re.sub(r"\W+", "_", tap), json.dumps(recipe).encode(), pack(foreign, metadata))
        keep("map", re.sub(r"\W+", "_", tap), json.dumps(recipe).encode())
    keep(
        "map",
        "base",
        json.dumps(
            {"base": "vllm", "files": "ranks", "divided": "QG", "rules": {"embed": "equal", "*": {"concat": 1}}}
        ).encode(),
    )
    tensors, metadata = load(sparse.read_bytes())
    half = lambda s, b, i: ([s[0] // 2, *s[1:]], b[len(b) // 2 * i : len(b) // 2 * (i + 1)])
    chunks = [pack({n: (d, *half(s, b, i)) for n, (d, s, b) in tensors.items()}, metadata) for i in (0, 1)]
    for rule in ("rows", "zigzag", "last", "equal", "sum"):
        text = json.dumps({"files": "chunks", "rules": {"*": rule}})
        keep("map_ranks", "chunks_" + rule, text.encode(), *chunks)
    keep("map_ranks", "chunks", json.dumps({"files": "chunks"}).encode(), *chunks)
    for step, apart in ((1, 3), (2, 1)):
        rows = [numbers("I64", [3], [i * apart + step * j for j in range(3)]) for i in (0, 1)]
        numbered = [
            pack(dict({n: (d, *half(s, b, i)) for n, (d, s, b) in tensors.items()}, rows=rows[i]), metadata)
            for i in (0, 1)
        ]
        keep(
            "map_ranks",
            f"numbered_{step}",
            json.dumps({"files": "ranks", "rules": {"*": "rows"}}).encode(),
            *numbered,
        )
    even = pack({n: (d, [2, *s[1:]], b[: len(b) // s[0] * 2]) for n, (d, s, b) in tensors.items()}, metadata)
    keep("map_ranks", "zigzag", json.dumps({"files": "ranks", "rules": {"*": "zigzag"}}).encode(), even, even)
    ranks = [
        pack(
            {
                n: (
                    (d, [s[0], 1, s[2]], b[: len(b) // s[1]])
                    if n.endswith("q_rope") or n.endswith(".attn")
                    else (d, s, b)
                )
                for n, (d, s, b) in tensors.items()
            },
            metadata,
        )
    ] * 2
    keep("map_ranks", "ranks", json.dumps({"files": "ranks", "divided": "Q"}).encode(), *ranks)
    rules = {"*": "equal", "layers.{l}.q_rope": {"concat": 1}, "layers.{l}.attn": "sum"}
    keep("map_ranks", "ranks_rules", json.dumps({"files": "ranks", "rules": rules}).encode(), *ranks)
    refused.ranks(keep, pack, numbers, metadata)
    refused.rows(keep, pack, numbers, metadata)


def texts():
    profiles = pathlib.Path("ref/oracle/error/profiles")
    for path in sorted(profiles.glob("*.json")) + sorted(profiles.glob("words/*.json")):
        text = json.loads(path.read_text())
        text.pop("sources", None)
        keep("profile", path.stem, json.dumps(text).encode())
    keep("profile", "base", json.dumps({"name": "x", "base": "bf16", "store": {"*": "f16"}}).encode())
    plain = {"prompt_ids": [1, 2, 3], "ids": [4, 5], "logprobs": [-1.0, -2.0]}
    keep("answer", "plain", json.dumps(plain).encode())
    keep("answer_judged", "plain", json.dumps({"prompt_ids": [1, 2, 3], "ids": [4, 5]}).encode())
    for path in sorted(pathlib.Path("tests/candidates").glob("answer_*.json")):
        answer = shorter(json.loads(path.read_text()))
        keep("answer", path.stem[7:], json.dumps(answer).encode())
        keep("answer_judged", path.stem[7:], json.dumps(answer).encode())
    line = "0" * 64 + " sampled 9588 1.000000000 1.000000000 7 /x/model.safetensors\n"
    print_of = json.dumps({"model.safetensors": "0" * 64, "sampled": True})
    keep("remembered", "line", line.encode(), print_of.encode(), print_of.replace("0" * 64, "1" * 64).encode())


def shorter(value):
    """At most three of every list and of lists of log-probabilities, ids below the little model's vocabulary."""
    if isinstance(value, list):
        return [shorter(v) for v in value[:3]]
    if isinstance(value, dict):
        items = list(value.items())
        numbered = items and all(k.isdigit() for k, _ in items)
        return {(str(int(k) % 17) if numbered else k): shorter(v) for k, v in (items[:3] if numbered else items)}
    if isinstance(value, int) and not isinstance(value, bool):
        return value % 17
    if isinstance(value, str):
        return re.sub(r"token_id:(\d+)", lambda m: f"token_id:{int(m[1]) % 17}", value[:40])
    return value


def operators():
    for name in (
        "rms_norm",
        "linear",
        "rope",
        "attend_full",
        "select_blocks",
        "attend_blocks",
        "route",
        "experts",
        "sparse_attention",
        "router",
        "linear_mxfp8",
        "linear_fp8",
        "embed",
        "rope_table",
        "rope_table_3d",
        "attend_segments",
        "scatter",
        "jitter",
        "layer_norm",
        "swiglu_oai",
        "moe_block",
        "vision_attention",
        "block_scores",
        "mtp_join",
        "rms_norm_backward",
        "experts_backward",
        "attend_blocks_backward",
        "route_backward",
    ):
        made, results = WORK / "op.safetensors", WORK / "results.safetensors"
        run("op", name, "--make", made, "--cases", 1)
        tensors, metadata = load(made.read_bytes())
        del metadata["seal_sha256"]
        cases = json.loads(metadata["cases"])
        few = sorted(
            cases, key=lambda c: sum(len(t[2]) for n, t in tensors.items() if n.startswith(f"{c['case']}."))
        )[:2]
        renamed = {
            f"{i}.{n.split('.', 1)[1]}": t
            for i, c in enumerate(few)
            for n, t in tensors.items()
            if n.startswith(f"{c['case']}.")
        }
        metadata["cases"] = json.dumps([dict(c, case=i) for i, c in enumerate(few)])
        content = pack(renamed, metadata)
        (WORK / "few.safetensors").write_bytes(content)
        run("op", name, "--run", WORK / "few.safetensors", results)
        if len(content) + results.stat().st_size < 30000:
            keep("op_check", name, content, results.read_bytes())
    content = (OUT / "op_check/seed_rms_norm").read_bytes()
    tensors, metadata = load(content[4 : 4 + struct.unpack("<I", content[:4])[0]])
    drawn = {"x": {"shape": [2, 3], "dtype": "F32", "seed": 1, "name": "x", "levels": 256, "offset": 0, "scale": 0.5}}
    for change in ({"rows": [0]}, {"drawn": drawn}):
        changed = [dict(c, **change) for c in json.loads(metadata["cases"])]
        few = {n: t for n, t in tensors.items() if "drawn" not in change or not n.endswith(".x")}
        keep(
            "op_check", "with_" + next(iter(change)), pack(few, dict(metadata, cases=json.dumps(changed))), pack(few)
        )


def vocabularies():
    pieces = {"\u0120a": 0, "\u00c3\u00a9": 1, "<end>": 63, "\u2581b": 2, "c": 64}
    added = [{"id": 63, "content": "<end>"}, {"id": 5, "content": "\u0120"}]
    byte_level = {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteLevel"}]}
    for name, vocab, decoder in (
        ("bytes", pieces, byte_level),
        ("words", pieces, None),
        ("list", [[piece, -1.5] for piece in pieces], {"type": "ByteLevel"}),
    ):
        text = {"added_tokens": added, "decoder": decoder, "model": {"vocab": vocab}}
        keep("vocabulary", name, json.dumps(text).encode())


def main():
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    little = WORK / "little"
    run("synth", HERE / "little.json", little, "--dtype", "f32")
    safetensors_files()
    models(little)
    pictures()
    several = cases()
    maps(*dumps(little, several))
    baselines()
    states(little)
    names()
    texts()
    vocabularies()
    operators()
    refused.configs(keep)
    refused.headers(keep, pack)
    refused.cases(keep, pack, numbers)
    refused.answers(keep)
    refused.profiles(keep)
    count = sum(1 for _ in OUT.glob("*/seed_*"))
    print(f"{count} inputs, {sum(p.stat().st_size for p in OUT.glob('*/seed_*'))} bytes, in {OUT}")


main()

"""Produces golden/.

    python scripts/golden/make.py [--out DIR] [CASE ...]      write the cases (all of them, and the configs)
    python scripts/golden/make.py --search CASE ...           print the smallest seed that the case accepts

A case is refused if a tap is not fp64 (formulas.py disagrees by more than 1e-14), if an fp32 run selects other blocks
or experts, or if a selection's margin is below 20 times the fp32 error of its scores.
"""

import argparse
import os
import platform
import shutil
import sys
import tempfile

import numpy as np
import torch
import transformers

import cases
import configs
import files
import formulas
import positions
import synth
import truth
import yardstick

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "golden")
FP64_LIMIT = 1e-14
MARGIN = 20
VERSIONS = {"python": platform.python_version(), "torch": torch.__version__.split("+")[0],
            "transformers": transformers.__version__, "numpy": np.__version__}
PRODUCER = "transformers {transformers}, torch {torch}, numpy {numpy}".format(**VERSIONS)


class Refused(Exception):
    pass


def build(case, seed):
    """(config, stored tensors, exact weights, input ids) of a case."""
    config = configs.small(case.text, case.sparse, case.vision, case.top, case.layer_map, case.style)
    shapes = configs.tensor_shapes(config)
    stored, weights = synth.model(shapes, seed, case.style, case.fine_router)
    reserved = (config["image_token_index"], config["video_token_index"])
    return config, stored, weights, synth.token_ids(seed, case.tokens, case.text["vocab_size"], reserved)


def write_expanded(folder, model_folder, config, dtype):
    """The stored model as a directory of plain weights, for the public code: it has no exact reader for 8-bit forms."""
    weights = truth.expand(os.path.join(model_folder, "model.safetensors"))
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    files.write_json(os.path.join(folder, "config.json"), plain)
    tensors = {name: files.from_array(value.astype(dtype)) for name, value in weights.items()}
    files.write(os.path.join(folder, "model.safetensors"), files.to_bytes(tensors))


def run_truth(folder, config, weights, input_ids):
    """(taps, Check) of the fp64 run; refuses taps that are not fp64."""
    model = truth.load(folder, torch.float64, "eager", "eager")
    truth.exact_frequencies(model)
    with truth.pure_fp64():
        taps, attention_weights = truth.run(model, input_ids)
    check = formulas.Check(config, weights, taps, attention_weights, input_ids)
    check.run()
    unchecked = set(taps) - set(check.errors) - {name for name in taps if taps[name].dtype == np.int32}
    if unchecked:
        raise Refused(f"no formula for {sorted(unchecked)}")
    bad = {name: error for name, error in check.errors.items() if not error <= FP64_LIMIT}
    if bad:
        raise Refused("not fp64: " + ", ".join(f"{name} {error:.1e}" for name, error in sorted(bad.items())))
    return taps, check


def measure(folder, input_ids, taps, rows):
    ruler = yardstick.Yardstick()
    want = {name: value[rows] for name, value in taps.items()}
    for kind, got in yardstick.fp32_runs(folder, input_ids, rows):
        ruler.add(kind, got, want)
    return ruler


def judge_margins(check, ruler, rows):
    """{tap.margin: least margin}; refuses flips and margins that fp32 could bridge."""
    if ruler.flips:
        raise Refused("fp32 selects otherwise at " + ", ".join(ruler.flips))
    margins = {}
    for name, values in check.margins.items():
        scores = name.removesuffix(".order")
        scores = scores.replace("index.blocks", "index.block_scores").replace("moe.experts", "moe.choice")
        least, error = float(values[rows].min()), ruler.absolute[scores]
        if not least >= MARGIN * error:
            raise Refused(f"{name}: margin {least:.2e} is below {MARGIN} x {error:.2e}")
        tap, order, _ = name.partition(".order")
        margins[tap + (".order_margin" if order else ".margin")] = least
        margins[tap + ".score_error"] = error
    return margins


def exercise(check):
    """Refuses a case without gates and ups beyond the clamp."""
    for wanted in ("gate>7", "|up|>7"):
        total = sum(value for name, value in check.counts.items() if name.endswith(wanted))
        if total == 0:
            raise Refused(f"no element with {wanted}")


def attempt(case, seed, folder):
    """Writes model and case under `folder`; returns (config, ids, taps, Check, Yardstick, margins)."""
    config, stored, weights, input_ids = build(case, seed)
    model_folder = os.path.join(folder, "model")
    files.write_json(os.path.join(model_folder, "config.json"), config)
    files.write(os.path.join(model_folder, "model.safetensors"), files.to_bytes(stored))
    files.write(os.path.join(folder, "case.safetensors"),
                files.to_bytes({"input_ids": files.from_array(input_ids.astype(np.int32))}))
    with tempfile.TemporaryDirectory() as temporary:
        exact = single = model_folder
        if case.style != "bf16":
            exact, single = os.path.join(temporary, "f64"), os.path.join(temporary, "f32")
            write_expanded(exact, model_folder, config, np.float64)
            write_expanded(single, model_folder, config, np.float32)
        taps, check = run_truth(exact, config, weights, input_ids)
        exercise(check)
        rows = np.array(case.rows if case.rows else range(case.tokens), np.int32)
        ruler = measure(single, input_ids, taps, rows)
    return config, input_ids, taps, check, ruler, judge_margins(check, ruler, rows)


def number(value):
    return f"{value:.3e}" if np.isfinite(value) else "inf"


def metadata(case, folder, inputs, numbers):
    return {"format": "m3ref-dump", "format_version": "1", "producer": PRODUCER + ", pure fp64", "precision": "f64",
            "command": f"python scripts/golden/make.py {case.name}", "semantics": "{}",
            "model_sha256": files.model_sha256(os.path.join(folder, "model")),
            "case_sha256": files.case_sha256(inputs)} | {key: number(value) for key, value in numbers.items()}


def produce(case, out):
    """One case: model/, case.safetensors, golden.safetensors.gz and, for tiny, what hangs on it. Returns a summary."""
    folder = os.path.join(out, case.name)
    shutil.rmtree(folder, ignore_errors=True)
    config, input_ids, taps, check, ruler, margins = attempt(case, case.seed, folder)
    tensors = {name: value for name, value in taps.items() if not name.endswith("moe.choice")}
    numbers = {key: value for key, value in ruler.worst.items() if ".moe.choice." not in key} | margins
    if case.rows:
        rows = np.array(case.rows, np.int32)
        tensors = {name: value[rows] for name, value in tensors.items()} | {"rows": rows}
    data = files.to_bytes({name: files.from_array(value) for name, value in tensors.items()},
                          metadata(case, folder, {"input_ids": input_ids}, numbers))
    files.write(os.path.join(folder, "golden.safetensors.gz"), data)
    if case.name == "tiny":
        flat_config(folder)
        positions.produce(case, folder, config, input_ids, taps, ruler, metadata)
    return {"fp64_check": max(check.errors.values()), "counts": check.counts, "margins": margins,
            "logits": ruler.worst["logits.f32_rel_l2"]}


def flat_config(folder):
    """config.json of tiny as the public code writes it back."""
    config = transformers.AutoConfig.from_pretrained(os.path.join(folder, "model"))
    with tempfile.TemporaryDirectory() as temporary:
        config.save_pretrained(temporary)
        shutil.copyfile(os.path.join(temporary, "config.json"), os.path.join(folder, "config_flat.json"))


def produce_configs(out):
    folder = os.path.join(out, "configs")
    files.write_json(os.path.join(folder, "minimax-m3.json"), configs.minimax_m3())
    files.write_json(os.path.join(folder, "minimax-m3-mxfp8.json"), configs.minimax_m3_mxfp8())


def dimensions(case):
    text, sparse = case.text, case.sparse
    return {"T": case.tokens, "rows": len(case.rows) or case.tokens, "layers": len(case.layer_map),
            "H": text["hidden_size"], "Q": text["num_attention_heads"], "G": text["num_key_value_heads"],
            "D": text["head_dim"], "rotary": text["rotary_dim"], "X": sparse["sparse_index_dim"],
            "block": sparse["sparse_block_size"], "N": sparse["sparse_topk_blocks"], "E": text["num_local_experts"],
            "K": text["num_experts_per_tok"], "F": text["intermediate_size"],
            "dense_intermediate": text["dense_intermediate_size"],
            "shared_intermediate": text["shared_intermediate_size"], "V": text["vocab_size"]}


def manifest(out):
    """MANIFEST.json: one entry per case with its files, and one for the configs."""
    entries = []
    for case in cases.CASES:
        entries.append({"case": case.name, "producer": PRODUCER, "versions": VERSIONS, "seed": case.seed,
                        "command": f"python scripts/golden/make.py {case.name}", "weights": case.style,
                        "dims": dimensions(case), "covers": case.covers, "cannot_detect": case.cannot_detect,
                        "files": listing(out, case.name)})
    entries.append({"case": "configs", "producer": "scripts/golden/configs.py", "versions": {}, "seed": None,
                    "command": "python scripts/golden/make.py", "weights": None, "dims": {},
                    "covers": "every field of config.json of both public releases",
                    "cannot_detect": "field order and white space of the released files",
                    "files": listing(out, "configs")})
    files.write_json(os.path.join(out, "MANIFEST.json"), {"format_version": 1, "entries": entries})


def listing(out, name):
    found = []
    for folder, _, names in os.walk(os.path.join(out, name)):
        for base in names:
            path = os.path.join(folder, base)
            found.append({"path": os.path.relpath(path, out), "bytes": os.path.getsize(path),
                          "sha256": files.sha256(path)})
    return sorted(found, key=lambda entry: entry["path"])


def search(case):
    for seed in range(1, 1000):
        with tempfile.TemporaryDirectory() as temporary:
            try:
                attempt(case, seed, temporary)
            except Refused as reason:
                print(f"{case.name}: seed {seed} refused: {reason}", flush=True)
                continue
        print(f"{case.name}: seed {seed} accepted", flush=True)
        return
    sys.exit(f"{case.name}: no seed below 1000")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.path.normpath(GOLDEN))
    parser.add_argument("--search", action="store_true")
    parser.add_argument("names", nargs="*", metavar="CASE")
    options = parser.parse_args()
    wanted = [case for case in cases.CASES if case.name in options.names or not options.names]
    if options.search:
        for case in wanted:
            search(case)
        return
    for case in wanted:
        try:
            summary = produce(case, options.out)
        except Refused as reason:
            sys.exit(f"{case.name}: refused: {reason}")
        print(f"{case.name}: fp64 check {summary['fp64_check']:.1e}, logits fp32 {summary['logits']:.1e}")
        for key, value in sorted((summary["counts"] | summary["margins"]).items()):
            print(f"    {key} {value:.3g}" if isinstance(value, float) else f"    {key} {value}")
    produce_configs(options.out)
    manifest(options.out)


if __name__ == "__main__":
    main()

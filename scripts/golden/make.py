"""Produces golden/.

    python scripts/golden/make.py [--out DIR] [CASE ...]      write the cases (all of them, and the configs)
    CASE: tiny, block128, mxfp8, f8block, common, fourbit, mtp, m2, readings, vision (both need tiny), train (needs tiny,
          mtp), pictures or flops (needs tiny, block128, mtp)
    python scripts/golden/make.py --search CASE ...           print the smallest seed that the case accepts

A case is refused if a tap is not fp64 (formulas.py disagrees by more than 1e-14), if an fp32 run selects other blocks
or experts, or if a selection's margin is below 20 times the fp32 error of its scores.
"""

import argparse
import os
import shutil
import sys
import tempfile

import numpy as np
import torch
import transformers

import cases
import configs
import files
import flops
import foreign
import formulas
import judge
import m2
import mtp
import pictures
import positions
import readings
import synth
import tokenizer
import train
import truth
import vision
import fp32_error

GOLDEN = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "golden"))
PACKED = "packed"
GROUPS = (mtp.NAME, m2.NAME, readings.NAME, vision.NAME, train.NAME, pictures.NAME, flops.NAME)


def build(case, seed):
    """(config, stored tensors, exact weights, input ids) of a case."""
    config = small_config(case)
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
    judge.demand_fp64(check, taps)
    return taps, check


def attempt(case, seed, folder):
    """Writes model and case under `folder`; returns (config, ids, taps, Check, Fp32Error, margins)."""
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
        judge.exercise(check)
        rows = np.array(case.rows if case.rows else range(case.tokens), np.int32)
        ruler = judge.measure(fp32_error.fp32_runs(single, input_ids, rows), taps, rows)
    return config, input_ids, taps, check, ruler, judge.judge_margins(check, ruler, rows)


def produce(case, out):
    """One case: model/, case.safetensors, golden.safetensors.gz and, for tiny, what hangs on it. Returns a summary."""
    folder = os.path.join(out, case.name)
    shutil.rmtree(folder, ignore_errors=True)
    config, input_ids, taps, check, ruler, margins = attempt(case, case.seed, folder)
    write_taps(case, os.path.join(folder, "golden.safetensors.gz"), folder, input_ids, taps, check, ruler, margins)
    if case.name == "tiny":
        flat_config(folder)
        positions.produce(case, folder, config, input_ids, taps, ruler)
        tokenizer.produce(os.path.join(folder, "model"))
    if case.name == "common":
        produce_long(cases.COMMON_LONG, folder)
    return {"fp64_check": max(check.errors.values()), "counts": check.counts, "margins": margins,
            "logits": ruler.worst["logits.f32_rel_l2"]}


def produce_long(case, folder):
    """The same model on more tokens: long_case.safetensors, long.safetensors.gz."""
    with tempfile.TemporaryDirectory() as temporary:
        _, input_ids, taps, check, ruler, margins = attempt(case, case.seed, temporary)
        shutil.copyfile(os.path.join(temporary, "case.safetensors"), os.path.join(folder, "long_case.safetensors"))
    write_taps(case, os.path.join(folder, "long.safetensors.gz"), folder, input_ids, taps, check, ruler, margins)


def write_taps(case, path, folder, input_ids, taps, check, ruler, margins):
    """The golden of a case on the model in `folder`."""
    tensors = {name: value for name, value in taps.items() if not name.endswith("moe.choice")}
    numbers = {key: value for key, value in ruler.worst.items() if ".moe.choice." not in key} | margins
    if case.rows:
        rows = np.array(case.rows, np.int32)
        tensors = {name: value[rows] for name, value in tensors.items()} | {"rows": rows}
    tensors |= judge.companions(check, tensors, list(case.rows) or slice(None))
    data = files.to_bytes({name: files.from_array(value) for name, value in tensors.items()},
                          judge.metadata(case.name, os.path.join(folder, "model"), {"input_ids": input_ids}, numbers))
    files.write(path, data)


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
    files.write_json(os.path.join(folder, "minimax-m2.7.json"), configs.minimax_m2_7())
    files.write_json(os.path.join(folder, "minimax-m2.json"), configs.minimax_m2())
    for name, config in foreign.CONFIGS.items():
        files.write_json(os.path.join(folder, f"{name}.json"), config)


def dimensions(case):
    text, sparse = case.text, case.sparse
    return {"T": case.tokens, "rows": len(case.rows) or case.tokens, "layers": len(case.layer_map),
            "H": text["hidden_size"], "Q": text["num_attention_heads"], "G": text["num_key_value_heads"],
            "D": text["head_dim"], "rotary": text["rotary_dim"], "X": sparse["sparse_index_dim"],
            "block": sparse["sparse_block_size"], "N": sparse["sparse_topk_blocks"], "E": text["num_local_experts"],
            "K": text["num_experts_per_tok"], "F": text["intermediate_size"],
            "dense_intermediate": text["dense_intermediate_size"],
            "shared_intermediate": text["shared_intermediate_size"], "V": text["vocab_size"]}


def small_config(case):
    return configs.small(case.text, case.sparse, case.vision, case.top, case.layer_map, case.style)


def manifest(out):
    """MANIFEST.json: one entry per case with its files, and one each for the configs, the photograph, the pictures."""
    entries = []
    for case in cases.CASES:
        entries.append({"case": case.name, "producer": judge.PRODUCER, "versions": judge.VERSIONS, "seed": case.seed,
                        "command": f"python scripts/golden/make.py {case.name}", "weights": case.style,
                        "dims": dimensions(case), "covers": case.covers, "cannot_detect": case.cannot_detect,
                        "files": listing(out, case.name)})
    entries.append(mtp.entry(cases.MTP, dimensions(cases.MTP)) | {"files": listing(out, mtp.NAME)})
    entries += m2.entries(cases.M2, cases.M2_MTP, listing(out, m2.NAME))
    entries.append(readings.entry(cases.READINGS, dimensions(cases.TINY)) | {"files": listing(out, readings.NAME)})
    entries.append({"case": "configs", "producer": "scripts/golden/configs.py", "versions": {}, "seed": None,
                    "command": "python scripts/golden/make.py", "weights": None, "dims": {},
                    "covers": "every field of config.json of both public releases; models to compare with",
                    "cannot_detect": "field order and white space of the released files",
                    "files": listing(out, "configs")})
    config, vision_files = small_config(cases.TINY), listing(out, vision.NAME)
    for case in cases.VISION_CASES:
        own = (f"{vision.NAME}/{case.name}.", f"{vision.NAME}/{case.name}_")
        mine = [file for file in vision_files if file["path"].startswith(own)]
        entries.append(vision.entry(case, config) | {"files": mine})
    entries.append(train.entry(cases.TRAIN, listing(out, train.NAME)))
    entries.append(pictures.entry() | {"files": listing(out, pictures.NAME)})
    entries.append(flops.entry() | {"files": [described(out, flops.FILE)]})
    entries.append({"case": "photo", "producer": None, "versions": {}, "seed": None, "command": None, "weights": None,
                    "dims": {}, "covers": "a source: nothing makes it", "cannot_detect": None,
                    "source": cases.PHOTO["source"], "licence": cases.PHOTO["licence"],
                    "files": [described(out, cases.PHOTO["path"])]})
    entries.append(packed_entry(out))
    files.write_json(os.path.join(out, "MANIFEST.json"), {"format_version": 1, "entries": entries})


def listing(out, name):
    found = [os.path.relpath(os.path.join(folder, base), out)
             for folder, _, names in os.walk(os.path.join(out, name)) for base in names]
    return [described(out, path) for path in sorted(found)]


def described(out, path):
    full = os.path.join(out, path)
    return {"path": path, "bytes": os.path.getsize(full), "sha256": files.sha256(full)}


def copy_photo(golden, out):
    """The photograph is a source; its path under `out`. Another picture than the one of cases.py is refused."""
    source, target = (os.path.join(folder, cases.PHOTO["path"]) for folder in (golden, out))
    if files.sha256(source) != cases.PHOTO["sha256"]:
        raise judge.Refused(f"{source}: SHA-256 differs from cases.py")
    if os.path.abspath(source) != os.path.abspath(target):
        os.makedirs(out, exist_ok=True)
        shutil.copyfile(source, target)
    return target


def packed_entry(out):
    return {"case": PACKED, "producer": "compressed-tensors 0.20.0, nvidia-modelopt 0.47.0, torch 2.13.0",
            "versions": {}, "seed": None, "command": "python scripts/golden/packed.py", "weights": None, "dims": {},
            "covers": "single matrices in NVFP4, MXFP4 and 4-bit integers, of compressed-tensors and ModelOpt, with "
                      "the values that these libraries make of them; every code, every finite E4M3 scale, zero points, "
                      "padded rows",
            "cannot_detect": "how a checkpoint is put together of such matrices (fourbit/ does, for one library)",
            "files": listing(out, PACKED)}


def copy_packed(golden, out):
    """The matrices of packed.py, which needs other packages, are a source here."""
    if os.path.abspath(golden) != os.path.abspath(out):
        shutil.copytree(os.path.join(golden, PACKED), os.path.join(out, PACKED), dirs_exist_ok=True)


def search(case):
    for seed in range(1, 1000):
        with tempfile.TemporaryDirectory() as temporary:
            try:
                attempt(case, seed, temporary)
            except judge.Refused as reason:
                print(f"{case.name}: seed {seed} refused: {reason}", flush=True)
                continue
        print(f"{case.name}: seed {seed} accepted", flush=True)
        return
    sys.exit(f"{case.name}: no seed below 1000")


def search_vision(out, photo):
    for case in cases.VISION_CASES:
        print(f"{case.name}: seed {vision.search(case, out, photo)} accepted", flush=True)


def produce_vision(out, photo):
    """{name of the golden: summary}; clears the folder first."""
    shutil.rmtree(os.path.join(out, vision.NAME), ignore_errors=True)
    return vision.produce(cases.VISION_CASES, out, photo)


def produce_pictures(out, photo):
    shutil.rmtree(os.path.join(out, pictures.NAME), ignore_errors=True)
    pictures.produce(out, photo)


def show(name, summary):
    print(f"{name}: fp64 check {summary['fp64_check']:.1e}, logits fp32 {summary['logits']:.1e}")
    for key, value in sorted((summary["counts"] | summary["margins"]).items()):
        print(f"    {key} {value:.3g}" if isinstance(value, float) else f"    {key} {value}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=GOLDEN)
    parser.add_argument("--search", action="store_true")
    parser.add_argument("names", nargs="*", metavar="CASE")
    options = parser.parse_args()
    known = [case.name for case in cases.CASES] + list(GROUPS)
    for name in set(options.names) - set(known):
        parser.error(f"no case {name}; there are {', '.join(known)}")
    wanted = options.names or known
    try:
        photo = copy_photo(GOLDEN, options.out)
        copy_packed(GOLDEN, options.out)
        for case in cases.CASES:
            if case.name in wanted:
                search(case) if options.search else show(case.name, produce(case, options.out))
        if mtp.NAME in wanted and options.search:
            print(f"{mtp.NAME}: seed {mtp.search(cases.MTP)} accepted", flush=True)
        elif mtp.NAME in wanted:
            for name, summary in mtp.produce(cases.MTP, options.out).items():
                show(name, summary)
        if m2.NAME in wanted and options.search:
            for case, attempting in ((cases.M2, m2.attempt), (cases.M2_MTP, m2.attempt_modules)):
                print(f"{case.name}: seed {m2.search(case, attempting)} accepted", flush=True)
        elif m2.NAME in wanted:
            for name, summary in m2.produce(cases.M2, cases.M2_MTP, options.out).items():
                show(name, summary)
        if readings.NAME in wanted and options.search:
            print(f"{readings.NAME}: seed {readings.search(cases.READINGS, options.out)} accepted", flush=True)
        elif readings.NAME in wanted:
            for name, summary in readings.produce(cases.READINGS, options.out).items():
                show(name, summary)
        if vision.NAME in wanted and options.search:
            search_vision(options.out, photo)
        elif vision.NAME in wanted:
            for name, summary in produce_vision(options.out, photo).items():
                show(f"{vision.NAME}/{name}", summary)
        if train.NAME in wanted and not options.search:
            for name, result in train.produce(cases.TRAIN, cases.MTP, options.out).items():
                train.show(name, result)
        if pictures.NAME in wanted and not options.search:
            produce_pictures(options.out, photo)
        if flops.NAME in wanted and not options.search:
            flops.produce(options.out)
    except judge.Refused as reason:
        sys.exit(f"refused: {reason}")
    if not options.search:
        produce_configs(options.out)
        manifest(options.out)


if __name__ == "__main__":
    main()

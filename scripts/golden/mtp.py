"""golden/mtp/: a model with modules of multi-token prediction, for which there is no public code.

A module is a formula in PyTorch around a public decoder layer; formulas.MtpCheck computes it again in NumPy. Module m
at row t joins the hidden state of row t with the embedding of token t+m+1 and predicts token t+m+2.
"""

import json
import os
import shutil
import tempfile

import numpy as np
import torch

import configs
import files
import formulas
import judge
import synth
import truth
import vision
import fp32_error

NAME = "mtp"
DEFAULT = {}
TEXT_READINGS = {"post_norm": {"mtp_handover": "post_norm"}, "zero_position0": {"mtp_zero_position0": "true"},
                 "additive": {"mtp_join": "additive"}}
PICTURE_READINGS = {"fused": {"mtp_embed": "fused"}}
HELD = ("embed_norm", "hidden_norm", "eh_proj", "layer.out", "final_norm", "logits")     # by all but golden
VISIBLE = 1e-3                                          # least effect of a reading on logits, relative L2
NEAR_TIE = 1e-2                                         # of the largest |logit| of the row

# In addition to the generator of SPEC.md 3.6: changes that make the next token mostly a function of the current one.
FACTORS = {".embed_tokens.weight": 8.0, ".o_proj.weight": 2.0, ".mlp.down_proj.weight": 0.25, ".w2.weight": 0.125,
           ".shared_experts.down_proj.weight": 0.125}
SUCCESSOR = 2.0 ** -4                                   # of the embedding of v, added to the head's row of successor(v)
IDENTITY = 4.0                                          # added to the diagonal of the embedding half of eh_proj


# ---- weights

def shapes_of(config):
    text = config["text_config"]
    modules = [configs.mtp_shapes(text, module) for module in range(text["num_mtp_modules"])]
    return {name: shape for part in [configs.tensor_shapes(config), *modules] for name, shape in part.items()}


def reserved(config):
    return config["image_token_index"], config["video_token_index"]


def successors(config, seed):
    """[(token, next)]: one cycle through all ids but those of pictures, in the order of a draw."""
    allowed = np.array([token for token in range(config["text_config"]["vocab_size"]) if token not in reserved(config)])
    cycle = allowed[np.argsort(synth.draw("successor", seed, len(allowed), 2 ** 31), kind="stable")]
    return list(zip(cycle, np.roll(cycle, -1)))


def round_bf16(values):
    """Nearest BF16, ties to even, of values that F32 holds exactly."""
    single = values.astype(np.float32)
    if (single != values).any():
        raise ValueError("not exact in F32")
    bits = single.view(np.uint32).astype(np.uint64)
    bits = bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1)) & np.uint64(0xFFFF0000)
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


def model(config, seed):
    """(stored tensors, exact values): the generator's, some scaled by powers of two, and the two sums below."""
    stored, values = synth.model(shapes_of(config), seed, "bf16")
    for name in values:
        for end, factor in FACTORS.items():
            if name.endswith(end):
                values[name] = values[name] * factor
    head, embedding = values["language_model.lm_head.weight"], values["language_model.model.embed_tokens.weight"]
    for token, follower in successors(config, seed):
        head[follower] = round_bf16(head[follower] + SUCCESSOR * embedding[token])
    for name in values:
        if name.endswith(".eh_proj.weight"):
            values[name] = round_bf16(values[name] + IDENTITY * np.eye(*values[name].shape))
    for name, (dtype, shape, _) in stored.items():
        if dtype == "BF16":
            stored[name] = dtype, shape, synth.bf16_bytes(values[name])
    return stored, values


def write_layers(folder, config, stored):
    """The modules' decoder layers as a model of their own, which the public loader takes: layer m is module m's."""
    count = config["text_config"]["num_mtp_modules"]
    text = config["text_config"] | {"num_hidden_layers": count, "moe_layer_freq": [1] * count}
    text["sparse_attention_config"] = text["sparse_attention_config"] | {
        "sparse_attention_freq": [1] * count, "sparse_disable_index_value": [1] * count}
    own, tensors = ".mtp.layers.", {}
    for name, tensor in stored.items():
        if own in name and ".transformer_layer." in name:
            tensors[name.replace(own, ".layers.").replace(".transformer_layer.", ".")] = tensor
        elif ".layers." not in name or not name.startswith("language_model."):
            tensors[name] = tensor
    files.write_json(os.path.join(folder, "config.json"), config | {"text_config": text})
    files.write(os.path.join(folder, "model.safetensors"), files.to_bytes(tensors))


# ---- the formula

class Modules:
    """The modules in the type of `layers`, the public model that write_layers() made."""

    def __init__(self, layers, weights):
        self.layers, self.text = layers.model.language_model.layers, layers.config.text_config
        self.model, self.dtype = layers, layers.lm_head.weight.dtype
        self.weights = {name.removeprefix("language_model.model.mtp.layers."): torch.from_numpy(value).to(self.dtype)
                        for name, value in weights.items() if ".mtp." in name}

    def norm(self, x, module, name):
        variance = x.pow(2).mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(variance + self.text.rms_norm_eps) * (1 + self.weights[f"{module}.{name}.weight"])

    def join(self, module, e, h, reading, save):
        linear, weight = torch.nn.functional.linear, self.weights[f"{module}.eh_proj.weight"]
        if reading.get("mtp_join") == "additive":
            return linear(h, weight[:, weight.shape[0]:].contiguous()) + e
        e, h = self.norm(e, module, "enorm"), self.norm(h, module, "hnorm")
        save("embed_norm", e)
        save("hidden_norm", h)
        return linear(torch.cat((e, h), dim=-1), weight)

    def layer(self, module, x):
        positions = torch.arange(len(x))[None]
        tables = self.model.model.language_model.rotary_emb(x[None], position_ids=positions)
        return self.layers[module](x[None], position_embeddings=tables, attention_mask=None, position_ids=positions)[0]

    def forward(self, embedding, hidden, reading, save):
        """Modules that have rows. embedding [T,H] of the tokens; hidden [n,H] of the main model after its norm, where
        n < T-1 ends the rows of every module at n; save(tap, value) is called with the name within `mtp.`."""
        for module in range(min(len(self.layers), len(embedding) - 1)):
            rows = min(len(embedding) - module - 1, len(hidden))
            e, h = embedding[module + 1:module + 1 + rows].clone(), hidden[:rows]
            if reading.get("mtp_zero_position0") == "true":
                e[0] = 0

            def own(name, value):
                save(f"{module}.{name}", value)

            x = self.join(module, e, h, reading, own)
            own("eh_proj", x)
            y = self.layer(module, x)
            normed = self.norm(y, module, "final_layernorm")
            own("final_norm", normed)
            own("logits", torch.nn.functional.linear(normed, self.model.lm_head.weight))
            hidden = normed if reading.get("mtp_handover") == "post_norm" else y


class MtpRecorder(truth.Recorder):
    """Hooks on the modules' layers. main: the taps of the main model of the same type."""

    def __init__(self, modules, main, reading):
        super().__init__(modules.model)
        self.modules, self.main, self.reading = modules, main, reading

    def attach(self):
        for module, layer in enumerate(self.modules.layers):
            self.attach_layer(f"layers.{module}.", module, layer, self.modules.text)

    def inputs_of_modules(self):
        embedding = self.main["fused" if self.reading.get("mtp_embed") == "fused" else "embed"]
        return torch.from_numpy(embedding), torch.from_numpy(self.main["final_norm"])

    def forward(self, input_ids):
        original = truth.modeling.apply_rotary_pos_emb
        truth.modeling.apply_rotary_pos_emb = self.rotate(original)
        try:
            self.modules.forward(*self.inputs_of_modules(), self.reading,
                                 lambda name, value: self.save("mtp." + name, value))
        finally:
            truth.modeling.apply_rotary_pos_emb = original
            for handle in self.handles:
                handle.remove()


def run(modules, main, input_ids, reading):
    """({mtp.* tap: NumPy array}, {"mtp.m.": attention weights}) of one pass over the modules."""
    taps, weights = truth.run(modules.model, input_ids, MtpRecorder(modules, main, reading))
    renamed = {}
    for name, value in taps.items():
        if name.startswith("layers."):
            _, module, rest = name.split(".", 2)
            name = f"mtp.{module}.layer.{rest}"
        renamed[name] = value
    return renamed, {f"mtp.{module}.": value for module, value in weights.items()}


# ---- greedy decoding, each step without a cache

class Decoder:
    """Main model and modules without any cache; both in fp64 inside truth.pure_fp64()."""

    def __init__(self, main, modules):
        self.main, self.modules, self.seen = main, modules, {}

    def predict(self, ids):
        """(hidden [T,H] after the norm, logits [T,V]) of the main model."""
        if ids not in self.seen:
            caught = []
            hook = self.main.lm_head.register_forward_pre_hook(lambda m, inputs: caught.append(inputs[0][0]))
            logits = self.main(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
            hook.remove()
            self.seen[ids] = caught[0], logits
        return self.seen[ids]

    def draft(self, ids, count):
        """`count` ids that follow `ids`, whose last token has no hidden state yet, and the logit rows after them."""
        hidden, _ = self.predict(ids[:-1])
        drafts, rows = [], []
        for module in range(count):
            taken = torch.tensor(ids + tuple(drafts))
            taps = {}
            self.modules.forward(self.main.model.language_model.embed_tokens.weight[taken], hidden, DEFAULT,
                                 taps.__setitem__)
            rows.append(taps[f"{module}.logits"][-1])
            drafts.append(int(rows[-1].argmax()))
        return drafts, rows


def gap(row, token=None):
    """(chosen minus largest other, largest |logit|)"""
    chosen = row.argmax() if token is None else token
    others = torch.cat((row[:chosen], row[chosen + 1:]))
    return float(row[chosen] - others.max()), float(row.abs().max())


@torch.no_grad()
def generate(decoder, prompt, count):
    """generate.json as a dictionary, and the least of all gaps relative to the largest |logit| of its row."""
    ids, modules, gaps, steps = tuple(prompt), len(decoder.modules.layers), [], []
    found = {"tokens": [], "logprob": [], "margin": []}

    def emit(row):
        token = int(row.argmax())
        margin, size = gap(row)
        gaps.append(margin / size)
        found["tokens"].append(token)
        found["logprob"].append(round(float(row.log_softmax(dim=-1)[token]), 9))
        found["margin"].append(round(margin, 9))
        return token

    ids += (emit(decoder.predict(ids)[1][-1]),)
    while len(found["tokens"]) < count:
        drafts, rows = decoder.draft(ids, min(modules, count - len(found["tokens"]) - 1))
        gaps += [margin / size for margin, size in map(gap, rows)]
        _, logits = decoder.predict(ids + tuple(drafts))
        verified, accepted = logits[len(ids) - 1:], 0
        ids += (emit(verified[0]),)
        while accepted < len(drafts) and drafts[accepted] == ids[-1]:
            accepted += 1
            ids += (emit(verified[accepted]),)
        steps.append({"drafts": drafts, "accepted": accepted})
    kept = [step["accepted"] for step in steps]
    return {"ids": list(prompt), "max_new": count, **found, "drafted": sum(len(step["drafts"]) for step in steps),
            "accepted": sum(kept), "main_calls": len(steps),
            "acceptance": [kept.count(length) for length in range(modules + 1)], "steps": steps}, min(gaps)


@torch.no_grad()
def greedy(decoder, prompt, count):
    ids = tuple(prompt)
    for _ in range(count):
        ids += (int(decoder.predict(ids)[1][-1].argmax()),)
    return list(ids[len(prompt):])


def shorter(decoder, prompt, count):
    """Counts of runs whose last step drafts less, or nothing, and of the shortest runs."""
    runs = [generate(decoder, prompt, length)[0] for length in (1, 2, 3, count - 2, count - 1)]
    return [{key: made[key] for key in ("max_new", "drafted", "accepted", "main_calls")} for made in runs]


def demand_decoding(made, least, plain, config):
    """Refuses a model whose modules agree too little or too well, or whose choices are close."""
    tokens, rejected = made["tokens"], made["drafted"] - made["accepted"]
    drafts = [token for step in made["steps"] for token in step["drafts"]]
    for wrong, reason in ((tokens != plain, "speculation changes the tokens"),
                          (made["accepted"] < 14 or made["main_calls"] > 18, f"{made['accepted']} accepted"),
                          (rejected < 8, f"{rejected} rejected"),
                          (not all(made["acceptance"]), f"acceptance {made['acceptance']}"),
                          (len(set(tokens)) < 24, f"{len(set(tokens))} different tokens"),
                          (set(tokens + drafts) & set(reserved(config)), "an id of pictures"),
                          (not least > NEAR_TIE, f"a near tie: {least:.1e}")):
        if wrong:
            raise judge.Refused(f"decoding: {reason}")


# ---- the files

class Model:
    """The stored model, its configuration and exact weights, and the modules' layers as a model beside it."""

    def __init__(self, case, seed, folder, temporary):
        self.folder, self.layers_folder = os.path.join(folder, "model"), os.path.join(temporary, "layers")
        self.config = config_of(case)
        stored, self.weights = model(self.config, seed)
        files.write_json(os.path.join(self.folder, "config.json"), self.config)
        files.write(os.path.join(self.folder, "model.safetensors"), files.to_bytes(stored))
        write_layers(self.layers_folder, self.config, stored)
        self.main = truth.load(self.folder, torch.float64, "eager", "eager")
        layers = truth.load(self.layers_folder, torch.float64, "eager", "eager")
        for public in (self.main, layers):
            truth.exact_frequencies(public)
        self.modules = Modules(layers, self.weights)

    def fp32(self):
        """Yields (kind, order, main model, Modules) of every order."""
        pairs = zip(fp32_error.fp32_models(self.folder), fp32_error.fp32_models(self.layers_folder))
        for (kind, order, main), (_, _, layers) in pairs:
            yield kind, order, main, Modules(layers, self.weights)


def config_of(case):
    return configs.small(case.text, case.sparse, case.vision, case.top, case.layer_map, case.style, case.modules)


class TextCall:
    """The text case, with what vision.Call has for the picture."""

    name = "golden"

    def __init__(self, case, seed, config):
        self.ids = synth.token_ids(seed, case.tokens, case.text["vocab_size"], reserved(config))

    def inputs(self):
        return {"input_ids": self.ids}

    def public(self, main):
        return truth.run(main, self.ids)


def main_truth(call, made):
    """(taps, Check) of the main model in fp64."""
    if isinstance(call, vision.Call):
        return vision.run_truth(call, made.main, made)
    with truth.pure_fp64():
        taps, weights = call.public(made.main)
    check = formulas.Check(made.config, made.weights, taps, weights, call.ids)
    check.run()
    judge.demand_fp64(check, taps)
    return taps, check


class Result:
    """One call in fp64: taps of the main model, and of the modules in every reading, with their checks."""

    def __init__(self, call, made, readings):
        self.call, self.readings = call, {"": DEFAULT} | readings
        self.taps, check = main_truth(call, made)
        self.modules, self.checks, self.rulers, self.margins = {}, {"main": check}, {}, {}
        for name, reading in self.readings.items():
            with truth.pure_fp64():
                taps, weights = run(made.modules, self.taps, call.ids, reading)
            check = formulas.MtpCheck(made.config, made.weights, self.taps | taps, weights, call.ids, reading)
            check.run()
            judge.demand_fp64(check, taps)
            self.modules[name], self.checks[name] = taps, check
            self.demand_effect(name, taps)

    def demand_effect(self, name, taps):
        default = self.modules[""]
        last = f"mtp.{self.checks[name].text['num_mtp_modules'] - 1}.logits"
        if name and not formulas.relative_l2(taps[last], default[last]) >= VISIBLE:
            raise judge.Refused(f"{name}: {last} is that of the default reading")

    def measure(self, fp32):
        """The errors of fp32 code and margins; fp32: [(kind, taps of the main model, {reading: taps of the modules})]."""
        for name, taps in {"main": self.taps, **self.modules}.items():
            runs = [(kind, main if name == "main" else modules[name]) for kind, main, modules in fp32]
            self.rulers[name] = judge.measure(runs, taps)
            self.margins[name] = judge.judge_margins(self.checks[name], self.rulers[name], slice(None))

    def numbers(self, name):
        return self.rulers[name].worst | self.margins[name]

    def fp32(self, kind, order, main, modules):
        with fp32_error.summation(order):
            taps, _ = self.call.public(main)
            return kind, taps, {name: run(modules, taps, self.call.ids, reading)[0]
                                for name, reading in self.readings.items()}


def attempt(case, seed, folder, temporary):
    """(Result of the text, Result of the picture, generate.json); writes the model."""
    made = Model(case, seed, folder, temporary)
    with truth.pure_fp64():
        decoder = Decoder(made.main, made.modules)
        decoding, least = generate(decoder, case.prompt, case.max_new)
        demand_decoding(decoding, least, greedy(decoder, case.prompt, case.max_new), made.config)
        decoding["shorter"] = shorter(decoder, case.prompt, case.max_new)
    picture = vision.calls_of(case.picture, seed, made.config, None)[0]
    results = [Result(TextCall(case, seed, made.config), made, TEXT_READINGS), Result(picture, made, PICTURE_READINGS)]
    fp32 = [[], []]
    for kind, order, main, modules in made.fp32():
        for result, runs in zip(results, fp32):
            runs.append(result.fp32(kind, order, main, modules))
        with fp32_error.summation(order):
            single, _ = generate(Decoder(main, modules), case.prompt, case.max_new)
        if [single[key] for key in ("tokens", "steps")] != [decoding[key] for key in ("tokens", "steps")]:
            raise judge.Refused("decoding: fp32 takes another path")
    for check in results[0].checks.values():
        judge.exercise(check)
    for result, runs in zip(results, fp32):
        result.measure(runs)
    return *results, decoding


def write_dump(path, tensors, metadata):
    files.write(path, files.to_bytes({name: files.from_array(value) for name, value in tensors.items()}, metadata))


def write_result(result, reading, name, folder, held):
    """One golden of a call. The file of the default reading holds `held` taps, main model included; the others hold
    those of their modules' taps that differ from it."""
    taps, numbers = result.modules[reading], result.numbers(reading)
    if reading:
        default = result.modules[""]
        taps = {tap: value for tap, value in taps.items()
                if tap not in default or not np.array_equal(value, default[tap])}
    else:
        taps, numbers = result.taps | taps, result.numbers("main") | numbers
    taps = {tap: value for tap, value in taps.items() if held(tap)}
    for part in (reading, "main"):
        taps |= judge.companions(result.checks[part], taps)
    numbers = {key: value for key, value in numbers.items() if key.rpartition(".")[0] in taps}
    semantics = json.dumps(result.readings[reading], separators=(",", ":"))
    metadata = judge.metadata(NAME, os.path.join(folder, "model"), result.call.inputs(), numbers, semantics)
    write_dump(os.path.join(folder, name + ".safetensors.gz"), taps, metadata)


def write_case(call, path):
    inputs = call.inputs()
    inputs["input_ids"] = inputs["input_ids"].astype(np.int32)
    if isinstance(call, vision.Call):
        inputs["pixel_values"] = call.pictures.pixels
    write_dump(path, inputs, None)


def every(tap):
    return not tap.endswith("moe.choice")


def few(tap):
    return tap in ("fused", "final_norm") or tap.startswith("mtp.") and tap.split(".", 2)[2] in HELD


def produce(case, out):
    """Writes golden/mtp/; returns {golden: summary}."""
    folder = os.path.join(out, NAME)
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as temporary:
        text, picture, decoding = attempt(case, case.seed, folder, temporary)
    for result, prefix in ((text, ""), (picture, "picture_")):
        write_result(result, "", result.call.name, folder, every if result is text else few)
        for reading in result.readings:
            if reading:
                write_result(result, reading, reading, folder, few)
        write_case(result.call, os.path.join(folder, prefix + "case.safetensors"))
    files.write_json(os.path.join(folder, "generate.json"), {"format_version": 1} | decoding)
    return {f"{NAME}/{result.call.name}": summary(result) for result in (text, picture)}


def entry(case, dims):
    """What MANIFEST.json says beside the files. dims: those of the text case."""
    return {"case": NAME, "producer": judge.PRODUCER + "; scripts/golden/mtp.py", "versions": judge.VERSIONS,
            "seed": case.seed, "command": f"python scripts/golden/make.py {NAME}", "weights": case.style,
            "dims": dims | {"mtp_modules": case.modules},
            "readings": TEXT_READINGS | PICTURE_READINGS,
            "covers": case.covers, "cannot_detect": case.cannot_detect}


def summary(result):
    counts = {key: value for check in result.checks.values() for key, value in check.counts.items()}
    margins = {key: value for part in result.margins.values() for key, value in part.items()}
    return {"fp64_check": max(max(check.errors.values()) for check in result.checks.values()), "counts": counts,
            "margins": margins, "logits": result.rulers["main"].worst["logits.f32_rel_l2"]}


def search(case):
    for seed in range(1, 1000):
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as temporary:
            try:
                attempt(case, seed, folder, temporary)
            except judge.Refused as reason:
                print(f"{NAME}: seed {seed} refused: {reason}", flush=True)
                continue
        return seed
    raise judge.Refused(f"{NAME}: no seed below 1000")

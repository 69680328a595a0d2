"""golden/m2/: small models of the M2 family by the public class: every tap, other positions, noise on the input of
the experts, and a second model with modules of multi-token prediction (formulas around the public decoder layer).

The public class turns all head dims unless it is told the factor, whatever `rotary_dim` says: it gets the factor here,
and load() refuses a model whose tables are of another width.
"""

import contextlib
import json
import os
import shutil
import tempfile

import numpy as np
import torch
import transformers
from transformers.models.minimax_m2 import modeling_minimax_m2 as modeling

import configs
import files
import formulas
import judge
import m2_formulas
import mtp
import synth
import truth
import fp32_error

NAME = "m2"
VISIBLE = 1e-3                                          # least effect of a wrong or other reading, relative L2
JITTER = 0.01, 7                                        # eps and seed
JITTER_SEMANTICS = {"jitter": 0.01, "jitter_seed": 7}
MTP_READINGS = {"concat": {}, "additive": {"mtp_join": "additive"}}


# ---- configuration and weights

def config_of(case):
    """The released form with the sizes of the case: `rotary_dim` alone says how much is rotated."""
    config = configs.minimax_m2_7() | case.text | {
        "num_hidden_layers": case.layers, "attn_type_list": [1] * case.layers, "num_mtp_modules": case.modules}
    if case.style == "bf16":
        del config["quantization_config"]
    return config


def layer_shapes(config, prefix):
    """{name: shape} of one decoder layer: as in M3, except for the norms of q and k and the shared expert."""
    shapes = {name: shape for name, shape in configs.layer_shapes(config, prefix, False, True).items()
              if ".shared_experts." not in name}
    for name in ("q", "k"):
        shapes[f"{prefix}self_attn.{name}_norm.weight"] = shapes[f"{prefix}self_attn.{name}_proj.weight"][:1]
    return shapes


def shapes_of(config, modules):
    """{released name: shape}; modules: how many the files hold."""
    table = config["vocab_size"], config["hidden_size"]
    shapes = {"model.embed_tokens.weight": table, "lm_head.weight": table, "model.norm.weight": table[1:]}
    for layer in range(config["num_hidden_layers"]):
        shapes |= layer_shapes(config, f"model.layers.{layer}.")
    for module in range(modules):
        prefix = f"model.mtp.layers.{module}."
        shapes |= {f"{prefix}{name}.weight": table[1:] for name in ("enorm", "hnorm", "final_layernorm")}
        shapes[prefix + "eh_proj.weight"] = (table[1], 2 * table[1])
        shapes |= layer_shapes(config, prefix + "transformer_layer.")
    return shapes


def model(shapes, seed, style):
    """(stored tensors, exact values): the generator of SPEC.md 3.6; norm weights are 1 + its value, rounded to BF16,
    ties to even. Routers: F32 with bits below BF16 beside 8-bit matrices, BF16 in the plain model."""
    stored, values = {}, {}
    for name, shape in shapes.items():
        e = synth.exponent(name, shape)
        if style != "bf16" and name.endswith(synth.QUANTISED):
            codes = synth.e4m3_tensor(name, shape, seed)
            dtype, scale = synth.scale_tensor(name + "_scale_inv", shape, seed, e, style)
            stored[name] = "F8_E4M3", shape, codes.tobytes()
            stored[name + "_scale_inv"] = dtype, scale.shape, scale.tobytes()
            values[name] = synth.e4m3_values()[codes] * synth.expand_scale(scale, shape, style)
        elif style != "bf16" and name.endswith(synth.KEPT_F32):
            values[name] = synth.router_values(name, shape, seed, e)
            stored[name] = files.from_array(values[name].astype(np.float32))
        else:
            values[name] = synth.plain_values(name, shape, seed, e)
            if name.endswith(synth.TEXT_NORMS):
                values[name] = mtp.round_bf16(1 + values[name])
            stored[name] = "BF16", shape, synth.bf16_bytes(values[name])
    return stored, values


# ---- the public class

@contextlib.contextmanager
def pure_fp64():
    with truth.pure_fp64():
        modeling.torch = truth.Fp64Torch()
        try:
            yield
        finally:
            modeling.torch = torch


def write_public(folder, config, weights, dtype, factor):
    """Plain weights and a configuration for the public class; factor: the part of a head that turns, None: left out."""
    rope = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    if factor is not None:
        rope["partial_rotary_factor"] = factor
    left_out = ("quantization_config", "rope_theta")
    public = {key: value for key, value in config.items() if key not in left_out} | {"rope_parameters": rope}
    files.write_json(os.path.join(folder, "config.json"), public)
    tensors = {name: files.from_array(value.astype(dtype)) for name, value in weights.items() if ".mtp." not in name}
    files.write(os.path.join(folder, "model.safetensors"), files.to_bytes(tensors))


def load(folder, dtype, attention, experts):
    """The model of a directory; a tensor too many or too few, or tables of another width, are refused."""
    loaded, info = transformers.MiniMaxM2ForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation=attention, experts_implementation=experts, output_loading_info=True)
    problems = {key: info[key] for key in info if info[key]}
    if problems:
        raise ValueError(f"{folder}: {problems}")
    with open(os.path.join(folder, "config.json")) as file:
        wanted = json.load(file)["rotary_dim"]
    applied = 2 * len(loaded.model.rotary_emb.inv_freq)
    if applied != wanted:
        raise judge.Refused(f"{applied} dims of a head are turned, not {wanted}")
    return loaded.eval()


def exact_frequencies(loaded):
    rotary = loaded.model.rotary_emb
    theta = loaded.config.rope_parameters["rope_theta"]
    rotary.inv_freq = torch.from_numpy(truth.inverse_frequencies(theta, 2 * len(rotary.inv_freq)))


def fp64_angles(loaded):
    """Tables of an fp32 run from fp64 angles, cos and sin rounded once."""
    exact_frequencies(loaded)
    rotary = loaded.model.rotary_emb

    def forward(x, position_ids):
        angle = position_ids[:, :, None].double() * rotary.inv_freq
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)

    rotary.forward = forward


def fp32_models(folder):
    """Yields (kind, order, model) as fp32_error.fp32_models does."""
    for order in fp32_error.ORDERS:
        for kind in ("f32", "f32_angle64"):
            loaded = load(folder, torch.float32, order.attention, order.experts)
            if kind == "f32_angle64":
                fp64_angles(loaded)
            yield kind, order, loaded


def causal_mask(rows, dtype):
    """[1,1,rows,rows], added to logits: the class uses it unchanged, whatever the positions are."""
    return torch.full((rows, rows), float("-inf"), dtype=dtype).triu(1)[None, None]


# ---- noise on the input of the experts

def noise(eps, seed, layer, rows, width):
    """fp64 [rows,width] factors: row t is at place t. The generator of the weights, under the name of the tap."""
    words = synth.draw(f"layers.{layer}.mlp_norm", seed, rows * width, 1 << 32)
    return 1 + eps * (2 * (words.reshape(rows, width) * 2.0 ** -32) - 1)


# ---- the taps

class Recorder(truth.Recorder):
    """Hooks on a model of the public class; jitter: (eps, seed) of noise on what router and experts read, or None."""

    def __init__(self, loaded, positions, jitter=None):
        super().__init__(loaded)
        self.positions, self.jitter = positions, jitter

    def attach(self):
        language = self.model.model
        self.out(language.embed_tokens, "embed")
        self.into(language.layers[0], "fused")
        for number, layer in enumerate(language.layers):
            self.attach_layer(f"layers.{number}.", number, layer)
        self.out(language.norm, "final_norm")
        self.out(self.model.lm_head, "logits")

    def attach_layer(self, prefix, number, layer):
        attention, config = layer.self_attn, self.model.config
        heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads, "v": config.num_key_value_heads}
        self.out(layer.input_layernorm, prefix + "attn_norm")
        for name, count in heads.items():
            self.out(getattr(attention, name + "_proj"), f"{prefix}{name}_proj", count)
            if name != "v":
                self.out(getattr(attention, name + "_norm"), f"{prefix}{name}_norm", count)
        self.into(attention.o_proj, prefix + "attn", heads["q"])
        self.out(attention.o_proj, prefix + "attn_out")
        self.into(layer.post_attention_layernorm, prefix + "mid")
        self.out(layer.post_attention_layernorm, prefix + "mlp_norm")
        self.out(layer.mlp.experts, prefix + "moe.routed")
        self.out(layer.mlp, prefix + "mlp")
        self.out(layer, prefix + "out")
        self.handles.append(attention.register_forward_pre_hook(lambda m, i: self.enter(number)))
        self.handles.append(attention.register_forward_hook(lambda m, i, result: self.leave(number, result)))
        self.handles.append(layer.mlp.register_forward_pre_hook(lambda m, i: self.disturb(number, i)))
        self.handles.append(layer.mlp.gate.register_forward_hook(
            lambda m, i, result: self.route(prefix, number, i, result)))

    def disturb(self, number, inputs):
        if not self.jitter:
            return None
        x = inputs[0]
        factors = torch.from_numpy(noise(*self.jitter, number, *x.shape[1:])).to(x.dtype)
        return (x * factors,)

    def route(self, prefix, number, inputs, result):
        self.expert_inputs[number] = inputs[0].detach()
        for name, value in zip(("router_logits", "weights", "experts"), result):
            self.taps[f"{prefix}moe.{name}"] = value.detach().clone()

    def forward(self, input_ids):
        original = modeling.apply_rotary_pos_emb
        modeling.apply_rotary_pos_emb = self.rotate(original)
        try:
            self.call(input_ids)
        finally:
            modeling.apply_rotary_pos_emb = original
            for handle in self.handles:
                handle.remove()

    def call(self, input_ids):
        mask = causal_mask(len(input_ids), self.model.dtype)
        self.model(input_ids=torch.from_numpy(input_ids)[None], attention_mask=mask, use_cache=False,
                   position_ids=torch.from_numpy(self.positions)[None])


@torch.no_grad()
def run(recorder, input_ids):
    """({tap: NumPy array}, {layer: attention weights [Q,T,T] or None}); `moe.choice` beside the taps, as truth.run."""
    recorder.attach()
    recorder.forward(input_ids)
    config, taps = recorder.model.config, recorder.taps
    for number, layer in enumerate(recorder.model.model.layers):
        prefix = f"layers.{number}."
        keep = truth.keys_attended(taps, prefix, None, None, config.num_attention_heads)
        taps[prefix + "attn_lse"] = truth.log_sum_exp(taps, prefix, keep, layer.self_attn.scaling)
        truth.order_experts(taps, prefix + "moe.", layer.mlp.e_score_correction_bias)
        ids, x = taps[prefix + "moe.experts"], recorder.expert_inputs[number]
        one = torch.ones(len(x), 1, dtype=x.dtype)
        taps[prefix + "moe.expert_out"] = torch.stack(
            [layer.mlp.experts.forward(x, ids[:, [slot]], one) for slot in range(ids.shape[1])], dim=1)
    return {name: truth.to_numpy(value) for name, value in taps.items()}, recorder.attention_weights


# ---- modules of multi-token prediction

class Modules(mtp.Modules):
    """The modules in the type of `layers`, a public model whose layer m is module m's."""

    def __init__(self, layers, weights):
        self.model, self.layers, self.config = layers, layers.model.layers, layers.config
        self.dtype = layers.lm_head.weight.dtype
        self.weights = {name.removeprefix("model.mtp.layers."): torch.from_numpy(value).to(self.dtype)
                        for name, value in weights.items() if ".mtp." in name}

    def norm(self, x, module, name):
        variance = x.pow(2).mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(variance + self.config.rms_norm_eps) * self.weights[f"{module}.{name}.weight"]

    def layer(self, module, x):
        positions = torch.arange(len(x))[None]
        tables = self.model.model.rotary_emb(x[None], position_ids=positions)
        return self.layers[module](x[None], position_embeddings=tables, position_ids=positions,
                                   attention_mask=causal_mask(len(x), x.dtype))[0]


class ModuleRecorder(Recorder):
    """Hooks on the modules' layers. main: the taps of the main model of the same type."""

    def __init__(self, modules, main, reading):
        super().__init__(modules.model, None)
        self.modules, self.main, self.reading = modules, main, reading

    def attach(self):
        for module, layer in enumerate(self.modules.layers):
            self.attach_layer(f"layers.{module}.", module, layer)

    def call(self, input_ids):
        embedding, hidden = (torch.from_numpy(self.main[name]) for name in ("embed", "final_norm"))
        self.modules.forward(embedding, hidden, self.reading, lambda name, value: self.save("mtp." + name, value))


def run_modules(modules, main, input_ids, reading):
    """({mtp.* tap: NumPy array}, {"mtp.m.": attention weights}) of one pass over the modules."""
    taps, weights = run(ModuleRecorder(modules, main, reading), input_ids)
    renamed = {}
    for name, value in taps.items():
        if name.startswith("layers."):
            _, module, rest = name.split(".", 2)
            name = f"mtp.{module}.layer.{rest}"
        renamed[name] = value
    return renamed, {f"mtp.{module}.": value for module, value in weights.items()}


def layers_of_modules(config, weights):
    """(config, weights) of the modules' decoder layers as a model of their own."""
    own, tensors = ".mtp.layers.", {}
    for name, value in weights.items():
        if own in name and ".transformer_layer." in name:
            tensors[name.replace(own, ".layers.").replace(".transformer_layer.", ".")] = value
        elif ".layers." not in name:
            tensors[name] = value
    return config | {"num_hidden_layers": config["num_mtp_modules"]}, tensors


# ---- the calls

class Call:
    """One golden: inputs, what stands in its metadata, which taps it holds."""

    def __init__(self, name, ids, held, positions=None, jitter=None):
        self.name, self.ids, self.held, self.given, self.jitter = name, ids, held, positions, jitter
        self.positions = np.arange(len(ids)) if positions is None else positions
        self.semantics = json.dumps(JITTER_SEMANTICS if jitter else {}, separators=(",", ":"))

    def inputs(self):
        return {"input_ids": self.ids} | ({} if self.given is None else {"position_ids": self.given})

    def run(self, loaded):
        return run(Recorder(loaded, self.positions, self.jitter), self.ids)


def every(tap):
    return not tap.endswith("moe.choice")


def turned(tap):
    return tap.endswith(("q_rope", "k_rope", "attn_lse")) or tap == "logits"


def disturbed(tap):
    return tap == "logits" or every(tap) and (".moe." in tap or tap.endswith((".mlp", ".out")))


def ends(tap):
    return tap in ("layers.0.moe.router_logits", "logits")


def calls_of(case, seed):
    ids = synth.token_ids(seed, case.tokens, case.text["vocab_size"], ())
    positions = np.array(case.positions, np.int64)
    return [Call("golden", ids, every), Call("positions", ids, turned, positions),
            Call("jitter", ids, disturbed, None, JITTER), Call("jitter_positions", ids, ends, positions, JITTER)]


class Made:
    """A stored model, its exact weights, and the public class upon them in fp64 and fp32."""

    def __init__(self, case, seed, folder, temporary):
        self.config, self.temporary = config_of(case), temporary
        stored, self.weights = model(shapes_of(self.config, case.held_modules), seed, case.style)
        files.write_json(os.path.join(folder, "config.json"), self.config)
        path = os.path.join(folder, "model.safetensors")
        files.write(path, files.to_bytes(stored))
        self.expanded = truth.expand(path)
        self.factor = self.config["rotary_dim"] / self.config["head_dim"]

    def public(self, name, config, weights, dtype):
        folder = os.path.join(self.temporary, name)
        write_public(folder, config, weights, dtype, self.factor)
        return folder

    def exact(self, name, config, weights):
        loaded = load(self.public(name, config, weights, np.float64), torch.float64, "eager", "eager")
        exact_frequencies(loaded)
        return loaded


def checked(check, taps):
    check.run()
    judge.demand_fp64(check, taps)
    return check


def attempt(case, seed, folder, temporary):
    """([(Call, taps, Check, Fp32Error, margins)], effects of full_rotation()); writes the model."""
    made = Made(case, seed, folder, temporary)
    loaded, calls, results = made.exact("f64", made.config, made.expanded), calls_of(case, seed), []
    for call in calls:
        with pure_fp64():
            taps, weights = call.run(loaded)
        check = checked(m2_formulas.Check(made.config, made.weights, taps, weights, call.ids, call.positions,
                                          call.jitter), taps)
        judge.exercise(check)
        results.append((call, taps, check))
    demand_effects([taps for _, taps, _ in results])
    single = made.public("f32", made.config, made.expanded, np.float32)
    runs = [[] for _ in calls]
    for kind, order, plain in fp32_models(single):
        with fp32_error.summation(order):
            for call, own in zip(calls, runs):
                own.append((kind, call.run(plain)[0]))
    finished = []
    for (call, taps, check), own in zip(results, runs):
        ruler = judge.measure(own, taps)
        finished.append((call, taps, check, ruler, judge.judge_margins(check, ruler, slice(None))))
    return finished, full_rotation(made, results[0])


def demand_effects(taps):
    """Positions and noise must show, and the noise must follow the places, not the positions."""
    plain, positions, jitter, both = taps
    for name, tap, one, other in (("positions", "logits", positions, plain), ("jitter", "logits", jitter, plain),
                                  ("jitter_positions", "logits", both, positions)):
        if not formulas.relative_l2(one[tap], other[tap]) >= VISIBLE:
            raise judge.Refused(f"{name}: {tap} does not show it")


def full_rotation(made, result):
    """{tap: relative L2} of a run of the class without the factor, which turns whole heads, against the truth."""
    call, taps, _ = result
    folder = os.path.join(made.temporary, "whole")
    whole = made.config | {"rotary_dim": made.config["head_dim"]}
    write_public(folder, whole, made.expanded, np.float64, None)
    loaded = load(folder, torch.float64, "eager", "eager")
    exact_frequencies(loaded)
    with pure_fp64():
        wrong, _ = call.run(loaded)
    effects = {tap: formulas.relative_l2(wrong[tap], taps[tap])
               for tap in ("layers.0.q_norm", "layers.0.q_rope", "layers.0.k_rope", "layers.0.attn", "logits")}
    if effects["layers.0.q_norm"] > judge.FP64_LIMIT or not effects["logits"] >= VISIBLE:
        raise judge.Refused("the rotation of whole heads does not show")
    return effects


def attempt_modules(case, seed, folder, temporary):
    """([(reading, taps of the modules, Check, Fp32Error, margins)], ids); writes the model with modules."""
    made = Made(case, seed, folder, temporary)
    ids = synth.token_ids(seed, case.tokens, case.text["vocab_size"], ())
    call, own = Call("main", ids, every), layers_of_modules(made.config, made.expanded)
    main, modules = made.exact("f64", made.config, made.expanded), Modules(made.exact("layers", *own), made.weights)
    with pure_fp64():
        taps, weights = call.run(main)
    checked(m2_formulas.Check(made.config, made.weights, taps, weights, ids, call.positions), taps)
    results = {}
    for name, reading in MTP_READINGS.items():
        with pure_fp64():
            found, weights = run_modules(modules, taps, ids, reading)
        check = m2_formulas.MtpCheck(made.config, made.weights, taps | found, weights, ids, call.positions, reading)
        results[name] = found, checked(check, found)
    if not formulas.relative_l2(*(found["mtp.1.logits"] for found, _ in results.values())) >= VISIBLE:
        raise judge.Refused("both ways to join give the same")
    pairs = zip(fp32_models(made.public("f32", made.config, made.expanded, np.float32)),
                fp32_models(made.public("layers32", *own, np.float32)))
    runs = {name: [] for name in results}
    for (kind, order, main), (_, _, layers) in pairs:
        with fp32_error.summation(order):
            single = call.run(main)[0]
            for name, reading in MTP_READINGS.items():
                runs[name].append((kind, run_modules(Modules(layers, made.weights), single, ids, reading)[0]))
    finished = []
    for name, (found, check) in results.items():
        ruler = judge.measure(runs[name], found)
        finished.append((name, found, check, ruler, judge.judge_margins(check, ruler, slice(None))))
    return finished, ids


# ---- the files

def write_golden(path, check, taps, rows, inputs, numbers, model_folder, semantics):
    numbers = {key: value for key, value in numbers.items() if key.rpartition(".")[0] in taps}
    if rows is not None:
        taps = {name: value[rows] for name, value in taps.items()} | {"rows": rows}
    taps |= judge.companions(check, taps, slice(None) if rows is None else rows)
    mtp.write_dump(path, taps, judge.metadata(NAME, model_folder, inputs, numbers, semantics))


def write_case(path, inputs):
    mtp.write_dump(path, {name: value.astype(np.int32) for name, value in inputs.items()}, None)


def produce(case, mtp_case, out):
    """Writes golden/m2/; returns {golden: summary}."""
    folder = os.path.join(out, NAME)
    shutil.rmtree(folder, ignore_errors=True)
    summaries, rows = {}, np.array(case.rows, np.int32)
    model_folder, mtp_folder = os.path.join(folder, "model"), os.path.join(folder, "mtp_model")
    with tempfile.TemporaryDirectory() as temporary:
        results, effects = attempt(case, case.seed, model_folder, temporary)
    for call, taps, check, ruler, margins in results:
        held = {name: value for name, value in taps.items() if call.held(name)}
        write_golden(os.path.join(folder, call.name + ".safetensors.gz"), check, held, rows, call.inputs(),
                     ruler.worst | margins, model_folder, call.semantics)
        summaries[call.name] = summary(check, ruler, margins, "logits")
    summaries["golden"]["counts"] |= {f"whole heads turned: {tap}": value for tap, value in effects.items()}
    for call, name in ((results[0][0], "case"), (results[1][0], "positions_case")):
        write_case(os.path.join(folder, name + ".safetensors"), call.inputs())
    with tempfile.TemporaryDirectory() as temporary:
        results, ids = attempt_modules(mtp_case, mtp_case.seed, mtp_folder, temporary)
    for name, taps, check, ruler, margins in results:
        held = {tap: value for tap, value in taps.items() if every(tap)}
        semantics = json.dumps(MTP_READINGS[name], separators=(",", ":"))
        write_golden(os.path.join(folder, name + ".safetensors.gz"), check, held, None, {"input_ids": ids},
                     ruler.worst | margins, mtp_folder, semantics)
        summaries[name] = summary(check, ruler, margins, "mtp.0.logits")
    write_case(os.path.join(folder, "mtp_case.safetensors"), {"input_ids": ids})
    return {f"{NAME}/{name}": value for name, value in summaries.items()}


def summary(check, ruler, margins, logits):
    return {"fp64_check": max(check.errors.values()), "counts": check.counts, "margins": margins,
            "logits": ruler.worst[logits + ".f32_rel_l2"]}


def entry(case):
    """What MANIFEST.json says beside the files."""
    text = case.text
    dims = {"T": case.tokens, "rows": len(case.rows) or case.tokens, "layers": case.layers, "H": text["hidden_size"],
            "Q": text["num_attention_heads"], "G": text["num_key_value_heads"], "D": text["head_dim"],
            "rotary": text["rotary_dim"], "E": text["num_local_experts"], "K": text["num_experts_per_tok"],
            "F": text["intermediate_size"], "V": text["vocab_size"], "mtp_modules": case.held_modules}
    return {"case": case.name, "producer": judge.PRODUCER, "versions": judge.VERSIONS, "seed": case.seed,
            "command": f"python scripts/golden/make.py {NAME}", "weights": case.style, "dims": dims,
            "covers": case.covers, "cannot_detect": case.cannot_detect}


def entries(case, mtp_case, listed):
    """Entries of both models; listed: the files of golden/m2/."""
    modules = tuple(f"{NAME}/{name}" for name in ("mtp", *MTP_READINGS))
    return [entry(case) | {"files": [file for file in listed if not file["path"].startswith(modules)]},
            entry(mtp_case) | {"files": [file for file in listed if file["path"].startswith(modules)]}]


def search(case, attempting):
    """The smallest seed that attempt() or attempt_modules() accepts."""
    for seed in range(1, 1000):
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as temporary:
            try:
                attempting(case, seed, folder, temporary)
            except judge.Refused as reason:
                print(f"{case.name}: seed {seed} refused: {reason}", flush=True)
                continue
        return seed
    raise judge.Refused(f"{case.name}: no seed below 1000")

"""golden/readings/: the model of tiny/ in the other readings of block selection, attention and activation, and under
an attention mask.

transformers does everything but the operator that reads otherwise: that one is a formula here, put in its place by a
hook, and reading_check.py computes it a second time. With default fields the formulas must give what transformers
gives, with `local_blocks` too, and the mask must agree with the public indexer whose hidden columns are -inf.
"""

import contextlib
import fnmatch
import json
import os
import shutil

import numpy as np
import torch
import transformers

import files
import formulas
import judge
import reading_check
import synth
import truth
import fp32_error

NAME = "readings"
DEFAULT = "default"
AGREEMENT = 1e-13                                       # of formulas here with the public code
VISIBLE = 1e-3                                          # least effect on the logits of every row held, relative L2
CLAMP_VISIBLE = 8                                       # least effect of gate_clamp on its taps, in their fp32 errors
CLAMP_CREATED = 1e-6                                    # least effect of the clamp of one tap alone, relative L2
READINGS = {
    "shared": {"selection": "shared"},
    "union": {"selection": "union"},
    "lse": {"pool": "lse"},
    "rsqrt": {"index_scale": "rsqrt"},
    "lse_rsqrt": {"pool": "lse", "index_scale": "rsqrt"},
    "clamp_both": {"gate_clamp": "both"},
    "init1": {"init_blocks": 1},
    "init2_local2": {"init_blocks": 2, "local_blocks": 2},
    "local2": {"local_blocks": 2},
    "local2_own": {"local_blocks": 2, "local_rule": "own"},
}
SAME = ("rsqrt", "local2_own")                          # the choice is that of the default reading
MASK = "mask"
CHOICE = ("layers.?.index.block_scores", "layers.?.index.blocks", "layers.[234].attn_lse", "layers.2.attn",
          "layers.[234].out", "logits")
CLAMPED = ("layers.[01].mlp.act", "layers.4.moe.routed", "layers.4.moe.shared")
HELD = {"clamp_both": CLAMPED + ("layers.?.out", "logits"),
        MASK: ("layers.0.k_rope", "layers.?.index.block_scores", "layers.?.index.blocks", "layers.?.attn",
               "layers.?.attn_lse", "layers.?.out", "logits")}
HELD |= dict.fromkeys(SAME, ("layers.?.index.block_scores", "layers.?.index.blocks", "layers.[234].out", "logits"))
CHOICES = ("index.block_scores", "index.blocks", "moe.choice", "moe.experts")
FORCED = 1e300                                          # above every score; of the n-th forced block: FORCED / n


# ---- the operators that read otherwise

def block_scores(q, k, semantics, block, seen):
    """[T,G,B] of q [T,G,X], k [T,X]; seen [T] bool says which keys the mask does not hide."""
    T = len(k)
    scores = torch.einsum("tgx,jx->tgj", q, k)
    if semantics.get("index_scale") == "rsqrt":
        scores = scores * q.shape[2] ** -0.5
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1) | ~seen
    scores = scores.masked_fill(hidden[:, None], float("-inf"))
    scores = torch.nn.functional.pad(scores, (0, -T % block), value=float("-inf")).unflatten(-1, (-1, block))
    return scores.logsumexp(dim=-1) if semantics.get("pool") == "lse" else scores.amax(dim=-1)


def select(scores, semantics, block, kept):
    """[T,G,min(N,B)] ids in falling order, -1 where no candidate is left."""
    T, G, B = scores.shape
    wanted = scores.double()
    if semantics.get("selection") == "shared":
        wanted = wanted.amax(dim=1, keepdim=True).expand(T, G, B)
    wanted, own = wanted.clone(), torch.arange(T) // block
    local = semantics.get("local_blocks", 1)
    if semantics.get("local_rule") == "own":
        local = min(local, 1)
    order = [own - back for back in range(local)]
    order += [torch.full_like(own, first) for first in range(semantics.get("init_blocks", 0))]
    for place, target in reversed(list(enumerate(order, 1))):          # a block forced twice keeps its better place
        rows = torch.nonzero((target >= 0) & (target <= own))[:, 0]
        wanted[rows, :, target[rows]] = FORCED / place
    best, ids = wanted.sort(dim=-1, descending=True, stable=True)
    return ids.masked_fill(best == float("-inf"), -1)[..., :kept]


def lower_clamp(gate_up, limit):
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.cat((gate.clamp(min=-limit), up), dim=-1)


@contextlib.contextmanager
def clamped_experts(model, semantics):
    """While open, the routed experts clamp their gate below too, where the reading asks for it."""
    blocks = [layer.mlp.experts for layer in model.model.language_model.layers if hasattr(layer.mlp, "experts")]
    if semantics.get("gate_clamp") != "both":
        blocks = []
    for experts in blocks:
        public = experts._apply_gate
        experts._apply_gate = lambda gate_up, public=public, limit=experts.swiglu_limit: \
            public(lower_clamp(gate_up, limit))
    try:
        yield
    finally:
        for experts in blocks:
            del experts._apply_gate


class ReadingRecorder(truth.Recorder):
    """Hooks that record, and hooks that put a reading's operators in place of the public ones. mask [S] or None."""

    def __init__(self, model, semantics, mask):
        super().__init__(model)
        self.semantics, self.mask = semantics, mask

    def inputs(self):
        if self.mask is None:
            return {}
        return {"attention_mask": torch.from_numpy(self.mask)[None],
                "position_ids": torch.arange(len(self.mask))[None]}

    def seen(self, T):
        return torch.ones(T, dtype=torch.bool) if self.mask is None else torch.from_numpy(self.mask) != 0

    def attach_layer(self, prefix, number, layer, text):
        def empty_rows(module, inputs):                 # the public softmax gives the mean of all values there
            keep = self.keys_attended(prefix, text.index_block_size, heads // text.num_key_value_heads, heads)
            x = inputs[0].unflatten(-1, (heads, -1))
            return (x.masked_fill(~keep.any(dim=-1)[None, ..., None], 0.0).flatten(-2),)

        heads = text.num_attention_heads
        self.handles.append(layer.self_attn.o_proj.register_forward_pre_hook(empty_rows))
        super().attach_layer(prefix, number, layer, text)
        if self.semantics.get("gate_clamp") == "both":
            dense = layer.mlp.shared_experts if hasattr(layer.mlp, "shared_experts") else layer.mlp
            self.handles.append(dense.gate_up_proj.register_forward_hook(
                lambda module, inputs, result: lower_clamp(result, text.swiglu_limit)))

    def attach_indexer(self, prefix, number, indexer):
        super().attach_indexer(prefix, number, indexer)

        def choose(module, inputs, result):
            q, k = self.taps[prefix + "q_rope"], self.taps[prefix + "k_rope"]
            scores = block_scores(q, k, self.semantics, indexer.block_size, self.seen(len(k)))
            self.taps[prefix + "block_scores"] = scores
            self.taps[prefix + "blocks"] = select(scores, self.semantics, indexer.block_size, indexer.topk_blocks)
            lists = self.taps[prefix + "blocks"].transpose(0, 1)
            if self.semantics.get("selection") == "union":
                lists = torch.cat(tuple(lists), dim=-1).expand(len(lists), -1, -1)
            return lists[None]

        self.handles.append(indexer.register_forward_hook(choose))

    def block_scores(self, number, indexer):
        return self.taps[f"layers.{number}.index.block_scores"]

    def keys_attended(self, prefix, block, heads_per_group, heads):
        keep = super().keys_attended(prefix, block, heads_per_group, heads)
        if self.semantics.get("selection") == "union" and prefix + "index.blocks" in self.taps:
            keep = keep.any(dim=1, keepdim=True).expand(keep.shape)
        return keep & self.seen(keep.shape[-1])


def run(model, input_ids, semantics, mask=None):
    with clamped_experts(model, semantics):
        return truth.run(model, input_ids, ReadingRecorder(model, semantics, mask))



# ---- witnesses: public code alone

class HiddenColumns(truth.Fp64Torch):
    """The modelling module's torch, in which the indexer's score matrix has -inf in hidden columns. seen [S] bool"""

    def __init__(self, seen):
        self.seen = seen

    def matmul(self, a, b):
        z = torch.matmul(a, b)
        if b.shape[1] == 1:                             # one key head: the index branch
            z = z.masked_fill(~self.seen[:z.shape[-1]], float("-inf"))
        return z


class MaskRecorder(truth.Recorder):
    """Records public code under a mask, places start .. stop-1 of the sequence. With `zero` the attention of the rows
    before the first visible key is set to 0: nothing else of the model is changed."""

    def __init__(self, model, mask, zero, start=0, stop=None, cache=None):
        super().__init__(model)
        self.mask, self.zero, self.cache = torch.from_numpy(mask), zero, cache
        self.places = torch.arange(len(mask))[start:stop]

    def attach_layer(self, prefix, number, layer, text):
        empty = self.places < int(self.mask.argmax()) if self.zero else torch.zeros_like(self.places, dtype=torch.bool)
        self.handles.append(layer.self_attn.o_proj.register_forward_pre_hook(
            lambda module, inputs: (inputs[0].masked_fill(empty[None, :, None], 0.0),)))
        super().attach_layer(prefix, number, layer, text)

    def inputs(self):
        inputs = {"attention_mask": self.mask[None, :int(self.places[-1]) + 1], "position_ids": self.places[None]}
        return inputs if self.cache is None else inputs | {"past_key_values": self.cache}


@torch.no_grad()
def public_masked(model, input_ids, mask, zero=True, hidden_columns=True, cuts=()):
    """{float tap: array} of public code under a mask, with cuts in several calls on a cache. Without hidden_columns the
    indexer is the public one as it is."""
    cache, parts = transformers.DynamicCache(config=model.config.get_text_config()) if cuts else None, []
    for start, stop in zip((0, *cuts), (*cuts, len(input_ids))):
        recorder = MaskRecorder(model, mask, zero, start, stop, cache)
        recorder.attach()
        with truth.pure_fp64():
            if hidden_columns:
                truth.modeling.torch = HiddenColumns(torch.from_numpy(mask) != 0)
            recorder.forward(input_ids[start:stop])
        parts.append(recorder.taps)
    together = [name for name in parts[0] if parts[0][name].dtype == torch.float64 and not name.endswith("moe.weights")]
    return {name: np.concatenate([part[name].numpy() for part in parts]) for name in together}


def demand_equal(what, public, taps, rows=slice(None)):
    """Refuses formulas that differ from the public code in a float tap of these rows."""
    for name, want in public.items():
        if want.dtype.kind == "f" and not formulas.relative_max(taps[name][rows], want[rows]) <= AGREEMENT:
            raise judge.Refused(f"{what}: {name} is not that of the public code")


def demand_public(model, call, results):
    """The default reading and local_blocks are in the public code; so is the mask, except for two things."""
    with truth.pure_fp64():
        demand_equal("default", truth.run(model, call.ids)[0], results[DEFAULT].taps)
        indexers = [layer.self_attn.indexer for layer in model.model.language_model.layers if layer.self_attn.indexer]
        for indexer in indexers:
            indexer.local_blocks = 2
        demand_equal("local2", truth.run(model, call.ids)[0], results["local2"].taps)
        for indexer in indexers:
            indexer.local_blocks = 1
    taps, first = results[MASK].taps, int(call.mask.argmax())
    demand_equal("mask", public_masked(model, call.ids, call.mask), taps)
    demand_equal("mask, rows that see a key", public_masked(model, call.ids, call.mask, zero=False), taps,
                 slice(first, None))
    for cuts in ((first - 2,), (call.tokens // 2 - 1,), (7, 22, call.tokens - 1)):
        demand_equal(f"mask, cut at {cuts}", public_masked(model, call.ids, call.mask, cuts=cuts), taps)
    unmasked = public_masked(model, call.ids, call.mask, hidden_columns=False)
    full = {name: value for name, value in unmasked.items() if name.startswith(("layers.0.", "layers.1."))}
    demand_equal("mask, full layers", full, taps)
    rows = results[MASK].rows
    if not formulas.relative_l2(taps["layers.2.out"][rows], unmasked["layers.2.out"][rows]) >= VISIBLE:
        raise judge.Refused("mask: an indexer that ignores it does not show")


# ---- the files

class Call:
    """The model of tiny/, the ids and the mask."""

    def __init__(self, case, seed, out):
        self.folder, self.tokens = os.path.join(out, "tiny", "model"), case.tokens
        if not os.path.exists(self.folder):
            raise judge.Refused("the model of tiny is not there: make tiny first")
        with open(os.path.join(self.folder, "config.json")) as file:
            self.config = json.load(file)
        self.weights = truth.expand(os.path.join(self.folder, "model.safetensors"))
        reserved = (self.config["image_token_index"], self.config["video_token_index"])
        self.ids = synth.token_ids(seed, case.tokens, self.config["text_config"]["vocab_size"], reserved)
        self.mask = np.ones(case.tokens, np.int64)
        self.mask[case.hidden] = 0

    def inputs(self, mask):
        return {"input_ids": self.ids} | ({} if mask is None else {"attention_mask": mask})


class Result:
    """One reading in fp64, judged against its formulas; rows: those that the golden holds."""

    def __init__(self, name, model, call, rows):
        self.name, self.semantics = name, READINGS.get(name, {})
        self.mask, self.rows = call.mask if name == MASK else None, np.array(rows, np.int32)
        with truth.pure_fp64():
            self.taps, weights = run(model, call.ids, self.semantics, self.mask)
        self.check = reading_check.ReadingCheck(call.config, call.weights, self.taps, weights, call.ids,
                                                self.semantics, self.mask)
        self.check.run()
        judge.demand_fp64(self.check, self.taps)
        self.whole, self.ruler = fp32_error.Fp32Error(), fp32_error.Fp32Error()

    def add(self, kind, got):
        """One fp32 run; margins are judged over all rows, because a flip anywhere reaches the rows that are held."""
        choices = {name: value for name, value in self.taps.items() if name.endswith(CHOICES)}
        self.whole.add(kind, got, choices)
        judge.judge_margins(self.check, self.whole, slice(None))
        wanted = {name: value[self.rows] for name, value in choices.items()} | self.held()
        self.ruler.add(kind, {name: got[name][self.rows] for name in wanted}, wanted)

    def held(self):
        patterns = HELD.get(self.name, CHOICE)
        return {name: value[self.rows] for name, value in self.taps.items()
                if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}

    def margins(self):
        return judge.judge_margins(self.check, self.ruler, self.rows)

    def effect(self, other):
        """Least relative L2 of a row of logits against another result, over the rows held here."""
        return min(formulas.relative_l2(self.taps["logits"][row], other.taps["logits"][row]) for row in self.rows)

    def lists(self):
        return np.stack([self.taps[name] for name in sorted(self.taps) if name.endswith("index.blocks")])


def demand_effects(results):
    """Refuses a reading that does not show against the default one or against another reading."""
    default = results[DEFAULT]
    for name in SAME:
        if not (results[name].lists() == default.lists()).all() or results[name].effect(default) != 0:
            raise judge.Refused(f"{name}: the choice is not that of the default reading")
    scores = (results[name].taps["layers.2.index.block_scores"] for name in ("rsqrt", DEFAULT))
    if not formulas.relative_l2(*scores) >= 0.5:
        raise judge.Refused("rsqrt: block scores are not scaled")
    shown = [name for name in results if name not in (DEFAULT, "clamp_both", *SAME)]
    for name in shown:
        rows = results[name].rows
        for other in {DEFAULT, *shown} - {name}:
            got, want = (results[reading].taps["logits"][rows] for reading in (name, other))
            if not formulas.relative_l2(got, want) >= VISIBLE:
                raise judge.Refused(f"{name}: logits are those of {other}")
        if not results[name].effect(default) >= VISIBLE:
            raise judge.Refused(f"{name}: a row that is held is that of the default reading")
    for name, other in (("shared", DEFAULT), ("lse", DEFAULT), ("lse_rsqrt", DEFAULT), ("lse_rsqrt", "lse")):
        got, want = (results[reading].taps["layers.2.index.blocks"] for reading in (name, other))
        if np.array_equal(got[results[name].rows], want[results[name].rows]):
            raise judge.Refused(f"{name}: the lists of layer 2 are those of {other}")


def demand_clamp(result, default, call):
    """Refuses a case in which gates below -limit, of dense, routed and shared experts each, do not show at the rows
    held: against the default reading, and against a tap computed without the lower clamp from its own inputs."""
    upper = reading_check.ReadingCheck(call.config, call.weights, result.taps, result.check.attention_weights, call.ids,
                                       {}, None)
    upper.run()
    for name, value in result.held().items():
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in CLAMPED):
            continue
        shown = formulas.relative_l2(value, default.taps[name][result.rows])
        if not shown >= CLAMP_VISIBLE * result.ruler.worst[name + ".f32_rel_l2"]:
            raise judge.Refused(f"clamp_both: {name} shows less than {CLAMP_VISIBLE} fp32 errors")
        own = name.replace("moe.routed", "moe.expert_out")
        created = formulas.relative_l2(upper.values[own][result.rows], result.taps[own][result.rows])
        if not created >= CLAMP_CREATED:
            raise judge.Refused(f"clamp_both: {name} itself holds no gate below -limit")


def attempt(case, seed, out):
    """(Call, {name: Result}), with the default reading among them."""
    call = Call(case, seed, out)
    model = truth.load(call.folder, torch.float64, "eager", "eager")
    truth.exact_frequencies(model)
    results = {name: Result(name, model, call, rows) for name, rows in case.rows.items()}
    results[DEFAULT] = Result(DEFAULT, model, call, range(case.tokens))
    demand_effects(results)
    demand_public(model, call, results)
    for kind, order, single in fp32_error.fp32_models(call.folder):
        for name in case.rows:
            with fp32_error.summation(order):
                result = results[name]
                result.add(kind, run(single, call.ids, result.semantics, result.mask)[0])
    demand_clamp(results["clamp_both"], results[DEFAULT], call)
    return call, results


def write_dump(path, tensors, metadata=None):
    files.write(path, files.to_bytes({name: files.from_array(value) for name, value in tensors.items()}, metadata))


def write_result(result, call, folder):
    taps = result.held()
    numbers = result.ruler.worst | result.margins()
    numbers = {key: value for key, value in numbers.items() if key.rpartition(".")[0] in taps}
    metadata = judge.metadata(NAME, call.folder, call.inputs(result.mask), numbers,
                              json.dumps(result.semantics, separators=(",", ":")))
    taps |= judge.companions(result.check, taps, result.rows)
    write_dump(os.path.join(folder, result.name + ".safetensors.gz"), taps | {"rows": result.rows}, metadata)


def produce(case, out):
    """Writes golden/readings/; returns {golden: summary}."""
    folder = os.path.join(out, NAME)
    call, results = attempt(case, case.seed, out)
    default = results.pop(DEFAULT)
    shutil.rmtree(folder, ignore_errors=True)
    ids = {"input_ids": call.ids.astype(np.int32)}
    write_dump(os.path.join(folder, "case.safetensors"), ids)
    write_dump(os.path.join(folder, "mask_case.safetensors"), ids | {"attention_mask": call.mask})
    for result in results.values():
        write_result(result, call, folder)
    return {f"{NAME}/{result.name}": summary(result, default) for result in results.values()}


def summary(result, default):
    effects = {f"{tap} against the default": float(formulas.relative_l2(value, default.taps[tap][result.rows]))
               for tap, value in result.held().items() if value.dtype == np.float64 and result.name != MASK}
    return {"fp64_check": max(result.check.errors.values()), "counts": result.check.counts | effects,
            "margins": result.margins(), "logits": result.ruler.worst["logits.f32_rel_l2"]}


def entry(case, dims):
    """What MANIFEST.json says beside the files. dims: those of tiny."""
    return {"case": NAME, "producer": judge.PRODUCER + "; scripts/golden/readings.py", "versions": judge.VERSIONS,
            "seed": case.seed, "command": f"python scripts/golden/make.py {NAME}", "weights": "those of tiny",
            "dims": dims | {"T": case.tokens, "rows": max(map(len, case.rows.values()))}, "rows": case.rows,
            "readings": READINGS, "hidden": case.hidden,
            "covers": case.covers, "cannot_detect": case.cannot_detect}


def search(case, out):
    for seed in range(1, 1000):
        try:
            attempt(case, seed, out)
        except judge.Refused as reason:
            print(f"{NAME}: seed {seed} refused: {reason}", flush=True)
            continue
        return seed
    raise judge.Refused(f"{NAME}: no seed below 1000")

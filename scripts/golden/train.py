"""golden/train/: gradients of parameters and of taps, by autograd of the public code in pure fp64.

What the public code lacks are formulas in PyTorch around it: the modules of multi-token prediction (mtp.py), the loss
of the modules, the alignment loss of the index branch. A second witness moves every tensor along its gradient, in both
directions, and demands the slope that the gradient promises. losses.py adds the losses on drawn operands.
"""

import os
import re
import shutil
import tempfile

import numpy as np
import torch

import files
import judge
import losses
import mtp
import sight
import synth
import truth
import vision

NAME = "train"
IGNORED = -100
LOSSES = ("lm", "mtp", "aux", "kl")
SLOPE = 1e-7                                            # of slopes: relative to the norm of the gradient
MTP_WEIGHT, AUX_WEIGHT = 0.1, 0.001                     # the defaults of public code


# ---- names

def released(name, value):
    """{released name: part} of a parameter of the public class: it joins gate and up, and stacks experts."""
    name = name.replace("vision_tower.layers.", "vision_tower.encoder.layers.")
    for ours, theirs in (("model.language_model.", "language_model.model."),
                         ("lm_head.", "language_model.lm_head."),
                         ("model.vision_tower.embeddings.proj.",
                          "vision_tower.vision_model.embeddings.patch_embedding."),
                         ("model.vision_tower.", "vision_tower.vision_model."),
                         ("model.multi_modal_projector.merge_", "patch_merge_mlp."),
                         ("model.multi_modal_projector.", "multi_modal_projector.")):
        if name.startswith(ours):
            name = theirs + name.removeprefix(ours)
            break
    name = name.replace(".self_attn.indexer.", ".self_attn.index_")
    name = re.sub(r"\.mlp\.(gate\.|experts\.|shared_experts\.)", r".block_sparse_moe.\1", name)
    if name.endswith(".experts.gate_up_proj"):
        stem = name.removesuffix("gate_up_proj")
        return {f"{stem}{e}.{w}.weight": part for e, both in enumerate(value)
                for w, part in zip(("w1", "w3"), both.chunk(2))}
    if name.endswith(".experts.down_proj"):
        stem = name.removesuffix("down_proj")
        return {f"{stem}{e}.w2.weight": part for e, part in enumerate(value)}
    if name.endswith(".gate_up_proj.weight"):
        return dict(zip((name.replace("gate_up_", "gate_"), name.replace("gate_up_", "up_")), value.chunk(2)))
    return {name: value}


def of_module(name):
    """The released name of a tensor of the model of the modules' layers, or None: it is the main model's."""
    found = re.match(r"language_model\.model\.layers\.(\d+)\.(.*)", name)
    return found and f"language_model.model.mtp.layers.{found[1]}.transformer_layer.{found[2]}"


# ---- taps whose gradient is kept

class Kept(sight.PictureRecorder):
    """The taps themselves instead of copies, so that autograd leaves their gradients."""

    def __init__(self, model, pictures=None):
        super().__init__(model, pictures)
        self.kept = {}

    def keep(self, name, value, shape=lambda gradient: gradient):
        if value.requires_grad:
            value.retain_grad()
        self.kept[name] = value, shape

    def save(self, name, value, heads=None):
        def shape(gradient):
            gradient = gradient[0] if gradient.dim() > 2 else gradient
            return gradient.reshape(gradient.shape[0], heads, -1) if heads else gradient
        self.keep(name, value, shape)

    def attach(self):
        super().attach() if self.pictures else truth.Recorder.attach(self)

    def leave(self, number, result):
        pass

    def attach_indexer(self, prefix, number, indexer):
        self.handles.append(indexer.register_forward_pre_hook(lambda m, inputs: (inputs[0].detach(), *inputs[1:])))
        self.out(indexer.q_proj, prefix + "q_proj", indexer.num_heads)
        self.out(indexer.k_proj, prefix + "k_proj")
        self.out(indexer.q_norm, prefix + "q_norm", indexer.num_heads)

        def keys(module, inputs, result):                        # one shared head: [1,T,1,X]
            self.keep(prefix + "k_norm", result, lambda gradient: gradient[0, :, 0])

        def blocks(module, inputs, result):
            self.taps[prefix + "blocks"] = result.detach()[0].transpose(0, 1)

        self.handles.append(indexer.k_norm.register_forward_hook(keys))
        self.handles.append(indexer.register_forward_hook(blocks))

    def attach_moe(self, prefix, number, block):
        def gate(module, inputs, result):
            logits, weights, ids = result
            self.taps[prefix + "router_logits"] = logits
            self.keep(prefix + "moe.router_logits", logits)
            scores = logits.detach().sigmoid() + module.e_score_correction_bias
            ascending, by_id = ids.sort(dim=-1)
            order = scores.gather(1, ascending).sort(dim=-1, descending=True, stable=True).indices
            self.keep(prefix + "moe.weights", weights, lambda gradient: gradient.gather(1, by_id).gather(1, order))

        def routed(module, inputs, result):                      # the hook sees it before the scaling
            self.keep(prefix + "moe.routed", result, lambda gradient: gradient / block.routed_scaling_factor)

        self.handles.append(block.gate.register_forward_hook(gate))
        self.handles.append(block.experts.register_forward_hook(routed))
        self.out(block.shared_experts, prefix + "moe.shared")

    def attach_dense(self, prefix, mlp):
        def halves(module, inputs, result):
            for half, name in enumerate(("gate", "up")):
                self.keep(prefix + name + "+", result, lambda gradient, half=half: gradient[0].chunk(2, dim=-1)[half])

        self.handles.append(mlp.gate_up_proj.register_forward_hook(halves))
        self.into(mlp.down_proj, prefix + "act")

    def rotate(self, original):
        def apply(q, k, cos, sin, **rest):
            results = original(q, k, cos, sin, **rest)
            prefix = f"layers.{self.layer}." + ("index." if self.rotations else "")
            for name, value in zip(("q_rope", "k_rope"), results):
                single = name == "k_rope" and self.rotations
                self.taps[prefix + name] = value[0].transpose(0, 1)
                self.keep(prefix + name, value,
                          lambda gradient, single=single: gradient[0, 0] if single else gradient[0].transpose(0, 1))
            self.rotations += 1
            return results
        return apply

    def run(self, ids, **given):
        """The public result of a pass, hooks removed. ids [B,T]"""
        self.attach()
        original, original_vision = truth.modeling.apply_rotary_pos_emb, truth.modeling.apply_rotary_pos_emb_vision
        truth.modeling.apply_rotary_pos_emb = self.rotate(original)
        if self.pictures:
            truth.modeling.apply_rotary_pos_emb_vision = self.rotate_vision(original_vision)
        try:
            pixels = self.inputs() if self.pictures else {}
            return self.model(input_ids=torch.from_numpy(ids), use_cache=False, **pixels, **given)
        finally:
            truth.modeling.apply_rotary_pos_emb = original
            truth.modeling.apply_rotary_pos_emb_vision = original_vision
            for handle in self.handles:
                handle.remove()
            self.handles = []

    def gradients(self):
        """{tap: gradient} after backward(); a tap that no loss reaches has none."""
        return {name.removesuffix("+"): shape(value.grad).contiguous().numpy()
                for name, (value, shape) in self.kept.items() if value.requires_grad and value.grad is not None}


# ---- losses that the public class does not have

def cross_entropy(logits, targets):
    """Sum over the rows whose target is not ignored. logits [n,V]"""
    logarithms = logits.log_softmax(dim=-1)
    scored = targets != IGNORED
    return -logarithms[scored].gather(1, targets[scored, None]).sum()


def alignment(recorder, text):
    """The KL divergence of the index branch from the main branch, over the attended tokens; a sum over layers."""
    losses = []
    for prefix in [f"layers.{n}." for n in range(text.num_hidden_layers)]:
        if prefix + "index.q_rope" not in recorder.taps:
            continue
        q, k = (recorder.taps[prefix + name].detach() for name in ("q_rope", "k_rope"))
        student_q, student_k = (recorder.taps[prefix + "index." + name] for name in ("q_rope", "k_rope"))
        per_group, groups = q.shape[1] // k.shape[1], k.shape[1]
        taps = {prefix + "q_rope": q, prefix + "index.blocks": recorder.taps[prefix + "index.blocks"]}
        keep = truth.keys_attended(taps, prefix, text.index_block_size, per_group, q.shape[1])
        z = torch.einsum("thd,jhd->thj", q, k.repeat_interleave(per_group, dim=1)) * q.shape[-1] ** -0.5
        teacher = z.masked_fill(~keep, float("-inf")).softmax(dim=-1).unflatten(1, (groups, per_group)).mean(dim=2)
        own = keep[:, ::per_group]
        z = torch.einsum("tgx,jx->tgj", student_q, student_k[:, 0]) * student_q.shape[-1] ** -0.5
        student = z.masked_fill(~own, float("-inf")).log_softmax(dim=-1)
        terms = torch.where(own, teacher * (teacher.clamp(min=1e-300).log() - student.masked_fill(~own, 0)), 0.0)
        losses.append(terms.sum() / (q.shape[0] * groups))
    return losses


def balance(recorder, text):
    """The public router loss, from the router logits of every MoE layer."""
    logits = tuple(value for name, value in recorder.taps.items() if name.endswith(".router_logits"))
    return truth.modeling.load_balancing_loss_func(logits, text.num_local_experts, text.num_experts_per_tok)


# ---- the second witness

def demand_slopes(name, loss, tensors):
    """Refuses gradients that differ from the slope of the loss along them. tensors: {name: parameter with .grad}

    Central differences of two steps, extrapolated, so that what remains is of the fourth order."""
    worst = 0.0
    for tensor, value in tensors.items():
        size = float(value.grad.norm())
        if size == 0:
            continue
        direction, slopes = value.grad / size, []
        for step in (4e-5, 2e-5):
            ends = []
            for sign in (1, -1):
                with torch.no_grad():
                    value += sign * step * direction
                    ends.append(float(loss()))
                    value -= sign * step * direction
            slopes.append((ends[0] - ends[1]) / (2 * step))
        error = abs((4 * slopes[1] - slopes[0]) / 3 - size) / size
        worst = max(worst, error)
        if not error <= SLOPE:
            raise judge.Refused(f"{NAME}/{name}: {tensor}: slope and gradient differ by {error:.1e}")
    return worst


# ---- the files

class Result:
    """The gradients of one case: what its golden holds."""

    def __init__(self, name, case, folder, inputs, losses, weights):
        self.name, self.case, self.folder, self.inputs = name, case, folder, inputs
        self.losses, self.weights, self.tensors, self.slope = losses, weights, {}, 0.0

    def add_parameters(self, parameters, held=lambda name: True):
        """parameters: {public name: parameter}, or released names with tensors"""
        for name, value in parameters.items():
            for own, part in released(name, value.grad).items():
                if held(own):
                    before = self.tensors.get("d.param." + own, 0.0)
                    self.tensors["d.param." + own] = before + part.contiguous().numpy()

    def add_taps(self, gradients, held=lambda name: True, rows=None):
        for name, value in gradients.items():
            if held(name):
                self.tensors["d." + name] = value if rows is None else value[rows]

    def write(self, out):
        folder = os.path.join(out, NAME)
        hashed = {name: value for name, value in self.inputs.items()
                  if name in ("input_ids", "attention_mask", "image_grid_thw")}
        metadata = judge.metadata(NAME, self.folder, hashed, {})
        metadata |= {f"loss.{name}": repr(float(value.detach())) for name, value in self.losses.items()}
        weights = ", ".join(f'"{name}": {self.weights.get(name, 0.0):.17g}' for name in LOSSES)
        metadata["loss_weights"] = "{" + weights + "}"                      # as m3ref writes them
        metadata["holds"] = "part"
        metadata["labels_sha256"] = files.case_sha256({"labels": self.inputs["labels"]})
        mtp.write_dump(os.path.join(folder, self.name + ".safetensors.gz"), self.tensors, metadata)
        inputs = {name: value.astype(np.int32) if name == "input_ids" else value
                  for name, value in self.inputs.items()}
        mtp.write_dump(os.path.join(folder, self.case + ".safetensors"), inputs, None)


def trainable(model, **extra):
    """The parameters that a loss has reached."""
    return {name: value for name, value in [*model.named_parameters(), *extra.items()] if value.grad is not None}


def demand_names(model, weights):
    """Refuses a renaming that does not give every released tensor its own values."""
    for name, value in model.named_parameters():
        for own, part in released(name, value.detach()).items():
            if not np.array_equal(part.numpy(), weights[own].reshape(part.shape)):
                raise judge.Refused(f"{NAME}: {name} is not {own}")


def held_experts(name):
    """Of the routed experts a third: their gradients do not compress."""
    found = re.search(r"layers\.(\d+)\..*\.experts\.(\d+)\.", name)
    return not found or (int(found[1]) + int(found[2])) % 3 == 0


def of_text(case, out):
    """The text case of tiny: the cross-entropy of the public class; and the alignment loss of the index branch."""
    tiny = vision.Model(out)
    model = truth.load(tiny.folder, torch.float64, "eager", "eager")
    truth.exact_frequencies(model)
    demand_names(model, tiny.weights)
    ids, _ = files.read(os.path.join(out, "tiny", "case.safetensors"))
    ids = ids["input_ids"].astype(np.int64)
    labels = ids.copy()
    labels[:case.ignored] = IGNORED
    inputs = {"input_ids": ids, "labels": labels}
    text, results = model.config.text_config, []

    with truth.pure_fp64():
        recorder = Kept(model)
        loss = recorder.run(ids[None], labels=torch.from_numpy(labels)[None]).loss
        loss.backward()
        result = Result("golden", "case", tiny.folder, inputs, {"lm": loss}, {"lm": 1.0})
        result.slope = demand_slopes("golden", lambda: model(input_ids=torch.from_numpy(ids)[None], use_cache=False,
                                                             labels=torch.from_numpy(labels)[None]).loss,
                                     trainable(model))
        result.add_parameters(trainable(model), held_experts)
        result.add_taps(recorder.gradients(), rows=np.array(case.rows))
        result.tensors["rows"] = np.array(case.rows, np.int32)
        results.append(result)

        model.zero_grad()
        recorder = Kept(model)
        recorder.run(ids[None])
        losses = alignment(recorder, text)
        sum(losses).backward()
        result = Result("kl", "case", tiny.folder, inputs, {f"kl.{n}": loss for n, loss in enumerate(losses)} |
                        {"kl": sum(losses)}, {"kl": 1.0})
        result.add_parameters(trainable(model))
        result.add_taps(recorder.gradients())
        results.append(result)
    return results


def of_picture(case, out):
    """A still picture before and among text: tower, projector and scatter."""
    tiny = vision.Model(out)
    model = truth.load(tiny.folder, torch.float64, "eager", "eager")
    truth.exact_frequencies(model)
    call = vision.calls_of(case.picture, case.seed, tiny.config, None)[0]
    labels = np.where(call.ids == tiny.config["image_token_index"], IGNORED, call.ids)
    inputs = call.inputs() | {"labels": labels, "pixel_values": call.pictures.pixels}

    def held(name):
        return name.startswith(("vision_tower.", "multi_modal_projector.", "patch_merge_mlp."))

    with truth.pure_fp64():
        recorder = Kept(model, call.pictures)
        loss = recorder.run(call.ids[None], labels=torch.from_numpy(labels)[None]).loss
        loss.backward()
        result = Result("picture", "picture_case", tiny.folder, inputs, {"lm": loss}, {"lm": 1.0})
        public = {name: value for name, value in trainable(model).items() if "vision" in name or "modal" in name}
        given = recorder.inputs()
        result.slope = demand_slopes("picture", lambda: model(input_ids=torch.from_numpy(call.ids)[None],
                                                              use_cache=False, **given,
                                                              labels=torch.from_numpy(labels)[None]).loss, public)
        result.add_parameters(trainable(model), lambda name: held(name) or "embed_tokens" in name)
        result.add_taps(recorder.gradients(), lambda name: name.startswith(("vision.", "projector.")) or
                        name in ("embed", "fused"))
    return [result]


class Joined:
    """The model of golden/mtp with its modules, and the sum of every loss."""

    def __init__(self, case, folder, temporary):
        self.made = mtp.Model(case, case.seed, folder, temporary)
        demand_names(self.made.main, self.made.weights)
        modules = self.made.modules
        modules.weights = {name: value.clone().requires_grad_() for name, value in modules.weights.items()}
        self.text = self.made.main.config.text_config

    def losses(self, ids, labels, recorder, module_recorder):
        """{loss: value} without their weights, and the sum with them."""
        main, modules, recorded = self.made.main, self.made.modules, {}
        lm = recorder.run(ids[None], labels=torch.from_numpy(labels)[None]).loss
        embedding = main.model.language_model.embed_tokens.weight[torch.from_numpy(ids)]
        module_recorder.attach_layers(modules)
        original = truth.modeling.apply_rotary_pos_emb
        truth.modeling.apply_rotary_pos_emb = module_recorder.rotate(original)
        try:
            modules.forward(embedding, recorder.kept["final_norm"][0][0], mtp.DEFAULT, recorded.__setitem__)
        finally:
            truth.modeling.apply_rotary_pos_emb = original
            for handle in module_recorder.handles:
                handle.remove()
        targets = torch.from_numpy(labels)
        scored = int((targets[1:] != IGNORED).sum())
        each = []
        for module in range(len(modules.layers)):
            ahead = targets[module + 2:]
            each.append(cross_entropy(recorded[f"{module}.logits"][:len(ahead)], ahead) / scored)
        for name, value in recorded.items():
            module_recorder.keep("mtp." + name, value)
        kl, aux = sum(alignment(recorder, self.text)), balance(recorder, self.text)
        values = {"lm": lm, "mtp": sum(each) / len(each), "aux": aux, "kl": kl} | \
            {f"mtp.{module}": value for module, value in enumerate(each)}
        return values, lm + MTP_WEIGHT * values["mtp"] + AUX_WEIGHT * aux + kl


class KeptModules(Kept):
    def attach_layers(self, modules):
        for module, layer in enumerate(modules.layers):
            self.attach_layer(f"layers.{module}.", module, layer, modules.text)

    def gradients(self):
        return {re.sub(r"^layers\.(\d+)\.", r"mtp.\1.layer.", name): value
                for name, value in super().gradients().items()}


def of_modules(case, mtp_case, out):
    """Every loss at once, on the model with modules of multi-token prediction."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as temporary:
        joined = Joined(mtp_case, folder, temporary)
        main, layers = joined.made.main, joined.made.modules.model
        ids = mtp.TextCall(mtp_case, mtp_case.seed, joined.made.config).ids
        labels = ids.copy()
        labels[list(case.holes)] = IGNORED
        with truth.pure_fp64():
            recorder, module_recorder = Kept(main), KeptModules(layers)
            values, total = joined.losses(ids, labels, recorder, module_recorder)
            total.backward()
            result = Result("all", "all_case", os.path.join(out, mtp.NAME, "model"),
                            {"input_ids": ids, "labels": labels}, values,
                            {"lm": 1.0, "mtp": MTP_WEIGHT, "aux": AUX_WEIGHT, "kl": 1.0})
            result.add_parameters(trainable(main))
            result.add_taps(recorder.gradients())
            result.add_taps(module_recorder.gradients())
            for name, value in layers.named_parameters():
                for own, part in released(name, value.grad).items() if value.grad is not None else ():
                    if of_module(own):
                        result.tensors["d.param." + of_module(own)] = part.contiguous().numpy()
                    elif own == "language_model.lm_head.weight":
                        result.tensors["d.param." + own] = result.tensors["d.param." + own] + part.numpy()
            for name, value in joined.made.modules.weights.items():
                if value.grad is not None:
                    result.tensors.setdefault("d.param.language_model.model.mtp.layers." + name, value.grad.numpy())
            demand_witness(result, joined, ids, labels)
    return [result]


def demand_witness(result, joined, ids, labels):
    """Slopes of the whole sum, where no loss is detached: of everything but the index branch, without its loss; lm_head
    is two tensors here, and the index branch has its own file."""
    main, layers = joined.made.main, joined.made.modules.model

    def loss():
        values, _ = joined.losses(ids, labels, Kept(main), KeptModules(layers))
        return values["lm"] + MTP_WEIGHT * values["mtp"] + AUX_WEIGHT * values["aux"]

    outside = {name: value for name, value in trainable(main).items() if "indexer" not in name}
    inside = {name: value for name, value in trainable(layers).items() if "indexer" not in name}
    own = {name: value for name, value in joined.made.modules.weights.items() if value.grad is not None}
    result.slope = max(demand_slopes("all", loss, part) for part in (outside, inside, own))


def of_batch(case, mtp_case, out):
    """Two sequences of different lengths in one batch: the mean is over the tokens of both."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as temporary:
        made = mtp.Model(mtp_case, mtp_case.seed, folder, temporary)
        V, lengths = made.config["text_config"]["vocab_size"], case.lengths
        ids, mask = (np.zeros((len(lengths), max(lengths)), np.int64) for _ in range(2))
        for b, length in enumerate(lengths):
            ids[b, :length] = synth.token_ids(case.seed + b, length, V, mtp.reserved(made.config))
            mask[b, :length] = 1
        labels = np.where(mask == 1, ids, IGNORED)
        labels[0, 3] = IGNORED
        given = {"labels": torch.from_numpy(labels), "attention_mask": torch.from_numpy(mask)}

        def loss():
            return made.main(input_ids=torch.from_numpy(ids), use_cache=False, **given).loss

        with truth.pure_fp64():
            value = loss()
            value.backward()
            inputs = {"input_ids": ids, "attention_mask": mask.astype(np.int32), "labels": labels}
            result = Result("batch", "batch_case", os.path.join(out, mtp.NAME, "model"), inputs, {"lm": value},
                            {"lm": 1.0})
            result.add_parameters(trainable(made.main))
            result.slope = demand_slopes("batch", loss, trainable(made.main))
    return [result]


def produce(case, mtp_case, out):
    """Writes golden/train/; returns {golden: summary}."""
    shutil.rmtree(os.path.join(out, NAME), ignore_errors=True)
    results = of_text(case, out) + of_picture(case, out) + of_modules(case, mtp_case, out) + \
        of_batch(case, mtp_case, out)
    for result in results:
        result.write(out)
    losses.produce(out)
    return {f"{NAME}/{result.name}": result for result in results}


def show(name, result):
    losses = ", ".join(f"{loss} {float(value.detach()):.12g}" for loss, value in result.losses.items())
    print(f"{name}: {len(result.tensors)} gradients, slopes within {result.slope:.1e}; {losses}")


def entry(case, files_of_case):
    return {"case": NAME, "producer": judge.PRODUCER + "; scripts/golden/train.py", "versions": judge.VERSIONS,
            "seed": case.seed, "command": f"python scripts/golden/make.py {NAME}", "weights": None, "dims": {},
            "covers": case.covers, "cannot_detect": case.cannot_detect, "files": files_of_case}

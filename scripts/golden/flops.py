"""FLOPs of the public code, counted by PyTorch's own counter while it runs: a witness for `m3ref estimate`.

FlopCounterMode counts matrix products and convolutions, a multiply and an add each; so no norms, softmax,
activations. Attention and experts are the eager ones. That attention multiplies a sparse layer in full and masks, so
`sparse_attention` is that of a dense layer; and the rotary angles are a product of positions and frequencies, which
stands apart as `rotary`.
"""

import os

import torch
from torch.utils.flop_counter import FlopCounterMode

import files
import judge
import truth

NAME, FILE = "flops", "flops.json"

TEXT = (("tiny", (1, 12, 13, 40)), ("block128", (1, 300)), ("mtp", (7,)))
PREFILLS = (("tiny", 17), ("block128", 130))
PICTURES = ([[1, 4, 6]], [[1, 2, 2], [1, 6, 4]])
VIDEOS = ([[3, 4, 2]], [[9, 2, 4]])

# The end of a module's name, the kind of product (None: all), its component; the first match is used. A module's count
# has those inside it, so only modules that hold no other of the list stand here.
PARTS = (
    (".indexer.q_proj", None, "index_projections"), (".indexer.k_proj", None, "index_projections"),
    (".indexer", "aten.bmm", "index_scores"),
    (".self_attn.q_proj", None, "projections"), (".self_attn.k_proj", None, "projections"),
    (".self_attn.v_proj", None, "projections"), (".self_attn.o_proj", None, "projections"),
    (".self_attn", "aten.bmm", "attention"),
    (".mlp.shared_experts", None, "moe_shared"), (".mlp.experts", None, "moe_routed"),
    (".mlp.gate", None, "moe_router"),
    (".lm_head", None, "lm_head"), (".rotary_emb", None, "rotary"),
)


def counted(run):
    """{module: {kind of product: FLOPs}} of a call."""
    with torch.no_grad(), FlopCounterMode(display=False, depth=None) as counter:
        run()
    return {name: {str(kind): count for kind, count in kinds.items()}
            for name, kinds in counter.get_flop_counts().items()}


def text_parts(counts):
    """FLOPs of a text pass by component; refused if they do not add up to what PyTorch counts in all."""
    parts = dict.fromkeys(("full_attention", "sparse_attention", "index_scores", "projections", "index_projections",
                           "dense_mlp", "moe_shared", "moe_routed", "moe_router", "lm_head", "rotary"), 0)
    for module, kinds in counts.items():
        for end, kind, part in PARTS:
            if not module.endswith(end):
                continue
            flops = sum(kinds.values()) if kind is None else kinds.get(kind, 0)
            if part == "attention":
                index = counts.get(module + ".indexer")
                part = "sparse_attention" if index else "full_attention"
                flops -= index["aten.bmm"] if index else 0
            parts[part] += flops
            break
        if module.endswith(".mlp") and module + ".gate" not in counts:
            parts["dense_mlp"] += sum(kinds.values())
    return checked(parts, counts)


def picture_parts(counts):
    tower, projector = counts["MiniMaxM3VLVisionModel"], counts["MiniMaxM3VLMultiModalProjector"]
    return checked({"patch_embed": tower["aten.convolution"], "linears": tower["aten.addmm"],
                    "attention": tower["aten.bmm"], "projector": sum(projector.values())}, counts)


def checked(parts, counts):
    total = sum(counts["Global"].values())
    if sum(parts.values()) != total:
        raise judge.Refused(f"flops: parts add up to {sum(parts.values())}, PyTorch counts {total}")
    return parts | {"total": total}


def decode(model, context):
    """One token that sees `context` places, itself included."""
    cache = None
    if context > 1:
        with torch.no_grad():
            cache = model(input_ids=torch.ones(1, context - 1, dtype=torch.long), use_cache=True).past_key_values
    return text_parts(counted(lambda: model(input_ids=torch.ones(1, 1, dtype=torch.long), past_key_values=cache,
                                            use_cache=True)))


def prefill(model, tokens):
    """All logits, the whole square of every attention."""
    return text_parts(counted(lambda: model(input_ids=torch.ones(1, tokens, dtype=torch.long))))


def pictures(features, grids):
    patches = sum(t * h * w for t, h, w in grids)
    return picture_parts(counted(lambda: features(torch.zeros(patches, 1176), torch.tensor(grids))))


def produce(out):
    """Writes flops.json; the models are in `out`."""
    models = {name: truth.load(os.path.join(out, name, "model"), torch.float32, "eager", "eager")
              for name, _ in TEXT}
    tiny = models["tiny"].model
    files.write_json(os.path.join(out, FILE), {
        "decode": [{"model": name, "context": context, "flops": decode(models[name], context)}
                   for name, contexts in TEXT for context in contexts],
        "prefill": [{"model": name, "context": tokens, "flops": prefill(models[name], tokens)}
                    for name, tokens in PREFILLS],
        "pictures": [{"model": "tiny", "grids": grids, "flops": pictures(features, grids)}
                     for features, cases in ((tiny.get_image_features, PICTURES), (tiny.get_video_features, VIDEOS))
                     for grids in cases],
    })


def entry():
    """What MANIFEST.json says beside the file."""
    return {"case": NAME, "producer": judge.PRODUCER, "versions": judge.VERSIONS, "seed": None,
            "command": f"python scripts/golden/make.py {NAME}", "weights": None, "dims": {},
            "covers": "matrix products of decoding, prefill and pictures, by component",
            "cannot_detect": "that sparse attention leaves keys out: the public eager path multiplies all and masks"}

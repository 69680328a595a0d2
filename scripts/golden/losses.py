"""golden/train/index_loss.safetensors.gz, balance.safetensors.gz: losses on drawn operands, by autograd in fp64.

Formulas of the MSA paper (arXiv 2606.13392v2, section 3.2) and of the readings that other sources have, in PyTorch; and
the balance loss of NeMo Automodel's Gate. Nothing of m3ref. A second witness, central differences, must agree.
"""

import os

import torch

import files

FOLDER = "train"
T, G, R, D, X, BLOCK, N = 40, 2, 4, 8, 8, 4, 3
SEED = 0
SLOPE = 1e-8                                            # of a directional derivative, relative to the norm

PAPER = {"phase": "sparse", "teacher": "prob", "norm": "support", "over": "tokens", "direction": "forward",
         "scale": "rsqrt", "tau": 1.0, "count": "rows_groups", "rows": T, "eps": 0.0, "tokens": T, "valid": T}
CASES = {
    "warmup": {"phase": "warmup"},
    "sparse": {},
    "logit": {"teacher": "logit"},
    "all": {"teacher": "all"},
    "cut": {"norm": "cut"},
    "cutnorm": {"norm": "cutnorm"},
    "logit_cut": {"teacher": "logit", "norm": "cut"},
    "blocks": {"over": "blocks"},
    "warmup_blocks": {"over": "blocks", "phase": "warmup"},
    "cut_blocks": {"norm": "cut", "over": "blocks"},
    "reverse": {"direction": "reverse"},
    "warmup_reverse": {"direction": "reverse", "phase": "warmup"},
    "scale_1": {"scale": "1"},
    "tau_2": {"tau": 2.0},
    "rows": {"count": "rows"},
    "eps": {"eps": 1e-10},
    "large_eps": {"eps": 1e-2},
    "reverse_eps": {"direction": "reverse", "eps": 1e-2},
    "valid_30": {"valid": 30, "rows": 30},
    "valid_30_of_40": {"valid": 30, "rows": 40},
    "tokens_8": {"tokens": 8, "rows": 8},
    "tokens_12": {"tokens": 12, "rows": 12},
    "tokens_13": {"tokens": 13, "rows": 13},
}


def operands():
    """q [T,G R,D], k [T,G,D] of the main branch; q' [T,G,X], k' [T,X] of the index branch."""
    torch.manual_seed(SEED)
    q, k, index_q, index_k = (torch.randn(shape, dtype=torch.float64)
                              for shape in ((T, G * R, D), (T, G, D), (T, G, X), (T, X)))
    return q, k, index_q, index_k


def chosen_blocks(index_q, index_k):
    """[T,G,N]: the own block and the N - 1 others with the largest key, ascending, then -1."""
    scores = torch.einsum("tgx,jx->tgj", index_q, index_k)
    blocks = torch.full((T, G, N), -1, dtype=torch.int32)
    for t in range(T):
        for g in range(G):
            own = t // BLOCK
            largest = {b: scores[t, g, b * BLOCK:min((b + 1) * BLOCK, t + 1)].max() for b in range(own)}
            kept = sorted([*sorted(largest, key=lambda b: -largest[b])[:N - 1], own])
            blocks[t, g, :len(kept)] = torch.tensor(kept)
    return blocks


def row_teacher(logits, chosen, how):
    """P over the chosen keys. logits [heads,n] of all keys of the row; chosen [n] bool"""
    if how["teacher"] == "logit":
        logits = logits.mean(dim=0, keepdim=True)
    if how["norm"] == "support":
        return logits[:, chosen].softmax(dim=-1).mean(dim=0)
    p = logits.softmax(dim=-1).mean(dim=0)[chosen]
    return p / p.sum() if how["norm"] == "cutnorm" else p


def row_loss(p, z, keys, how):
    """The divergence of P from the student's softmax."""
    if how["over"] == "blocks":
        own = [keys // BLOCK == b for b in sorted(set((keys // BLOCK).tolist()))]
        p, z = torch.stack([p[b].sum() for b in own]), torch.stack([z[b].max() for b in own])
    student, eps = z.softmax(dim=-1), how["eps"]
    log_p, log_student = (p + eps).log(), (student + eps).log() if eps else z.log_softmax(dim=-1)
    if how["direction"] == "forward":
        return (p * (log_p - log_student)).sum()
    return (student * (log_student - log_p)).sum()


def index_loss(q, k, index_q, index_k, blocks, how):
    total = torch.zeros((), dtype=torch.float64)
    scale = (X ** -0.5 if how["scale"] == "rsqrt" else 1.0) / how["tau"]
    for t in range(min(how["tokens"], how["valid"])):
        for g in range(G):
            heads = range(G * R) if how["teacher"] == "all" else range(g * R, (g + 1) * R)
            logits = torch.stack([k[:t + 1, h // R] @ q[t, h] for h in heads]) * D ** -0.5
            keys = torch.arange(t + 1)
            chosen = torch.isin(keys // BLOCK, blocks[t, g]) if how["phase"] == "sparse" else keys >= 0
            p = row_teacher(logits, chosen, how).detach()
            total = total + row_loss(p, index_k[:t + 1][chosen] @ index_q[t, g] * scale, keys[chosen], how)
    return total / (how["rows"] * (G if how["count"] == "rows_groups" else 1))


def demand_slope(name, loss, operand):
    """Central differences along the gradient and along a drawn direction."""
    for direction in (operand.grad / operand.grad.norm(), torch.randn_like(operand)):
        ends = []
        for step in (1e-4, -1e-4, 5e-5, -5e-5):
            with torch.no_grad():
                operand += step * direction
                ends.append(float(loss()))
                operand -= step * direction
        slopes = (ends[0] - ends[1]) / 2e-4, (ends[2] - ends[3]) / 1e-4
        want = float((operand.grad * direction).sum())
        error = abs((4 * slopes[1] - slopes[0]) / 3 - want) / float(operand.grad.norm() * direction.norm())
        if not error <= SLOPE:
            raise ValueError(f"{FOLDER}: {name}: slope and gradient differ by {error:.1e}")


def write(path, tensors, metadata):
    files.write(path, files.to_bytes({name: files.from_array(value) for name, value in tensors.items()}, metadata))


def of_index_branch(out):
    q, k, index_q, index_k = operands()
    blocks = chosen_blocks(index_q, index_k)
    tensors = {"q": q, "k": k, "index_q": index_q, "index_k": index_k, "blocks": blocks}
    tensors = {name: value.numpy().copy() for name, value in tensors.items()}
    metadata = {"producer": "scripts/golden/losses.py", "torch": torch.__version__.split("+")[0], "seed": str(SEED)}
    for name, reading in CASES.items():
        how = PAPER | reading
        student = [value.clone().requires_grad_() for value in (index_q, index_k)]

        def loss():
            return index_loss(q, k, *student, blocks, how)

        value = loss()
        value.backward()
        for operand in student:
            demand_slope(name, loss, operand)
        metadata[f"loss.{name}"] = repr(float(value.detach()))
        rows = how["tokens"]
        tensors |= {f"{name}.dq": student[0].grad[:rows].numpy(), f"{name}.dk": student[1].grad[:rows].numpy()}
        print(f"{FOLDER}/index_loss: {name} {float(value.detach()):.12f}, norms {float(student[0].grad.norm()):.12f} "
              f"{float(student[1].grad.norm()):.12f}")
    write(os.path.join(out, FOLDER, "index_loss.safetensors.gz"), tensors, metadata)


# ---- the router

E, K, ROWS, PADDED = 6, 2, 23, 5


def balance_sigmoid(logits, bias, rows):
    """NeMo Automodel 0.7.0, Gate: E load / (K n) against the mean of scores divided by their sum over all experts."""
    scores = logits[rows].sigmoid()
    ids = (scores + bias).topk(K, dim=-1).indices
    load = torch.zeros(E, dtype=torch.float64).scatter_add_(0, ids.flatten(), torch.ones(ids.numel(), dtype=torch.float64))
    p = scores / scores.sum(dim=-1, keepdim=True)
    return (E * load / (K * len(rows)) * p.mean(dim=0)).sum()


def balance_softmax(logits, rows):
    """transformers, load_balancing_loss_func, of the rows of all layers together."""
    p = logits[rows].softmax(dim=-1)
    chosen = torch.nn.functional.one_hot(p.topk(K, dim=-1).indices, E).to(torch.float64).sum(dim=1)
    return E * (chosen.mean(dim=0).detach() * p.mean(dim=0)).sum()


def of_router(out):
    torch.manual_seed(SEED + 1)
    logits = torch.randn((ROWS, E), dtype=torch.float64)
    bias = torch.randn(E, dtype=torch.float64) * 0.2
    tensors, metadata = {"logits": logits.numpy(), "bias": bias.numpy()}, {"producer": "scripts/golden/losses.py"}
    ids = (logits.sigmoid() + bias).topk(K, dim=-1).indices
    tensors["ids"] = ids.to(torch.int32).numpy()
    for name, rows in (("every", list(range(ROWS))), ("valid", list(range(ROWS - PADDED)))):
        for kind, formula in (("sigmoid", lambda l: balance_sigmoid(l, bias, rows)),
                              ("softmax", lambda l: balance_softmax(l, rows))):
            own = logits.clone().requires_grad_()
            value = formula(own)
            value.backward()
            demand_slope(kind, lambda: formula(own), own)
            metadata[f"loss.{kind}.{name}"] = repr(float(value.detach()))
            tensors[f"{kind}.{name}.dl"] = own.grad.numpy()
            print(f"{FOLDER}/balance: {kind}, {name} rows: {float(value.detach()):.12f}")
    write(os.path.join(out, FOLDER, "balance.safetensors.gz"), tensors, metadata)


def produce(out):
    of_index_branch(out)
    of_router(out)


if __name__ == "__main__":
    produce("golden")

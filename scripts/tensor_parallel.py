"""Products in N parts, as tensor-parallel engines compute them: each rank multiplies its own columns of the matrix and
rounds, and the ranks' results are added.

    ring           the running sum is rounded at each rank; part c of the output starts at rank c + 1
    one_shot       all ranks' results are added in float, and the sum is rounded
    rank_order     they are added one by one from rank 0, and every sum is rounded
"""

import torch
from torch.nn.functional import linear

REDUCES = ("ring", "one_shot", "rank_order")
CUT = ("o_proj", "down_proj")           # of the text layers; experts: their second product


def in_order(parts):
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def product(x, weight, ranks, reduce):
    """linear(x, weight) of tensors in bf16; a width that the ranks do not divide is cut by torch.chunk."""
    parts = [linear(a, b) for a, b in zip(x.chunk(ranks, -1), weight.chunk(ranks, -1), strict=True)]
    if reduce == "one_shot":
        return in_order([part.float() for part in parts]).to(x.dtype)
    if reduce == "rank_order":
        return in_order(parts)
    pieces = [part.chunk(ranks, -1) for part in parts]
    count = len(parts)
    return torch.cat([in_order([pieces[(c + 1 + k) % count][c] for k in range(count)])
                      for c in range(len(pieces[0]))], -1)


def cut_modules(model, ranks, reduce):
    """Replaces o_proj and down_proj of the text layers."""
    for name, module in model.model.language_model.named_modules():
        if name.endswith(CUT) and isinstance(module, torch.nn.Linear):
            module.forward = lambda x, module=module: product(x, module.weight, ranks, reduce)

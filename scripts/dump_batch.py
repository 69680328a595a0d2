"""Runs the public PyTorch model on a case of several sequences, and writes what its modules give, under their own names.

    python scripts/dump_batch.py MODEL CASE OUT [--mistake MISTAKE]
    m3ref check MODEL OUT --case CASE --map transformers

A padded case, input_ids [B,S] with attention_mask, is one call. With padding before the tokens the public indexer lets
padding win blocks, and compares slots with positions; its comment says so. Here it compares slots with slots, and hides
padding, as that comment asks for: the blocks are then anchored to slots (block_anchor=slot).
A packed case, input_ids [T] with cu_seqlens, is one call for each sequence, joined afterwards.

Mistakes: pad_in_block, padding counts in the scores of blocks; leak, a packed case is one call, in which sequences see
those before them; positions, the positions of a packed case are not reset.
"""

import argparse
import types

import torch
from safetensors.torch import load_file, save_file

import dump_transformers
from dump_transformers import files, modeling, truth

MISTAKES = ("pad_in_block", "leak", "positions")


def by_slots(indexer, hidden, angles, past, positions, mask, counts_padding):
    """The indexer's forward with slots in place of positions; mask [B,S]: 0 hides a key. Positions only turn RoPE."""
    batch, length, _ = hidden.shape
    q = indexer.q_norm(indexer.q_proj(hidden).view(batch, length, -1, indexer.head_dim)).transpose(1, 2)
    k = indexer.k_norm(indexer.k_proj(hidden).view(batch, length, 1, indexer.head_dim)).transpose(1, 2)
    cos, sin = angles
    q, k = modeling.apply_rotary_pos_emb(q, k, cos[..., :indexer.head_dim], sin[..., :indexer.head_dim])
    scores = torch.matmul(q.float(), k.float().transpose(-1, -2))
    slots = torch.arange(length)
    scores = scores.masked_fill(slots[None, :] > slots[:, None], float("-inf"))
    if not counts_padding:
        scores = scores.masked_fill(mask[:, None, None, :] == 0, float("-inf"))
    blocks = -(-length // indexer.block_size)
    scores = torch.nn.functional.pad(scores, (0, blocks * indexer.block_size - length), value=float("-inf"))
    scores = scores.view(batch, indexer.num_heads, length, blocks, indexer.block_size).amax(dim=-1)
    for local in range(indexer.local_blocks):
        own = (slots // indexer.block_size - local).clamp(min=0)
        scores.scatter_(-1, own[None, None, :, None].expand(batch, indexer.num_heads, length, 1), float("inf"))
    best, ids = scores.topk(min(indexer.topk_blocks, blocks), dim=-1)
    return ids.masked_fill(best == float("-inf"), -1)


def use_slots(model, mask, counts_padding):
    for module in model.modules():
        if isinstance(module, modeling.MiniMaxM3VLIndexer):
            module.forward = types.MethodType(
                lambda self, hidden, angles, past, positions: by_slots(self, hidden, angles, past, positions, mask,
                                                                       counts_padding), module)


def padded(model, case, mistake):
    ids = case["input_ids"].long()
    mask = case.get("attention_mask", torch.ones_like(ids)).long()
    if not mask[:, 0].all():
        use_slots(model, mask, mistake == "pad_in_block")
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    return dump_transformers.run(model, {"input_ids": ids, "attention_mask": mask, "position_ids": positions})


def joined(parts, lengths):
    """Tensors of sequences, one after another along their tokens; lists and scores of blocks as wide as the widest."""
    out = {}
    for name in parts[0]:
        values = [part[name] for part in parts]
        axis = next(a for a in range(values[0].dim())
                    if all(value.shape[a] == length for value, length in zip(values, lengths, strict=True)))
        widest = max(value.shape[-1] for value in values)
        fill = float("-inf") if values[0].is_floating_point() else -1
        out[name] = torch.cat([torch.nn.functional.pad(value, (0, widest - value.shape[-1]), value=fill)
                               for value in values], dim=axis)
    return out


def packed(model, case, mistake):
    ids, ends = case["input_ids"].long().reshape(1, -1), case["cu_seqlens"].tolist()
    lengths = [end - begin for begin, end in zip(ends, ends[1:], strict=False)]
    if mistake == "leak":
        positions = torch.cat([torch.arange(length) for length in lengths])[None]
        use_slots(model, torch.ones_like(ids), False)
        return dump_transformers.run(model, {"input_ids": ids, "position_ids": positions,
                                             "attention_mask": torch.ones_like(ids)})
    parts = []
    for begin, end in zip(ends, ends[1:], strict=False):
        given = {"input_ids": ids[:, begin:end]}
        if mistake == "positions":
            use_slots(model, torch.ones_like(given["input_ids"]), False)
            given |= {"position_ids": torch.arange(begin, end)[None], "attention_mask": torch.ones(1, end - begin).long()}
        parts.append(dump_transformers.run(model, given))
    return joined(parts, lengths)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("case")
    parser.add_argument("out")
    parser.add_argument("--mistake", choices=MISTAKES)
    arguments = parser.parse_args()
    case = load_file(arguments.case)
    model = truth.load(arguments.model, torch.float32, "eager", "eager")
    give = packed if "cu_seqlens" in case else padded
    tensors = give(model, case, arguments.mistake)
    save_file({name: value.contiguous() for name, value in tensors.items()}, arguments.out, metadata={
        "producer": f"transformers {truth.transformers.__version__}, torch {torch.__version__}",
        "options": f"several sequences, mistake {arguments.mistake}",
        "model_sha256": files.model_sha256(arguments.model),
        "case_sha256": files.case_sha256({name: value.numpy() for name, value in case.items()})})


if __name__ == "__main__":
    main()

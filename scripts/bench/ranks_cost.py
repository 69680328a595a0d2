"""What ranks send each other in one pass, on paper: the table of ref/ranks/README.md, and the check of its formulas.

usage: ranks_cost.py CONFIG [--tokens T]                  bytes of a layer on 2, 16 and 64 ranks, as a table
       ranks_cost.py CONFIG --dump D --ranks N            bytes of the pass that wrote the dump D of all rows
"""
import argparse
import json
import struct
from fractions import Fraction

TURN = 2048  # rows of each rank whose experts are computed at a time (model/divided/experts.c)
SENT = ("keys", "tokens", "results")


def chunks(tokens, ranks):
    """Rows of the 2 N chunks, and the rank that has each (ranks/division.h)."""
    cuts = [tokens * c // (2 * ranks) for c in range(2 * ranks + 1)]
    owner = [min(c, 2 * ranks - 1 - c) for c in range(2 * ranks)]
    return [b - a for a, b in zip(cuts, cuts[1:])], owner


def rows_of_keys(tokens, ranks):
    """A rank gets every chunk before its last one that it does not have."""
    rows, owner = chunks(tokens, ranks)
    return sum(rows[c] for r in range(ranks) for c in range(2 * ranks - 1 - r) if owner[c] != r)


def turns(tokens, ranks):
    rows, owner = chunks(tokens, ranks)
    most = max(sum(n for n, r in zip(rows, owner) if r == rank) for rank in range(ranks))
    return -(-most // TURN)


def layer_bytes(tokens, ranks, kv, index, hidden, slots, real):
    """kv: numbers of a key and a value; slots: experts of rows that are on another rank."""
    counts = turns(tokens, ranks) * ranks * (ranks - 1) * 8 if slots is not None else 0
    slots = slots or 0
    return {
        "keys": rows_of_keys(tokens, ranks) * (kv + index) * real,
        "tokens": slots * (hidden * real + 4) + counts,
        "results": slots * hidden * real,
    }


def remote_slots(experts, tokens, ranks, count):
    """experts [T][K] as chosen; expert e is on rank r if floor(E r / N) <= e < floor(E (r + 1) / N)."""
    rows, owner = chunks(tokens, ranks)
    row_rank = [rank for n, rank in zip(rows, owner) for _ in range(n)]
    expert_rank = [next(r for r in range(ranks) if e < count * (r + 1) // ranks) for e in range(count)]
    return sum(expert_rank[e] != row_rank[t] for t, row in enumerate(experts) for e in row)


def read_dump(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        body = file.read()
    return header, body


def of_dump(path, config, ranks):
    header, body = read_dump(path)
    total = dict.fromkeys(SENT, 0)
    tokens = header["embed"]["shape"][0]
    for name, k in header.items():
        if not name.endswith(".k_rope") or ".index." in name or name.startswith("vision."):
            continue
        layer = name[: -len("k_rope")]
        rows, groups, dim = k["shape"]
        if rows != tokens:
            raise SystemExit(f"{path}: {name}: a module's rows are fewer; expected a model without modules")
        index = header.get(layer + "index.k_rope")
        chosen = header.get(layer + "moe.experts")
        slots = None
        if chosen:
            first, end = chosen["data_offsets"]
            ids = struct.unpack(f"<{(end - first) // 4}i", body[first:end])
            width = chosen["shape"][1]
            table = [ids[t * width : (t + 1) * width] for t in range(rows)]
            slots = remote_slots(table, rows, ranks, config["num_local_experts"])
        hidden = header[layer + "out"]["shape"][1]
        sent = layer_bytes(rows, ranks, 2 * groups * dim, index["shape"][1] if index else 0, hidden, slots,
                           8 if k["dtype"] == "F64" else 4)
        total = {kind: total[kind] + sent[kind] for kind in SENT}
    print(" ".join(f"{total[kind]} {kind}" for kind in SENT))


def imbalance(tokens, ranks, constant, slope):
    """The work of the busiest of equal runs of rows, over the mean; a row costs constant + slope * place."""
    mean = constant + slope * tokens / 2
    return (constant + slope * tokens * (1 - 1 / (2 * ranks))) / mean


def table(config, tokens):
    kv = 2 * config["num_key_value_heads"] * config["head_dim"]
    sparse = config["sparse_attention_config"]
    hidden, per_token = config["hidden_size"], config["num_experts_per_tok"]
    print("| ranks | keys: sparse layer | full layer | tokens | results | received by a rank, sparse layer |")
    print("|---|---|---|---|---|---|")
    for ranks in (2, 16, 64):
        slots = int(Fraction(tokens * per_token) * (ranks - 1) / ranks)
        sent = layer_bytes(tokens, ranks, kv, sparse["sparse_index_dim"], hidden, slots, 4)
        full = layer_bytes(tokens, ranks, kv, 0, hidden, None, 4)
        one = sum(sent.values()) / ranks
        print(f"| {ranks} | {sent['keys'] / 1e9:.1f} GB | {full['keys'] / 1e9:.1f} GB | {sent['tokens'] / 1e9:.1f} GB "
              f"| {sent['results'] / 1e9:.1f} GB | {one / 1e9:.2f} GB |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--dump")
    parser.add_argument("--ranks", type=int)
    args = parser.parse_args()
    with open(args.config, encoding="utf-8") as file:
        config = json.load(file)
    config = config.get("text_config", config)
    if args.dump:
        of_dump(args.dump, config, args.ranks)
    else:
        table(config, args.tokens)


if __name__ == "__main__":
    main()

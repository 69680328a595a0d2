"""Dumps of modules under their own names, and the map that is found for them."""
import pathlib
import subprocess

import numpy as np
import pytest

import m3ref
from test_model import GOLDEN, IDS, TINY

CASE = GOLDEN / "tiny" / "case.safetensors"


# ---- modules with torch's hooks, so that no torch is needed

class Module:
    def __init__(self, run=None, **children):
        self.run, self.children, self.before, self.after = run, children, [], []
        for name, child in children.items():
            setattr(self, name, child)

    def named_modules(self, prefix=""):
        yield prefix, self
        for name, child in self.children.items():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    class Handle:
        def __init__(self, hooks, hook):
            self.hooks, self.hook = hooks, hook
            hooks.append(hook)

        def remove(self):
            self.hooks.remove(self.hook)

    def register_forward_pre_hook(self, hook, with_kwargs):
        return self.Handle(self.before, hook)

    def register_forward_hook(self, hook):
        return self.Handle(self.after, hook)

    def __call__(self, *inputs, **keywords):
        for hook in self.before:
            hook(self, inputs, keywords)
        result = self.run(self, *inputs, **keywords)
        for hook in self.after:
            hook(self, inputs, result)
        return result


def model():
    """Two layers over [B,S] ids: a table, and a tuple of heads in front of tokens and the rest."""
    table = np.arange(400, dtype=np.float16).reshape(100, 4)
    embed = Module(lambda self, ids: table[ids])
    heads = Module(lambda self, x: (np.stack([x, -x], 1), x + 1))
    head = Module(lambda self, x: x[:, -1] * 2)

    def run(self, ids, **keywords):
        x = self.embed(ids)
        for layer in (self.l0, self.l1):
            x = layer(x)[1]
        return self.head(x)
    layers = [Module(lambda self, x: self.heads(x), heads=Module(heads.run)) for _ in range(2)]
    return Module(run, embed=embed, l0=layers[0], l1=layers[1], head=head)


def test_a_padded_batch_and_its_decode_steps(tmp_path):
    path = tmp_path / "d.safetensors"
    m = model()
    ids = np.array([[7, 8, 9], [0, 5, 6]])
    with m3ref.capture(m, path, names=["embed", "l*", "head"], inputs="l1") as dump:
        dump.step([[0, 1, 2], [-1, 0, 1]])
        m(ids)
        dump.step([[3], [2]])
        m(np.array([[10], [11]]))
    got = m3ref.load(path)
    assert got["rows"].tolist() == [0, 1, 2, 0, 1, 3, 2]
    assert got["sequences"].tolist() == [0, 0, 0, 1, 1, 0, 1]
    assert got["embed"][:, 0].tolist() == [4 * i for i in (7, 8, 9, 5, 6, 10, 11)] and got["embed"].dtype == np.float16
    assert got["l0.heads.0"].shape == (7, 2, 4)                     # [B,heads,S,4], rows in front
    assert np.array_equal(got["l0.heads.0"][:, 1], -got["embed"]) and np.array_equal(got["l1.in"], got["l0.1"])
    assert got["head"].shape == (2, 4) and np.array_equal(got["head"], 2 * (got["embed"][5:] + 2))
    assert not m.before and not m.after


def test_steps_of_one_row_have_the_same_form(tmp_path):
    path, m = tmp_path / "d.safetensors", model()
    flat = Module(lambda self, x: x.reshape(-1, x.shape[-1]))
    m.l1.run, m.l1.children = lambda self, x: (m.flat(x), x), {}
    m.flat = m.children["flat"] = flat
    with m3ref.capture(m, path, names=["l0.heads", "flat"]) as dump:
        for row in (0, 3):
            count = 3 if row == 0 else 1
            dump.step(rows=range(row, row + count), tokens=[5 + row] * count)
            m(np.arange(row, row + count)[None])
    got = m3ref.load(path)
    assert got["flat"].shape == (4, 4) and got["l0.heads.0"].shape == (4, 2, 4) and not dump.notes
    assert np.array_equal(got["l0.heads.0"][:, 0] + 1, got["flat"])
    assert got["rows"].tolist() == [0, 1, 2, 3] and got["tokens"].tolist() == [5, 5, 5, 8]


def test_rows_that_a_pass_names_itself(tmp_path):
    path, m = tmp_path / "d.safetensors", model()
    with m3ref.capture(m, path, names="embed") as dump:
        m(np.array([[7, 8]]), position_ids=np.array([[0, 1]]))
        m(np.array([[9]]), position_ids=np.array([[2]]))
    assert m3ref.load(path)["rows"].tolist() == [0, 1, 2] and "sequences" not in m3ref.load(path) and not dump.notes
    with m3ref.capture(m, path, names="embed"):
        m(np.array([[7, 8]]))
        m(np.array([[9, 4]]))                                       # the next rows of the sequence
    assert m3ref.load(path)["rows"].tolist() == [0, 1, 2, 3]
    with m3ref.capture(m, path, names="embed"):
        m(np.array([[0, 8, 3], [7, 4, 5]]), attention_mask=np.array([[0, 1, 1], [1, 1, 1]]))
    assert m3ref.load(path)["rows"].tolist() == [0, 1, 0, 1, 2]


def test_what_is_left_out_is_said(tmp_path):
    path, m = tmp_path / "d.safetensors", model()
    m.l0.run = lambda self, x: (self.heads(x), self.heads(x))[1]
    m.l1.run = lambda self, x: (x[:, :0], x)
    with m3ref.capture(m, path, names=["l*", "no_such"], rank=1) as dump:
        m(np.array([[7, 8, 9]]))
    assert dump.path == str(path / "rank.1.safetensors") and "l0.heads.1" in m3ref.load(dump.path)
    assert any("no module is called no_such" in note for note in dump.notes)
    assert any("l0.heads.1: called more than once" in note for note in dump.notes)
    assert any("l1.0: left out: got [1, 0, 4], expected 3 rows" in note for note in dump.notes)


@pytest.mark.parametrize("rows,sequences,says", [
    ([0.5], None, "rows: got float64 [1], expected whole numbers"), ([[[0]]], None, "rows: got int64 [1, 1, 1]"),
    ([0, 1], [0, 1, 2], "sequences: got [3], expected [2], as there are rows")])
def test_bad_steps(tmp_path, rows, sequences, says):
    with pytest.raises(ValueError) as why, m3ref.capture(model(), tmp_path / "d.safetensors") as dump:
        dump.step(rows, sequences)
    assert says in str(why.value) and not list(tmp_path.iterdir())


def test_nothing_captured(tmp_path):
    with pytest.raises(ValueError, match="nothing was captured: no module is called other"):
        with m3ref.capture(model(), tmp_path / "d.safetensors", names="other"):
            pass


# ---- the map

@pytest.fixture(scope="module")
def taps():
    return m3ref.run(TINY, case=CASE)


def own_names(taps):
    """The taps as another program might hold them."""
    mine, layers = {"wte": taps["embed"], "unembed": taps["logits"]}, range(5)
    for l in layers:
        get = lambda name: taps[f"layers.{l}.{name}"]                               # noqa: E731
        flat = lambda name: get(name).reshape(len(get(name)), -1)                   # noqa: E731
        mine[f"h.{l}.ln"] = get("attn_norm")[None]
        mine[f"h.{l}.qkv"] = np.concatenate([flat("q_proj"), flat("k_proj"), flat("v_proj")], 1)
        mine[f"h.{l}.rot"] = np.moveaxis(get("q_rope"), 0, 1)
        half = get("k_rope").shape[-1] // 2
        k = get("k_rope")
        mine[f"h.{l}.krot"] = np.stack([k[..., :half], k[..., half:]], -1).reshape(k.shape)     # in pairs
        mine[f"h.{l}.o"], mine[f"h.{l}.add"] = get("attn_out"), taps[f"layers.{l - 1}.out"] if l else taps["fused"]
        if f"layers.{l}.moe.weights" in taps:
            mine[f"h.{l}.pick.0"] = get("moe.experts")[:, ::-1].astype(np.int64)
            mine[f"h.{l}.pick.1"] = get("moe.weights")[:, ::-1] * 2
        else:
            both = np.stack([get("mlp.gate"), get("mlp.up")], -1)
            mine[f"h.{l}.gu"] = both.reshape(len(both), -1)                         # every second
        mine[f"h.{l}.mystery"] = np.full_like(get("mlp_norm"), 3)
    return mine


def check(path, map, arguments=()):
    return subprocess.run([m3ref.program(), "check", TINY, path, "--case", CASE, "--map", map, *arguments],
                          capture_output=True, text=True)


def test_a_map_is_found(taps, tmp_path):
    mine = own_names(taps)
    m3ref.save(tmp_path / "d.safetensors", mine)
    found = m3ref.propose_map(tmp_path / "d.safetensors", TINY, case=CASE, path=tmp_path / "map.json")
    assert not found.doubts and "no tap: h.{l}.mystery" in str(found)
    from_ = {tap: recipe["from"] for tap, recipe in found.map["taps"].items()}
    for suffix, name in {"attn_norm": "ln", "q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "q_rope": "rot",
                         "k_rope": "krot", "attn_out": "o", "mlp.gate": "gu", "mlp.up": "gu", "moe.experts": "pick.0",
                         "moe.weights": "pick.1"}.items():
        assert from_[f"layers.{{l}}.{suffix}"] == f"h.{{l}}.{name}", suffix
    assert sorted(from_["layers.{l}.mid"]) == ["h.{l}.add", "h.{l}.o"] and "layers.{l}.mlp_norm" not in from_
    done = check(tmp_path / "d.safetensors", tmp_path / "map.json")
    assert done.stdout.splitlines()[-1].startswith(("pass: Nothing is wrong", "partial: Nothing wrong")), done.stdout
    assert "0 fail" not in done.stdout and done.returncode in (0, 2)
    assert done.stdout.endswith(" For 5 tensors of the dump the map has no name; final_norm was not judged.\n")


def test_layers_of_two_kinds_under_one_name(taps, tmp_path):
    """Sparse layers have an index query behind the others; a width that is no multiple of a head's does no harm."""
    mine = {}
    for l in range(5):
        names = [n for n in ("q_proj", "index.q_proj") if f"layers.{l}.{n}" in taps]
        mine[f"h.{l}.all"] = np.concatenate([taps[f"layers.{l}.{n}"].reshape(67, -1) for n in names], 1)
        mine[f"h.{l}.odd"] = np.ones((67, 131), np.float32) * np.arange(131) % 7
    m3ref.save(tmp_path / "d.safetensors", mine)
    found = m3ref.propose_map(tmp_path / "d.safetensors", TINY, case=CASE, path=tmp_path / "map.json")
    widths = [str(mine[f"h.{l}.all"].shape[1]) for l in (0, 4)]
    assert found.map["taps"]["layers.{l}.index.q_proj"]["steps"][0] == {"only": ["*", widths[1]]}
    assert [r["steps"][0] for r in found.map["taps"]["layers.{l}.q_proj"]] == [{"only": ["*", w]} for w in widths]
    done = check(tmp_path / "d.safetensors", tmp_path / "map.json", ["--all"])
    lines = [line for line in done.stdout.splitlines() if line.startswith("pass ")]
    assert sum("index.q_proj" in line for line in lines) == 3 and "fail" not in done.stdout, done.stdout + done.stderr


def test_a_wrong_program_is_mapped_with_doubt(taps):
    mine = own_names(taps)
    for l in range(5):
        mine[f"h.{l}.o"] = mine[f"h.{l}.o"] * np.where(np.arange(len(mine[f"h.{l}.o"])) % 7 == 0, 0, 1)[:, None]
    found = m3ref.propose_map(mine, TINY, case=CASE)
    assert found.map["taps"]["layers.{l}.attn_out"]["from"] == "h.{l}.o"
    assert len(found.doubts) == 1 and "layers.{l}.attn_out from h.{l}.o" in found.doubts[0]
    mine = own_names(taps) | {"unembed": taps["logits"][:, ::-1]}
    found = m3ref.propose_map(mine, TINY, case=CASE)
    assert "logits" not in found.map["taps"] and "logits has no tensor; the nearest is unembed" in found.doubts[0]


def test_ranks(taps, tmp_path):
    """Heads and lists of blocks divided among two ranks, partial sums, norms on both."""
    half = {name: a / 2 for name, a in taps.items() if name.endswith("attn_out")}
    for rank in range(2):
        mine = {name.replace("layers", "h"): a for name, a in half.items()}
        for l in range(5):
            q = taps[f"layers.{l}.q_norm"]
            mine[f"h.{l}.q"] = np.split(q, 2, 1)[rank].reshape(len(q), -1)
            mine[f"h.{l}.norm"] = taps[f"layers.{l}.attn_norm"]
            if f"layers.{l}.index.blocks" in taps:
                mine[f"h.{l}.pick"] = np.split(taps[f"layers.{l}.index.blocks"], 2, 1)[rank][..., ::-1].copy()
            mine[f"h.{l}.attn_out"] = mine[f"h.{l}.attn_out"] + (1 if rank else -1)
        m3ref.save(tmp_path / f"rank.{rank}.safetensors", mine)
    found = m3ref.propose_map(tmp_path, TINY, case=CASE, path=tmp_path / "map.json")
    assert "layers.{l}.attn_norm from h.{l}.norm: 0" in str(found)          # equal on both, no sum
    assert found.map["files"] == "ranks" and found.map["rules"] == {"layers.{l}.attn_out": "sum"}
    assert "layers.{l}.q_norm from h.{l}.q, concat over ranks" in str(found)
    lines = check(tmp_path, tmp_path / "map.json", ["--all"]).stdout
    assert "layers.4.q_norm" in lines and "layers.4.index.blocks" in lines and "fail" not in lines, lines


def test_maps_that_cannot_be_found(taps):
    with pytest.raises(ValueError, match="no tensor of the dump is like a tap"):
        m3ref.propose_map({"x": np.zeros((67, 7))}, TINY, case=CASE)
    with pytest.raises(m3ref.Error, match="expected one of them"):
        m3ref.propose_map({"x": np.zeros((67, 7))}, TINY)
    with pytest.raises(ValueError, match="no row of the dump is one of the case"):
        m3ref.propose_map({"x": np.zeros((2, 7)), "rows": np.array([900, 901])}, TINY, ids=IDS)


def test_torch(tmp_path):
    torch = pytest.importorskip("torch", reason="capture hooks its modules")
    m = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 4)).to(torch.bfloat16)
    with m3ref.capture(m, tmp_path / "d.safetensors", inputs="1"):
        m(torch.tensor([[1, 2, 3]]))
    got = m3ref.load(tmp_path / "d.safetensors")
    assert m3ref.tensors.format_of(got["1"]) == "BF16" and got["0"].shape == (3, 4)
    assert np.array_equal(m3ref.to_torch(got["1.in"]).float(), m3ref.to_torch(got["0"]).float())

"""Dumps of an engine's steps (SPEC 7.19): rejected drafts, preempted requests, cached prefixes, given caches."""
import json
import subprocess

import numpy as np
import pytest

import m3ref
from test_model import TINY

A = [5, 17, 3, 60, 2, 9, 41, 8, 12, 30, 7]
B = [*A[:6], 44, 45, 46, 47]
DRAFT = [*A[:9], 77, 78]                        # what request 0 had computed when its last two tokens were rejected


@pytest.fixture(scope="module")
def runs():
    return {name: m3ref.run(TINY, ids) for name, ids in (("A", A), ("B", B), ("DRAFT", DRAFT))}


# (run, request, first row, end): a prefill in two chunks, another request that finds six tokens in the cache, a draft of
# three of which one is accepted, the right tokens, and all of request 0 again.
STEPS = [("A", 0, 0, 5), ("A", 0, 5, 8), ("B", 1, 6, 10), ("DRAFT", 0, 8, 11), ("A", 0, 9, 11), ("A", 0, 0, 11)]


def write(path, runs, steps, change=None, without=()):
    """The dump of the steps, and the case."""
    rows = [(name, request, row) for name, request, first, end in steps for row in range(first, end)]
    taps = [tap for tap, a in runs["A"].items() if len(a) == len(A) and "block_scores" not in tap]
    dump = {tap: np.stack([runs[name][tap][row] for name, _, row in rows]) for tap in taps}
    ids = {"A": A, "B": B, "DRAFT": DRAFT}
    dump |= {"rows": np.array([r[2] for r in rows], np.int32), "sequences": np.array([r[1] for r in rows], np.int32),
             "tokens": np.array([ids[name][row] for name, _, row in rows], np.int32)}
    if change:
        change(dump)
    m3ref.save(path / "d.safetensors", {name: a for name, a in dump.items() if name not in without})
    m3ref.save(path / "case.safetensors", {"input_ids": np.array(A + B, np.int32),
                                           "cu_seqlens": np.array([0, len(A), len(A) + len(B)], np.int32)})


def judge(path, command="check"):
    done = subprocess.run([m3ref.program(), command, TINY, path / "d.safetensors", "--case", path / "case.safetensors",
                           "--json"], capture_output=True, text=True)
    return done.returncode, done.stderr, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("command", ["check", "blame"])
def test_right_steps_pass(runs, tmp_path, command):
    write(tmp_path, runs, STEPS)
    status, _, lines = judge(tmp_path, command)
    assert status == 0 and lines[-1]["verdict"] == "pass" and lines[-1]["failed"] == 0
    notes = " ".join(lines[-1]["notes"])
    assert "sequence 2: request 0 as it was when its rows 0 to 10 were dropped" in notes
    assert "sequence 3: request 0 as it was when its rows 9 to 10 were dropped" in notes or "rows 9 to 10" in notes
    attn = next(line for line in lines if line.get("tap") == "layers.3.attn")
    assert attn["not_judged"] == 0 and attn["rows"] >= 28


# Which row of the dump is wrong, and what is said of it: rows of drafts and those that are computed again count too.
@pytest.mark.parametrize("at,place", [(13, "row 9"), (12, "row 8"), (16, "row 10"), (20, "row 3"),
                                      (10, "sequence 1, row 8")])
def test_a_wrong_row_is_named(runs, tmp_path, at, place):
    def change(dump):
        dump["layers.2.attn"][at] *= 0.9
    write(tmp_path, runs, STEPS, change)
    status, _, lines = judge(tmp_path)
    assert status == 1 and lines[-1]["culprit"] == "layers.2.attn" and place in lines[-1]["sentence"]


def test_a_stale_key_after_a_rejected_draft(runs, tmp_path):
    """The key of the rejected token stays: rows after it attend to it."""
    def change(dump):
        dump["layers.1.k_rope"][14] = dump["layers.1.k_rope"][12]
    write(tmp_path, runs, STEPS[:5], change)
    status, _, lines = judge(tmp_path)
    assert status == 1 and lines[-1]["culprit"] == "layers.1.k_rope"


def test_steps_without_tokens_are_refused(runs, tmp_path):
    write(tmp_path, runs, STEPS, without=("tokens",))
    status, errors, _ = judge(tmp_path)
    assert status == 65 and "twice, expected it once" in errors and errors.count("\n") == 1


@pytest.mark.parametrize("name,at,value,says", [
    ("tokens", 0, 6, "request 0 begins with token 6, expected 5, as in the case"),
    ("tokens", 3, -4, "got token -4, expected an id of the vocabulary"),
    ("sequences", 3, 7, "got no row of request"),
    ("rows", 3, 500, "got row 500 of request 0 after row 2, expected the tokens between them in the case")])
def test_bad_steps(runs, tmp_path, name, at, value, says):
    def change(dump):
        dump[name][at] = value
        if name == "sequences":
            dump["rows"][at] = 0
    write(tmp_path, runs, STEPS, change)
    status, errors, _ = judge(tmp_path)
    assert status == 65 and says in errors and errors.count("\n") == 1, errors


# ---- a machine that decodes, and the cache that it was given

def is_cached(tap):
    return tap.endswith((".k_rope", ".v_proj"))


def write_decoded(path, runs, change=None, names=lambda tap: tap):
    """The last two rows of A and the last row of B, with the whole cache of both."""
    rows, places = [("A", 0, 9), ("A", 0, 10), ("B", 1, 9)], [("A", 0, i) for i in range(11)] + [("B", 1, i) for i in
                                                                                                range(10)]
    dump = {}
    for tap, a in runs["A"].items():
        if len(a) == len(A) and "block_scores" not in tap:
            dump[tap] = np.stack([runs[name][tap][row] for name, _, row in (places if is_cached(tap) else rows)])
    for prefix, numbers in ("", rows), ("cache.", places):
        dump[f"{prefix}rows"] = np.array([n[2] for n in numbers], np.int32)
        dump[f"{prefix}sequences"] = np.array([n[1] for n in numbers], np.int32)
    if change:
        change(dump)
    m3ref.save(path / "d.safetensors", {names(name): a for name, a in dump.items()})
    m3ref.save(path / "case.safetensors", {"input_ids": np.array(A + B, np.int32),
                                           "cu_seqlens": np.array([0, len(A), len(A) + len(B)], np.int32)})


def test_decoding_from_a_given_cache(runs, tmp_path):
    write_decoded(tmp_path, runs)
    status, _, lines = judge(tmp_path)
    assert status == 0 and lines[-1]["verdict"] == "pass"
    attn = next(line for line in lines if line.get("tap") == "layers.4.attn")
    assert attn["rows"] == 3 and attn["judged_by"] is None


def test_a_cache_under_a_map(runs, tmp_path):
    write_decoded(tmp_path, runs, names=lambda tap: tap if "rows" in tap or "sequences" in tap else f"my.{tap}")
    taps = {f"layers.{{l}}.{t}": {"from": f"my.layers.{{l}}.{t}"} for t in ("k_rope", "v_proj", "q_rope", "attn")}
    (tmp_path / "map.json").write_text(json.dumps({"name": "mine", "taps": taps}))
    done = subprocess.run([m3ref.program(), "check", TINY, tmp_path / "d.safetensors", "--case",
                           tmp_path / "case.safetensors", "--map", tmp_path / "map.json", "--json"],
                          capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert next(line for line in lines if line.get("tap") == "layers.0.attn")["verdict"] == "pass", done


@pytest.mark.parametrize("tap", ["layers.2.index.k_rope", "layers.1.k_rope", "layers.1.v_proj"])
def test_places_that_were_not_transferred(runs, tmp_path, tap):
    """The rows that a machine computed itself are right, what it was given is not."""
    def change(dump):
        dump[tap][:9] = 0
    write_decoded(tmp_path, runs, change)
    status, _, lines = judge(tmp_path)
    assert status == 1 and lines[-1]["culprit"] == tap and "zeros" in lines[-1]["sentence"]


@pytest.mark.parametrize("name,at,value,says", [
    ("cache.sequences", 0, 5, "cache.sequences[0]: got 5, expected 0 to 1"),
    ("cache.rows", 0, 1, "cache.rows: got row 1 of sequence 0 twice"),
    ("cache.rows", 0, 11, "cache.rows[0]: got 11, expected 0 to 10")])
def test_bad_numbers_of_a_cache(runs, tmp_path, name, at, value, says):
    def change(dump):
        dump[name][at] = value
    write_decoded(tmp_path, runs, change)
    status, errors, _ = judge(tmp_path)
    assert status == 65 and says in errors, errors


def test_rows_that_are_numbered_otherwise(runs, tmp_path):
    """Rows from 1 on, although the tokens are those from the first one on."""
    steps = [("A", 0, 0, 11), ("B", 1, 0, 9)]

    def change(dump):
        dump["rows"][11:] += 1
    write(tmp_path, runs, steps)
    assert judge(tmp_path)[0] == 0
    write(tmp_path, runs, steps, change)
    status, errors, _ = judge(tmp_path)
    assert status == 65, errors
    assert "request 1: 9 of its 10 rows have other tokens than the case, row 1: got 5, expected 17" in errors

"""What vLLM and SGLang whole share that needs neither engine: cases of several sequences, rows in order, mistakes."""

import os
import sys

import numpy as np
import pytest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "scripts"))
from engines import adapter, interpreter, mistakes, registry, table  # noqa: E402


def written(folder, **arrays):
    path = os.path.join(folder, "case.safetensors")
    stored = {name: adapter.files.from_array(np.array(value, np.int32)) for name, value in arrays.items()}
    adapter.files.write(path, adapter.files.to_bytes(stored))
    return path


# Seen to fail with padding kept, and with the last sequence of a packed case left out.
def test_sequences(tmp_path):
    packed = adapter.Case(written(tmp_path, input_ids=[5, 6, 7, 8, 9], cu_seqlens=[0, 2, 5]), several=True)
    assert [ids.tolist() for ids in packed.sequences] == [[5, 6], [7, 8, 9]]
    padded = written(tmp_path, input_ids=[[0, 5, 6], [7, 8, 9]], attention_mask=[[0, 1, 1], [1, 1, 1]])
    assert [ids.tolist() for ids in adapter.Case(padded, several=True).sequences] == [[5, 6], [7, 8, 9]]
    with pytest.raises(SystemExit, match="got 2 sequences, expected one"):
        adapter.Case(padded)
    with pytest.raises(SystemExit, match="got position_ids or an attention_mask"):
        adapter.Case(written(tmp_path, input_ids=[5, 6], attention_mask=[0, 1]))


# Seen to fail with the rows left in the order of the steps.
def test_rows_of_steps():
    dump = adapter.Dump()
    for rows in ([(0, 0), (0, 1), (1, 0)], [(0, 2), (1, 1)]):
        dump.add_rows(rows)
        dump.save("x", np.array([[10.0 * sequence + position] for sequence, position in rows], np.float32))
    dump.save("short", np.zeros((2, 1), np.float32))
    found = dump.tensors(5)
    assert list(found) == ["x"]
    assert np.frombuffer(found["x"][2], "<f4").tolist() == [0, 1, 2, 10, 11]


# Seen to fail with ties away from zero, and with the bits cut off.
def test_nearest_bf16():
    values = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -1 - 2**-7, np.inf, -np.inf, 3.4e38],
                      np.float32)
    assert interpreter.to_bf16(np, values).tolist() == [0x3f80, 0x3f80, 0x3f82, 0x3f81, 0xbf81, 0x7f80, 0xff80, 0x7f80]
    assert interpreter.to_bf16(np, np.array([np.nan], np.float32)).tolist() == [0x7fc0]


def test_mistakes():
    for name in ("vllm_whole", "sglang_whole"):
        assert len(mistakes.MISTAKES[name]) == 13
        run = registry.ENGINES[name].mistakes
        for mistake in mistakes.MISTAKES[name].values():
            path = run._replace(case=mistake.case or run.case).case_path()
            assert os.path.exists(os.path.join(ROOT, path)), path
    with pytest.raises(SystemExit, match="got mistake 'none', expected one of"):
        mistakes.function("vllm_whole", "none")


# Seen to fail with a model of MODELS looked for in golden/.
def test_models_that_are_made():
    run = registry.Run("m3_128", "long_case")
    assert run.model_path() == "build/engines/models/m3_128"
    assert registry.Run("tiny").model_path() == "golden/tiny/model"
    assert registry.Run("tiny", registry.PADDED).case_path() == "tests/candidates/padded_case.safetensors"
    for config, *options in registry.MODELS.values():
        assert os.path.exists(os.path.join(ROOT, config)), config
    ids = adapter.Case(os.path.join(ROOT, run.case_path())).ids
    assert len(ids) > 2 * 128 and table.ENGINES["vllm_whole"].runs      # more blocks than the two that are chosen

"""Cases, verdicts and the reference's own results."""
import os
import pathlib

import numpy as np
import pytest

import formulas
import m3ref

GOLDEN = pathlib.Path(os.environ.get("M3REF_GOLDEN", pathlib.Path(__file__).resolve().parents[3] / "golden"))


def test_the_right_norm_passes_every_case():
    for case in m3ref.cases("rms_norm"):
        verdict = case.check(formulas.rms_norm(**case.inputs, **case.params))
        assert verdict.verdict == "pass" and verdict and verdict.status == 0, str(verdict)
        assert [stage["tap"] for stage in verdict.stages] == [f"{case.case}.y"]


# Seen to fail with: a check that judges every case of the file; a require() that never raises.
def test_a_norm_without_one_fails_in_the_verdicts_words():
    case = next(case for case in m3ref.cases("rms_norm", count=1) if case.what == "drawn values")
    verdict = case.check(formulas.rms_norm_without_one(**case.inputs, **case.params))
    assert verdict.verdict == "fail" and not verdict and verdict.status == 1
    assert verdict.summary["mistake"] == "norm.no_plus_one"
    with pytest.raises(AssertionError) as why:
        verdict.require()
    assert "looks like norm.no_plus_one" in str(why.value) and "of what is allowed" in str(why.value)


def test_every_case_says_which_mistakes_it_catches():
    for case in m3ref.cases("rms_norm"):
        wrong = case.check(formulas.rms_norm_without_one(**case.inputs, **case.params))
        assert (wrong.verdict == "fail") == ("norm.no_plus_one" in case.catches), repr(case)


def test_sums_in_f16_fail_as_fp32():
    for case in m3ref.cases("rms_norm", sizes={"T": 3, "H": 512}, count=2):
        if case.what == "drawn values":
            assert case.check(formulas.rms_norm_in_f16(**case.inputs, **case.params)).verdict == "fail"
            rounded = formulas.rms_norm(**case.inputs, **case.params).astype(np.float16)
            assert case.check(rounded).verdict == "fail" and case.check(rounded, profile="fp16").verdict == "pass"


def test_results_that_cannot_be_judged():
    case = m3ref.cases("rms_norm")[1]
    y = formulas.rms_norm(**case.inputs, **case.params)
    for wrong, words in ((y[:, 1:], "not the shape"), (y[1:], "not the rows"), (y[0], "not the rank"),
                         (y.astype(np.int32), "not a float dtype")):
        verdict = case.check({"y": wrong})
        assert verdict.verdict == "not_comparable" and verdict.status == 3 and words in str(verdict), str(verdict)
    y[0, 0] = np.nan
    assert case.check({"y": y}).verdict == "fail"
    assert case.check({}).verdict == "not_comparable" and "missing" in str(case.check({}))
    for wrong, words in (({"z": y}, "expected y"), ({"y": y.astype(complex)}, "complex128"), (None, "got no result")):
        with pytest.raises(TypeError, match=words):
            case.check(wrong)
    with pytest.raises(m3ref.Error, match="nonsense"):
        case.check(y, profile="nonsense")


def test_outputs_in_every_form():
    for case in m3ref.cases("route"):
        ids, p = formulas.route(**case.inputs, **case.params)
        for results in ((ids, p), [ids, p], {"p": p, "ids": ids}, {"p": p, "ids": ids.astype(np.int64)}):
            assert case.check(results).verdict == "pass", str(case.check(results))
        assert case.check((ids[:, ::-1] * 0, p)).verdict == "fail"
        with pytest.raises(TypeError, match="got one array, expected ids, p"):
            case.check(p)


# Seen to fail with the rows left out of the call: then 24 rows are not those of the case.
def test_attention_is_judged_in_sampled_rows():
    cases = m3ref.cases("attend_full", sizes={"T": 4200, "Q": 2, "G": 1, "D": 8}, count=1)
    case = cases[len(cases) - 1]
    assert case.rows and len(case.rows) < 40 and case.rows[0] == 0 and case.rows[-1] == 4199
    q, k, v = (case.inputs[name] for name in "qkv")
    sampled = formulas.attend(q, k, v, case.rows)
    assert case.check(sampled).verdict == "pass"
    everything = np.full(q.shape, 7, np.float32)        # rows that are not listed may hold anything
    everything[case.rows] = sampled
    assert case.check(everything).verdict == "pass"
    assert case.check(formulas.attend(q, k, v, case.rows, shift=-1)).verdict == "fail"
    # The reference computes the listed rows alone.
    reference = case.reference(precision="f64", bounds=True)
    assert list(reference) == ["lse", "lse.allowed", "o", "o.allowed"] and reference["o"].shape == sampled.shape
    assert np.all(np.abs(reference["o"] - sampled) <= reference["o.allowed"])
    assert np.allclose(m3ref.op.attend_full(q, k, v)["o"][case.rows], sampled, atol=1e-5)


# Every operator of the list, with all its cases: operands and parameters reach the reference.
@pytest.mark.parametrize("name", list(m3ref.operators()))
def test_the_reference_passes_its_own_cases(name):
    operator = getattr(m3ref.op, name)
    assert name in dir(m3ref.op) and name in repr(operator)
    for case in m3ref.cases(name, count=1, seed=3):
        given = operator(**case.inputs, **case.params)
        assert case.check(given).verdict == "pass", str(case.check(given))


def test_precisions_and_bounds():
    x, w = np.array([[1, 2, 3, 4]], np.float32), np.array([0.5, 0, 0, 0], np.float32)
    want = x / np.sqrt(np.float64(7.5) + 0.25) * (1 + w.astype(np.float64))
    assert np.abs(m3ref.op.rms_norm(x, w, eps=0.25, precision="f64") - want).max() < 1e-15
    both = m3ref.op.rms_norm(x, w=w, eps=0.25, precision="f64", bounds=True)
    assert list(both) == ["y", "y.allowed"] and np.all(both["y.allowed"] > 0) and np.all(both["y.allowed"] < 1e-5)
    assert m3ref.op.rms_norm(x, w).dtype == np.float32


def test_arguments_that_do_not_fit():
    x, w = np.zeros((2, 4), np.float32), np.zeros(4, np.float32)
    for call, kind, words in ((lambda: m3ref.op.rms_norm(x, w, epsilon=1), TypeError, "got epsilon"),
                              (lambda: m3ref.op.rms_norm(x, w, w), TypeError, "got 3 operands"),
                              (lambda: m3ref.op.rms_norm(x, x=x), TypeError, "x twice"),
                              (lambda: m3ref.op.rms_norm(x), m3ref.Error, "no operand w"),
                              (lambda: m3ref.op.rms_norm(x, w[:3]), m3ref.Error, "w: got size 3"),
                              (lambda: m3ref.op.rms_norm(x, w, eps="small"), m3ref.Error, "parameter eps"),
                              (lambda: m3ref.op.rms_norm(x, w, precision="f16"), m3ref.Error, "got f16"),
                              (lambda: m3ref.op.rms_norms, AttributeError, "rms_norms"),
                              (lambda: m3ref.cases("rms_norms"), m3ref.Error, "rms_norms"),
                              (lambda: m3ref.cases("rms_norm", dtype="f64"), m3ref.Error, "got f64"),
                              (lambda: m3ref.cases("rms_norm", sizes="T=0"), m3ref.Error, "T=0"),
                              (lambda: m3ref.cases("rms_norm", count=-1), m3ref.Error, "got -1"),
                              (lambda: m3ref.cases("rms_norm", count=2**70), m3ref.Error, "count"),
                              (lambda: m3ref.cases("rms_norm", seed=-1), m3ref.Error, "seed"),
                              (lambda: m3ref.cases("rms_norm", sizes={"T": "3,H=9"}), m3ref.Error, "3,H=9"),
                              (lambda: m3ref.op.rms_norm(x, w, eps=float("nan")), m3ref.Error, "eps"),
                              (lambda: m3ref.op.rms_norm(x, w, eps=np.ones(1)), m3ref.Error, "eps")):
        with pytest.raises(kind, match=words):
            call()


def test_cases_in_a_file(tmp_path):
    made = m3ref.cases("swiglu_oai", seed=5)
    made.save(tmp_path / "cases.safetensors")
    whole = (tmp_path / "cases.safetensors").read_bytes()
    with pytest.raises(m3ref.Error, match="expected another"):
        m3ref.open_cases(tmp_path / "cases.safetensors").save(tmp_path / "cases.safetensors")
    assert (tmp_path / "cases.safetensors").read_bytes() == whole
    again = m3ref.open_cases(tmp_path / "cases.safetensors")
    assert len(again) == len(made) and [c.what for c in again] == [c.what for c in made]
    for one, other in zip(made, again):
        assert all(np.array_equal(one.inputs[name], other.inputs[name]) for name in one.inputs)
        assert one.check(m3ref.op.swiglu_oai(**other.inputs, **other.params))
    with pytest.raises(m3ref.Error, match="op --make"):
        m3ref.CaseSet({"x": np.zeros(3)})


def test_functions_are_called_by_name_or_by_position():
    case = m3ref.cases("rms_norm", count=1)[-1]
    want = formulas.rms_norm(**case.inputs, **case.params)
    for function in (formulas.rms_norm, lambda w, x, eps: formulas.rms_norm(x, w, eps),
                     lambda a, b, eps: formulas.rms_norm(a, b, eps), lambda **all: formulas.rms_norm(**all)):
        assert np.array_equal(case.run(function), want)


# Many experts: 1.1 GB of weights, none of them stored.
DRAWN = {"T": 12, "E": 700, "H": 256, "F": 512, "K": 2}


def drawn_numbers(rule, first, count):
    """The rule of REFERENCE.md 7.16, by itself."""
    mask = 2**64 - 1

    def mix(z):
        z ^= z >> 30
        z = z * 0xBF58476D1CE4E5B9 & mask
        z ^= z >> 27
        z = z * 0x94D049BB133111EB & mask
        return z ^ z >> 31

    key = 14695981039346656037
    for byte in rule["name"].encode():
        key = (key ^ byte) * 1099511628211 & mask
    key = mix((key + rule["seed"] * 0x9E3779B97F4A7C15) & mask)
    draws = (mix((key + (i + 1) * 0x9E3779B97F4A7C15) & mask) >> 32 for i in range(first, first + count))
    return [((draw * rule["levels"] >> 32) - rule["offset"]) * rule["scale"] for draw in draws]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_weights_that_are_drawn_follow_their_rule(dtype):
    case = m3ref.cases("experts", sizes=DRAWN if dtype == "f32" else {**DRAWN, "E": 1400}, count=1, dtype=dtype)[-1]
    assert f"{case.case}.w1" not in case.set.tensors and set(case.drawn) == {"w1", "w3", "w2"} and 0 < len(case.rows) < 12
    for name in case.drawn:
        w = case.inputs[name]
        one = w[17]
        numbers = one.float32() if hasattr(one, "float32") else np.asarray(one, np.float32)
        assert one.shape == w.shape[1:] and len(w) == w.shape[0]
        expected = np.array(drawn_numbers(w.rule, 17 * one.size, 40), np.float32)
        assert np.array_equal(numbers.reshape(-1)[:40], expected)
        with pytest.raises(IndexError):
            w[len(w)]


def test_a_kernel_draws_the_experts_that_it_reads():
    case = m3ref.cases("experts", sizes=DRAWN, count=1)[-1]

    def experts(x, ids, p, w1, w3, w2, factor, alpha, limit, shift=0):
        y = np.zeros((len(case.rows), x.shape[1]))
        for row, t in enumerate(case.rows):
            for k, e in enumerate(ids[t]):
                e = (e + shift) % len(w1)
                gate, up = (w[e].astype(float) @ x[t].astype(float) for w in (w1, w3))
                gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
                act = (up + 1) * gate / (1 + np.exp(-alpha * gate))
                y[row] += p[t, k] * (w2[e].astype(float) @ act)
        return factor * y

    params = {name: case.params[name] for name in ("factor", "alpha", "limit")}
    assert case.check({"routed": experts(**case.inputs, **params)}).verdict == "pass"
    assert case.check({"routed": experts(**case.inputs, **params, shift=1)}).verdict == "fail"
    right = case.reference(precision="f64")["routed"]
    assert np.allclose(right, experts(**case.inputs, **params), rtol=1e-9, atol=1e-12)


# ---- operands from a run of a model

TINY = GOLDEN / "tiny"


def from_golden(tap, name):
    return m3ref.cases_from(TINY / "golden.safetensors.gz", tap, name, TINY / "model", case=TINY / "case.safetensors")


def test_operands_from_a_golden():
    golden = m3ref.load(TINY / "golden.safetensors.gz")
    norms = from_golden("layers.*.attn_norm", "rms_norm")
    assert len(norms) == 5
    for layer, case in enumerate(norms):
        assert f"layers.{layer}.attn_norm" in case.what
        case.check(golden[f"layers.{layer}.attn_norm"]).require()
        other = golden[f"layers.{(layer + 1) % 5}.attn_norm"]
        assert case.check(other).verdict == "fail"


def test_operands_that_a_dump_does_not_hold():
    with pytest.raises(m3ref.Error, match="layers.9.attn_norm"):
        from_golden("layers.9.attn_norm", "rms_norm")

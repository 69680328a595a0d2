"""The exercises of the tutorial: the program takes its answers, and refuses one with a mistake."""
import os
import pathlib
import re
import subprocess
import sys

import pytest

import m3ref

ROOT = pathlib.Path(__file__).resolve().parents[3]
TUTORIAL = ROOT / "ref/tutorial"
PAGES = sorted(TUTORIAL.glob("[1-8]_*.md"))
OPERATORS = sorted({name for page in PAGES for name in re.findall(r"m3ref op (\w+) --check", page.read_text())})


def run(*words):
    return subprocess.run([*map(str, words)], capture_output=True, text=True,
                          env=dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path))))


def mark(answers, name, folder):
    cases, results = folder / "cases.safetensors", folder / "results.safetensors"
    made = run(m3ref.program(), "op", name, "--make", cases)
    assert made.returncode == 0, made.stderr
    ran = run(sys.executable, TUTORIAL / "exercise.py", answers, name, cases, results)
    assert ran.returncode == 0, ran.stderr
    return run(m3ref.program(), "op", name, "--check", cases, results)


def test_each_chapter_has_two_exercises():
    assert len(PAGES) == 8
    for page in PAGES:
        assert page.read_text().count(" --check ") == 2, page.name


@pytest.mark.parametrize("name", OPERATORS)
def test_answers(name, tmp_path):
    verdict = mark(TUTORIAL / "answers.py", name, tmp_path)
    assert verdict.returncode == 0, verdict.stdout


@pytest.mark.parametrize("name,right,wrong,mistake", [
    ("rms_norm", "x, 1 + w, eps", "x, w, eps", "norm.no_plus_one"),
    ("attend_full", "np.repeat(k, Q // G, axis=1), np.repeat(v, Q // G, axis=1)",
     "np.tile(k, (1, Q // G, 1)), np.tile(v, (1, Q // G, 1))", "gqa.tile"),
    ("route", "s, ids, -1)", "s + bias, ids, -1)", "router.bias_in_weights"),
])
def test_mistakes(name, right, wrong, mistake, tmp_path):
    text = (TUTORIAL / "answers.py").read_text()
    assert text.count(right) == 1
    (tmp_path / "mine.py").write_text(text.replace(right, wrong))
    verdict = mark(tmp_path / "mine.py", name, tmp_path)
    assert verdict.returncode == 1 and mistake in verdict.stdout, verdict.stdout

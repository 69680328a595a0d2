"""The examples of README.md: they run, and print what their comments say."""
import pathlib
import re
import subprocess
import sys

README = pathlib.Path(__file__).resolve().parents[1] / "README.md"
ROOT = README.parents[2]


def test_examples(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    assert len(blocks) == 4
    (tmp_path / "all.py").write_text(f"import sys\nsys.path[:] = {sys.path!r}\n" + "\n".join(blocks))
    done = subprocess.run([sys.executable, tmp_path / "all.py"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == re.findall(r"^print\(.*# (.*)$", "\n".join(blocks), re.M)


def test_output_of_the_first_example():
    import m3ref
    space = {}
    block = re.search(r"```python\n(.*?)```", README.read_text(), re.S).group(1)
    exec(block.split("@m3ref")[0], space)
    case = next(case for case in m3ref.cases("rms_norm") if "weights" in case.what)
    words = str(case.check(case.run(space["rms_norm"])))
    shown = re.search(r"-k weights\n(.*?)\n\n", README.read_text(), re.S).group(1)
    for line in shown.splitlines():
        assert line.strip().lstrip("# ").rstrip(" .") in words, line


def test_the_page_of_the_project_has_the_same_example():
    block = re.search(r"```python\n(.*?)```", README.read_text(), re.S).group(1)
    assert "".join(f"    {line}\n" if line else "\n" for line in block.splitlines()) in (ROOT / "README.md").read_text()

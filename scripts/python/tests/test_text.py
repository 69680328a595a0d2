"""Words and ids: the tokenizer and the chat template of a model folder. The expected values are those of the files: what
stands at an id in the vocabulary of golden/tiny/model/tokenizer.json."""
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import m3ref

tokenizers = pytest.importorskip("tokenizers", reason="the library tokenizers is not installed")
pytest.importorskip("jinja2", reason="the library jinja2 is not installed")
from m3ref import text  # noqa: E402

GOLDEN = pathlib.Path(os.environ.get("M3REF_GOLDEN", pathlib.Path(__file__).resolve().parents[3] / "golden"))
TINY = GOLDEN / "tiny" / "model"


@pytest.fixture
def model(tmp_path):
    for name in ("tokenizer.json", "chat_template.jinja"):
        shutil.copy(TINY / name, tmp_path)
    return tmp_path


def module(*words, given="", **how):
    """(exit status, output, error lines) of python -m m3ref.text."""
    path = str(pathlib.Path(m3ref.__file__).parent.parent)
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([path, *filter(None, sys.path)]))
    given = given if isinstance(given, bytes) else given.encode()
    done = subprocess.run([sys.executable, "-m", "m3ref.text", *map(str, words)], input=given, capture_output=True,
                          env=env, **how)
    return done.returncode, done.stdout.decode(), done.stderr.decode().splitlines()


def pieces(ids):
    vocabulary = json.loads((TINY / "tokenizer.json").read_text())["model"]["vocab"]
    of = {number: piece for piece, number in vocabulary.items()}
    return [of[number].replace("\u0120", " ").replace("\u010a", "\n") for number in ids]


# Seen to fail with the ids of a tokenizer that adds one.
@pytest.mark.parametrize("words", ["The sea is calm.", " two  blanks", "a\nb", "x", "<end>", "1 + w = {y}"])
def test_ids_spell_the_text(words):
    ids = text.encode(TINY, words)
    assert "".join(pieces(ids)) == words and text.decode(TINY, ids) == words


@pytest.mark.parametrize("words", [" two  blanks", "a\nb"])
def test_commands_spell_the_text(words):
    ids = text.encode(TINY, words)
    status, out, lines = module("encode", TINY, given=words)
    assert (status, out, lines) == (0, ",".join(map(str, ids)) + "\n", [])
    assert module("decode", TINY, given=out) == (0, words + "\n", [])


def test_special_tokens_keep_their_ids():
    assert text.encode(TINY, "<image><video>") == [200, 201]
    assert text.encode(TINY, "\u4e2d") == [202, 202, 202]


# Seen to fail without the last assistant, and with special tokens that are spelt letter by letter.
def test_chat():
    messages = [{"role": "system", "content": "Be calm"}, {"role": "user", "content": "<image>"}]
    ids = text.chat(TINY, messages)
    assert "".join(pieces(ids)) == "<start><system>Be calm<end><start><user><image><end><start><assistant>"
    assert ids[:2] == [204, 206] and ids[-6:] == [204, 207, 200, 205, 204, 208]
    assert module("chat", TINY, given=json.dumps({"messages": messages}))[1] == ",".join(map(str, ids)) + "\n"
    assert text.chat(TINY, {"messages": messages, "add_generation_prompt": False}) == ids[:-2]


def test_template_of_tokenizer_config(model):
    (model / "chat_template.jinja").unlink()
    config = {"chat_template": "{{ bos_token }}{{ messages[0].content | tojson }}", "bos_token": {"content": "<start>"}}
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    assert "".join(pieces(text.chat(model, [{"role": "user", "content": "a\"<"}]))) == '<start>"a\\"<"'
    config["chat_template"] = [{"name": "other", "template": "b"}, {"name": "default", "template": "c"}]
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    assert pieces(text.chat(model, [{}])) == ["c"]


# Seen to fail outside the sandbox: the first two then answer.
@pytest.mark.parametrize("template", ["{{ messages.__class__.__mro__ }}", "{{ messages.append(1) }}", "{% for %}", "{{ 1 / 0 }}",
                                      "{% include 'tokenizer.json' %}", "{{ raise_exception('no\nsuch') }}", "{{ nothing.x }}",
                                      "{{ range(10**9) | list }}"])
def test_template_with_an_error(model, template):
    (model / "chat_template.jinja").write_text(template)
    status, out, lines = module("chat", model, given='[{"role": "user", "content": "a"}]')
    assert (status, out, len(lines)) == (65, "", 1)
    assert lines[0].startswith(f"m3ref: {model}/chat_template.jinja:") and "the template has an error" in lines[0]


@pytest.mark.parametrize("task, given, want", [
    ("encode", "", (64, "the prompt: got no tokens")), ("encode", b"\xff", (64, "the prompt: got bytes that are not UTF-8")),
    ("chat", b"\xff", (65, "the chat: got bytes that are not UTF-8")), ("chat", "{", (65, "the chat: is not JSON")),
    ("chat", "3", (65, "no list of messages")), ("chat", '{"messages": [3]}', (65, "no list of messages")),
    ("chat", "[" * 100000, (65, "is not JSON")), ("decode", "211", (64, "got 211")), ("decode", "x", (64, "numbers")),
    ("decode", "", (64, "numbers")), ("other", "", (64, "expected encode"))])
def test_bad_input(task, given, want):
    status, out, lines = module(task, TINY, given=given)
    assert (status, out, len(lines)) == (want[0], "", 1)
    assert lines[0].startswith("m3ref: ") and want[1] in lines[0]


# Seen to fail with panics of the library, which are no Exception, let through.
@pytest.mark.parametrize("key, value", [
    ("pre_tokenizer", {"type": "Split", "pattern": {"Regex": "(a+)+(a+)+$"}, "behavior": "Isolated", "invert": False}),
    ("truncation", {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 5}),
    ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    ("model", {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "nope"}),
    ("model", {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [["a", "b"]]})])
def test_odd_tokenizers(model, key, value):
    tokenizer = json.loads((TINY / "tokenizer.json").read_text())
    (model / "tokenizer.json").write_text(json.dumps({**tokenizer, key: value}))
    with pytest.raises(text.Refused, match="tokenizer.json: ") as refused:
        text.encode(model, "a" * 36 + "!b")
    assert refused.value.status == 65


# Half a character of UTF-16. Seen to fail with the text handed on: 69 and a trace.
def test_lone_surrogates(model):
    with pytest.raises(text.Refused, match="the prompt: got a lone surrogate at character 1"):
        text.encode(TINY, "a\ud800")
    wanted = (65, "", [f"m3ref: {TINY}/chat_template.jinja: what the template makes of the chat: got a lone surrogate at "
                       "character 13, expected Unicode text"])
    assert module("chat", TINY, given='[{"role": "user", "content": "\\ud800"}]') == wanted
    (model / "chat_template.jinja").write_text("{{ '\\ud800' }}")
    assert module("chat", model, given="[]")[0] == 65


# Seen to fail with standard input that is called standard output, and with traces.
def test_standard_streams():
    for given, wanted in ((f"{sys.executable} -m m3ref.text encode {TINY} <&-", "standard input: Bad file descriptor"),
                          (f"echo a | {sys.executable} -m m3ref.text encode {TINY} >&-", "standard output: Bad file descriptor"),
                          (f"echo a | {sys.executable} -m m3ref.text encode {TINY} >/dev/full",
                           "standard output: No space left on device")):
        path = str(pathlib.Path(m3ref.__file__).parent.parent)
        env = dict(os.environ, PYTHONPATH=os.pathsep.join([path, *filter(None, sys.path)]))
        done = subprocess.run(given, shell=True, capture_output=True, env=env, text=True)
        assert (done.returncode, done.stderr) == (74, f"m3ref: {wanted}\n")


def test_names_are_printable(tmp_path):
    odd = tmp_path / os.fsdecode(b"\xff\033[31m")
    assert module("encode", odd, given="a")[2] == [f"m3ref: {tmp_path}/??[31m/tokenizer.json: got no such file, expected the "
                                                   "tokenizer of the model (--ids needs none)"]


def test_memory(monkeypatch, capsys):
    def fail(words):
        raise MemoryError
    monkeypatch.setattr(text, "run", fail)
    assert text.main() == 70 and capsys.readouterr().err == "m3ref: out of memory\n"


def test_chat_without_tokens(model):
    (model / "chat_template.jinja").write_text("")
    assert module("chat", model, given="[]") == (65, "", ["m3ref: the chat: got no tokens, expected at least one"])


# The program finds the Python that started it. Seen to fail with the PATH as it is.
def test_python_of_the_program(tmp_path):
    path = str(pathlib.Path(m3ref.__file__).parent.parent)
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([path, *filter(None, sys.path)]), PATH=str(tmp_path))
    done = subprocess.run([sys.executable, "-m", "m3ref", "run", TINY, "--prompt", "The sea is"], env=env,
                          capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and "next tokens: " in done.stdout


def test_bad_files(model):
    (model / "tokenizer.json").write_text("{}")
    assert module("encode", model, given="a")[0] == 65
    (model / "tokenizer.json").write_bytes(b"\xff")
    assert module("encode", model, given="a")[0] == 65
    (model / "tokenizer.json").unlink()
    status, _, lines = module("encode", model, given="a")
    assert status == 66 and len(lines) == 1 and "tokenizer.json: got no such file" in lines[0]
    shutil.copy(TINY / "tokenizer.json", model)
    (model / "chat_template.jinja").unlink()
    assert module("chat", model, given="[]")[0] == 66
    (model / "tokenizer_config.json").write_text("[]")
    assert module("chat", model, given="[]")[0] == 65


# A library that cannot be imported is named, with the command that installs it.
@pytest.mark.parametrize("name, task, given", [("tokenizers", "encode", "a"), ("jinja2", "chat", "[]")])
def test_library_missing(tmp_path, name, task, given):
    (tmp_path / f"{name}.py").write_text("raise ImportError('not here')")
    path = str(pathlib.Path(m3ref.__file__).parent.parent)
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([str(tmp_path), path, *filter(None, sys.path)]))
    done = subprocess.run([sys.executable, "-m", "m3ref.text", task, TINY], input=given, capture_output=True, env=env,
                          text=True)
    assert done.returncode == 69 and len(done.stderr.splitlines()) == 1
    assert f"{name}: cannot be imported" in done.stderr and "pip install tokenizers==0.23.3 jinja2==3.1.6" in done.stderr

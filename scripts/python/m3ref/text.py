"""Words and token ids, with the tokenizer and the chat template of a model folder.

    python -m m3ref.text encode MODEL    text on standard input; ids on standard output
    python -m m3ref.text chat MODEL      messages on standard input, [{"role": .., "content": ..}, ..], or an object
                                         with "messages" and what else the template reads, such as "tools"
    python -m m3ref.text decode MODEL    ids on standard input; text

Ids are separated by commas. The libraries are an extra of the package: tokenizers reads tokenizer.json, and Jinja
renders the template in its sandbox. m3ref --prompt and --chat start this module.
"""
import ctypes
import importlib
import json
import os
import re
import signal
import sys

NEEDED = "pip install tokenizers==0.23.3 jinja2==3.1.6"
USAGE, BAD_INPUT, ABSENT, UNAVAILABLE, INTERNAL, IO = 64, 65, 66, 69, 70, 74
ROOM = 10 ** 8      # bytes of a file, and of standard input
# What standard input holds, and the status if it is bad. The program puts the name of its file for "the chat".
GIVEN = {"encode": ("the prompt", USAGE), "chat": ("the chat", BAD_INPUT), "decode": ("ids", USAGE)}


class Refused(Exception):
    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


def library(name):
    try:
        return importlib.import_module(name)
    except Exception as why:            # its modules may be missing, damaged or not readable
        status = IO if isinstance(why, OSError) else UNAVAILABLE
        raise Refused(status, f"{name}: cannot be imported ({one_line(why)}), expected it: {NEEDED}") from why


def one_line(why):
    return " ".join(str(why).split()) or type(why).__name__


def printable(text):
    """As the program prints names: with ? for what steers a terminal, and for what is no text."""
    return "".join(one if one.isprintable() else "?" for one in text)


def read(path):
    """The text of a file of the model, or None if there is none."""
    try:
        with open(path, "rb") as file:
            data = file.read(ROOM + 1)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        return None
    except OSError as why:
        raise Refused(IO, f"{path}: cannot be read: {why.strerror}") from why
    if len(data) > ROOM:
        raise Refused(BAD_INPUT, f"{path}: got more than {ROOM} bytes, expected at most these")
    try:
        return data.decode()
    except UnicodeDecodeError as why:
        raise Refused(BAD_INPUT, f"{path}: got bytes that are not UTF-8 at {why.start}, expected UTF-8") from why


def read_json(path, text):
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as why:
        raise Refused(BAD_INPUT, f"{path}: is not JSON: {one_line(why)}") from why


class Tokenizer:
    """tokenizer.json, whose faults often show only when it is used."""

    def __init__(self, model):
        tokenizers = library("tokenizers")
        self.path = os.path.join(model, "tokenizer.json")
        text = read(self.path)
        if text is None:
            raise Refused(ABSENT, f"{self.path}: got no such file, expected the tokenizer of the model (--ids needs none)")
        self.tokenizer = self.trying("is not a tokenizer", tokenizers.Tokenizer.from_str, text)

    def trying(self, fault, call, *words, **how):
        try:
            return call(*words, **how)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as why:    # the library raises Exception itself, and panics, which are no Exception
            raise Refused(BAD_INPUT, f"{self.path}: {fault}: {one_line(why)}") from why

    def encode(self, text, **how):
        return self.trying("the tokenizer fails", self.tokenizer.encode, text, **how).ids

    def decode(self, ids):
        for one in ids:
            if self.trying("the tokenizer fails", self.tokenizer.id_to_token, one) is None:
                raise Refused(USAGE, f"ids: got {one}, expected ids of the tokenizer")
        return self.trying("the tokenizer fails", self.tokenizer.decode, ids, skip_special_tokens=False)


def whole(name, status, text):
    """The text, which must not hold half a character of UTF-16: JSON and templates can spell such a thing."""
    half = re.search("[\ud800-\udfff]", text)
    if half:
        raise Refused(status, f"{name}: got a lone surrogate at character {half.start()}, expected Unicode text")
    return text


def token_text(value):
    """A special token of tokenizer_config.json: a string, or an object with its content."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


def open_template(model):
    """(path, template, special tokens by name) of chat_template.jinja, or else of tokenizer_config.json."""
    path, config_path = (os.path.join(model, name) for name in ("chat_template.jinja", "tokenizer_config.json"))
    config_text = read(config_path)
    config = {} if config_text is None else read_json(config_path, config_text)
    if not isinstance(config, dict):
        raise Refused(BAD_INPUT, f"{config_path}: got no object, expected one")
    special = {name: token_text(value) for name, value in config.items() if name.endswith("_token")}
    special = {name: value for name, value in special.items() if value is not None}
    template = read(path)
    if template is not None:
        return path, template, special
    template = config.get("chat_template")
    if isinstance(template, list):      # several, by name
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if isinstance(template, str):
        return config_path, template, special
    raise Refused(ABSENT, f"{path}: got no such file, and no chat_template in {config_path}, expected either")


def render(model, conversation):
    """The text of a conversation. The template is code of others: it runs in Jinja's sandbox, without files."""
    jinja2 = library("jinja2")
    sandbox = library("jinja2.sandbox")
    library("jinja2.ext")
    path, template, special = open_template(model)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, indent=None, **how):
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                        extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    try:
        text = environment.from_string(template).render({**special, "add_generation_prompt": True, **conversation})
    except Exception as why:            # a template can raise anything
        where = f" line {why.lineno}:" if getattr(why, "lineno", None) else ""
        raise Refused(BAD_INPUT, f"{path}:{where} the template has an error: {one_line(why)}") from why
    return whole(f"{path}: what the template makes of the chat", BAD_INPUT, text)


def conversation_of(text):
    value = read_json("the chat", text)
    conversation = {"messages": value} if isinstance(value, list) else value
    messages = conversation.get("messages") if isinstance(conversation, dict) else None
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise Refused(BAD_INPUT, "the chat: got no list of messages, expected [{\"role\": .., \"content\": ..}, ..]")
    return conversation


def checked(task, ids):
    name, status = GIVEN[task]
    if not ids:
        raise Refused(status, f"{name}: got no tokens, expected at least one")
    return ids


def encode(model, text):
    """The ids of a text, with those that the tokenizer itself adds."""
    return checked("encode", Tokenizer(model).encode(whole(*GIVEN["encode"], text)))


def chat(model, conversation):
    """The ids of a conversation: a list of messages, or an object with "messages"."""
    if isinstance(conversation, list):
        conversation = {"messages": conversation}
    tokenizer = Tokenizer(model)
    return checked("chat", tokenizer.encode(render(model, conversation), add_special_tokens=False))


def decode(model, ids):
    return Tokenizer(model).decode(ids)


def ids_of(text):
    words = re.split(r"\s*,\s*|\s+", text.strip())
    if not all(re.fullmatch(r"[0-9]{1,9}", word) for word in words):
        raise Refused(USAGE, "ids: got something else, expected numbers separated by commas or white space")
    return [int(word) for word in words]


def standard_input(task):
    name, status = GIVEN[task]
    try:
        with open(0, "rb", closefd=False) as file:
            data = file.read(ROOM + 1)
    except OSError as why:
        raise Refused(IO, f"standard input: {why.strerror}") from why
    if len(data) > ROOM:
        raise Refused(status, f"{name}: got more than {ROOM} bytes, expected at most these")
    try:
        return data.decode()
    except UnicodeDecodeError as why:
        raise Refused(status, f"{name}: got bytes that are not UTF-8 at {why.start}, expected UTF-8") from why


def standard_output(data):
    """Without a buffer, which Python would try to write again at its end."""
    try:
        while data:
            data = data[os.write(1, data):]
    except OSError as why:
        raise Refused(IO, f"standard output: {why.strerror}") from why


def run(words):
    if len(words) != 2 or words[0] not in GIVEN:
        raise Refused(USAGE, "m3ref.text: expected encode MODEL, chat MODEL or decode MODEL")
    task, model = words
    text = standard_input(task)
    if task == "decode":
        answer = decode(model, ids_of(text))
    else:
        ids = encode(model, text) if task == "encode" else chat(model, conversation_of(text))
        answer = ",".join(map(str, ids))
    standard_output(answer.encode() + b"\n")


def end_with_parent():
    """A template can run for ever. The program that started this one, and waits, may be ended meanwhile."""
    parent = os.environ.get("M3REF_PARENT")
    if parent and sys.platform == "linux":
        set_death_signal = 1            # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
        if str(os.getppid()) != parent:
            os._exit(UNAVAILABLE)


def main():
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        run(sys.argv[1:])
    except Refused as why:
        print(f"m3ref: {printable(str(why))}", file=sys.stderr)
        return why.status
    except MemoryError:
        print("m3ref: out of memory", file=sys.stderr)
        return INTERNAL
    return 0


if __name__ == "__main__":
    sys.exit(main())

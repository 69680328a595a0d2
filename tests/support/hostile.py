"""Files with names that attack who shows them, and what no output may hold. Used by tests/whole/test_threats.sh.

usage: hostile.py dump SAFETENSORS OUT      adds tensors and metadata with such names
       hostile.py config CONFIG OUT         adds such fields
       hostile.py html|xml|json|text FILE   prints what is wrong with an output
"""
import html.parser
import json
import struct
import sys
import xml.etree.ElementTree

NAMES = [
    "<script>alert(1)</script>", "]]>", '"><img src=x onerror=alert(1)>', "javascript:alert(1)", "../../x",
    "\x1b[31mred\x1b[0m\x07\x08\r\n\ttail", "\u009b31m", "\u202eevil\u2028x", "\x7f", "%n%s%s%n", "&amp;", "n" * 100000,
]


def read(path):
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + size]), data[8 + size:]


def write_dump(given, out):
    header, data = read(given)
    about = header.setdefault("__metadata__", {})
    about["producer"] = about["command"] = " ".join(NAMES[:-1])
    for name in NAMES:
        about["extra " + name] = name
        for tensor in (name, "layers." + name + ".mid"):
            header[tensor] = {"dtype": "F32", "shape": [1], "data_offsets": [len(data), len(data) + 4]}
            data += struct.pack("<f", 1)
    text = json.dumps(header).encode()
    with open(out, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def write_config(given, out):
    config = json.load(open(given))
    for name in NAMES:
        config[name] = name
    json.dump(config, open(out, "w"))


class Page(html.parser.HTMLParser):
    """A page shows itself without scripts, without the network and without leading anywhere else."""

    def handle_starttag(self, tag, attributes):
        if tag in ("script", "iframe", "img", "object", "embed", "link", "base", "form"):
            print(f"element <{tag}>")
        for name, value in attributes:
            if name.startswith("on") or name in ("src", "srcset", "action", "background", "data"):
                print(f"attribute {name}={value}")
            if name.endswith("href") and not (value or "").startswith("#"):
                print(f"link to {value}")


def controls(path):
    text = open(path, "rb").read().decode("utf-8", errors="surrogateescape")
    bad = {c for c in text if (ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0 or 0xD800 <= ord(c) < 0xE000
           or c in "\u202e\u2028"}
    for c in sorted(bad):
        print(f"character {ord(c):04x}")
    return text


def check(kind, path):
    text = controls(path) if kind != "json" else open(path, encoding="ascii").read()
    if not text:
        print("nothing was written")
    elif kind == "html":
        Page().feed(text)
    elif kind == "xml":
        xml.etree.ElementTree.fromstring(text)
    elif kind == "json":
        for line in text.splitlines():
            json.loads(line)


if sys.argv[1] == "dump":
    write_dump(*sys.argv[2:])
elif sys.argv[1] == "config":
    write_config(*sys.argv[2:])
else:
    try:
        check(*sys.argv[1:])
    except Exception as error:
        print(f"cannot be read: {error}")

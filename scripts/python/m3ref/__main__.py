"""python -m m3ref ARGS, and the script m3ref: the program; python -m m3ref convert IN OUT: an .npz or .pt file as safetensors."""
import os
import sys

from ._library import Error, program
from .tensors import load, save
from .text import Refused, printable, standard_output


def convert(words):
    """Converts a file, or raises Refused."""
    if len(words) != 2:
        print("usage: python -m m3ref convert IN OUT\nIN: .npz, .pt or safetensors; OUT: safetensors, .gz packs it",
              file=sys.stderr)
        return 64
    source, target = words
    if os.path.exists(target) and os.path.exists(source) and os.path.samefile(source, target):
        raise Refused(64, f"{target}: got the input as output, expected another file")
    if not target.endswith((".safetensors", ".safetensors.gz")):
        raise Refused(64, f"{target}: expected a name that ends in .safetensors or .safetensors.gz")
    try:
        tensors = load(source)
        if not tensors:
            raise ValueError(f"{source}: holds no tensor")
    except OSError as why:
        raise Refused(66 if isinstance(why, FileNotFoundError) else 74, f"{source}: {why.strerror}") from why
    try:
        save(target, tensors)
    except OSError as why:
        raise Refused(74, f"{target}: {why.strerror}") from why
    standard_output(f"{printable(target)}: {len(tensors)} tensors\n".encode())
    return 0


def environment():
    """The environment for the program, whose --prompt and --chat start python3: this Python, which has the package."""
    folder = os.path.dirname(sys.executable or "")
    if not os.access(os.path.join(folder, "python3"), os.X_OK):
        return os.environ
    return {**os.environ, "PATH": os.pathsep.join([folder, os.environ.get("PATH", os.defpath)])}


def run(words):
    if words[:1] == ["convert"]:
        return convert(words[1:])
    path = program()
    try:
        os.execve(path, [path, *words], environment())
    except OSError as why:
        raise Refused(69, f"{path}: {why.strerror}") from why


def main():
    try:
        return run(sys.argv[1:])
    except (Error, Refused) as why:
        text, status = str(why), why.status
    except (ValueError, TypeError) as why:
        text, status = str(why), 65
    except MemoryError:
        text, status = "out of memory", 70
    except KeyboardInterrupt:
        return 130
    print(f"m3ref: {printable(text)}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())

"""python -m m3ref ARGS, and the script m3ref: the program; python -m m3ref convert IN OUT: an .npz or .pt file as safetensors."""
import os
import sys

from ._library import program


def convert(words):
    from .tensors import load, save
    if len(words) != 2:
        print("usage: python -m m3ref convert IN OUT\nIN: .npz, .pt or safetensors; OUT: safetensors, .gz packs it",
              file=sys.stderr)
        return 64
    source, target = words
    if os.path.exists(target) and os.path.exists(source) and os.path.samefile(source, target):
        print(f"m3ref: {target}: got the input as output, expected another file", file=sys.stderr)
        return 64
    if not target.endswith((".safetensors", ".safetensors.gz")):
        print(f"m3ref: {target}: expected a name that ends in .safetensors or .safetensors.gz", file=sys.stderr)
        return 64
    try:
        tensors = load(source)
        if not tensors:
            raise ValueError(f"{source}: holds no tensor")
        save(target, tensors)
    except FileNotFoundError as why:
        print(f"m3ref: {why.filename}: {why.strerror}", file=sys.stderr)
        return 66
    except (ValueError, TypeError) as why:
        print(f"m3ref: {why}", file=sys.stderr)
        return 65
    except OSError as why:
        print(f"m3ref: {why}", file=sys.stderr)
        return 74
    print(f"{target}: {len(tensors)} tensors")
    return 0


def environment():
    """The environment for the program, whose --prompt and --chat start python3: this Python, which has the package."""
    folder = os.path.dirname(sys.executable or "")
    if not os.access(os.path.join(folder, "python3"), os.X_OK):
        return os.environ
    return {**os.environ, "PATH": os.pathsep.join([folder, os.environ.get("PATH", os.defpath)])}


def main():
    if sys.argv[1:2] == ["convert"]:
        return convert(sys.argv[2:])
    path = program()
    os.execve(path, [path, *sys.argv[1:]], environment())


if __name__ == "__main__":
    sys.exit(main())

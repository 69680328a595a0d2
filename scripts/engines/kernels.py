"""Runs an engine's Triton kernels on a CPU, in Triton's interpreter, on cases of the composite `sparse_attention`.

    m3ref op sparse_attention --make CASES --from DUMP --tap layers.0.attn --model MODEL --rows 2281:2305
    python3 scripts/engines/kernels.py vllm|sglang CASES RESULTS
    m3ref op sparse_attention --check CASES RESULTS

The kernels are those of prefill: block scores, choice of blocks, attention. Each run of consecutive rows becomes a
request of its own, with everything before it in the cache. Pages of the cache lie in shuffled order, and what belongs
to no key holds other numbers. interpreter.py says what is changed in Triton.
"""

import importlib
import json
import os
import sys
import types

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
sys.path.insert(0, os.path.join(HERE, "..", "golden"))
from engines import environments, interpreter, registry  # noqa: E402

PARAMETERS = {"selection": "group", "pool": "max", "index_scale": "1", "local_rule": "last"}


def hollow(name, path=None, **content):
    """A module without its own code, so that a file of a package can be imported without the package."""
    module = types.ModuleType(name)
    if path:
        module.__path__ = [path]
    vars(module).update(content)
    sys.modules[name] = module
    return module


class Paged:
    """Keys in pages: what the kernels of an engine read, and where each page lies."""

    def __init__(self, torch, places, size):
        generator = torch.Generator().manual_seed(1)
        self.torch, self.size, self.count = torch, size, -(-places // size)
        self.order = torch.randperm(self.count + 3, generator=generator)[:self.count].to(torch.int32)

    def store(self, x):
        """[S,..] becomes [pages,size,..]."""
        generator = self.torch.Generator().manual_seed(2)
        shape = (self.count + 3, self.size, *x.shape[1:])
        pages = (10 * self.torch.randn(shape, generator=generator)).to(x.dtype)
        for page in range(self.count):
            part = x[page * self.size:(page + 1) * self.size]
            pages[self.order[page], :len(part)] = part
        return pages


class Call:
    """One case: its operands as tensors, and its rows as requests."""

    def __init__(self, torch, files, arrays, entry):
        number, self.parameters, self.name = entry["case"], entry["params"], f"case {entry['case']}"
        def operand(name):
            value = arrays[f"{number}.{name}"]
            tensor = torch.from_numpy(value.copy())
            return tensor.view(torch.bfloat16) if value.dtype == "uint16" else tensor
        self.q, self.k, self.v, self.index_q, self.index_k = map(operand, ("q", "k", "v", "index_q", "index_k"))
        if f"{number}.seen" in arrays:
            self.refuse("seen", "a mask", "none")
        for field, expected in PARAMETERS.items():
            if str(self.parameters.get(field, expected)) != expected:
                self.refuse(field, self.parameters[field], expected)
        for name, tensor in (("D", self.q), ("X", self.index_q)):
            if tensor.shape[-1] & (tensor.shape[-1] - 1) or tensor.shape[-1] < 16:
                self.refuse(name, tensor.shape[-1], "a power of two from 16 on, as the kernels need")
        self.block, self.N = int(self.parameters["block"]), int(self.parameters["N"])
        self.init, self.local = (int(self.parameters.get(name, default)) for name, default in
                                 (("init_blocks", 0), ("local_blocks", 1)))
        rows = entry.get("rows")
        self.rows = list(range(len(self.q))) if rows is None else rows
        starts = [i for i, row in enumerate(self.rows) if i == 0 or row != self.rows[i - 1] + 1]
        ends = starts[1:] + [len(self.rows)]
        before = len(self.k) - len(self.q)          # keys of earlier calls
        integers = lambda values: torch.tensor(values, dtype=torch.int32)   # noqa: E731
        self.cu_seqlens = integers(starts + [len(self.rows)])
        self.prefix = integers([before + self.rows[start] for start in starts])
        self.lengths = integers([before + self.rows[end - 1] + 1 for end in ends])
        self.longest = max(end - start for start, end in zip(starts, ends))
        self.count = len(starts)
        self.q, self.index_q = self.q[self.rows].contiguous(), self.index_q[self.rows].contiguous()
        self.places = torch.tensor([before + row for row in self.rows])

    def refuse(self, field, got, expected):
        raise SystemExit(f"kernels.py: {self.name}: {field}: got {got}, expected {expected}")

    def visible(self, torch, scores):
        """[R,G,B]: the kernels leave scores of blocks that a row does not see as they were."""
        hidden = torch.arange(scores.shape[-1]) * self.block > self.places[:, None, None]
        return scores.masked_fill(hidden, float("-inf"))


def stored(torch, files, tensor):
    if tensor.dtype == torch.bfloat16:
        bits = tensor.view(torch.uint16)
        return "BF16", tuple(tensor.shape), bits.numpy().tobytes()
    return files.from_array(tensor.numpy())


def in_environment(name, cases, results):
    interpreter.prepare()
    import files
    import torch
    engine = importlib.import_module("engines." + registry.ENGINES[name].adapter)
    arrays, metadata = files.read(cases)
    if metadata.get("operator") != "sparse_attention":
        sys.exit(f"{cases}: operator: got {metadata.get('operator', 'nothing')}, expected sparse_attention")
    tensors = {}
    with torch.no_grad():
        for entry in json.loads(metadata["cases"]):
            call = Call(torch, files, arrays, entry)
            for output, tensor in engine.sparse_attention(call).items():
                tensors[f"{entry['case']}.{output}"] = stored(torch, files, tensor.contiguous())
    files.write(os.path.abspath(results + ".part"), files.to_bytes(tensors, {"producer": registry.ENGINES[name].title}))
    os.replace(results + ".part", results)


def main():
    words = sys.argv[1:]
    kernels = [name for name, engine in registry.ENGINES.items() if engine.kernels]
    if len(words) != 3 or words[0] not in kernels:
        sys.exit(f"usage: kernels.py {'|'.join(kernels)} CASES RESULTS")
    if not environments.inside(words[0]):
        python = environments.python(words[0])
        os.execv(python, [python, os.path.abspath(__file__), *words])
    # The folder of this file would hide packages of the same name as an adapter.
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != HERE]
    in_environment(*words)


if __name__ == "__main__":
    main()

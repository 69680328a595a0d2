"""Operators: cases for a kernel, and the reference's own results."""
import ctypes
import functools
import json
import operator
import os
import re

import numpy as np

from . import _library as c
from .functions import call, outputs_by_name
from .tensors import Memory, Dump, file_of, format_of, load, to_array, to_torch, write_whole
from .verdict import Verdict, VerdictError


@functools.lru_cache(maxsize=None)
def table():
    rows = (json.loads(line) for line in c.operators_text().splitlines())
    return {row["name"]: row for row in rows}


def operators():
    """What `m3ref op --list --json` prints, by name."""
    return {name: dict(row) for name, row in table().items()}


def row_of(name):
    if name not in table():
        raise c.Error(f"got the operator {name}, expected one of {', '.join(table())}", 64)
    return table()[name]


def output_names(row):
    names = [o["name"] for o in row["outputs"]]
    return names, [o["name"] for o in row["outputs"] if not o["optional"]]


def optional_names(row):
    return [o["name"] for o in row["operands"] if o["optional"]]


# ---- cases

class Drawn:
    """The weights of many experts, which a case gives by name and seed: `drawn[e]` makes the matrix of one expert, and
    np.asarray(drawn) makes all of them, which may take gigabytes. `rule` says how they are drawn: REFERENCE.md 7.16."""

    def __init__(self, case, name, rule, as_torch=False, device=None):
        self.case, self.name, self.rule = case, f"{case.case}.{name}", rule
        self.shape = tuple(rule["shape"])
        self.as_torch, self.device = as_torch, device

    def make(self, only):
        file = Memory(on_disk=only == self.name)
        task = c.Draw(c.text(self.case.set.path), c.text(file.path), c.text(only), c.threads_for(None))
        c.call(c.lib.m3_library_draw, ctypes.byref(task))
        array = file.load("drawn")[only]
        return to_torch(array, self.device) if self.as_torch else array

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, expert):
        index = operator.index(expert)
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.name}: got expert {index}, expected one of {len(self)}")
        return self.make(f"{self.name}.{index % len(self)}")

    def all(self):
        return self.make(self.name)

    def __array__(self, dtype=None, copy=None):
        return np.asarray(Drawn(self.case, self.name.split(".", 1)[1], self.rule).all(), dtype)

    def __repr__(self):
        return f"<{self.name} {list(self.shape)} {self.rule['dtype']}, drawn>"


class Case:
    """One case of an operator: `inputs`, `params`, `rows` that are judged (None: all), `what` it covers, the known
    mistakes that it `catches`, `outputs` with their shapes, and its number, `case`."""

    def __init__(self, cases, entry):
        self.set = cases
        self.op = cases.op
        self.case = entry["case"]
        self.what = entry.get("what", "")
        self.params = dict(entry.get("params") or {})
        self.outputs = entry.get("outputs") or {}
        self.rows = entry.get("rows")
        self.catches = entry.get("catches") or []
        self.drawn = entry.get("drawn") or {}

    @property
    def inputs(self):
        """The operands: read-only arrays in the order of `op --list`; a Drawn for weights that are not stored."""
        made = {}
        for name in (o["name"] for o in row_of(self.op)["operands"]):
            if f"{self.case}.{name}" in self.set.tensors:
                made[name] = self.set.tensors[f"{self.case}.{name}"]
            elif name in self.drawn:
                made[name] = Drawn(self, name, self.drawn[name])
        return made

    def torch(self, device=None):
        """The operands as torch tensors of the same types; of a Drawn, each expert is one."""
        return {name: Drawn(self, name, value.rule, True, device) if isinstance(value, Drawn)
                else to_torch(value, device) for name, value in self.inputs.items()}

    def run(self, function, torch=False, device=None):
        """Calls a function with the operands and those parameters that it takes."""
        inputs = self.torch(device) if torch or device else self.inputs
        return call(function, inputs, self.params, optional_names(row_of(self.op)))

    def reference(self, precision="f32", bounds=False, threads=None):
        """What the reference gives, by name; only the rows that are judged, if the case lists them."""
        return run_cases(self.set.path, self.case, precision, bounds, threads)

    def check(self, results, profile=None, threads=None):
        """The verdict on results: an array, a tuple in the order of the outputs, or a dict by name. Where the case
        lists rows, they hold all rows or those."""
        results = outputs_by_name(results, *output_names(row_of(self.op)), self.op)
        file = Memory({f"{self.case}.{name}": value for name, value in results.items()})
        task = c.Check(c.text(self.set.path), c.text(file.path), c.text(os.fspath(profile or self.set.profile)),
                       self.case, c.threads_for(threads))
        return Verdict(*c.report(c.lib.m3_library_check, task), f"{self!r}\n")

    def __repr__(self):
        params = "".join(f", {key}={value}" for key, value in self.params.items())
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in self.inputs.items())
        return f"{self.op} case {self.case}: {self.what or 'drawn values'}: {shapes}{params}"


class CaseSet:
    """The cases of one operator, to iterate over; also a decorator that makes one pytest test of each."""

    def __init__(self, source, profile="fp32"):
        self.path, self.file = (source.path, source) if isinstance(source, Memory) else file_of(source)
        self.tensors = self.file.load("cases") if self.file else load(self.path)
        self.profile = profile
        self.op = self.tensors.metadata.get("operator")
        if self.op not in table() or "cases" not in self.tensors.metadata:
            raise c.Error(f"{self.path}: got no metadata \"cases\", expected a file of op --make", 65)
        self.entries = json.loads(self.tensors.metadata["cases"])

    # A case holds its set: a list of cases here would keep the files of both open until the garbage collector comes.
    def __iter__(self):
        return (Case(self, entry) for entry in self.entries)

    def __len__(self):
        return len(self.entries)

    def __getitem__(self, index):
        return Case(self, self.entries[index])

    def save(self, path):
        """Writes the file of cases, for a program in another language."""
        if os.path.exists(path) and os.path.samefile(self.path, path):
            raise c.Error(f"{os.fspath(path)}: got the file that is read, expected another", 64)

        def pieces():
            with open(self.path, "rb") as source:
                while piece := source.read(1 << 24):
                    yield piece

        write_whole(path, pieces())

    def __call__(self, function):
        """The decorator: a test function with an argument `case`. It returns results, which are judged under the
        profile of the set, or a verdict, or nothing if it has judged for itself."""
        import pytest

        @functools.wraps(function)
        def test(*arguments, case, **named):
            __tracebackhide__ = True
            given = function(*arguments, case=case, **named)
            if given is not None:
                (given if isinstance(given, Verdict) else case.check(given)).require()

        names = [f"{one.case}-{re.sub(r'[^a-z0-9]+', '-', one.what.lower()).strip('-')[:50] or 'drawn'}"
                 for one in self]
        return pytest.mark.parametrize("case", list(self), ids=names)(test)


def sizes_text(sizes):
    if not isinstance(sizes, dict):
        return sizes
    return ",".join(f"{letter}={c.whole(size, letter, 1, 2**63 - 1)}" for letter, size in sizes.items())


def cases(name, *, sizes="tiny", dtype="f32", seed=1, count=4, profile="fp32"):
    """Cases of an operator, structured ones first, then `count` drawn ones, as `m3ref op NAME --make` makes them.

    sizes: "tiny", "small", "real", or sizes by letter, {"T": 7, "H": 64}; dtype: how operands are stored, "f32",
    "bf16" or "f16"; profile: where the kernel may round, for `check`."""
    row_of(name)
    file = Memory(on_disk=sizes == "real")
    task = c.Make(c.text(name), c.text(file.path), c.text(sizes_text(sizes)), c.text(dtype),
                  c.whole(seed, "seed", 0, 2**64 - 1), c.whole(count, "count", 0, 2**63 - 1))
    c.call(c.lib.m3_library_make, ctypes.byref(task))
    return CaseSet(file, profile)


def cases_from(dump, tap, name, model, *, case=None, rows=None, allow_large=False, profile="fp32"):
    """Cases of an operator with the operands that it had in a run of a model: cut out of a dump (a path), one case per
    tap that matches `tap` ("layers.3.attn", or a pattern), as `m3ref op NAME --make CASES --from DUMP --tap TAP`.

    model: its directory; case: the file of the run's inputs, if the dump does not hold them; rows: those to judge,
    "all" or "0,5,128:130"; allow_large: also weights above 1 GB."""
    row_of(name)
    file = Memory(on_disk=True)
    paths = [c.text(None if path is None else os.fspath(path)) for path in (dump, tap, model, case)]
    task = c.From(c.text(name), c.text(file.path), *paths, c.text(rows), bool(allow_large))
    c.call(c.lib.m3_library_from, ctypes.byref(task))
    return CaseSet(file, profile)


def open_cases(path, profile="fp32"):
    """The cases of a file that `m3ref op NAME --make` wrote."""
    return CaseSet(path, profile)


# ---- the reference

def operand_array(value, operand):
    """An operand in a type that the case file allows: ids of 32 bits where they fit."""
    array = to_array(value)
    name = operand["name"]
    if operand["role"] == "ids" and name != "seen" and array.dtype.kind in "iu":
        info = np.iinfo(np.int32)
        fits = array.size == 0 or (array.max() <= info.max and array.min() >= info.min)
        return array.astype(np.int32 if fits else np.int64)
    if name == "seen" and array.dtype.kind in "iu":
        return (array != 0).astype(np.uint8)
    format_of(array, name)
    return array


def parameter_value(name, value):
    """A number or a word, as JSON has them."""
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, (int, float, str)) or (isinstance(value, float) and not np.isfinite(value)):
        raise c.Error(f"{name}: got {value!r}, expected a finite number or a word", 64)
    return value


def run_cases(path, only, precision, bounds, threads):
    """The reference's outputs for one case of a file, by name, in the order of the table."""
    results = Memory()
    task = c.Run(c.text(path), c.text(results.path), c.text(precision), only, bool(bounds), c.threads_for(threads))
    c.call(c.lib.m3_library_run, ctypes.byref(task))
    made = results.load("results")
    outputs = {name.split(".", 1)[1]: np.array(value) for name, value in made.items()}
    names = [o["name"] for o in table()[made.metadata["operator"]]["outputs"]]
    ordered = [name for one in names for name in (one, one + ".allowed")]
    return Dump({name: outputs[name] for name in ordered if name in outputs})


class Operator:
    """One operator of the reference: operands by position or by name, parameters by name."""

    def __init__(self, row):
        self.row = row
        self.__name__ = row["name"]
        self.__doc__ = f"{row['what']}  (SPEC {row['section']})\n\n{self.signature()}"

    def signature(self):
        operands = ", ".join(f"{o['name']}{'=None' if o['optional'] else ''}" for o in self.row["operands"])
        parameters = "".join(f", {p['name']}={p['default']}" for p in self.row["parameters"])
        outputs = ", ".join(f"{o['name']}[{','.join(o['shape'])}]" for o in self.row["outputs"])
        return f"{self.row['name']}({operands}{parameters}, precision='f32') -> {outputs}"

    def __repr__(self):
        return f"<{self.signature()}>"

    def arguments(self, given, named):
        operands = [o["name"] for o in self.row["operands"]]
        parameters = [p["name"] for p in self.row["parameters"]]
        if len(given) > len(operands):
            raise TypeError(f"{self.__name__}: got {len(given)} operands, expected {self.signature()}")
        inputs = dict(zip(operands, given))
        values = {}
        for name, value in named.items():
            if name in inputs or name not in operands + parameters:
                raise TypeError(f"{self.__name__}: got {name}{' twice' if name in inputs else ''}, expected "
                                f"{self.signature()}")
            (inputs if name in operands else values)[name] = value
        return {name: value for name, value in inputs.items() if value is not None}, values

    def __call__(self, *given, precision="f32", bounds=False, threads=None, **named):
        inputs, values = self.arguments(given, named)
        rows = {o["name"]: o for o in self.row["operands"]}
        entry = {"case": 0, "params": {name: parameter_value(name, value) for name, value in values.items()}, "rows": None}
        file = Memory({f"0.{name}": operand_array(value, rows[name]) for name, value in inputs.items()},
                      {"operator": self.__name__, "cases": json.dumps([entry])})
        outputs = run_cases(file.path, 0, precision, bounds, threads)
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs


class Operators:
    """m3ref.op.NAME(..): what the reference gives for any operator of `op --list`. One output is an array, several are
    a dict by name. precision: "f32" or "f64"; bounds=True adds "NAME.allowed", how far a float implementation may be
    from the f64 result."""

    def __getattr__(self, name):
        if name not in table():
            raise AttributeError(f"got the operator {name}, expected one of {', '.join(table())}")
        return Operator(table()[name])

    def __dir__(self):
        return list(table())


op = Operators()

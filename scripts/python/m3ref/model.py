"""Runs of a whole model, with functions of the user as operators."""
import ctypes
import os

import numpy as np

from . import _library as c
from .functions import call, fill, outputs_by_name
from .operators import optional_names, table
from .tensors import Memory, file_of, load, to_array

# enum m3_dtype of ref/base/weight.h
DTYPES = {0: np.dtype("<f8"), 1: np.dtype("<f4"), 6: np.dtype("<i8"), 7: np.dtype("<i4"), 8: np.dtype("u1")}


def view(operand):
    """The memory of an operand as an array; inputs are read-only."""
    dtype = DTYPES[operand.dtype]
    shape = tuple(operand.shape[i] for i in range(operand.rank))
    count = int(np.prod(shape, dtype=np.int64))
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(operand.data)
    array = np.frombuffer(memory, dtype, count).reshape(shape)
    array.flags.writeable = bool(operand.is_output)
    return array


class Replacements:
    """The functions of a run, behind one function of C."""

    def __init__(self, functions):
        for name, function in functions.items():
            if not callable(function):
                raise TypeError(f"ops: {name}: got {type(function).__name__}, expected a function")
        self.functions = dict(functions)
        self.why = None         # the exception that ended the run
        self.pointer = c.Function(self.called)

    def ops(self):
        return c.Ops(c.text(",".join(self.functions)), None, self.pointer)

    def called(self, _, pointer):
        # No exception may pass through C.
        try:
            self.compute(pointer.contents)
            return 0
        except BaseException as why:
            self.why = why
            return c.INTERNAL

    def compute(self, the_call):
        name = the_call.op.decode()
        operands = [the_call.operand[i] for i in range(the_call.operands)]
        inputs = {o.name.decode(): view(o) for o in operands if not o.is_output}
        outputs = {o.name.decode(): (o, view(o)) for o in operands if o.is_output}
        parameters = {}
        for i in range(the_call.parameters):
            p = the_call.parameter[i]
            number = int(p.number) if p.number.is_integer() and p.name != b"eps" else p.number
            parameters[p.name.decode()] = p.word.decode() if p.word else number
        row = table().get(name, {"operands": []})
        given = call(self.functions[name], inputs, parameters, optional_names(row) + ["bias"])
        required = [key for key, (o, _) in outputs.items() if not o.optional]
        results = outputs_by_name(given, list(outputs), required, name)
        for key, (operand, array) in outputs.items():
            if key in results and results[key] is not None:
                fill(array, results[key], f"{name}: {key}")
            elif operand.optional:
                operand.left_out = 1
            else:
                raise TypeError(f"{name}: got no output {key}, expected {', '.join(required)}")


def set_text(fields):
    return ",".join(f"{key}={value}" for key, value in fields.items()) if isinstance(fields, dict) else fields


def ids_of(ids):
    """[T], the ids of one sequence. A float is no id, and a table is no sequence."""
    array = to_array(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise c.Error(f"ids: got {array.dtype} {list(array.shape)}, expected whole numbers [T], of one sequence", 64)
    if array.size and array.max() > np.iinfo(np.int64).max:
        raise c.Error(f"ids: got {array.max()}, expected ids of the vocabulary", 64)
    return np.ascontiguousarray(array, dtype=np.int64)


def run(model, ids=None, *, case=None, ops=None, taps=None, dump=None, precision="f32", linear="blas", set=None,
        bounds=False, allow_long=False, threads=None):
    """Runs a model over ids, or over a case: a path, or arrays by name. Returns a Dump of its taps.

    ops: functions by the name of the operator that they replace (ref/ops/ops.h), such as {"rms_norm": mine}. A function
    receives NumPy arrays, valid during the call, and returns an array, a tuple or a dict by name, of any float type;
    weights arrive as numbers, whatever they are stored in. taps: patterns, "layers.3.*,logits"; dump: a path to write
    to, instead of memory; set: fields of SPEC 4, {"selection": "shared"}; bounds: with the companions by which compare
    judges."""
    if (ids is None) == (case is None):
        raise c.Error("run: got both ids and case, or neither, expected one of them", 64)
    replaced = Replacements(ops or {})
    list_of_ids = ids_of(ids if ids is not None else [])
    path, kept = file_of(case) if case is not None else (None, None)
    memory = None if dump else Memory()
    task = c.Model(c.text(os.fspath(model)), c.text(os.fspath(dump) if dump else memory.path), c.text(path),
                   list_of_ids.ctypes.data_as(ctypes.POINTER(ctypes.c_int64)), list_of_ids.size, c.text(taps),
                   c.text(set_text(set)), c.text(precision), c.text(linear), bool(bounds), bool(allow_long),
                   c.threads_for(threads), b"m3ref.run", replaced.ops())
    notes = c.CError()
    try:
        c.call(c.lib.m3_library_model, ctypes.byref(task), ctypes.byref(notes))
    except c.Error as error:
        if replaced.why is None:
            raise
        if not isinstance(replaced.why, Exception):
            raise replaced.why
        raise c.Error(f"{error}: {type(replaced.why).__name__}: {replaced.why}", error.status) from replaced.why
    finally:
        c.lib.m3_error_free(ctypes.byref(notes))
    return load(dump) if dump else memory.load("dump")

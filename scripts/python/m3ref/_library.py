"""libm3ref.so by ctypes: the structures of ref/library/library.h and ref/ops/outside.h."""
import ctypes
import operator
import os
import pathlib
from ctypes import POINTER, c_char, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint64, c_void_p

ABI = 4
HERE = pathlib.Path(__file__).resolve().parent
NOT_COMPARABLE = 3
INTERNAL = 70


class Error(RuntimeError):
    """What the library refuses, with the program's exit status."""

    def __init__(self, message, status=INTERNAL):
        super().__init__(message)
        self.status = status


class CError(ctypes.Structure):
    _fields_ = [("status", c_int), ("count", c_int), ("kept", c_int), ("text", c_char_p), ("first", c_char * 256),
                ("lost", c_int), ("length", c_size_t)]


class Operand(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_int), ("is_output", c_int), ("optional", c_int), ("left_out", c_int),
                ("rank", c_int), ("shape", c_int64 * 3), ("data", c_void_p)]


class Parameter(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("word", c_char_p), ("number", c_double)]


class Call(ctypes.Structure):
    _fields_ = [("op", c_char_p), ("operands", c_int), ("parameters", c_int), ("operand", Operand * 10),
                ("parameter", Parameter * 10)]


Function = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(Call))


class Ops(ctypes.Structure):
    _fields_ = [("names", c_char_p), ("self", c_void_p), ("function", Function)]


class Task(ctypes.Structure):
    """A structure of library.h; each begins with its size."""
    _fields_ = [("size", c_size_t)]

    def __init__(self, *values, **named):
        super().__init__(ctypes.sizeof(self), *values, **named)


class Make(Task):
    _fields_ = [("op", c_char_p), ("cases", c_char_p), ("sizes", c_char_p), ("dtype", c_char_p), ("seed", c_uint64),
                ("count", c_int64)]


class From(Task):
    _fields_ = [("op", c_char_p), ("cases", c_char_p), ("dump", c_char_p), ("taps", c_char_p), ("model", c_char_p),
                ("case_path", c_char_p), ("rows", c_char_p), ("allow_large", c_int)]


class Run(Task):
    _fields_ = [("cases", c_char_p), ("results", c_char_p), ("precision", c_char_p), ("only", c_int64),
                ("bounds", c_int), ("threads", c_int), ("ops", Ops)]


class Draw(Task):
    _fields_ = [("cases", c_char_p), ("drawn", c_char_p), ("only", c_char_p), ("threads", c_int)]


class Report(ctypes.Structure):
    _fields_ = [("status", c_int), ("lines", c_char_p), ("text", c_char_p)]


class Check(Task):
    _fields_ = [("cases", c_char_p), ("results", c_char_p), ("profile", c_char_p), ("only", c_int64),
                ("threads", c_int)]


class Compare(Task):
    _fields_ = [("reference", c_char_p), ("candidate", c_char_p), ("profile", c_char_p), ("companions", c_char_p),
                ("map", c_char_p), ("taps", c_char_p), ("force", c_int)]


class Model(Task):
    _fields_ = [("model", c_char_p), ("dump", c_char_p), ("case", c_char_p), ("ids", POINTER(c_int64)), ("T", c_int64),
                ("taps", c_char_p), ("set", c_char_p), ("precision", c_char_p), ("linear", c_char_p),
                ("bounds", c_int), ("allow_long", c_int), ("threads", c_int), ("command", c_char_p), ("ops", Ops)]


def find(name):
    """A file beside this one, where the wheel puts it, or in the build folder of the repository."""
    places = [HERE / name]
    if (HERE.parent.parent.parent / "ref" / "m3ref.h").exists():
        places.append(HERE.parent.parent.parent / "build" / name)
    for place in places:
        if place.exists():
            return str(place)
    raise Error(f"{places[-1]}: got no such file, expected what make builds", 69)


def program():
    """The path of the program."""
    return find("m3ref")


def open_library():
    # RTLD_LOCAL: the names of OpenBLAS must not reach libraries that are loaded later.
    lib = ctypes.CDLL(find("libm3ref.so"), mode=os.RTLD_LOCAL | os.RTLD_NOW)
    if lib.m3_library_abi() != ABI:
        raise Error(f"{lib._name}: got ABI {lib.m3_library_abi()}, expected {ABI}", 69)
    lib.m3_library_error_size.restype = c_size_t
    if lib.m3_library_error_size() != ctypes.sizeof(CError):
        raise Error(f"{lib._name}: got errors of {lib.m3_library_error_size()} bytes, expected "
                    f"{ctypes.sizeof(CError)}", 69)
    lib.m3_library_free.argtypes = [c_void_p]
    lib.m3_library_free.restype = None
    lib.m3_error_free.argtypes = [POINTER(CError)]
    lib.m3_error_free.restype = None
    lib.m3_library_report_free.argtypes = [POINTER(Report)]
    lib.m3_library_report_free.restype = None
    lib.m3_library_operators.argtypes = [POINTER(c_void_p), POINTER(CError)]
    lib.m3_library_make.argtypes = [POINTER(Make), POINTER(CError)]
    lib.m3_library_from.argtypes = [POINTER(From), POINTER(CError)]
    lib.m3_library_run.argtypes = [POINTER(Run), POINTER(CError)]
    lib.m3_library_draw.argtypes = [POINTER(Draw), POINTER(CError)]
    lib.m3_library_check.argtypes = [POINTER(Report), POINTER(Check), POINTER(CError)]
    lib.m3_library_compare.argtypes = [POINTER(Report), POINTER(Compare), POINTER(CError)]
    lib.m3_library_model.argtypes = [POINTER(Model), POINTER(CError), POINTER(CError)]
    return lib


lib = open_library()
# A process that was forked has none of the threads of libgomp, and waits for them for ever; one thread needs none.
forked = [False]
os.register_at_fork(after_in_child=lambda: forked.__setitem__(0, True))


def whole(value, name, least, most):
    """A whole number between two limits: ctypes would cut off what does not fit."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise Error(f"{name}: got {value!r}, expected a whole number from {least} to {most}", 64)
    return number


def threads_for(threads):
    if threads is not None:
        threads = whole(threads, "threads", 1, 2**31 - 1)
    if forked[0]:
        return 1
    return threads or lib.m3_library_threads()


def text(value):
    """The bytes of a text or a path. C would end it at a NUL."""
    if value is None:
        return None
    made = os.fsencode(value)
    if b"\0" in made:
        raise Error(f"got {value!r}, expected a text without NUL", 64)
    return made


def call(function, *arguments):
    """Calls with an error as the last argument; raises what it says."""
    error = CError()
    status = function(*arguments, ctypes.byref(error))
    lines = (error.text or error.first).decode(errors="replace").rstrip("\n")
    lib.m3_error_free(ctypes.byref(error))
    if status:
        raise Error(lines or f"status {status}", status)


def operators_text():
    lines = c_void_p()
    call(lib.m3_library_operators, ctypes.byref(lines))
    result = ctypes.string_at(lines).decode()
    lib.m3_library_free(lines)
    return result


def report(function, task):
    """(status, JSON lines, text) of a verdict."""
    made = Report()
    try:
        call(function, ctypes.byref(made), ctypes.byref(task))
        return made.status, made.lines.decode(), made.text.decode()
    finally:
        lib.m3_library_report_free(ctypes.byref(made))
